"""Q-stationary: how far a network is from a stationary point of its loss, with its kinks taken into account."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from isthmus._activations import plain, scales_of
from isthmus._checks import as_matrix, as_tensor, check_choice, check_number, fail
from isthmus._errors import DataError
from isthmus._kinks import Kinked
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.objective import LOSSES, class_indices

#: What counts as stationary: a residual of at most this, with kinks within at most this share of a layer's scale.
STATIONARY, KINK_TOLERANCE = 1e-3, 1e-4

#: Parameters up to which the least eigenvalue is computed unless asked for, and up to which it can be.
HESSIAN, MOST_HESSIAN = 2500, 8000

#: Curvature below −(this share of the ridge's own) makes a saddle; derivatives nearer to 0 or 1 than this are there.
FLAT, INTERIOR = 1e-3, 1e-6

#: Entries whose activation moves the loss by less than this share of the most are none that the loss depends on.
NEGLIGIBLE = 1e-9

#: Evaluations of the least squares in the derivatives at most; it ends at this residual, and where so many of its steps
#: lower the residual by less than a share: the first above ten times what counts as stationary, the second below.
EVALUATIONS, ENOUGH, PATIENCE, SLOW = 1000, 0.1 * STATIONARY, 30, (0.02, 0.003)

KINDS = ("local minimum", "saddle", "not known")


@dataclass(frozen=True, eq=False)
class Stationarity:
    """How near to a stationary point a network is, and of which kind that is.

    Attributes
    ----------
    residual : float
        r = min ‖∇loss(D)‖ / (2·ridge·‖θ‖) over the derivatives D ∈ [0, 1] of the activations at kinks: 0 at a
        stationary point. Below 10⁻⁴ the search for better D ends: an upper bound. NaN where nothing is left to compare
        with: ridge·‖θ‖² within rounding of the loss.
    kink_tolerance : float
        τ: an entry is at a kink where |z| ≤ τ·(root mean square of z in its layer).
    gradient : float
        The same ratio with the derivatives that PyTorch takes at kinks, as they are; at a minimum that sits on kinks it
        stays of the order of 1.
    multipliers : Tensor (kinks, 2)
        For each kink the derivative of the loss by what its activation gives, and D. The first must not be negative
        where D is neither 0 nor 1: there both sides of the kink lie lower.
    derivatives : tuple of Tensor (N, …)
        D of every entry of every activation, in the order of the forward pass: 0 or 1 but at kinks.
    curve : tuple of (τ, r)
        The residual against the tolerance.
    least_eigenvalue : float
        Of the Hessian for these D, on the directions that leave kinks where they are; NaN where it was not computed.
        Of more than 2500 parameters only those in effect count.
    kind : {"local minimum", "saddle", "not known"}
    reason : str
        Why, in a sentence.
    ridge : float
    parameters : int
        In effect: those that are not zero, and those that the cost depends on.
    """

    residual: float
    kink_tolerance: float
    gradient: float
    multipliers: Tensor
    derivatives: tuple[Tensor, ...]
    curve: tuple[tuple[float, float], ...]
    least_eigenvalue: float
    kind: str
    reason: str
    ridge: float
    parameters: int

    @property
    def stationary(self) -> bool:
        """Whether r ≤ 10⁻³ at τ ≤ 10⁻⁴; a network of zeros (r is NaN) is stationary where its gradient vanishes."""
        return self.residual <= STATIONARY and self.kink_tolerance <= KINK_TOLERANCE

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        word = "Stationary" if self.stationary else "Not stationary"
        return (
            f"{word}: residual {self.residual:.1e} of the ridge's force with {len(self.multipliers)} entries at kinks "
            f"(|z| ≤ {self.kink_tolerance:.0e} of its layer's scale); {self.kind}: {self.reason}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as plain data; of the multipliers their count and least."""
        return {
            "residual": self.residual,
            "kink_tolerance": self.kink_tolerance,
            "gradient": self.gradient,
            "kinks": len(self.multipliers),
            "least_multiplier": float(self.multipliers[:, 0].min()) if len(self.multipliers) else math.nan,
            "curve": [list(pair) for pair in self.curve],
            "least_eigenvalue": self.least_eigenvalue,
            "kind": self.kind,
            "reason": self.reason,
            "ridge": self.ridge,
            "parameters": self.parameters,
        }

    def __repr__(self) -> str:
        return self.sentence


def stationarity(
    net: nn.Module,
    X: Any,
    Y: Any,
    *,
    ridge: float,
    loss: str = "mse",
    kink_tolerance: float = KINK_TOLERANCE,
    curve: Sequence[float] = (),
    hessian: bool | None = None,
    derivatives: Sequence[Tensor] | None = None,
) -> Stationarity:
    """How far ``net`` is from a stationary point of cost(net(X), Y) + ridge·‖θ‖², and which kind of point it is.

    A minimum of a piecewise linear network usually sits on kinks: some z are exactly 0, and the gradient jumps there.
    It is stationary if *some* derivatives D ∈ [0, 1] at these entries make the gradient vanish; the residual is the
    least that any can reach, relative to the force 2·ridge·θ of the ridge. It is computed in float64 for any module
    whose kinks are those of ReLU, LeakyReLU or a fixed PReLU; at those of pooling PyTorch's derivative is taken.

    Parameters
    ----------
    net : nn.Module
    X : array (N, …)
    Y : array (N, d_out), or (N,) of class indices for ``loss="cross_entropy"``
    ridge : float > 0
    loss : {"mse", "cross_entropy"}
    kink_tolerance : float, default 1e-4
        τ. With 0 the gradient is taken as it is, but for z that are exactly zero.
    curve : sequence of float
        Further τ at which the residual is computed.
    hessian : bool, optional
        Whether to compute the least eigenvalue; by default where at most 2500 parameters are in effect.
    derivatives : sequence of Tensor, optional
        A first guess of D for every entry of every activation, (N, …) each, in the order of the forward pass.

    Returns
    -------
    Stationarity

    Examples
    --------
    >>> import torch, isthmus
    >>> X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> net = isthmus.FullyConnected([3, 6, 2], slope=1.0, generator=torch.Generator().manual_seed(1))
    >>> result = isthmus.train(net, X, X[:, :2], ridge=1e-2)
    >>> found = isthmus.measures.stationarity(net, X, X[:, :2], ridge=1e-2)
    >>> found.stationary, found.kind
    (True, 'local minimum')
    """
    who = "stationarity"
    check_number(who, "ridge", ridge, low=0.0, low_open=True)
    check_choice(who, "loss", loss, LOSSES)
    for name, tau in (("kink_tolerance", kink_tolerance), *(("curve", tau) for tau in curve)):
        check_number(who, name, tau, low=0.0)
    if not isinstance(net, nn.Module) or not any(p.requires_grad for p in net.parameters()):
        fail(who, "`net` must be a module with trainable parameters", type(net).__name__, "Pass a trained network.")
    device = next(net.parameters()).device
    net = copy.deepcopy(net).double()
    inputs = as_tensor(who, "X", X, dtype=torch.float64, device=device)
    inputs = inputs[:, None] if inputs.ndim == 1 else inputs
    if loss == "cross_entropy":
        targets = as_tensor(who, "Y", Y, device=device)
        targets = targets.double() if targets.ndim == 2 and targets.shape[1] > 1 else class_indices(who, targets)
    else:
        targets = as_matrix(who, "Y", Y, dtype=torch.float64, device=device)
    if len(inputs) != len(targets) or not len(inputs):
        got = f"{len(inputs)} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows, and some", got, "Align them.", error=DataError)
    return certify(
        net,
        inputs,
        targets,
        ridge=ridge,
        loss=loss,
        kink_tolerance=kink_tolerance,
        curve=curve,
        hessian=hessian,
        derivatives=derivatives,
    )


def certify(
    net: nn.Module,
    X: Tensor,
    Y: Tensor,
    *,
    ridge: float,
    loss: str,
    kink_tolerance: float = KINK_TOLERANCE,
    curve: Sequence[float] = (),
    hessian: bool | None = None,
    derivatives: Sequence[Tensor] | None = None,
    enough: float = ENOUGH,
) -> Stationarity:
    """:func:`stationarity` of a network in float64 and data that fit it; with ``enough`` 0 as far as it goes."""
    widths = sum(max(p.shape) for p in net.parameters() if p.ndim > 0) + X[0].numel()
    model = Kinked(net, X, Y, loss, ridge, chunk_rows(len(X), 8.0 * 8 * widths, 8 * CHUNK_BYTES))
    theta = model.theta()
    force = 2.0 * ridge * float(theta.norm())
    alive = force * float(theta.norm()) > 2.0 * torch.finfo(theta.dtype).eps * model.value(theta)
    problem = _Derivatives(model, theta)
    plain_gradient = float(problem.gradient(problem.masks(-1.0), theta[:0]).norm())
    found: dict[float, tuple[float, Tensor]] = {}
    for tau in sorted({kink_tolerance, *curve}):
        guess = None if derivatives is None else problem.at_kinks(tau, derivatives)
        found[tau] = problem.least(tau, force if alive else 1.0, guess, enough)
    size, D = found[kink_tolerance]
    residual = size if alive else (0.0 if size == 0.0 else math.nan)
    pulled = problem.pulled(kink_tolerance, D)
    multipliers = torch.stack([pulled, D], 1)
    forced = problem.gradient(problem.masks(-1.0), theta[:0]) - 2.0 * ridge * theta
    live = ((theta != 0.0) | (forced != 0.0)).nonzero()[:, 0]
    least = math.nan
    wanted = hessian if hessian is not None else len(live) <= HESSIAN
    if wanted and len(live) <= MOST_HESSIAN and residual <= 10 * STATIONARY:
        # A parameter without effect can still be one of two that together have one.
        every = torch.arange(len(theta), device=theta.device)
        least = problem.least_eigenvalue(kink_tolerance, D, every if len(theta) <= HESSIAN else live)
    kind, reason = _kind(residual, multipliers, least, ridge, len(live))
    return Stationarity(
        residual=residual,
        kink_tolerance=kink_tolerance,
        gradient=plain_gradient / force if alive else math.nan,
        multipliers=multipliers,
        derivatives=tuple(problem.shares(problem.masks(kink_tolerance), D)),
        curve=tuple((tau, one if alive else math.nan) for tau, (one, _) in found.items()),
        least_eigenvalue=least,
        kind=kind,
        reason=reason,
        ridge=ridge,
        parameters=len(live),
    )


def _kind(residual: float, multipliers: Tensor, least: float, ridge: float, live: int) -> tuple[str, str]:
    if not residual <= 10 * STATIONARY:
        return "not known", "the point is not stationary"
    pulled, D = multipliers.unbind(1)
    inside = (D > INTERIOR) & (D < 1.0 - INTERIOR)
    wrong = inside & (pulled < -1e-3 * pulled.abs().max()) if len(D) else inside
    if bool(wrong.any()):
        return "saddle", f"{int(wrong.sum())} kinks can be left to either side at a lower loss"
    if math.isnan(least):
        return "not known", f"the Hessian of {live} parameters was not computed"
    if least < -FLAT * 2.0 * ridge:
        return "saddle", f"least eigenvalue {least:.1e}, where the ridge alone has {2 * ridge:.1e}"
    return "local minimum", f"least eigenvalue {least:.1e}, where the ridge alone has {2 * ridge:.1e}"


class _Derivatives:
    """The gradient as a function of the derivatives D at kinks, at one θ."""

    def __init__(self, model: Kinked, theta: Tensor) -> None:
        self.model, self.theta = model, theta
        self.zs = model.z(theta, lambda _, Z, a, __: plain(Z, a))
        self.scales = scales_of(self.zs)

        halves = [torch.full_like(z, 0.5) for z in self.zs]
        slopes = [a + (1.0 - a) * D for a, D in zip(model.kinds, halves)]
        nothing = [torch.zeros_like(z) for z in self.zs]
        # Behind a neuron that has been removed nothing depends on an entry, whatever its derivative.
        pulled = [one.abs() for one in model.first_order(theta, slopes, nothing)[2]]
        least = NEGLIGIBLE * max((float(one.max()) for one in pulled if one.numel()), default=0.0)
        self.matters = [one > least for one in pulled]

    def masks(self, tau: float) -> list[Tensor]:
        """Which entries are at kinks, of those that the loss depends on."""
        parts = zip(self.zs, self.scales, self.matters)
        return [(z.abs() <= tau * scale) & matters for z, scale, matters in parts]

    def at_kinks(self, tau: float, values: Sequence[Tensor]) -> Tensor:
        """The values of these entries, as one vector."""
        parts = [value[mask].to(self.theta) for value, mask in zip(values, self.masks(tau))]
        return torch.cat([self.theta[:0], *parts]).clamp(0.0, 1.0)

    def _chosen(self, masks: list[Tensor], D: Tensor) -> list[Tensor]:
        """D of each activation's entries at kinks."""
        return list(D.split([int(mask.sum()) for mask in masks]))

    def gradient(self, masks: list[Tensor], D: Tensor) -> Tensor:
        """∇loss at parameters, with slopes D at the kinks."""
        return self.model.first_order(self.theta, *self.slopes(masks, D))[0]

    def gradient_and_slope(self, masks: list[Tensor], D: Tensor) -> tuple[Tensor, Tensor]:
        """(g = ∇loss(D), derivative of ½‖g‖² by D): g·∂g/∂D_k = (1 − a)·∂loss/∂(activation)_k · (∇z_k·g)."""
        slopes, offsets = self.slopes(masks, D)
        gradient, _, pulled = self.model.first_order(self.theta, slopes, offsets)
        moved = self.model.tangents(self.theta, slopes, offsets, gradient)
        parts = zip(moved, pulled, self.model.kinds, masks)
        return gradient, torch.cat([self.theta[:0], *(((1.0 - a) * g * z)[mask] for z, g, a, mask in parts)])

    def pulled(self, tau: float, D: Tensor) -> Tensor:
        """∂loss/∂(activation) at the kinks, times 1 − a: what one unit of D changes along its z."""
        masks = self.masks(tau)
        slopes, offsets = self.slopes(masks, D)
        _, _, pulled = self.model.first_order(self.theta, slopes, offsets)
        kept = [(1.0 - a) * one for one, a in zip(pulled, self.model.kinds)]
        return torch.cat([self.theta[:0], *(one[mask] for one, mask in zip(kept, masks))])

    def shares(self, masks: list[Tensor], D: Tensor) -> list[Tensor]:
        """D of every entry, of those off kinks by the side on which z is."""
        parts = zip(self.zs, masks, self._chosen(masks, D))
        return [(z > 0).to(z.dtype).masked_scatter(mask, own) for z, mask, own in parts]

    def slopes(self, masks: list[Tensor], D: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """S of every entry, and c such that S·z + c is what the activation gives."""
        slopes, offsets = [], []
        for z, share, a in zip(self.zs, self.shares(masks, D), self.model.kinds):
            slopes.append(a + (1.0 - a) * share)
            offsets.append(plain(z, a) - slopes[-1] * z)
        return slopes, offsets

    def least(self, tau: float, unit: float, guess: Tensor | None, enough: float) -> tuple[float, Tensor]:
        """(min ‖∇loss(D)‖/unit, D): least squares in D ∈ [0, 1], which is linear in the D of each layer.

        The search ends at ``enough`` or, where that is above 0, once it is slow.
        """
        masks = self.masks(tau)
        count = sum(int(mask.sum()) for mask in masks)
        if not count or unit <= 0.0:
            return float(self.gradient(masks, self.theta[:0]).norm()) / (unit or 1.0), self.theta[:0]
        start = torch.full((count,), 0.5, dtype=self.theta.dtype, device=self.theta.device) if guess is None else guess
        # In units of what one D changes: then the columns of the least squares are of like size.
        size = self.pulled(tau, start).abs()
        size = size.clamp_min(1e-3 * float(size.max()) or 1.0)
        size = size / size.max()
        best = float(self.gradient(masks, start).norm()) / unit, start
        if best[0] <= enough:
            return best

        def evaluate(x: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            nonlocal best
            D = (torch.as_tensor(x, device=self.theta.device) / size).clamp(0.0, 1.0)
            value, slope = self.gradient_and_slope(masks, D)
            if float(value.norm()) / unit < best[0]:
                best = (float(value.norm()) / unit, D)
            return 0.5 * float(value @ value) / unit**2, (slope / size / unit**2).cpu().numpy()

        top = size.cpu().numpy()
        rounding = 0.0 if enough > 0.0 else 1e-14
        options = {"maxfun": EVALUATIONS, "maxiter": EVALUATIONS, "maxcor": 30, "ftol": rounding, "gtol": rounding}
        seen: list[float] = []

        def end(_: np.ndarray[Any, Any]) -> None:
            seen.append(best[0])
            share = SLOW[0] if best[0] > 10.0 * STATIONARY else SLOW[1]
            slow = enough > 0.0 and len(seen) > PATIENCE and seen[-1] > (1.0 - share) * seen[-1 - PATIENCE]
            if best[0] <= enough or slow:
                raise StopIteration

        minimize(
            evaluate,
            (start * size).cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(np.zeros(count), top)),
            callback=end,
            options=options,
        )
        return best

    def least_eigenvalue(self, tau: float, D: Tensor, live: Tensor) -> float:
        """Of the Hessian for these D, on the directions that leave the kinks with 0 < D < 1 where they are."""
        masks = self.masks(tau)
        slopes, offsets = self.slopes(masks, D)
        inside = (D > INTERIOR) & (D < 1.0 - INTERIOR)
        active = [
            mask.masked_scatter(mask, own)
            for mask, own in zip(masks, inside.split([int(mask.sum()) for mask in masks]))
        ]
        H, G = self.model.second_order(self.theta, slopes, offsets, active, live)
        if len(G):
            _, s, V = torch.linalg.svd(G, full_matrices=True)
            rank = int((s > 1e-10 * s[0]).sum()) if float(s[0]) > 0 else 0
            H = V[rank:] @ H @ V[rank:].mT
        return float(torch.linalg.eigvalsh(H)[0]) if len(H) else math.inf
