"""Claim and Verdict: an executable theorem, and what it says of one network."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_choice, fail
from isthmus._cite import cites
from isthmus.networks import FullyConnected, LeakyResNet
from isthmus.trace import Trace

STATUSES = ("holds", "fails", "not applicable")

#: How the left side stands to the right one.
RELATIONS = ("≤", "≥", "=", "≈")

MET, UNMET, UNKNOWN = "met", "not met", "not known"

#: What a claim may be about, and the class of its networks.
NETWORKS: dict[str, type] = {"a fully connected network": FullyConnected, "a leaky ResNet": LeakyResNet}


@dataclass(frozen=True)
class Hypothesis:
    """One condition of a theorem, looked at.

    Attributes
    ----------
    name : str
    status : {"met", "not met", "not known"}
        Only if all are met does the claim say anything.
    found : str
        What was measured.
    """

    name: str
    status: str
    found: str = ""

    @staticmethod
    def of(name: str, met: bool | None, found: object = "") -> Hypothesis:
        """From a truth value; None is not known."""
        return Hypothesis(name, UNKNOWN if met is None else MET if met else UNMET, str(found))


@dataclass(frozen=True, eq=False)
class Subject:
    """What a claim is evaluated on.

    Attributes
    ----------
    net : FullyConnected or LeakyResNet
        A claim is only given the kind that it is about.
    X : Tensor (N, d_in)
        Float64.
    Y : Tensor (N, d_out), or (N,) of labels, or None
    ridge : float or None
        Of the training: claims about minimisers need it.
    loss : str
    known : mapping
        What only the maker of a construction knows: its true rank, a family of networks by depth, a manifold.
    """

    # Any, so that each claim may take it for the kind that it has been registered for.
    net: Any
    X: Tensor
    Y: Tensor | None = None
    ridge: float | None = None
    loss: str = "mse"
    known: Mapping[str, Any] = field(default_factory=dict)

    def trace(self, rows: Tensor | None = None) -> Trace:
        """Weights and representations in float64, on all samples or some."""
        return self.net.trace(self.X if rows is None else self.X[rows])

    def replace(self, **changes: Any) -> Subject:
        """A subject that differs in these fields."""
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a claim says of one network.

    Attributes
    ----------
    claim : str
        Its id.
    status : {"holds", "fails", "not applicable"}
    lhs, rhs : float
        Both sides, at the place where they are nearest; NaN when not evaluated.
    relation : {"≤", "≥", "=", "≈"}
    slack : float
        How far from failing: positive where it holds with room, relative to the larger side.
    tolerance : float
        What was granted to rounding, in units of the larger side.
    hypotheses : tuple of Hypothesis
    where : str
        The sample, layer or family at which the sides are shown.
    reason : str
        Why it is not applicable, or what failed.
    details : mapping of str to list of float
        The picture behind it: by layer, by sample, by depth.
    """

    claim: str
    status: str
    lhs: float
    rhs: float
    relation: str
    slack: float
    tolerance: float
    hypotheses: tuple[Hypothesis, ...] = ()
    where: str = ""
    reason: str = ""
    details: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("Verdict", "status", self.status, STATUSES)
        check_choice("Verdict", "relation", self.relation, RELATIONS)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; NaN and infinities as null."""
        return {
            "claim": self.claim,
            "status": self.status,
            "lhs": _number(self.lhs),
            "rhs": _number(self.rhs),
            "relation": self.relation,
            "slack": _number(self.slack),
            "tolerance": _number(self.tolerance),
            "hypotheses": [vars(h) for h in self.hypotheses],
            "where": self.where,
            "reason": self.reason,
            "details": {name: [_number(v) for v in values] for name, values in self.details.items()},
        }


@dataclass(frozen=True, eq=False)
class Claim:
    """A theorem that can be evaluated.

    Attributes
    ----------
    id : str
        ``"C-rank-1"``; a key of ``docs/ids.toml``.
    statement : str
        In one sentence.
    paper, where : str
        Key of ``docs/papers.bib`` and place in it.
    hypotheses : tuple of str
    evaluate : callable
        Subject → Verdict. Checks its hypotheses first.
    sample : callable
        () → a Subject that meets them.
    erratum : str
        What the paper prints otherwise, if it does.
    rate : bool
        Whether only a trend can be tested.
    about : str
        The kind of network, a key of ``NETWORKS``; of another kind it is not applicable.
    """

    id: str
    statement: str
    paper: str
    where: str
    hypotheses: tuple[str, ...]
    evaluate: Callable[[Subject], Verdict]
    sample: Callable[[], Subject]
    erratum: str = ""
    rate: bool = False
    about: str = "a fully connected network"


#: Every claim of the imported papers, by id.
CLAIMS: dict[str, Claim] = {}


def claim(
    identity: str,
    statement: str,
    *,
    paper: str,
    where: str,
    hypotheses: Sequence[str],
    sample: Callable[[], Subject],
    erratum: str = "",
    rate: bool = False,
    about: str = "a fully connected network",
) -> Callable[[Callable[[Subject], Verdict]], Callable[[Subject], Verdict]]:
    """Register the decorated function as the claim ``identity``; on another kind of network it is not applicable."""
    check_choice("claim", "about", about, NETWORKS)

    def register(evaluate: Callable[[Subject], Verdict]) -> Callable[[Subject], Verdict]:
        if identity in CLAIMS:
            fail("claim", "ids must be unique", identity, "Choose another.")
        cites(paper, where, ids=(identity,))(evaluate)

        @functools.wraps(evaluate)
        def guarded(subject: Subject) -> Verdict:
            if not isinstance(subject.net, NETWORKS[about]):
                unknown = [Hypothesis.of(name, None) for name in hypotheses]
                return not_applicable(identity, "=", unknown, f"needs {about}")
            return evaluate(subject)

        CLAIMS[identity] = Claim(
            identity,
            statement,
            paper,
            where,
            tuple(hypotheses),
            guarded,
            sample,
            erratum=erratum,
            rate=rate,
            about=about,
        )
        return evaluate

    return register


def in_order() -> None:
    """Sort the claims as the papers have them, whatever the order in which modules were imported."""
    papers = ("rank2023", "bottleneck2023", "hamiltonian2024", "features2022")

    def place(one: Claim) -> tuple[int, int]:
        return papers.index(one.paper) if one.paper in papers else len(papers), int(one.id.rsplit("-", 1)[1])

    ordered = sorted(CLAIMS.values(), key=place)
    CLAIMS.clear()
    CLAIMS.update((one.id, one) for one in ordered)


def unmet(hypotheses: Iterable[Hypothesis]) -> str:
    """The hypotheses that do not hold or are not known, in words; empty if all are met."""
    missing = [h for h in hypotheses if h.status != MET]
    return "; ".join(f"{h.name}: {h.status}" + (f" ({h.found})" if h.found else "") for h in missing)


def not_applicable(identity: str, relation: str, hypotheses: Sequence[Hypothesis], reason: str = "") -> Verdict:
    """The verdict where a hypothesis does not hold: the theorem says nothing."""
    why = reason or unmet(hypotheses)
    nan = math.nan
    return Verdict(identity, "not applicable", nan, nan, relation, nan, nan, tuple(hypotheses), reason=why)


def compare(
    identity: str,
    lhs: Tensor | float | Sequence[float],
    relation: str,
    rhs: Tensor | float | Sequence[float],
    *,
    tolerance: float | Sequence[float],
    hypotheses: Sequence[Hypothesis],
    where: Callable[[int], str] | str = "",
    details: Mapping[str, Sequence[float]] | None = None,
) -> Verdict:
    """The verdict of ``lhs relation rhs`` at many places: that of the place with the least slack beyond its tolerance.

    A place where both sides are the same infinity is left out: they may be equal, or both have overflowed.

    Parameters
    ----------
    lhs, rhs : numbers, of equal length or one of them single
    relation : {"≤", "≥", "=", "≈"}
        ``"≈"`` is for rates: ``tolerance`` is then the half-width of an interval, not rounding.
    tolerance : number, or one for each place
        Relative to the larger side of each pair.
    hypotheses : sequence of Hypothesis
        If one is not met, the claim is not applicable.
    where : callable or str
        Index of the place → its name.
    """
    if unmet(hypotheses):
        return not_applicable(identity, relation, hypotheses)
    left, right = torch.broadcast_tensors(_flat(lhs), _flat(rhs))
    if left.numel() == 0:
        return not_applicable(identity, relation, hypotheses, "there is no place to evaluate it at")
    infinite = left.isinf() & (left == right)
    if bool(infinite.all()):
        return not_applicable(identity, relation, hypotheses, "both sides are infinite")
    scale = torch.maximum(left.abs(), right.abs()).clamp_min(torch.finfo(torch.float64).tiny)
    gap = {"≤": right - left, "≥": left - right}.get(relation, -(right - left).abs())
    # An infinity on the good side is room enough; what is not a number is a failure.
    slack = torch.where(torch.isfinite(gap), gap / scale, gap.sign())
    slack = torch.where(gap.isnan(), torch.full_like(slack, -math.inf), slack)
    granted = _flat(tolerance).expand_as(slack)
    # Added to one tolerance for all, slacks of the size of rounding would be equal.
    order = slack if isinstance(tolerance, float) else slack + granted
    index = int(torch.where(infinite, torch.full_like(slack, math.inf), order).argmin())
    least, allowed = float(slack[index]), float(granted[index])
    holds = least >= -allowed
    name = where if isinstance(where, str) else where(index)
    sides = float(left[index]), float(right[index])
    reason = "" if holds else f"{sides[0]:.6g} {relation} {sides[1]:.6g} is wrong by {-least:.2g} of the larger side"
    return Verdict(
        claim=identity,
        status="holds" if holds else "fails",
        lhs=sides[0],
        rhs=sides[1],
        relation=relation,
        slack=least,
        tolerance=allowed,
        hypotheses=tuple(hypotheses),
        where=name,
        reason=reason,
        details=details or {},
    )


def worst(first: Verdict, *others: Verdict) -> Verdict:
    """Of several parts of one claim the one that is not applicable, or fails, or the first; with the details of all."""
    parts = (first, *others)
    silent = [part for part in parts if part.status == "not applicable"]
    if silent:
        return silent[0]
    shown = next((part for part in parts if part.status == "fails"), first)
    return replace(shown, details={name: values for part in parts for name, values in part.details.items()})


def rounding(net: FullyConnected | LeakyResNet, *, condition: float = 1.0) -> float:
    """Relative rounding of a computation through the whole network in float64: eps · width · depth · condition.

    Claims are evaluated on the stored weights in float64, whatever dtype they were trained in: the theorems are about
    these weights, so that float32 enters only where an equality was brought about by training.
    """
    widest = max(max(W.shape) for W in net.Ws)
    return min(1e-3, 64.0 * torch.finfo(torch.float64).eps * widest * len(net.Ws) * max(condition, 1.0))


def _flat(value: Tensor | float | Sequence[float]) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).detach().cpu().reshape(-1)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
