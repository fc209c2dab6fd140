"""The search for the rank: a walk, a closer look where it is not clear, further walks that must agree."""

from __future__ import annotations

import dataclasses

from isthmus._progress import Progress
from isthmus.discovery._evidence import flattening, local_dimension
from isthmus.discovery._profile import RankProfile
from isthmus.discovery._task import Task
from isthmus.discovery._verdict import Judgement, doubt_surface, judge, needs_refinement, pooled_rank
from isthmus.discovery._walk import Data, Effort, Level, Stages, refine, walk, wide_and_fine

#: What to do about a single output, said once.
_TRIVIAL = (
    "to find more variables supply several outputs that depend on them: further targets, delayed values of this one, "
    "its whole trajectory, or the inputs themselves (an autoencoder)"
)

_TWO_CLASSES = "to find more variables ask for finer classes, or for numbers that depend on them"


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What the search ends with; ``chosen`` is the network to go on from, trained at the ridge ``strength``."""

    judgement: Judgement
    levels: list[Level]
    profile: RankProfile
    replicas: tuple[RankProfile, ...]
    chosen: Level
    strength: float


def search(
    task: Task,
    data: Data,
    effort: Effort,
    *,
    highest: int,
    fixed: int | None,
    replicas: int,
    seed: int,
    stages: Stages,
    bar: Progress,
) -> Found:
    """Find the rank, or train at the rank ``fixed``."""
    settled = fixed is not None or task.bound == 1
    aim = fixed if fixed is not None else 1
    levels = walk(
        data,
        effort,
        highest,
        seed=seed,
        name="main",
        stages=stages,
        bar=bar,
        bound=task.bound,
        down_to=aim if settled else 1,
    )
    baseline = data.baseline
    profile = RankProfile.of(levels, effort, float(baseline.mean()), data.loss)
    others: list[RankProfile] = []
    wish = 0 if settled else replicas
    while len(others) < wish:
        others.append(_replica(task, effort, highest, len(others), seed, stages, bar))
        # Where two walks disagree, a third has the casting vote on the rank (the verdict is another matter).
        if len(others) == 1 == wish and others[0].chosen != profile.chosen:
            wish = 2
    rank = aim if settled else pooled_rank([profile, *others], task.bound)
    wanted = {min(rank, highest)} | (set() if settled else needs_refinement(profile, rank))
    finer = refine(
        data,
        effort,
        [level for level in levels if level.rank in wanted],
        seed=seed,
        name="main",
        stages=stages,
        bar=bar,
    )
    if not settled and any(level.rank == rank and level.error < effort.strength for level in finer):
        # So little error that a coordinate below the resolution of the ridge would show.
        finer.append(wide_and_fine(data, effort, seed=seed, name="main", stages=stages, bar=bar))
    if settled:
        judgement = _settled(task, fixed, aim, profile)
    else:
        judgement = judge(
            profile,
            levels,
            finer,
            others,
            highest=highest,
            bound=task.bound,
            baseline=baseline,
            autoencoder=task.autoencoder,
        )
        network = _level(levels, judgement.rank).fit.network
        judgement = doubt_surface(judgement, local_dimension(network, data), flattening(network, data))
    coarse = _level(levels, judgement.rank)
    fine = next((level for level in finer if level.rank == judgement.rank), coarse)
    # The weaker ridge is kept where it predicts better, which is where there is little noise.
    better = fine is not coarse and fine.error < coarse.error
    chosen, strength = (fine, 0.1 * effort.strength) if better else (coarse, effort.strength)
    return Found(judgement, levels, profile, tuple(others), chosen, strength)


def _level(levels: list[Level], rank: int) -> Level:
    return next(level for level in levels if level.rank == rank)


def _replica(
    task: Task, effort: Effort, highest: int, index: int, seed: int, stages: Stages, bar: Progress
) -> RankProfile:
    """A walk from another seed, on another division of the data, at another depth: alternately more and less."""
    data, *_ = task.data(index + 1)
    varied = dataclasses.replace(effort, half=max(2, effort.half + (1 if index % 2 == 0 else -1)))
    levels = walk(
        data,
        varied,
        highest,
        seed=seed + 1000 * (index + 1),
        name=f"replica{index}",
        stages=stages,
        bar=bar,
        bound=task.bound,
        to_the_end=False,
    )
    return RankProfile.of(levels, varied, float(data.baseline.mean()), data.loss)


def _settled(task: Task, fixed: int | None, aim: int, profile: RankProfile) -> Judgement:
    row = profile.row(aim)
    assert row is not None
    share = profile.error[row] / max(profile.baseline, 1e-300)
    error = f"held-out error {profile.error[row]:.3g} of the {profile.unit}, {share:.2f} of a constant's"
    if fixed is not None:
        return Judgement(fixed, "given", (f"the rank was given, not looked for; {error}",))
    if len(task.X) == 2 and min(task.X.shape[1], task.Y.shape[1]) > 1:
        return Judgement(1, "undetermined", ("two rows span one dimension, whatever they are: supply more data",))
    return Judgement(1, "trivial", (task.why, error, _TWO_CLASSES if task.loss == "cross_entropy" else _TRIVIAL))


def total_steps(effort: Effort, highest: int, replicas: int) -> int:
    """A guess, for the progress bar."""
    each = effort.warm + effort.rise + effort.first
    # Levels of a walk and its further starts; the closer look, with a wide network of its own; the last fits.
    walked, looked, last = (min(highest, 5) + 4) * effort.each, each + 2 * effort.each, 3 * effort.each
    return each + walked + looked + last + replicas * (each + 6 * effort.each)
