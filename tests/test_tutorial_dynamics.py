"""The tutorials on dynamics run as they stand and print what they say.

After a change: ``python tests/test_tutorial_dynamics.py ball`` runs a page and writes what it prints into it.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
#: A Python block, what it needs besides the dependencies, and what it prints.
BLOCK = re.compile(
    r"(?:<!-- needs (?P<needs>\w+) -->\n)?```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?",
    flags=re.DOTALL,
)
NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e-\d+")


def page_of(name):
    return TUTORIALS / f"{name}.md"


def printed_by(code, names):
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(compile(code, "tutorial", "exec"), names)
    return stream.getvalue()


def words(text):
    """Without decimal numbers, which differ between machines, nor the layer and the method found."""
    text = re.sub(r"network\.\d+", "network.#", NUMBER.sub("#", text))
    return " ".join(re.sub(r"\b0\b|(?<=± )\d\b", "#", text).split())


def run(name="dynamics", *, only=None, write=False):
    """All blocks, or those that need ``only``; what they print beside what the page says."""
    names, text = {"__name__": "tutorial"}, page_of(name).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if found["needs"] and found["needs"] != only:
            continue
        printed = printed_by(found["code"], names)
        if write:
            old = found[0]
            new = re.sub(r"```text\n.*?```", lambda _: f"```text\n{printed}```", old, flags=re.DOTALL)  # noqa: B023
            text = text.replace(old, new)
        else:
            assert words(printed) == words(found["printed"] or ""), printed
    if write:
        page_of(name).write_text(text, encoding="utf-8")
    return names


@pytest.mark.slow
def test_the_tutorial_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run()
    assert (tmp_path / "symmetry.png").stat().st_size > 10_000
    assert names["found"].rank == 2 and names["moving"].state == "closed"


@pytest.mark.slow
def test_the_ball_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("ball")
    assert names["found"].rank == names["ball"].rank == 4


@pytest.mark.slow
def test_the_equation_by_pysindy(tmp_path, monkeypatch):
    pytest.importorskip("pysindy", reason="PySINDy is not installed: pip install isthmus[dynamics]")
    monkeypatch.chdir(tmp_path)
    run(only="pysindy")


def test_the_ball_is_complete():
    blocks = list(BLOCK.finditer(page_of("ball").read_text(encoding="utf-8")))
    assert len(blocks) == 4 and all(block["printed"] for block in blocks)


def test_the_page_is_complete():
    text = page_of("dynamics").read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == 6 and all(block["printed"] for block in blocks)
    assert sum(block["needs"] == "pysindy" for block in blocks) == 1
    for picture in re.findall(r"\]\(([\w./]+\.png)\)", text):
        assert 10_000 < (TUTORIALS / picture).stat().st_size <= 150_000, picture


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    run(*sys.argv[1:2], write=True, only=sys.argv[2] if len(sys.argv) > 2 else None)
