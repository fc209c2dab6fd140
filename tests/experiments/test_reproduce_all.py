"""`isthmus reproduce all --quick`: every figure of the documents, judged; it goes on where it stopped."""

import importlib
import json
import shutil
import tomllib
from pathlib import Path

import pytest

from isthmus import Run
from isthmus._progress import silent
from isthmus.cli import main
from isthmus.cli.reproduce import too_small
from isthmus.engines.base import Failure, run_several
from isthmus.experiments import find_experiment, find_experiments
from isthmus.experiments.bottleneck2023._linear_expansion import LinearExpansion
from quick_runs import Here, folder
from test_experiments import Small

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = [key for key in tomllib.loads((DOCS / "ids.toml").read_text(encoding="utf-8")) if key.startswith("F-")]


@pytest.fixture
def extension(monkeypatch):
    """A module of the documentation's extensions, by name."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    return importlib.import_module


def call(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_all_fourteen_are_listed(capsys):
    code, out, _ = call(capsys, "reproduce", "--list", "--json")
    assert code == 0
    listed = {one["id"] for one in json.loads(out)}
    assert len(FIGURES) == 14 and listed >= set(FIGURES)


@pytest.mark.timeout(1500)
def test_every_quick_variant_is_judged(capsys, tmp_path_factory):
    kept = folder(tmp_path_factory)
    code, out, err = call(capsys, "reproduce", "all", "--quick", "--out", str(kept), "--workers", "1", "--json")
    found = {one["experiment"]: one for one in json.loads(out)}
    assert set(found) == set(find_experiments()), err
    # A quick variant shows the same as the figure: it may fall short of a number, and then says why.
    bad = {name: [o for o in one["outcomes"] if o["status"] == "fails"] for name, one in found.items()}
    assert not {name: outcomes for name, outcomes in bad.items() if outcomes}
    assert code == 0
    for name in FIGURES:
        statements = [o for o in found[name]["outcomes"] if o["kind"] == "statement"]
        assert any(o["status"] == "agrees" for o in statements), name
        assert all(o["quote"] and o["where"] for o in statements), name
        run = Run.read(kept / f"{name}-quick")
        assert run.key == find_experiment(name).quick().key
        assert set(run.figures) == {"figure.png", "figure.svg"}
        assert (kept / f"{name}-quick" / "report.html").stat().st_size > 10**5


@pytest.mark.parametrize(
    ("undetermined", "quick", "said"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_quick_variant_that_tests_too_little_is_told(capsys, undetermined, quick, said):
    too_small(undetermined, quick=quick)
    assert ("too small" in capsys.readouterr().out) is said


def test_what_is_kept_in_the_documentation(extension):
    paths = [path for name in FIGURES if (path := DOCS / "figures" / f"{name}.json").exists()]
    assert len(paths) >= 13
    for path in paths:
        kept, name = json.loads(path.read_text(encoding="utf-8")), path.stem
        assert kept["experiment"] == name and kept["status"] in ("agrees", "undetermined", "differs")
        assert kept["minutes"] >= 0 and kept["outcomes"] and kept["provenance"]
        assert path.with_suffix(".png").stat().st_size < 400_000
        # A run of an earlier version may lack parameters that are new; those that it has, are still there.
        kind = find_experiment(name)
        assert set(kept["parameters"]) <= set(kind().parameters), name
        assert all(outcome.name for outcome in extension("records").judged(kind, kept))


def test_a_kept_run_is_judged_by_the_code_as_it_is(extension):
    """From the numbers that are kept with it; without them, what was written down stands."""
    records, keep_figure = extension("records"), extension("keep_figure")
    kind, arrays = LinearExpansion, LinearExpansion.quick().compute(silent)
    run = kind.quick().recorded(arrays, started=0.0, figures=False)
    numbers = {name: run.arrays[name].tolist() for name in keep_figure.judged_by(run)}
    assert {"cost", "depths", "expansion"} <= set(numbers) and "A" not in numbers
    wrong = [{"name": "old", "status": "fails", "value": 1, "expected": 2, "reason": ""}]
    kept = {"parameters": {**run.parameters, "gone": 1}, "outcomes": wrong, "numbers": numbers}
    assert [o.status for o in records.judged(kind, kept)] == ["agrees"] * 5
    kept["numbers"] = {}
    (found,) = records.judged(kind, kept)
    assert (found.name, found.status, found.kind) == ("old", "fails", "statement")


class Twin(Small):
    id = "E-twin"
    title = "twin"


class Odd(Small):
    id = "E-odd"
    title = "odd"

    def compute(self, progress):
        raise ArithmeticError("no way")


@pytest.fixture
def known(monkeypatch):
    kinds = {kind.id: kind for kind in (Small, Twin, Odd)}
    monkeypatch.setattr("isthmus.engines.base.experiment_of", lambda task: kinds[task.experiment])


@pytest.mark.usefixtures("known")
def test_one_computation_for_two_figures_and_failures_stay_alone():
    engine = Here()
    found = {one.id: outcome for one, outcome in run_several([Small(), Odd(), Twin()], engine)}
    assert sorted(engine.computed) == ["E-odd", "E-small"]
    assert found["E-twin"].provenance["computed_with"] == "E-small"
    assert found["E-twin"].key == Twin().key != found["E-small"].key
    assert isinstance(found["E-odd"], Failure) and "no way" in found["E-odd"].message
    engine = Here()
    assert len(dict(run_several([Small(), Twin(depth=3)], engine))) == 2
    assert sorted(engine.computed) == ["E-small", "E-twin"]


def test_it_goes_on_where_it_stopped(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("isthmus.experiments.find_experiments", lambda: {"E-linear": LinearExpansion})
    monkeypatch.setattr("isthmus.engines.local.Processes", lambda workers: Here())
    command = ("reproduce", "all", "--quick", "--out", str(tmp_path), "--workers", "1", "--json")
    assert call(capsys, *command)[0] == 0
    first = Run.read(tmp_path / "E-linear-quick")
    call(capsys, *command)
    assert Run.read(tmp_path / "E-linear-quick").provenance == first.provenance
    written = (tmp_path / "E-linear-quick" / "provenance.json").stat().st_mtime_ns
    call(capsys, *command, "--again")
    assert (tmp_path / "E-linear-quick" / "provenance.json").stat().st_mtime_ns != written
    # A damaged one is no kept one.
    (tmp_path / "E-linear-quick" / "arrays.safetensors").write_bytes(b"")
    assert call(capsys, *command)[0] == 0
    assert Run.read(tmp_path / "E-linear-quick").status == "agrees"
    shutil.rmtree(tmp_path / "E-linear-quick")


def test_options_of_all_are_refused_for_one(capsys):
    code, _, err = call(capsys, "reproduce", "E-linear", "--again")
    assert code == 2 and "--again" in err
