"""What cannot be trained is refused with the fix; unusual data are trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import DataError, FullyConnected, IsthmusError
from isthmus.training import Phase, train
from small import network, quiet, same_bits, task, weights
from tools import assert_close, gaussian

QUICK = [Phase("adam", 3, 1e-3), Phase("lbfgs", 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": gaussian(40, 5)}, "`net` must accept `X`.*d_in"),
        ({"X": gaussian(39, 4)}, "39 and 40"),
        ({"X": torch.zeros(0, 4)}, "must have samples"),
        ({"X": gaussian(40, 4).numpy() * np.nan}, "160 NaN"),
        ({"X": [["a"] * 4] * 40}, "numeric"),
        ({"Y": gaussian(40, 2)}, "outputs of `net` as columns"),
        ({"Y": gaussian(40)}, "outputs of `net` as columns"),
        ({"Y": torch.full((40, 3), float("inf"))}, "Impute"),
        ({"Y": [["a", "b", "c"]] * 40}, "numeric"),
        ({"loss": "hinge"}, "'mse', 'cross_entropy'"),
        ({"loss": "cross_entropy", "Y": np.arange(40)}, r"in \[0, 2\].*Number the classes from 0"),
        ({"loss": "cross_entropy", "Y": np.full(40, -1)}, r"in \[0, 2\]"),
        ({"loss": "cross_entropy", "Y": np.eye(3, dtype=int)[np.arange(40) % 3]}, "argmax"),
        ({"loss": "cross_entropy", "Y": np.zeros(40)}, "must be integers"),
        ({"loss": "cross_entropy", "Y": ["cat"] * 40}, "numeric"),
        ({"ridge": -1.0}, "ridge"),
        ({"ridge": float("nan")}, "ridge"),
        ({"tolerance": -1}, "tolerance"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"seed": 0.5}, "seed"),
        ({"phases": ["adam"]}, "Phase objects"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"net": nn.Sequential(nn.ReLU())}, "weights"),
        ({"net": "network"}, "torch.nn.Module"),
        ({"net": nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()}, r"net\.eval"),
        ({"net": nn.LSTM(4, 3).double()}, "Return a tensor"),
        ({"net": nn.Linear(4, 3).double(), "phases": [Phase("narrow", 60)]}, "FullyConnected.*Leave"),
    ],
)
def test_wrong_inputs_name_the_fix(change, message):
    X, Y = task()
    given = {"net": network(), "X": X, "Y": Y, "ridge": 1e-3, "phases": QUICK, **change}
    if "learning_rate" in change:
        given["phases"] = None
    with pytest.raises(IsthmusError, match=message):
        train(given.pop("net"), given.pop("X"), given.pop("Y"), **given)


def test_narrow_with_a_frozen_parameter_is_refused():
    net = network()
    net.weights[1].requires_grad_(False)
    with pytest.raises(IsthmusError, match="without frozen"):
        train(net, *task(), ridge=1e-3, phases=[Phase("narrow", 60)])


def test_looking_at_the_outputs_changes_nothing():
    net: Any = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    mean = net[1].running_mean.clone()
    with pytest.raises(IsthmusError):
        train(net, gaussian(40, 4), gaussian(40, 7), ridge=1e-3)
    assert torch.equal(net[1].running_mean, mean)
    assert net.training
    quiet(net, *task(), phases=QUICK)
    assert not torch.equal(net[1].running_mean, mean)


def test_kinds_of_arrays_train_alike():
    X, Y = task(dtype=torch.float32)
    ends = []
    for x, y in ((X, Y), (X.numpy(), Y.numpy()), (X.tolist(), Y.tolist()), (X.double(), Y.double())):
        net = network(dtype=torch.float32)
        quiet(net, x, y, phases=QUICK)
        ends.append(weights(net))
    assert all(same_bits(ends[0], other) for other in ends[1:])


def test_labels_of_any_integer_kind_and_one_hot_rows():
    X = task()[0]
    labels = np.arange(40) % 3
    one_hot = np.eye(3)[labels]
    ends = []
    for Y in (labels, labels.astype(np.uint8), labels.tolist(), torch.tensor(labels)[:, None], labels.astype(np.int16)):
        net = network()
        quiet(net, X, Y, loss="cross_entropy", phases=QUICK)
        ends.append(weights(net))
    assert all(same_bits(ends[0], other) for other in ends[1:])
    net = network()
    quiet(net, X, one_hot, loss="cross_entropy", phases=QUICK)
    for a, b in zip(ends[0], weights(net)):
        assert_close(a, b)


@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_converges_with_the_default_plan(soft):
    X, Y = task()
    labels = Y.argmax(1)
    targets = 0.8 * torch.eye(3, dtype=torch.float64)[labels] + 0.2 / 3 if soft else labels
    net = network()
    result = train(net, X, targets, loss="cross_entropy", ridge=1e-2)
    assert result.at_rest
    with torch.no_grad():
        assert float((net(X).argmax(1) == labels).double().mean()) > 0.85


def test_images_and_one_column():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    images = gaussian(12, 1, 4, 4)
    before = quiet(net, images, gaussian(12, 2), phases=[]).loss
    assert quiet(net, images, gaussian(12, 2), phases=QUICK).loss < before
    flat = FullyConnected([1, 4, 1], dtype=torch.float64)
    assert quiet(flat, np.linspace(0, 1, 9), np.linspace(0, 1, 9) ** 2, phases=QUICK).steps == 6


def test_inputs_are_not_modified():
    X, Y = task()
    copies = X.clone(), Y.clone()
    quiet(network(), X, Y, phases=QUICK)
    assert torch.equal(X, copies[0])
    assert torch.equal(Y, copies[1])


def test_errors_about_data_are_data_errors():
    with pytest.raises(DataError):
        train(network(), torch.zeros(0, 4), torch.zeros(0, 3), ridge=1e-3)
