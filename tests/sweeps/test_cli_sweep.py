"""`isthmus sweep` and `isthmus runs`, by their exit codes and what they print."""

from __future__ import annotations

import json
import time

import numpy as np
import pandas as pd
import pytest
from inline import Inline
from tiny import Tiny

from isthmus.cli import main
from isthmus.sweeps import driver, sweep
from isthmus.sweeps.places import Lock


@pytest.fixture
def inline(monkeypatch):
    """Commands compute in this process."""
    monkeypatch.setattr(driver, "make_engine", lambda engine, **more: Inline())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    grid = {"depth": "4:8:2", "does": "well,raise,diverge"}
    out = tmp_path_factory.mktemp("sweep") / "o"
    sweep(Tiny, grid, seeds=2, out=out, engine=Inline())
    return out


def said(capsys, *arguments) -> tuple[int, str, str]:
    code = main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_sweep(tmp_path, inline, capsys):
    small = ["--set", "width=6", "--set", "adam_steps=5", "--set", "steps=3", "--set", "samples=20"]
    out = tmp_path / "o"
    command = ["sweep", "F-bn-1", "--quick", "--set", "depth=4:6:2", *small, "--out", out]
    code, text, err = said(capsys, *command, "--together", "1", "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["names"] == ["depth"]
    assert found["counts"] == {"done": 2}
    assert [cell["depth"] for cell in found["cells"]] == [4, 6]
    assert found["cells"][0]["count"] == 1
    assert (out / "report.html").stat().st_size < 10 * 2**20
    code, text, _ = said(capsys, *command)
    assert code == 0
    assert "depth" in text
    assert "2 done in" in text
    assert f"isthmus runs {out}" in text
    code, _, err = said(capsys, "sweep", "F-bn-1", "--set", "depth=4", "--out", out)
    assert code == 2
    assert "must keep the parameters it began with" in err


def test_a_list_is_one_value(tmp_path, inline, capsys):
    command = ["sweep", "E-linear", "--quick", "--out", tmp_path / "o", "--json", "--set"]
    for values, wanted in (
        ("depths=2,3,4,5,6", ["2,3,4,5,6"]),
        ("depths=2,3,4,5,6;2,4,8,16,32", ["2,3,4,5,6", "2,4,8,16,32"]),
    ):
        code, text, err = said(capsys, *command, values)
        assert code == 0, err
        assert [cell["depths"] for cell in json.loads(text)["cells"]] == wanted


def test_sweep_over_discover(tmp_path, inline, capsys):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3))
    table = pd.DataFrame({**{f"x{i}": X[:, i] for i in range(3)}, "y0": X[:, 0], "y1": 2 * X[:, 0]})
    table.to_csv(tmp_path / "data.csv", index=False)
    small = ["--set", "steps=5", "--set", "width=6", "--set", "replicas=0", "--set", "depth=4"]
    out = tmp_path / "o"
    command = ["sweep", "--data", tmp_path / "data.csv", "--target", "y*", *small, "--out", out, "--json"]
    code, text, err = said(capsys, *command, "--set", "rank=1,auto")
    assert code == 0, err
    found = json.loads(text)
    assert found["experiment"] == "discover"
    assert {cell["set_rank"] for cell in found["cells"]} == {1, "auto"}
    assert json.loads((out / "sweep.json").read_text())["about"]["file"] == "data.csv"
    assert str(tmp_path) not in (out / "sweep.json").read_text()


def test_sweep_over_discover_leaves_columns_out(tmp_path, inline, capsys):
    X = np.random.default_rng(0).standard_normal((50, 3))
    table = pd.DataFrame({"id": np.arange(50), "x0": X[:, 0], "x1": X[:, 1], "y0": X[:, 0], "y1": 2 * X[:, 0]})
    table.to_csv(tmp_path / "data.csv", index=False, sep=";", decimal=",")
    small = ["--set", "steps=2", "--set", "width=6", "--set", "replicas=0", "--set", "depth=4", "--set", "rank=1"]
    command = ["sweep", "--data", tmp_path / "data.csv", "--target", "y*", "--exclude", "i?", *small]
    code, _, err = said(capsys, *command, "--out", tmp_path / "o")
    assert code == 3
    assert "--decimal ," in " ".join(err.split())
    code, _, err = said(capsys, *command, "--decimal", ",", "--out", tmp_path / "o")
    assert code == 0, err
    about = json.loads((tmp_path / "o" / "sweep.json").read_text())["about"]
    assert about["inputs"] == ["x0", "x1"]
    assert (about["exclude"], about["decimal"]) == (["i?"], ",")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sweep"], "give the ID of an experiment, or --data"),
        (["sweep", "F-bn-1", "--data", "x.csv"], "give the ID of an experiment, or --data"),
        (["sweep", "F-bn-1", "--set", "depth"], "must be NAME=VALUES"),
        (["sweep", "F-bn-1", "--set", "depth=4", "--set", "depth=5"], "once. Got 'depth' twice"),
        (["sweep", "F-bn-1", "--set", "depth=4:x"], "`depth` must be ints or a range"),
        (["sweep", "F-none"], "must be one of"),
        (["runs", "DIR", "--where", "depth"], "must be a condition"),
        (["runs", "DIR", "--where", "size=3"], "must name one of key, state, depth, does, seed"),
        (["runs", "DIR", "--sort", "size"], "must name one of"),
        (["runs", "DIR", "--state", "good"], "must be one of done, diverged"),
        (["runs", "DIR", "--watch", "--json"], "not both"),
    ],
)
def test_usage(folder, arguments, told, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, err = said(capsys, *(str(folder) if one == "DIR" else one for one in arguments))
    assert code == 2
    assert told in " ".join(err.split())


def test_runs(folder, capsys):
    code, text, _ = said(capsys, "runs", folder)
    assert code == 0
    names = "key, state, depth, does, seed, rank, norm, bad, training, seconds, error"
    assert text.splitlines()[0].split() == names.split(", ")
    assert "18 configurations of T-tiny: 6 done, 6 diverged, 6 failed" in text
    code, text, _ = said(capsys, "runs", folder, "--state", "failed", "--limit", "4")
    assert text.count("cursed") >= 4
    assert "… and 2 more; --limit 0 shows all" in text
    code, text, _ = said(
        capsys, "runs", folder, "--json", "--where", "depth>=6", "--where", "state=done", "--sort=-norm"
    )
    found = json.loads(text)
    norms = [row["norm"] for row in found["runs"]]
    assert norms == sorted(norms, reverse=True)
    assert {row["depth"] for row in found["runs"]} == {6, 8}
    assert found["matching"] == 4
    code, text, _ = said(capsys, "runs", folder, "--json", "--sort", "norm", "--rebuild")
    assert [row["state"] == "failed" for row in json.loads(text)["runs"]] == [False] * 12 + [True] * 6
    assert said(capsys, "runs", folder / "nothing")[0] == 3


def test_watch(folder, capsys, monkeypatch):
    """Again and again while somebody works there, then once more."""
    lock = Lock(folder)
    lock.__enter__()
    looks = []

    def slept(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            lock.__exit__(None, None, None)

    monkeypatch.setattr(time, "sleep", slept)
    code, text, _ = said(capsys, "runs", folder, "--watch", "--state", "done")
    assert code == 0
    assert len(looks) == 2
    assert text.count("6 of 18 configurations") == 3
    assert text.count("is at work") == 2
