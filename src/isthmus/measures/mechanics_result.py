"""What :func:`isthmus.mechanics` gives: arrays over the steps of a path, and a state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._checks import fail
from isthmus._errors import FileFormatError
from isthmus._html import badge, card, heading, number, table, told
from isthmus._strict_json import dumps

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

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
class Mechanics:
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
    def from_dict(cls, content: Mapping[str, Any]) -> Mechanics:
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
        from isthmus.plotting.mechanics import draw_mechanics

        return draw_mechanics(self.to_dict(), figure)

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

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        shown = {k: v for k, v in self.summary().items() if k not in ("state", "reason")}
        rows = [[told(key.replace("_", " ")), number(value)] for key, value in shown.items()]
        return card(heading(badge(self.state), told(self.reason)), table(["quantity", "value"], rows))


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
