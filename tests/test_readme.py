"""The README keeps its word: its Python runs, its commands exist, its numbers are those in the repository."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.files import read_json

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SPEEDS = (ROOT / "docs" / "notes" / "performance.md").read_text(encoding="utf-8")
RANKS = (ROOT / "docs" / "how_to_read_a_rank.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_runs_and_prints_what_is_said(tmp_path):
    code = "\n".join(blocks("python"))
    # The warnings a reader would see are errors here.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "determined 2"
    assert any(line.startswith("(1000, 2) 0.9") for line in lines)
    assert (tmp_path / "ball.safetensors").exists()
    assert lines[-2].startswith("Everything the network computes passes through 2 dimensions")
    assert re.search(r"parameters", lines[-1])
    assert (tmp_path / "report.html").stat().st_size > 10**5


def test_both_commands_are_shown_and_exist():
    shown = set(re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE))
    assert shown == {"demo", "test"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_subcommands_and_files_exist():
    help_text = subprocess.run([sys.executable, "-m", "isthmus", "--help"], capture_output=True, text=True).stdout
    for command in set(re.findall(r"`isthmus (\w+)", README)):
        assert re.search(rf"\b{command}\b", help_text), command
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link
    for script in re.findall(r"`python (\S+\.py)`", README):
        assert (ROOT / script).exists(), script


def test_the_counts_of_right_ranks_are_the_committed_ones():
    s = read_json(ROOT / "benchmarks/results/rank_table.json")["summary"]
    (said,) = re.findall(r"\*\*(\d+) of (\d+) right, (\d+) undetermined, (\d+) confidently wrong\*\*", README)
    assert tuple(map(int, said)) == (s["right"], s["problems"], s["undetermined"], s["wrong"])
    (said,) = re.findall(r"guesses (\d+) of (\d+); TwoNN (\d+), MLE (\d+), PCA (\d+)", README.replace("\n", " "))
    near = s["peers_right"]
    assert tuple(map(int, said)) == (s["guess_right"], s["with_a_rank"], near["two_nn"], near["mle"], near["pca"])


def test_the_stability_table_is_the_committed_one():
    rows = re.findall(r"^\| (f-rank-1|rank-2) \|(.*)\|$", RANKS, flags=re.MULTILINE)
    summaries = {s["task"]: s for s in read_json(ROOT / "benchmarks/results/stability.json")["details"]["summary"]}
    assert len(rows) == len(summaries) == 2
    for task, cells in rows:
        s = summaries[task]
        right, spread = (cell.strip() for cell in cells.split("|"))
        assert right == f"{s['right']} of {s['runs']}"
        assert spread == f"{s['spread']:.1%}"


def test_the_speeds_are_the_committed_ones():
    kept = read_json(ROOT / "benchmarks/results.json")["benchmarks"]
    gates = {gate["what"]: gate["value"] for one in kept for gate in one["gates"]}
    wanted = [
        "train: times plain PyTorch's recipe on F-rank-1",
        "train: times jitted JAX + optax",
        "F-ham-1, L̃ = 7: times the recipe to its final loss",
        "Tr Θ: seconds of torch.func, vmap(jacrev) over ours",
        "Tr Θ: seconds of nngeometry, PMatImplicit over ours",
    ]
    section = SPEEDS.split("## How fast is it?")[1].split("\n## ")[0]
    said = re.findall(r"\| ([\d.]+) \|$", section, flags=re.MULTILINE)
    assert said == [f"{gates[what]:.0f}" if gates[what] >= 100 else f"{gates[what]:.1f}" for what in wanted]
    (seconds,) = re.findall(r"takes ([\d.]+) s", README)
    assert seconds == format(gates["discover on F-rank-1's task, seconds (median)"], ".1f")


@pytest.mark.parametrize("name", ["LICENSE", "CITATION.cff", "CONTRIBUTING.md", "CHANGELOG.md", "src/isthmus/py.typed"])
def test_house_files(name):
    assert (ROOT / name).exists()


def test_ci_calls_the_readme_command():
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")
