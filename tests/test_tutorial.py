"""The tutorial runs as it stands and prints what it says; the page on ranks quotes the runs it names.

After a change: ``python tests/test_tutorial.py`` runs the tutorial, writes what it prints into the page and keeps its
pictures.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from isthmus.discovery import _search as verdict
from isthmus.discovery._walk import ROUGH, TOLERANCE
from isthmus.files import read_json

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "tutorials" / "nuclei.md"
RANK_PAGE = DOCS / "how_to_read_a_rank.md"
FIGURES = DOCS / "figures"

#: A Python block, and the text that it prints if a block of text follows at once.
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", flags=re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e-\d+")
#: Roundings differ between machines and thread counts, and training magnifies them.
RELATIVE, ABSOLUTE = 0.5, 0.1


def blocks(page=PAGE):
    return [(found["code"], found["printed"]) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def printed_by(code, names):
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(compile(code, str(PAGE), "exec"), names)
    return stream.getvalue()


def differences(expected, printed):
    """Words and whole numbers must be equal, decimal numbers nearly."""
    texts = [" ".join(NUMBER.sub("#", text).split()) for text in (expected, printed)]
    if texts[0] != texts[1]:
        return [f"expected\n{expected}\nprinted\n{printed}"]
    pairs = zip(*([float(number) for number in NUMBER.findall(text)] for text in (expected, printed)))
    return [f"{a} is now {b}" for a, b in pairs if abs(a - b) > RELATIVE * a or max(a, b) <= 1 < abs(a - b) / ABSOLUTE]


def run(chosen):
    """Run blocks one after the other, as a reader would, and compare what they print."""
    names, wrong = {"__name__": "tutorial"}, []
    for code, expected in chosen:
        printed = printed_by(code, names)
        wrong += differences(expected or "", printed)
    assert not wrong, "\n".join(wrong)
    return names


@pytest.fixture
def folder(tmp_path, monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    try:
        datasets.load_breast_cancer()
    except OSError as problem:
        pytest.skip(f"scikit-learn is installed without its data sets: {problem}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_first_discovery(folder):
    """Down to the first rank; the rest is slow."""
    code = blocks()
    last = next(i for i, (_, printed) in enumerate(code) if printed and "determined" in printed)
    run(code[: last + 1])


@pytest.mark.slow
def test_the_whole_tutorial_and_its_commands(folder):
    names = run(blocks())
    for picture in ("nuclei.png", "nuclei_latents.png"):
        assert (folder / picture).stat().st_size > 10_000
    lines = " ".join(re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL))
    commands = [line.strip() for line in lines.replace("\\\n", " ").split("$ ") if line.strip()]
    assert len(commands) == 4
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "isthmus"
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [sys.executable, "-m", "isthmus", *words], env=environment, capture_output=True, text=True, encoding="utf-8"
        )
        assert done.returncode == 0, done.stderr
    answers = [read_json(folder / kept / "discovery.json") for kept in ("size", "shape")]
    assert [(a["rank"], a["verdict"]) for a in answers] == [(1, "determined"), (2, "determined")]
    # Command and call are the same discovery.
    by_call = names["of_shape"].transform(names["new"][names["inputs"]])
    by_command = names["pd"].read_csv("new_coordinates.csv").to_numpy()
    assert abs(by_call - by_command).max() < 1e-6
    assert names["pd"].read_csv("predicted.csv").shape == (100, 4)


def test_pictures_are_kept_and_small():
    for page in (PAGE, RANK_PAGE):
        pictures = re.findall(r"\]\(([\w./]+\.png)\)", page.read_text(encoding="utf-8"))
        assert pictures, page.name
        for picture in pictures:
            assert 10_000 < (page.parent / picture).stat().st_size <= 150_000, picture


def rows_of_cases(text):
    """(Case, column, cell) of every table whose first column is called case."""
    columns = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = cells
        elif columns[0] == "case" and not set(cells[0]) <= set("-"):
            for column, cell in zip(columns[1:], cells[1:]):
                yield cells[0], column, cell


def in_the_run(numbers, case, column):
    """What the run of a case says about a column of the page."""
    found = numbers[re.match(r"`([\w.-]+)`", case)[1]]
    if re.fullmatch(r"x\d", column):
        return found["sensitivity"][int(case[-1])][int(column[1])]
    if column == "wide":
        return list(found["errors"].values())[-1]
    if one := re.fullmatch(r"e\((\d)\)", column):
        return found["errors"][one[1]]
    return found[column] if column in found else found["evidence"][column]


def test_the_tables_of_the_rank_page_are_of_its_runs():
    numbers = read_json(FIGURES / "how_to_read_a_rank.json")
    cells = list(rows_of_cases(RANK_PAGE.read_text(encoding="utf-8")))
    assert len(cells) > 80
    for case, column, cell in cells:
        value = in_the_run(numbers, case, column)
        assert cell == (value if isinstance(value, str) else f"{value:g}"), (case, column)


def test_the_rank_page_has_the_constants_of_the_verdict():
    text = " ".join(RANK_PAGE.read_text(encoding="utf-8").split())
    constants = {
        "SIGNIFICANT": (3, "three standard errors"),
        "CHANCE": (0.001, "p < 0.001"),
        "CLEAR": (2, "at least twice what counts as equal"),
        "CLEAR_RATIO": (2, "at least twice what further coordinates gain"),
        "MARGINAL": (0.05, "by more than 5 % of the error"),
        "WORSE": (1.5, "at most 1.5 times theirs, and λ"),
        "FILLED": (0.8, "0.8·k dimensions"),
        "TORN": (0.01, "less than 1 % of the variance"),
        "SURFACE": (0.6, "0.6·k dimensions"),
        "UNEXPLAINED": (0.25, "a quarter of its error"),
        "OVERFIT": (3, "three times the training cost"),
        "FEWEST_HELD": (10, "At least 10 rows"),
        "FINEST": (4e-4, "less than 0.0004 of the variance"),
    }
    for name, (value, words) in constants.items():
        assert getattr(verdict, name) == value, name
        assert words in text, words
    assert (TOLERANCE, ROUGH) == (0.1, 0.5)
    assert "10 % of it + λ/2" in text
    assert "50 % is then allowed instead of 10 %" in text


def test_differences_are_noticed():
    assert not differences("rank 2 error 0.046 (x)\n", "rank 2 error 0.051  (x)\n")
    assert differences("rank 2", "rank 3")
    assert differences("error 0.046", "error 0.146")
    assert differences("correlation 0.98", "correlation 0.85")


def write():
    """Run the tutorial and put what it prints into the page."""
    text, names = PAGE.read_text(encoding="utf-8"), {"__name__": "tutorial"}

    def renewed(found):
        printed = printed_by(found["code"], names)
        print(printed, flush=True)
        shown = f"\n```text\n{printed}```\n" if printed else ""
        return f"```python\n{found['code']}```\n{shown}"

    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        text = BLOCK.sub(renewed, text)
        for picture in Path().glob("*.png"):
            shutil.copy(picture, FIGURES / picture.name)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
