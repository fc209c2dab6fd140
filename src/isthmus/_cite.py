"""Citations attached to functions: recorded, never altering what they decorate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Decorated = TypeVar("_Decorated", bound=Callable[..., object])

#: Every citation made by an imported module, in import order.
CITATIONS: list[Citation] = []


@dataclass(frozen=True)
class Citation:
    """Where a function comes from: ``paper`` (key of ``docs/papers.bib``), ``where`` in it, its ids."""

    function: str
    paper: str
    where: str
    ids: tuple[str, ...] = ()


def cites(paper: str, where: str, *, ids: tuple[str, ...] = ()) -> Callable[[_Decorated], _Decorated]:
    """Record that the decorated function or class implements ``where`` of ``paper``.

    ``ids`` are the ids of ``docs/ids.toml`` (``"Q-jac"``, ``"C-rank-1"``, …) that it provides.

    Examples
    --------
    >>> @cites("rank2023", "Prop. 3", ids=())
    ... def twice(x):
    ...     return 2 * x
    >>> twice(3)
    6
    """

    def record(function: _Decorated) -> _Decorated:
        name = f"{function.__module__}.{function.__qualname__}"
        CITATIONS.append(Citation(name, paper, where, tuple(ids)))
        return function

    return record
