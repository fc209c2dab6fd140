"""A-linear: the least norm of a linear network, and the completely positive path that nearly attains it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus import FullyConnected, IsthmusError
from isthmus.constructions import linear_network, positive_linear_network
from isthmus.linalg import log_pseudo_determinant
from isthmus.measures import balance, linear_cost, linear_expansion, parameter_norms, weight_spectra
from tools import assert_close, gaussian, orthogonal


def of_rank(k, rows, columns, seed=0):
    return gaussian(rows, k, seed=seed) @ gaussian(k, columns, seed=seed + 1)


@pytest.mark.parametrize("depth", [1, 2, 7, 200])
@pytest.mark.parametrize("k", range(1, 9))
def test_the_least_linear_network(k, depth):
    A, X = of_rank(k, 9, 8, seed=k), gaussian(30, 8, seed=3)
    made = linear_network(A, depth)
    assert_close(made.network(X), X @ A.mT)
    assert_close(made.known.norm_squared, parameter_norms(made.network).total)
    assert_close(made.known.norm_squared, linear_cost(A, depth))
    assert made.known.rank == k and made.known.domain.whole
    assert_close(made.known.excess_limit, 2 * log_pseudo_determinant(A))
    assert balance(made.network).layer_residual < 1e-12
    assert balance(made.network).neuron_residual < 1e-12
    spectra = weight_spectra(made.network)
    assert all(torch.allclose(s[:k], spectra[0][:k]) for s in spectra)


def test_any_other_factorisation_costs_more():
    A = of_rank(3, 4, 5)
    least = linear_network(A, 2).known.norm_squared
    M = gaussian(3, 3, seed=5)
    Ws = [M @ linear_network(A, 2).network.Ws[0].detach(), linear_network(A, 2).network.Ws[1].detach() @ M.inverse()]
    other = FullyConnected.from_weights(Ws, slope=1.0)
    assert_close(Ws[1] @ Ws[0], A)
    assert parameter_norms(other).total > least + 0.1


def test_the_zero_map():
    for made in (linear_network(torch.zeros(2, 3), 4), positive_linear_network(torch.zeros(2, 3), 4)):
        assert made.known.norm_squared == 0.0 == parameter_norms(made.network).total
        assert made.known.rank == 0
        assert not made.network(torch.ones(1, 3).double()).any()


def cone_case(k=3, seed=0):
    """A map of rank k from ℝ^6 to ℝ^5, isometries of its row and column space, samples that they make positive."""
    V, U = orthogonal(6, k, seed=seed), orthogonal(5, k, seed=seed + 1)
    C = gaussian(k, k, seed=seed + 2).abs()
    A = U @ C @ V.mT
    null = torch.eye(6, dtype=torch.float64) - V @ V.mT
    X = gaussian(40, k, seed=seed + 3).abs() @ V.mT + gaussian(40, 6, seed=seed + 4) @ null
    return A, V.mT, U.mT, X


@pytest.mark.parametrize("depth", [1, 2, 3, 10, 200])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_positive_path(k, depth):
    A, O_in, O_out, X = cone_case(k, seed=k)
    made = positive_linear_network(A, depth, O_in=O_in, O_out=O_out)
    assert made.network.slope == 0.0
    assert bool(made.known.domain.contains(X).all())
    assert_close(made.network(X), X @ A.mT, rtol=1e-9, atol=1e-9, reason="200 inverses in a row")
    assert_close(made.known.norm_squared, parameter_norms(made.network).total)
    assert made.known.norm_squared >= linear_cost(A, depth) * (1 - 1e-12), "less than the least"
    # By a second route, with pseudo-inverses.
    B = [
        torch.eye(6, dtype=torch.float64),
        *(torch.cat([(1 - p) ** 0.5 * O_in, p**0.5 * O_out @ A]) for p in np.arange(1, depth) / depth),
        A,
    ]
    for W, old, new in zip(made.network.Ws, B, B[1:]):
        assert_close(W, new @ torch.linalg.pinv(old, rtol=1e-9), rtol=1e-7, atol=1e-8, reason="pinv by SVD")


def test_outside_the_cone_it_differs():
    A, O_in, O_out, X = cone_case()
    made = positive_linear_network(A, 8, O_in=O_in, O_out=O_out)
    assert not bool(made.known.domain.contains(-X).any())
    assert not torch.allclose(made.network(-X), -X @ A.mT)


def test_default_embeddings():
    A = gaussian(5, 3, seed=1).abs()
    X = gaussian(30, 3, seed=2).abs()
    made = positive_linear_network(A, 20)
    assert bool(made.known.domain.contains(X).all())
    assert_close(made.network(X), X @ A.mT)


def fit_excess(A, depths):
    """Limit and 1/L coefficient of ‖θ‖² − kL, by a fit in 1/L."""
    excess = [
        parameter_norms(m.network).total - m.known.rank * m.depth
        for m in (positive_linear_network(A, L) for L in depths)
    ]
    return np.polyfit(1 / np.array(depths), excess, 3)[::-1][:2]


def test_the_excess_tends_to_twice_the_log_determinant_like_one_over_depth():
    A = torch.diag(torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64)) @ (torch.eye(3) + 0.2).double()
    limit, rate = fit_excess(A, [50, 70, 100, 140, 200, 280])
    made = positive_linear_network(A, 4)
    assert_close(limit, made.known.excess_limit, rtol=1e-6, reason="a cubic fit in 1/L")
    assert_close(limit, 2 * log_pseudo_determinant(A), rtol=1e-6, reason="a cubic fit in 1/L")
    s = torch.linalg.svdvals(A)
    assert_close(rate, 0.5 * (s - 1 / s).square().sum(), rtol=1e-3, reason="a cubic fit in 1/L")
    assert abs(rate / linear_expansion(A).R2 - 1) > 0.02, "its 1/L coefficient is not R2"


def test_the_printed_path_fails():
    # Thm 3(3) as printed: (ℓ/L)P + (1−ℓ/L)AᵀA, ending in the identity.
    A = torch.tensor([[2.0, 0.3, 0.1], [0.4, 1.5, 0.2], [0.0, 0.5, 2.5]], dtype=torch.float64)
    X = gaussian(20, 3, seed=2).abs()

    def printed(L, last):
        B = [torch.eye(3).double()]
        B += [torch.cat([(ell / L) ** 0.5 * torch.eye(3).double(), (1 - ell / L) ** 0.5 * A]) for ell in range(1, L)]
        B.append(last)
        return FullyConnected.from_weights([new @ torch.linalg.pinv(old) for old, new in zip(B, B[1:])])

    assert_close(printed(8, torch.eye(3).double())(X), X)  # the identity, not A
    # Ended in A it computes Ax, at a larger norm: the excess stays away from 2 log|A|.
    assert_close(printed(8, A)(X), X @ A.mT)
    ours, limit = positive_linear_network(A, 400), float(2 * log_pseudo_determinant(A))
    assert abs(parameter_norms(ours.network).total - 1200 - limit) < 0.1
    far = 2 * float(A.square().sum() - 3) - limit
    assert_close(parameter_norms(printed(400, A)).total - 1200, far, rtol=0.05, reason="a limit at L = 400")
    assert far > limit + 1


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda A, O, Q: positive_linear_network(A, 5, O_in=2 * O, O_out=Q), "`O_in` must keep inner products"),
        (lambda A, O, Q: positive_linear_network(A, 5, O_in=O, O_out=Q[:2]), "`O_out` must keep inner products"),
        (lambda A, O, Q: positive_linear_network(A, 5, O_in=torch.eye(6)), "`O_in` must keep"),
        (lambda A, O, Q: positive_linear_network(A, 5, O_in=O[:, :3]), "must have 6 columns"),
        (lambda A, O, Q: positive_linear_network(A, 0), "integer in \\[1"),
        (lambda A, O, Q: linear_network(A, 0), "integer in \\[1"),
        (lambda A, O, Q: linear_network(A[None], 3), "2-D"),
    ],
)
def test_refusals(call, match):
    A, O_in, O_out, _ = cone_case()
    with pytest.raises(IsthmusError, match=match):
        call(A, O_in, O_out)
