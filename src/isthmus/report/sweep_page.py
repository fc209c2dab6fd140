"""A SweepResult as a page: which rank where, norms and losses, what went wrong, and every run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._errors import IsthmusError
from isthmus._html import number, plain
from isthmus.plotting.figure import Figure, axis, label, layout, powers, short
from isthmus.plotting.sweeps import RANKS, Gathered, Setting, axes_of, held, losses, norms
from isthmus.report.page import Block, Fact, Notes, Page, Phase, Section, origin_section, page, tables_of
from isthmus.sweeps.result import ERROR, PROBLEMS, REASONS

if TYPE_CHECKING:
    from isthmus.sweeps.result import SweepResult

_MEANING = {
    "complete": "Every configuration was computed.",
    "incomplete": "Not every configuration was computed yet; what is shown is what there is.",
    "failures": "Some configurations failed or diverged; they are listed first.",
    "empty": "There is no configuration.",
}
_PHASE = "Which rank the networks end with, setting by setting, and how far the seeds agree."
_NORMS = "At depths of one rank R0, ‖θ‖² ≈ L·R0 + R1."


def page_of(result: SweepResult) -> Page:
    """The page of a SweepResult; of its folder only the spectra are read."""
    found, tables = result.gathered, tables_of(result)
    more = result.problems[REASONS : REASONS + PROBLEMS]
    notes: list[Block] = [Notes([plain(text, ERROR) for text in more])] if more else []
    diagram: list[Block] = [*phase(result, found), *tables["settings"]] if found.settings else []
    fitted: list[Block] = [norms(found, result.families), *tables["costs"]] if result.families else []
    sections = [
        Section("problems", "What went wrong", [*notes, *tables["problems"]]),
        Section("ranks", "Ranks", diagram, _PHASE),
        Section("norms", "Parameter norm and depth", fitted, _NORMS),
        Section("losses", "Losses", losses(found)),
        Section("runs", "All runs", tables["runs"]),
        origin_section({"parameters": _origin(result)}),
    ]
    title = f"{result.experiment}: {result.title}" if result.title else result.experiment
    return page("Sweep", result, _MEANING, _facts(result, found), sections, title=plain(title, 200))


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


def _origin(result: SweepResult) -> dict[str, Any]:
    # The name of the folder alone: a path would give away names of the machine and its user.
    folder = "" if result.folder is None else result.folder.name
    states = ", ".join(f"{count} {state}" for state, count in result.counts.items())
    found = {"experiment": result.experiment, "swept": ", ".join(result.names), "states": states, "folder": folder}
    return {key: plain(value, 200) for key, value in found.items() if value}


#: Up to so many runs, and numbers, the spectra of all layers are kept; beyond, only that of the middle layer.
ALL_LAYERS, NUMBERS = 500, 250_000
#: Values that are kept of a spectrum, and where there are very many spectra; the least value that is drawn.
VALUES, FEWER, FLOOR = 12, 8, 1e-6
#: A cell in which this share of the seeds agrees is dark enough for light letters.
SURE = 0.85
#: At most so many characters of a label, of one error, of all errors together.
LABEL, MESSAGE, ERRORS = 18, 300, 400_000
#: Key of the figure that shows the spectra of one cell.
INSIDE = "cell"
#: Columns of the table of a cell's runs, by the names of what was measured.
_SHOWN = {"rank": "rank", "norm": "‖θ‖²", "loss": "loss", "cost": "cost", "training": "training"}

_READING = (
    "Each cell is one setting. Its number and colour are the rank that most of its seeds ended with, of equally "
    "frequent ones the smallest. The paler a cell, the fewer seeds agree.",
    "Cells are equally large, so that a geometric range reads as a logarithmic axis.",
    "Click a cell, or move with the arrow keys and press Enter, to see its runs below.",
)
_STATES = (
    "Each cell is one setting: how many of its runs are done. No rank was measured, so nothing is coloured.",
    "Click a cell, or move with the arrow keys and press Enter, to see its runs below.",
)
_MENUS = "Choose which two parameters to show; the others are held at what their menus say."
_SPECTRA = (
    "Singular values of the weights of every network in the chosen cell, from the inputs at the left to the outputs at "
    "the right. Colours are seeds; the values that the rank counts are strong, the others thin.",
    "A bottleneck is a few strong lines that stay level through the middle while all others are far below.",
    "What is below 10⁻⁶ is drawn at the bottom. A click on a seed's name hides it.",
)
_MIDDLE = (
    "Singular values of the weights in the middle layer of every network in the chosen cell, falling; colours are "
    "seeds. A rank shows as a cliff.",
    "What is below 10⁻⁶ is drawn at the bottom. A click on a seed's name hides it.",
)


def phase(result: SweepResult, found: Gathered) -> list[Phase | Figure]:
    """The diagram of ranks over the settings, and a figure of the spectra of one cell if there are any."""
    ranked = bool(found.ranks())
    across, up = (None if name is None else found.place(name) for name in axes_of(found))
    at = held(found, [found.swept[i].name for i in (across, up) if i is not None], None)
    keys = [key for one in found.settings for key in one.keys]
    spectra, layered = _spectra(result, found, keys)
    place = {key: row for row, key in enumerate(keys)}
    heads, runs = _runs(result, keys)
    cells = [[list(one.at), *_face(one, ranked), one.told, place[one.keys[0]], len(one.keys)] for one in found.settings]
    seen = [i for i, one in enumerate(found.settings) if one.measured and _seen(one, at)]
    names = [plain(one.name, 40) for one in found.swept]
    content = {
        "names": names,
        "titles": [f"{n} (logarithmic)" if one.logarithmic else n for n, one in zip(names, found.swept)],
        "labels": [[plain(text, LABEL) for text in one.labels] for one in found.swept],
        "across": across,
        "up": up,
        "held": [max(place, 0) for place in at],
        "cells": cells,
        "first": seen[len(seen) // 2] if seen else 0,
        "heads": heads,
        "runs": runs,
        "caption": "Spectra" if layered else "Spectrum of the middle layer",
        "layers": layered,
        "spectra": spectra,
    }
    reading = [*(_READING if ranked else _STATES), *([_MENUS] if len(found.swept) > 2 else [])]
    has_spectra = any(spectra)
    title = "Rank over the settings" if ranked else "What was computed"
    figure = INSIDE if has_spectra else ""
    drawn = Phase("phase", title, content, _rows(found, across, up, at), _marks(found), reading, figure)
    return [drawn, _inside(content, len(keys))] if has_spectra else [drawn]


def _seen(one: Setting, at: tuple[int, ...]) -> bool:
    return all(there in (-1, here) for here, there in zip(one.at, at))


def _face(one: Setting, ranked: bool) -> tuple[str, str, float | None]:
    """The text of a cell, its CSS classes, and the share of seeds that agree."""
    bad = one.states.get("failed", 0) + one.states.get("diverged", 0)
    if not ranked:
        done = one.states.get("done", 0)
        return f"{done}/{len(one.keys)}", f"unmeasured{' bad' if bad else ''}", None
    if one.rank is None:
        return ("×", "unmeasured bad", None) if bad else ("·", "unmeasured", None)
    kind = f"rank r{min(one.rank, len(RANKS) - 1)}{' firm' if one.agreement >= SURE else ''}"
    return str(one.rank), f"{kind}{' wanting' if one.wanting else ''}", float(f"{one.agreement:.3g}")


def _rows(
    found: Gathered, across: int | None, up: int | None, at: tuple[int, ...]
) -> list[tuple[str, list[int | None]]]:
    """The rows of cells from the top, for readers without scripts."""
    where = {one.at: index for index, one in enumerate(found.settings)}
    counts = [1 if i is None else len(found.swept[i].values) for i in (across, up)]
    rows = []
    for row in reversed(range(counts[1])):
        line = []
        for column in range(counts[0]):
            spot = [max(place, 0) for place in at]
            for i, value in ((across, column), (up, row)):
                if i is not None:
                    spot[i] = value
            line.append(where.get(tuple(spot)))
        rows.append(("" if up is None else plain(found.swept[up].labels[row], LABEL), line))
    return rows


def _marks(found: Gathered) -> list[tuple[str, str, str]]:
    """The legend: every rank that occurs, and the other kinds of cells that occur."""
    ranks, top = found.ranks(), len(RANKS) - 1
    marks = []
    for rank in ranks:
        if rank < top or rank == min(one for one in ranks if one >= top):
            beyond = " and more" if rank >= top and max(ranks) > rank else ""
            words = "nothing left" if rank == 0 else f"rank {rank}{beyond}"
            marks.append((str(rank), f"rank firm r{min(rank, top)}", words))
    if any(one.measured and one.agreement < 1 for one in found.settings):
        marks.append(("", "rank pale", "fewer seeds agree"))
    if any(one.measured and one.wanting for one in found.settings):
        marks.append(("", "rank wanting", "some runs failed, diverged or are missing"))
    empty = {_face(one, bool(ranks))[0] for one in found.settings if ranks and one.rank is None}
    meaning = {
        "×": ("unmeasured bad", "nothing measured: failed or diverged"),
        "·": ("unmeasured", "nothing measured yet"),
    }
    marks += [(text, *meaning[text]) for text in sorted(empty)]
    return marks


def _runs(result: SweepResult, keys: list[str]) -> tuple[list[str], list[list[str]]]:
    """Rows of the small tables, all cells as texts."""
    frame = result.frame.loc[:, ~result.frame.columns.duplicated()]
    # A swept parameter stands above the table already.
    columns = ["seed", "state", *(name for name in _SHOWN if name in frame.columns and name not in result.names)]
    heads = [_SHOWN.get(name, name) for name in columns]
    rows = zip(*(frame[name].tolist() for name in columns))
    texts = {str(key): [*map(_text, row), str(key)] for key, row in zip(frame.index, rows)}
    errors = frame["error"].tolist() if "error" in frame.columns else []
    if any(isinstance(error, str) and error for error in errors):
        heads.append("error")
        limit = min(MESSAGE, max(20, ERRORS // len(errors)))
        for row, error in zip(texts.values(), errors):
            row.append(plain(error, limit) if isinstance(error, str) else "")
    return [*heads[: len(columns)], "key", *heads[len(columns) :]], [texts[key] for key in keys]


def _text(value: Any, limit: int = 60) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else plain(value, limit)


def _spectra(result: SweepResult, found: Gathered, keys: list[str]) -> tuple[list[Any], bool]:
    """For each run its label, its rank and its values by number and layer; whether that is all layers."""
    seeds = dict(zip([str(key) for key in result.frame.index], result.frame["seed"].tolist()))
    ranks = found.numbers.get("rank", {})
    layered = len(keys) <= ALL_LAYERS
    tables: dict[str, np.ndarray] = {}
    for key in keys:
        values = _table(result, key)
        if values is not None:
            tables[key] = values if layered else _middle(values)
    if layered and sum(values.size for values in tables.values()) > NUMBERS:
        layered, tables = False, {key: _middle(values) for key, values in tables.items()}
    rows: list[Any] = []
    for key in keys:
        if key not in tables:
            rows.append(None)
            continue
        rank = ranks.get(key, math.nan)
        count = int(rank) if math.isfinite(rank) else None
        name = label(f"seed {_text(seeds[key])}" + ("" if count is None else f": rank {count}"))
        rows.append([name, count, _brief(tables[key].T if layered else tables[key])])
    return rows, layered


def _middle(values: np.ndarray) -> np.ndarray:
    return values[len(values) // 2, :FEWER]


def _brief(values: np.ndarray) -> list[Any]:
    """Numbers of three digits, at least the floor; None where a layer has fewer."""
    if values.ndim > 1:
        return [_brief(row) for row in values]
    return [float(f"{max(value, FLOOR):.3g}") if math.isfinite(value) else None for value in values.tolist()]


def _table(result: SweepResult, key: str) -> np.ndarray | None:
    """The spectra of a run, (layers, values); None where they are missing or unreadable."""
    try:
        values = np.asarray(result.spectra[key], dtype=np.float64)
    except (KeyError, OSError, IsthmusError):
        return None
    return values[:, :VALUES] if values.ndim == 2 and values.size else None


def _inside(content: dict[str, Any], runs: int) -> Figure:
    layered = content["layers"]
    top = max(_all(row[2] for row in content["spectra"] if row is not None), default=1.0)
    up = axis("singular value", **powers(FLOOR, max(top, 1.0)), range=[math.log10(FLOOR) - 0.2, _ceiling(top)])
    across = axis("layer" if layered else "singular value number", dtick=1, showgrid=False)
    chart = layout(across, up) | {"showlegend": True}
    reading: list[str] = [*(_SPECTRA if layered else _MIDDLE)]
    if not layered:
        reading.append(f"Of so many runs ({runs:,}) only the middle layer is kept here; the folder has all layers.")
    alt = "Singular values of the networks of the chosen cell."
    return Figure(INSIDE, content["caption"], [], chart, reading, alt, 460)


def _ceiling(top: float) -> float:
    return short(math.log10(max(top, 1.0)) + 0.15)[0]


def _all(values: Iterable[Any]) -> Iterable[float]:
    for value in values:
        if isinstance(value, list):
            yield from _all(value)
        elif value is not None:
            yield value
