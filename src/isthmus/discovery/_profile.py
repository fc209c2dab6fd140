"""The rank profile: how well networks through k coordinates do, for each k, and what the numbers say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus import _html
from isthmus._checks import check_choice, check_integer, fail
from isthmus.discovery._walk import TOLERANCE, Level
from isthmus.objective import LOSSES

Array = NDArray[np.float64]

_COLUMNS = ("cost", "loss", "error", "standard_error", "excess", "excess_error", "norm", "regularity")


def reference_of(loss_kind: str) -> str:
    """What errors and losses of that kind are shares of."""
    return "the classes' entropy" if loss_kind == "cross_entropy" else "the outputs' variance"


def unit_of(loss_kind: str) -> str:
    """What errors are shares of, in one word."""
    return "entropy" if loss_kind == "cross_entropy" else "variance"


@dataclass(frozen=True, eq=False)
class RankProfile:
    """For each k, the best network of bottleneck rank ≤ k that was found. Arrays are by row, k rising.

    Attributes
    ----------
    ranks : array of int
        k.
    cost, loss : array
        Training cost and regularised loss, relative to the variance of the outputs (to the entropy of the classes).
    error, standard_error : array
        Held-out squared error relative to the variance of the outputs (1 is a constant's), over held-out rows, or
        groups where there are any; for classes, log loss relative to their entropy.
    excess, excess_error : array
        Mean of the row-wise difference to the best k, and its standard error: much sharper than the errors alone.
    norm, regularity : array
        ‖θ‖², and ‖θ‖² − k·L: what is left after k for each layer estimates R1.
    states, starts : tuple of str
        How each training ended (``"at rest"``, ``"falling"``, ``"diverged"``) and what it started from.
    baseline : float
        Held-out error of the best constant.
    depth : int
        L, the number of weight matrices.
    width : int
        Neurons of a layer.
    strength, tolerance, resolution : float
        λ; the share of the best error that another may exceed it by, and twice what it may exceed it by beside that.
    """

    ranks: NDArray[np.int64]
    cost: Array
    loss: Array
    error: Array
    standard_error: Array
    excess: Array
    excess_error: Array
    norm: Array
    regularity: Array
    states: tuple[str, ...]
    starts: tuple[str, ...]
    baseline: float
    depth: int
    width: int
    strength: float
    tolerance: float
    resolution: float
    #: What each coordinate of the widest network moves at the outputs, as shares.
    shares: Array = field(default_factory=lambda: np.zeros(0))
    #: ``"mse"`` or ``"cross_entropy"``.
    loss_kind: str = "mse"

    @staticmethod
    def of(
        levels: Sequence[Level],
        *,
        depth: int,
        width: int,
        strength: float,
        baseline: float,
        loss_kind: str = "mse",
        tolerance: float = TOLERANCE,
        resolution: float | None = None,
    ) -> RankProfile:
        """Collect the levels of a walk."""
        rows = sorted(levels, key=lambda level: level.rank)
        best = min(rows, key=lambda level: level.error)

        def column(value: Any) -> Array:
            return np.array([value(level) for level in rows], dtype=np.float64)

        return RankProfile(
            ranks=np.array([level.rank for level in rows], dtype=np.int64),
            cost=column(lambda level: level.fit.cost),
            loss=column(lambda level: level.fit.loss),
            error=column(lambda level: level.error),
            standard_error=column(lambda level: standard_error(level.errors)),
            excess=column(lambda level: level.error - best.error),
            excess_error=column(lambda level: standard_error(level.errors - best.errors)),
            norm=column(lambda level: level.fit.norm),
            regularity=column(lambda level: level.fit.norm - level.rank * depth),
            states=tuple(level.fit.state for level in rows),
            starts=tuple(level.start for level in rows),
            baseline=baseline,
            depth=depth,
            width=width,
            strength=strength,
            tolerance=tolerance,
            resolution=strength if resolution is None else resolution,
            shares=np.asarray(levels[0].shares, dtype=np.float64),
            loss_kind=loss_kind,
        )

    @property
    def whole(self) -> str:
        """What errors are shares of."""
        return reference_of(self.loss_kind)

    @property
    def unit(self) -> str:
        """What errors are shares of, in one word."""
        return unit_of(self.loss_kind)

    @property
    def slack(self) -> float:
        """How far an error may exceed the best and still count as equal: tolerance·best + resolution/2."""
        return self.tolerance * float(self.error.min()) + 0.5 * self.resolution

    @property
    def chosen(self) -> int:
        """The smallest k whose held-out error exceeds the best by no more than the slack, and a standard error.

        The standard error counts up to twice the slack, so that at most three times the slack is given away, however
        much the rows differ: an error within the slack is always enough, one beyond three times the slack never, and in
        between chance decides. The verdict then asks whether more coordinates are better by paired tests.
        """
        error = np.where(np.isfinite(self.excess_error), self.excess_error, 0.0)
        return int(self.ranks[np.argmax(self.excess <= self.slack + np.minimum(error, 2.0 * self.slack))])

    @property
    def rule(self) -> str:
        """The rule in words, with its numbers."""
        return (
            f"the smallest k whose held-out error is within {self.tolerance:.0%} + {0.5 * self.resolution:.3g} of the "
            f"best, {float(self.error.min()):.3g}, and a standard error of the difference"
        )

    @property
    def in_words(self) -> str:
        """Its errors in one line."""
        listed = ", ".join(f"{error:.2g} through {rank}" for rank, error in zip(self.ranks, self.error))
        return f"{listed} at depth {self.depth}"

    def row(self, rank: int) -> int | None:
        """Index of ``rank``; None if it was not tried."""
        found = np.flatnonzero(self.ranks == rank)
        return int(found[0]) if len(found) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: one entry per k, and the settings."""
        rows = [
            {
                "rank": int(k),
                **{name: _number(getattr(self, name)[i]) for name in _COLUMNS},
                "state": self.states[i],
                "start": self.starts[i],
            }
            for i, k in enumerate(self.ranks)
        ]
        return {
            "rows": rows,
            "chosen": self.chosen,
            "rule": self.rule,
            "baseline": _number(self.baseline),
            "depth": self.depth,
            "width": self.width,
            "strength": self.strength,
            "tolerance": self.tolerance,
            "resolution": self.resolution,
            "shares": [_number(share) for share in self.shares],
            "loss_kind": self.loss_kind,
        }

    @staticmethod
    def from_dict(content: dict[str, Any]) -> RankProfile:
        """Inverse of :meth:`to_dict`."""
        rows = content["rows"]
        ranks = [check_integer("load", "rank", row["rank"], low=1, high=10**6) for row in rows]
        if not ranks or ranks != sorted(set(ranks)):
            fail("load", "a profile must have rising ranks", ranks, "Save it again.")

        def column(name: str) -> Array:
            # Errors of too few rows are infinite; JSON has no word for that.
            lost = math.inf if name.endswith("_error") else math.nan
            return np.array([lost if row[name] is None else float(row[name]) for row in rows], dtype=np.float64)

        # Files of a time when there were no classes do not say.
        loss_kind = content.get("loss_kind", "mse")
        check_choice("load", "loss_kind", loss_kind, LOSSES)
        return RankProfile(
            ranks=np.array(ranks, dtype=np.int64),
            **{name: column(name) for name in _COLUMNS},
            states=tuple(str(row["state"]) for row in rows),
            starts=tuple(str(row["start"]) for row in rows),
            baseline=math.nan if content["baseline"] is None else float(content["baseline"]),
            depth=int(content["depth"]),
            width=int(content["width"]),
            strength=float(content["strength"]),
            tolerance=float(content["tolerance"]),
            # Files of earlier versions, where it was always λ, do not say.
            resolution=float(content.get("resolution", content["strength"])),
            shares=np.array(content["shares"], dtype=np.float64),
            loss_kind=loss_kind,
        )

    def to_frame(self) -> Any:
        """As a pandas DataFrame, one row per k."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["rows"])

    def __repr__(self) -> str:
        rows = ", ".join(f"{k}: {e:.3g}" for k, e in zip(self.ranks, self.error))
        return f"RankProfile(chosen={self.chosen}, error={{{rows}}})"

    def _repr_html_(self) -> str:
        from isthmus.discovery._tables import profile_table

        answer = _html.heading(_html.strong(f"k = {self.chosen}"), _html.prose(self.rule))
        return _html.card(answer, _html.rows(profile_table(self, self.chosen)))


def standard_error(errors: Array) -> float:
    """Of the mean of independent numbers; infinite for fewer than two."""
    return float(errors.std(ddof=1) / math.sqrt(len(errors))) if len(errors) > 1 else math.inf


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
