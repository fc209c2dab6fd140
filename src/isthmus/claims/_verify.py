"""The verb: run claims on a network, or each on a sample that meets its hypotheses."""

from __future__ import annotations

import copy
import fnmatch
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus import _html
from isthmus._checks import as_matrix, check_choice, check_number, fail
from isthmus._errors import DataError, IsthmusError
from isthmus._progress import ProgressFactory, silent
from isthmus.claims._base import CLAIMS, Claim, Hypothesis, Subject, Verdict
from isthmus.networks import Network, from_torch
from isthmus.objective import LOSSES, class_indices

if TYPE_CHECKING:
    import pandas as pd


#: Raised when a field of the JSON changes its meaning or goes.
SCHEMA_VERSION = 1

#: What evaluating a claim may raise because of its numbers; all else is a defect, and ends the run.
NOT_COMPUTED = (
    IsthmusError,
    ArithmeticError,
    np.linalg.LinAlgError,
    torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
)


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts(Sequence[Verdict]):
    """What the claims said, in their order; ``about`` tells on what."""

    verdicts: tuple[Verdict, ...]
    about: str

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
    def sentence(self) -> str:
        """The answer in one sentence."""
        counts = {s: sum(v.status == s for v in self.verdicts) for s in ("holds", "fails", "not applicable")}
        return (
            f"Of {len(self)} claims {counts['holds']} hold, {counts['fails']} fail and {counts['not applicable']} are "
            f"not applicable ({self.about})."
        )

    def to_frame(self) -> pd.DataFrame:
        """One row for each claim."""
        import pandas as pd

        rows = [
            {
                "claim": v.claim,
                "status": v.status,
                "lhs": v.lhs,
                "relation": v.relation,
                "rhs": v.rhs,
                "slack": v.slack,
                "tolerance": v.tolerance,
                "where": v.where,
                "reason": v.reason,
                "statement": CLAIMS[v.claim].statement,
            }
            for v in self.verdicts
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": "isthmus.verdicts",
            "version": SCHEMA_VERSION,
            "about": self.about,
            "sentence": self.sentence,
            "verdicts": [{**v.to_dict(), **CLAIMS[v.claim].to_dict()} for v in self.verdicts],
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def __repr__(self) -> str:
        lines = [self.sentence]
        for v in self.verdicts:
            sides = f"{v.lhs:.4g} {v.relation} {v.rhs:.4g}, slack {v.slack:.2g}" if v.status != "not applicable" else ""
            lines.append(f"  {v.claim:10} {v.status:15} {sides}{v.reason if v.status != 'holds' else ''}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            [
                _html.badge(v.status),
                _html.name(v.claim),
                f"{_html.number(v.lhs)} {v.relation} {_html.number(v.rhs)}",
                _html.number(v.slack),
                _html.told(v.reason or CLAIMS[v.claim].statement),
            ]
            for v in self.verdicts
        ]
        header = ["verdict", "claim", "both sides", "slack", "statement, or why not"]
        return _html.card(_html.heading(_html.told(self.sentence)), _html.table(header, rows))


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
    claims: str | Sequence[str] | None = None,
    progress: ProgressFactory = silent,
) -> Verdicts:
    """Evaluate the theorems on a network: both sides of each, its hypotheses checked, its slack.

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
    claims : str or sequence of str, optional
        Ids or globs, ``"C-bn-*"``; all unless given.
    progress : callable, optional
        As in ``train``.
    """
    who = "verify"
    check_choice(who, "loss", loss, LOSSES)
    if ridge is not None:
        check_number(who, "ridge", ridge, low=0.0)
    # With as few layers as its function needs, and as it is where nothing is known of its layers.
    chain = copy.deepcopy(net.simplified()) if isinstance(net, Network) else from_torch(net)
    inputs = as_matrix(who, "X", X, columns=chain.columns())
    subject = Subject(chain.requires_grad_(False).double(), inputs, _targets(who, Y, inputs, loss), ridge, loss)
    return _run(chosen(who, claims), lambda _: subject, f"{chain.about()}, {len(inputs)} samples", progress)


def verify_samples(claims: str | Sequence[str] | None = None, *, progress: ProgressFactory = silent) -> Verdicts:
    """Evaluate each claim on its own sample, which meets the claim's hypotheses: none should fail."""
    return _run(chosen("verify", claims), lambda one: one.sample(), "each on its own sample", progress)


def _run(
    claims: list[Claim], subject_of: Callable[[Claim], Subject], about: str, progress: ProgressFactory
) -> Verdicts:
    verdicts = []
    with progress(len(claims), "verify") as bar:
        for one in claims:
            subject = subject_of(one)
            try:
                verdicts.append(one.evaluate(subject))
            except NOT_COMPUTED as error:
                # A state with a name, not the end of the others.
                named = isinstance(error, IsthmusError)
                why = str(error) if named else f"not computed ({type(error).__name__}: {error})"
                failed = Hypothesis("can be evaluated", "not known", why)
                nan = float("nan")
                verdicts.append(Verdict(one.id, "not applicable", nan, nan, "=", nan, nan, (failed,), reason=why))
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
