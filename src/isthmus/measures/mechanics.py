"""The mechanics of a leaky ResNet on data: energies, Hamiltonian, momenta and criticality, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus._checks import as_matrix, as_tensor, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.measures.energies import momenta, step_energies
from isthmus.measures.identity_cost import GAMMA_SHARE, identity_cost_bounds
from isthmus.measures.kernel_norms import KernelNorm, fewer_columns
from isthmus.measures.kinks import resolved_momenta
from isthmus.measures.mechanics_result import Mechanics, MechanicsArrays
from isthmus.objective import LOSSES, class_indices
from isthmus.trace import LeakyTrace

#: Relative residual of W = L̃Bσ(A)ᵀ, and relative spread of 𝓗, up to which it is called conserved.
TOLERANCE = 0.05


@cites("hamiltonian2024", "§1.5, §2.1 and Thm. 4", ids=("Q-energy", "Q-coi"))
def mechanics(
    net: Any,
    X: Any,
    Y: Any,
    *,
    ridge: float,
    loss: str = "mse",
    gamma_share: float = GAMMA_SHARE,
    tolerance: float = TOLERANCE,
    kinks: float = 0.0,
    batch_size: int | None = None,
) -> Mechanics:
    """Energies, momenta, Hamiltonian and criticality of a leaky ResNet at every step of its path.

    Parameters
    ----------
    net : LeakyResNet
        Not changed.
    X : array (N, d_in)
    Y : array (N, d_out), or class indices (N,) for ``loss="cross_entropy"``
        The targets it was trained on: momenta are gradients of the cost.
    ridge : float
        It was trained with. λ of the paper is 2L̃·ridge.
    loss : {"mse", "cross_entropy"}
    gamma_share : float, default 1e-3
        γ_ℓ = ``gamma_share``·‖K_ℓ‖_op of the stable energies.
    tolerance : float, default 0.05
        Relative residual and relative spread of 𝓗 up to which ``state`` is ``"conserved"``.
    kinks : float, default 0
        Above 0, momenta are :func:`~isthmus.measures.resolved_momenta` with this tolerance: at a minimum on kinks the
        plain gradient does not vanish. Needs all samples in memory at once. ``residual_plain`` keeps the other.
    batch_size : int, optional
        Samples at a time; by default as many as fit in a few hundred megabytes. The result does not depend on it.

    Returns
    -------
    Mechanics
        ``state`` is ``"conserved"``, ``"not yet critical"``, ``"drifting"`` (critical, but the steps are too long for
        𝓗 to be constant) or ``"not applicable"``, with a ``reason``.

    Examples
    --------
    >>> import torch, isthmus
    >>> generator = torch.Generator().manual_seed(0)
    >>> net = isthmus.LeakyResNet(3, 2, width=8, layers=6, generator=generator)
    >>> X = torch.randn(20, 3, generator=generator)
    >>> isthmus.mechanics(net, X, X[:, :2], ridge=1e-3).state
    'not yet critical'
    """
    who = "mechanics"
    check_choice(who, "loss", loss, LOSSES)
    check_number(who, "ridge", ridge, low=0.0)
    check_number(who, "gamma_share", gamma_share, low=0.0, low_open=True)
    check_number(who, "tolerance", tolerance, low=0.0)
    check_number(who, "kinks", kinks, low=0.0)
    L_tilde = getattr(net, "effective_depth", None)
    if not isinstance(L_tilde, float) or not callable(getattr(net, "trace", None)):
        fix = "For the cost of identity of a fully connected network use isthmus.measures.identity_costs(net.trace(X))."
        fail(who, "`net` must be a LeakyResNet", type(net).__name__, fix)
    inputs = as_matrix(who, "X", X, columns=net.d_in)
    if loss == "mse":
        targets = as_matrix(who, "Y", Y, columns=net.d_out)
    else:
        targets = as_tensor(who, "Y", Y)
        targets = class_indices(who, targets) if targets.ndim == 1 or targets.shape[1:] == (1,) else targets
    if len(targets) != len(inputs):
        fail(
            who,
            "`X` and `Y` must have the same number of rows",
            f"{len(inputs)} and {len(targets)}",
            "Align them.",
            error=DataError,
        )
    if batch_size is not None:
        check_integer(who, "batch_size", batch_size, low=1)
    why = _why_not(L_tilde, ridge)
    if why:
        return Mechanics("not applicable", why, L_tilde, ridge, gamma_share, tolerance, len(inputs), None, kinks)
    # Every representation and momentum of a chunk is alive at once.
    rows = batch_size or chunk_rows(len(inputs), 8.0 * 6 * net.width * (net.layers + 1), 4 * CHUNK_BYTES)
    if kinks > 0.0 and rows < len(inputs):
        fix = "Pass kinks=0, fewer samples, or a larger `batch_size` if there is memory for it."
        fail(who, f"`kinks` > 0 needs all {len(inputs)} samples at once", f"batches of {rows}", fix)
    sums, lam = _Sums(net.layers), 2.0 * L_tilde * ridge
    for part, answers in zip(inputs.split(rows), targets.split(rows)):
        trace = net.trace(part)
        plain = momenta(trace, answers, lam, loss=loss, samples=len(inputs))
        if kinks > 0.0:
            sums.add(trace, resolved_momenta(trace, answers, lam, loss=loss, tolerance=kinks), plain)
        else:
            sums.add(trace, plain, plain)
    if not sums.finite:
        why = "squares of weights, representations or momenta overflow: there are no energies"
        return Mechanics("not applicable", why, L_tilde, ridge, gamma_share, tolerance, len(inputs), None, kinks)
    arrays = sums.arrays(gamma_share)
    state, reason = _judge(arrays, tolerance)
    reversing = tuple(net.reversing)
    if reversing:
        reason += f". ρ·L̃ ≥ 1 in {len(reversing)} of {net.layers} steps"
    return Mechanics(state, reason, L_tilde, ridge, gamma_share, tolerance, len(inputs), arrays, kinks)


def _why_not(L_tilde: float, ridge: float) -> str:
    if L_tilde <= 0.0:
        return "effective_depth is 0: λ/2L̃ and the momenta are not defined for a plain ResNet"
    if ridge <= 0.0:
        return "ridge is 0: the momenta −(1/λ)∂C/∂A are not defined"
    return ""


def _judge(arrays: MechanicsArrays, tolerance: float) -> tuple[str, str]:
    if float(arrays.weight_norm.max()) == 0.0:
        return "not applicable", "all weights vanish: the path decays to zero and has no isthmus"
    residual, spread = arrays.total_residual, arrays.spread
    if not residual <= tolerance:
        return "not yet critical", f"W differs from L̃Bσ(A)ᵀ by {residual:.3g} of its norm (wanted {tolerance:g})"
    if not spread <= tolerance:
        return "drifting", (
            f"critical (residual {residual:.2g}), but 𝓗 varies by {spread:.3g} of its median: the steps are too long"
        )
    return "conserved", f"residual {residual:.2g}, and 𝓗 varies by {spread:.2g} of its median"


@dataclass
class _Sums:
    """What is summed over samples, for every step."""

    depth: int
    stacks: list[Tensor | None] = field(default_factory=list)
    forces: list[Tensor] = field(default_factory=list)
    plain: list[Tensor] = field(default_factory=list)
    first: LeakyTrace | None = None

    def __post_init__(self) -> None:
        self.stacks = [None] * self.depth
        size = self.depth + 1
        #: ‖A_ℓ‖², its negative part, ‖B_ℓ‖², Tr[B_ℓA_ℓᵀ], Tr[B_ℓA_{ℓ-1}ᵀ], ‖A_ℓ − A_{ℓ-1}‖²; the path's Gram matrix.
        self.numbers = torch.zeros(6, size, dtype=torch.float64)
        self.gram = torch.zeros(size, size, dtype=torch.float64)

    def add(self, trace: LeakyTrace, Bs: list[Tensor], plain: list[Tensor]) -> None:
        """Add the samples of ``trace``, with momenta ``Bs`` (and those of the plain gradient)."""
        if self.first is None:
            self.first = trace
            self.forces, self.plain = ([W.new_zeros(W.shape) for W in trace.Ws] for _ in range(2))
        path = torch.stack([R.reshape(-1) for R in trace.representations])
        self.gram += path @ path.mT
        for ell, B in enumerate(Bs):
            A = trace.A(ell)
            own = [A.square().sum(), A.clamp_max(0).square().sum(), B.square().sum(), (A * B).sum()]
            last = trace.A(ell - 1) if ell else A
            self.numbers[:, ell] += torch.stack([*own, (last * B).sum(), (A - last).square().sum()])
            if ell:
                S = trace.sigma_A(ell - 1)
                self.forces[ell - 1] += B @ S.mT
                self.plain[ell - 1] += plain[ell] @ S.mT
                moved = [S, trace.A(ell - 1), trace.derivative(ell)]
                self.stacks[ell - 1] = fewer_columns(moved, self.stacks[ell - 1])

    @property
    def finite(self) -> bool:
        """Whether all squares that energies are made of are numbers."""
        assert self.first is not None
        leak = self.first.effective_depth
        forces = [(max(leak, 1.0) * F).square().sum() for F in (*self.forces, *self.plain)]
        weights = [W.square().sum() for W in self.first.Ws]
        moved = (self.numbers[5, 1:] / self.first.rho**2).sum()
        whole = [self.gram.abs().sum(), self.numbers.abs().sum(), moved, *forces, *weights]
        return bool(torch.isfinite(torch.stack(whole)).all())

    def arrays(self, gamma_share: float) -> MechanicsArrays:
        """Energies and the rest from the sums."""
        trace = self.first
        assert trace is not None
        L_tilde = trace.effective_depth
        rows = []
        for W, force, plain, stack in zip(trace.Ws, self.forces, self.plain, self.stacks):
            assert stack is not None
            S, A, dA = stack.split([W.shape[1], trace.width, trace.width])
            norm = KernelNorm(S, eps=trace.source_eps)
            # A vanishing kernel (no bias, nothing active) leaves no scale for γ: energies as with γ = 1, where kinetic
            # and potential cancel on what only leaks, but a representation that is there has no finite cost.
            gamma = gamma_share * norm.top or 1.0
            found = step_energies(S, A, dA, L_tilde, gamma, norm)
            coi = found.identity_cost if norm.top > 0 else norm.square(A)
            size = float(W.norm())
            rows.append(
                (
                    found.kinetic,
                    found.potential,
                    found.cross,
                    found.speed,
                    coi,
                    gamma,
                    norm.square(A),
                    identity_cost_bounds(A)[0],
                    float(force.norm()),
                    size,
                    float(W[:, trace.width :].norm()),
                    _relative(W, L_tilde * force),
                    _relative(W, L_tilde * plain),
                )
            )
        columns = [np.array(column) for column in zip(*rows)]
        kinetic, potential, cross, speed, coi, gamma, exact, dimension, force, size, bias, residual, plain = columns
        square, negative, momentum, same, paired, moved = self.numbers.numpy()
        H = L_tilde * (0.5 * force**2 - paired[1:])
        return MechanicsArrays(
            positions=trace.positions.numpy(),
            rho=trace.rho.numpy(),
            kinetic=kinetic,
            potential=potential,
            cross=cross,
            speed=speed,
            identity_cost=coi,
            identity_cost_exact=exact,
            effective_dimension=dimension,
            gamma=gamma,
            hamiltonian=H,
            force_norm=force,
            weight_norm=size,
            bias_norm=bias,
            residual=residual,
            residual_plain=plain,
            momentum_norm=np.sqrt(momentum),
            momentum_product=same,
            size=np.sqrt(square),
            negative_share=np.divide(negative, square, out=np.zeros_like(square), where=square > 0),
            weight_spectra=np.stack([torch.linalg.svdvals(W).numpy() for W in trace.Ws]),
            path=_plane(self.gram),
            step_length=np.sqrt(moved[1:]),
        )


def _relative(W: Tensor, other: Tensor) -> float:
    """‖W − W'‖/‖W‖; 0 where both vanish."""
    size, off = float(W.norm()), float((W - other).norm())
    return off / size if size > 0 else (0.0 if off == 0 else math.inf)


def _plane(gram: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The path in the plane of its two leading principal directions, (L + 1, 2)."""
    centred = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
    values, vectors = torch.linalg.eigh(centred)
    coordinates = vectors[:, -2:].flip(1) * values[-2:].flip(0).clamp_min(0.0).sqrt()
    # A fixed sign: the path ends to the right of, and above, where it begins.
    sign = torch.where(coordinates[-1] < coordinates[0], -1.0, 1.0)
    return (coordinates * sign).numpy()
