"""F-talk-4: learning curves of a kernel, a shallow and a deep network on f = h∘g, for growing input dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from scipy.spatial.distance import pdist

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory, silent
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.experiments.talk2023._kernel_curves import exponent, interval
from isthmus.measures import bottleneck_rank
from isthmus.networks import FullyConnected, KernelRidge
from isthmus.plotting.style import PALETTE, dress
from isthmus.runs import Outcome
from isthmus.training import Phase, TrainingResult, minimise

Array = np.ndarray

#: The methods, in the order of the first axis of ``errors``.
METHODS = ("kernel", "shallow", "deep")

#: Numbers of samples, the largest ones, that exponents are fitted over: the law is one of large N.
FITTED = 3

#: Share of its exponent in the least dimension that the deep network may lose in the largest; share of the kernel's
#: error that it may have there.
LOST, BELOW = 0.25, 0.1

#: Waves that h is made of, and their frequency.
WAVES, FREQUENCY = 30, 4.0

CURSE = Quote("Error E_x‖f̂(x) − f*(x)‖² ≈ N^{−α/d_in}.", "talk2023, first slides, 'Linear Models / Kernel Methods'")
BREAKS = Quote("To show: This breaks the curse of dimensionality!", "talk2023, 'Conclusion'")
DEEP = Quote(
    "Deep Networks learn functions f = g ∘ h with small inner dimension.",
    "talk2023, slide on symmetries, after 'How can DNN learn text and image tasks successfully?'",
)


@cites("talk2023", "First slides; 'Conclusion'", ids=("F-talk-4",))
@dataclass(frozen=True, kw_only=True)
class LearningCurves(Experiment):
    """Test error against N on f = h(g(x)), g_j(x) = Σ|x_i| over the j-th of k blocks of d/k inputs.

    g is not linear, so that no function h(Ax) with Rank A < d equals f, and a ReLU network of 2d neurons computes it.
    h is a sum of waves of k variables, the same for every d. The slides announce the statement and show no figure:
    task, networks and N are our choice. The ridge falls like 1/N: there is no noise.
    """

    id: ClassVar[str] = "F-talk-4"
    title: ClassVar[str] = "Learning curves: a kernel suffers from the input dimension, a deep network does not"
    paper: ClassVar[str] = "talk2023"
    where: ClassVar[str] = "first slides and 'Conclusion' (a statement; task, settings and plot are ours)"
    convention: ClassVar[str] = "mean over samples, sum over outputs, + ridge·‖θ‖²"
    quick_seconds: ClassVar[float] = 10.0
    full_seconds: ClassVar[float] = 1000.0
    figure_size: ClassVar[tuple[float, float]] = (13.0, 5.0)

    dims: tuple[int, ...] = parameter((4, 8, 16), "d, inputs; multiples of both inner dimensions", low=2, high=1000)
    inner: int = parameter(2, "k, inner dimension", low=1, high=100)
    more_inner: int = parameter(4, "another one, for the deep network in the second of the `dims`", low=2, high=100)
    outputs: int = parameter(6, "dimension of h", low=1, high=1000)
    counts: tuple[int, ...] = parameter((256, 512, 1024, 2048, 4096), "N, samples", low=8, high=10**5)
    trials: int = parameter(8, "functions h, each with samples of its own", low=2, high=100)
    test_samples: int = parameter(2000, "held out", low=20, high=10**5)
    depth: int = parameter(6, "L of the deep network", low=3, high=100)
    width: int = parameter(50, "of the deep network", low=1, high=10_000)
    shallow_width: int = parameter(200, "hidden neurons of the shallow network", low=1, high=10_000)
    ridge: float = parameter(0.4, "ridge·N", low=1e-9, high=1e6)
    steps: int = parameter(600, "in each of the three parts of a training", low=1, high=10**6)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values, least in (("dims", self.dims, 2), ("counts", self.counts, FITTED)):
            if len(values) < least or list(values) != sorted(set(values)):
                fail(self.id, f"`{name}` must be at least {least} increasing integers", values, "Sort or add some.")
        if any(d % self.inner for d in self.dims) or self.dims[1] % self.more_inner:
            must = f"`dims` must be multiples of {self.inner}, the second also of {self.more_inner}"
            fail(self.id, must, self.dims, "Change them.")

    @classmethod
    def quick(cls) -> Self:
        """Two dimensions, fewer samples, smaller networks."""
        small = {"test_samples": 500, "depth": 5, "width": 24, "shallow_width": 60, "ridge": 0.2, "steps": 100}
        return cls(dims=(2, 8), counts=(128, 256, 512), trials=3, **small)

    def compute(self, progress: ProgressFactory) -> dict[str, Array]:
        """Errors (methods, dims, trials, counts), and (trials, counts) for `more_inner`, as shares of E‖f‖²."""
        errors = np.empty((len(METHODS), len(self.dims), self.trials, len(self.counts)))
        others = np.empty((self.trials, len(self.counts)))
        ranks, rest = np.empty(errors.shape[1:3], dtype=np.int64), np.zeros((2, *errors.shape[1:]), dtype=bool)
        with progress((errors[0].size + others.size), self.id) as bar:
            for j in range(self.trials):
                for i, d in enumerate(self.dims):
                    X, Y, X_test, Y_test = self.samples(d, self.inner, j)
                    for n, N in enumerate(self.counts):
                        fitted = _kernel(X[:N], Y[:N], X_test)
                        shallow, flat = self._network(2, self.shallow_width, X[:N], Y[:N], j)
                        net, result = self._network(self.depth, self.width, X[:N], Y[:N], j)
                        guesses = (fitted, _values(shallow, X_test), _values(net, X_test))
                        errors[:, i, j, n] = [((guess - Y_test) ** 2).sum(axis=1).mean() for guess in guesses]
                        rest[:, i, j, n] = flat.at_rest, result.at_rest
                        # Overwritten until the last: the rank of the network with the most samples stays.
                        rank = bottleneck_rank(net.trace(torch.from_numpy(X)))["representations"].rank
                        ranks[i, j] = -1 if rank is None else rank
                        bar.advance(1, error=errors[2, i, j, n])
                X, Y, X_test, Y_test = self.samples(self.dims[1], self.more_inner, j)
                for n, N in enumerate(self.counts):
                    net, _ = self._network(self.depth, self.width, X[:N], Y[:N], j)
                    others[j, n] = ((_values(net, X_test) - Y_test) ** 2).sum(axis=1).mean()
                    bar.advance(1, error=others[j, n])
        found = {"errors": errors, "more_inner_errors": others, "ranks": ranks, "at_rest": rest}
        return {**found, "dims": np.array(self.dims), "counts": np.array(self.counts)}

    def samples(self, d: int, inner: int, trial: int) -> tuple[Array, Array, Array, Array]:
        """Inputs and outputs to train and to test on: g(x) uniform in [0, 1]^k, x uniform given that, E‖f‖² = 1."""
        rng, function = np.random.default_rng([self.seed, d, inner, trial]), np.random.default_rng([self.seed, trial])
        many, block = self.counts[-1] + self.test_samples, d // inner
        Z = rng.uniform(size=(many, inner))
        # On a sphere of the norm Σ|x_i|: exponential variables over their sum.
        parts = rng.exponential(size=(many, inner, block))
        signs = rng.choice((-1.0, 1.0), size=parts.shape)
        X = signs * parts / parts.sum(axis=2, keepdims=True) * Z[:, :, None] * math.sqrt(1.5 * block)
        frequencies = FREQUENCY * function.standard_normal((WAVES, inner))
        phases, amplitudes = function.uniform(0.0, 2.0 * np.pi, WAVES), function.standard_normal((WAVES, self.outputs))
        reference = function.uniform(size=(5000, inner))
        known, Y = (np.sin(at @ frequencies.T + phases) @ amplitudes for at in (reference, Z))
        Y = (Y - known.mean(axis=0)) / math.sqrt(known.var(axis=0).sum())
        X, N = X.reshape(many, d), self.counts[-1]
        return X[:N], Y[:N], X[N:], Y[N:]

    def _network(self, depth: int, width: int, X: Array, Y: Array, seed: int) -> tuple[FullyConnected, TrainingResult]:
        dims = [X.shape[1], *[width] * (depth - 1), Y.shape[1]]
        net = FullyConnected(dims, generator=torch.Generator().manual_seed(1000 * self.seed + seed))
        plan = [
            Phase("scale", 1),
            Phase("adam", self.steps, 3e-3, ridge_start=3.0, ridge_end=3.0, anneal=True),
            Phase("lbfgs", self.steps, ridge_start=10.0, ridge_share=1.0),
            Phase("lbfgs", self.steps),
        ]
        tensors = (torch.tensor(values, dtype=torch.float32) for values in (X, Y))
        return net, minimise(net, *tensors, ridge=self.ridge / len(X), phases=plan, seed=seed, progress=silent)

    def exponents(self, arrays: Mapping[str, Array]) -> Array:
        """Exponent of each method in each dimension with the ends of its interval, (methods, dims, 3)."""
        counts = arrays["counts"][-FITTED:]
        return np.array([[exponent(counts, rows[:, -FITTED:]) for rows in table] for table in arrays["errors"]])

    def outcomes(self, arrays: Mapping[str, Array]) -> list[Outcome]:
        """How the exponents change from the least dimension to the largest, and what the inner dimension does."""
        dims, errors = arrays["dims"].tolist(), arrays["errors"]
        found = {name: table[:, 0] for name, table in zip(METHODS, self.exponents(arrays))}
        legend = {name: ", ".join(f"{x:.2f} at d = {d}" for x, d in zip(row, dims)) for name, row in found.items()}
        change, low, high = self._change(arrays, "kernel")
        good = True if high < 0.0 else False if low > 0.0 else None
        why = f"{legend['kernel']}; the change is between {low:.2g} and {high:.2g}"
        name = f"kernel: change of the exponent from d = {dims[0]} to {dims[-1]}, below"
        statements = [CURSE.judge(name, good, change, 0.0, why)]
        change, low, high = self._change(arrays, "deep")
        least = -LOST * float(found["deep"][0])
        good = True if low > least else False if high < least else None
        why = f"{legend['deep']}; the change is between {low:.2g} and {high:.2g}"
        name = f"deep network: change of the exponent from d = {dims[0]} to {dims[-1]}, above"
        statements.append(BREAKS.judge(name, good, change, least, why))
        last = np.exp(np.log(errors[..., -1]).mean(axis=2))
        N, share = int(arrays["counts"][-1]), float(last[2, -1] / last[0, -1])
        name = f"d = {dims[-1]}, N = {N}: error of the deep network over that of the kernel, at most"
        statements.append(BREAKS.judge(name, share <= BELOW, share, BELOW))
        by_inner = float(np.exp(np.log(arrays["more_inner_errors"][:, -1]).mean()) / last[2, 1])
        by_inputs = float(last[2, -1] / last[2, 0])
        name = (
            f"deep network, N = {N}: factor in its error from inner dimension {self.inner} to {self.more_inner} "
            f"at d = {dims[1]}, above that from d = {dims[0]} to {dims[-1]}"
        )
        statements.append(DEEP.judge(name, by_inner > by_inputs, by_inner, by_inputs))
        rest, right = float(arrays["at_rest"][1].mean()), float((arrays["ranks"] == self.inner).mean())
        beside = float(last[1, -1] / last[2, -1])
        converged = condition("deep networks whose training converged, share", rest == 1.0, rest, 1.0)
        name = f"shallow network, d = {dims[-1]}, N = {N}: error over that of the deep one, above"
        return [
            *under([converged], statements),
            converged,
            condition(f"deep networks with {self.inner} dimensions in the middle, share", right == 1.0, right, 1.0),
            condition(name, beside > 1.0, beside, 1.0, f"exponents {legend['shallow']}"),
        ]

    def _change(self, arrays: Mapping[str, Array], method: str) -> tuple[float, float, float]:
        """Of a method's exponent from the first dimension to the last, with its interval over the trials."""
        table, log_N = arrays["errors"][METHODS.index(method)], np.log(arrays["counts"][-FITTED:])
        first, last = (-np.polyfit(log_N, np.log(rows[:, -FITTED:]).T, 1)[0] for rows in (table[0], table[-1]))
        return interval(last - first)

    def plot(self, arrays: Mapping[str, Array], figure: Figure) -> None:
        """Left: errors against N, in the colours of the dimension. Right: exponents against the dimension."""
        draw_three_methods(figure, arrays, self.exponents(arrays), inner=self.inner, more_inner=self.more_inner)


def _kernel(X: Array, Y: Array, X_test: Array) -> Array:
    """Kernel regression without ridge; the length scale is the median distance."""
    length = float(np.median(pdist(X[:300])))
    return KernelRidge("laplace", length=length).fit(X, Y).predict(X_test).numpy()


@torch.no_grad()
def _values(net: FullyConnected, X: Array) -> Array:
    return net(torch.tensor(X, dtype=torch.float32)).double().numpy()


def draw_three_methods(
    figure: Figure, arrays: Mapping[str, Array], exponents: Array, *, inner: int, more_inner: int
) -> None:
    """Left: test error against N for each method and dimension. Right: exponents against the dimension.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``errors`` (methods, dims, trials, counts), ``more_inner_errors`` (trials, counts), ``dims``, ``counts``.
    exponents : array (methods, dims, 3)
        With the ends of their intervals.
    inner, more_inner : int
        Inner dimension of the task, and of the one beside it.
    """
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1.0))
    dims, counts = arrays["dims"], arrays["counts"]
    colours = colormaps["viridis_r"](np.linspace(0.15, 1.0, len(dims)))
    styles = {"kernel": "s:", "shallow": "^--", "deep": "o-"}
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    for (method, style), table in zip(styles.items(), arrays["errors"]):
        for d, colour, rows in zip(dims, colours, table):
            label = f"d = {d}" if method == "deep" else None
            left.plot(counts, np.exp(np.log(rows).mean(axis=0)), style, color=colour, markersize=5, label=label)
    other = np.exp(np.log(arrays["more_inner_errors"]).mean(axis=0))
    left.plot(counts, other, "o-", color=PALETTE["vermilion"], markersize=5, label=f"d = {dims[1]}, k = {more_inner}")
    dress(left, title=f"Test error, k = {inner}", x="samples $N$", y="share of the variance")
    left.xaxis.set_major_locator(FixedLocator([float(N) for N in counts]))
    left.xaxis.set_major_formatter(ScalarFormatter())
    left.xaxis.set_minor_locator(NullLocator())
    box = left.legend(frameon=False, fontsize=9, loc="lower left")
    lines = [
        line
        for method, style in styles.items()
        for line in left.plot([], [], style, color="#666666", markersize=5, label=method)
    ]
    left.legend(handles=lines, frameon=False, fontsize=9, loc="upper right")
    left.add_artist(box)
    for (method, style), colour, table in zip(styles.items(), ("orange", "green", "blue"), exponents):
        value, low, high = table.T
        reach = np.stack([value - low, high - value])
        right.errorbar(dims, value, reach, fmt=style, color=PALETTE[colour], capsize=4, label=method)
    right.set_xscale("log", base=2)
    right.xaxis.set_major_locator(FixedLocator([float(d) for d in dims]))
    right.xaxis.set_major_formatter(ScalarFormatter())
    right.set_ylim(bottom=0.0)
    dress(right, title=f"Exponent over the last {FITTED} N, 95 %", x="input dimension $d$", y="exponent of the error")
    right.legend(frameon=False, fontsize=10, loc="best")
