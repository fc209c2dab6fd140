"""How figures are judged: by the paper's own words, beside conditions that are ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.runs import Outcome


@dataclass(frozen=True)
class Quote:
    """Words of a paper that a figure is judged by, and their place.

    Examples
    --------
    >>> words = Quote("The middle layers are approximately rank 5.", "caption of Figure 1")
    >>> words.judge("dimensions of the middle layer", True, 5, 5).status
    'agrees'
    """

    text: str
    where: str

    def judge(
        self,
        name: str,
        good: bool | None,
        value: Any = None,
        expected: Any = None,
        reason: str = "",
        *,
        otherwise: str = "fails",
    ) -> Outcome:
        """The outcome of one comparison.

        Parameters
        ----------
        name : str
            What is compared.
        good : bool or None
            Whether it came out as stated; None where that is undetermined.
        value, expected, reason
            As in :class:`~isthmus.runs.Outcome`.
        otherwise : {"differs", "fails"}
            What it is where it is not good: with a reason that is known, or without.
        """
        status = "undetermined" if good is None else "agrees" if good else otherwise
        return Outcome(name, status, value, expected, reason, quote=self.text, where=self.where)


def condition(name: str, met: bool, value: Any = None, expected: Any = None, reason: str = "") -> Outcome:
    """Something that no paper states: what the judgement rests on, or a check of ours."""
    return Outcome(name, "met" if met else "not met", value, expected, reason, kind="condition")


def under(conditions: Sequence[Outcome], statements: Iterable[Outcome]) -> list[Outcome]:
    """The statements; undetermined where they do not agree while a condition of their test is not met."""
    unmet = "; ".join(one.name for one in conditions if one.status != "met")
    found = []
    for one in statements:
        if unmet and one.status in ("differs", "fails"):
            reason = f"{one.reason}; not met: {unmet}".removeprefix("; ")
            one = replace(one, status="undetermined", reason=reason)
        found.append(one)
    return found
