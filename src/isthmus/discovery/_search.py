"""The search for the rank: a walk, a closer look where it is not clear, further walks that must agree; the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, wilcoxon

from isthmus._settings import Settings
from isthmus.discovery._evidence import flattening, surface_dimension
from isthmus.discovery._fits import Fit
from isthmus.discovery._profile import RankProfile, standard_error
from isthmus.discovery._reference import Reference
from isthmus.discovery._task import RankTask
from isthmus.discovery._walk import (
    MORE_PASSES,
    ROUGH,
    TOLERANCE,
    WIDE,
    Context,
    Level,
    alone,
    anew,
    best_of,
    closer_starts,
    further,
    level_of,
    slack,
    train_further,
    walk,
    wide_again,
    wide_level,
)
from isthmus.measures._dimension import FLAT

Array = NDArray[np.float64]

#: What to do about a single output, said once.
_TRIVIAL = (
    "to find more variables supply several outputs that depend on them: further targets, delayed values of this one, "
    "its whole trajectory, or the inputs themselves (an autoencoder)"
)

_TWO_CLASSES = "to find more variables ask for finer classes, or for numbers that depend on them"


@dataclass(frozen=True, eq=False)
class Found:
    """What the search ends with; ``chosen`` is the network to go on from."""

    judgement: Judgement
    levels: list[Level]
    profile: RankProfile
    replicas: tuple[RankProfile, ...]
    chosen: Level


def search_rank(
    task: RankTask,
    context: Context,
    highest: int,
    fixed: int | None,
    begin: Level | None = None,
    reference: Reference | None = None,
) -> Found:
    """Find the rank, at most ``highest``, or train at the rank ``fixed``; ``begin`` is a wide network that is there."""
    data = context.data
    settled = fixed is not None or task.bound == 1
    aim = fixed if fixed is not None else 1
    rule = {"λ": context.strength, "resolution": context.resolution, "tolerance": context.tolerance}
    context.bar.advance(0, **rule, **({} if begin is None else {"error": begin.error}))
    wish = 0 if settled else context.settings.replicas
    wide = max(WIDE, highest + 1) if begin is None else begin.rank
    if wish:
        context.stages.begin(_replica_trainings(task, context, [wide], 0)[1], context.n_jobs)

    def meanwhile(rank: int, sure: bool) -> None:
        """Where ``rank`` does not suffice, this will be asked for: it is trained while the walk goes on."""
        wanted = {f"{context.name}-{rank}-anew": anew(context, rank)}
        if sure and wish:
            wanted |= _replica_trainings(task, context, [rank], 0)[1]
        context.stages.begin(wanted, context.n_jobs)

    ahead = None if settled else meanwhile
    levels = walk(context, highest, begin=begin, bound=task.bound, down_to=aim if settled else 1, meanwhile=ahead)
    profile = _profile(context, levels)
    looked: set[int] = set()
    for _ in range(0 if settled else LOOKS):
        wanted = needs_closer_look(profile, levels, profile.chosen, task.bound) - looked
        if not wanted:
            break
        levels = _look_closer(context, levels, wanted, profile.chosen - 1)
        profile, looked = _profile(context, levels), looked | wanted
    k = min(profile.chosen, highest)
    others = [_replica(task, context, levels[0].rank, k, index) for index in range(wish)]
    if settled:
        judgement = _settled(task, fixed, aim, profile)
    else:
        judgement = judge(
            profile,
            levels,
            others,
            highest=highest,
            bound=task.bound,
            baseline=data.baseline,
            autoencoder=task.autoencoder,
            reference=reference,
        )
        network = _level(levels, judgement.rank).fit.network
        below = _level_or_none(levels, judgement.rank - 1)
        # A closed surface is one that clearly does not fill its coordinates.
        most = surface_dimension(network, data, SURE)
        torn = math.inf if below is None or most >= FILLED * judgement.rank else below.error
        judgement = doubt_surface(judgement, surface_dimension(network, data), flattening(network, data), torn)
    return Found(judgement, levels, profile, tuple(others), _level(levels, judgement.rank))


def _level(levels: list[Level], rank: int) -> Level:
    return next(level for level in levels if level.rank == rank)


def _profile(context: Context, levels: list[Level]) -> RankProfile:
    return RankProfile.of(
        levels,
        depth=context.depth,
        width=context.settings.width,
        strength=context.strength,
        tolerance=context.tolerance,
        resolution=context.resolution,
        baseline=float(context.data.baseline.mean()),
        loss_kind=context.data.loss,
    )


def _level_or_none(levels: list[Level], rank: int) -> Level | None:
    return next((level for level in levels if level.rank == rank), None)


def _look_closer(context: Context, levels: list[Level], wanted: set[int], below: int) -> list[Level]:
    """The levels with the ``wanted`` ones trained anew; the one ``below`` the answer also from an unrolled surface."""
    made: dict[tuple[int, str], Callable[[], Fit]] = {}
    for above, level in zip(levels, levels[1:]):
        if level.rank in wanted:
            # What fills its dimensions does not unroll into fewer.
            full = FILLED * above.rank
            surface = level.rank == below and not surface_dimension(above.fit.network, context.data) > full
            starts = closer_starts(context, level, above if surface else None)
            made |= {(level.rank, start): make for start, make in starts.items()}
    fits = context.stages.get_all(
        {f"{context.name}-{rank}-{start}": make for (rank, start), make in made.items()}, context.n_jobs
    )
    context.bar.advance(context.settings.first * len(made))
    found = dict(zip(made, fits))
    levels = [
        best_of(context, level, {start: fit for (rank, start), fit in found.items() if rank == level.rank})
        for level in levels
    ]
    for rank in sorted({rank for rank, _ in made}, reverse=True):
        context.bar.advance(0, rank=rank, error=_level(levels, rank).error)
    return levels


def _replica_trainings(
    task: RankTask, context: Context, ranks: list[int], index: int
) -> tuple[Context, dict[str, Callable[[], Fit]]]:
    """From another seed, on another division, at another depth: what these trainings share, and they by name.

    Where the error is what the data leave, that is less depth first, else more: shallow networks approximate less well,
    and deep ones need more data. Each is trained alone, so that a mistake of the walk is not repeated.
    """
    deeper = (context.tolerance > TOLERANCE) == (index % 2 == 0)
    varied = dataclasses.replace(
        context,
        data=task.data(index + 1)[0],
        depth=max(4, context.depth + (2 if deeper else -2)),
        seed=context.seed + 1000 * (index + 1),
        name=f"replica{index}",
    )
    return varied, {f"{varied.name}-{rank}-fresh": make for rank, make in alone(varied, ranks).items()}


def _replica(task: RankTask, context: Context, wide: int, k: int, index: int) -> RankProfile:
    """The ranks on which the answer hangs, trained otherwise."""
    ranks = [wide, *([k - 1] if k > 1 else [])]
    varied, made = _replica_trainings(task, context, ranks, index)
    fits = context.stages.get_all(made, context.n_jobs)
    context.bar.advance(context.settings.first * len(made))
    levels = [level_of(varied, rank, fit, "fresh" if rank == wide else "anew") for rank, fit in zip(ranks, fits)]
    # That k suffices a walk shows as well, and sooner.
    levels += walk(varied, k, begin=levels[0], down_to=k)[1:]
    profile = _profile(varied, levels)
    if supports(profile, k, task.bound):
        return profile
    # Every other way: a network from random weights may be stuck where a walk is not, one that is cut at once to few
    # coordinates where one that loses them one by one is not, and k may have to be unrolled.
    slowly = dataclasses.replace(varied, name=f"{varied.name}-again")
    walked = walk(slowly, k + 1, begin=levels[0], down_to=max(k - 1, 1))
    for other in _look_closer(slowly, walked, {k}, k)[1:]:
        same = _level_or_none(levels, other.rank)
        if same is None:
            levels.append(other)
        else:
            levels[levels.index(same)] = best_of(varied, same, {other.start: other.fit})
    return _profile(varied, levels)


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
    first, each = settings.first, settings.steps
    # Levels of a walk and its further starts; smaller ridges and closer looks; the last fits.
    walked, looked, last = (min(highest, 5) + 4) * each, 6 * each, 3 * each
    return first + walked + looked + last + settings.replicas * (first + 6 * each)


# ---- How strong the ridge must be: what predicts held-out rows best


#: λ that are tried for classes, falling.
STRENGTHS = (0.1, 0.03, 0.01)

#: λ that are tried for numbers: the larger one if the next smaller one does not predict better, …
WEAKER, STRONGER = (1e-4, 1e-5), 1e-2

#: What explains less than this share of the variance is not looked for unless a smaller `resolution` asks for it, …
FINEST = 4e-4

#: … which is to have at most this share of the error.
BETTER = 0.9


def choose_strength(context: Context, highest: int) -> tuple[Context, Level | None, str]:
    """The ridge at which a wide network predicts held-out rows best, that network if it can be gone on from, and why.

    Of numbers, it is lowered as long as that helps. Where it does not any more, the error that is left is of the data:
    of noise, or of too few rows; where it helps to the end, of how well networks of this size approximate, and ranks
    are compared more roughly.
    """
    if context.data.loss == "cross_entropy":
        strength, errors = _for_classes(context, highest)
        chosen, level = dataclasses.replace(context, strength=strength), None
    else:
        chosen, level, errors = _for_numbers(dataclasses.replace(context, finest=FINEST), highest)
    listed = ", ".join(f"{error:.3g} at λ = {strength}" for strength, error in errors.items())
    return chosen, level, f"λ = {chosen.strength:g} was taken for a wide network's error on the rows held out: {listed}"


def _for_numbers(context: Context, highest: int) -> tuple[Context, Level, dict[str, float]]:
    first = best = wide_level(context, highest)
    chosen, errors, lowered = context, {f"{context.strength:g}": best.error}, True
    stronger = dataclasses.replace(context, strength=STRONGER)
    if best.error >= context.finest:
        # Where a smaller ridge does not help, this one will be tried.
        context.stages.begin({f"strength-{STRONGER:g}": further(stronger, first)}, context.n_jobs)
    for strength in WEAKER:
        if best.error < chosen.finest:
            break
        # A small ridge alone does not keep a network simple: all begin at the larger ones.
        trial = dataclasses.replace(context, strength=strength, larger=(*chosen.larger, chosen.strength))
        level = train_further(trial, best, f"strength-{strength:g}", briefly=True)
        if level.error < best.error:
            level = train_further(trial, level, f"strength-{strength:g}-on")
        errors[f"{strength:g}"] = level.error
        lowered = level.error < BETTER * best.error
        if not lowered:
            break
        chosen, best = trial, level
    if chosen is context and not lowered:
        level = train_further(stronger, best, f"strength-{STRONGER:g}")
        errors[f"{STRONGER:g}"] = level.error
        if level.error < BETTER * best.error:
            chosen, best = stronger, level
    return dataclasses.replace(chosen, tolerance=ROUGH if lowered else TOLERANCE), best, errors


def catch_up(context: Context, wide: Level, reference: Reference) -> tuple[Context, Level, str | None]:
    """Where the wide network predicts clearly worse than the reference: train another longer, then one with kinks.

    Returns
    -------
    Context, Level, str or None
        Those to go on with, and what was done, in words.
    """
    if not underfits(wide.error, reference, context.resolution):
        return context, wide, None
    before = wide.error
    for smooth, label in ((context.smooth, "longer"), (not context.smooth, "other")):
        trial = dataclasses.replace(context, smooth=smooth)
        other = wide_again(trial, f"wide-{label}", wide.rank, MORE_PASSES)
        if other.error < BETTER * wide.error:
            context, wide = trial, other
        if not underfits(wide.error, reference, context.resolution):
            break
    kind = "SiLU" if context.smooth else "ReLU"
    return (
        context,
        wide,
        (
            f"{reference.learner} has an error of {reference.error:.3g}, the first wide network {before:.3g}; trained "
            f"longer, with {kind}, it has {wide.error:.3g}"
        ),
    )


def underfits(error: float, reference: Reference, resolution: float) -> bool:
    """Whether an error is clearly worse than what can be reached: by half, and by more than the resolution."""
    return error > WORSE * reference.error + resolution


def _for_classes(context: Context, highest: int) -> tuple[float, dict[str, float]]:
    """The largest λ that does about as well as any.

    A squared error with a small ridge averages noise; a log loss with a small ridge is driven to 0 on every training
    row, wrong labels included. The network is trained at the largest λ and then on at each smaller one.
    """
    errors: dict[str, float] = {}
    level = None
    for strength in STRENGTHS:
        trial = dataclasses.replace(context, strength=strength, name="strength")
        level = wide_level(trial, highest) if level is None else train_further(trial, level, f"strength-{strength:g}")
        errors[f"{strength:g}"] = level.error
    finite = np.where(np.isfinite(list(errors.values())), list(errors.values()), np.inf)
    least = float(finite.min())
    return STRENGTHS[int(np.argmax(finite <= least + slack(least, STRENGTHS[-1])))], errors


# ---- From rank profiles to an answer: a rank, how sure it is, and why


#: A difference counts when it is this many times its standard error.
SIGNIFICANT = 3.0

#: … or when ranks alone would give it by chance as rarely as this.
CHANCE = 1e-3

#: One coordinate less must cost this many times what is allowed to count as equal …
CLEAR = 2.0

#: … and where the error is not what the data leave, this many times the error times what one more gains.
CLEAR_RATIO = 2.0

#: Where it is not, errors that exceed the best by less than this factor need no closer look.
NOTABLE = 1.25

#: One coordinate more may lower the error by this share beyond chance, and half the resolution, and raise no doubt.
MARGINAL = 0.05

#: Times the error of the reference from which on a network has not learned what can be learned.
WORSE = 1.5

#: How often the levels on which the answer hangs are looked at more closely; each time it may move.
LOOKS = 4

#: A cloud of k coordinates with more than this share of k dimensions fills them: TwoNN counts too few of many.
FILLED = 0.8

#: Standard errors by which the dimension must be less for a surface that may be closed: once in twenty by chance.
SURE = 1.64

#: What has less is a surface; a closed one has to be torn to pass through one coordinate less, so that the rows beside
#: the tear are far off: the error is then at least this share of a constant's.
TORN = 0.01

#: The same of a closed curve, which is torn at one place; to shortest paths a nearly closed arc looks like one.
TORN_CURVE = 0.0025

#: Share of the coordinates below which the dimension of their cloud raises a doubt.
SURFACE = 0.6

#: Above this share of a constant's error little has been explained …
UNEXPLAINED = 0.25

#: … and above this many times the training cost it is for want of data.
OVERFIT = 3.0

#: Share of what one coordinate less lacks that a replica may lack with all.
LITTLE = 0.02

#: Held-out rows (or groups) below which no error bar is worth having.
FEWEST_HELD = 10


@dataclass(frozen=True)
class Judgement:
    """The answer: ``verdict`` is ``"determined"`` or ``"undetermined"``; doubts come first among the reasons."""

    rank: int
    verdict: str
    reasons: tuple[str, ...]


def needs_closer_look(profile: RankProfile, levels: Sequence[Level], k: int, bound: int) -> set[int]:
    """The ranks to train again: k − 1, and k and its neighbours where they are not clearly apart.

    Where errors are approximations, and that at k is not about the best, all three are compared alike.
    """
    by_rank = {level.rank: level for level in levels}
    row = profile.row(k)
    rough = profile.tolerance > TOLERANCE and row is not None
    if rough and profile.error[row] > NOTABLE * profile.error.min() + 0.5 * profile.resolution:
        return {rank for rank in (k - 1, k, k + 1) if rank in by_rank}
    here, below = by_rank[k], by_rank.get(k - 1)
    above = [level for level in levels if level.rank > k]
    # However much worse it is: a surface may have to be unrolled first.
    wanted = set() if below is None else {k - 1}
    if below is not None and not (_clearly_apart(profile, k) and _worse(below.errors, here.errors)):
        wanted |= {k}
    if k < bound and not rough and any(_gains(here, more, len(above)) for more in above):
        wanted |= {k, min(level.rank for level in above)}
    return wanted


def _clearly_apart(profile: RankProfile, k: int) -> bool:
    """Whether the error at rank k − 1 is large enough beside that at k."""
    here, below = profile.row(k), profile.row(k - 1)
    if here is None or below is None:
        return False
    if profile.tolerance <= TOLERANCE:
        return bool(profile.excess[below] >= CLEAR * profile.slack)
    # Errors are approximations: a drop must stand out from how much each further coordinate eases the fit.
    floor = 0.5 * profile.resolution
    before, at, after = (float(e) + floor for e in (profile.error[below], profile.error[here], profile.error.min()))
    return before * after >= CLEAR_RATIO * at**2


def _gains(here: Level, more: Level, looks: int, beside: float = 0.0) -> bool:
    """Whether a network through more coordinates predicts better, beyond chance and by more than is marginal."""
    marginal = MARGINAL * here.error + beside
    return here.error - more.error > marginal and _worse(here.errors, more.errors, looks)


def judge(
    profile: RankProfile,
    levels: Sequence[Level],
    replicas: Sequence[RankProfile],
    *,
    highest: int,
    bound: int,
    baseline: Array,
    autoencoder: bool = False,
    reference: Reference | None = None,
) -> Judgement:
    """Weigh the evidence.

    Parameters
    ----------
    profile, levels : RankProfile, sequence of Level
        The walk that decides.
    replicas : sequence of RankProfile
        Walks on other divisions of the data, from other seeds, at other depths.
    highest : int
        The largest rank that was allowed; what exceeds it is the wide network that the walk began with.
    bound : int
        What the rank cannot exceed by theorem.
    baseline : array
        Held-out errors of the best constant, row by row.
    autoencoder : bool
        Whether the outputs are the inputs. Then every further coordinate explains a little, noise for example, up to
        the last, with which nothing is left: what is below the resolution raises no doubt, and is mentioned.
    reference : Reference, optional
        How well learners predict that know nothing of ranks.
    """
    k = min(profile.chosen, bound)
    by_rank = {level.rank: level for level in levels}
    most = max(rank for rank in by_rank if rank <= highest)
    if k > most:
        few = f"{most} coordinates do not suffice, "
        few += "and no more were allowed: raise `max_rank`" if most == highest else "yet a wider network used no more"
        return Judgement(most, "undetermined", (few,))
    doubts: list[str] = []
    reached = f"with {k} it is {by_rank[k].error:.3g} of {profile.whole}"
    reasons = [f"{k} is {profile.rule}; {reached}"]
    if profile.chosen > bound:
        best = f"{profile.chosen}, with {float(profile.error.min()):.3g} at best"
        reasons = [
            f"{k} is the most that the rank can be, by theorem: inputs or outputs span no more dimensions; by the "
            f"held-out error alone it would be {best}; {reached}"
        ]
    doubts += _learned_nothing(profile, by_rank, baseline)
    best = min(level.error for level in levels)
    if reference is not None and underfits(best, reference, profile.resolution):
        doubts.append(
            f"the network underfits: {reference.learner} has a held-out error of {reference.error:.3g}, ours "
            f"{best:.3g} at any rank; what it has not learned may need further coordinates"
        )
    elif reference is not None:
        learned = best <= WORSE * reference.error
        end = "" if learned else f": more than {WORSE} times less, though the difference is below the resolution"
        reasons.append(
            f"what can be learned {'has been' if learned else 'and counts has been'}: the error is {best:.3g}, that of "
            f"{reference.learner} {reference.error:.3g}{end}"
        )
    below = _one_less(profile, by_rank, k)
    (reasons if below[0] else doubts).append(below[1])
    # Where the theorem allows no more, a better fit through more says nothing about the rank.
    doubts += _one_more(profile, levels, k) if k < bound and not autoencoder else []
    for rank in (k, k - 1):
        row = profile.row(rank)
        if row is not None and profile.states[row] == "diverged":
            doubts.append(f"training did not converge: at rank {rank} the loss diverged")
    if all(supports(one, k, bound) for one in (profile, *replicas)):
        reasons += [f"{_others(len(replicas))} from another seed, split and depth agrees"] if replicas else []
    else:
        doubts.append(
            f"the rank depends on seed, split or depth: {k} at depth {profile.depth}, but errors of "
            + "; of ".join(replica.in_words for replica in replicas if not supports(replica, k, bound))
        )
    if len(baseline) < FEWEST_HELD:
        doubts.append(f"only {len(baseline)} rows or groups could be held out: at least {FEWEST_HELD} are needed")
    if autoencoder and k < bound:
        left = by_rank[k].error - min(level.error for level in levels)
        reasons.append(f"further coordinates would explain {left:.2g} more: noise, or thin directions of the surface")
    reasons.append(
        f"what explains less than about {profile.resolution:.2g} of the {profile.unit} is below the resolution"
    )
    verdict = "undetermined" if doubts else "determined"
    return Judgement(k, verdict, tuple(dict.fromkeys([*doubts, *reasons])))


def supports(replica: RankProfile, k: int, bound: int) -> bool:
    """Whether another walk is compatible with rank k: k is nearly enough there, and k − 1 is not."""
    here, below = replica.row(k), replica.row(k - 1)
    if replica.chosen == k:
        return True
    enough = k == bound
    if here is not None and not enough:
        excess = replica.excess[here]
        # Two trainings of one network differ by a little of what there was to learn.
        little = below is not None and excess <= LITTLE * replica.excess[below]
        enough = bool(excess <= CLEAR * replica.slack or little)
    return bool(enough and (below is None or replica.excess[below] > replica.slack))


def _others(count: int) -> str:
    return "a second walk" if count == 1 else f"each of {count} further walks"


def _learned_nothing(profile: RankProfile, by_rank: dict[int, Level], baseline: Array) -> list[str]:
    best = min(by_rank.values(), key=lambda level: level.error)
    gain = baseline - best.errors
    mean, error = float(gain.mean()), standard_error(gain)
    share = best.error / max(profile.baseline, 1e-300)
    if share > 0.9:
        return [
            f"nothing of Y is predicted from X: the held-out error is {share:.2f} of a constant's. "
            "Y may be noise, or there are too few samples"
        ]
    if not _worse(baseline, best.errors):
        return [f"a constant is not beaten beyond chance (gain {mean:.2g} ± {error:.1g}): more samples are needed"]
    if share > UNEXPLAINED and best.error > OVERFIT * best.fit.cost:
        return [
            f"there are too few samples: the held-out error is {best.error:.2f} of the {profile.unit}, "
            f"{_times(best.error, best.fit.cost)} the training cost, so more coordinates may show with more data"
        ]
    return []


def _one_less(profile: RankProfile, by_rank: dict[int, Level], k: int) -> tuple[bool, str]:
    """Whether rank k − 1 is clearly worse, and how."""
    if k == 1:
        return True, "one coordinate suffices, and Y is not constant"
    here, less = by_rank[k], by_rank.get(k - 1)
    if less is None:
        return False, f"rank {k - 1} was not tried"
    excess, error = less.error - here.error, standard_error(less.errors - here.errors)
    tried = f"(best of {less.tries} starts)" if less.tries > 1 else ""
    if _worse(less.errors, here.errors) and _clearly_apart(profile, k):
        times = _times(less.error, here.error)
        return True, f"with one coordinate less the error is {times} as large, {excess:.2g} ± {error:.1g} more {tried}"
    return False, (
        f"one coordinate less is not clearly worse: the error grows from {here.error:.3g} to {less.error:.3g} "
        f"(difference {excess:.2g} ± {error:.1g}). More samples, or less noise, would tell"
    )


def _one_more(profile: RankProfile, levels: Sequence[Level], k: int) -> list[str]:
    """A doubt where a network through more coordinates predicts better beyond chance, though within the slack."""
    here = next(level for level in levels if level.rank == k)
    above = [level for level in levels if level.rank > k]
    # What explains less than the resolution is not asked for; half of it is what errors that count as equal differ by.
    gains = [more for more in above if _gains(here, more, len(above), 0.5 * profile.resolution)]
    if not gains or profile.tolerance > TOLERANCE:
        return []
    best = min(gains, key=lambda level: level.error)
    error = standard_error(here.errors - best.errors)
    return [
        f"a weak further coordinate is possible: through {best.rank} the error is {best.error:.3g}, through {k} "
        f"{here.error:.3g} (difference {here.error - best.error:.2g} ± {error:.1g})"
    ]


def _worse(errors: Array, others: Array, looks: int = 1) -> bool:
    """Whether errors are larger beyond chance: their mean by three standard errors, or most rows by their ranks.

    A map that must tear somewhere (a circle through one coordinate) fails badly on few rows: the mean of the
    differences is then uncertain, but nearly every row is a little worse. With several ``looks`` each must be rarer by
    chance, so that all together are as rare as one (Bonferroni).
    """
    difference = errors - others
    if not difference.mean() > 0:
        return False
    allowed = norm.sf(SIGNIFICANT) / looks
    if difference.mean() >= norm.isf(allowed) * standard_error(difference):
        return True
    if len(difference) < FEWEST_HELD:
        return False
    _, chance = wilcoxon(difference, alternative="greater")
    return float(chance) < CHANCE / looks  # pyright: ignore[reportArgumentType]


def doubt_surface(judgement: Judgement, dimension: float, flattening: float, torn: float = math.inf) -> Judgement:
    """Doubt coordinates whose cloud could do with fewer: it unrolls into one less, or has far fewer dimensions.

    Either number may be NaN, not known; ``torn`` is the error through one coordinate less. Closed surfaces of
    dimension d (circles, spheres) need d + 1 coordinates. Where d + 2 or more seem to be needed, as for a knot or a
    torus, the reason is more likely that no start unrolled it.
    """
    k = judgement.rank
    if dimension < FILLED * k and torn < (TORN if k > 2 else TORN_CURVE):
        doubt = (
            f"the outputs follow a surface of about {dimension:.1f} dimensions, and through {k - 1} the error "
            f"is {torn:.2g}, little for a surface that had to be torn: a ring, say, needs no more than its dimensions, "
            "but is hard to flatten"
        )
        return Judgement(k, "undetermined", (doubt, *judgement.reasons))
    if flattening < FLAT and not dimension > FILLED * k:
        doubt = (
            f"the {k} coordinates lie on a surface that unrolls into {k - 1}, yet no network through {k - 1} was found "
            "that does as well: the surface may be too winding for these samples"
        )
        return Judgement(k, "undetermined", (doubt, *judgement.reasons))
    if k < 3 or not dimension < SURFACE * k:
        return judgement
    doubt = (
        f"the outputs follow a surface of about {dimension:.1f} dimensions, which may need fewer coordinates: no "
        "start that was tried unrolled it"
    )
    return Judgement(k, "undetermined", (doubt, *judgement.reasons))


def _times(a: float, b: float) -> str:
    ratio = a / max(b, 1e-300)
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times" if math.isfinite(ratio) else "infinitely"
