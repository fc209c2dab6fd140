"""`isthmus runs`: what a sweep's folder holds. Reads the index and imports nothing heavy: it answers at once."""

from __future__ import annotations

import math
import operator
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus._inside import Inside
from isthmus.cli.base import AsJson
from isthmus.cli.screen import console, plain, print_json, text
from isthmus.sweeps.places import STATES

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*")
#: Seconds between two looks.
_EVERY = 2.0
#: Characters of a cell.
_WIDEST = 60


def runs_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep.")],
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help=f"Only these: {', '.join(STATES)}; may be repeated.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Only those for which it holds: depth=8, 'rank>2'; may be repeated."),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Sort by it; -COLUMN: the largest first.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many rows; 0: all.")] = 100,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read and check every run again.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again until nobody works in it.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the runs of a sweep: state, values, what was measured. Nothing is computed or changed but the index."""
    if watch and as_json:
        raise typer.BadParameter("give --watch or --json, not both")
    for word in state or []:
        if word not in STATES:
            raise typer.BadParameter(f"--state must be one of {', '.join(STATES)}. Got {word!r}")
    if not watch:
        _show(folder, state, where, sort, limit, rebuild=rebuild, as_json=as_json)
        return
    from isthmus.sweeps.places import holder

    out = console()
    while True:
        who = holder(folder)
        if out.is_terminal:
            out.clear()
        _show(folder, state, where, sort, limit, rebuild=rebuild, as_json=False)
        rebuild = False
        if who is None or not who.alive:
            return
        print(f"{who} is at work")
        sys.stdout.flush()
        time.sleep(_EVERY)


def _show(
    folder: Path,
    state: list[str] | None,
    where: list[str] | None,
    sort: str | None,
    limit: int,
    *,
    rebuild: bool,
    as_json: bool,
) -> None:
    from isthmus.sweeps.reading import look, problems

    index = look(folder, rebuild=rebuild)
    rows = index.rows(Inside(folder))
    last = ["seconds", *(["error"] if any(row["error"] for row in rows) else [])]
    names = [*dict.fromkeys(name for row in rows for name in row if name not in ("seconds", "error")), *last]
    found = [row for row in rows if not state or row["state"] in state]
    for condition in where or []:
        holds = _holding(condition, names)
        found = [row for row in found if holds(row)]
    if sort is not None:
        found = _sorted(found, sort, names)
    kept = found[:limit] if limit > 0 else found
    counts = Counter(row["state"] for row in rows)
    listed = problems(folder, index, rows)
    if as_json:
        print_json(
            {
                "experiment": index.head["experiment"],
                "title": index.head["title"],
                "counts": {word: counts[word] for word in STATES if counts[word]},
                "matching": len(found),
                "runs": [{name: _bare(value) for name, value in row.items()} for row in kept],
                "problems": listed,
            }
        )
        return
    _print(kept, names)
    if len(kept) < len(found):
        print(f"… and {len(found) - len(kept)} more; --limit 0 shows all")
    states = ", ".join(f"{counts[word]} {word}" for word in STATES if counts[word])
    matching = "" if len(found) == len(rows) else f"{len(found)} of "
    print(f"{matching}{len(rows)} configurations of {_safe(index.head['experiment'])}: {states}")
    for problem in listed:
        console().print(text(f"note: {problem}", "yellow"))


def _holding(condition: str, names: Sequence[str]) -> Callable[[dict[str, Any]], bool]:
    """Whether a row meets ``name OPERATOR value``; numbers are compared as numbers, all else as text."""
    parts = _CONDITION.fullmatch(condition)
    if parts is None:
        raise typer.BadParameter(f"--where must be a condition such as depth=8 or 'rank>2'. Got {condition!r}")
    name, sign, wanted = parts.groups()
    if name not in names:
        raise typer.BadParameter(f"--where must name one of {', '.join(names)}. Got {name!r}")
    compare, as_number = _OPERATORS[sign], _number(wanted)

    def holds(row: dict[str, Any]) -> bool:
        value = row.get(name)
        if value is None:
            return False
        number = _number(value)
        if number is not None and as_number is not None:
            return compare(number, as_number)
        return compare(str(value).lower(), wanted.lower())

    return holds


def _sorted(rows: list[dict[str, Any]], sort: str, names: Sequence[str]) -> list[dict[str, Any]]:
    down, name = sort.startswith("-") and sort not in names, sort.removeprefix("-") if sort not in names else sort
    if name not in names:
        raise typer.BadParameter(f"--sort must name one of {', '.join(names)}. Got {name!r}")

    def known(row: dict[str, Any]) -> bool:
        value = row.get(name)
        return value is not None and value == value

    def order(row: dict[str, Any]) -> tuple[int, float, str]:
        number = _number(row[name])
        return (1, 0.0, str(row[name])) if number is None else (0, number, "")

    # What is not known comes last, whichever way.
    return [*sorted(filter(known, rows), key=order, reverse=down), *(row for row in rows if not known(row))]


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _print(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Columns in one line each: a table that folds its cells would be slow for ten thousand rows."""
    lines = [list(names), *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    print("\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    shown = _safe(plain(value))
    return shown if len(shown) <= _WIDEST else shown[: _WIDEST - 1] + "…"


def _safe(value: str) -> str:
    line = " ".join(value.split())
    return line if line.isprintable() else text(line).plain


def _bare(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
