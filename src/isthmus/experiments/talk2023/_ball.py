"""F-talk-1: a convolutional network learns the flight of a ball from frames; what its middle layers keep of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.discovery import explained
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.measures import filter_spectra, kept_frequencies
from isthmus.measures._frequencies import FrequencyReading
from isthmus.networks import ConvolutionalNet
from isthmus.objective import constant_cost, cost
from isthmus.plotting.draw import draw
from isthmus.plotting.frequencies import through_depth
from isthmus.plotting.style import PALETTE, dress
from isthmus.runs import Outcome
from isthmus.training import Phase, TrainingResult, minimise

Array = np.ndarray

#: R² from which on a quantity counts as kept, and below which as lost; share of the variance that may be missed.
KEPT, LOST, MISSED = 0.95, 0.5, 0.05

#: Flights shown.
SHOWN = 3

PAIRS = Quote(
    "The network keeps position and velocity in two freq. 1 pairs.",
    "talk2023, slide 'Learning Newtonian Mechanics', caption (b)",
)


@cites("talk2023", "Slide 'Learning Newtonian Mechanics'", ids=("F-talk-1",))
@dataclass(frozen=True, kw_only=True)
class FallingBall(Experiment):
    """From the last frames of a ball, the next ones: position and velocity in waves of frequency 1.

    Frames are signals on a periodic line, heights y(t) = y + vt − ½gt² wrapped around it, the ball a bump of the shape
    exp(κ(cos ϕ − 1)). A shift of all frames shifts the future: the task is equivariant. The state (y, v) is the phase
    of two waves; or of one, with the velocity, which no shift changes, in its size or in a constant channel. Velocities
    are all those that frames can tell apart, |v| ≤ n/2: an angle, as the position is, which no size and no constant can
    hold. In trials with |v| ≤ n/6 the best networks kept one pair. The slides show pictures alone; the set-up is ours.
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
    speed: float = parameter(6.0, "largest |v|, in places per frame; n/2 makes it an angle", low=1e-3, high=1000.0)
    sharpness: float = parameter(3.0, "κ of the bump", low=0.01, high=1000.0)
    samples: int = parameter(300, "N, training samples", low=20, high=10**6)
    test_samples: int = parameter(300, "held out; everything is measured on them", low=100, high=10**5)
    depth: int = parameter(9, "L, filters", low=3, high=1000)
    channels: int = parameter(8, "channels of the hidden layers", low=2, high=1000)
    lam: float = parameter(1.0, "λ", low=1e-9, high=1e3)
    starts: int = parameter(4, "networks from different random weights; that of least loss is shown", low=1, high=100)
    steps: int = parameter(0, "quasi-Newton steps of a short training; 0: the plan of `train`", low=0, high=10**6)

    @classmethod
    def quick(cls) -> Self:
        """Fewer places, layers, channels, frames and samples, a short training."""
        small = {"size": 10, "samples": 60, "test_samples": 150, "depth": 8, "channels": 4, "starts": 1}
        return cls(future=2, speed=5.0, lam=0.4, steps=500, **small)

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

    def network(self, start: int = 0) -> ConvolutionalNet:
        """A network with random weights."""
        widths = [self.past, *[self.channels] * (self.depth - 1), self.future]
        return ConvolutionalNet(
            widths, (self.size,), dtype=torch.float64, generator=torch.Generator().manual_seed(1000 * self.seed + start)
        )

    def fit(self, net: ConvolutionalNet, progress: ProgressFactory) -> TrainingResult:
        """Train ``net`` in place."""
        X, Y, _ = self.flights(self.samples, 0)
        short = [Phase("scale", 1), Phase("adam", self.steps // 2, 1e-2, anneal=True), Phase("lbfgs", self.steps)]
        # The state is in the arrays and in a condition.
        plan = short if self.steps else None
        return minimise(net, X, Y, ridge=self.lam, phases=plan, tolerance=1e-3, progress=progress)

    def compute(self, progress: ProgressFactory) -> dict[str, Array]:
        """Train the networks; look at what the layers of the best keep of new flights, and at the others beside it."""
        found = []
        for start in range(self.starts):
            net = self.network(start)
            result = self.fit(net, progress)
            scalars = {"converged": np.array(result.at_rest), "loss": np.array(result.loss)}
            found.append({**self.look(net), **scalars})
        best = min(found, key=lambda arrays: float(arrays["loss"]))
        kept = np.stack([_kept(arrays) for arrays in found])
        return {**best, "losses": np.stack([arrays["loss"] for arrays in found]), "kept": kept}

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
        pairs = [flight_pairs(Z.numpy()) for Z in trace.preactivations]
        angles = 2.0 * np.pi * state / self.size
        wanted = np.stack([np.cos(angles), np.sin(angles)], axis=2)
        return {
            "values": values,
            "turns": spectra[0].signed.numpy(),
            "weights": np.stack([_channels(one.weights, F) for one in kept.through_depth]),
            "signals": np.stack([_channels(one.signals, F) for one in kept.through_depth]),
            "narrow": narrow,
            "two_pairs": np.stack([_scores(P, wanted) for P in pairs]),
            "one_pair": np.stack([_scores(P[:, [0, 2]], wanted) for P in pairs]),
            "constant": np.stack([_scores(constant_of(Z.numpy()), wanted) for Z in trace.preactivations]),
            "missed": np.array(float(cost(outputs, torch.from_numpy(Y))) / constant_cost(torch.from_numpy(Y))),
            "seen": X[:SHOWN].reshape(SHOWN, self.past, self.size),
            "came": Y[:SHOWN].reshape(SHOWN, self.future, self.size),
            "predicted": outputs[:SHOWN].numpy().reshape(SHOWN, self.future, self.size),
        }

    def outcomes(self, arrays: Mapping[str, Array]) -> list[Outcome]:
        """Frequencies of the narrowest layers, position and velocity in them; beside them prediction and the like."""
        layers, row, place = 1 + np.flatnonzero(arrays["narrow"]), _kept(arrays), judged_kept(arrays)
        clear = len(layers) > 0
        why = f"layers {', '.join(map(str, layers))}" if clear else "no layers are clearly the narrowest"
        kept = ", ".join(str(k) for k in range(1, len(row)) if row[k] > 0) if clear else None
        pair, constant = float(arrays["one_pair"][place, 1]), float(arrays["constant"][place, 1])
        lone = f"R² of the velocity: {pair:.2f} from the size of this wave, {constant:.2f} from a constant channel"
        count, one = int(row[1]), clear and int(row[1]) == 1
        statements = [
            PAIRS.judge("frequencies that the narrowest layers keep", kept == "1" if clear else None, kept, "1", why),
            PAIRS.judge(
                "pairs of frequency 1 that they keep",
                count == 2 if clear else None,
                count if clear else None,
                2,
                lone if one else why,
                otherwise="differs" if one else "fails",
            ),
        ]
        for i, what in enumerate(("position", "velocity")):
            value = float(arrays["two_pairs"][place, i])
            name = f"layer {place + 1}: R² of the {what} from waves of frequency 1, at least"
            statements.append(PAIRS.judge(name, value >= KEPT, value, KEPT))
        converged = condition("training converged", bool(arrays["converged"]))
        missed = float(arrays["missed"])
        name = "new flights: share of the frames' variance missed, at most"
        learned = condition(name, missed <= MISSED, missed, MISSED)
        name = f"layer {place + 1}: R² of the velocity from the stronger pair alone, at most"
        alone = condition(name, pair < LOST, pair, LOST)
        return [*under([converged, learned], statements), converged, learned, alone, *self._stability(arrays)]

    def _stability(self, arrays: Mapping[str, Array]) -> list[Outcome]:
        """Whether the other starts end with the same waves, if there are others."""
        kept, losses = arrays["kept"], arrays["losses"]
        if len(losses) < 2:
            return []
        same = int((kept == kept[int(np.argmin(losses))]).all(axis=1).sum())
        rows = [f"{_told(kept[i])} ({losses[i]:.4g})" for i in np.argsort(losses)]
        why = f"waves kept, with the loss: {'; '.join(rows)}"
        return [
            condition("starts that end with the same waves as the best", same == len(losses), same, len(losses), why)
        ]

    def plot(self, arrays: Mapping[str, Array], figure: Figure) -> None:
        """(a) flights; (b) singular values coloured by frequency; (c) the state from the waves of frequency 1."""
        draw_ball(figure, arrays, layer=judged_kept(arrays) + 1)


def judged_kept(arrays: Mapping[str, Array]) -> int:
    """Index of the layer whose state is judged: in the middle of the narrowest ones, or of all."""
    layers = np.flatnonzero(arrays["narrow"])
    return int(layers[len(layers) // 2]) if len(layers) else len(arrays["narrow"]) // 2


def _kept(arrays: Mapping[str, Array]) -> Array:
    """Channels that the narrowest layers keep at each frequency; −1 where no layers are clearly the narrowest."""
    layers = np.flatnonzero(arrays["narrow"])
    signals = arrays["signals"]
    return signals[layers[0]] if len(layers) else np.full(signals.shape[1], -1)


def _told(row: Array) -> str:
    if (row < 0).any():
        return "undetermined"
    return ", ".join(f"{n} of frequency {k}" for k, n in enumerate(row) if k and n) or "none"


def flight_pairs(Z: Array) -> Array:
    """Coefficients at ω = 1 of the two strongest combinations of channels of Z (N, c, n): real, then imaginary parts.

    Centred over the samples; combinations are the leading right singular vectors of the coefficients (N, c).
    """
    first = np.fft.fft(Z - Z.mean(axis=0), axis=2)[:, :, 1] / math.sqrt(Z.shape[2])
    two = first @ np.linalg.svd(first, full_matrices=False)[2][:2].conj().T
    return np.concatenate([two.real, two.imag], axis=1)


def constant_of(Z: Array) -> Array:
    """The mean over places of the strongest combination of channels of Z (N, c, n), (N, 1): what ω = 0 carries."""
    mean = Z.mean(axis=2) - Z.mean(axis=(0, 2))
    return mean @ np.linalg.svd(mean, full_matrices=False)[2][:1].T


def _scores(P: Array, wanted: Array) -> Array:
    """R² of position and velocity, of each the worse of cosine and sine, from ``wanted`` (N, 2, 2)."""
    return explained(P, wanted.reshape(len(wanted), 4)).reshape(2, 2).min(axis=1)


def _channels(found: FrequencyReading, frequencies: int) -> Array:
    """Number of values that stand out at each frequency 0 … n/2."""
    counts = np.zeros(frequencies, dtype=np.int64)
    for one in found.kept:
        counts[abs(one.frequency[0])] = one.channels
    return counts


# ---- A ball in flight, the frequencies that a network keeps of it, and where its position and velocity are


def draw_ball(figure: Figure, arrays: Mapping[str, np.ndarray], *, layer: int) -> None:
    """(a) Frames seen, predicted and true; (b) s_{ω,i} of every filter by frequency; (c) R² of the state through depth.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``seen`` (flights, past, n), ``came`` and ``predicted`` (flights, future, n), ``values`` (L, F, r), NaN where a
        filter has fewer, ``turns`` (F, 1), ``two_pairs`` and ``one_pair`` (L, 2): R² of position and velocity.
    layer : int
        The one that is judged, from 1: marked.
    """
    flights, spectra, state = figure.subplots(1, 3, width_ratios=(1.0, 1.35, 1.0))
    seen, came, predicted = (arrays[name] for name in ("seen", "came", "predicted"))
    n, gap = seen.shape[2], 1
    columns, marks = [], []
    for past, true, guess in zip(seen, came, predicted):
        start = sum(len(c) for c in columns)
        for block in (past, guess, true):
            columns += [block, np.full((gap, n), np.nan)]
        edges = np.cumsum([start, len(past) + gap, len(guess) + gap])
        marks += list(zip(edges, (len(past), len(guess), len(true)), ("seen", "net", "true")))
        columns.append(np.full((gap, n), np.nan))
    shown = np.concatenate(columns).T
    flights.imshow(shown, origin="lower", aspect="auto", cmap="magma", interpolation="nearest")
    dress(flights, title="(a) Frames: seen, predicted, true", x="", y="height on the periodic line")
    flights.grid(False)
    flights.set_xticks([a + (b - 1) / 2 for a, b, _ in marks], [name for _, _, name in marks], rotation=90, fontsize=8)
    layers = len(arrays["values"])
    blocks = [np.where(np.isfinite(block), block, 0.0) for block in arrays["values"]]
    blocks = [block[:, np.isfinite(raw).all(axis=0)] for block, raw in zip(blocks, arrays["values"])]
    title = "(b) Singular values of the filters, by frequency"
    draw(spectra, through_depth(blocks, [arrays["turns"]] * layers), title=title)
    spectra.axvspan(layer - 0.5, layer + 0.5, color="#EEF3F8", zorder=0)
    number = np.arange(1, layers + 1)
    for name, column, style, colour, label in (
        ("two_pairs", 0, "o-", "blue", "position, two pairs"),
        ("two_pairs", 1, "s-", "vermilion", "velocity, two pairs"),
        ("one_pair", 0, "o:", "sky", "position, the stronger"),
        ("one_pair", 1, "s:", "orange", "velocity, the stronger"),
        ("constant", 1, "D:", "green", "velocity, a constant"),
    ):
        row = np.clip(arrays[name][:, column], -0.05, 1.0)
        state.plot(number, row, style, color=PALETTE[colour], label=label, markersize=5)
    state.axvspan(layer - 0.5, layer + 0.5, color="#EEF3F8", zorder=0)
    state.set_ylim(-0.08, 1.42)
    state.set_yticks(np.linspace(0.0, 1.0, 6))
    state.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(state, title="(c) The state in waves of frequency 1 and 0", x="layer ℓ", y="$R^2$ on new flights")
    state.legend(frameon=False, fontsize=9, loc="upper center", ncols=2)
