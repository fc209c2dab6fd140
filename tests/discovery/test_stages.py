"""A discovery that was killed: from whatever was kept, the same answer to the bit."""

from __future__ import annotations

import itertools
import json
import random
import shutil

import numpy as np
import pytest

from isthmus import discover, files, problems
from isthmus.discovery._fits import Fit
from isthmus.discovery._result import discovery_parts
from isthmus.discovery._walk import Stages, identity_of
from isthmus.training._lbfgs import LBFGS
from made import hourglass
from tools import SEED

#: A replica too, and few steps.
EFFORT = {"depth": 4, "width": 16, "steps": 2, "replicas": 1}


@pytest.fixture(scope="module")
def task():
    return problems.linear(d_in=3, d_out=3, rank=2, samples=40, seed=SEED)


@pytest.fixture(scope="module")
def whole(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "stages"
    return discover(task.X, task.Y, checkpoint=folder, **EFFORT), folder


def content(found):
    config, tensors = discovery_parts(found)
    settings = {key: value for key, value in config["settings"].items() if key not in ("seconds", "stages_reused")}
    return json.dumps({**config, "settings": settings}, sort_keys=True), files.fingerprint(tensors)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_changes_nothing(task, whole):
    assert content(discover(task.X, task.Y, **EFFORT)) == content(whole[0])
    kept = names(whole[1])
    assert {"main-wide.safetensors", "main-1.safetensors", "final.safetensors", "refit-2.safetensors"} <= set(kept)
    assert any(name.startswith("replica0-") for name in kept)
    assert whole[0].settings["stages_reused"] == 0


@pytest.mark.slow
def test_other_processes_change_nothing(task, whole):
    """What they train meanwhile is what is asked for later, to the bit."""
    assert content(discover(task.X, task.Y, n_jobs=2, **EFFORT)) == content(whole[0])


def test_every_moment_of_a_kill(task, whole, tmp_path):
    """Stages are written in order of training: what a kill leaves is the first few of them."""
    order = sorted(whole[1].iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for count in range(0, len(order) + 1, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        for path in order[:count]:
            shutil.copy(path, folder)
        found = discover(task.X, task.Y, checkpoint=folder, **EFFORT)
        assert content(found) == content(whole[0])
        assert found.settings["stages_reused"] == count
        assert names(folder) == names(whole[1])


@pytest.mark.parametrize("step", [3, 20, 40])
def test_ctrl_c_in_the_middle_of_a_training(task, whole, tmp_path, monkeypatch, step):
    """It ends the discovery at once; half a training is not kept for the whole one."""
    count, original = itertools.count(), LBFGS.step

    def interrupted(self, *arguments):
        if next(count) == step:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(LBFGS, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            discover(task.X, task.Y, checkpoint=tmp_path / "stages", **EFFORT)
    assert next(count) == step + 1
    assert content(discover(task.X, task.Y, checkpoint=tmp_path / "stages", **EFFORT)) == content(whole[0])


def test_any_subset(task, whole, tmp_path):
    rng = random.Random(SEED)
    for turn in range(3):
        folder = tmp_path / str(turn)
        folder.mkdir()
        for path in sorted(whole[1].iterdir()):
            if rng.random() < 0.5:
                shutil.copy(path, folder)
        assert content(discover(task.X, task.Y, checkpoint=folder, **EFFORT)) == content(whole[0])


def test_damaged_and_foreign_files_are_not_used(task, whole, tmp_path):
    folder = tmp_path / "stages"
    shutil.copytree(whole[1], folder)
    kept = sorted(folder.iterdir())
    damage = [
        lambda data: b"",
        lambda data: data[:50],
        lambda data: data[:-3],
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
        lambda data: b"not a file of ours",
    ]
    for path, change in zip(kept, itertools.cycle(damage)):
        path.write_bytes(change(path.read_bytes()))
    found = discover(task.X, task.Y, checkpoint=folder, **EFFORT)
    assert found.settings["stages_reused"] == 0
    assert content(found) == content(whole[0])
    # One stage under the name of another.
    (folder / "main-2.safetensors").write_bytes((folder / "main-1.safetensors").read_bytes())
    found = discover(task.X, task.Y, checkpoint=folder, **EFFORT)
    assert content(found) == content(whole[0])
    assert found.settings["stages_reused"] == len(kept) - 1


ROWS = np.arange(40)
PAIRS = [(ROWS[10:], ROWS[:10]), (ROWS[:30], ROWS[30:])]
GIVEN = {**EFFORT, "cv": PAIRS, "steps": 1}


@pytest.fixture(scope="module")
def kept(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "stages"
    discover(task.X, task.Y, checkpoint=folder, **GIVEN)
    return folder


@pytest.mark.parametrize("change", ["data", "seed", "steps", "cv", "second cv", "rank"])
def test_those_of_another_discovery_are_not_used(task, kept, tmp_path, change):
    folder = tmp_path / "stages"
    shutil.copytree(kept, folder)
    Y = task.Y + 1e-12 if change == "data" else task.Y
    other = {
        "seed": {"seed": 1},
        "steps": {"steps": 2},
        "cv": {"cv": PAIRS[::-1]},
        "second cv": {"cv": [PAIRS[0], (ROWS[5:], ROWS[:5])]},
        "rank": {"rank": 1},
    }.get(change, {})
    found = discover(task.X, Y, checkpoint=folder, **{**GIVEN, **other})
    assert found.settings["stages_reused"] == 0
    assert content(found) == content(discover(task.X, Y, **{**GIVEN, **other}))


def test_those_of_the_same_discovery_are(task, kept, tmp_path):
    """What the copies are, so that the test above can fail."""
    folder = tmp_path / "stages"
    shutil.copytree(kept, folder)
    assert discover(task.X, task.Y, checkpoint=folder, **GIVEN).settings["stages_reused"] == len(names(kept))


def test_one_stage(tmp_path):
    stages = Stages(tmp_path / "new", "abc")
    assert stages.read("a") is None
    one = Fit(hourglass(), 0.1, 0.3, 7.25, float("inf"), "falling")
    stages.write("a", one)
    twin = stages.read("a")
    assert (twin.cost, twin.loss, twin.norm, twin.rest, twin.state) == (0.1, 0.3, 7.25, float("inf"), "falling")
    assert twin.network.waist == one.network.waist
    assert all((p == q).all() for p, q in zip(twin.network.parameters(), one.network.parameters(), strict=True))
    assert Stages(tmp_path / "new", "abd").read("a") is None
    (tmp_path / "new" / "mine.txt").write_text("kept")
    stages.clear()
    assert names(tmp_path / "new") == ["mine.txt"]
    nowhere = Stages(None, "")
    nowhere.write("a", one)
    assert nowhere.read("a") is None
    nowhere.clear()


def test_fingerprint_is_of_everything():
    A = np.arange(6.0).reshape(2, 3)
    prints = {
        identity_of({"a": 1}, {"X": A}),
        identity_of({"a": 2}, {"X": A}),
        identity_of({"a": 1}, {"X": A + 1e-15}),
        identity_of({"a": 1}, {"X": A.reshape(3, 2)}),
        identity_of({"a": 1}, {"Y": A}),
    }
    assert len(prints) == 5
    assert identity_of({"a": 1}, {"X": A}) == identity_of({"a": 1}, {"X": np.asfortranarray(A)})
