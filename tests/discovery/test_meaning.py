"""Sensitivities of maps whose derivatives are known."""

from __future__ import annotations

import numpy as np
import torch

from isthmus.discovery._maps import sensitivity
from isthmus.networks import FullyConnected
from tools import assert_close, gaussian, random_net


def linear(A):
    return FullyConnected.from_weights([torch.as_tensor(A, dtype=torch.float64)], slope=1.0, bias=0.0)


def test_a_linear_map():
    X = gaussian(400, 3).numpy()
    A = np.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.0]])
    found = sensitivity(linear(A), [], X)
    assert_close(found.value, np.abs(A) / (X @ A.T).std(axis=0)[:, None])
    assert np.array_equal(found.low, found.value)
    assert np.array_equal(found.high, found.value)
    assert found.agreement.tolist() == [1.0, 1.0]
    assert found.strongest(0) == [0, 2, 1]
    assert found.strongest(1, 1) == [1]


def test_a_network_by_finite_differences():
    net, X = random_net((3, 10, 2)), gaussian(300, 3).numpy()
    found = sensitivity(net, [], X)
    rows = torch.from_numpy(X)
    deviation = net(rows).detach().std(0, correction=0)
    for i in range(3):
        step = 1e-6 * torch.eye(3, dtype=torch.float64)[i]
        J = (net(rows + step) - net(rows - step)).detach() / 2e-6 / deviation
        assert_close(found.value[:, i], (J**2).mean(0).sqrt(), rtol=1e-3, reason="a kink within a step now and then")


def test_refits_are_compared_up_to_a_linear_map():
    """Coordinates are only defined up to that: a refit in other ones says the same."""
    net, X = random_net((3, 10, 2)), gaussian(300, 3).numpy()
    mixed = FullyConnected.from_weights(
        [net.Ws[0], gaussian(2, 2, seed=3) @ net.Ws[1]], [net.bs[0], gaussian(2, seed=4)], slope=0.0
    )
    found = sensitivity(net, [mixed], X)
    assert_close(found.low, found.value)
    assert_close(found.high, found.value)
    assert_close(found.agreement, [1.0, 1.0])


def test_a_refit_that_sees_something_else_widens_the_interval():
    X = gaussian(400, 3).numpy()
    found = sensitivity(linear([[1.0, 0.0, 0.0]]), [linear([[1.0, 1.0, 0.0]])], X)
    assert found.low[0, 1] == found.value[0, 1] == 0.0
    assert found.high[0, 1] > 0.3
    correlation = np.corrcoef(X[:, 0], X[:, 0] + X[:, 1])[0, 1]
    assert_close(found.agreement, [correlation**2])
    nothing = sensitivity(linear([[1.0, 0.0, 0.0]]), [linear([[0.0, 0.0, 0.0]])], X)
    assert_close(nothing.agreement, [0.0])
    assert nothing.low[0, 0] == 0.0


def test_a_coordinate_that_does_not_vary():
    found = sensitivity(linear([[0.0, 0.0]]), [linear([[1.0, 0.0]])], gaussian(50, 2).numpy())
    assert np.isfinite(found.value).all()
    assert not found.value.any()


def test_as_a_table():
    found = sensitivity(linear([[1.0, 2.0]]), [], gaussian(50, 2).numpy())
    table = found.to_frame(["a", "b"])
    assert table["input"].tolist() == ["a", "b"]
    assert table["coordinate"].tolist() == ["coordinate0", "coordinate0"]
    assert table["sensitivity"].tolist() == found.value[0].tolist()
