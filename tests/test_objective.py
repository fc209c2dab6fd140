"""The one convention, against PyTorch's own losses and the papers' regularisers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from isthmus import (
    DataError,
    FullyConnected,
    IsthmusError,
    LeakyResNet,
    cost,
    diagnose,
    mechanics,
    ridge_from,
    verify,
)
from isthmus.objective import class_indices
from isthmus.reformulations import optimise_representations
from tools import assert_close, gaussian, generator


def test_mse_sums_over_outputs_and_averages_over_samples():
    f, y = gaussian(7, 3), gaussian(7, 3, seed=1)
    assert_close(cost(f, y), 3 * functional.mse_loss(f, y))
    assert_close(cost(f, y), sum((a - b).square().sum() for a, b in zip(f, y)) / 7)


def test_cross_entropy():
    f = gaussian(7, 3)
    y = torch.randint(0, 3, (7,), generator=generator())
    assert_close(cost(f, y, "cross_entropy"), functional.cross_entropy(f, y))
    assert_close(cost(f, y.int(), "cross_entropy"), functional.cross_entropy(f, y))
    soft = torch.softmax(gaussian(7, 3, seed=2), -1)
    assert_close(cost(f, soft, "cross_entropy"), functional.cross_entropy(f, soft))
    assert_close(cost(f, functional.one_hot(y, 3).double(), "cross_entropy"), functional.cross_entropy(f, y))
    assert_close(cost(f * 1e3, y, "cross_entropy"), functional.cross_entropy(f * 1e3, y))


def test_stacks():
    f, y = gaussian(4, 7, 3), gaussian(4, 7, 3, seed=1)
    assert_close(cost(f, y), torch.stack([cost(a, b) for a, b in zip(f, y)]))
    labels = torch.randint(0, 3, (4, 7), generator=generator())
    assert_close(
        cost(f, labels, "cross_entropy"),
        torch.stack([cost(a, b, "cross_entropy") for a, b in zip(f, labels)]),
    )


@pytest.mark.parametrize("wrong", [3, -1])
def test_classes_that_the_outputs_do_not_have(wrong):
    with pytest.raises(DataError, match=r"class indices must be in \[0, 2\].*Got indices from"):
        cost(gaussian(4, 3), torch.tensor([0, 1, wrong, 2]), "cross_entropy")


def test_refused():
    f = gaussian(7, 3)
    with pytest.raises(IsthmusError, match="same shape"):
        cost(f, f[:, 0])
    with pytest.raises(IsthmusError, match="one of 'mse', 'cross_entropy'"):
        cost(f, f, "hinge")
    with pytest.raises(IsthmusError, match="class indices"):
        cost(f, torch.zeros(7, 1, dtype=torch.int64), "cross_entropy")
    with pytest.raises(IsthmusError, match="class indices"):
        cost(f, torch.zeros(7), "cross_entropy")


def test_ridges_give_the_papers_regularisers():
    L, lam, effective = 8, 3e-3, 5.0
    Ws = [gaussian(4, 4, seed=i) for i in range(L)]
    norm = sum(W.square().sum() for W in Ws)
    assert_close(ridge_from("plain", lam) * norm, lam * norm)
    assert_close(ridge_from("rank2023", lam, depth=L) * norm, lam / L * norm)
    # Leaky: (λ/2L̃)·Σρ‖W_p‖² with ρ = 1/L, in terms of the fully connected weights W_p/L̃.
    leaky = lam / (2 * effective) * sum((effective * W).square().sum() / L for W in Ws)
    assert_close(ridge_from("hamiltonian2024", lam, depth=L, effective_depth=effective) * norm, leaky)
    # A cost averaged over d outputs plus λ'‖θ‖² is ours with λ'·d, divided by d.
    f, y = gaussian(7, 3), gaussian(7, 3, seed=1)
    averaged = functional.mse_loss(f, y) + lam * norm
    assert_close((cost(f, y) + ridge_from("plain", lam, outputs=3) * norm) / 3, averaged)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("other", 1.0), "one of"),
        (("plain", -1.0), "lam"),
        (("rank2023", 1.0), "depth"),
        (("hamiltonian2024", 1.0), "effective_depth"),
    ],
)
def test_refused_ridges(arguments, message):
    with pytest.raises(IsthmusError, match=message):
        ridge_from(*arguments)


def test_refused_effective_depth():
    with pytest.raises(IsthmusError, match="effective_depth"):
        ridge_from("hamiltonian2024", 1.0, depth=3)
    with pytest.raises(IsthmusError, match="effective_depth"):
        ridge_from("hamiltonian2024", 1.0, depth=3, effective_depth=0.0)


@pytest.mark.parametrize("labels", [[0.0, 1.5, 1.0], [0, -1, 1], [0.0, float("nan"), 1.0]])
def test_labels_that_are_no_indices_are_refused_everywhere(labels):
    """They were cut to integers: 1.5 became class 1."""
    X, Y = gaussian(3, 2), torch.tensor(labels, dtype=torch.float64)
    net = FullyConnected([2, 3, 2], dtype=torch.float64)
    leaky = LeakyResNet(2, 2, width=4, layers=3, effective_depth=1.0, dtype=torch.float64)
    with pytest.raises(DataError):
        diagnose(net, X, Y, loss="cross_entropy")
    with pytest.raises(DataError):
        verify(net, X, Y, ridge=0.1, loss="cross_entropy")
    with pytest.raises(DataError):
        mechanics(leaky, X, Y, ridge=0.1, loss="cross_entropy")
    with pytest.raises(DataError):
        optimise_representations(X, Y, widths=[3], ridge=0.1, loss="cross_entropy")


def test_labels_are_indices_in_any_dtype():
    assert class_indices("test", torch.tensor([[0.0], [2.0]])).tolist() == [0, 2]
    assert class_indices("test", torch.tensor([True, False])).tolist() == [1, 0]
