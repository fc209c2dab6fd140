"""Sweeps in one process: keys, states, nothing twice, a second grid, batches, discover."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from inline import Inline, contents, counts
from tiny import Tiny

import isthmus
from isthmus import IsthmusError
from isthmus.runs import Run, configuration_key
from isthmus.sweeps import read, sweep
from isthmus.sweeps.places import PENDING, RUNS, SWEEP

GRID = {"depth": "4:8:2", "ridge": [1e-3, 1e-2]}


def test_a_grid_and_what_it_gives(tmp_path):
    found = sweep(Tiny, GRID, seeds=2, out=tmp_path / "o", engine=Inline())
    assert found.names == ("depth", "ridge")
    assert found.counts == {"done": 12}
    assert found.measured == ("rank", "norm", "bad", "training")
    assert list(found.frame.columns) == ["state", "depth", "ridge", "seed", *found.measured, "seconds", "error"]
    # By another route: the keys of the experiments themselves.
    for depth, lam, seed in ((4, 1e-3, 0), (8, 1e-2, 1)):
        one = Tiny.single().replace(depths=(depth,), lam=lam, seed=seed)
        row = found.frame.loc[one.key]
        assert (row["depth"], row["ridge"], row["seed"], row["rank"]) == (depth, lam, seed, depth % 3)
        assert np.isnan(row["bad"])
        run = found.run(one.key)
        alone = one.run(figures=False)
        assert run.key == one.key == alone.key
        assert run.provenance["measured"]["bad"] == "nan"
        assert {k: v.tobytes() for k, v in run.arrays.items()} == {k: v.tobytes() for k, v in alone.arrays.items()}
        assert np.array_equal(found.spectra[one.key], run.arrays["noise"][None])
    table = found.summary()
    assert table.loc[(4, 1e-3), "rank"] == 1
    assert set(table["agreement"]) == {1.0}
    assert table.loc[(4, 1e-3), "norm"] == pytest.approx(np.median(found.frame.query("depth==4 and ridge==1e-3").norm))
    assert found.summary("depth")["configurations"].tolist() == [4, 4, 4]
    assert found.problems == ()
    again = read(tmp_path / "o")
    assert again.frame.equals(found.frame)
    assert again.spectra == {}, "a class of one's own is not known by name"


def test_nothing_is_computed_twice(tmp_path):
    first = sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    stamps = {path.name: path.stat().st_mtime_ns for path in (tmp_path / RUNS).iterdir()}
    engine = Inline()
    again = sweep(Tiny, GRID, out=tmp_path, engine=engine)
    assert engine.tasks == []
    assert again.frame.equals(first.frame)
    # More of the same experiment adds to it, under the names it began with.
    more = sweep(Tiny, {"depths": "4:10:2", "ridge": "1e-3,1"}, seeds=2, out=tmp_path, engine=(engine := Inline()))
    assert more.names == ("depth", "ridge")
    assert len(more.frame) == 6 + 8 * 2 - 3
    assert len(engine.tasks) == len(more.frame) - 6
    assert set(counts().values()) == {1}
    assert stamps.items() <= {path.name: path.stat().st_mtime_ns for path in (tmp_path / RUNS).iterdir()}.items()
    # Another parameter: those without it have the base's.
    wider = sweep(Tiny, {"slow": [0.0, 0.001]}, out=tmp_path, engine=Inline())
    assert wider.names == ("depth", "ridge", "slow")
    assert wider.frame["slow"].isin([0.0, 0.001]).all()
    assert set(counts().values()) == {1}


def test_states(tmp_path, capsys):
    grid = {"does": ["well", "raise", "diverge"], "depth": [4, 5]}
    found = sweep(Tiny, grid, out=tmp_path, engine=Inline(), progress=True)
    assert found.counts == {"done": 2, "diverged": 2, "failed": 2}
    assert "failed: ArithmeticError: depth 4 is cursed" in capsys.readouterr().err
    assert any("2 failed" in line for line in found.problems)
    assert any("2 diverged" in line for line in found.problems)
    failed = found.frame[found.frame["state"] == "failed"]
    assert failed["error"].str.contains("cursed").all()
    assert failed["rank"].isna().all()
    with pytest.raises(IsthmusError, match="must be finished. Got 'failed'"):
        found.run(failed.index[0])
    state = json.loads((tmp_path / PENDING / f"{failed.index[0]}.json").read_text())
    assert state["attempts"] == 1
    assert 'File "tiny.py"' in state["traceback"]
    # Not again unless asked for.
    sweep(Tiny, grid, out=tmp_path, engine=(engine := Inline()))
    assert engine.tasks == []
    sweep(Tiny, grid, out=tmp_path, engine=(engine := Inline()), retry_failed=True)
    assert {key for task in engine.tasks for key in task.keys} == set(failed.index)
    assert json.loads((tmp_path / PENDING / f"{failed.index[0]}.json").read_text())["attempts"] == 2


def test_no_absolute_path_anywhere_and_continued_elsewhere(tmp_path):
    grid = {"depth": [4, 5], "does": ["well", "raise"]}
    with pytest.raises(KeyboardInterrupt):
        sweep(Tiny, grid, out=tmp_path / "a", engine=(engine := Inline(stop_after=2)))
    assert len(engine.tasks) == 3
    stopped = read(tmp_path / "a")
    assert stopped.counts == {"done": 1, "failed": 1, "interrupted": 1, "waiting": 1}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    found = sweep(Tiny, grid, out=tmp_path / "b", engine=Inline())
    assert found.counts == {"done": 2, "failed": 2}
    # The one that was on its way when Ctrl-C came is the only one that was begun twice.
    assert sorted(counts().values()) == [1, 1, 1, 2]
    for path in (tmp_path / "b").rglob("*"):
        if path.is_file() and path.parent.name != ".progress":
            content = path.read_bytes()
            if path.name == "provenance.json":
                content = json.dumps({**json.loads(content), "command": []}).encode()
            assert str(tmp_path).encode() not in content, path.name
            assert os.fsencode(os.path.dirname(__file__)) not in content, path.name  # noqa: PTH120


def test_refused_before_anything_is_written(tmp_path):
    out = tmp_path / "o"
    for grid, told in (
        ({"depth": [0]}, "must be an integer in"),
        ({"deep": [4]}, "must be among depth, ridge, seed, depths"),
        ({"depth": [4], "depths": [5]}, "may be swept once"),
        ({"does": "badly"}, "must be one of 'well'"),
        ({"seed": [-1]}, "must be an integer in"),
    ):
        with pytest.raises(IsthmusError, match=told):
            sweep(Tiny, grid, out=out, engine=Inline())
    with pytest.raises(IsthmusError, match="seeds may be given once"):
        sweep(Tiny, {"seed": [1, 2]}, seeds=2, out=out, engine=Inline())
    with pytest.raises(IsthmusError, match="`id` must be one of"):
        sweep("F-nothing", out=out)
    with pytest.raises(IsthmusError, match="`engine` must be one of"):
        sweep(Tiny, out=out, engine="slurm")
    with pytest.raises(IsthmusError, match="`address` belongs to engine 'ray'"):
        sweep(Tiny, out=out, address="auto")
    assert not out.exists()


def test_a_swept_parameter_named_like_a_measure(tmp_path):
    found = sweep(Tiny, {"rank": [0, 10]}, out=tmp_path, engine=Inline())
    assert found.names == ("set_rank",)
    assert found.frame["set_rank"].tolist() == [0, 10]
    assert found.frame["rank"].tolist() == [1, 11]


def test_an_experiment_as_base_and_seeds(tmp_path):
    base = Tiny(depths=(5,), lam=0.5)
    found = sweep(base, {"seed": "7:9"}, out=tmp_path, engine=Inline())
    assert sorted(found.frame["seed"]) == [7, 8, 9]
    assert base.replace(seed=8).key in found.frame.index
    assert len(found.summary()) == 1


def test_longest_first(tmp_path):
    sweep("F-bn-1", {"depth": "4:8:2"}, quick=True, out=tmp_path, engine=(engine := NoWork()), together=1)
    assert [task.configurations[0]["depths"] for task in engine.tasks] == [[8], [6], [4]]


class NoWork(Inline):
    """Remembers the tasks and computes nothing."""

    def submit(self, fn, task):
        return super().submit(lambda task: [], task)


def test_together(tmp_path):
    grid = {"depth": [4, 5], "lam": [0.1, 0.2, 0.3]}
    alone = sweep(Tiny(grouped=True), grid, out=tmp_path / "a", engine=(engine := Inline()), together=1)
    assert [len(task.keys) for task in engine.tasks] == [1] * 6
    found = sweep(Tiny(grouped=True), grid, out=tmp_path / "b", engine=(engine := Inline()), together=2)
    assert sorted(len(task.keys) for task in engine.tasks) == [1, 1, 2, 2]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert list(alone.frame.index) == list(found.frame.index)
    numbers = [found.run(key).provenance.get("together") for key in found.frame.index]
    assert sorted(numbers, key=str) == [2, 2, 2, 2, None, None]


def test_a_batch_that_fails_is_computed_one_by_one(tmp_path):
    grid = {"lam": [0.1, 0.2], "does": ["well", "raise"]}
    found = sweep(Tiny(grouped=True), grid, out=tmp_path, engine=(engine := Inline()))
    assert len(engine.tasks) == 1
    assert found.counts == {"done": 2, "failed": 2}
    key = found.frame.index[found.frame["state"] == "done"][0]
    assert "one of us is cursed" in found.run(key).provenance["not_together"]


def test_f_bn_1_quick(tmp_path):
    base = isthmus.experiments.find_experiment("F-bn-1").single(quick=True).replace(adam_steps=10, steps=5, width=8)
    found = sweep(base, {"depth": [4, 6], "ridge": "1e-3:1e-2:log2"}, out=tmp_path, engine=Inline(), together=1)
    assert found.counts == {"done": 4}
    assert set(found.measured) == {"rank", "norm", "loss", "cost", "converged", "training"}
    for key, row in found.frame.iterrows():
        spectra = found.spectra[key]
        assert spectra.shape == (row["depth"], 10)
        assert row["rank"] == (spectra[row["depth"] // 2] > base.threshold).sum()
        # ‖θ‖² is what the ridge costs.
        assert row["loss"] - row["cost"] == pytest.approx(row["ridge"] * row["norm"], rel=1e-4)
    assert len(read(tmp_path).spectra) == 4


def test_discover(tmp_path):
    task = isthmus.problems.linear(d_in=4, d_out=3, rank=1, samples=60)
    options = {"data": {"X": task.X, "Y": task.Y}, "base": {"replicas": 0, "steps": 8, "width": 8, "depth": 4}}
    grid = {"resolution": ["auto", 0.1], "rank": "auto,1"}
    found = sweep("discover", grid, out=tmp_path, engine=Inline(), **options)
    assert found.names == ("resolution", "set_rank")
    assert found.counts == {"done": 4}
    given_ = found.frame[found.frame["set_rank"] == 1]
    assert given_["rank"].tolist() == [1, 1]
    assert given_["verdict"].tolist() == ["given"] * 2
    direct = isthmus.discover(task.X, task.Y, resolution=0.1, rank=1, **options["base"])
    row = given_[given_["resolution"] == 0.1].iloc[0]
    assert row["held_out"] == direct.error
    other = {**options, "data": {"X": task.X + 1.0, "Y": task.Y}}
    with pytest.raises(IsthmusError, match="(?s)data: .* now.*The data are others"):
        sweep("discover", grid, out=tmp_path, engine=Inline(), **other)
    with pytest.raises(IsthmusError, match="even"):
        sweep("discover", {"depth": [4, 5]}, out=tmp_path, engine=Inline(), **options)
    with pytest.raises(IsthmusError, match="`name` must be one of 'rank'"):
        sweep("discover", {"checkpoint": ["/x"]}, out=tmp_path, engine=Inline(), **options)


def test_keys_follow_from_the_plan_alone(tmp_path):
    found = sweep(Tiny, GRID, seeds=2, out=tmp_path, engine=Inline())
    plan = json.loads((tmp_path / SWEEP).read_text())
    keys = []
    for depth in plan["grids"][0]["values"]["depths"]:
        for lam in plan["grids"][0]["values"]["lam"]:
            for seed in plan["grids"][0]["seeds"]:
                parameters = {**plan["base"], "depths": [depth], "lam": lam, "seed": seed}
                keys.append(configuration_key("T-tiny", parameters))
    assert keys == list(found.frame.index)
    assert all(Run.read(tmp_path / RUNS / key).key == key for key in keys)


def test_an_empty_array_can_be_kept(tmp_path):
    """Of which NumPy says that its stride is 0: F-bn-1 has some where no network is continued."""
    arrays = {"none": np.array([], dtype=np.int64)[np.array([], dtype=np.int64)], "flat": np.zeros((0, 3))}
    Run("T-tiny", {}, arrays).write(tmp_path / "run")
    found = Run.read(tmp_path / "run").arrays
    assert found["none"].shape == (0,)
    assert found["none"].dtype == np.int64
    assert found["flat"].shape == (0, 3)
