"""E-linear: the least norm of a linear network against its depth, and its expansion in 1/L."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter
from torch import Tensor

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.measures import linear_cost, linear_expansion
from isthmus.networks import FullyConnected
from isthmus.plotting.style import PALETTE, dress
from isthmus.runs import Outcome

#: Largest 2|log s|/L at which the leading term of a remainder dominates it enough to fit its exponent.
_ASYMPTOTIC = 0.25

_TERMS = (r"$L\,R_0$", r"$L\,R_0+R_1$", r"$L\,R_0+R_1+R_2/L$")

_COLOURS = (PALETTE["orange"], PALETTE["green"], PALETTE["blue"])


@cites("bottleneck2023", "§3, linear networks", ids=("Q-repcost",))
@dataclass(frozen=True, kw_only=True)
class LinearExpansion(Experiment):
    """R(A; L) = L·Σ sᵢ^{2/L} = L·R0 + R1 + R2/L + O(L⁻²), for a linear map A of given singular values.

    The least ‖θ‖² over linear networks W_L ⋯ W_1 = A is compared with the norm of a network that attains it,
    W_ℓ = U_ℓ S^{1/L} U_{ℓ-1}ᵀ with random U_ℓ, and with one, two and three terms of the expansion.
    """

    id: ClassVar[str] = "E-linear"
    title: ClassVar[str] = "Linear networks: least ‖θ‖² against depth, and its three-term expansion"
    paper: ClassVar[str] = "bottleneck2023"
    where: ClassVar[str] = "§3, R(A; L) and its expansion (formulas; the figure is ours)"
    convention: ClassVar[str] = "none needed: ‖θ‖² itself, no ridge"
    quick_seconds: ClassVar[float] = 2.0
    full_seconds: ClassVar[float] = 3.0

    singular_values: tuple[float, ...] = parameter(
        (6.0, 3.0, 1.5, 0.8), "singular values of A, all positive", low=1e-6, high=1e6
    )
    depths: tuple[int, ...] = parameter(
        (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256), "depths L", low=1, high=4096
    )
    inputs: int = parameter(10, "columns of A", low=1, high=2048)
    outputs: int = parameter(8, "rows of A", low=1, high=2048)
    width: int = parameter(12, "width of the hidden layers", low=1, high=2048)

    def __post_init__(self) -> None:
        super().__post_init__()
        k = len(self.singular_values)
        if k > min(self.inputs, self.outputs, self.width):
            must = "`inputs`, `outputs` and `width` must be at least the number of singular values"
            got = f"{self.inputs}, {self.outputs}, {self.width} for {k}"
            fail(self.id, must, got, "Raise them.")
        if len(self.depths) < 5 or list(self.depths) != sorted(set(self.depths)):
            fail(self.id, "`depths` must be at least 5 increasing integers", self.depths, "Sort or add some.")

    @classmethod
    def quick(cls) -> Self:
        """Shallower, on a smaller matrix."""
        return cls(depths=(2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), inputs=6, outputs=5, width=6)

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Exact cost, norm and error of the built network, and the expansion, for every depth."""
        generator = torch.Generator().manual_seed(self.seed)
        s = torch.tensor(sorted(self.singular_values, reverse=True), dtype=torch.float64)
        V, U = (_frame(n, len(s), generator) for n in (self.inputs, self.outputs))
        A = U * s @ V.mT
        expansion = linear_expansion(A)
        rows = []
        with progress(len(self.depths), self.id) as bar:
            for L in self.depths:
                net = _optimal(U, s, V, L, self.width, generator)
                norm = sum(float(W.detach().square().sum()) for W in net.Ws)
                with torch.no_grad():
                    image = net(torch.eye(self.inputs, dtype=torch.float64)).mT
                error = float((image - A).norm() / A.norm())
                terms = [expansion.at(L, terms=n) for n in (1, 2, 3)]
                rows.append((linear_cost(A, L), norm, error, *terms))
                bar.advance(norm=norm)
        table = np.array(rows)
        return {
            "A": A.numpy(),
            "singular_values": s.numpy(),
            "depths": np.array(self.depths),
            "cost": table[:, 0],
            "built_norm": table[:, 1],
            "built_error": table[:, 2],
            "approximations": table[:, 3:].T,
            "expansion": np.array([expansion.R0, expansion.R1, expansion.R2], dtype=np.float64),
        }

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Built norm, built function, rank as a slope, and the order of each remainder."""
        cost, L = arrays["cost"], arrays["depths"]
        off = float(np.max(np.abs(arrays["built_norm"] / cost - 1)))
        wrong = float(np.max(arrays["built_error"]))
        R0, _, R2 = arrays["expansion"]
        slope = float((cost[-1] - cost[-2]) / (L[-1] - L[-2]))
        # The expansion itself says how far a finite difference is from R0: R2/(L·L').
        allowed = float(2 * R2 / (L[-1] * L[-2])) + 1e-9
        return [
            _judge("the built network attains L·Σs^{2/L} (relative difference)", off <= 1e-12, off, 0.0),
            _judge("the built network computes A (relative error)", wrong <= 1e-12, wrong, 0.0),
            _judge("the slope of ‖θ‖² in L is R0 = rank", abs(slope - R0) <= allowed, slope, float(R0)),
            self._order(arrays, terms=2),
            self._order(arrays, terms=3),
        ]

    def _order(self, arrays: Mapping[str, np.ndarray], *, terms: int) -> Outcome:
        expected = terms - 1
        name = f"the remainder after {terms} terms decays like L^-{expected} (fitted exponent)"
        fit = _fit(arrays, terms)
        if fit is None:
            return Outcome(name, "agrees", 0.0, float(expected), "the remainder is zero up to rounding")
        exponent = -fit[0]
        if abs(exponent - expected) <= 0.1:
            return Outcome(name, "agrees", exponent, float(expected))
        if exponent > expected:
            why = "it decays faster: the leading terms of these singular values nearly cancel"
            return Outcome(name, "differs", exponent, float(expected), why)
        spread = 2 * float(np.abs(np.log(arrays["singular_values"])).max()) / float(arrays["depths"][-4])
        if spread > _ASYMPTOTIC:
            why = f"the depths are too small for these singular values (2|log s|/L = {spread:.2g})"
            return Outcome(name, "undetermined", exponent, float(expected), why)
        return Outcome(name, "fails", exponent, float(expected))

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Left: ‖θ‖² against depth. Right: what each number of terms leaves."""
        left, right = figure.subplots(1, 2)
        _plot_cost(left, arrays)
        _plot_remainders(right, arrays)


def _judge(name: str, good: bool, value: float, expected: float) -> Outcome:
    return Outcome(name, "agrees" if good else "fails", value, expected)


def _frame(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Random orthonormal columns, (rows, columns)."""
    gaussian = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(gaussian).Q


def _optimal(U: Tensor, s: Tensor, V: Tensor, depth: int, width: int, generator: torch.Generator) -> FullyConnected:
    """W_ℓ = U_ℓ S^{1/L} U_{ℓ-1}ᵀ with U_0 = V, U_L = U: the linear network of least norm with product A."""
    frames = [V, *(_frame(width, len(s), generator) for _ in range(depth - 1)), U]
    root = s ** (1 / depth)
    return FullyConnected.from_weights(
        [after * root @ before.mT for before, after in zip(frames, frames[1:])], slope=1.0
    )


def _remainder(arrays: Mapping[str, np.ndarray], terms: int) -> np.ndarray:
    """|cost − expansion|, NaN where it is not above the rounding of the cost."""
    gap = np.abs(arrays["cost"] - arrays["approximations"][terms - 1])
    return np.where(gap > 1e-13 * arrays["cost"] * len(arrays["depths"]), gap, np.nan)


def _fit(arrays: Mapping[str, np.ndarray], terms: int) -> tuple[float, float] | None:
    """Slope and intercept of log remainder against log depth, four deepest; None if it vanishes."""
    gap, depths = _remainder(arrays, terms)[-4:], arrays["depths"][-4:]
    if np.isnan(gap).any():
        return None
    slope, intercept = np.polyfit(np.log(depths), np.log(gap), 1)
    return float(slope), float(intercept)


def _plot_cost(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """‖θ‖² at small and moderate depth, where the approximations differ visibly."""
    depths, cost = arrays["depths"], arrays["cost"]
    shown = depths <= max(16, depths[4])
    R0, R1, R2 = arrays["expansion"]
    fine = np.linspace(depths[0], depths[shown][-1], 300)
    curves = (fine * R0, fine * R0 + R1, fine * R0 + R1 + R2 / fine)
    for curve, label, colour, dash in zip(curves, _TERMS, _COLOURS, (":", "--", "-")):
        axes.plot(fine, curve, dash, color=colour, linewidth=2, label=label)
    axes.plot(
        depths[shown],
        cost[shown],
        "o",
        color=PALETTE["black"],
        markersize=5.5,
        label=r"exact, $L\,\Sigma_i\,s_i^{2/L}$",
        zorder=4,
    )
    axes.plot(
        depths[shown],
        arrays["built_norm"][shown],
        "o",
        markerfacecolor="none",
        markeredgecolor=PALETTE["vermilion"],
        markersize=10,
        markeredgewidth=1.3,
        label="network built by hand",
        zorder=3,
    )
    axes.set_xlim(0, depths[shown][-1] * 1.04)
    axes.set_ylim(0, None)
    dress(axes, title=r"Least norm of a linear network", x=r"depth $L$", y=r"$\|\theta\|^2$")
    numbers = f"$R_0={R0:.0f}$,  $R_1={R1:.2f}$,  $R_2={R2:.2f}$"
    axes.text(0.97, 0.05, numbers, transform=axes.transAxes, ha="right", fontsize=10)
    axes.legend(frameon=False, fontsize=10, loc="upper left")


def _plot_remainders(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    depths = arrays["depths"]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for terms, colour, marker in zip((1, 2, 3), _COLOURS, "sDo"):
        gap = _remainder(arrays, terms)
        fit = _fit(arrays, terms)
        label = f"after {terms} term" + "s" * (terms > 1)
        if fit is not None:
            slope, intercept = fit
            label += f":  slope ${slope:.2f}$"
            axes.plot(depths, np.exp(intercept) * depths**slope, "-", color=colour, linewidth=1.2, alpha=0.7)
        axes.plot(depths, gap, marker, color=colour, markersize=5.5, label=label)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    dress(axes, title="What the expansion leaves", x=r"depth $L$", y=r"|exact $-$ expansion|")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=10, loc="lower left", title="slopes of the four deepest", alignment="left")
