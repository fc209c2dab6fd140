"""A tiny Experiment for the tests of sweeps: it counts how often it is computed, and can fail or be slow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from matplotlib.figure import Figure

from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.runs import Outcome

#: Folder for one empty file for each computation; by the environment, because other processes must know it.
MARKERS = "ISTHMUS_TEST_MARKERS"


@dataclass(frozen=True, kw_only=True)
class Tiny(Experiment):
    """rank = depth modulo 3, and a few numbers from the seed."""

    id: ClassVar[str] = "T-tiny"
    title: ClassVar[str] = "A tiny experiment"
    paper: ClassVar[str] = "rank2023"
    where: ClassVar[str] = "nowhere"
    convention: ClassVar[str] = "none"
    quick_seconds: ClassVar[float] = 0.0
    full_seconds: ClassVar[float] = 0.0
    sweep_names: ClassVar[Mapping[str, str]] = {"depth": "depths", "ridge": "lam"}

    depths: tuple[int, ...] = parameter((4, 5), "depths", low=1, high=1000)
    lam: float = parameter(1e-3, "λ", low=0.0, high=10.0)
    slow: float = parameter(0.0, "seconds it takes", low=0.0, high=100.0)
    does: str = parameter("well", "what it does", choices=("well", "raise", "diverge", "die", "die once", "exit"))
    grouped: bool = parameter(False, "whether it can be computed together")
    rank: int = parameter(0, "added to the rank", low=0, high=100)

    @classmethod
    def quick(cls) -> Self:
        """The same."""
        return cls()

    @classmethod
    def single(cls, *, quick: bool = False) -> Self:  # noqa: ARG003
        """One depth."""
        return cls(depths=(4,))

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:  # noqa: ARG002
        """Some numbers; and whatever `does` says."""
        before = mark(self.key)
        time.sleep(self.slow)
        if self.does == "raise":
            raise ArithmeticError(f"depth {self.depths[0]} is cursed")
        if self.does == "die" or (self.does == "die once" and before == 0):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.does == "exit":
            os._exit(3)
        noise = np.random.default_rng([self.seed, self.depths[0]]).standard_normal(5)
        return {
            "rank": np.array(self.depths[0] % 3 + self.rank),
            "norm": np.array(float(self.depths[0]) + noise[0]),
            "noise": noise,
            "bad": np.array(np.nan),
        }

    def measured(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The default, and how it ended."""
        return {**super().measured(arrays), "training": "diverged" if self.does == "diverge" else "converged"}

    @classmethod
    def spectrum_table(cls, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Some numbers."""
        return arrays["noise"][None]

    def batch_shape(self) -> tuple[Any, ...] | None:
        """By depth."""
        return (self.depths,) if self.grouped else None

    @classmethod
    def compute_together(cls, experiments: Sequence[Any], progress: ProgressFactory) -> list[dict[str, np.ndarray]]:
        """One after the other, unless one of them is cursed."""
        if any(one.does == "raise" for one in experiments):
            raise ArithmeticError("one of us is cursed")
        return [one.compute(progress) for one in experiments]

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """One that always holds."""
        return [Outcome("finite", "agrees" if np.isfinite(arrays["norm"]) else "fails")]

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Never in a sweep."""
        raise AssertionError("a sweep does not draw its runs")


def mark(key: str) -> int:
    """Count a computation of ``key``; how many there were before."""
    folder = os.environ.get(MARKERS)
    if folder is None:
        return 0
    before = len(list(Path(folder).glob(f"{key}-*")))
    (Path(folder) / f"{key}-{time.time_ns()}-{os.getpid()}").touch()
    return before
