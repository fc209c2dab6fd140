"""F-ham-1: along a leaky ResNet the Hamiltonian is conserved and tells the rank; a bottleneck forms as L̃ grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata

from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.experiments.hamiltonian2024._trained import PathSettings, draw_estimates, draw_paths, paths
from isthmus.measures import read_spectrum
from isthmus.runs import Outcome

#: Residual of criticality up to which a network counts as critical; the same for the spread of 𝓗.
SMALL = 0.05

#: Share of the rank within which an estimate has approached its limit, and by which it may lie on the wrong side (γ
#: moves it); rank correlation of L̃ and a distance up to which that falls.
NEAR, ACROSS, FALLS = 0.25, 0.05, -0.7

#: Share of the smaller variation of its components up to which 𝓗 varies "much less"; quantiles over p between which
#: variation is measured: in the first layers the components blow up. Factor up to which a quantity is "relatively
#: constant".
MUCH_LESS, MOST, CONSTANT = 1.0 / 3.0, (0.1, 0.9), 2.0

RECOVERS = Quote(
    "mapping from dim. 20 to 5 to 20, the network recovers the true rank of k* = 5.",
    "hamiltonian2024, caption of Figure 1",
)
VISIBLE = Quote(
    "The bottleneck structure and separation of timescales becomes more visible as L̃ grows.",
    "hamiltonian2024, caption of Figure 1, (b,c,d)",
)
APPROACH = Quote(
    "the Hamiltonian (and the stable Hamiltonians) approach the rank k* = 3 from below, while the minimal COI "
    "approaches it from above",
    "hamiltonian2024, §2.1; the rank of the task is 5, as in the caption",
)
COMPONENTS = Quote(
    "We see in Figure 1d that the (stable) Hamiltonian are not exactly constant, but it still varies much less than "
    "its components, the kinetic and potential energies.",
    "hamiltonian2024, §2.1",
)
INSIDE = Quote(
    "We see how inside the bottleneck, the kinetic energy approaches zero and the COI approaches k*.",
    "hamiltonian2024, caption of Figure 1",
)
RELATIVELY = Quote(
    "Figure 3 shows how their respective magnitudes remains relatively constant as the effective depth L̃ grows.",
    "hamiltonian2024, App. B",
)
#: By how many directions more than the rank the paper itself has seen bottlenecks differ.
MORE, MORE_WORDS = 2, "the paper too: 'the number of dimensions that are kept inside the bottleneck can vary by 1 or 2'"


@dataclass(frozen=True, kw_only=True)
class LeakyPaths(Experiment):
    """Leaky ResNets of several effective depths on one task: the settings that F-ham-1 and F-ham-3 share.

    The cost is read as averaged over outputs (the appendix names PyTorch's mean squared error); with
    ``average_outputs=false`` it is summed, as printed in §1.1.
    """

    paper: ClassVar[str] = "hamiltonian2024"
    convention: ClassVar[str] = (
        "hamiltonian2024: mean square + (λ/2L̃)Σρ‖W‖²; ridge = λ/(2L̃) on √ρW, times d_out if averaged over outputs"
    )
    quick_seconds: ClassVar[float] = 8.0
    full_seconds: ClassVar[float] = 9000.0
    sweep_names: ClassVar[Mapping[str, str]] = {
        "effective_depth": "effective_depths",
        "ridge": "lam",
        "task_rank": "rank",
    }

    d_in: int = parameter(20, "inputs", source="paper", low=1, high=10_000)
    rank: int = parameter(5, "latent variables of the task", source="paper", low=1, high=1000)
    d_out: int = parameter(20, "outputs", source="paper", low=1, high=10_000)
    width: int = parameter(200, "w, of the path", source="paper", low=1, high=10_000)
    layers: int = parameter(50, "L, steps", source="paper", low=3, high=10_000)
    effective_depths: tuple[float, ...] = parameter(
        (1.0, 3.0, 7.0, 14.0, 20.0), "L̃ of each network", low=0.01, high=1e4
    )
    samples: int = parameter(1000, "N, training samples; as many are held out", source="paper", low=10, high=10**6)
    lam: float = parameter(2e-3, "λ", source="paper", low=1e-12, high=1e6)
    average_outputs: bool = parameter(True, "whether the cost is averaged over outputs")
    relu_latents: bool = parameter(True, "whether the task is a network with a layer of `rank` ReLU neurons")
    gamma_share: float = parameter(1e-3, "γ_0 of the stable energies", low=1e-12, high=1.0)
    steps: int = parameter(400, "quasi-Newton steps in each of the seven parts of a training", low=1, high=10**6)
    learning_rate: float = parameter(1e-3, "of Adam, at the beginning", low=1e-8, high=10.0)

    @classmethod
    def quick(cls) -> Self:
        """A smaller task of the same kind, fewer depths, a larger λ: a critical point within few steps."""
        return cls(
            d_in=6,
            rank=2,
            d_out=6,
            width=12,
            layers=16,
            effective_depths=(1.0, 9.0),
            samples=60,
            lam=3e-2,
            steps=80,
        )

    @classmethod
    def single(cls, *, quick: bool = False) -> Self:
        """The experiment with one network in place of several."""
        return (cls.quick() if quick else cls()).replace(effective_depths=(7.0,))

    def lasting(self) -> float:
        """A measure of the time it takes: steps of all networks together."""
        return float(len(self.effective_depths) * self.layers)

    def measured(self, arrays: Mapping[str, np.ndarray]) -> dict[str, float | int | bool | str]:
        """Of a single network: clear singular values in the middle, the two estimates of the rank, loss and cost."""
        if len(self.effective_depths) != 1:
            return {}
        reading = read_spectrum(arrays["weight_spectra"][0][self.layers // 2])
        return {
            "rank": int(reading.count) if reading.status == "clear" else float("nan"),
            "hamiltonian_rank": float(-2.0 / self.effective_depths[0] * np.median(arrays["hamiltonian"][0])),
            "identity_cost": float(arrays["identity_cost"][0].min()),
            **{name: float(arrays[name][0]) for name in ("loss", "cost", "test_error")},
            "converged": bool(arrays["converged"][0]),
        }

    @classmethod
    def spectrum_table(cls, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Singular values of the steps of a single network."""
        return arrays["weight_spectra"][0] if len(arrays["weight_spectra"]) == 1 else None

    @property
    def settings(self) -> PathSettings:
        """The parameters of the trainings."""
        return PathSettings(**{item.name: getattr(self, item.name) for item in fields(PathSettings)})

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train one network for each L̃, then its mechanics."""
        return {**paths(self.settings, progress), "effective_depths": np.array(self.effective_depths)}

    def critical(self, arrays: Mapping[str, np.ndarray]) -> Outcome:
        """Whether all networks are critical points, which every statement about mechanics is about."""
        residuals = arrays["total_residual"]
        reason = ", ".join(f"{r:.2g} at L̃ = {L:g}" for r, L in zip(residuals, self.effective_depths))
        name = "residual of criticality, the largest, at most"
        return condition(name, bool(residuals.max() <= SMALL), float(residuals.max()), SMALL, reason)


@cites("hamiltonian2024", "Figure 1", ids=("F-ham-1",))
@dataclass(frozen=True, kw_only=True)
class HamiltonianFigure1(LeakyPaths):
    """20 → 5 → 20 through adaptive leaky ResNets: −(2/L̃)𝓗 rises to 5, the least cost of identity falls to 5."""

    id: ClassVar[str] = "F-ham-1"
    title: ClassVar[str] = "Leaky ResNets: Hamiltonian, cost of identity and spectra along the path"
    where: ClassVar[str] = "Figure 1"
    figure_size: ClassVar[tuple[float, float]] = (16.0, 8.0)

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """The bottleneck of the deepest network, estimates of the rank over L̃, energies; beside them criticality."""
        depths, k = np.array(self.effective_depths), self.rank
        H = -2.0 / depths[:, None] * arrays["hamiltonian"]
        kinetic, potential = (2.0 / depths[:, None] * arrays[name] for name in ("kinetic", "potential"))
        statements = [
            self._rank(arrays["weight_spectra"][-1][self.layers // 2]),
            _approach(APPROACH, "−(2/L̃)𝓗, median over p", "from below", depths, np.median(H, axis=1), k, k),
            _approach(
                APPROACH, "least cost of identity", "from above", depths, arrays["identity_cost"].min(axis=1), k, k
            ),
            _approach(INSIDE, "least (2/L̃)·kinetic energy", "from above", depths, kinetic.min(axis=1), 0, k),
        ]
        at = f"L̃ = {depths[-1]:g}"
        varies, *parts = (float(np.ptp(np.quantile(one[-1], MOST))) for one in (H, kinetic, potential))
        share = varies / max(min(parts), 1e-300)
        name = f"{at}: variation of 𝓗 over p, as a share of the smaller of its components', at most"
        statements.append(COMPONENTS.judge(name, share <= MUCH_LESS, share, MUCH_LESS))
        if len(depths) > 1:
            outside = [_outside(s[self.layers // 2], k) for s in arrays["weight_spectra"]]
            name = f"squared singular values in the middle beyond the first {k}, share: at the largest L̃, the least"
            statements.append(VISIBLE.judge(name, outside[-1] < outside[0], outside[-1], outside[0]))
        spread = float(arrays["spread"][-1])
        critical = self.critical(arrays)
        constant = condition(f"{at}: spread of 𝓗 over p, at most", spread <= SMALL, spread, SMALL)
        return [*under([critical], statements), critical, constant]

    def _rank(self, spectrum: np.ndarray) -> Outcome:
        reading = read_spectrum(spectrum)
        name = f"L̃ = {self.effective_depths[-1]:g}: singular values that stand out in the middle"
        if reading.status != "clear":
            return RECOVERS.judge(name, None, None, self.rank, f"the spectrum is {reading.status}")
        more = 0 < reading.count - self.rank <= MORE
        why = MORE_WORDS if more else ""
        good, otherwise = reading.count == self.rank, "differs" if more else "fails"
        return RECOVERS.judge(name, good, reading.count, self.rank, why, otherwise=otherwise)

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """(a) the estimates against L̃; beside it spectra and energies along up to three paths."""
        draw_estimates(figure, arrays, rank=self.rank)


@cites("hamiltonian2024", "Figure 3", ids=("F-ham-3",))
@dataclass(frozen=True, kw_only=True)
class HamiltonianFigure3(LeakyPaths):
    """Lengths of the paths and sizes of momenta stay bounded as L̃ grows: what Theorem 4 asks for."""

    id: ClassVar[str] = "F-ham-3"
    title: ClassVar[str] = "Leaky ResNets: path length and momenta against the effective depth"
    where: ClassVar[str] = "Figure 3"
    figure_size: ClassVar[tuple[float, float]] = (13.0, 4.6)

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Largest over least of each quantity, over all L̃."""
        growth = max(self.effective_depths) / min(self.effective_depths)
        statements = []
        for name, values in (
            ("path length ∫‖∂_pA‖dp", arrays["length"]),
            ("largest ‖B_p‖", arrays["momentum_norm"].max(axis=1)),
            ("largest ‖B_pσ(A_p)ᵀ‖", arrays["force_norm"].max(axis=1)),
        ):
            ratio = float(values.max() / max(values.min(), 1e-300))
            way = "grows" if values[-1] > values[0] else "falls"
            why = f"it {way} from {values[0]:.3g} to {values[-1]:.3g} as L̃ grows {growth:.3g}-fold"
            text = f"{name}: largest over least, at most"
            statements.append(RELATIVELY.judge(text, ratio <= CONSTANT, ratio, CONSTANT, why, otherwise="differs"))
        critical = self.critical(arrays)
        return [*under([critical], statements), critical]

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Three panels over L̃."""
        draw_paths(figure, arrays)


def _approach(
    words: Quote, name: str, side: str, depths: np.ndarray, values: np.ndarray, limit: int, unit: int
) -> Outcome:
    """Whether values lie on one side of a limit, come nearer to it as L̃ grows, and are near at the end."""
    distance = np.abs(values - limit)
    reason = ", ".join(f"{value:.3g} at L̃ = {L:g}" for value, L in zip(values, depths))
    above = values - limit if side == "from above" else limit - values
    nearer = len(depths) < 2
    if not nearer and np.ptp(distance) > 0.0:
        nearer = float(np.corrcoef(rankdata(depths), rankdata(distance))[0, 1]) <= FALLS
    good = nearer and bool((above >= -ACROSS * unit).all()) and bool(distance[-1] <= NEAR * unit)
    return words.judge(f"{name}: approaches {limit} {side}", good, float(values[-1]), limit, reason)


def _outside(spectrum: np.ndarray, rank: int) -> float:
    """Share of the squared singular values beyond the first ``rank``."""
    squares = np.nan_to_num(spectrum) ** 2
    return float(squares[rank:].sum() / squares.sum())
