"""The search for the rank: a walk, a closer look where it is not clear, further walks that must agree; the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wilcoxon

from isthmus._settings import Settings
from isthmus.discovery._evidence import flattening, local_dimension
from isthmus.discovery._profile import RankProfile, standard_error
from isthmus.discovery._task import RankTask
from isthmus.discovery._walk import Context, Level, refine, slack, train_further, walk, wide_and_fine, wide_level
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


# ---- From rank profiles to an answer: a rank, how sure it is, and why


#: A difference counts when it is this many times its standard error.
SIGNIFICANT = 3.0

#: … or when ranks alone would give it by chance as rarely as this.
CHANCE = 1e-3

#: One coordinate less must cost this many times what is allowed to count as equal …
CLEAR = 2.0

#: … or, trained further at a tenth of the ridge, this many times the error.
CLEAR_RATIO = 2.0

#: One coordinate more may lower the error by this factor, at a tenth of the ridge, before a weak one is suspected.
WEAK_RATIO = 8.0

#: Share of the coordinates below which the dimension of their cloud raises a doubt.
SURFACE = 0.6

#: Above this share of a constant's error little has been explained …
UNEXPLAINED = 0.25

#: … and above this many times the training cost it is for want of data.
OVERFIT = 3.0

#: Held-out rows (or groups) below which no error bar is worth having.
FEWEST_HELD = 10


@dataclass(frozen=True)
class Judgement:
    """The answer: ``verdict`` is ``"determined"`` or ``"undetermined"``; doubts come first among the reasons."""

    rank: int
    verdict: str
    reasons: tuple[str, ...]


def needs_refinement(profile: RankProfile, k: int) -> set[int]:
    """The ranks to look at more closely: k and the neighbours from which it is not clearly apart."""
    here, below, above = (profile.row(r) for r in (k, k - 1, k + 1))
    wanted: set[int] = set()
    if below is not None and profile.excess[below] < CLEAR * profile.slack:
        wanted |= {k, k - 1}
    # Within the slack, yet much worse in proportion: where errors are far below λ that says little either way.
    if here is not None and above is not None and profile.error[here] > 1.5 * profile.error[above]:
        wanted |= {k, k + 1}
    return wanted


def judge(
    profile: RankProfile,
    levels: Sequence[Level],
    finer: Sequence[Level],
    replicas: Sequence[RankProfile],
    *,
    highest: int,
    bound: int,
    baseline: Array,
    autoencoder: bool = False,
) -> Judgement:
    """Weigh the evidence.

    Parameters
    ----------
    profile, levels : RankProfile, sequence of Level
        The walk that decides.
    finer : sequence of Level
        Levels trained further at a tenth of the ridge, where :func:`needs_refinement` asked for it.
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
        the last, with which nothing is left: what is below the resolution raises no doubt, and is told.
    """
    k = pooled_rank([profile, *replicas], bound)
    by_rank = {level.rank: level for level in levels}
    fine = {level.rank: level for level in finer}
    most = max(rank for rank in by_rank if rank <= highest)
    if k > most:
        few = f"{most} coordinates do not suffice, "
        few += "and no more were allowed: raise `max_rank`" if most == highest else "yet a wider network used no more"
        return Judgement(most, "undetermined", (few,))
    doubts: list[str] = []
    rule = profile.rule if profile.chosen == k else f"on the average of {1 + len(replicas)} walks {profile.rule}"
    reasons = [f"{k} is {rule}; with {k} it is {by_rank[k].error:.3g} of {profile.whole}"]
    doubts += _learned_nothing(profile, by_rank, baseline)
    below = _one_less(profile, by_rank, fine, k)
    (reasons if below[0] else doubts).append(below[1])
    # Where the theorem allows no more, a better fit through more says nothing about the rank.
    doubts += _weak_dimension(fine, k) if k < bound and not autoencoder else []
    for rank in (k, k - 1):
        row = profile.row(rank)
        if row is not None and profile.states[row] != "at rest":
            how = "diverged" if profile.states[row] == "diverged" else "was still falling when its steps were used up"
            doubts.append(f"training did not converge: at rank {rank} the loss {how}")
    if all(supports(one, k, bound) for one in (profile, *replicas)):
        reasons += [f"{_others(len(replicas))} from another seed, split and depth agrees"] if replicas else []
    else:
        doubts.append(
            f"the rank depends on seed, split or depth: {profile.chosen} at depth {profile.depth}, "
            + ", ".join(f"{replica.chosen} at depth {replica.depth}" for replica in replicas)
        )
    if len(baseline) < FEWEST_HELD:
        doubts.append(f"only {len(baseline)} rows or groups could be held out: at least {FEWEST_HELD} are needed")
    most_of_all = min(level.error for level in (*levels, *finer))
    if autoencoder and k < bound:
        left = min(level.error for level in (*levels, *finer) if level.rank == k) - most_of_all
        reasons.append(f"further coordinates would explain {left:.2g} more: noise, or thin directions of the surface")
    reasons.append(
        f"what explains less than about {profile.strength:.2g} of the {profile.unit} is below the resolution"
    )
    verdict = "undetermined" if doubts else "determined"
    return Judgement(k, verdict, tuple(dict.fromkeys([*doubts, *reasons])))


def pooled_rank(profiles: Sequence[RankProfile], bound: int) -> int:
    """The smallest rank that is within the slack of the best on the average of all walks, at most ``bound``."""
    slack = sum(profile.slack for profile in profiles) / len(profiles)
    for k in sorted({int(rank) for profile in profiles for rank in profile.ranks}):
        if sum(_excess(profile, k) for profile in profiles) / len(profiles) <= slack:
            return min(k, bound)
    return bound


def _excess(profile: RankProfile, k: int) -> float:
    """That of rank k; a walk that ended above it did so because more was not enough."""
    row = profile.row(k)
    if row is not None:
        return float(profile.excess[row])
    # Ranks between the used coordinates and the wide network are as good as either.
    return 0.0 if k > profile.ranks.min() else math.inf


def supports(replica: RankProfile, k: int, bound: int) -> bool:
    """Whether another walk is compatible with rank k: k is nearly enough there, and k − 1 is not."""
    here, below = replica.row(k), replica.row(k - 1)
    if replica.chosen == k:
        return True
    enough = k == bound or (here is not None and replica.excess[here] <= CLEAR * replica.slack)
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


def _one_less(profile: RankProfile, by_rank: dict[int, Level], fine: dict[int, Level], k: int) -> tuple[bool, str]:
    """Whether rank k − 1 is clearly worse, and how."""
    if k == 1:
        return True, "one coordinate suffices, and Y is not constant"
    here, less = by_rank[k], by_rank.get(k - 1)
    if less is None:
        return False, f"rank {k - 1} was not tried"
    excess, error = less.error - here.error, standard_error(less.errors - here.errors)
    tried = f"(best of {less.tries} starts)" if less.tries > 1 else ""
    if _worse(less.errors, here.errors) and profile.excess[profile.row(k - 1)] >= CLEAR * profile.slack:
        times = _times(less.error, here.error)
        return True, f"with one coordinate less the error is {times} as large, {excess:.2g} ± {error:.1g} more {tried}"
    if k in fine and k - 1 in fine:
        a, b = fine[k], fine[k - 1]
        finer, its_error = b.error - a.error, standard_error(b.errors - a.errors)
        if b.error >= CLEAR_RATIO * a.error and _worse(b.errors, a.errors):
            return True, (
                f"with one coordinate less the error is {_times(b.error, a.error)} as large at a tenth of the ridge, "
                f"{finer:.2g} ± {its_error:.1g} more {tried}"
            )
    return False, (
        f"one coordinate less is not clearly worse: the error grows from {here.error:.3g} to {less.error:.3g} "
        f"(difference {excess:.2g} ± {error:.1g}). More samples, or less noise, would tell"
    )


def _worse(errors: Array, others: Array) -> bool:
    """Whether errors are larger beyond chance: their mean by three standard errors, or most rows by their ranks.

    A map that must tear somewhere (a circle through one coordinate) fails badly on few rows: the mean of the
    differences is then uncertain, but nearly every row is a little worse.
    """
    difference = errors - others
    if not difference.mean() > 0:
        return False
    if difference.mean() >= SIGNIFICANT * standard_error(difference):
        return True
    if len(difference) < FEWEST_HELD:
        return False
    _, chance = wilcoxon(difference, alternative="greater")
    return float(chance) < CHANCE  # pyright: ignore[reportArgumentType]


def _weak_dimension(fine: dict[int, Level], k: int) -> list[str]:
    more = [level for rank, level in fine.items() if rank > k]
    if k not in fine or not more:
        return []
    a, b = fine[k], min(more, key=lambda level: level.error)
    if a.error < WEAK_RATIO * b.error or not _worse(a.errors, b.errors):
        return []
    return [
        f"a weak further coordinate is possible: at a tenth of the ridge, a network through {b.rank} has an error of "
        f"{b.error:.2g}, and through {k} one of {a.error:.2g}. Lower `ridge`, and raise `steps` with it, to resolve it"
    ]


def doubt_surface(judgement: Judgement, dimension: float, flattening: float) -> Judgement:
    """Doubt coordinates whose cloud could do with fewer: it unrolls into one less, or has far fewer dimensions.

    Either number may be NaN, not known. Closed surfaces of dimension d (circles, spheres) need d + 1 coordinates. Where
    d + 2 or more seem to be needed, as for a knot or a torus, the reason is more likely that no start unrolled it.
    """
    k = judgement.rank
    if flattening < FLAT:
        doubt = (
            f"the {k} coordinates lie on a surface that unrolls into {k - 1}, yet no network through {k - 1} was found "
            "that does as well: the surface may be too winding for these samples"
        )
        return Judgement(k, "undetermined", (doubt, *judgement.reasons))
    if k < 3 or not dimension < SURFACE * k:
        return judgement
    doubt = (
        f"the {k} coordinates lie on a surface of about {dimension:.1f} dimensions, which may need fewer of them: no "
        "start that was tried unrolled it"
    )
    return Judgement(k, "undetermined", (doubt, *judgement.reasons))


def _times(a: float, b: float) -> str:
    ratio = a / max(b, 1e-300)
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times" if math.isfinite(ratio) else "infinitely"
