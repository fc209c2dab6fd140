"""Is a network at a minimum of cost + ridge·‖θ‖²?"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject
from isthmus.claims.samples import gaussian_inputs
from isthmus.networks import FullyConnected
from isthmus.objective import cost

#: Share by which the gradient that is left may move what a claim is about. Trained ReLU networks have samples at kinks,
#: which keep the gradient from falling so far.
STATIONARY = 0.02


def cost_gradients(subject: Subject) -> tuple[FullyConnected, list[Tensor]]:
    """A copy of the network in float64, and the gradients of the cost by its parameters."""
    assert subject.Y is not None
    net = FullyConnected.from_weights(
        [W.detach().double() for W in subject.net.Ws],
        [b.detach().double() for b in subject.net.bs] or None,
        slope=subject.net.slope,
        bias=subject.net.bias,
    )
    value = cost(net(subject.X), subject.Y, subject.loss)
    return net, list(torch.autograd.grad(value, list(net.parameters())))


def gradient_residual(subject: Subject) -> float:
    """‖∇(cost + ridge·‖θ‖²)‖ / ‖2·ridge·θ‖, in float64."""
    assert subject.ridge is not None
    net, gradients = cost_gradients(subject)
    pull = [2 * subject.ridge * p.detach() for p in net.parameters()]
    whole = torch.cat([(g + q).flatten() for g, q in zip(gradients, pull)])
    return float(whole.norm() / torch.cat([q.flatten() for q in pull]).norm().clamp_min(1e-300))


def at_a_minimum(subject: Subject, sway: float) -> tuple[list[Hypothesis], float]:
    """The hypotheses of claims about minimisers, and the relative gradient (NaN when it cannot be had).

    ``sway`` is by how much a relative gradient of 1 moves what the claim is about: a network is stationary if little of
    that is left.
    """
    given = Hypothesis.of("ridge > 0 given", bool(subject.ridge), "ridge not given" if not subject.ridge else "")
    if subject.Y is None or not subject.ridge:
        why = "targets not given" if subject.Y is None else "ridge not given"
        return [given, Hypothesis.of("stationary point", None, why)], float("nan")
    residual = gradient_residual(subject)
    found = f"gradient {residual:.2g} of the ridge's, which leaves {residual * sway:.2g}; {STATIONARY} allowed"
    return [given, Hypothesis.of("stationary point", residual * sway <= STATIONARY, found)], residual


def least_squares_minimum() -> Subject:
    """A linear network of two layers at the global minimum, in closed form.

    With X of orthogonal columns XᵀX = N, cost + ridge·‖θ‖² over A = W_2W_1 is ‖A − M‖² + 2·ridge·‖A‖_*, M the
    least-squares map: its singular values are soft-thresholded by ridge, and A's square roots are shared by the layers.
    """
    N, d, ridge = 40, 4, 0.05
    X = torch.linalg.qr(gaussian_inputs(N, d, 5)).Q * N**0.5
    M = gaussian_inputs(3, d, 6)
    U, s, Vh = torch.linalg.svd(M, full_matrices=False)
    root = (s - ridge).clamp_min(0).sqrt()
    net = FullyConnected.from_weights([root[:, None] * Vh, U * root], None, slope=1.0)
    return Subject(net, X, X @ M.mT, ridge)
