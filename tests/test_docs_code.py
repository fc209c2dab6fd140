"""Code in the documentation does what it says: Python runs, commands exist with the options that are shown.

A block that cannot run has ``<!-- not run: reason -->`` above it and is compiled. Pages of which another test runs the
blocks, and compares what they print, are listed with that test.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
import typer.main

from docs_site import DOCS, ROOT
from isthmus import files
from isthmus._cite import CITATIONS
from isthmus.cli import app
from test_tutorial import differences

#: Typer carries Click under a name of its own, or not, depending on its version.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # pyright: ignore[reportAssignmentType]
PAGES = [*sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts), ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n)?(?:<!-- needs \w+ -->\n)?"
    r"^```(?P<language>python|sh|console|text)\n(?P<code>.*?)^```",
    flags=re.DOTALL | re.MULTILINE,
)
#: What a block prints, where a block of text follows at once.
PRINTED = re.compile(r"\n\n```text\n(.*?)```", flags=re.DOTALL)
INLINE = re.compile(r"(?<!`)`(isthmus [a-z][^`]*)`(?!`)")
#: Pages whose Python another test runs, from top to bottom.
ELSEWHERE = {
    "how_to_compress.md": "cli/test_cli_compress.py",
    "tutorials/ball.md": "test_tutorial_dynamics.py",
    "tutorials/classification.md": "test_tutorials_estimators.py",
    "tutorials/denoising.md": "test_tutorials_estimators.py",
    "tutorials/dynamics.md": "test_tutorial_dynamics.py",
    "tutorials/nuclei.md": "test_tutorial.py",
}
SLOW = {"how_to_mechanics.md", "your_own_csv.md"}
#: Pages whose Python cannot run here at all.
COMPILED = {"how_to_sweep_on_ray.md": "needs a cluster, and would take any that happens to run"}
#: Pages about a package that need not be there.
ABOUT = {"tutorials/huggingface_model.md": "transformers"}
#: What a page takes for granted: the reader's own network and data.
BEFORE = {
    "how_to_diagnose.md": """
        import torch
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        X, Y = torch.randn(64, 6), torch.randn(64, 2)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
        loss, optimizer = torch.nn.MSELoss(), torch.optim.Adam(module.parameters())
        import isthmus.files
        from safetensors.torch import save_file
        for step in (1000, 2000):
            save_file({name: value.clone() for name, value in module.state_dict().items()}, f"step{step}.safetensors")
    """,
    "where_you_work.md": """
        import torch, isthmus
        torch.manual_seed(0)
        make = lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        module, trained = make(), make()
        X, Y = torch.randn(64, 6), torch.randn(64, 2)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
        loss, optimizer = torch.nn.MSELoss(), torch.optim.Adam(module.parameters())
        data = X.double().numpy()
        found = isthmus.discover(data, data[:, :2], rank=1, steps=2, width=8, depth=4, replicas=0)
    """,
    "report.md": """
        import torch, isthmus
        from isthmus.experiments._experiment import find_experiment
        torch.manual_seed(0)
        X = torch.randn(120, 4, dtype=torch.float64)
        Y = X[:, :2] @ torch.randn(2, 3, dtype=torch.float64)
        found = isthmus.discover(X, Y, steps=2, width=8, depth=4, max_rank=2, replicas=0)
        net = isthmus.FullyConnected([4, 8, 3])
        find_experiment("E-linear").quick().run().write("runs/F-rank-1")
        with isthmus.Monitor(net, X.float(), every=1) as monitor:
            net(X.float())
        X = X.float()
    """,
}


def name_of(page):
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


def blocks(page, *languages):
    text = page.read_text(encoding="utf-8")
    return [found for found in BLOCK.finditer(text) if found["language"] in languages]


def rounded(text):
    """The text with numbers below a thousandth, such as what an optimiser leaves of a gradient, as "small"."""
    return re.sub(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e-\d+", lambda n: "small" if float(n[0]) < 1e-3 else n[0], text)


def test_small_numbers_are_compared_as_small():
    assert not differences(rounded("residual 0.00015, varies by 2.5e-05"), rounded("residual 0.00026, varies by 2e-07"))
    assert differences(rounded("residual 0.00015"), rounded("residual 0.15"))


WITH_PYTHON = [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if name_of(page) in SLOW else [])
    for page in PAGES
    if blocks(page, "python") and name_of(page) not in ELSEWHERE
]


@pytest.mark.parametrize("page", WITH_PYTHON)
@pytest.mark.filterwarnings("ignore:.*did not converge|.*budget:isthmus.ConvergenceWarning")
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    if name_of(page) in ABOUT:
        pytest.importorskip(ABOUT[name_of(page)], reason=f"the page is about {ABOUT[name_of(page)]}")
    monkeypatch.chdir(tmp_path)
    # What a page defines stays its own.
    monkeypatch.setattr("isthmus._cite.CITATIONS", list(CITATIONS))
    monkeypatch.setattr("isthmus.files._KINDS", dict(files._KINDS))
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    exec(textwrap.dedent(BEFORE.get(name_of(page), "")), names)
    for found in blocks(page, "python"):
        code = compile(found["code"], name_of(page), "exec")
        if found["reason"] is None and name_of(page) not in COMPILED:
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(code, names)
            if said := PRINTED.match(found.string, found.end()):
                assert not differences(rounded(said[1]), rounded(stream.getvalue()))
        else:
            reason = found["reason"] or COMPILED[name_of(page)]
            assert len(reason.split()) > 2, "say why it cannot run"


@pytest.mark.slow
def test_the_page_on_csv_files_can_be_followed(tmp_path, monkeypatch):
    """As a new user would: make the table, be refused, decide, get the rank, apply it, and see an undetermined one."""
    monkeypatch.chdir(tmp_path)
    page = DOCS / "your_own_csv.md"
    exec(blocks(page, "python")[0]["code"], {})
    lines = [line for line, mention in commands(page) if not mention and "pumps" in line]
    said = [found["code"].splitlines()[0] for found in blocks(page, "text") if " depend on " in found["code"]]

    def told(line):
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
        return done.returncode, done.stdout, done.stderr

    refused, asked, *later = lines
    code, _, complaint = told(refused)
    assert code == 3 and "'date'" in complaint and "'site'" in complaint
    code, answer, _ = told(asked)
    assert code == 0 and answer.splitlines()[0] == said[0]
    assert all(Path("runs/discover-pumps", name).exists() for name in ("report.html", "coordinates.csv"))
    Path("new.csv").write_text("\n".join(Path("pumps.csv").read_text().splitlines()[:5]), encoding="utf-8")
    for line in later[:-2]:
        if re.match("isthmus (transform|predict)", line):
            assert told(line)[0] == 0, line
    assert Path("predicted.csv").read_text().startswith("y_0,y_1,y_2,y_3")
    rows = Path("pumps.csv").read_text().splitlines()
    Path("pumps.csv").write_text("\n".join(rows[:31]), encoding="utf-8")
    code, answer, _ = told(asked)
    assert code == 1 and answer.splitlines()[0] == said[1]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_pages_that_other_tests_run_are_named_there(name):
    test = (ROOT / "tests" / ELSEWHERE[name]).read_text(encoding="utf-8")
    assert re.search(rf"\b{DOCS.joinpath(name).stem}\b", test)
    for found in blocks(DOCS / name, "python"):
        compile(found["code"], name, "exec")


def commands(page):
    """Every call of ``isthmus`` in a page: in blocks of shell, and in running text."""
    for found in blocks(page, "sh", "console", "text"):
        for line in found["code"].replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            # A block of text may be what a program printed; a call begins the line and has a known verb or an option.
            if re.match(r"isthmus (-|[a-z]+( |$))", line):
                yield line, False
    for line in INLINE.findall(page.read_text(encoding="utf-8")):
        yield line, True


def parsed(line, *, mention=False):
    """Parse a command line as the real one does, without running it; raise what a reader would be told.

    A ``mention`` in a sentence may stop before what the command, or its last option, is given.
    """
    words = shlex.split(line, comments=True)[1:]
    ends = [words.index(mark) for mark in (">", "|", "&&", ";") if mark in words]
    words = [word for word in words[: min(ends, default=None)] if not re.fullmatch(r"…|\.\.\.|\[.*\]", word)]
    root = typer.main.get_command(app)
    try:
        if words[0].startswith("-"):
            root.make_context("isthmus", words)
            return None
        above = root.make_context("isthmus", [words[0]])
        verb = root.get_command(above, words[0])  # pyright: ignore[reportAttributeAccessIssue]
        if verb is None:
            raise UsageError(f"no command {words[0]!r}")
        verb.make_context(words[0], words[1:], parent=above)
    except typer.Exit:  # --version and --help have spoken
        return None
    except UsageError as problem:
        kind = type(problem).__name__
        if mention and kind == "BadOptionUsage":
            return parsed(f"{line} 1", mention=True)
        if not mention or kind != "MissingParameter":
            raise
    return words[0]


@pytest.mark.parametrize("page", [page for page in [*PAGES, ROOT / "README.md"] if [*commands(page)]], ids=name_of)
def test_the_commands_of_a_page_exist(page):
    for line, mention in commands(page):
        try:
            parsed(line, mention=mention)
        except (UsageError, ValueError) as problem:
            pytest.fail(f"{name_of(page)}: {line}: {getattr(problem, 'message', problem)}")


@pytest.mark.parametrize(
    "line",
    [
        "isthmus discovver data.csv",
        "isthmus discover data.csv --tarrget y",
        "isthmus discover data.csv more.csv --target y",
        "isthmus discover data.csv --target",
        "isthmus discover data.csv --missing mean",
        "isthmus discover data.csv --depth eight",
        "isthmus discover --target y",
        "isthmus --versiom",
    ],
)
def test_wrong_commands_are_noticed(line):
    with pytest.raises(UsageError):
        parsed(line)


def test_right_commands_pass():
    assert parsed("isthmus discover data.csv --target 'y*' --missing median --depth 8 --json > x.json") == "discover"
    assert parsed("isthmus discover --target", mention=True) == "discover"
    assert parsed("isthmus --version") is None
