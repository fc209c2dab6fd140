"""What :func:`isthmus.mechanics` gives: arrays over the steps of a path, and a state."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from isthmus import _html
from isthmus._checks import as_matrix, as_tensor, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._codec import Plain
from isthmus._errors import DataError, FileFormatError
from isthmus._strict_json import dumps
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.measures._identity_cost import GAMMA_SHARE, KernelNorm, fewer_columns, identity_cost_bounds
from isthmus.measures._stationarity import certify
from isthmus.objective import LOSSES, class_indices, cost
from isthmus.trace import LeakyTrace, activate, activation_derivative, with_ones

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from isthmus._result import Table

Array = np.ndarray[Any, np.dtype[np.float64]]

STATES = ("conserved", "not yet critical", "drifting", "not applicable")

#: Arrays over the positions ℓ = 0 … L; those with a second axis; all others are over the steps.
_POSITIONS = ("positions", "momentum_norm", "momentum_product", "size", "negative_share", "path")

_MATRICES = ("weight_spectra", "path")


@dataclass(frozen=True, eq=False)
class MechanicsArrays:
    """Arrays over the steps ℓ = 1 … L (pairing A_{ℓ-1} with B_ℓ), or over the positions ℓ = 0 … L.

    Attributes
    ----------
    positions : (L + 1,)
        p_0 = 0 … p_L = 1.
    rho : (L,)
    kinetic, potential, cross : (L,)
        (1/2L̃)‖∂_pA‖², −(L̃/2)‖A‖², ⟨∂_pA, A⟩ in the norm of K + γI.
    speed : (L,)
        ‖∂_pA‖_{K+γI}.
    identity_cost, identity_cost_exact : (L,)
        ‖A‖²_{K+γI} and ‖A‖²_K (∞ where A leaves the image of K).
    effective_dimension : (L,)
        ‖A‖_*²/‖A‖_F².
    gamma : (L,)
    hamiltonian : (L,)
        𝓗(A_{ℓ-1}, B_ℓ).
    force_norm : (L,)
        ‖B_ℓσ(A_{ℓ-1})ᵀ‖.
    weight_norm, bias_norm : (L,)
        ‖W_ℓ‖ (its bias included) and ‖b_ℓ‖.
    residual : (L,)
        ‖W_ℓ − L̃B_ℓσ(A_{ℓ-1})ᵀ‖/‖W_ℓ‖.
    residual_plain : (L,)
        The same with the momenta of the plain gradient; differs only where kinks were resolved.
    momentum_norm, momentum_product : (L + 1,)
        ‖B_ℓ‖ and Tr[B_ℓA_ℓᵀ].
    size, negative_share : (L + 1,)
        ‖A_ℓ‖ and ‖[A_ℓ]₋‖²/‖A_ℓ‖².
    weight_spectra : (L, w)
    path : (L + 1, 2)
        The path in its two leading principal directions.
    step_length : (L,)
        ‖A_ℓ − A_{ℓ-1}‖_F.
    """

    positions: Array
    rho: Array
    kinetic: Array
    potential: Array
    cross: Array
    speed: Array
    identity_cost: Array
    identity_cost_exact: Array
    effective_dimension: Array
    gamma: Array
    hamiltonian: Array
    force_norm: Array
    weight_norm: Array
    bias_norm: Array
    residual: Array
    residual_plain: Array
    momentum_norm: Array
    momentum_product: Array
    size: Array
    negative_share: Array
    weight_spectra: Array
    path: Array
    step_length: Array

    @property
    def hamiltonian_stable(self) -> Array:
        """𝓗_γ = kinetic + potential, (L,)."""
        with np.errstate(invalid="ignore"):
            return self.kinetic + self.potential

    @property
    def total_residual(self) -> float:
        """√(Σρ‖W − L̃Bσᵀ‖²/Σρ‖W‖²): the gradient of the loss relative to that of its ridge term."""
        if np.isinf(self.residual).any():
            return math.inf
        # Numbers read from a file may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            weights = self.rho * self.weight_norm**2
            off = np.where(self.weight_norm > 0, self.residual * self.weight_norm, 0.0)
            return float(np.sqrt((self.rho * off**2).sum() / weights.sum())) if weights.sum() > 0 else 0.0

    @property
    def spread(self) -> float:
        """(max 𝓗 − min 𝓗)/|median 𝓗| over the steps."""
        middle = abs(float(np.median(self.hamiltonian)))
        width = float(self.hamiltonian.max()) - float(self.hamiltonian.min())
        return width / middle if middle > 0 else (0.0 if width == 0 else math.inf)

    @property
    def path_length(self) -> float:
        """ℓ_γ = Σρ‖∂_pA‖_{K+γI}."""
        with np.errstate(invalid="ignore", over="ignore"):
            return float((self.rho * self.speed).sum())

    @property
    def length(self) -> float:
        """∫‖∂_pA‖_F dp = Σ‖A_ℓ − A_{ℓ-1}‖_F."""
        return float(self.step_length.sum())


@dataclass(frozen=True, eq=False)
class Mechanics(Plain):
    """The mechanics of one leaky ResNet on data.

    Attributes
    ----------
    state : {"conserved", "not yet critical", "drifting", "not applicable"}
    reason : str
    effective_depth, ridge, gamma_share, tolerance : float
    samples : int
    arrays : MechanicsArrays or None
        None when not applicable.
    kinks : float
        The tolerance within which kinks were resolved; 0 where they were not.
    """

    state: str
    reason: str
    effective_depth: float
    ridge: float
    gamma_share: float
    tolerance: float
    samples: int
    arrays: MechanicsArrays | None
    kinks: float = 0.0

    @property
    def rank_estimate(self) -> float:
        """−(2/L̃)·median 𝓗: the rank, approached from below as L̃ grows; NaN when not applicable."""
        if self.arrays is None or self.effective_depth <= 0:
            return math.nan
        return -2.0 / self.effective_depth * float(np.median(self.arrays.hamiltonian))

    @property
    def least_identity_cost(self) -> float:
        """min_p ‖A_p‖²_{K+γI}: the rank, approached from above up to what γ takes; NaN when not applicable."""
        return math.nan if self.arrays is None else float(self.arrays.identity_cost.min())

    @property
    def residual(self) -> float:
        """Relative residual of criticality over all steps; NaN when not applicable."""
        return math.nan if self.arrays is None else self.arrays.total_residual

    @property
    def spread(self) -> float:
        """Relative spread of 𝓗 over the steps; NaN when not applicable."""
        return math.nan if self.arrays is None else self.arrays.spread

    def summary(self) -> dict[str, Any]:
        """The numbers that matter, as plain data."""
        return {
            "state": self.state,
            "reason": self.reason,
            "effective_depth": self.effective_depth,
            "ridge": self.ridge,
            "gamma_share": self.gamma_share,
            "tolerance": self.tolerance,
            "samples": self.samples,
            "kinks": self.kinks,
            "rank_estimate": self.rank_estimate,
            "least_identity_cost": self.least_identity_cost,
            "residual": self.residual,
            "spread": self.spread,
            "path_length": math.nan if self.arrays is None else self.arrays.path_length,
            "length": math.nan if self.arrays is None else self.arrays.length,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data and arrays."""
        arrays = None
        if self.arrays is not None:
            arrays = {f.name: getattr(self.arrays, f.name) for f in dataclasses.fields(self.arrays)}
        head = {"format": "isthmus.mechanics", "version": 1, "sentence": self.sentence}
        return {**head, **self.summary(), "arrays": arrays}

    @classmethod
    def from_dict(cls, content: Any) -> Mechanics:
        """The result that :meth:`to_dict` describes; derived numbers are computed again."""
        who, do = "Mechanics.from_dict", "Pass what `Mechanics.to_dict` or `to_json` gave."
        found = (content.get("format"), content.get("version")) if isinstance(content, Mapping) else type(content)
        if found != ("isthmus.mechanics", 1):
            fail(who, "`content` must be isthmus.mechanics, version 1", found, do, error=FileFormatError)
        try:
            numbers = {
                name: float(content[name]) for name in ("effective_depth", "ridge", "gamma_share", "tolerance", "kinks")
            }
            state, reason, samples = str(content["state"]), str(content["reason"]), int(content["samples"])
            arrays = None if content["arrays"] is None else _arrays(content["arrays"])
            if not all(map(math.isfinite, numbers.values())) or (arrays and not numbers["effective_depth"] > 1e-100):
                raise ValueError(f"the numbers {numbers}")
            if state not in STATES or (arrays is None and state != STATES[-1]):
                raise ValueError(f"the state {state!r:.40}{'' if arrays else ' without arrays'}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            got = f"{type(error).__name__}: {error}"
            fail(who, "every field must be there and of its type", got, do, error=FileFormatError)
        return cls(state=state, reason=reason, samples=samples, arrays=arrays, **numbers)

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON; numbers that are not finite as their names."""
        return dumps("Mechanics.to_json", self.to_dict())

    def plot(self, figure: Figure | None = None) -> Figure:
        """The path, the spectra of its weights, energies and residual along it, as a matplotlib figure."""
        from isthmus.plotting.mechanics import plot

        return plot(self, figure)

    def to_frame(self) -> pd.DataFrame:
        """One row for each step, as a pandas DataFrame."""
        import pandas as pd

        if self.arrays is None:
            return pd.DataFrame()
        a = self.arrays
        steps = [f.name for f in dataclasses.fields(a) if getattr(a, f.name).shape == a.rho.shape]
        columns = {"p": a.positions[:-1], **{name: getattr(a, name) for name in steps}}
        return pd.DataFrame(columns, index=pd.RangeIndex(1, len(a.rho) + 1, name="step"))

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.arrays is None:
            return f"Mechanics not applicable: {self.reason}."
        return (
            f"{self.state.capitalize()}: −(2/L̃)𝓗 = {self.rank_estimate:.3g}, least cost of identity "
            f"{self.least_identity_cost:.3g}; {self.reason}."
        )

    @property
    def verdict(self) -> str:
        """The state."""
        return self.state

    @property
    def reasons(self) -> tuple[str, ...]:
        """None: the sentence has the reason."""
        return ()

    def tables(self) -> list[Table]:
        """Every step."""
        from isthmus.plotting.mechanics import steps

        return [] if self.arrays is None else [steps(self.arrays)]

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        shown = {k: v for k, v in self.summary().items() if k not in ("state", "reason")}
        rows = [[_html.prose(key.replace("_", " ")), _html.number(value)] for key, value in shown.items()]
        return _html.result(self, _html.table(["quantity", "value"], rows))


def _arrays(content: Mapping[str, Any]) -> MechanicsArrays:
    """From plain data; the shapes must fit together."""
    names = [f.name for f in dataclasses.fields(MechanicsArrays)]
    arrays = {name: np.asarray(content[name], dtype=np.float64) for name in names}
    layers = len(arrays["rho"])
    for name, array in arrays.items():
        length = layers + 1 if name in _POSITIONS else layers
        if array.ndim != 1 + (name in _MATRICES) or len(array) != length or layers < 1 or 0 in array.shape:
            raise ValueError(f"{name} of shape {array.shape} for {layers} steps")
    rho, positions = arrays["rho"], arrays["positions"]
    if not (rho > 0).all() or not np.isfinite(rho.sum()) or not (np.isfinite(positions).all() and positions[-1] > 0):
        raise ValueError("the lengths and positions of the steps are no such numbers")
    if arrays["path"].shape[1] != 2:
        raise ValueError(f"path of shape {arrays['path'].shape}")
    return MechanicsArrays(**arrays)


# ---- Q-energy: momenta, energies and Hamiltonian of a path of representations; discretely A_{ℓ-1} pairs with B_ℓ


def last_momentum(trace: LeakyTrace, Y: Tensor, lam: float, *, loss: str = "mse", samples: int | None = None) -> Tensor:
    """B_L = −(1/λ)∂C/∂A_L, (w, N); arguments as for :func:`momenta`."""
    check_number("momenta", "lam", lam, low=0.0, low_open=True)
    outputs = trace.outputs.detach().requires_grad_()
    with torch.enable_grad():
        share = trace.samples / (trace.samples if samples is None else samples)
        (gradient,) = torch.autograd.grad(share * cost(outputs, Y, loss), outputs)
    return -(gradient @ trace.W_out).mT / lam


@cites("hamiltonian2024", "§1.5, B_p", ids=("Q-energy",))
def momenta(
    trace: LeakyTrace,
    Y: Tensor,
    lam: float,
    *,
    loss: str = "mse",
    samples: int | None = None,
    derivatives: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """B_ℓ = −(1/λ)∂C/∂A_ℓ, ℓ = 0 … L, each (w, N): one backward pass along the path.

    B_{ℓ-1} = (1 − ρ_ℓL̃)B_ℓ + ρ_ℓ σ̇(A_{ℓ-1}) ⊙ (W_ℓᵀB_ℓ), the last row of W_ℓᵀ (the bias) left out.

    Parameters
    ----------
    trace : LeakyTrace
    Y : Tensor (N, d_out), or class indices (N,)
    lam : float
        λ > 0 of the paper: 2L̃ times our ridge.
    samples : int, optional
        N in the cost, when ``trace`` holds only part of the samples.
    derivatives : sequence of Tensor (N, w), optional
        D ∈ [0, 1] of every entry of A_0 … A_{L-1}, with σ̇ = a + (1 − a)D: at kinks another choice than PyTorch's, as
        :func:`~isthmus.measures.stationarity` makes it.
    """
    B = last_momentum(trace, Y, lam, loss=loss, samples=samples)
    Bs = [B]
    L_tilde, width = trace.effective_depth, trace.width
    for ell in range(trace.depth, 0, -1):
        rho = float(trace.rho[ell - 1])
        pulled = trace.Ws[ell - 1][:, :width].mT @ B
        if derivatives is None or trace.slope == 1.0:
            slopes = activation_derivative(trace.A(ell - 1), trace.slope)
        else:
            slopes = trace.slope + (1.0 - trace.slope) * derivatives[ell - 1].mT
        B = (1.0 - rho * L_tilde) * B + rho * slopes * pulled
        Bs.append(B)
    return Bs[::-1]


@cites("hamiltonian2024", "§1.5", ids=("Q-energy",))
def hamiltonian(A: Tensor, B: Tensor, effective_depth: float, *, slope: float = 0.0, bias: float = 1.0) -> float:
    """𝓗(A, B) = (L̃/2)‖Bσ(A)ᵀ‖² − L̃Tr[BAᵀ], for A and B of shape (w, N)."""
    S = with_ones(activate(A, slope), bias)
    return effective_depth * (0.5 * float((B @ S.mT).square().sum()) - float((A * B).sum()))


def flow(
    A: Tensor, B: Tensor, effective_depth: float, *, slope: float = 0.0, bias: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(∂_pA, ∂_pB) of the Hamiltonian dynamics: L̃(Bσ(A)ᵀσ(A) − A) and −L̃(σ̇(A)⊙[σ̄(A)BᵀB] − B).

    Departs from the paper in notation only: σ(A)BᵀB has a last row, that of the ones, which drops out of ∂_pB.
    """
    S = with_ones(activate(A, slope), bias)
    inner = activate(A, slope) @ B.mT @ B
    return (
        effective_depth * (B @ S.mT @ S - A),
        -effective_depth * (activation_derivative(A, slope) * inner - B),
    )


@dataclass(frozen=True)
class StepEnergies:
    """Energies of one step, in the norm of K + γI.

    Attributes
    ----------
    kinetic : float
        (1/2L̃)‖∂_pA‖².
    potential : float
        −(L̃/2)‖A‖².
    cross : float
        ⟨∂_pA, A⟩.
    speed : float
        ‖∂_pA‖.
    identity_cost : float
        ‖A‖².
    gamma : float
    """

    kinetic: float
    potential: float
    cross: float
    speed: float
    identity_cost: float
    gamma: float

    @property
    def hamiltonian(self) -> float:
        """𝓗_γ = kinetic + potential."""
        return self.kinetic + self.potential


@cites("hamiltonian2024", "§1.3 and Thm. 4", ids=("Q-energy",))
def step_energies(
    S: Tensor, A: Tensor, dA: Tensor, effective_depth: float, gamma: float, norm: KernelNorm | None = None
) -> StepEnergies:
    """Kinetic and potential energy and their cross term at A moving by ∂_pA, in the norm of K + γI, K = SᵀS.

    Their combination potential⁻ + cross + kinetic, (L̃/2)‖A‖² + ⟨∂_pA, A⟩ + (1/2L̃)‖∂_pA‖², is (1/2L̃)‖L̃A + ∂_pA‖².

    Parameters
    ----------
    S : Tensor (w + 1, N)
        σ(A).
    A, dA : Tensor (w, N)
    gamma : float
        0 for the unstabilised energies, ∞ where A or ∂_pA leave the image of K.
    norm : KernelNorm, optional
        That of ``S``, if there already is one.
    """
    own = KernelNorm(S) if norm is None else norm
    coi, moving = own.square(A, gamma), own.square(dA, gamma)
    return StepEnergies(
        kinetic=moving / (2.0 * effective_depth),
        potential=-0.5 * effective_depth * coi,
        cross=own.product(dA, A, gamma),
        speed=moving**0.5,
        identity_cost=coi,
        gamma=gamma,
    )


@cites("hamiltonian2024", "§1.3", ids=("Q-energy",))
def lagrangian_weights(trace: LeakyTrace, ell: int) -> Tensor:
    """W = (L̃A + ∂_pA)σ(A)⁺ of step ℓ, (w, w + 1): the smallest weights that take A_{ℓ-1} to A_ℓ."""
    moved = trace.effective_depth * trace.A(ell - 1) + trace.derivative(ell)
    return KernelNorm(trace.sigma_A(ell - 1), eps=trace.source_eps).weights(moved)


# ---- The mechanics of a leaky ResNet on data: energies, Hamiltonian, momenta and criticality, step by step


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
    effective_depth: float | None = None,
    gamma_share: float = GAMMA_SHARE,
    tolerance: float = TOLERANCE,
    kinks: float = 0.0,
    batch_size: int | None = None,
) -> Mechanics:
    """Energies, momenta, Hamiltonian and criticality of a leaky ResNet at every step of its path.

    A plain ResNet (L̃ = 0) without biases is read as the leaky one that it is, exactly, when its outputs are scaled down
    (:func:`as_leaky`).

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
    effective_depth : float, optional
        L̃ that a plain ResNet is read with, below its number of steps; by default :func:`output_depth`, for which the
        path ends as large as it began. Not for networks that have an L̃ of their own.
    gamma_share : float, default 1e-3
        γ_ℓ = ``gamma_share``·‖K_ℓ‖_op of the stable energies.
    tolerance : float, default 0.05
        Relative residual and relative spread of 𝓗 up to which ``state`` is ``"conserved"``.
    kinks : float, default 0
        Above 0, the derivatives at entries within this share of their layer's scale of a kink are those of
        :func:`~isthmus.measures.stationarity`, and the residual is its: at a minimum on kinks the plain gradient does
        not vanish. Needs all representations in memory at once. ``residual_plain`` keeps the other.
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
    inputs, targets = _checked_data(who, net, X, Y, loss)
    if batch_size is not None:
        check_integer(who, "batch_size", batch_size, low=1)
    if effective_depth is not None:
        check_number(who, "effective_depth", effective_depth, low=0.0, low_open=True, high=float(net.layers))
        if net.effective_depth > 0.0:
            must, fix = "`effective_depth` is for a plain ResNet", "Leave it out: the network has its own."
            fail(who, must, f"{effective_depth:g} for a network with {net.effective_depth:g}", fix)
    plain_resnet = net.effective_depth == 0.0 and ridge > 0.0 and not net.bias
    L_tilde = net.effective_depth
    if plain_resnet:
        L_tilde = output_depth(net, inputs) if effective_depth is None else effective_depth

    def result(state: str, reason: str, arrays: MechanicsArrays | None = None) -> Mechanics:
        return Mechanics(state, reason, L_tilde, ridge, gamma_share, tolerance, len(inputs), arrays, kinks)

    why = _why_not(L_tilde, ridge, plain_resnet)
    if why:
        return result("not applicable", why)
    # Every representation and momentum of a chunk is alive at once.
    rows = batch_size or chunk_rows(len(inputs), 8.0 * 6 * net.width * (net.layers + 1), 4 * CHUNK_BYTES)
    if kinks > 0.0 and rows < len(inputs):
        fix = "Pass kinks=0, fewer samples, or a larger `batch_size` if there is memory for it."
        fail(who, f"`kinks` > 0 needs all {len(inputs)} samples at once", f"batches of {rows}", fix)
    sums, lam, reading = _Sums(net.layers), 2.0 * L_tilde * ridge, None
    for part, answers in zip(inputs.split(rows), targets.split(rows)):
        trace = net.trace(part)
        if plain_resnet:
            reading = as_leaky(trace, L_tilde)
            trace, lam = reading.trace, 2.0 * L_tilde * ridge * reading.ridge_factor
        plain = momenta(trace, answers, lam, loss=loss, samples=len(inputs))
        chosen = plain
        if kinks > 0.0 and all(bool(B.isfinite().all()) for B in plain):
            # Of all weights, whether they were trained or not.
            free = copy.deepcopy(net).double().requires_grad_()
            found = certify(
                free, inputs, targets, ridge=ridge, loss=loss, kink_tolerance=kinks, hessian=False, enough=0.0
            )
            chosen = momenta(trace, answers, lam, loss=loss, derivatives=found.derivatives)
        sums.add(trace, chosen, plain)
    if not sums.finite:
        return result(
            "not applicable", "squares of weights, representations or momenta overflow: there are no energies"
        )
    arrays = sums.arrays(gamma_share)
    state, reason = _judge(arrays, tolerance)
    if reading is not None:
        reason += f". A plain ResNet, read with L̃ = {L_tilde:.3g} and outputs scaled by {reading.scale:.3g}"
    reversing = tuple(net.reversing)
    if reversing:
        reason += f". ρ·L̃ ≥ 1 in {len(reversing)} of {net.layers} steps"
    return result(state, reason, arrays)


def _checked_data(who: str, net: Any, X: Any, Y: Any, loss: str) -> tuple[Tensor, Tensor]:
    if not isinstance(getattr(net, "effective_depth", None), float) or not callable(getattr(net, "trace", None)):
        fix = "For the cost of identity of a fully connected network use isthmus.measures.identity_costs(net.trace(X))."
        fail(who, "`net` must be a LeakyResNet", type(net).__name__, fix)
    inputs = as_matrix(who, "X", X, columns=net.d_in)
    if loss == "mse":
        # Energies that overflow are a state with a reason.
        targets = as_matrix(who, "Y", Y, columns=net.d_out, any_size=True)
    else:
        targets = as_tensor(who, "Y", Y)
        targets = class_indices(who, targets) if targets.ndim == 1 or targets.shape[1:] == (1,) else targets
    if len(targets) != len(inputs):
        got = f"{len(inputs)} and {len(targets)}"
        fail(who, "`X` and `Y` must have the same number of rows", got, "Align them.", error=DataError)
    return inputs, targets


def _why_not(L_tilde: float, ridge: float, plain_resnet: bool) -> str:
    if ridge <= 0.0:
        return "ridge is 0: the momenta −(1/λ)∂C/∂A are not defined"
    if L_tilde <= 0.0 and plain_resnet:
        return "the outputs of this plain ResNet are no larger than its inputs: it has no effective depth"
    if L_tilde <= 0.0:
        return "effective_depth is 0: with biases a plain ResNet is no leaky one, λ/2L̃ and the momenta are not defined"
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
            # and potential cancel on what only leaks.
            found = step_energies(S, A, dA, L_tilde, gamma_share * norm.top or 1.0, norm)
            rows.append(
                {
                    **dataclasses.asdict(found),
                    # There a representation has no finite cost.
                    "identity_cost": found.identity_cost if norm.top > 0 else norm.square(A),
                    "identity_cost_exact": norm.square(A),
                    "effective_dimension": identity_cost_bounds(A)[0],
                    "force_norm": float(force.norm()),
                    "weight_norm": float(W.norm()),
                    "bias_norm": float(W[:, trace.width :].norm()),
                    "residual": _relative(W, L_tilde * force),
                    "residual_plain": _relative(W, L_tilde * plain),
                }
            )
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        square, negative, momentum, same, paired, moved = self.numbers.numpy()
        return MechanicsArrays(
            **columns,
            positions=trace.positions.numpy(),
            rho=trace.rho.numpy(),
            hamiltonian=L_tilde * (0.5 * columns["force_norm"] ** 2 - paired[1:]),
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


# ---- M-resnet: a plain ResNet is a leaky one with its outputs scaled down (the leak shift)


@dataclass(frozen=True, eq=False)
class LeakyReading:
    """A plain ResNet as a leaky one.

    Attributes
    ----------
    trace : LeakyTrace
        The same inputs and outputs; representations are s_ℓA_ℓ, s_ℓ = Π_{m≤ℓ}(1 − ρ'_mL̃).
    scale : float
        s_L, which tends to e^{−L̃} as steps get short: what the end of the path is multiplied by. ``trace.W_out``
        divides by it.
    ridge_factor : float
        What multiplies the ridge, so that both have the same penalty.
    """

    trace: LeakyTrace
    scale: float
    ridge_factor: float


@cites("hamiltonian2024", "§1.2, output scaling", ids=("M-resnet",))
def as_leaky(trace: LeakyTrace, effective_depth: float) -> LeakyReading:
    """The leaky ResNet of depth L̃ that a plain one without biases is, exactly, step by step.

    α_ℓ = α_{ℓ-1} + ρW_ℓσ(α_{ℓ-1}) times s_ℓ = Π_{m≤ℓ}(1 − ρ'_mL̃) is a leaky step of length ρ' with
    W'_ℓ = (1 − ρ'_ℓL̃)(ρ_ℓ/ρ'_ℓ)W_ℓ, because σ is positively homogeneous. The lengths are those with
    ρ'_ℓ‖W'_ℓ‖² = κρ_ℓ‖W_ℓ‖² for one κ and Σρ' = 1 (equidistant ones stay): the penalties are proportional, so that
    critical points are critical points and minima minima, at ridge' = ridge/κ. (Departs from the paper, where W stays
    the same: that holds up to O(ρ).)

    Parameters
    ----------
    trace : LeakyTrace
        Of a network with effective depth 0 and no bias.
    effective_depth : float
        L̃ in (0, L).
    """
    who = "as_leaky"
    c = check_number(who, "effective_depth", effective_depth, low=0.0, low_open=True)
    if trace.effective_depth != 0.0 or trace.bias or not c < trace.depth:
        got = f"L̃ = {trace.effective_depth:g}, bias {trace.bias:g}, to be read with {c:g} on {trace.depth} steps"
        fail(who, "the network must be a plain ResNet without biases, of more than L̃ steps", got, "Choose a smaller L̃.")
    lengths, kappa = _leaking_lengths(trace.rho, c)
    keep = 1.0 - lengths * c
    scales = torch.cat([keep.new_ones(1), keep.cumprod(0)])
    factors = keep * trace.rho / lengths
    shifted = dataclasses.replace(
        trace,
        Ws=tuple(factor * W for factor, W in zip(factors, trace.Ws)),
        rho=lengths,
        representations=tuple(scale * R for scale, R in zip(scales, trace.representations)),
        effective_depth=c,
        W_out=trace.W_out / scales[-1],
    )
    return LeakyReading(shifted, float(scales[-1]), 1.0 / kappa)


def _leaking_lengths(rho: Tensor, c: float) -> tuple[Tensor, float]:
    """ρ' with Σρ' = Σρ and (1 − ρ'c)²ρ/ρ' = κ, and κ, by bisection on log κ."""

    def lengths(kappa: float) -> Tensor:
        # The root below 1/c of (1 − xc)² = qx, q = κ/ρ.
        q = kappa / rho
        return 2.0 / (2.0 * c + q + (q * (q + 4.0 * c)).sqrt())

    low, high, whole = 1e-300, 1e300, float(rho.sum())
    for _ in range(200):
        middle = math.sqrt(low) * math.sqrt(high)
        if float(lengths(middle).sum()) > whole:
            low = middle
        else:
            high = middle
    return lengths(high), high


@cites("hamiltonian2024", "§1.2, output scaling", ids=("M-resnet",))
@torch.no_grad()
def output_depth(net: Any, X: Any) -> float:
    """L̃ with which a plain ResNet is read so that its path ends as large as it begins, Π(1 − ρ'_ℓL̃)·‖A_L‖ = ‖A_0‖.

    log(‖A_L‖/‖A_0‖) up to O(ρ), and 0 where the path does not grow. Under the cross-entropy outputs grow during a
    training, and with them this effective depth.
    """
    inputs = as_matrix("output_depth", "X", X, columns=net.d_in)
    rows = chunk_rows(len(inputs), 8.0 * 2 * net.width * (net.layers + 1), CHUNK_BYTES)
    start = end = 0.0
    for part in inputs.split(rows):
        path = net.trace(part).representations
        start, end = math.hypot(start, float(path[0].norm())), math.hypot(end, float(path[-1].norm()))
    if not end > start > 0.0:
        return 0.0
    rho, wanted = net.rho.cpu(), math.log(start) - math.log(end)
    low, high = 0.0, float(net.layers)
    for _ in range(100):
        c = (low + high) / 2.0
        if float((1.0 - c * _leaking_lengths(rho, c)[0]).log().sum()) > wanted:
            low = c
        else:
            high = c
    return low
