"""F-talk-2: learning curves of kernel regression against the dimension, error ≈ N^{−α/d}."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import t as student

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote
from isthmus.networks import KernelRidge
from isthmus.plotting.style import PALETTE, dress
from isthmus.runs import Outcome

#: How far an exponent may be from α/d, relative to it: the law is one of large N. An interval wider than WIDE of it
#: judges nothing.
NEAR, WIDE = 0.15, 0.3

#: Up to which factor the error counts as a multiple of Σ_{k>N} β_k².
FACTOR = 2.0

#: Confidence of the intervals.
LEVEL = 0.95

LAW = Quote(
    "If |β_m|² ∼ ‖m‖₁^{−α−d_in} then k-largest coefficient |β_k|² ∼ k^{−(α+d_in)/d_in}. Error E_x‖f̂(x) − f*(x)‖² ≈ "
    "N^{−α/d_in}.",
    "talk2023, first slides, 'Linear Models / Kernel Methods'",
)
SUM = Quote(
    "For large N: estimate f̂ ≈ Σ_{k≤N} β_k f_k ⟹ E_x‖f̂(x) − f*(x)‖² ≈ Σ_{k>N} β_k².",
    "talk2023, first slides, 'Linear Models / Kernel Methods'",
)


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
        reason = f"between {low:.3g} and {high:.3g} over the functions"
        good = _meets(self.alpha, slope, low, high) or (None if low <= self.alpha <= high else False)
        found.append(LAW.judge("exponents against 1/d: the slope is α", good, slope, self.alpha, reason))
        ratio = arrays["errors"].mean(axis=1) / arrays["tails"]
        spread = float((ratio.max(axis=1) / ratio.min(axis=1)).max())
        name = "error over Σ_{k>N} β_k² in one dimension: largest over least, at most"
        why = f"from {ratio.min():.2g} to {ratio.max():.2g} over all dimensions"
        return [*found, SUM.judge(name, spread <= FACTOR, spread, FACTOR, why, otherwise="differs")]

    def _exponent(self, arrays: Mapping[str, np.ndarray], i: int) -> Outcome:
        d = int(arrays["dims"][i])
        expected, (value, low, high) = self.alpha / d, exponent(arrays["counts"], arrays["errors"][i])
        good, reason = _meets(expected, value, low, high), f"between {low:.3g} and {high:.3g} over the functions"
        reached = float(_slopes(arrays["counts"], arrays["tails"][i : i + 1])[0])
        if not good and not _meets(expected, reached, reached, reached) and _meets(reached, value, low, high):
            # The law is one of large N: the sum that it is derived from is not there yet.
            reason = f"{reason}; the sum over k > N itself has {reached:.3g} at these N"
            return LAW.judge(f"d = {d}: exponent of the error", None, value, expected, reason)
        return LAW.judge(f"d = {d}: exponent of the error", good, value, expected, reason)

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


# ---- Random functions on a torus with |β_m|² ∼ ‖m‖₁^{−α−d}, and the sum of the coefficients beyond the first N


Array = np.ndarray

#: Terms drawn from all the degrees that are not written out.
DRAWN = 4_000

#: Added to ‖m‖₁. The number of m with ‖m‖₁ ≤ R is near (2R + 1)^d/d!: so the k-th coefficient is a power of k early on.
OFFSET = 0.5

#: Degree up to which coefficients are summed; beyond it, an integral.
SUMMED = 10**5


def shell_sizes(d: int, degrees: Array) -> Array:
    """Number of m ∈ ℤ^d with ‖m‖₁ = r, Σ_j 2^j C(d, j) C(r−1, j−1), for each r ≥ 1 of ``degrees``."""
    r = np.asarray(degrees, dtype=np.float64)
    total = np.zeros_like(r)
    for j in range(1, d + 1):
        below = np.ones_like(r)
        for i in range(1, j):
            below *= (r - i) / i
        total += 2.0**j * math.comb(d, j) * below
    return total


def tail(d: int, alpha: float, counts: Array) -> Array:
    """Σ_{k>N} β_k² for each N of ``counts``, as a share of all: what the best N functions of the basis leave.

    In decreasing order, the constant first though it is 0; shells of equal coefficients may be cut in two.
    """
    r = np.arange(1, SUMMED + 1, dtype=np.float64)
    size = shell_sizes(d, r)
    single = (r + OFFSET) ** (-alpha - d)
    mass = size * single
    # Σ_{r>R} of about 2^d r^{d−1}/(d−1)!·r^{−α−d}.
    rest = 2.0**d / math.factorial(d - 1) * SUMMED ** (-alpha) / alpha
    after = np.append(np.cumsum(mass[::-1])[::-1], 0.0) + rest
    # How many functions the degrees below r have.
    many = 1.0 + np.concatenate([[0.0], np.cumsum(size)])
    left = []
    for N in np.asarray(counts, dtype=np.float64):
        shell = int(np.searchsorted(many, N, side="right")) - 1
        left.append(after[shell] - (N - many[shell]) * (single[shell] if shell < SUMMED else 0.0))
    return np.array(left) / after[0]


@dataclass(frozen=True, eq=False)
class SmoothFunction:
    """f(θ) = Σ_j a_j cos(m_j·θ + φ_j) on the torus, of variance 1.

    Attributes
    ----------
    modes : array (J, d)
    amplitudes, phases : array (J,)
    """

    modes: Array
    amplitudes: Array
    phases: Array

    def __call__(self, theta: Array) -> Array:
        """Value at each row of angles (N, d), (N, 1)."""
        value = np.zeros(len(theta))
        for first in range(0, len(self.modes), 1000):
            part = slice(first, first + 1000)
            value += np.cos(theta @ self.modes[part].T + self.phases[part]) @ self.amplitudes[part]
        return value[:, None]


def smooth_function(d: int, alpha: float, written: int, rng: np.random.Generator) -> SmoothFunction:
    """A function with |β_m|² ∼ ‖m‖₁^{−α−d}, scaled to the sum 1, and random phases.

    All m up to a degree are there, ``written`` at least; for the higher ones stand ``DRAWN``, by chance and of equal
    size. The constant is left out.
    """
    r = np.arange(1, SUMMED + 1, dtype=np.float64)
    sizes = shell_sizes(d, r)
    degree = 1 + int(np.searchsorted(np.cumsum(sizes), written))
    low = _half_ball(d, degree)
    variance = 2.0 * (np.abs(low).sum(axis=1) + OFFSET) ** (-alpha - d)
    mass = sizes * (r + OFFSET) ** (-alpha - d)
    chances = mass[degree:]
    radii = degree + 1 + rng.choice(len(chances), size=DRAWN, p=chances / chances.sum())
    high = _on_shells(d, radii, rng)
    variance = np.concatenate([variance, np.full(DRAWN, chances.sum() / DRAWN)]) / mass.sum()
    modes = np.concatenate([low, high]).astype(np.float64)
    return SmoothFunction(modes, np.sqrt(2.0 * variance), rng.uniform(0.0, 2.0 * np.pi, len(modes)))


def torus(theta: Array) -> Array:
    """Angles (N, d) as points (cos θ_1, sin θ_1, …) / √d of R^{2d}.

    There a radial kernel depends on differences of angles alone: its principal components are the waves.
    """
    return np.concatenate([np.cos(theta), np.sin(theta)], axis=1) / math.sqrt(theta.shape[1])


def _half_ball(d: int, degree: int) -> Array:
    """One of ±m for all m ≠ 0 with ‖m‖₁ ≤ degree, (J, d)."""
    points = np.zeros((1, 0), dtype=np.int64)
    for _ in range(d):
        left = degree - np.abs(points).sum(axis=1)
        grown = [
            np.column_stack([points[left >= abs(k)], np.full(int((left >= abs(k)).sum()), k)])
            for k in range(-degree, degree + 1)
        ]
        points = np.concatenate(grown)
    first = np.array([row[np.flatnonzero(row)[0]] if row.any() else 0 for row in points])
    return points[first > 0]


def _on_shells(d: int, radii: Array, rng: np.random.Generator) -> Array:
    """For each radius one m with ‖m‖₁ = radius, uniformly: how many entries are not 0, their sizes, their signs."""
    j = np.arange(1, d + 1)
    below = np.ones((len(radii), d))
    for i in range(1, d):
        # Products rather than factorials: radii may be large. Beyond the radius they are 0.
        below[:, i] = below[:, i - 1] * np.maximum(radii - i, 0) / i
    weights = below * (2.0**j * [math.comb(d, int(i)) for i in j])
    total = np.cumsum(weights, axis=1)
    chosen = 1 + (total < rng.random((len(radii), 1)) * total[:, -1:]).sum(axis=1)
    m = np.zeros((len(radii), d), dtype=np.int64)
    for many in np.unique(chosen):
        rows = np.flatnonzero(chosen == many)
        sizes = _parts(radii[rows], int(many), rng) * rng.choice([-1, 1], size=(len(rows), int(many)))
        places = rng.random((len(rows), d)).argsort(axis=1)[:, :many]
        m[rows[:, None], places] = sizes
    return m


def _parts(radii: Array, many: int, rng: np.random.Generator) -> Array:
    """Each radius as a sum of ``many`` positive integers, uniformly: cut at different places."""
    cuts = np.zeros((len(radii), many - 1), dtype=np.int64)
    again = np.arange(len(radii))
    while len(again):
        cuts[again] = np.sort(rng.integers(1, radii[again, None], size=(len(again), many - 1)), axis=1)
        again = again[(np.diff(cuts[again], axis=1) == 0).any(axis=1)]
    return np.diff(cuts, axis=1, prepend=0, append=radii[:, None])


# ---- Learning curves in several dimensions, and their exponents against 1/d


def draw_learning_curves(
    figure: Figure, arrays: Mapping[str, np.ndarray], exponents: np.ndarray, *, alpha: float
) -> None:
    """Left: error against N in each dimension, with slope −α/d and Σ_{k>N} β_k². Right: exponents against 1/d.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``dims`` (D,), ``counts`` (n,), ``errors`` (D, trials, n), ``tails`` (D, n).
    exponents : array (D, 3)
        Of the errors, with the ends of their intervals.
    alpha : float
    """
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    dims, counts = arrays["dims"], arrays["counts"]
    colours = colormaps["viridis_r"](np.linspace(0.15, 1.0, len(dims)))
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    for d, colour, rows, beyond, (value, _, _) in zip(dims, colours, arrays["errors"], arrays["tails"], exponents):
        mean = np.exp(np.log(rows).mean(axis=0))
        left.plot(np.tile(counts, (len(rows), 1)).T, rows.T, ".", color=colour, markersize=3, alpha=0.6)
        left.plot(counts, mean, "o", color=colour, markersize=5, label=f"d = {d}:  $N^{{-{value:.2f}}}$", zorder=3)
        centre = np.exp(np.log(counts).mean())
        law = np.exp(np.log(mean).mean()) * (counts / centre) ** (-alpha / d)
        left.plot(counts, law, "-", color=colour, linewidth=1.4)
        left.plot(counts, beyond, ":", color=colour, linewidth=1.4)
    dress(left, title="Test error, as a share of the function's variance", x="samples $N$", y="error")
    reason = left.legend(frameon=False, fontsize=9, loc="lower left", title="fitted", alignment="left")
    lines = [
        Line2D([], [], color="#666666", linewidth=1.4, label=r"slope $-\alpha/d$"),
        Line2D([], [], color="#666666", linewidth=1.4, linestyle=":", label=r"$\Sigma_{k>N}\,\beta_k^2$"),
    ]
    left.legend(handles=lines, frameon=False, fontsize=9, loc="upper right")
    left.add_artist(reason)
    inverse = np.linspace(0.0, 1.08 * float(1.0 / dims.min()), 2)
    right.plot(inverse, alpha * inverse, "-", color="#666666", linewidth=1.4, label=rf"$\alpha/d$, $\alpha={alpha:g}$")
    value, low, high = exponents.T
    reach = np.stack([value - low, high - value])
    right.errorbar(1.0 / dims, value, reach, fmt="o", color=PALETTE["blue"], capsize=4, label="fitted, 95 %")
    # Beside the points: along the axis those of large d lie too close together.
    for d, y in zip(dims, value):
        right.annotate(f"d = {d}", (1.0 / d, y), (7, -9), textcoords="offset points", fontsize=9)
    right.set_xlim(0.0, None)
    right.set_ylim(0.0, None)
    dress(right, title="The exponent is inverse to the dimension", x="$1/d$", y="exponent of the error")
    right.legend(frameon=False, fontsize=10, loc="upper left")
