"""The walk down the ranks: the best network found through k coordinates, for k from wide to one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus import files
from isthmus._checks import fail
from isthmus._errors import IsthmusError
from isthmus._progress import Progress
from isthmus.discovery._fits import Fit, fit, narrow, unroll, weigh
from isthmus.networks import FullyConnected, Hourglass
from isthmus.training import Phase

#: Coordinates that move the outputs by less than this share (in mean square) are not used at all.
UNUSED = 1e-5

#: Coordinates of the network that the walk begins with.
WIDE = 16

#: Coordinates beyond the highest rank that are removed one by one, where removing all at once did not do.
MOST_EXTRA = 2

#: Training cost, relative to a constant's, above which a network has learned nothing.
COLLAPSED = 0.95

#: Neurons that a layer has even if there are fewer samples.
FEWEST_NEURONS = 16


@dataclass(frozen=True)
class Effort:
    """How networks are built and how long they are trained.

    Attributes
    ----------
    half : int
        Layers of the encoder, and of the decoder.
    width : int
    strength : float
        λ: the ridge is λ·(cost of the best constant)/depth, so that a coordinate costs at least the share λ of what
        there is to explain.
    warm, rise, first, each : int
        Steps of Adam, of L-BFGS with a growing ridge, and at the full ridge; steps after each narrowing.
    learning_rate : float
        Of Adam.
    init_scale : float
    tolerance : float
        Share of the best error by which another may exceed it, added to λ/2.
    """

    half: int = 4
    width: int = 64
    strength: float = 0.01
    warm: int = 30
    rise: int = 100
    first: int = 60
    each: int = 50
    learning_rate: float = 1e-3
    init_scale: float = 1.0
    tolerance: float = 0.1

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return 2 * self.half

    def slack(self, best: float) -> float:
        """How far an error may exceed the best one and still count as equal."""
        return self.tolerance * best + 0.5 * self.strength


@dataclass(frozen=True, eq=False)
class Data:
    """Scaled training and held-out rows; ``variance`` is the cost of the best constant on the training rows.

    That is the variance of the outputs, summed; for ``loss="cross_entropy"``, where Y are rows of 0 and 1, the entropy
    of the labels. ``clusters`` are the groups of the held-out rows, ``origins`` those of the training rows.
    """

    X: Tensor
    Y: Tensor
    X_held: Tensor
    Y_held: Tensor
    variance: float
    clusters: NDArray[np.int64] | None
    origins: NDArray[np.int64] | None = None
    loss: str = "mse"

    @torch.no_grad()
    def errors(self, net: Hourglass) -> NDArray[np.float64]:
        """Squared error (or log loss) of each held-out row relative to a constant's; of each cluster of rows."""
        return self._by_cluster(self._losses(self.held_outputs(net)))

    @torch.no_grad()
    def held_outputs(self, net: Hourglass) -> Tensor:
        """Outputs at the held-out rows, in float64."""
        return torch.cat([net(part) for part in self.X_held.split(4096)]).double()

    @property
    def baseline(self) -> NDArray[np.float64]:
        """The same for the best constant: the mean of the training rows (0 after scaling), the shares of classes."""
        outputs = torch.zeros_like(self.Y_held).double()
        if self.loss == "cross_entropy":
            # A class that only held-out rows have is rare, not impossible.
            outputs = outputs + torch.log(self.Y.double().sum(0) + 0.5)
        return self._by_cluster(self._losses(outputs))

    def _losses(self, outputs: Tensor) -> NDArray[np.float64]:
        Y = self.Y_held.double()
        if self.loss == "cross_entropy":
            losses = -(Y * torch.log_softmax(outputs, -1)).sum(1)
        else:
            losses = ((outputs - Y) ** 2).sum(1)
        return losses.numpy() / self.variance

    def _by_cluster(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.clusters is None:
            return squares
        _, index, counts = np.unique(self.clusters, return_inverse=True, return_counts=True)
        # Weighted so that the mean over clusters is the mean over rows.
        return np.bincount(index, squares).astype(np.float64) * (len(counts) / len(squares))


@dataclass(frozen=True, eq=False)
class Level:
    """The best network found through ``rank`` coordinates, and its held-out errors.

    ``start`` is ``"fresh"``, ``"narrowed"`` or ``"unrolled"``; ``tries`` counts the starts compared, by regularised
    loss on the training rows. ``shares`` are what each coordinate moves at the outputs.
    """

    rank: int
    fit: Fit
    errors: NDArray[np.float64]
    start: str
    tries: int
    shares: NDArray[np.float64]

    @property
    def error(self) -> float:
        """Held-out error relative to a constant's on the training rows."""
        return float(self.errors.mean())


def walk(
    data: Data,
    effort: Effort,
    highest: int,
    *,
    seed: int,
    name: str,
    stages: Stages,
    bar: Progress,
    bound: int | None = None,
    down_to: int = 1,
    to_the_end: bool = True,
) -> list[Level]:
    """A wide level, then those from ``highest`` down; past the first rank that does not suffice only if ``to_the_end``.

    Wide networks are easy to train, narrow ones are not: the first has WIDE coordinates whatever the rank can be, and
    each level starts from the one above it, its least important coordinate removed. The first level that does worse is
    tried again from an unrolled surface and trained longer, because it is the one on which the answer hangs. At the
    rank ``bound`` it does not: by theorem that one suffices, however much better the wide network predicts; where
    it does, another is trained from random weights.
    """
    ridge = effort.strength * data.variance / effort.depth

    def stage(label: str, make: Callable[[], Fit]) -> Fit:
        return stages.get(f"{name}-{label}", make)

    def polished(net: Hourglass, steps: int, offset: int) -> Fit:
        return _fit(data, net, ridge, steps=steps, seed=seed + offset)

    def worse(found: Fit) -> bool:
        """Whether it predicts held-out rows less well than the best level so far."""
        return bool(data.errors(found.network).mean() - best > effort.slack(best))

    wide = max(WIDE, highest + 1)
    first = stage("wide", lambda: _fresh(data, effort, wide, ridge, seed))
    if not np.isfinite(data.errors(first.network)).all():
        do = "Lower `init_scale`, `learning_rate` or `depth`."
        fail("discover", "the first network must have finite outputs", "overflow", do)
    levels = [_level(data, wide, first, "fresh", 1)]
    best = levels[0].error
    bar.advance(effort.warm + effort.rise + effort.first, error=best)
    used = int((levels[0].shares > UNUSED).sum())
    rank = max(min(used, highest), down_to)
    failed = False
    while rank >= down_to:
        above = levels[-1].fit.network
        steps = effort.each if not failed else max(effort.each // 2, 1)
        found = stage(f"{rank}", lambda: polished(narrow(above, data.X, rank), steps, rank))  # noqa: B023
        start, tries = "narrowed", 1
        bar.advance(steps)
        if len(levels) == 1 and rank < used and worse(found):
            # Many coordinates went at once: one by one they take less with them.
            gentle = above
            for more in range(min(used - 1, rank + MOST_EXTRA), rank - 1, -1):
                start_there = narrow(gentle, data.X, more)
                other = stage(f"{more}-by-one", lambda: polished(start_there, effort.each, more))  # noqa: B023
                gentle = other.network
                bar.advance(effort.each)
                if more == rank and other.loss < found.loss:
                    found = other
            tries = 2
        if rank == bound and worse(found):
            # By theorem so many suffice: this one has torn on its way down, as one that begins with so many need not.
            other = stage(f"{rank}-anew", lambda: _fresh(data, effort, rank, ridge, seed + rank))  # noqa: B023
            bar.advance(effort.warm + effort.rise + effort.first)
            tries += 1
            if other.loss < found.loss:
                longer = stage(f"{rank}-settled", lambda: polished(copy_of(other.network), 2 * effort.each, 200 + rank))  # noqa: B023
                bar.advance(2 * effort.each)
                found, start = (longer if longer.loss < other.loss else other), "fresh"
        if not failed and rank != bound and worse(found):
            other = stage(f"{rank}-unrolled", lambda: _unrolled(data, effort, above, rank, ridge, seed, found))  # noqa: B023
            if other.loss < found.loss:
                found, start = other, "unrolled"
            longer = stage(f"{rank}-longer", lambda: polished(copy_of(found.network), effort.each, 100 + rank))  # noqa: B023
            found, tries = (longer if longer.loss < found.loss else found), tries + 2
            failed = worse(found)
            bar.advance(3 * effort.each)
        levels.append(_level(data, rank, found, start, tries))
        best = min(best, levels[-1].error)
        bar.advance(0, rank=rank, error=levels[-1].error)
        if failed and not to_the_end:
            break
        rank -= 1
    return levels


def refine(
    data: Data, effort: Effort, levels: list[Level], *, seed: int, name: str, stages: Stages, bar: Progress
) -> list[Level]:
    """The same levels after further training at a tenth of the ridge, where smaller differences show."""
    finer = dataclasses.replace(effort, strength=0.1 * effort.strength)
    options = {"seed": seed, "stages": stages, "bar": bar}
    return [polish(data, finer, level, name=f"{name}-{level.rank}-fine", **options) for level in levels]


def wide_and_fine(data: Data, effort: Effort, *, seed: int, name: str, stages: Stages, bar: Progress) -> Level:
    """A wide network trained from the start at a tenth of the ridge: what the walk's ridge had removed may be in it."""
    finer = dataclasses.replace(effort, strength=0.1 * effort.strength)
    return wide_level(data, finer, WIDE, seed=seed + WIDE, name=f"{name}-wide-fine", stages=stages, bar=bar)


def wide_level(data: Data, effort: Effort, rank: int, *, seed: int, name: str, stages: Stages, bar: Progress) -> Level:
    """A network through ``rank`` coordinates, more than are needed, trained from random weights."""
    ridge = effort.strength * data.variance / effort.depth
    found = stages.get(name, lambda: _fresh(data, effort, rank, ridge, seed))
    bar.advance(effort.warm + effort.rise + effort.first)
    return _level(data, rank, found, "fresh", 1)


def polish(data: Data, effort: Effort, level: Level, *, seed: int, name: str, stages: Stages, bar: Progress) -> Level:
    """The same level after further training at the ridge of ``effort``."""
    ridge = effort.strength * data.variance / effort.depth

    def further() -> Fit:
        return _fit(data, copy_of(level.fit.network), ridge, steps=effort.each, seed=seed + level.rank)

    found = stages.get(name, further)
    bar.advance(effort.each)
    return _level(data, level.rank, found, level.start, level.tries)


def _fit(data: Data, net: Hourglass, ridge: float, **options: Any) -> Fit:
    return fit(net, data.X, data.Y, ridge, scale=data.variance, loss=data.loss, **options)


def _level(data: Data, rank: int, found: Fit, start: str, tries: int) -> Level:
    shares = weigh(found.network, data.X).shares
    return Level(rank, found, data.errors(found.network), start, tries, shares)


def copy_of(net: Hourglass) -> Hourglass:
    """The same network with its own weights."""
    return Hourglass(net.encoder(), net.decoder())


def _fresh(data: Data, effort: Effort, rank: int, ridge: float, seed: int) -> Fit:
    """The widest network, from random weights; from larger ones if these were so small that nothing was learned."""
    found = _from_random(data, effort, rank, ridge, seed, effort.init_scale)
    if found.cost > COLLAPSED and effort.init_scale < 1.0:
        # Through many layers small weights are as good as none: the ridge then removes them before they have learned.
        found = _from_random(data, effort, rank, ridge, seed, 1.0)
    return found


def _from_random(data: Data, effort: Effort, rank: int, ridge: float, seed: int, scale: float) -> Fit:
    # More neurons than samples would only take time.
    hidden = [min(effort.width, max(FEWEST_NEURONS, len(data.X)))] * (effort.half - 1)
    net = Hourglass.fresh(
        [data.X.shape[1], *hidden, rank],
        [rank, *hidden, data.Y.shape[1]],
        init_scale=scale,
        dtype=data.X.dtype,
        generator=torch.Generator().manual_seed(seed),
    )
    warm = [Phase("scale", 1), Phase("adam", effort.warm, effort.learning_rate, ridge_start=0.1, ridge_end=0.1)]
    return _fit(data, net, ridge, steps=effort.first, rise=effort.rise, before=warm, seed=seed)


def _unrolled(data: Data, effort: Effort, above: Hourglass, rank: int, ridge: float, seed: int, otherwise: Fit) -> Fit:
    net = unroll(above, data.X, data.Y, ridge, rank, steps=effort.each, seed=seed + rank, loss=data.loss)
    if net is None:
        return otherwise
    return _fit(data, net, ridge, steps=effort.each, seed=seed + rank)


# ---- What has been trained so far, kept in a folder: a killed discovery continues from there to the same answer


_KIND = "discovery stage"


def fingerprint(settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """SHA-256 of settings and data."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    text = json.dumps({**settings, "data": files.fingerprint(tensors)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Stages:
    """Fits by name, in memory or in ``folder``; those of another discovery are not used.

    Each fit is a function of the fits before it and of its own seed, so that the ones read back and the ones repeated
    are the same bits.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        self.folder, self.identity = folder, identity
        #: How many fits came from the folder.
        self.reused = 0

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def get(self, name: str, make: Callable[[], Fit]) -> Fit:
        """The fit of that name: read if it was kept, otherwise made and kept."""
        found = self.read(name)
        if found is None:
            found = make()
            self.write(name, found)
        return found

    def read(self, name: str) -> Fit | None:
        """The fit, or None if it is not there, damaged, or of another discovery."""
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        try:
            tensors, metadata = files.read_tensors(path)
            wanted = {"kind": _KIND, "identity": self.identity, "name": name}
            if any(metadata.get(key) != value for key, value in wanted.items()):
                return None
            numbers = json.loads(metadata["numbers"])
            found = _build(tensors, numbers)
        except (IsthmusError, KeyError, ValueError, TypeError):
            # Training it again ends in the same bits, only later.
            return None
        self.reused += 1
        return found

    def write(self, name: str, fit: Fit) -> None:
        """Keep a fit; nothing without a folder."""
        path = self._path(name)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        net = fit.network
        numbers = {
            "waist": net.waist,
            "slope": net.slope,
            "bias": net.bias,
            **{key: repr(getattr(fit, key)) for key in ("cost", "loss", "norm", "rest")},
            "state": fit.state,
        }
        tensors = {key: p.detach() for key, p in net.named_parameters()}
        metadata = {"kind": _KIND, "identity": self.identity, "name": name, "numbers": json.dumps(numbers)}
        files.write_tensors(path, tensors, metadata)

    def clear(self) -> None:
        """Remove what was kept, once the answer is written."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _build(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> Fit:
    depth = sum(name.startswith("weights.") for name in tensors)
    Ws, bs = ([tensors[f"{kind}.{i}"] for i in range(depth)] for kind in ("weights", "biases"))
    m, shape = int(numbers["waist"]), {"slope": float(numbers["slope"]), "bias": float(numbers["bias"])}
    with torch.random.fork_rng(devices=[]):
        net = Hourglass(
            FullyConnected.from_weights(Ws[:m], bs[:m], **shape), FullyConnected.from_weights(Ws[m:], bs[m:], **shape)
        )
    cost, loss, norm, rest = (float(numbers[key]) for key in ("cost", "loss", "norm", "rest"))
    return Fit(net, cost, loss, norm, rest, str(numbers["state"]))
