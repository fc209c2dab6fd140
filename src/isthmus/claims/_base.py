"""Claim, Check and Verdict: an executable theorem, its evaluation, and what it says of one network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from isthmus._checks import check_choice, fail
from isthmus._cite import cites
from isthmus.networks import FullyConnected, LeakyResNet, Network
from isthmus.trace import Trace

STATUSES = ("holds", "fails", "not applicable")

#: How the left side stands to the right one.
RELATIONS = ("≤", "≥", "=", "≈")

MET, UNMET, UNKNOWN = "met", "not met", "not known"


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
    net : Network
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


class NotApplicable(Exception):
    """Ends the evaluation of a claim that says nothing of its subject; for :class:`Check` alone."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Check:
    """A claim on its way to a verdict: its hypotheses as they are looked at, its parts as they are compared.

    A hypothesis that was not looked at is not known, and nothing is compared unless all of them are met.

    Parameters
    ----------
    identity : str
        Of the claim.
    names : sequence of str
        Of its hypotheses.
    relation : {"≤", "≥", "=", "≈"}
        Shown where the claim is not applicable.
    """

    def __init__(self, identity: str, names: Sequence[str], relation: str = "=") -> None:
        self.id, self.relation = identity, relation
        self.parts: list[Verdict] = []
        self._names, self._seen = tuple(names), dict[str, Hypothesis]()

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """All of them, in the order of the claim."""
        return tuple(self._seen.get(name) or Hypothesis.of(name, None) for name in self._names)

    @property
    def unmet(self) -> str:
        """Those of the hypotheses looked at that are not met, in words; empty if there are none."""
        return unmet(self._seen.values())

    @property
    def verdict(self) -> Verdict:
        """Of the parts the first that fails, or else the first; with the details of all."""
        if not self.parts:
            self.not_applicable("nothing was compared")
        shown = next((part for part in self.parts if part.status == "fails"), self.parts[0])
        return replace(shown, details={name: values for part in self.parts for name, values in part.details.items()})

    def add(self, *found: Hypothesis) -> None:
        """Hypotheses that were looked at; later ones take the place of earlier ones of the same name."""
        for one in found:
            check_choice(self.id, "hypothesis", one.name, self._names)
            self._seen[one.name] = one

    def assume(self, name: str, met: bool | None, found: object = "") -> bool:
        """Add a hypothesis from a truth value, None if it is not known, and what was measured; whether it is met."""
        self.add(Hypothesis.of(name, met, found))
        return bool(met)

    def require(self) -> None:
        """Go on only if all hypotheses looked at so far are met."""
        if self.unmet:
            self.not_applicable()

    def not_applicable(
        self, reason: str = "", *, relation: str = "", details: Mapping[str, Sequence[float]] | None = None
    ) -> NoReturn:
        """End here: the theorem says nothing, for this reason, or for the hypotheses that are not met."""
        nan, hypotheses = math.nan, self.hypotheses
        relation, reason = relation or self.relation, reason or unmet(hypotheses)
        options: dict[str, Any] = {"reason": reason, "details": details or {}}
        raise NotApplicable(Verdict(self.id, "not applicable", nan, nan, relation, nan, nan, hypotheses, **options))

    def compare(
        self,
        lhs: Tensor | float | Sequence[float],
        relation: str,
        rhs: Tensor | float | Sequence[float],
        *,
        tolerance: float | Sequence[float],
        where: Callable[[int], str] | Sequence[str] | str = "",
        details: Mapping[str, Sequence[float]] | Callable[[int], Mapping[str, Sequence[float]]] | None = None,
        assuming: Sequence[str] | None = None,
    ) -> Verdict:
        """Add ``lhs relation rhs`` at many places: the place with the least slack beyond its tolerance is shown.

        A place where both sides are the same infinity is left out: they may be equal, or both have overflowed.

        Parameters
        ----------
        lhs, rhs : numbers, of equal length or one of them single
        relation : {"≤", "≥", "=", "≈"}
            ``"≈"`` is for rates: ``tolerance`` is then the half-width of an interval, not rounding.
        tolerance : number, or one for each place
            Relative to the larger side of each pair.
        where : str, or callable or sequence
            The name of all places, or from the index of a place to its name.
        details : mapping, or callable
            From the index of the place that is shown, if it depends on it.
        assuming : sequence of str, optional
            Hypotheses without which this part says nothing; all unless given.
        """
        missing = unmet(h for h in self.hypotheses if assuming is None or h.name in assuming)
        if missing:
            self.not_applicable(missing, relation=relation)
        left, right = torch.broadcast_tensors(_flat(lhs), _flat(rhs))
        if left.numel() == 0:
            self.not_applicable("there is no place to evaluate it at", relation=relation)
        infinite = left.isinf() & (left == right)
        if bool(infinite.all()):
            self.not_applicable("both sides are infinite", relation=relation)
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
        a, b = float(left[index]), float(right[index])
        holds = least >= -allowed
        part = Verdict(
            claim=self.id,
            status="holds" if holds else "fails",
            lhs=a,
            rhs=b,
            relation=relation,
            slack=least,
            tolerance=allowed,
            hypotheses=self.hypotheses,
            where=where if isinstance(where, str) else where(index) if callable(where) else where[index],
            reason="" if holds else f"{a:.6g} {relation} {b:.6g} is wrong by {-least:.2g} of the larger side",
            details=(details(index) if callable(details) else details) or {},
        )
        self.parts.append(part)
        return part

    def each(
        self,
        places: Sequence[tuple[float, float, str]],
        relation: str,
        *,
        tolerance: float,
        details: Mapping[str, Sequence[float]] | None = None,
    ) -> Verdict:
        """Add ``lhs relation rhs`` at places (lhs, rhs, name)."""
        lhs, rhs = [place[0] for place in places], [place[1] for place in places]
        where = [place[2] for place in places]
        return self.compare(lhs, relation, rhs, tolerance=tolerance, where=where, details=details)


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
    judge : callable
        (Check, Subject) → None. Tells the check its hypotheses first, then what it compares.
    sample : callable
        () → a Subject that meets them.
    relation : {"≤", "≥", "=", "≈"}
        Shown where the claim is not applicable.
    erratum : str
        What the paper prints otherwise, if it does.
    rate : bool
        Whether only a trend can be tested.
    about : str
        The ``kind`` of a network family, ours or a new one; to networks of another kind it is not applicable.
    """

    id: str
    statement: str
    paper: str
    where: str
    hypotheses: tuple[str, ...]
    judge: Callable[[Check, Subject], None]
    sample: Callable[[], Subject]
    relation: str = "="
    erratum: str = ""
    rate: bool = False
    about: str = FullyConnected.kind

    def evaluate(self, subject: Subject) -> Verdict:
        """What the claim says of a network."""
        check = Check(self.id, self.hypotheses, self.relation)
        try:
            if network_kind(subject.net) != self.about:
                check.not_applicable(f"needs {self.about}", relation="=")
            self.judge(check, subject)
            found = check.verdict
        except NotApplicable as silent:
            found = silent.verdict
        return found

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain data."""
        return {
            "id": self.id,
            "statement": self.statement,
            "paper": self.paper,
            "where_in_paper": self.where,
            "assumes": list(self.hypotheses),
            "erratum": self.erratum,
            "rate": self.rate,
            "about": self.about,
        }


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
    **options: Any,
) -> Callable[[Callable[[Check, Subject], None]], Claim]:
    """Register the decorated function as a claim; ``options`` are the other fields of :class:`Claim`."""
    about = options.get("about", FullyConnected.kind)
    if not isinstance(about, str) or not about:
        fail("claim", "`about` must be the kind of a network family", repr(about), "Pass `about=YourNetwork.kind`.")

    def register(judge: Callable[[Check, Subject], None]) -> Claim:
        if identity in CLAIMS:
            fail("claim", "ids must be unique", identity, "Choose another.")
        cites(paper, where, ids=(identity,))(judge)
        CLAIMS[identity] = Claim(identity, statement, paper, where, tuple(hypotheses), judge, sample, **options)
        return CLAIMS[identity]

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


def network_kind(net: object) -> str:
    """What claims call such networks; empty for what is not a network."""
    return net.kind if isinstance(net, Network) else ""


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
