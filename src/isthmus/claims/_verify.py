"""The verb: run claims on a network, or each on a sample that meets its hypotheses."""

from __future__ import annotations

import copy
import fnmatch
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus import _html
from isthmus._checks import as_matrix, check_choice, check_integer, check_number, fail
from isthmus._errors import DataError, IsthmusError
from isthmus._progress import ProgressFactory, shown
from isthmus._result import Table
from isthmus.claims._base import (
    CAUSES,
    CLAIMS,
    KNOWN,
    STATUSES,
    Claim,
    Hypothesis,
    Subject,
    Verdict,
    network_kind,
    unmet,
)
from isthmus.claims._evidence import points_of
from isthmus.measures import parameter_norms
from isthmus.networks import Network, from_torch
from isthmus.objective import LOSSES, class_indices

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


#: Raised when a field of the JSON changes its meaning or goes.
SCHEMA_VERSION = 2

#: Distances from an isometry up to which layers are counted: the least at which half of them are, or the last.
ISOMETRY = (0.05, 0.1, 0.2, 0.5)

#: What evaluating a claim may raise because of its numbers; all else is a defect, and ends the run.
NOT_COMPUTED = (
    IsthmusError,
    ArithmeticError,
    np.linalg.LinAlgError,
    torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
)


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts(Sequence[Verdict]):
    """What the claims said, in their order.

    Attributes
    ----------
    verdicts : tuple of Verdict
    about : str
        On what.
    closing : str
        What it comes to, in one sentence; empty where each claim was judged on its own sample.
    """

    verdicts: tuple[Verdict, ...]
    about: str
    closing: str = ""

    def __getitem__(self, key: int | str) -> Verdict:  # pyright: ignore[reportIncompatibleMethodOverride]
        """By position, or by the claim's id."""
        if isinstance(key, str):
            return {verdict.claim: verdict for verdict in self.verdicts}[key]
        return self.verdicts[key]

    def __len__(self) -> int:
        return len(self.verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the claims that fail."""
        return tuple(verdict.claim for verdict in self.verdicts if verdict.status == "fails")

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """Verdicts of the claims that apply."""
        return tuple(verdict for verdict in self.verdicts if verdict.status != "not applicable")

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each status."""
        return {status: sum(v.status == status for v in self.verdicts) for status in STATUSES}

    @property
    def silent(self) -> dict[str, dict[str, list[str]]]:
        """The claims that do not apply: by cause, and then by what can be supplied, or else by the reason."""
        groups: dict[str, dict[str, list[str]]] = {cause: {} for cause in CAUSES}
        for verdict in self.verdicts:
            if verdict.status == "not applicable":
                groups[verdict.cause].setdefault(verdict.supply or verdict.reason, []).append(verdict.claim)
        return {cause: found for cause, found in groups.items() if found}

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        n = self.counts
        return (
            f"Of {len(self)} claims {n['holds']} hold, {n['holds trivially']} hold trivially, {n['fails']} fail and "
            f"{n['not applicable']} are not applicable ({self.about})."
        )

    @property
    def verdict(self) -> str:
        """The worst status that occurs."""
        return next((one for one in ("fails", *STATUSES) if self.counts[one]), "not applicable")

    @property
    def reasons(self) -> tuple[str, ...]:
        """What fails, where and why."""
        failed = (v for v in self.judged if v.status == "fails")
        return tuple(f"{v.claim} fails at {v.where or 'its place'}: {v.reason}" for v in failed)

    def tables(self) -> list[Table]:
        """Claim by claim, part by part, what says nothing and why, hypotheses, statements."""
        from isthmus.claims._tables import tables_of

        return tables_of(self)

    def plot(self, figure: Figure | None = None) -> Figure:
        """Margins by claim, as a matplotlib figure."""
        from isthmus.plotting.draw import sheet
        from isthmus.plotting.verdicts import margins

        panels = (
            [(margins(list(self.judged), {v.claim: CLAIMS[v.claim].title for v in self.judged}), None)]
            if self.judged
            else []
        )
        return sheet(panels, self.sentence, self.verdict, why=self.reasons, figure=figure)

    def to_frame(self) -> pd.DataFrame:
        """One row for each claim."""
        import pandas as pd

        names = (
            "status",
            "lhs",
            "relation",
            "rhs",
            "slack",
            "tolerance",
            "margin",
            "where",
            "reason",
            "cause",
            "supply",
        )
        rows = [
            {
                "claim": v.claim,
                "title": CLAIMS[v.claim].title,
                **{name: getattr(v, name) for name in names},
                "statement": CLAIMS[v.claim].statement,
            }
            for v in self.verdicts
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON."""
        return {
            "format": "isthmus.verdicts",
            "version": SCHEMA_VERSION,
            "about": self.about,
            "sentence": self.sentence,
            "closing": self.closing,
            "counts": self.counts,
            "not_applicable": self.silent,
            "verdicts": [{**v.to_dict(), **CLAIMS[v.claim].to_dict()} for v in self.verdicts],
        }

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def __repr__(self) -> str:
        lines = [self.sentence]
        for v in self.judged:
            sides = f"{v.lhs:.4g} {v.relation} {v.rhs:.4g}, margin {v.margin:.2g}"
            lines.append(f"  {v.claim:10} {v.status:15} {CLAIMS[v.claim].title}: {sides} {v.reason}".rstrip())
        for cause, found in self.silent.items():
            lines.append(f"  {CAUSES[cause]}: {shortened([one for ids in found.values() for one in ids])}")
        return "\n".join([*lines, *([self.closing] if self.closing else [])])

    def _repr_html_(self) -> str:
        rest = [
            f"{CAUSES[cause]}{' ' + what if cause == 'supply' else ''}: {shortened(ids)}"
            for cause, found in self.silent.items()
            for what, ids in (found.items() if cause == "supply" else [("", sum(found.values(), []))])
        ]
        return _html.result(self, _html.items(rest), _html.prose(self.closing))


def shortened(ids: Sequence[str]) -> str:
    """Ids in words, runs of a paper as one: "C-rank-2, C-ham-1 … 9"."""
    runs: list[tuple[str, list[int]]] = []
    for one in ids:
        prefix, number = one.rsplit("-", 1)
        if runs and runs[-1][0] == prefix and runs[-1][1][-1] + 1 == int(number):
            runs[-1][1].append(int(number))
        else:
            runs.append((prefix, [int(number)]))
    texts = [
        [f"{prefix}-{numbers[0]} … {numbers[-1]}"] if len(numbers) > 2 else [f"{prefix}-{n}" for n in numbers]
        for prefix, numbers in runs
    ]
    return ", ".join(text for one in texts for text in one)


def chosen(who: str, claims: str | Sequence[str] | None) -> list[Claim]:
    """The claims of these ids or globs, all unless given, in the order of the papers."""
    patterns = [claims] if isinstance(claims, str) else claims
    found = [c for c in CLAIMS.values() if patterns is None or any(fnmatch.fnmatchcase(c.id, p) for p in patterns)]
    if not found:
        fail(who, "`claims` must name claims", claims, f"Choose from {', '.join(CLAIMS)}.")
    return found


def verify(
    net: nn.Module,
    X: Any,
    Y: Any = None,
    *,
    ridge: float | None = None,
    loss: str = "mse",
    known: Mapping[str, Any] | None = None,
    k: int | None = None,
    claims: str | Sequence[str] | None = None,
    progress: bool | ProgressFactory = False,
) -> Verdicts:
    """Evaluate the theorems on a network: both sides of each, its hypotheses checked, and the margin that is left.

    Where a theorem is about any data and all of them would take too long, or are too ill conditioned to tell, rows are
    drawn from ``X`` with a seed, and the verdict says so.

    Parameters
    ----------
    net : Network, or nn.Sequential of Linear and one kind of ReLU / LeakyReLU
        Claims about another kind of network are not applicable.
    X : array (N, d_in)
        Points at which claims about Jacobians and representations are evaluated.
    Y : array, optional
        Targets; with ``ridge`` for claims about minimisers of cost + ridge·‖θ‖².
    ridge : float, optional
        In this library's convention (``isthmus.ridge_from``).
    loss : {"mse", "cross_entropy"}
    known : mapping, optional
        What only you know: the true function (``"truth"``), the noise of ``Y`` (``"noise"``), a group that leaves f as
        it is (``"action"``, ``"quotient_dimension"``), a family of networks (``"family"``) …; a verdict with the cause
        "supply" names what it needs. Under the id of a claim, a mapping for that claim alone.
    k : int, optional
        Rank at which bounds with k are judged; every k up to the rank of the Jacobians unless given.
    claims : str or sequence of str, optional
        Ids or globs, ``"C-bn-*"``; all unless given.
    progress : bool or callable, default False
        Show on stderr how far it is, as in ``train``.
    """
    who = "verify"
    check_choice(who, "loss", loss, LOSSES)
    if ridge is not None:
        check_number(who, "ridge", ridge, low=0.0)
    # With as few layers as its function needs, and as it is where nothing is known of its layers.
    chain = copy.deepcopy(net.simplified()) if isinstance(net, Network) else from_torch(net)
    inputs = as_matrix(who, "X", X, columns=chain.columns())
    if k is not None:
        check_integer(who, "k", k, low=1)
    for name in known or {}:
        check_choice(who, "known", name, (*KNOWN, *CLAIMS))
    own = {name: value for name, value in (known or {}).items() if name in KNOWN}
    own |= {} if k is None else {"k": k}
    subject = Subject(chain.requires_grad_(False).double(), inputs, _targets(who, Y, inputs, loss), ridge, loss, own)
    alone = {one: subject.replace(known={**own, **value}) for one, value in (known or {}).items() if one in CLAIMS}
    about = f"{chain.about()}, {len(inputs)} samples"
    found = _run(chosen(who, claims), lambda one: alone.get(one.id, subject), about, progress)
    return replace(found, closing=in_words(subject))


def in_words(subject: Subject) -> str:
    """What the network is near to: its norm beside that of its rank, its layers beside isometries, its Hamiltonian."""
    judges = {CLAIMS["C-bn-6"].about: _of_layers, CLAIMS["C-ham-4"].about: _of_a_path}
    judge = judges.get(network_kind(subject.net))
    try:
        return judge(subject) if judge is not None else ""
    except NOT_COMPUTED as error:
        return f"Its norm is not compared ({type(error).__name__})."


def _of_layers(subject: Subject) -> str:
    """How far ‖θ‖² is above kL + 2 log(s_1 … s_k), k as given or of the largest bound, and how many are isometries."""
    from isthmus.claims.bottleneck2023._jacobian_bounds import layer_distances

    found, norms = points_of(subject, points=4), parameter_norms(subject.net)
    L, total, asked = len(norms.weights), norms.total, subject.known.get("k")
    if len(found.index) == 0 or int(found.ranks.max()) == 0:
        return "Its Jacobians vanish, or are not known: no rank to compare its norm with."
    logs = found.log_products
    bounds = torch.arange(1, logs.shape[1] + 1, dtype=torch.float64) * L + 2 * logs
    if asked is not None and asked <= logs.shape[1]:
        bounds = torch.where(torch.arange(1, logs.shape[1] + 1) == asked, bounds, torch.full_like(bounds, -math.inf))
    row, column = divmod(int(bounds.argmax()), bounds.shape[1])
    k, bound = column + 1, float(bounds[row, column])
    if not bound > 0.0:
        return f"Its norm {total:.3g} has no positive bound of rank {k} to be compared with."
    excess = total / bound - 1.0
    near = f"within {excess:.0%} of" if excess < 1.0 else f"{excess + 1:.1f} times"
    size = f"Its norm is {near} the least of a rank-{k} network with these Jacobians"
    distances = layer_distances(found, row, k).sqrt()
    counts = {reach: int((distances <= reach).sum()) for reach in ISOMETRY}
    reach = next((reach for reach, count in counts.items() if 2 * count >= L), ISOMETRY[-1])
    return f"{size}; {counts[reach]} of {L} layers are isometries of rank {k} to {reach:g}."


def _of_a_path(subject: Subject) -> str:
    from isthmus.claims.hamiltonian2024._flow import drift, path_of

    path, hypotheses = path_of(subject)
    if path is None:
        return f"It is not known to be on a Hamiltonian flow: {unmet(hypotheses)}."
    H = path.hamiltonians()
    rank = -2.0 / path.L_tilde * float(torch.tensor(H, dtype=torch.float64).median())
    flow = f"It is on a Hamiltonian flow (residual {path.residual:.1g})"
    return f"{flow}: −(2/L̃)𝓗 is {rank:.3g}, constant to {drift(H):.0%}."


def verify_samples(claims: str | Sequence[str] | None = None, *, progress: bool | ProgressFactory = False) -> Verdicts:
    """Evaluate each claim on its own sample, which meets the claim's hypotheses: none should fail."""
    return _run(chosen("verify", claims), lambda one: one.sample(), "each on its own sample", progress)


def _run(
    claims: list[Claim], subject_of: Callable[[Claim], Subject], about: str, progress: bool | ProgressFactory
) -> Verdicts:
    verdicts = []
    with shown(progress)(len(claims), "verify") as bar:
        for one in claims:
            subject = subject_of(one)
            try:
                verdicts.append(one.evaluate(subject))
            except NOT_COMPUTED as error:
                # A state with a name, not the end of the others.
                named = isinstance(error, IsthmusError)
                why = str(error) if named else f"not computed ({type(error).__name__}: {error})"
                failed = Hypothesis("can be evaluated", "not known", why)
                sides = (math.nan, math.nan, "=", math.nan, math.nan)
                verdict = Verdict(one.id, "not applicable", *sides, (failed,), reason=why, cause="numerical")
                verdicts.append(verdict)
            bar.advance(1)
    return Verdicts(tuple(verdicts), about)


def _targets(who: str, Y: Any, X: Tensor, loss: str) -> Tensor | None:
    if Y is None:
        return None
    targets = as_matrix(who, "Y", Y)
    if len(targets) != len(X):
        got = f"{len(X)} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Pass one target for each sample.", error=DataError)
    if loss == "cross_entropy" and targets.shape[1] == 1:
        return class_indices(who, targets)
    return targets
