"""The search for the rank: a walk, a closer look where it is not clear, further walks that must agree."""

from __future__ import annotations

import dataclasses

import numpy as np

from isthmus._settings import Settings
from isthmus.discovery._evidence import flattening, local_dimension
from isthmus.discovery._profile import RankProfile
from isthmus.discovery._task import RankTask
from isthmus.discovery._verdict import Judgement, doubt_surface, judge, needs_refinement, pooled_rank
from isthmus.discovery._walk import Context, Level, refine, slack, train_further, walk, wide_and_fine, wide_level

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


def search_rank(task: RankTask, context: Context, highest: int, fixed: int | None) -> Found:
    """Find the rank, at most ``highest``, or train at the rank ``fixed``."""
    data = context.data
    settled = fixed is not None or task.bound == 1
    aim = fixed if fixed is not None else 1
    levels = walk(context, highest, bound=task.bound, down_to=aim if settled else 1)
    profile = _profile(context, levels)
    others: list[RankProfile] = []
    wish = 0 if settled else context.settings.replicas
    while len(others) < wish:
        others.append(_replica(task, context, highest, len(others)))
        # Where two walks disagree, a third has the casting vote on the rank (the verdict is another matter).
        if len(others) == 1 == wish and others[0].chosen != profile.chosen:
            wish = 2
    rank = aim if settled else pooled_rank([profile, *others], task.bound)
    wanted = {min(rank, highest)} | (set() if settled else needs_refinement(profile, rank))
    finer = refine(context, [level for level in levels if level.rank in wanted])
    if not settled and any(level.rank == rank and level.error < context.strength for level in finer):
        # So little error that a coordinate below the resolution of the ridge would show.
        finer.append(wide_and_fine(context))
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
            baseline=data.baseline,
            autoencoder=task.autoencoder,
        )
        network = _level(levels, judgement.rank).fit.network
        judgement = doubt_surface(judgement, local_dimension(network, data), flattening(network, data))
    coarse = _level(levels, judgement.rank)
    fine = next((level for level in finer if level.rank == judgement.rank), coarse)
    # The weaker ridge is kept where it predicts better, which is where there is little noise.
    better = fine is not coarse and fine.error < coarse.error
    chosen, strength = (fine, context.finer().strength) if better else (coarse, context.strength)
    return Found(judgement, levels, profile, tuple(others), chosen, strength)


def _level(levels: list[Level], rank: int) -> Level:
    return next(level for level in levels if level.rank == rank)


def _profile(context: Context, levels: list[Level]) -> RankProfile:
    return RankProfile.of(
        levels,
        depth=context.depth,
        width=context.settings.width,
        strength=context.strength,
        baseline=float(context.data.baseline.mean()),
        loss_kind=context.data.loss,
    )


def _replica(task: RankTask, context: Context, highest: int, index: int) -> RankProfile:
    """A walk from another seed, on another division of the data, at another depth: alternately more and less."""
    varied = dataclasses.replace(
        context,
        data=task.data(index + 1)[0],
        depth=max(4, context.depth + (2 if index % 2 == 0 else -2)),
        seed=context.seed + 1000 * (index + 1),
        name=f"replica{index}",
    )
    return _profile(varied, walk(varied, highest, bound=task.bound, to_the_end=False))


def _settled(task: RankTask, fixed: int | None, aim: int, profile: RankProfile) -> Judgement:
    row = profile.row(aim)
    assert row is not None
    share = profile.error[row] / max(profile.baseline, 1e-300)
    error = f"held-out error {profile.error[row]:.3g} of the {profile.unit}, {share:.2f} of a constant's"
    if fixed is not None:
        return Judgement(fixed, "given", (f"the rank was given, not looked for; {error}",))
    if len(task.X) == 2 and min(task.X.shape[1], task.Y.shape[1]) > 1:
        return Judgement(1, "undetermined", ("two rows span one dimension, whatever they are: supply more data",))
    advice = _TWO_CLASSES if task.settings.loss == "cross_entropy" else _TRIVIAL
    return Judgement(1, "trivial", (task.why, error, advice))


def total_steps(settings: Settings, highest: int) -> int:
    """A guess, for the progress bar."""
    first, each = settings.from_random, settings.steps
    # Levels of a walk and its further starts; the closer look, with a wide network of its own; the last fits.
    walked, looked, last = (min(highest, 5) + 4) * each, first + 2 * each, 3 * each
    return first + walked + looked + last + settings.replicas * (first + 6 * each)


# ---- How strong the ridge of a classification must be: labels are often wrong by chance, and networks learn by heart


#: λ that are tried, falling; the last is that of a regression.
STRENGTHS = (0.1, 0.03, 0.01)


def choose_strength(context: Context) -> tuple[float, str]:
    """The largest λ at which a wide network predicts held-out rows about as well as at any, and the errors in words.

    A squared error with a small ridge averages noise; a log loss with a small ridge is driven to 0 on every training
    row, wrong labels included. The network is trained at the largest λ and then on at each smaller one.
    """
    errors: list[float] = []
    level = None
    for strength in STRENGTHS:
        trial = dataclasses.replace(context, strength=strength)
        if level is None:
            level = wide_level(trial, "strength")
        else:
            level = train_further(trial, level, f"strength-{strength:g}")
        errors.append(level.error)
    finite = np.where(np.isfinite(errors), errors, np.inf)
    least = float(finite.min())
    chosen = STRENGTHS[int(np.argmax(finite <= least + slack(least, STRENGTHS[-1])))]
    listed = ", ".join(f"{error:.3g} at λ = {strength:g}" for strength, error in zip(STRENGTHS, errors))
    return chosen, f"λ = {chosen:g} was taken for a wide network's error on the rows held out: {listed}"
