"""F-talk-2: learning curves of kernel regression against the dimension, error ≈ N^{−α/d}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import t as student

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments.base import Experiment, parameter
from isthmus.experiments.talk2023.smooth_functions import smooth_function, tail, torus
from isthmus.networks import KernelRidge
from isthmus.plotting.learning_curves import draw_learning_curves
from isthmus.runs import Outcome

#: How far an exponent may be from α/d, relative to it: the law is one of large N. An interval wider than WIDE of it
#: judges nothing.
NEAR, WIDE = 0.15, 0.3
#: Up to which factor the error counts as a multiple of Σ_{k>N} β_k².
FACTOR = 2.0
#: Confidence of the intervals.
LEVEL = 0.95


@cites("talk2023", "'Linear Models / Kernel Methods'", ids=("F-talk-2",))
@dataclass(frozen=True, kw_only=True)
class KernelCurves(Experiment):
    """E‖f̂ − f‖² of kernel regression on N samples of f = Σ β_m f_m, |β_m|² ∼ ‖m‖₁^{−α−d}: about N^{−α/d}.

    The basis are waves on a torus, that is monomials in cos θ_i and sin θ_i: there the principal components of a radial
    kernel are known, and the sum Σ_{k>N} β_k² that the slides derive the law from is computed beside it. Beyond d = 4
    these N are too few: at d = 6 that sum itself has the exponent 0.45 up to N = 2048, and not 0.33.
    """

    id: ClassVar[str] = "F-talk-2"
    title: ClassVar[str] = "Kernel methods: the error falls like N to the power −α/d, the curse of dimensionality"
    paper: ClassVar[str] = "talk2023"
    where: ClassVar[str] = "first slides, 'Linear Models / Kernel Methods' (a statement; the plot is ours)"
    convention: ClassVar[str] = "kernel ridge regression: K + ridge·I; 0 interpolates"
    quick_seconds: ClassVar[float] = 8.0
    full_seconds: ClassVar[float] = 240.0
    figure_size: ClassVar[tuple[float, float]] = (12.0, 4.8)

    dims: tuple[int, ...] = parameter((1, 2, 3, 4), "dimensions d", low=1, high=8)
    alpha: float = parameter(2.0, "α: decay of the coefficients", low=0.1, high=6.0)
    counts: tuple[int, ...] = parameter((128, 256, 512, 1024, 2048, 4096), "N, samples", low=8, high=8000)
    trials: int = parameter(6, "functions, each with samples of its own", low=3, high=100)
    test_samples: int = parameter(2000, "held out", low=20, high=10**5)
    kernel: str = parameter("laplace", "radial kernel", choices=("laplace", "matern-3/2"))
    length: float = parameter(1.0, "length scale; the torus has radius 1", low=1e-3, high=1e3)
    ridge: float = parameter(0.0, "ridge: there is no noise", low=0.0, high=1e6)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("dims", self.dims), ("counts", self.counts)):
            if len(values) < 3 or list(values) != sorted(set(values)):
                fail(self.id, f"`{name}` must be at least 3 increasing integers", values, "Sort or add some.")

    @classmethod
    def quick(cls) -> Self:
        """Fewer samples, dimensions and functions."""
        return cls(dims=(1, 2, 4), counts=(64, 128, 256, 512, 1024), trials=5, test_samples=500)

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Errors (dims, trials, counts) and the tail (dims, counts), both as shares of E‖f‖²."""
        errors = np.empty((len(self.dims), self.trials, len(self.counts)))
        tails = np.stack([tail(d, self.alpha, np.array(self.counts)) for d in self.dims])
        most = self.counts[-1]
        with progress(errors.size, self.id) as bar:
            for i, d in enumerate(self.dims):
                for j in range(self.trials):
                    rng = np.random.default_rng([self.seed, d, j])
                    f = smooth_function(d, self.alpha, 3 * most, rng)
                    theta = rng.uniform(0.0, 2.0 * np.pi, (most + self.test_samples, d))
                    X, Y = torus(theta), f(theta)
                    for k, N in enumerate(self.counts):
                        fitted = KernelRidge(self.kernel, length=self.length, ridge=self.ridge).fit(X[:N], Y[:N])
                        errors[i, j, k] = float(((fitted.predict(X[most:]).numpy() - Y[most:]) ** 2).mean())
                        bar.advance(1, error=errors[i, j, k])
        return {"dims": np.array(self.dims), "counts": np.array(self.counts), "errors": errors, "tails": tails}

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """The exponent in every dimension, the exponents against 1/d, and the errors beside the tail."""
        found = [self._exponent(arrays, i) for i in range(len(arrays["dims"]))]
        slope, low, high = self.against_inverse(arrays)
        told = f"between {low:.3g} and {high:.3g} over the functions"
        status = "agrees" if _meets(self.alpha, slope, low, high) else "fails"
        if status == "fails" and low <= self.alpha <= high:
            status, told = "differs", f"{told}: too far apart to judge"
        found.append(Outcome("exponents against 1/d: the slope is α", status, slope, self.alpha, told))
        ratio = arrays["errors"].mean(axis=1) / arrays["tails"]
        spread = float((ratio.max(axis=1) / ratio.min(axis=1)).max())
        name = "error over Σ_{k>N} β_k² in one dimension: largest over least"
        why = "" if spread <= FACTOR else f"from {ratio.min():.2g} to {ratio.max():.2g}: not one constant in each"
        found.append(Outcome(name, "agrees" if spread <= FACTOR else "differs", spread, 1.0, why))
        return found

    def _exponent(self, arrays: Mapping[str, np.ndarray], i: int) -> Outcome:
        d = int(arrays["dims"][i])
        expected, (value, low, high) = self.alpha / d, exponent(arrays["counts"], arrays["errors"][i])
        name = f"d = {d}: exponent of the error"
        told = f"between {low:.3g} and {high:.3g} over the functions"
        if _meets(expected, value, low, high):
            return Outcome(name, "agrees", value, expected, told)
        reached = float(_slopes(arrays["counts"], arrays["tails"][i : i + 1])[0])
        told = f"{told}; the sum over k > N itself has {reached:.3g} at these N"
        return Outcome(name, "differs" if _meets(reached, value, low, high) else "fails", value, expected, told)

    def against_inverse(self, arrays: Mapping[str, np.ndarray]) -> tuple[float, float, float]:
        """Slope of the exponents in 1/d, and its interval over the functions."""
        inverse = 1.0 / arrays["dims"]
        each = np.stack([_slopes(arrays["counts"], rows) for rows in arrays["errors"]], axis=1)
        return interval(np.array([np.polyfit(inverse, row, 1)[0] for row in each]))

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Left: the curves, with the law. Right: exponents against 1/d."""
        found = np.array([exponent(arrays["counts"], rows) for rows in arrays["errors"]])
        draw_learning_curves(figure, arrays, found, alpha=self.alpha)


def exponent(counts: np.ndarray, errors: np.ndarray) -> tuple[float, float, float]:
    """−slope of log error in log N, its mean over trials (rows) and Student's interval of that."""
    return interval(_slopes(counts, errors))


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and the ends of Student's interval, from at least two values."""
    reach = float(values.std(ddof=1) / np.sqrt(len(values)) * student.ppf(0.5 + LEVEL / 2.0, len(values) - 1))
    middle = float(values.mean())
    return middle, middle - reach, middle + reach


def _meets(expected: float, value: float, low: float, high: float) -> bool:
    """Whether ``value`` is near what is expected, or an interval that is narrow enough to say something has it."""
    near = abs(value - expected) <= NEAR * expected
    return near or (low <= expected <= high and high - low <= 2.0 * WIDE * expected)


def _slopes(counts: np.ndarray, errors: np.ndarray) -> np.ndarray:
    return -np.polyfit(np.log(counts), np.log(errors).T, 1)[0]
