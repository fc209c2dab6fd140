"""Q-minimum: does a trained network recover the rank of its task, overestimate or underestimate it, and does it fit?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isthmus._checks import check_integer, check_number
from isthmus._cite import cites
from isthmus._codec import Plain

RECOVERING = "rank-recovering"
OVERESTIMATING = "overestimating"
FITTING = "underestimating and fitting"
NOT_FITTING = "underestimating and not fitting"
UNDETERMINED = "undetermined"

KINDS = (RECOVERING, OVERESTIMATING, FITTING, NOT_FITTING, UNDETERMINED)

#: By what share of the least loss of a profile all others must exceed it, and a cost may exceed that of the true rank.
MARGIN, ALIKE = 0.01, 0.1

#: Gradient, relative to the ridge's, above which a network is on its way and at no minimum. Kinks keep it from 0.
ON_ITS_WAY = 1.0


@dataclass(frozen=True)
class RankCost:
    """The best network of one rank that is known.

    Attributes
    ----------
    rank : int
        k.
    cost : float
    regularity : float
        ‖θ‖² − kL, which tends to R1 with the depth.
    total : float
        cost + ridge·‖θ‖² = ridge·L·k + cost + ridge·R1.
    """

    rank: int
    cost: float
    regularity: float
    total: float


@dataclass(frozen=True)
class Minimum(Plain):
    """Which kind of minimum a network is at.

    Attributes
    ----------
    kind : str
        ``"rank-recovering"``, ``"overestimating"``, ``"underestimating and fitting"``, ``"underestimating and not
        fitting"`` or ``"undetermined"``.
    reason : str
    rank, true_rank : int or None
        Of the network, and of the task: as given, or the rank of least loss.
    fits : bool
        Whether its cost counts as a fit.
    profile : tuple of RankCost
        What is known by rank, the network itself among it.
    """

    kind: str
    reason: str
    rank: int | None
    true_rank: int | None
    fits: bool
    profile: tuple[RankCost, ...]

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return f"This minimum is {self.kind}: {self.reason}."

    def _check(self, content: Mapping[str, Any]) -> None:  # noqa: ARG002
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r:.60} is no kind of minimum")


@cites("bottleneck2023", "§3.1", ids=("Q-minimum",))
def kind_of_minimum(
    *,
    rank: int | None,
    cost: float,
    norm: float,
    ridge: float,
    depth: int,
    fit: float,
    true_rank: int | None = None,
    profile: Mapping[int, tuple[float, float]] | None = None,
    below: Mapping[int, tuple[float, float]] | None = None,
    gradient: float = 0.0,
) -> Minimum:
    """Which kind of minimum: from min_k {ridge·L·k + least cost at rank k + ridge·R1}, the cost and the rank.

    Local minima of cost + ridge·‖θ‖² have the rank k* of the task, more, or less; those with less fit the data or do
    not. k* is given, or read off the profile: the rank with the least loss, if one rank less and one more are known to
    be worse. One more is known without a network where cost + ridge·R1 < ridge·L: a dimension costs ridge·L, and that
    is all there is to save (as long as R1 of the other is not negative).

    Parameters
    ----------
    rank : int or None
        Of the network; None if it could not be determined.
    cost, norm : float
        Its cost and ‖θ‖².
    ridge : float
    depth : int
        L: what one dimension carried through the network adds to ‖θ‖².
    fit : float
        Cost up to which the data count as fitted.
    true_rank : int, optional
        k*, for example ``discover(X, Y).rank``.
    profile : mapping of int to (cost, ‖θ‖²), optional
        Of the best networks of other ranks: same data, ridge and depth.
    below : mapping of int to (cost, ‖θ‖²), optional
        Of any networks of lower rank. If their loss is less the rank is overestimated; if not they show nothing.
    gradient : float, default 0
        ‖∇(cost + ridge·‖θ‖²)‖/‖2·ridge·θ‖: above 1 the network is at no minimum.
    """
    who = "kind_of_minimum"
    L = check_integer(who, "depth", depth, low=1)
    for name, value in (("cost", cost), ("norm", norm), ("ridge", ridge), ("fit", fit)):
        check_number(who, name, value, low=0.0)
    for name, value in (("rank", rank), ("true_rank", true_rank)):
        if value is not None:
            check_integer(who, name, value, low=0)

    def level(k: int, numbers: tuple[float, float]) -> RankCost:
        return RankCost(k, numbers[0], numbers[1] - k * L, numbers[0] + ridge * numbers[1])

    known = {k: level(k, numbers) for k, numbers in (profile or {}).items()}
    if rank is not None:
        own = level(rank, (cost, norm))
        known[rank] = min(known.get(rank, own), own, key=lambda one: one.total)
    levels = tuple(known[k] for k in sorted(known))

    def found(kind: str, reason: str, k_star: int | None = true_rank, fits: bool = cost <= fit) -> Minimum:
        return Minimum(kind, reason, rank, k_star, fits, levels)

    if rank is None:
        return found(UNDETERMINED, "its rank could not be determined")
    if gradient > ON_ITS_WAY:
        return found(UNDETERMINED, f"it is no minimum yet: the gradient is {gradient:.2g} of the ridge's pull")
    k_star, why = true_rank, f"of a true rank of {true_rank}"
    if k_star is None:
        total = cost + ridge * norm
        lower_ranks = [level(k, numbers) for k, numbers in (below or {}).items() if k < rank]
        best = min(lower_ranks, key=lambda one: one.total, default=None)
        # Beyond rounding.
        if best is not None and best.total < total * (1.0 - 1e-9):
            lower = f"a network of rank {best.rank} has the loss {best.total:.4g}, this one of rank {rank} {total:.4g}"
            return found(OVERESTIMATING, lower)
        k_star, why = _least(known, ridge, L)
        if k_star is None:
            return found(UNDETERMINED, why)
    reference = known[k_star].cost if k_star in known and k_star != rank else 0.0
    fits = cost <= max(fit, (1.0 + ALIKE) * reference)
    said = f"rank {rank} {why}, cost {cost:.3g}, {'a fit' if fits else 'no fit'} (up to {max(fit, reference):.3g})"
    if rank >= k_star:
        return found(RECOVERING if rank == k_star else OVERESTIMATING, said, k_star, fits)
    return found(FITTING if fits else NOT_FITTING, said, k_star, fits)


def _least(known: Mapping[int, RankCost], ridge: float, L: int) -> tuple[int | None, str]:
    """The rank of least loss and how it is known; None, and what is missing, where it is not."""
    best = min(known.values(), key=lambda one: one.total)
    k = best.rank
    close = [one.rank for one in known.values() if one is not best and one.total <= (1.0 + MARGIN) * best.total]
    if close:
        return None, f"ranks {k} and {close[0]} have losses within {MARGIN:.0%}"
    if k > 0 and k - 1 not in known:
        return None, f"the least loss at rank {k - 1} is not known: pass `true_rank`, or a profile"
    left = best.cost + ridge * max(best.regularity, 0.0)
    if k + 1 not in known and left >= ridge * L:
        return None, f"rank {k + 1} is not known, and could save {left:.3g} for {ridge * L:.3g}"
    return k, f"where rank {k} has the least loss, {best.total:.4g}"
