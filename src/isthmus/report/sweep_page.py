"""A SweepResult as a page: which rank where, norms and losses, what went wrong, and every run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._html import number, plain
from isthmus.measures import estimate_costs
from isthmus.plotting.sweeps import families, losses, norms
from isthmus.plotting.sweeps_cells import Gathered, gather
from isthmus.report.origin import origin_section
from isthmus.report.page import Answer, Badge, Block, Fact, Notes, Page, Section, Table
from isthmus.report.sweep_phase import phase

if TYPE_CHECKING:
    from isthmus.sweeps.result import SweepResult

#: Reasons beside the answer, rows of problems and of runs, columns of what was measured, characters of an error.
REASONS, PROBLEMS, RUNS, MEASURED, ERROR = 12, 200, 300, 10, 400
#: Rows of fitted numbers.
COSTS = 200
#: States that a person should look at; the others come to an end by themselves.
WRONG = ("failed", "diverged", "stale", "interrupted")
_FIRST = ("rank", "norm", "loss", "cost", "converged", "training")
_MEANING = {
    "complete": "Every configuration was computed.",
    "incomplete": "Not every configuration was computed yet; what is shown is what there is.",
    "failures": "Some configurations failed or diverged; they are listed first.",
    "empty": "There is no configuration.",
}
_FITTED = (
    "‖θ‖² = L·R0 + R1 + R2/L by least squares over the depths at which the rank was found, with 95 % intervals; R2 "
    "needs four depths. “Not affine”: the norms break, and the numbers describe no one function."
)
_PHASE = "Which rank the networks end with, setting by setting, and how far the seeds agree."
_NORMS = "At depths of one rank R0, ‖θ‖² ≈ L·R0 + R1."


def page_of(result: SweepResult) -> Page:
    """The page of a SweepResult; of its folder only the spectra are read."""
    found = gather(result.frame, result.names)
    counts = result.counts
    known = families(found, estimate_costs)
    fitted: list[Block] = [norms(found, known), _costs(found, known)] if known else []
    sections = [
        Section("problems", "What went wrong", _problems(result)),
        Section("ranks", "Ranks", phase(result, found) if found.settings else [], _PHASE),
        Section("norms", "Parameter norm and depth", fitted, _NORMS),
        Section("losses", "Losses", losses(found)),
        Section("runs", "All runs", _runs(result)),
        origin_section({"parameters": _origin(result)}),
    ]
    verdict = _verdict(counts)
    reasons = [plain(text, ERROR) for text in result.problems[:REASONS]]
    answer = Answer(_sentence(result, found), verdict, reasons, _MEANING[verdict])
    title = f"{result.experiment}: {result.title}" if result.title else result.experiment
    return Page("Sweep", plain(title, 200), answer, _facts(result, found), [one for one in sections if one.blocks])


def _verdict(counts: dict[str, int]) -> str:
    if not counts:
        return "empty"
    if counts.get("failed", 0) + counts.get("diverged", 0):
        return "failures"
    return "complete" if set(counts) == {"done"} else "incomplete"


def _sentence(result: SweepResult, found: Gathered) -> str:
    done, whole = result.counts.get("done", 0), len(result.frame)
    first = f"{done:,} of {whole:,} runs are done" if done != whole else f"All {whole:,} runs are done"
    ranks = found.ranks()
    if not ranks:
        return f"{first}."
    span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks from {ranks[0]} to {ranks[-1]}"
    return f"{first}; they end with {span}." if done else f"{first}."


def _facts(result: SweepResult, found: Gathered) -> list[Fact]:
    facts = [Fact("runs done", f"{result.counts.get('done', 0):,}", f"of {len(result.frame):,}")]
    over = " × ".join(f"{len(one.values)} {plain(one.name, 20)}" for one in found.swept)
    facts.append(Fact("settings", f"{len(found.settings):,}", over or "of one configuration"))
    ranks = found.ranks()
    if ranks:
        span = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} … {ranks[-1]}"
        facts.append(Fact("ranks", span, "that were found"))
        several = [one for one in found.settings if one.measured > 1]
        if several:
            agree = sum(one.agreement == 1 for one in several)
            facts.append(Fact("settings where all seeds agree", f"{agree:,}", f"of {len(several):,} with several"))
    seconds = [value for value in found.numbers.get("seconds", {}).values() if math.isfinite(value)]
    if seconds:
        minutes = sum(seconds) / 60
        facts.append(Fact("minutes of computing", number(minutes), "by all runs together"))
    return facts


def _costs(found: Gathered, known: list[Any]) -> Table:
    rows = []
    for at, parts in known:
        for piece in parts:
            if piece.fit is None:
                continue
            fit, depths = piece.fit, len(np.unique(piece.depths))
            numbers = [_interval(one) for one in (fit.R0, fit.R1)]
            rows.append([found.where(at) or "all", piece.rank, depths, len(piece.keys), *numbers, fit.state])
    left = f"The first {COSTS} of {len(rows):,} rows." if len(rows) > COSTS else ""
    heads = ["at", "rank", "depths", "networks", "R0, the slope", "R1", "state"]
    return Table("costs", "R0 and R1 of each rank", heads, rows[:COSTS], [_FITTED, left], folded=len(rows) > 12)


def _interval(one: Any) -> str:
    return f"{one.value:.4g} ({one.low:.4g} … {one.high:.4g})" if math.isfinite(one.value) else "—"


def _problems(result: SweepResult) -> list[Block]:
    """What the answer has no room for, and every run that a person should look at."""
    more = result.problems[REASONS : REASONS + PROBLEMS]
    blocks: list[Block] = [Notes([plain(text, ERROR) for text in more])] if more else []
    frame: Any = _single(result)
    order = {state: place for place, state in enumerate(WRONG)}
    wrong = frame[frame["state"].isin(WRONG)]
    wrong = wrong.assign(_place=wrong["state"].map(order)).sort_values("_place", kind="stable")
    if not len(wrong):
        return blocks
    rows = []
    for key, row in list(zip(wrong.index, wrong.to_dict("records")))[:PROBLEMS]:
        error = row.get("error")
        told = plain(error, ERROR) if isinstance(error, str) else ""
        rows.append([Badge(str(row["state"])), *[_cell(row[name]) for name in (*result.names, "seed")], told, str(key)])
    left = len(wrong) - len(rows)
    reading = [f"{left:,} more are left out here: {_where(result)}."] if left else []
    heads = ["state", *[plain(name, 40) for name in result.names], "seed", "error", "key"]
    return [*blocks, Table("problems", "Runs that need a look", heads, rows, reading)]


def _runs(result: SweepResult) -> list[Block]:
    frame: Any = _single(result)
    if not len(frame):
        return []
    names = [*result.names, "seed"]
    measured = sorted(result.measured, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    measured = list(dict.fromkeys(name for name in measured if name not in names))
    columns = [*names, *measured[:MEASURED], *(["seconds"] if "seconds" in frame.columns else [])]
    shown = frame.sort_values(names, kind="stable", key=lambda column: column.map(_sortable)).head(RUNS)
    rows = [
        [Badge(str(row["state"])), *[_cell(row[name]) for name in columns], str(key)]
        for key, row in zip(shown.index, shown.to_dict("records"))
    ]
    reading = []
    if left := len(frame) - len(rows):
        reading.append(f"The first {len(rows):,} of {len(frame):,}; {left:,} are left out here: {_where(result)}.")
    if len(measured) > MEASURED:
        reading.append(f"{len(measured) - MEASURED} more measured numbers are in the folder.")
    heads = ["state", *[plain(name, 40) for name in columns], "key"]
    return [Table("runs", "One row for each run", heads, rows, reading, folded=len(rows) > 30)]


def _where(result: SweepResult) -> str:
    """Where all of them are."""
    return "`isthmus runs` on the sweep's folder lists all" if result.folder else "`to_frame()` of the result has all"


def _origin(result: SweepResult) -> dict[str, Any]:
    # The folder by its name alone: where it stands on somebody's machine is nobody's business.
    folder = "" if result.folder is None else result.folder.name
    states = ", ".join(f"{count} {state}" for state, count in result.counts.items())
    found = {"experiment": result.experiment, "swept": ", ".join(result.names), "states": states, "folder": folder}
    return {key: plain(value, 200) for key, value in found.items() if value}


def _single(result: SweepResult) -> Any:
    """The frame with one column of each name."""
    return result.frame.loc[:, ~result.frame.columns.duplicated()]


def _sortable(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, float(value), "") if math.isfinite(value) else (2, 0.0, "")
    return (1, 0.0, str(value))


def _cell(value: Any) -> Any:
    """A number as a number, a whole one without a point; everything else as text."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value if isinstance(value, int) else plain(value, 200)
