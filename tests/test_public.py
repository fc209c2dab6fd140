"""What GitHub reads: workflows, forms and hooks parse, and name what is there."""

from __future__ import annotations

import re
import tomllib

import pytest

from docs_site import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the documentation tools")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {path.name: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs():
    return {f"{name}:{job}": content for name, path in WORKFLOWS.items() for job, content in read(path)["jobs"].items()}


def test_every_job_is_bounded_and_needs_no_rights():
    assert len(jobs()) == 5
    for name, job in jobs().items():
        assert 0 < job["timeout-minutes"] <= 300, name
    for path in WORKFLOWS.values():
        assert read(path)["permissions"] == {"contents": "read"}, path
        # YAML reads the word `on` as a truth value.
        assert set(read(path)[True]) <= {"push", "pull_request", "workflow_dispatch", "schedule"}, path


def test_every_python_that_the_package_names_is_tried():
    words = " ".join(PROJECT["classifiers"])
    named = set(re.findall(r"Python :: (3\.\d+)", words))
    matrix = jobs()["tests.yml:tests"]["strategy"]["matrix"]
    assert set(matrix["python"]) == named
    assert {row["versions"] for row in matrix["include"]} | set(matrix["versions"]) == {"tested", "lowest", "newest"}
    systems = {row["os"].partition("-")[0] for row in matrix["include"]}
    assert systems == {"ubuntu", "macos", "windows"}


def test_commands_name_extras_markers_and_files_that_exist():
    extras = set(PROJECT["optional-dependencies"])
    said = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    text = "\n".join(said)
    asked = {extra for found in re.findall(r"\.\[([\w,]+)\]", text) for extra in found.split(",")}
    assert asked and asked <= extras
    for path in re.findall(r"(?:tests|docs)/[\w/]+\.py|constraints\.txt", text):
        assert (ROOT / path).is_file(), path


def test_hooks_and_forms():
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "ladder"}
    for path in re.findall(r"tests/\S+\.py", " ".join(hook["entry"] for hook in hooks)):
        assert (ROOT / path).is_file(), path
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    for path in forms:
        form = read(path)
        assert form["name"] and form["description"] and form["body"], path
        names = [part["id"] for part in form["body"]]
        assert len(set(names)) == len(names), path


def test_the_paper_has_the_numbers_of_the_kept_results():
    paper = " ".join((ROOT / "paper" / "paper.md").read_text(encoding="utf-8").split())
    bench = ROOT / "benchmarks"
    results = (bench / "RESULTS.md").read_text(encoding="utf-8")
    gates = {row[2].strip(): row[3].strip() for line in results.split("\n") if len(row := line.split("|")) == 7}
    speed = [value for what, value in gates.items() if "times plain PyTorch's recipe" in what or "JAX + optax" in what]
    speed += [value for what, value in gates.items() if "torch.func" in what]
    assert len(speed) == 3
    for value in speed:
        assert f"{value} times less" in paper, value
    for name in ("science_table.md", "rank_table.md"):
        told = re.search(
            r"\*\*(\d+) of (\d+) right, (\d+) undetermined(?: where a rank was wanted)?, (\d+) confidently wrong",
            (bench / name).read_text(encoding="utf-8"),
        )
        assert told, name
        right, tasks, undetermined, wrong = told.groups()
        assert f"{right} right, {undetermined} undetermined, {wrong} confidently wrong" in paper, name
        assert re.search(rf"On {tasks} (tasks|problems)", paper), name


def test_the_paper_cites_and_shows_what_exists():
    text = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")
    kept = set(
        re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    body = text.split("---", 2)[2]
    assert set(re.findall(r"@([a-z]\w+)", body)) == kept
    pictures = re.findall(r"\]\((\.\./[^)]+)\)", body)
    assert len(pictures) == 2 and all((ROOT / "paper" / path).is_file() for path in pictures)
    assert 750 <= len(body.split()) <= 1750  # what the journal asks for
