"""F-ham-1: along a leaky ResNet the Hamiltonian is conserved and tells the rank; a bottleneck forms as L̃ grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
from matplotlib.figure import Figure

from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments.hamiltonian2024._trained import PathSettings, draw_estimates, draw_paths, paths
from isthmus.measures import read_spectrum
from isthmus.runs import Outcome

#: From this L̃ on the paper shows a bottleneck.
DEEP = 7.0

#: What the issue of a figure counts as reached: residual and spread of 𝓗, and distance of the estimates from the rank.
SMALL, NEAR = 0.05, 0.15


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
    quick_seconds: ClassVar[float] = 20.0
    full_seconds: ClassVar[float] = 1200.0
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
    effective_depths: tuple[float, ...] = parameter((1.0, 3.0, 7.0, 11.0), "L̃ of each network", low=0.01, high=1e4)
    samples: int = parameter(1000, "N, training samples; as many are held out", source="paper", low=10, high=10**6)
    lam: float = parameter(2e-3, "λ", source="paper", low=1e-12, high=1e6)
    average_outputs: bool = parameter(True, "whether the cost is averaged over outputs")
    relu_latents: bool = parameter(True, "whether the task is a network with a layer of `rank` ReLU neurons")
    gamma_share: float = parameter(1e-3, "γ_0 of the stable energies", low=1e-12, high=1.0)
    steps: int = parameter(100, "quasi-Newton steps in each part of the training", low=1, high=10**6)
    learning_rate: float = parameter(1e-3, "of Adam, at the beginning", low=1e-8, high=10.0)

    @classmethod
    def quick(cls) -> Self:
        """A smaller task of the same kind, fewer depths."""
        return cls(
            d_in=8,
            rank=2,
            d_out=8,
            width=24,
            layers=16,
            effective_depths=(1.0, 7.0),
            samples=120,
            steps=40,
        )

    @classmethod
    def single(cls, *, quick: bool = False) -> Self:
        """One network."""
        return (cls.quick() if quick else cls()).replace(effective_depths=(DEEP,))

    def lasting(self) -> float:
        """Steps of all networks."""
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


@cites("hamiltonian2024", "Figure 1", ids=("F-ham-1",))
@dataclass(frozen=True, kw_only=True)
class HamiltonianFigure1(LeakyPaths):
    """20 → 5 → 20 through adaptive leaky ResNets: −(2/L̃)𝓗 rises to 5, the least cost of identity falls to 5."""

    id: ClassVar[str] = "F-ham-1"
    title: ClassVar[str] = "Leaky ResNets: Hamiltonian, cost of identity and spectra along the path"
    where: ClassVar[str] = "Figure 1"
    figure_size: ClassVar[tuple[float, float]] = (16.0, 8.0)

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Bottleneck, estimates of the rank, criticality and conservation, each at every deep network."""
        found = []
        for index, L_tilde in enumerate(self.effective_depths):
            if L_tilde >= DEEP:
                found += self._deep(index, L_tilde, arrays)
        if len(self.effective_depths) > 1:
            found.append(self._trend(arrays))
        return found

    def _deep(self, index: int, L_tilde: float, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        at, k = f"L̃ = {L_tilde:g}", self.rank
        middle = arrays["weight_spectra"][index][self.layers // 2]
        reading = read_spectrum(middle)
        count = reading.count if reading.status == "clear" else -1
        clear = "agrees" if count > 0 else "fails"
        outcomes = [Outcome(f"{at}: clear singular values in the middle", clear, float(count), None)]
        why = "" if count == k else f"{count} directions stand out; a constant one can stand in for biases"
        outcomes.append(
            Outcome(f"{at}: as many as the rank", "agrees" if count == k else "differs", float(count), k, why)
        )
        residual, spread = float(arrays["total_residual"][index]), float(arrays["spread"][index])
        state = f"residual {residual:.2g}, 𝓗 varies by {spread:.2g} of its median"
        estimate = -2.0 / L_tilde * float(np.median(arrays["hamiltonian"][index]))
        below = (1.0 - NEAR) * k <= estimate <= k
        least = float(arrays["identity_cost"][index].min())
        above = k <= least <= (1.0 + NEAR) * k
        for name, good, value, wanted in (
            (f"−(2/L̃)𝓗 within {NEAR:.0%} of the rank, from below", below, estimate, float(k)),
            (f"least cost of identity within {NEAR:.0%} of the rank, from above", above, least, float(k)),
            (f"residual of criticality below {SMALL:g}", residual < SMALL, residual, SMALL),
            (f"spread of 𝓗 below {SMALL:g}", spread < SMALL, spread, SMALL),
        ):
            outcomes.append(
                Outcome(f"{at}: {name}", "agrees" if good else "differs", value, wanted, "" if good else state)
            )
        return outcomes

    def _trend(self, arrays: Mapping[str, np.ndarray]) -> Outcome:
        """Whether the gap between the two estimates closes as L̃ grows."""
        depths = np.array(self.effective_depths)
        estimates = -2.0 / depths * np.median(arrays["hamiltonian"], axis=1)
        gaps = arrays["identity_cost"].min(axis=1) - estimates
        closes = bool(abs(gaps[-1]) < abs(gaps[0]))
        why = "" if closes else "the gap at the largest L̃ is not below that at the smallest"
        name = "the two estimates approach each other as L̃ grows"
        return Outcome(name, "agrees" if closes else "differs", float(gaps[-1]), float(gaps[0]), why)

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
        """From the first L̃ to the last each quantity grows by less than L̃ does."""
        depths = np.array(self.effective_depths)
        growth = float(depths[-1] / depths[0])
        found = []
        for name, values in (
            ("path length ∫‖∂_pA‖dp", arrays["length"]),
            ("largest ‖B_p‖", arrays["momentum_norm"].max(axis=1)),
            ("largest ‖B_pσ(A_p)ᵀ‖", arrays["force_norm"].max(axis=1)),
        ):
            ratio = float(values.max() / max(values[0], 1e-300))
            good = ratio < growth**0.5
            why = "" if good else "it grows about as fast as L̃ or faster"
            text = f"{name}: largest over that at the least L̃, below √(growth of L̃)"
            found.append(Outcome(text, "agrees" if good else "differs", ratio, growth**0.5, why))
        return found

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Three panels over L̃."""
        draw_paths(figure, arrays)
