"""Claim, Check and Verdict: an executable theorem, its evaluation, and what it says of one network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from isthmus._checks import check_choice, fail
from isthmus._cite import cites
from isthmus._codec import Plain
from isthmus.measures import Stationarity, stationarity
from isthmus.networks import FullyConnected, LeakyResNet, Network
from isthmus.trace import Trace

STATUSES = ("holds", "holds trivially", "fails", "not applicable")

#: Why a claim says nothing, in words.
CAUSES = {
    "kind": "not about this kind of network",
    "supply": "you can supply",
    "network": "your network is not",
    "numerical": "not decidable numerically",
}

#: Said of what holds trivially because it is about data alone.
ABSENT = "the network does not enter"

#: A margin above this share of the larger side is no test: the claim holds trivially.
TRIVIAL = 0.99

#: How the left side stands to the right one.
RELATIONS = ("≤", "≥", "=", "≈")

MET, UNMET, UNKNOWN = "met", "not met", "not known"

#: What only the maker of a network knows, by the name under which ``verify(known=…)`` takes it.
KNOWN = {
    "C": "constant of ‖W‖² ≤ L + C, of partial Jacobians, or of a true function",
    "Ws": "weights in place of the network's, to see a claim fail",
    "action": "group action on inputs, as isthmus.symmetry takes it",
    "activation": "another σ",
    "affine": "(A, family of networks of x ↦ Ax + b)",
    "c": "constant of the threshold of recovery",
    "classifier": "function in place of the network",
    "edges": "edges of a graph",
    "exponent": "γ of Example 20",
    "f": "a network or construction, or a family of them",
    "family": "networks, constructions or subjects by depth, width or L̃",
    "fits": "subjects: fits of rank 1 for several N",
    "free": "number of blocks that move together",
    "function": "function of the plane in place of the network",
    "g": "a network or construction, or a family of them",
    "independent": "whether inputs were drawn independently",
    "join": "'f∘g' or 'f+g'",
    "k": "rank to judge at",
    "k_star": "Jacobian rank of the true function",
    "kernel": "radial kernel",
    "lambda": "λ of the paper",
    "merge": "groups of neurons",
    "noise": "standard deviation of the noise of Y",
    "p0": "position on the path",
    "path growth": "point sets by dimension",
    "points": "points at which a kernel fit is judged",
    "quotient_dimension": "dim Ω/G",
    "rank": "bottleneck rank of the function",
    "skeleton": "'cross' or 'circle'",
    "spectra": "singular values in place of the representations'",
    "tangents": "bases of tangent spaces, (P, d, k)",
    "truth": "the true function as a construction",
    "vertices": "number of vertices of a graph",
    "widths": "hidden widths",
}


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
    supply : str
        What a user can pass so that it can be looked at; empty where nothing is missing.
    """

    name: str
    status: str
    found: str = ""
    supply: str = ""

    @staticmethod
    def of(name: str, met: bool | None, found: object = "", *, supply: str = "") -> Hypothesis:
        """From a truth value; None is not known."""
        return Hypothesis(name, UNKNOWN if met is None else MET if met else UNMET, str(found), supply)

    @property
    def cause(self) -> str:
        """A key of ``CAUSES``, or empty if it is met."""
        if self.status == MET:
            return ""
        return "supply" if self.supply else "network" if self.status == UNMET else "numerical"


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

    @cached_property
    def cache(self) -> dict[str, Any]:
        """What many claims need, computed once."""
        return {}

    @cached_property
    def stationarity(self) -> Stationarity | None:
        """How near to a stationary point of cost + ridge·‖θ‖² it is, kinks resolved; None without targets and ridge."""
        if self.Y is None or not self.ridge:
            return None
        net = deepcopy(self.net).requires_grad_(True)
        return stationarity(net, self.X, self.Y, ridge=self.ridge, loss=self.loss, hessian=False)

    def family(self, *kinds: type) -> list[Any] | None:
        """``known["family"]`` if it is one of these kinds: what is meant for another claim is not given to this one."""
        given = self.known.get("family")
        return None if given is None or not all(isinstance(one, kinds) for one in given) else list(given)

    def drawn(self, most: int, *, seed: int = 0) -> tuple[Subject, str]:
        """The subject on at most ``most`` rows drawn at random, and what was done in words; for any-data theorems."""
        N = len(self.X)
        if most >= N:
            return self, f"all {N} rows"
        rows = torch.randperm(N, generator=torch.Generator().manual_seed(seed))[:most].sort().values
        Y = None if self.Y is None else self.Y[rows]
        return self.replace(X=self.X[rows], Y=Y), f"{most} of {N} rows drawn (seed {seed})"

    def replace(self, **changes: Any) -> Subject:
        """A subject that differs in these fields."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Part(Plain):
    """One statement of a claim, judged for itself.

    Attributes
    ----------
    name : str
        In words; empty where the claim has one part.
    status : {"holds", "holds trivially", "fails", "not applicable"}
    lhs, rhs, relation, slack, tolerance, where, reason
        As of :class:`Verdict`.
    """

    derived: ClassVar = ("margin",)

    name: str
    status: str
    lhs: float = math.nan
    rhs: float = math.nan
    relation: str = "="
    slack: float = math.nan
    tolerance: float = math.nan
    where: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        check_choice("Part", "status", self.status, STATUSES)
        check_choice("Part", "relation", self.relation, RELATIONS)

    @property
    def margin(self) -> float:
        """By how much of the larger side the sides could still move until it fails: slack + tolerance."""
        return self.slack + self.tolerance


@dataclass(frozen=True, eq=False)
class Verdict(Plain):
    """What a claim says of one network.

    Attributes
    ----------
    claim : str
        Its id.
    status : {"holds", "holds trivially", "fails", "not applicable"}
        "fails" if a part does, else that of its headline, the first part that was judged; trivially where the margin is
        above 0.99 of the larger side, where the network does not enter, and where it is so by construction.
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
        Why it is not applicable, why it says little, or what failed.
    details : mapping of str to list of float
        The picture behind it: by layer, by sample, by depth.
    parts : tuple of Part
        Its statements, each judged for itself; the one shown is among them.
    cause : {"", "kind", "supply", "network", "numerical"}
        Why it is not applicable: see ``CAUSES``.
    supply : str
        What can be passed to ``verify`` so that it applies, for the cause "supply".
    """

    derived: ClassVar = ("margin",)

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
    parts: tuple[Part, ...] = ()
    cause: str = ""
    supply: str = ""

    def __post_init__(self) -> None:
        check_choice("Verdict", "status", self.status, STATUSES)
        check_choice("Verdict", "relation", self.relation, RELATIONS)
        check_choice("Verdict", "cause", self.cause, ("", *CAUSES))

    @property
    def margin(self) -> float:
        """By how much of the larger side the sides could still move until it fails: slack + tolerance."""
        return self.slack + self.tolerance


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
        self.parts: list[Part] = []
        self._names, self._seen = tuple(names), dict[str, Hypothesis]()
        self._details: dict[str, Sequence[float]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of all hypotheses."""
        return self._names

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """All of them, in the order of the claim."""
        return tuple(self._seen.get(name) or Hypothesis.of(name, None) for name in self._names)

    @property
    def unmet(self) -> str:
        """Those of the hypotheses looked at that are not met, in words; empty if there are none."""
        return unmet(self._seen.values())

    @property
    def judged(self) -> list[Part]:
        """The parts of which something was said."""
        return [part for part in self.parts if part.status != "not applicable"]

    @property
    def verdict(self) -> Verdict:
        """Of the parts that were judged the first that fails, or else the first, its headline."""
        judged = self.judged
        if not judged:
            self.not_applicable("; ".join(part.reason for part in self.parts) or "nothing was compared")
        shown = next((part for part in judged if part.status == "fails"), judged[0])
        numbers = (shown.lhs, shown.rhs, shown.relation, shown.slack, shown.tolerance, self.hypotheses)
        where = f"{shown.name}: {shown.where}" if shown.name and shown.where else shown.name or shown.where
        options: dict[str, Any] = {"details": dict(self._details), "parts": tuple(self.parts)}
        return Verdict(self.id, shown.status, *numbers, where=where, reason=shown.reason, **options)

    def add(self, *found: Hypothesis) -> None:
        """Hypotheses that were looked at; later ones take the place of earlier ones of the same name."""
        for one in found:
            check_choice(self.id, "hypothesis", one.name, self._names)
            self._seen[one.name] = one

    def assume(self, name: str, met: bool | None, found: object = "", *, supply: str = "") -> bool:
        """Add a hypothesis from a truth value, None if it is not known, and what was measured; whether it is met."""
        self.add(Hypothesis.of(name, met, found, supply=supply))
        return bool(met)

    def require(self) -> None:
        """Go on only if all hypotheses looked at so far are met."""
        if self.unmet:
            self.not_applicable()

    def not_applicable(
        self,
        reason: str = "",
        *,
        relation: str = "",
        cause: str = "",
        supply: str = "",
        details: Mapping[str, Sequence[float]] | None = None,
    ) -> NoReturn:
        """End here: the theorem says nothing, for this reason, or for the hypotheses that are not met.

        ``cause`` is a key of ``CAUSES``; unless given it is "supply" where something can be supplied, else that of the
        hypotheses looked at: what the network is not comes before what could be supplied, and that before what rounding
        hides.
        """
        nan, hypotheses, seen = math.nan, self.hypotheses, [h for h in self._seen.values() if h.cause]
        relation, reason = relation or self.relation, reason or unmet(hypotheses)
        causes = [h.cause for h in seen]
        cause = cause or next((c for c in ("network", "supply") if c in [*causes, supply and "supply"]), "numerical")
        if cause == "supply":
            supply = supply or ", ".join(dict.fromkeys(h.supply for h in seen if h.supply))
        options: dict[str, Any] = {"reason": reason, "details": details or {}, "parts": tuple(self.parts)}
        options |= {"cause": cause, "supply": supply if cause == "supply" else ""}
        raise NotApplicable(Verdict(self.id, "not applicable", nan, nan, relation, nan, nan, hypotheses, **options))

    def compare(
        self,
        lhs: Tensor | float | Sequence[float],
        relation: str,
        rhs: Tensor | float | Sequence[float],
        *,
        tolerance: float | Sequence[float],
        part: str = "",
        scale: float | None = None,
        where: Callable[[int], str] | Sequence[str] | str = "",
        details: Mapping[str, Sequence[float]] | Callable[[int], Mapping[str, Sequence[float]]] | None = None,
        assuming: Sequence[str] | None = None,
        trivial: str = "",
    ) -> Part:
        """Add ``lhs relation rhs`` at many places: the place with the least slack beyond its tolerance is shown.

        A place where both sides are the same infinity is left out: they may be equal, or both have overflowed.

        Parameters
        ----------
        lhs, rhs : numbers, of equal length or one of them single
        relation : {"≤", "≥", "=", "≈"}
            ``"≈"`` is for rates: ``tolerance`` is then the half-width of an interval, not rounding.
        tolerance : number, or one for each place
            Relative to the larger side of each pair.
        part : str, optional
            What this part says, in words, where the claim has several.
        scale : float, optional
            What slack and tolerance are relative to, in place of the larger side: for numbers that vanish.
        where : str, or callable or sequence
            The name of all places, or from the index of a place to its name.
        details : mapping, or callable
            From the index of the place that is shown, if it depends on it.
        assuming : sequence of str, optional
            Hypotheses without which this part says nothing, while the other parts are judged. All unless given, and
            then the claim ends here.
        trivial : str, optional
            Why it holds trivially where it does: by construction, or because the network does not enter.
        """
        missing = unmet(h for h in self.hypotheses if assuming is None or h.name in assuming)
        left, right = torch.broadcast_tensors(_flat(lhs), _flat(rhs))
        infinite = left.isinf() & (left == right)
        if not missing and left.numel() == 0:
            missing = "there is no place to evaluate it at"
        elif not missing and bool(infinite.all()):
            missing = "both sides are infinite"
        if missing and assuming is None:
            self.not_applicable(missing, relation=relation)
        if missing:
            self.parts.append(Part(part, "not applicable", relation=relation, reason=missing))
            return self.parts[-1]
        unit = torch.maximum(left.abs(), right.abs()) if scale is None else torch.full_like(left, scale)
        unit = unit.clamp_min(torch.finfo(torch.float64).tiny)
        gap = {"≤": right - left, "≥": left - right}.get(relation, -(right - left).abs())
        # An infinity on the good side is room enough; what is not a number is a failure.
        slack = torch.where(torch.isfinite(gap), gap / unit, gap.sign())
        slack = torch.where(gap.isnan(), torch.full_like(slack, -math.inf), slack)
        granted = _flat(tolerance).expand_as(slack)
        # Added to one tolerance for all, slacks of the size of rounding would be equal.
        order = slack if isinstance(tolerance, float) else slack + granted
        index = int(torch.where(infinite, torch.full_like(slack, math.inf), order).argmin())
        least, allowed = float(slack[index]), float(granted[index])
        a, b = float(left[index]), float(right[index])
        empty = "both sides vanish" if a == b == 0.0 and scale is None else ""
        status, reason = _grade(least, allowed, trivial or empty)
        if status == "fails":
            reason = f"{a:.6g} {relation} {b:.6g} is wrong by {-least:.2g} of the larger side"
        place = where if isinstance(where, str) else where(index) if callable(where) else where[index]
        self.parts.append(Part(part, status, a, b, relation, least, allowed, place, reason))
        self._details.update((details(index) if callable(details) else details) or {})
        return self.parts[-1]

    def vanish(
        self,
        errors: Tensor | float | Sequence[float],
        *,
        tolerance: float | Sequence[float],
        part: str = "",
        where: Callable[[int], str] | Sequence[str] | str = "",
        **options: Any,
    ) -> Part:
        """Add that relative errors are 0: what is granted is the whole of the margin."""
        return self.compare(errors, "=", 0.0, tolerance=tolerance, part=part, scale=1.0, where=where, **options)

    def each(
        self,
        places: Sequence[tuple[float, float, str]],
        relation: str,
        *,
        tolerance: float,
        **options: Any,
    ) -> Part:
        """Add ``lhs relation rhs`` at places (lhs, rhs, name); ``options`` as for :meth:`compare`."""
        lhs, rhs = [place[0] for place in places], [place[1] for place in places]
        return self.compare(lhs, relation, rhs, tolerance=tolerance, where=[place[2] for place in places], **options)


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

    @property
    def title(self) -> str:
        """The theorem in a few words."""
        words = self.judge.__name__.strip("_").split("_")
        return " ".join(word.capitalize() if word in ("schatten", "hamiltonian") else word for word in words)

    def evaluate(self, subject: Subject) -> Verdict:
        """What the claim says of a network."""
        check = Check(self.id, self.hypotheses, self.relation)
        try:
            if network_kind(subject.net) != self.about:
                check.not_applicable(f"needs {self.about}", relation="=", cause="kind")
            self.judge(check, subject)
        except NotApplicable as silent:
            if not check.judged:
                return silent.verdict
            # What was judged before stands, and what is missing is said beside it.
            check.parts.append(Part("the rest", "not applicable", reason=silent.verdict.reason))
        try:
            return check.verdict
        except NotApplicable as silent:
            return silent.verdict

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain data."""
        return {
            "id": self.id,
            "title": self.title,
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


def _grade(slack: float, tolerance: float, trivial: str) -> tuple[str, str]:
    if slack < -tolerance:
        return "fails", ""
    if trivial:
        return "holds trivially", trivial
    if slack + tolerance > TRIVIAL:
        return "holds trivially", "the sides are so far apart that it could hardly fail"
    return "holds", ""


def _flat(value: Tensor | float | Sequence[float]) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).detach().cpu().reshape(-1)
