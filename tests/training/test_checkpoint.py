"""Checkpoint files: two kept, damage, other trainings, starting anew."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from isthmus import IsthmusError, NumericalWarning
from isthmus.training import Phase
from isthmus.training._checkpoint import Checkpoints, TrainingState, identity_of_training
from small import network, quiet, same_bits, task, weights
from tools import gaussian

NAMES = ("checkpoint-even.safetensors", "checkpoint-odd.safetensors")
PHASES = [Phase("adam", 8, 1e-2, batch_size=16), Phase("lbfgs", 6)]


def read(folder) -> Any:
    return Checkpoints(folder, "f").read()


def snapshot(i):
    return TrainingState({"theta": torch.full((3,), float(i)), "S": torch.zeros(0, 3)}, {"step": i, "x": repr(0.1 * i)})


def damage(path, how):
    content = path.read_bytes()
    changed = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "bit": content[:-1] + bytes([content[-1] ^ 1]),
        "text": b"not a checkpoint",
    }[how]
    path.write_bytes(changed)


def test_the_last_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "deep" / "folder", "f")
    assert checkpoints.read() is None
    for i in range(5):
        checkpoints.write(snapshot(i))
        assert sorted(p.name for p in checkpoints.folder.iterdir()) == sorted(NAMES[: min(i + 1, 2)])
        found = read(checkpoints.folder)
        assert found.numbers == {"step": i, "x": repr(0.1 * i)}
        assert found.tensors["theta"].tolist() == [float(i)] * 3
        assert found.tensors["S"].shape == (0, 3)
    checkpoints.clear()
    assert list(checkpoints.folder.iterdir()) == []
    checkpoints.clear()


@pytest.mark.parametrize("how", ["empty", "half", "zeros", "bit", "text"])
def test_a_damaged_newest_falls_back_to_the_other(tmp_path, how):
    checkpoints = Checkpoints(tmp_path, "f")
    for i in range(4):
        checkpoints.write(snapshot(i))
    damage(tmp_path / NAMES[1], how)
    again: Any = Checkpoints(tmp_path, "f")
    assert again.read().numbers["step"] == 2
    # The next write replaces the damaged file, not the good one.
    again.write(snapshot(9))
    assert read(tmp_path).numbers["step"] == 9
    damage(tmp_path / NAMES[1], how)
    assert read(tmp_path).numbers["step"] == 2


def test_damaged_older_file_does_not_matter(tmp_path):
    checkpoints = Checkpoints(tmp_path, "f")
    for i in range(4):
        checkpoints.write(snapshot(i))
    damage(tmp_path / NAMES[0], "half")
    assert read(tmp_path).numbers["step"] == 3


def test_both_damaged_starts_anew_with_a_warning(tmp_path):
    X, Y = task()
    net = network()
    quiet(net, X, Y, phases=PHASES, checkpoint=tmp_path)
    for name in NAMES:
        damage(tmp_path / name, "bit")
    again = network()
    with pytest.warns(NumericalWarning, match="starts anew"):
        result = quiet(again, X, Y, phases=PHASES, checkpoint=tmp_path)
    assert result.steps == 14
    assert same_bits(weights(again), weights(net))


def test_another_training_is_refused(tmp_path):
    X, Y = task()
    quiet(network(), X, Y, phases=PHASES, checkpoint=tmp_path)
    frozen = network()
    frozen.biases[0].requires_grad_(False)
    moved = X.clone()
    moved[3, 2] += 1e-12
    for net, x, y, options in (
        (network(seed=6), X, Y, {}),
        (network(slope=0.1), X, Y, {}),
        (frozen, X, Y, {}),
        (network(), moved, Y, {}),
        (network(), X, -Y, {}),
        (network(), X, Y, {"ridge": 2e-3}),
        (network(), X, Y, {"seed": 1}),
        (network(), X, Y, {"tolerance": 1e-3}),
        (network(), X, Y, {"phases": [*PHASES, Phase("lbfgs", 1)]}),
    ):
        with pytest.raises(IsthmusError, match="resume=False"):
            quiet(net, x, y, **{"phases": PHASES, "checkpoint": tmp_path, **options})
    # What does not change the weights does not change the training.
    quiet(network(), X, Y, phases=PHASES, checkpoint=tmp_path, max_seconds=100.0, checkpoint_seconds=1.0)


def test_resume_false_starts_anew(tmp_path):
    X, Y = task()
    quiet(network(seed=6), X, Y, phases=PHASES, checkpoint=tmp_path)
    net, alone = network(), network()
    assert quiet(net, X, Y, phases=PHASES, checkpoint=tmp_path, resume=False).evaluations > 14
    quiet(alone, X, Y, phases=PHASES)
    assert same_bits(weights(net), weights(alone))


def test_a_finished_training_is_not_repeated(tmp_path):
    X, Y = task()
    results = []
    for _ in range(2):
        net, calls = network(), []
        result = quiet(net, X, Y, ridge=1e-2, checkpoint=tmp_path, callbacks=[calls.append])
        results.append((weights(net), result, calls))
    (first, a, _), (second, b, calls) = results
    assert same_bits(first, second)
    assert calls == []
    assert (a.state, a.reason, a.steps, a.loss, a.criteria) == (b.state, b.reason, b.steps, b.loss, b.criteria)
    assert a.at_rest
    for key, values in a.history.items():
        assert values.tolist() == b.history[key].tolist()


def test_foreign_files_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    quiet(network(), *task(), phases=PHASES, checkpoint=tmp_path, resume=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    shutil.rmtree(tmp_path)


def test_fingerprint_depends_on_everything():
    net, X = network(), gaussian(4, 4)
    base = identity_of_training({"a": 1}, net, [X])
    assert base == identity_of_training({"a": 1}, network(), [X.clone()])
    assert base != identity_of_training({"a": 2}, net, [X])
    assert base != identity_of_training({"a": 1}, net, [X.float()])
    assert base != identity_of_training({"a": 1}, net, [X.view(2, 8)])
