"""The two symmetries of leaky ResNets, on any weights (hamiltonian2024, §1.2)."""

from __future__ import annotations

import math

import torch

from isthmus.claims._base import Check, Part, Subject, claim, rounding, unmet
from isthmus.claims._evidence import fit_exponent, gaussian_inputs, seeded, some_rows
from isthmus.claims.hamiltonian2024._flow import ORDER_ROOM
from isthmus.constructions._paths import rescale_range
from isthmus.networks import LeakyResNet
from isthmus.trace import activate

FACTORS = (0.5, 3.0)

SHIFTS = (0.5, 1.0)

#: Steps are cut until ρ(L̃ + ‖W‖_op) is at most 1/8, 1/16, 1/32, 1/64: where an error of first order shows as one.
CUTS = (8, 16, 32, 64)

ROWS = 32

#: Into more pieces than this no step is cut.
MOST = 4096

HYPOTHESES = ("no bias (second)", "outputs do not vanish (second)", "steps can be cut (second)")


def unbiased_net() -> Subject:
    """A random leaky ResNet without bias: any weights have the symmetries."""
    source = seeded(3)
    net = LeakyResNet(4, 3, width=8, layers=6, effective_depth=2.0, bias=0.0, dtype=torch.float64, generator=source)
    return Subject(net.requires_grad_(False), gaussian_inputs(20, 4, 4))


@claim(
    "C-ham-8",
    "W/c with L̃/c on [0, c] has the same representations and ∫‖W‖²/c; L̃ + c with the same W has e^(−cp)α_p, up to O(ρ)",
    paper="hamiltonian2024",
    where="§1.2",
    hypotheses=HYPOTHESES,
    sample=unbiased_net,
    about=LeakyResNet.kind,
)
def symmetries(check: Check, subject: Subject) -> None:
    """The rescaled range exactly, position by position; the shifted leak by the exponent −1 of its error in 1/ρ.

    For the second every step is cut into more and more of the same W: any network is a path of piecewise constant
    weights.
    """
    net, X = subject.net, subject.X[some_rows(subject.X, ROWS)]
    outputs, times = net.trace(X).representations[-1], cuts_of_steps(net)
    check.assume(HYPOTHESES[0], net.bias == 0.0, f"bias {net.bias:g}")
    check.assume(HYPOTHESES[1], float(outputs.norm()) > 0, f"norm {float(outputs.norm()):.3g}")
    check.assume(HYPOTHESES[2], times[-1] <= MOST or None, f"into {times[0]} to {times[-1]}")
    path, norm = _stacked(net, X), _norm(net)
    if not bool(path.any()):
        check.not_applicable("all representations vanish", cause="network")
    places = []
    for c in FACTORS:
        other = rescale_range(net, c)
        changed = _stacked(other, X)
        # Each position by its norm and by its inner product with what it should be.
        for ell, (A, B) in enumerate(zip(path, changed)):
            wanted, name = float(A.square().sum()), f"range times {c:g}, position {ell}"
            places += [(float((A * B).sum()), wanted, name), (float(B.square().sum()), wanted, name)]
        places.append((_norm(other), norm / c, f"range times {c:g}, ∫‖W‖²"))
    check.each(places, "=", tolerance=rounding(net, condition=10.0), part="range rescaled", assuming=())
    for shift in SHIFTS:
        _shifted(check, net, X, shift)


def _stacked(net: LeakyResNet, X: torch.Tensor) -> torch.Tensor:
    return torch.stack(net.trace(X).representations)


def _norm(net: LeakyResNet) -> float:
    """Σρ‖W‖²."""
    return float(sum(rho * W.detach().square().sum() for rho, W in zip(net.rho, net.Ws)))


def cuts_of_steps(net: LeakyResNet) -> list[int]:
    """Into how many each step is cut, for each of ``CUTS``: twice as many each time, also where steps are short."""
    leak = net.effective_depth + max(SHIFTS)
    speeds = [rho * (leak + float(torch.linalg.matrix_norm(W.detach(), 2))) for rho, W in zip(net.rho.tolist(), net.Ws)]
    first = max(1, math.ceil(CUTS[0] * max(speeds)))
    return [first * cut // CUTS[0] for cut in CUTS]


def shift_errors(net: LeakyResNet, X: torch.Tensor, shift: float) -> list[float]:
    """‖α'_1 − e^{−c}α_1‖/‖e^{−c}α_1‖ for each of ``CUTS``."""
    errors = []
    for times in cuts_of_steps(net):
        wanted = leaked(net, shift) * end_of_path(net, X, times, net.effective_depth)
        got = end_of_path(net, X, times, net.effective_depth + shift)
        errors.append(float((got - wanted).norm() / wanted.norm()))
    return errors


def leaked(net: LeakyResNet, shift: float) -> float:
    """e^{−cp} at the end of the path, p = Σρ."""
    return math.exp(-shift * float(net.rho.sum()))


@torch.no_grad()
def end_of_path(net: LeakyResNet, X: torch.Tensor, times: int, leak: float) -> torch.Tensor:
    """The last representation with every step cut into ``times`` of the same W, at this leak, without bias.

    What ``shift_leak(refine_steps(net, times), …)`` computes, without a network of that many matrices.
    """
    A = X.double() @ net.W_in.double().mT
    for W, rho in zip(net.Ws, net.rho.tolist()):
        V, h = W.double().mT, rho / times
        for _ in range(times):
            A = (1.0 - h * leak) * A + h * (activate(A, net.slope) @ V)
    return A


def _shifted(check: Check, net: LeakyResNet, X: torch.Tensor, shift: float) -> None:
    part, missing = f"leak + {shift:g}: exponent of the error", unmet(check.hypotheses)
    errors = [] if missing else shift_errors(net, X, shift)
    if missing or not all(0.0 < error < math.inf for error in errors):
        why = missing or "on cut steps there is no error, or nothing left to compare"
        check.parts.append(Part(part, "not applicable", relation="≤", reason=why))
        return
    rate = fit_exponent([float(times) for times in cuts_of_steps(net)], errors)
    check.compare(
        rate.value,
        "≤",
        -1.0 + ORDER_ROOM,
        tolerance=0.0,
        part=part,
        details={f"error at leak + {shift:g}": errors, f"exponent at leak + {shift:g}": rate.numbers},
    )
