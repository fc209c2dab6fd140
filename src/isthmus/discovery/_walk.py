"""The walk down the ranks: the best network found through k coordinates, for k from wide to one."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from isthmus import files
from isthmus._atomic import check_writable
from isthmus._checks import fail
from isthmus._errors import IsthmusError
from isthmus._inside import Inside, clear_remains
from isthmus._progress import Progress, Quiet
from isthmus._settings import Settings
from isthmus.discovery._fits import PATIENCE, Fit, narrow, quasi_newton_fit, unroll, weigh
from isthmus.discovery._task import Data
from isthmus.networks import FullyConnected, SmoothNetwork
from isthmus.networks._direct import use_threads
from isthmus.networks._network import from_parts, to_parts
from isthmus.networks._standardized import FAMILIES
from isthmus.training import Phase

#: Coordinates that move the outputs by less than this share (in mean square) are not used at all.
UNUSED = 1e-5

#: Coordinates of the network that the walk begins with.
WIDE = 16

#: Training cost, relative to a constant's, above which a network has learned nothing.
COLLAPSED = 0.95

#: Neurons that a layer has even if there are fewer samples.
FEWEST_NEURONS = 16

#: Rows of a mini-batch, and how many times `steps` mini-batches there are at most: with more rows, batches are larger.
BATCH, MOST_BATCHES = 64, 30

#: Share of the best error by which another may exceed it, beside λ/2: where the error is what the data leave, and where
#: it still falls with the ridge, so that it is how well networks approximate, which differs from one to the next.
TOLERANCE, ROUGH = 0.1, 0.5

#: Passes over the rows of a network that begins anew at a rank where the walk may have missed a better one.
MORE_PASSES = 2.0

#: The walk begins where the wide network can be cut, without training, at this many times the slack more error.
CUT = 3.0


def slack(best: float, strength: float, tolerance: float = TOLERANCE) -> float:
    """How far an error may exceed the best one and still count as equal, at the ridge λ."""
    return tolerance * best + 0.5 * strength


@dataclass(frozen=True, eq=False)
class Context:
    """What the trainings of one walk share: its rows, how they are trained, and where each is kept and shown.

    Attributes
    ----------
    data : Data
    settings : Settings
    stages : Stages
    bar : Progress
    depth : int
        L, the number of weight matrices, half of them of the encoder; further walks have another than the settings.
    strength : float
        λ: the ridge is λ·(cost of the best constant)/depth, so that a coordinate costs at least the share λ of what
        there is to explain.
    seed : int
    name : str
        Of the walk.
    tolerance : float
        Share of the best error by which another may exceed it.
    finest : float
        What explains less than this share is not looked for, however small the ridge.
    smooth : bool
        Whether activations are SiLU.
    n_jobs : int
        Processes for trainings that do not depend on each other.
    larger : tuple of float
        λ, falling, at which networks from random weights are trained before: a small ridge alone does not keep them
        simple.
    """

    data: Data
    settings: Settings
    stages: Stages
    bar: Progress
    depth: int
    strength: float
    seed: int
    name: str = "main"
    tolerance: float = TOLERANCE
    finest: float = 0.0
    smooth: bool = True
    n_jobs: int = 1
    larger: tuple[float, ...] = ()

    def alone(self) -> Context:
        """What a training needs of it in another process: no folder, nothing to show."""
        return dataclasses.replace(self, stages=Stages(None, ""), bar=Quiet())

    @property
    def resolution(self) -> float:
        """What explains about this share of what there is to explain counts."""
        return max(self.strength, self.finest)

    def slack(self, best: float) -> float:
        """How far an error may exceed the best one and still count as equal."""
        return slack(best, self.resolution, self.tolerance)

    @property
    def ridge(self) -> float:
        """What multiplies ‖θ‖²."""
        return self.strength * self.data.variance / self.depth

    def fit(self, net: FullyConnected, steps: int, offset: int = 0, **options: Any) -> Fit:
        """Train ``net`` in place on the training rows, from the seed that lies ``offset`` further."""
        data, seed = self.data, self.seed + offset
        return quasi_newton_fit(
            net, data.X, data.Y, self.ridge, steps=steps, scale=data.variance, loss=data.loss, seed=seed, **options
        )


@dataclass(frozen=True, eq=False)
class Level:
    """The best network found through ``rank`` coordinates, and its held-out errors.

    ``start`` is ``"fresh"`` (the wide network), ``"narrowed"``, ``"anew"``, ``"unrolled"`` or ``"ring"``;
    ``tries`` counts the starts compared on the training rows. ``shares`` are what each coordinate moves at the outputs.
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
    context: Context,
    highest: int,
    *,
    begin: Level | None = None,
    bound: int | None = None,
    down_to: int = 1,
    meanwhile: Callable[[int, bool], None] | None = None,
) -> list[Level]:
    """A wide level, then those from ``highest`` down to ``down_to``.

    Wide networks are easy to train, narrow ones are not: the first has WIDE coordinates whatever the rank can be, and
    each level starts from the one above it, its least important coordinate removed. The first level that does worse is
    tried again from an unrolled surface and trained longer, because it is the one on which the answer hangs. At the
    rank ``bound`` it does not: by theorem that one suffices, however much better the wide network predicts; where
    it does, another is trained from random weights. ``begin`` is a wide level that is there already. ``meanwhile`` is
    called with the first rank that seems not to suffice and False, and with True once it is sure.
    """
    data, bar, each = context.data, context.bar, context.settings.steps

    def stage(label: str, make: Callable[[], Fit]) -> Fit:
        return context.stages.get(f"{context.name}-{label}", make)

    def worse(found: Fit) -> bool:
        """Whether it predicts held-out rows less well than the best level so far."""
        return bool(data.errors(found.network).mean() - best > context.slack(best))

    levels = [wide_level(context, highest) if begin is None else begin]
    best = levels[0].error
    used = int((levels[0].shares > UNUSED).sum())
    rank = max(min(_cut_to(context, levels[0], used), highest), down_to)
    failed = False
    while rank >= down_to:
        above = levels[-1].fit.network
        # Below what suffices errors are only shown, not judged.
        steps, patience = (each, PATIENCE) if not failed else (max(each // 2, 1), 1.0)
        found = stage(f"{rank}", lambda: context.fit(narrow(above, data.X, rank), steps, rank, patience=patience))  # noqa: B023
        start, tries = "narrowed", 1
        bar.advance(steps)
        if len(levels) == 1 and rank < min(used, highest) and worse(found):
            # Too many coordinates went at once.
            rank = min(rank + 2, used, highest)
            continue
        if rank == bound and worse(found):
            # By theorem so many suffice: this one has torn on its way down, as one that begins with so many need not.
            other = stage(f"{rank}-bound", lambda: _fresh(context, rank, rank))  # noqa: B023
            bar.advance(context.settings.first)
            tries += 1
            if other.loss < found.loss:
                again = copy.deepcopy(other.network)
                longer = stage(f"{rank}-settled", lambda: context.fit(again, 2 * each, 200 + rank))  # noqa: B023
                bar.advance(2 * each)
                found, start = (longer if longer.loss < other.loss else other), "anew"
        if not failed and rank != bound and worse(found):
            if meanwhile is not None:
                meanwhile(rank, False)
            other = stage(f"{rank}-longer", lambda: _stirred(context, found.network, rank))  # noqa: B023
            found, tries = (other if other.loss < found.loss else found), tries + 1
            failed = worse(found)
            bar.advance(2 * each)
            if failed and meanwhile is not None:
                meanwhile(rank, True)
        levels.append(_level(data, rank, found, start, tries))
        best = min(best, levels[-1].error)
        bar.advance(0, rank=rank, error=levels[-1].error)
        rank -= 1
    return levels


def wide_level(context: Context, highest: int) -> Level:
    """A network through more coordinates than are needed, trained from random weights."""
    wide = max(WIDE, highest + 1)
    found = context.stages.get(f"{context.name}-wide", lambda: _fresh(context, wide))
    if not np.isfinite(context.data.errors(found.network)).all():
        do = "Lower `init_scale`, `learning_rate` or `depth`."
        fail("discover", "the first network must have finite outputs", "overflow", do)
    level = _level(context.data, wide, found, "fresh", 1)
    context.bar.advance(context.settings.first, error=level.error)
    return level


def wide_again(context: Context, name: str, wide: int, passes: float) -> Level:
    """Another one through ``wide`` coordinates, trained so many times as long."""
    found = context.stages.get(f"{context.name}-{name}", lambda: _fresh(context, wide, WIDE, passes))
    context.bar.advance(context.settings.first)
    return _level(context.data, wide, found, "fresh", 1)


def _cut_to(context: Context, wide: Level, used: int) -> int:
    """The rank to begin with: one more than the least to which the network can be cut at not much more error."""
    data, net = context.data, wide.fit.network
    allowed = wide.error + CUT * context.slack(wide.error)
    for rank in range(1, used):
        if data.errors(narrow(net, data.X, rank)).mean() <= allowed:
            return rank + 1
    return used


def closer_starts(context: Context, level: Level, above: Level | None) -> dict[str, Callable[[], Fit]]:
    """Name of the start → further trainings at the rank of a level.

    Levels that are compared should have been trained alike: what a walk hands down may be in a worse valley at one
    rank than at the next. With the level ``above`` also one that begins with its surface, unrolled.
    """
    rank, starts = level.rank, {"anew": anew(context, level.rank)}
    context = context.alone()
    if above is not None:
        starts["unrolled"] = lambda: _unrolled(context, above.fit.network, rank, level.fit)
        starts["ring"] = lambda: _unrolled(context, above.fit.network, rank, level.fit, ring=True)
    return starts


def anew(context: Context, rank: int) -> Callable[[], Fit]:
    """A training at that rank from random weights, of another seed than that of the walk, and longer."""
    context = context.alone()
    return lambda: _fresh(context, rank, 500 + rank, MORE_PASSES)


def best_of(context: Context, level: Level, others: dict[str, Fit]) -> Level:
    """The level with the best fit: the training decides, held-out rows must not.

    That is the one of least loss; where errors are approximations and the ridge is small, of least cost.
    """
    by = "loss" if context.tolerance <= TOLERANCE else "cost"
    start, fit = min([(level.start, level.fit), *others.items()], key=lambda item: getattr(item[1], by))
    return _level(context.data, level.rank, fit, start, level.tries + len(others))


def alone(context: Context, ranks: Sequence[int]) -> dict[int, Callable[[], Fit]]:
    """Rank → training from random weights at that rank."""
    context = context.alone()
    return {rank: lambda rank=rank: _fresh(context, rank, rank, MORE_PASSES) for rank in ranks}


def level_of(context: Context, rank: int, fit: Fit, start: str) -> Level:
    """A network trained alone, with its held-out errors."""
    return _level(context.data, rank, fit, start, 1)


def _stirred(context: Context, net: FullyConnected, rank: int) -> Fit:
    """A copy trained further: by passes of Adam, which leave the valley it is in, and again to rest."""
    settings = context.settings
    before = _passes(context, 0.5 * settings.learning_rate)
    return context.fit(copy.deepcopy(net), 2 * settings.steps, 100 + rank, before=before)


def further(context: Context, level: Level, *, briefly: bool = False) -> Callable[[], Fit]:
    """A training that goes on from the network of a level at the ridge of ``context``: to rest, or some steps only."""
    context, net, rank = context.alone(), level.fit.network, level.rank
    steps, patience = (context.settings.steps, 1.0) if briefly else (2 * context.settings.steps, PATIENCE)
    return lambda: context.fit(copy.deepcopy(net), steps, rank, patience=patience)


def train_further(context: Context, level: Level, name: str, *, briefly: bool = False) -> Level:
    """The same level after that; kept as ``name``."""
    found = context.stages.get(name, further(context, level, briefly=briefly))
    context.bar.advance((1 if briefly else 2) * context.settings.steps)
    return _level(context.data, level.rank, found, level.start, level.tries)


def _level(data: Data, rank: int, found: Fit, start: str, tries: int) -> Level:
    shares = weigh(found.network, data.X).shares
    return Level(rank, found, data.errors(found.network), start, tries, shares)


def _fresh(context: Context, rank: int, offset: int = 0, passes: float = 1.0) -> Fit:
    """A network from random weights; from larger ones if these were so small that nothing was learned."""
    scale = context.settings.init_scale
    found = _from_random(context, rank, offset, scale, passes)
    if found.cost > COLLAPSED and scale < 1.0:
        # Through many layers small weights are as good as none: the ridge then removes them before they have learned.
        found = _from_random(context, rank, offset, 1.0, passes)
    return found


def _from_random(context: Context, rank: int, offset: int, scale: float, passes: float) -> Fit:
    data, settings = context.data, context.settings
    # More neurons than samples would only take time.
    hidden = [min(settings.width, max(FEWEST_NEURONS, len(data.X)))] * (context.depth // 2 - 1)
    family = SmoothNetwork if context.smooth else FullyConnected
    net = family.hourglass(
        [data.X.shape[1], *hidden, rank],
        [rank, *hidden, data.Y.shape[1]],
        init_scale=scale,
        dtype=data.X.dtype,
        generator=torch.Generator().manual_seed(context.seed + offset),
    )
    before = [Phase("scale", 1), *_passes(context, settings.learning_rate, passes)]
    return context.fit(net, settings.first, offset, before=before)


def _passes(context: Context, rate: float, times: float = 1.0) -> list[Phase]:
    """Adam in mini-batches, which finds better valleys than quasi-Newton steps from random weights.

    It is at the largest ridge, and quasi-Newton steps there and at the smaller ones follow.
    """
    factors = [strength / context.strength for strength in context.larger]
    rows, settings = len(context.data.X), context.settings
    most = MOST_BATCHES * settings.steps
    batch = max(BATCH, -(-rows * settings.passes // most))
    steps = round(times * min(most, settings.passes * max(1, -(-rows // BATCH))))
    batch, factor = min(batch, rows), [*factors, 1.0][0]
    return [
        Phase("adam", steps, rate, batch_size=batch, anneal=True, ridge_start=factor, ridge_end=factor),
        *(Phase("lbfgs", settings.first, ridge_start=factor, ridge_end=factor) for factor in factors),
    ]


def _unrolled(context: Context, above: FullyConnected, rank: int, otherwise: Fit, *, ring: bool = False) -> Fit:
    data, settings, seed = context.data, context.settings, context.seed + rank
    # Each half is begun like a network from random weights, and what they are together like one that is stirred.
    top = dataclasses.replace(context, strength=[*context.larger, context.strength][0], larger=())
    phases = [Phase("scale", 1), *_passes(top, settings.learning_rate), Phase("lbfgs", settings.first)]
    net = unroll(above, data.X, data.Y, top.ridge, rank, phases=phases, seed=seed, loss=data.loss, ring=ring)
    if net is None:
        return otherwise
    return context.fit(net, settings.first, rank, before=_passes(context, 0.5 * settings.learning_rate))


# ---- What has been trained so far, kept in a folder: a killed discovery continues from there to the same answer


_KIND = "discovery stage"

Result = TypeVar("Result")


def in_parallel(tasks: Sequence[Callable[[], Result]], n_jobs: int) -> Iterator[Result]:
    """Results in the order of the tasks, which are begun at once; each process computes with one thread."""
    if n_jobs == 1 or not tasks:
        # joblib ends its processes when what it gave for no tasks is thrown away.
        return map(one_thread, tasks)
    # loky's processes are kept: only the first call waits for their imports. Ray's or Dask's backend may be set.
    found: Any = Parallel(n_jobs=n_jobs, return_as="generator")(delayed(one_thread)(task) for task in tasks)
    return found


def one_thread(task: Callable[[], Result]) -> Result:
    """What the task gives, computed by one thread: then it does not depend on how many there are."""
    with threadpool_limits(1), use_threads(1):
        return task()


def identity_of(settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
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
        if folder is not None:
            # Noticed now, not after an hour of training.
            check_writable("discover", folder)
            clear_remains(Inside(folder.parent, folder.name))
        #: How many fits came from the folder.
        self.reused = 0
        #: Trainings under way in other processes.
        self.begun: dict[str, Any] = {}

    def _path(self, name: str) -> Inside | None:
        return None if self.folder is None else Inside(self.folder.parent, self.folder.name, f"{name}.safetensors")

    def get(self, name: str, make: Callable[[], Fit]) -> Fit:
        """The fit of that name: read if it was kept, otherwise made and kept."""
        return self.get_all({name: make}, 1)[0]

    def begin(self, wanted: dict[str, Callable[[], Fit]], n_jobs: int) -> None:
        """Have these fits, which will be asked for by name, trained by other processes meanwhile, if there are any."""
        for name, make in wanted.items() if n_jobs > 1 else ():
            if name not in self.begun and self.read(name, count=False) is None:
                self.begun[name] = in_parallel([make], n_jobs)

    def get_all(self, wanted: dict[str, Callable[[], Fit]], n_jobs: int) -> list[Fit]:
        """The fits of these names, which do not depend on each other: by joblib, in so many processes."""
        found = {name: self.read(name) for name in wanted if name not in self.begun}
        missing = [name for name, fit in found.items() if fit is None]
        under_way = [(name, self.begun.pop(name)) for name in wanted if name in self.begun]
        fits = in_parallel([wanted[name] for name in missing], n_jobs)
        # Each is kept as soon as it is there.
        there = ((name, fit) for name, one in under_way for fit in one)
        for name, fit in itertools.chain(there, zip(missing, fits, strict=True)):
            self.write(name, fit)
            found[name] = fit
        return [fit for fit in map(found.get, wanted) if fit is not None]

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Trainings that were begun and not needed are waited for at the end, or given up after a failure."""
        try:
            yield
        except BaseException:
            with warnings.catch_warnings():
                # joblib says how many tasks were cancelled.
                warnings.simplefilter("ignore")
                for fits in self.begun.values():
                    fits.close()
            raise
        else:
            for fits in self.begun.values():
                list(fits)
        finally:
            self.begun.clear()

    def read(self, name: str, *, count: bool = True) -> Fit | None:
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
        self.reused += count
        return found

    def write(self, name: str, fit: Fit) -> None:
        """Keep a fit; nothing without a folder."""
        path = self._path(name)
        if path is None:
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        config, tensors = to_parts(fit.network)
        numbers = {"network": config, **{key: repr(getattr(fit, key)) for key in ("cost", "loss", "norm", "rest")}}
        numbers |= {"state": fit.state, "family": type(fit.network).__name__}
        metadata = {"kind": _KIND, "identity": self.identity, "name": name, "numbers": json.dumps(numbers)}
        files.write_tensors(path, tensors, metadata)

    def clear(self) -> None:
        """Remove what was kept, once the answer is written."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)
        clear_remains(Inside(self.folder.parent, self.folder.name))
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def network_of(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> FullyConnected:
    """The network of a kept fit; fails unless the tensors are exactly those of its configuration."""
    return from_parts(FAMILIES[numbers["family"]], numbers["network"], tensors)


def _build(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> Fit:
    net = network_of(tensors, numbers)
    cost, loss, norm, rest = (float(numbers[key]) for key in ("cost", "loss", "norm", "rest"))
    return Fit(net, cost, loss, norm, rest, str(numbers["state"]))
