"""`isthmus reproduce all --quick`: every figure of the documents, judged; it goes on where it stopped."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from isthmus import Run
from isthmus.cli import main
from isthmus.engines.base import Failure
from isthmus.engines.several import run_several
from isthmus.experiments import find_experiment, find_experiments
from isthmus.experiments.bottleneck2023._linear_expansion import LinearExpansion
from quick_runs import Here, folder
from test_experiments import Small

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = [key for key in tomllib.loads((DOCS / "ids.toml").read_text(encoding="utf-8")) if key.startswith("F-")]


def call(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_all_thirteen_are_listed(capsys):
    code, out, _ = call(capsys, "reproduce", "--list", "--json")
    assert code == 0
    listed = {one["id"] for one in json.loads(out)}
    assert len(FIGURES) == 13 and listed >= set(FIGURES)


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
        assert any(outcome["status"] == "agrees" for outcome in found[name]["outcomes"]), name
        run = Run.read(kept / f"{name}-quick")
        assert run.key == find_experiment(name).quick().key
        assert set(run.figures) == {"figure.png", "figure.svg"}
        assert (kept / f"{name}-quick" / "report.html").stat().st_size > 10**5


def test_what_is_kept_in_the_documentation():
    for name in FIGURES:
        kept = json.loads((DOCS / "figures" / f"{name}.json").read_text(encoding="utf-8"))
        assert kept["experiment"] == name and kept["status"] in ("agrees", "differs")
        assert kept["minutes"] >= 0 and kept["outcomes"] and kept["provenance"]
        assert all(o["reason"] for o in kept["outcomes"] if o["status"] == "differs")
        assert (DOCS / "figures" / f"{name}.png").stat().st_size < 400_000
        # The numbers kept are those of the experiment as it is now, with the statements that it makes now.
        kind = find_experiment(name)
        assert set(kept["parameters"]) == set(kind().parameters), name


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
    monkeypatch.setattr("isthmus.engines.local.LocalEngine", lambda workers: Here())
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
