"""F-talk-1: a convolutional network learns the flight of a ball from frames; what its middle layers keep of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.figure import Figure

from isthmus._cite import cites
from isthmus._errors import ConvergenceWarning
from isthmus._progress import ProgressFactory
from isthmus.discovery.velocities import explained
from isthmus.experiments.base import Experiment, parameter
from isthmus.measures import filter_spectra, kept_frequencies
from isthmus.measures.frequency_spectrum import FrequencyReading
from isthmus.networks import ConvolutionalNet
from isthmus.objective import constant_cost, cost
from isthmus.plotting.ball import draw_ball
from isthmus.runs import Outcome
from isthmus.training import Phase, TrainingResult, train

Array = np.ndarray
#: R² from which on a quantity counts as kept, and below which as lost; share of the variance that may be missed.
KEPT, LOST, MISSED = 0.95, 0.5, 0.05
#: Flights shown.
SHOWN = 3


@cites("talk2023", "Slide 'Learning Newtonian Mechanics'", ids=("F-talk-1",))
@dataclass(frozen=True, kw_only=True)
class FallingBall(Experiment):
    """From the last frames of a ball, the next ones: position and velocity in two pairs of frequency 1.

    Frames are signals on a periodic line, heights y(t) = y + vt − ½gt² wrapped around it, the ball a bump of the shape
    exp(κ(cos ϕ − 1)). A shift of all frames shifts the future: the task is equivariant, and the state (y, v) needs the
    phase of two waves. The slides show pictures alone; the set-up is ours.
    """

    id: ClassVar[str] = "F-talk-1"
    title: ClassVar[str] = "A ball under gravity: position and velocity in two pairs of frequency 1"
    paper: ClassVar[str] = "talk2023"
    where: ClassVar[str] = "slide 'Learning Newtonian Mechanics'"
    convention: ClassVar[str] = "mean over samples, sum over outputs, + λ‖filters‖²; ridge = λ"
    quick_seconds: ClassVar[float] = 9.0
    full_seconds: ClassVar[float] = 300.0
    figure_size: ClassVar[tuple[float, float]] = (16.0, 4.8)

    size: int = parameter(12, "n, places on the line", low=4, high=1000)
    past: int = parameter(2, "frames seen", low=2, high=100)
    future: int = parameter(3, "frames to predict", low=2, high=100)
    gravity: float = parameter(1.0, "g, in places per frame²", low=0.0, high=100.0)
    speed: float = parameter(2.0, "largest |v|, in places per frame", low=1e-3, high=1000.0)
    sharpness: float = parameter(3.0, "κ of the bump", low=0.01, high=1000.0)
    samples: int = parameter(300, "N, training samples", low=20, high=10**6)
    test_samples: int = parameter(300, "held out; everything is measured on them", low=100, high=10**5)
    depth: int = parameter(9, "L, filters", low=3, high=1000)
    channels: int = parameter(8, "channels of the hidden layers", low=2, high=1000)
    lam: float = parameter(0.3, "λ", low=1e-9, high=1e3)
    steps: int = parameter(0, "quasi-Newton steps of a short training; 0: the plan of `train`", low=0, high=10**6)

    @classmethod
    def quick(cls) -> Self:
        """Fewer places, layers, channels, frames and samples, a short training."""
        return cls(size=10, future=2, speed=1.6, samples=60, test_samples=150, depth=8, channels=4, lam=0.4, steps=500)

    def flights(self, count: int, stream: int) -> tuple[Array, Array, Array]:
        """Frames seen (count, past·n) and to come (count, future·n), and the state (y, v) at the last frame seen."""
        rng = np.random.default_rng([self.seed, stream])
        y, v = rng.uniform(0.0, self.size, count), rng.uniform(-self.speed, self.speed, count)
        times = np.arange(1.0 - self.past, self.future + 1.0)
        height = y[:, None] + v[:, None] * times - 0.5 * self.gravity * times**2
        angle = 2.0 * np.pi * (np.arange(self.size) - height[..., None]) / self.size
        frames = np.exp(self.sharpness * (np.cos(angle) - 1.0)) / self._unit
        X, Y = frames[:, : self.past], frames[:, self.past :]
        return X.reshape(count, -1), Y.reshape(count, -1), np.column_stack([y, v])

    @property
    def _unit(self) -> float:
        """Deviation of one pixel over uniform heights: frames are scaled to variance 1."""
        bump = np.exp(self.sharpness * (np.cos(np.linspace(0.0, 2.0 * np.pi, 4097)[:-1]) - 1.0))
        return float(bump.std())

    def network(self) -> ConvolutionalNet:
        """Not trained yet."""
        widths = [self.past, *[self.channels] * (self.depth - 1), self.future]
        return ConvolutionalNet(
            widths, (self.size,), dtype=torch.float64, generator=torch.Generator().manual_seed(self.seed)
        )

    def fit(self, net: ConvolutionalNet, progress: ProgressFactory) -> TrainingResult:
        """Train in place."""
        X, Y, _ = self.flights(self.samples, 0)
        short = [Phase("scale", 1), Phase("adam", self.steps // 2, 1e-2, anneal=True), Phase("lbfgs", self.steps)]
        with warnings.catch_warnings():
            # Not swallowed: the state is in the arrays and in an outcome.
            warnings.simplefilter("ignore", ConvergenceWarning)
            plan = short if self.steps else None
            result = train(net, X, Y, ridge=self.lam, phases=plan, tolerance=1e-3, show_progress=progress)
        if result.state == "interrupted":
            raise KeyboardInterrupt
        return result

    def compute(self, progress: ProgressFactory) -> dict[str, Array]:
        """Train one network, then look at what its layers keep of new flights."""
        net = self.network()
        result = self.fit(net, progress)
        return {**self.look(net), "converged": np.array(result.state == "converged"), "loss": np.array(result.loss)}

    def look(self, net: ConvolutionalNet) -> dict[str, Array]:
        """Spectra by frequency, what stands out, and how well the waves of frequency 1 give the state."""
        X, Y, state = self.flights(self.test_samples, 1)
        trace = net.trace(X)
        spectra = [filter_spectra(W, trace.size) for W in trace.filters]
        F, most = spectra[0].values.shape[0], max(one.values.shape[1] for one in spectra)
        values = np.full((self.depth, F, most), np.nan)
        for row, one in zip(values, spectra):
            row[:, : one.values.shape[1]] = one.values.numpy()
        kept = kept_frequencies(trace)
        narrow = np.zeros(self.depth, dtype=bool)
        if kept.verdict == "determined":
            narrow[[ell - 1 for ell in kept.layers]] = True
        outputs = trace.outputs
        pairs = [pairs_of(Z.numpy()) for Z in trace.preactivations]
        angle = 2.0 * np.pi * state[:, 0] / self.size
        wanted = np.column_stack([np.cos(angle), np.sin(angle), state[:, 1]])
        return {
            "values": values,
            "turns": spectra[0].signed.numpy(),
            "weights": np.stack([_channels(one.weights, F) for one in kept.through_depth]),
            "signals": np.stack([_channels(one.signals, F) for one in kept.through_depth]),
            "narrow": narrow,
            "two_pairs": np.stack([_scores(P, wanted) for P in pairs]),
            "one_pair": np.stack([_scores(P[:, [0, 2]], wanted) for P in pairs]),
            "missed": np.array(float(cost(outputs, torch.from_numpy(Y))) / constant_cost(torch.from_numpy(Y))),
            "seen": X[:SHOWN].reshape(SHOWN, self.past, self.size),
            "came": Y[:SHOWN].reshape(SHOWN, self.future, self.size),
            "predicted": outputs[:SHOWN].numpy().reshape(SHOWN, self.future, self.size),
        }

    def outcomes(self, arrays: Mapping[str, Array]) -> list[Outcome]:
        """Frequencies of the narrowest layers, position and velocity in them, prediction, convergence."""
        layers = 1 + np.flatnonzero(arrays["narrow"])
        name = "waves that the narrowest layers keep: pairs of frequency 1, and no other"
        if len(layers) == 0:
            why = "no layers are clearly the narrowest: which frequencies are kept is undetermined"
            results = [Outcome(name, "fails", None, 2, why)]
        else:
            row = arrays["signals"][layers[0] - 1]
            others = [k for k in range(2, len(row)) if row[k]]
            told = f"layers {', '.join(map(str, layers))}" + (f" keep frequencies {others} too" if others else "")
            good = int(row[1]) == 2 and not others
            results = [Outcome(name, "agrees" if good else "fails", int(row[1]), 2, told)]
        place = judged(arrays)
        position, velocity = (float(x) for x in arrays["two_pairs"][place])
        for name, value in (("position", position), ("velocity", velocity)):
            status, statement = (
                "agrees" if value >= KEPT else "fails",
                f"R² of the {name} from two pairs of frequency 1",
            )
            results.append(Outcome(f"layer {place + 1}: {statement}, at least", status, value, KEPT))
        alone = float(arrays["one_pair"][place, 1])
        why = "" if alone < LOST else "the stronger pair has the velocity already"
        name = f"layer {place + 1}: R² of the velocity from the stronger pair alone, at most"
        results.append(Outcome(name, "agrees" if alone < LOST else "differs", alone, LOST, why))
        missed = float(arrays["missed"])
        status = "agrees" if missed <= MISSED else "fails"
        results.append(Outcome("new flights: share of the frames' variance missed, at most", status, missed, MISSED))
        done = bool(arrays["converged"])
        why = "" if done else "the training did not meet its criterion; what is shown still moves slightly"
        results.append(Outcome("training converged", "agrees" if done else "differs", done, True, why))
        return results

    def plot(self, arrays: Mapping[str, Array], figure: Figure) -> None:
        """(a) flights; (b) singular values coloured by frequency; (c) the state from the waves of frequency 1."""
        draw_ball(figure, arrays, layer=judged(arrays) + 1)


def judged(arrays: Mapping[str, Array]) -> int:
    """Index of the layer whose state is judged: in the middle of the narrowest ones, or of all."""
    layers = np.flatnonzero(arrays["narrow"])
    return int(layers[len(layers) // 2]) if len(layers) else len(arrays["narrow"]) // 2


def pairs_of(Z: Array) -> Array:
    """Coefficients at ω = 1 of the two strongest combinations of channels of Z (N, c, n): real, then imaginary parts.

    Centred over the samples; combinations are the leading right singular vectors of the coefficients (N, c).
    """
    first = np.fft.fft(Z - Z.mean(axis=0), axis=2)[:, :, 1] / math.sqrt(Z.shape[2])
    two = first @ np.linalg.svd(first, full_matrices=False)[2][:2].conj().T
    return np.concatenate([two.real, two.imag], axis=1)


def _scores(P: Array, wanted: Array) -> Array:
    """R² of the position, the worse of its cosine and sine, and of the velocity."""
    cosine, sine, velocity = explained(P, wanted)
    return np.array([min(cosine, sine), velocity])


def _channels(found: FrequencyReading, frequencies: int) -> Array:
    """Number of values that stand out at each frequency 0 … n/2."""
    counts = np.zeros(frequencies, dtype=np.int64)
    for one in found.kept:
        counts[abs(one.frequency[0])] = one.channels
    return counts
