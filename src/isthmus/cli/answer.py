"""A discovery on the terminal: the answer first, then why, then the numbers behind it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from isthmus.cli.discovery_folder import FILES, MODEL
from isthmus.cli.screen import COLOURS, console, print_items, print_result, print_table, table, text

#: Columns of the picture of the profile.
_WIDTH = 32
#: Inputs named for each coordinate.
_STRONGEST = 3
#: Names longer than this would push the numbers off the screen.
_NAME = 40


def print_answer(found: Any, folder: Path | None) -> None:
    """Show a Discovery; ``folder`` is where it was written."""
    out = console()
    print_result(out, found)
    if found.profile is not None:
        out.print()
        _print_profile(out, found)
    if found.evidence:
        out.print()
        print_table(out, next(one for one in found.tables() if one.key == "evidence-numbers"))
    if found.sensitivity is not None:
        out.print()
        _print_meaning(out, found)
    if found.notes:
        out.print()
        out.print(text("about the data:"), style="dim")
        print_items(out, found.notes)
    if folder is not None:
        out.print()
        out.print(text(f"kept in {folder}: {', '.join(FILES)}"))
        seconds = found.settings.get("seconds")
        spent = "" if seconds is None else f" ({seconds:.0f} s)"
        again = f"new rows: isthmus transform {folder} NEW.csv, isthmus predict {folder} NEW.csv"
        out.print(text(f"{MODEL} holds the maps{spent}; {again}"), style="dim")


def _print_profile(out: Console, found: Any) -> None:
    profile = found.profile
    mark = {"given": "← as given", "undetermined": "← a guess"}.get(found.verdict, "← the rank")
    labels = ["wide" if start == "fresh" else str(int(k)) for k, start in zip(profile.ranks, profile.starts)]
    chosen = [int(k) == found.rank for k in profile.ranks]
    picture = [Text(bar, COLOURS[found.verdict] if one else "dim") for bar, one in zip(_picture(out, profile), chosen)]
    beside = out.is_terminal and out.width >= _WIDTH + 80
    rows = table("k", "held-out error", "± se", "training cost", "‖θ‖²", "state", *([""] if beside else []), "")
    for i, label in enumerate(labels):
        numbers = [_number(profile.error[i]), _number(profile.standard_error[i], 2), _number(profile.cost[i])]
        cells = [text(cell) for cell in (label, *numbers, _number(profile.norm[i], 4), profile.states[i])]
        cells += [picture[i]] if beside else []
        rows.add_row(*cells, text(mark if chosen[i] else ""), style="bold" if chosen[i] else "")
    out.print(rows)
    if out.is_terminal and not beside:
        for label, bar, one in zip(labels, picture, chosen):
            out.print(text(f"{label:>4} ") + bar + text(f" {mark}" if one else ""))
    finite = [float(e) for e in profile.error if math.isfinite(e)]
    allowed = min(finite, default=math.nan) + profile.slack
    line = " (the line in the bars)" if out.is_terminal else ""
    told = f"best + slack is {_number(allowed)}{line}, a constant has {_number(profile.baseline)}"
    out.print(text(f"shares of {profile.whole}; {told}"), style="dim")
    if found.replicas:
        told = "; ".join(one.in_words for one in found.replicas)
        out.print(text(f"from other seeds and divisions of the rows, errors: {told}"), style="dim")


def _picture(out: Console, profile: Any) -> list[str]:
    """A bar for each row, its length the logarithm of the error, with a mark at the threshold."""
    full, mark = ("█", "┆") if out.encoding.lower().startswith("utf") else ("#", "|")
    finite = [float(e) for e in (*profile.error, profile.baseline) if math.isfinite(e) and e > 0]
    if not finite:
        return [""] * len(profile.error)
    low, high = 0.5 * min(finite), max(finite)

    def length(error: float) -> int:
        if not math.isfinite(error):
            return _WIDTH
        return round(_WIDTH * min(max(math.log(max(error, low) / low) / math.log(high / low), 0.0), 1.0))

    at = min(length(min(finite) + profile.slack), _WIDTH - 1)
    bars = [(full * length(float(e))).ljust(_WIDTH) for e in profile.error]
    return [f"{bar[:at]}{mark if bar[at] == ' ' else full}{bar[at + 1 :]}" for bar in bars]


def _print_meaning(out: Console, found: Any) -> None:
    told = found.sensitivity
    out.print(
        text(f"what each coordinate responds to: standard deviations per standard deviation ({_range(found)})", "dim")
    )
    for j in range(found.rank):
        parts = [
            f"{_short(found.feature_names[i])} {told.value[j, i]:.2f} ({told.low[j, i]:.2f}–{told.high[j, i]:.2f})"
            for i in told.strongest(j, _STRONGEST)
        ]
        out.print(text(f"  coordinate{j}: {', '.join(parts)}"))


def _range(found: Any) -> str:
    return f"least–greatest of {1 + len(found.replicas)} fits" if found.replicas else "of one fit"


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else "—"


def _short(name: str) -> str:
    # In one line: a name may hold line breaks.
    name = " ".join(name.split())
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
