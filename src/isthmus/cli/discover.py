"""`isthmus discover`: from a file of data to the rank, the coordinates and a folder with all of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import sys
import time as clock
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isthmus._settings import HELP, Settings
from isthmus.cli.base import UNDETERMINED, AsJson
from isthmus.cli.given import Decimal, DecimalMark, Exclude, NaValues, Reading
from isthmus.cli.screen import COLOURS, console, print_items, print_result, print_table, table, text

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from isthmus.discovery import Discovery
    from isthmus.tables import Columns


class Missing(StrEnum):
    """What to do about gaps."""

    error = "error"
    drop = "drop"
    median = "median"


class Activation(StrEnum):
    """Activations of the hidden layers."""

    auto = "auto"
    smooth = "smooth"
    kinked = "kinked"


class Units(StrEnum):
    """How columns are scaled."""

    auto = "auto"
    own = "own"
    common = "common"


class TextColumns(StrEnum):
    """What to do about columns of text."""

    error = "error"
    indicators = "indicators"
    drop = "drop"


_column = functools.partial(typer.Option, metavar="COL")


def discover_command(
    context: typer.Context,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="CSV, TSV, Parquet, NPY or NPZ file; rows are samples.")],
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COL", help="Output column, or a glob such as 'y*'; may be repeated. NPZ: array Y."),
    ] = None,
    classes: Annotated[str | None, _column(help="Instead of --target: the column of classes to tell apart.")] = None,
    autoencode: Annotated[
        bool, typer.Option("--autoencode", help="Instead of --target: how many variables describe the inputs?")
    ] = False,
    features: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Input columns; may be repeated. By default all without another role."),
    ] = None,
    exclude: Exclude = None,
    group: Annotated[str | None, _column(help="Rows of one group are never on both sides of a division.")] = None,
    time: Annotated[str | None, _column(help="Orders the rows in time: the last are held out.")] = None,
    missing: Annotated[Missing, typer.Option(help="Gaps: refuse, drop the rows, or put medians.")] = Missing.error,
    text_columns: Annotated[
        TextColumns, typer.Option("--text", help="Columns of text: refuse, a 0/1 column per value, or leave out.")
    ] = TextColumns.error,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    max_rank: Annotated[int | None, typer.Option(metavar="N", help=HELP["max_rank"])] = Settings.max_rank,
    rank: Annotated[int | None, typer.Option(metavar="N", help=HELP["rank"])] = None,
    depth: Annotated[int, typer.Option(help=HELP["depth"])] = Settings.depth,
    width: Annotated[int, typer.Option(help=HELP["width"])] = Settings.width,
    activation: Annotated[Activation, typer.Option(help=HELP["activation"])] = Activation.auto,
    units: Annotated[Units, typer.Option(help=HELP["units"])] = Units.auto,
    resolution: Annotated[float | None, typer.Option(metavar="λ", help=HELP["resolution"])] = None,
    ridge: Annotated[float | None, typer.Option(metavar="λ", hidden=True)] = None,
    replicas: Annotated[int, typer.Option(help=HELP["replicas"])] = Settings.replicas,
    seed: Annotated[int, typer.Option(help=HELP["seed"])] = Settings.seed,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes for independent trainings. By default one for each core, if there are rows enough.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the answer: absent, empty or a discovery, which is replaced. "
            "By default runs/discover-NAME.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what an interrupted run has left.")] = False,
    as_json: AsJson = False,
) -> None:
    """How many variables do the targets depend on, and which? The rank, the coordinates and the maps.

    With --classes the same of a classification, with --autoencode of the inputs themselves.

    Killed or interrupted, the same command goes on where it was.
    The folder holds report.html to look at, and discovery.json, model.safetensors, coordinates.csv, profile.csv,
    meaning.csv, samples.csv and figure.png.
    """
    from isthmus.cli.discover import indicators
    from isthmus.cli.discovery_folder import FOLDER
    from isthmus.report.discovery_page import samples_of

    if ridge is not None:
        resolution = ridge if resolution is None else resolution
        console(sys.stderr).print("--ridge is now called --resolution; the old name goes in the next version.")
    shown = out or Path("runs") / f"discover-{_stem(data)}"
    folder = FOLDER.check(shown)
    roles: dict[str, Any] = {"targets": target, "features": features, "group": group, "time": time}
    what: dict[str, Any] = {"classes": classes, "autoencode": autoencode}
    gaps: dict[str, Any] = {"missing": missing.value, "text": text_columns.value}
    reading = Reading(decimal, exclude, na_values)
    frame, chosen, labels = columns_of(data, reading, roles, **what, **gaps)
    Y: Any = labels if labels is not None else chosen.X if autoencode else chosen.Y
    options = {
        "groups": chosen.groups,
        "time": chosen.time,
        "feature_names": chosen.feature_names,
        "target_names": None if labels is not None else chosen.feature_names if autoencode else chosen.target_names,
        "rank": Settings.rank if rank is None else rank,
        "max_rank": max_rank,
        "depth": depth,
        "width": width,
        "activation": activation.value,
        "resolution": Settings.resolution if resolution is None else resolution,
        "replicas": replicas,
        "seed": seed,
        # Marks are found and gaps filled already; this keeps the medians for new rows.
        "na_values": (),
        "missing": "median" if missing is Missing.median else "error",
        "loss": "mse" if labels is None else "cross_entropy",
        "units": units.value,
        "n_jobs": jobs,
    }
    origin = {"file": data.name, **roles, **what, **reading.record, **gaps, "rows_read": len(frame)}
    found = run_discovery(context, chosen.X, Y, options, folder, shown, restart=restart)
    kept = {"na_values": {name: list(values) for name, values in chosen.na_values.items()}} if chosen.na_values else {}
    found = dataclasses.replace(found, notes=(*chosen.notes, *found.notes), settings={**found.settings, **kept})
    beside = _beside(frame, chosen, group, time)
    samples = samples_of(found, chosen.X, Y if labels is None else indicators(labels))
    finish_discovery(context, found, folder, shown, origin, beside, samples, as_json=as_json)


def columns_of(
    data: Path,
    reading: Reading,
    roles: dict[str, Any],
    *,
    classes: str | None,
    autoencode: bool,
    missing: str,
    text: str,
) -> tuple[pd.DataFrame, Columns, np.ndarray | None]:
    """The table, the columns of these roles, and the labels of ``classes``; roles that follow from the file are set."""
    from isthmus.cli.discover import choose_labelled
    from isthmus.cli.given import table_of
    from isthmus.tables import choose_columns

    frame = table_of(data, reading, {**roles, "classes": classes})
    if sum([bool(roles["targets"]), classes is not None, autoencode]) > 1:
        raise typer.BadParameter("give one of --target, --classes and --autoencode")
    if classes is not None:
        chosen, labels = choose_labelled(frame, classes, {**roles, "marks": reading.marks}, missing, text)
        return frame, chosen, labels
    if not autoencode:
        roles["targets"], roles["features"] = _roles(frame, data, roles["targets"], roles["features"])
    need = roles["targets"] is not None
    gaps: dict[str, Any] = {"missing": missing, "text": text, "marks": reading.marks}
    return frame, choose_columns(frame, **roles, **gaps, need_targets=need), None


def run_discovery(
    context: typer.Context, X: Any, Y: Any, options: dict[str, Any], folder: Path, shown: Path, *, restart: bool
) -> Discovery:
    """Discover, with progress on stderr and finished trainings kept in ``folder`` until the answer is written."""
    from isthmus._live import LIVE, LiveRecord
    from isthmus._progress import progress
    from isthmus.cli.discovery_folder import PROGRESS, forget_trainings, kept_trainings
    from isthmus.discovery import discover

    note = console(sys.stderr)
    if restart:
        forget_trainings(folder)
    elif count := kept_trainings(folder):
        what = f"{count} training{'s' * (count != 1)} of an interrupted run in {shown / PROGRESS}"
        note.print(text(f"found {what}: those of the same data and settings are used, --restart forgets them"))
    settings = context.ensure_object(dict)
    settings["if_interrupted"] = f"; the same command goes on from what is kept in {shown / PROGRESS}"
    settings["started"] = clock.time()
    record = LiveRecord(
        folder / PROGRESS / LIVE,
        sentence=f"How many variables {_asked(X, Y)}? {len(X)} samples of {X.shape[1]} inputs.",
        command=sys.argv[1:],
        facts={name: options.get(name, getattr(Settings, name)) for name in ("resolution", "loss")},
    )
    with contextlib.redirect_stdout(sys.stderr), record:
        found = discover(X, Y, **options, checkpoint=folder / PROGRESS, progress=record.beside(progress))
    if reused := found.settings.get("stages_reused"):
        note.print(text(f"resumed: {reused} training{'s' * (reused != 1)} came from the interrupted run"))
    return found


def finish_discovery(
    context: typer.Context,
    found: Discovery,
    folder: Path,
    shown: Path,
    origin: dict[str, Any],
    rows: pd.DataFrame,
    samples: dict[str, np.ndarray],
    *,
    as_json: bool,
    more: dict[str, Any] | None = None,
) -> None:
    """Write the folder, say what was found, and end with the exit code of the verdict."""
    from isthmus._provenance import provenance
    from isthmus._strict_json import dumps
    from isthmus.cli.discover import print_answer
    from isthmus.cli.discovery_folder import FILES, FORMAT, REPORT, write_discovery

    settings = context.ensure_object(dict)
    document = {
        "format": FORMAT,
        "format_version": 1,
        **found.to_dict(),
        **(more or {}),
        "data": origin,
        "files": list(FILES),
        "provenance": provenance(
            seed=found.settings.get("seed"),
            dtype="float32",
            started=settings["started"],
            seconds=found.settings.get("seconds"),
        ),
    }
    with contextlib.redirect_stdout(sys.stderr):
        write_discovery(folder, found, document, rows, samples)
    settings["if_interrupted"] = ""
    if as_json:
        print(dumps("discover", document, indent=2))
    else:
        print_answer(found, shown)
        console().print(text(f"look at it: isthmus open {shown} ({shown / REPORT}, one file to share)"))
    if found.verdict == "undetermined":
        raise typer.Exit(UNDETERMINED)


def _asked(X: Any, Y: Any) -> str:
    if Y is X:
        return "describe the inputs"
    return "do the classes depend on" if Y.ndim == 1 else f"do {Y.shape[1]} outputs depend on"


def _stem(data: Path) -> str:
    name = re.sub(r"\.gz$", "", data.name, flags=re.IGNORECASE)
    return Path(name).stem or "data"


def _roles(
    frame: pd.DataFrame, data: Path, target: list[str] | None, features: list[str] | None
) -> tuple[list[str], list[str] | None]:
    """The targets, and the features if they follow from the arrays of an .npz file."""
    if target:
        return target, features or None
    names = [str(name) for name in frame.columns]
    if data.suffix.lower() == ".npz":
        for x, y in ("XY", "xy"):
            inputs, outputs = ([n for n in names if re.fullmatch(rf"{letter}\d*", n)] for letter in (x, y))
            if inputs and outputs:
                return outputs, features or inputs
    listed = ", ".join(repr(name) for name in names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    raise typer.BadParameter(f"name the outputs with --target COL (a name or a glob, repeatable). Columns: {listed}")


def _beside(frame: pd.DataFrame, chosen: Columns, group: str | None, time: str | None) -> pd.DataFrame:
    """Number of each row used, and its group and time as they stand in the file."""
    import pandas as pd

    beside = {"row": chosen.rows}
    for role, name in (("group", group), ("time", time)):
        if name is not None:
            beside[role] = frame[name.strip()].to_numpy()[chosen.rows]
    return pd.DataFrame(beside)


#: Columns of the picture of the profile.
_WIDTH = 32
#: Inputs named for each coordinate.
_STRONGEST = 3
#: Names longer than this would push the numbers off the screen.
_NAME = 40


def print_answer(found: Any, folder: Path | None) -> None:
    """Show a Discovery; ``folder`` is where it was written."""
    from isthmus.cli.discovery_folder import FILES, MODEL

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
    line_ = f"best + slack is {_number(allowed)}{line}, a constant has {_number(profile.baseline)}"
    out.print(text(f"shares of {profile.whole}; {line_}"), style="dim")
    if found.replicas:
        line_ = "; ".join(one.in_words for one in found.replicas)
        out.print(text(f"from other seeds and divisions of the rows, errors: {line_}"), style="dim")


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
    line_ = found.sensitivity
    out.print(
        text(f"what each coordinate responds to: standard deviations per standard deviation ({_range(found)})", "dim")
    )
    for j in range(found.rank):
        parts = [
            f"{_short(found.feature_names[i])} {line_.value[j, i]:.2f} ({line_.low[j, i]:.2f}–{line_.high[j, i]:.2f})"
            for i in line_.strongest(j, _STRONGEST)
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


def choose_labelled(
    frame: pd.DataFrame, classes: str, roles: Mapping[str, Any], missing: str, text: str
) -> tuple[Columns, np.ndarray]:
    """Features and the rest of their roles, and the label of each row that is used.

    Parameters
    ----------
    frame : DataFrame
    classes : str
        Name of the column of labels: numbers, truth values or texts.
    roles, missing, text
        As :func:`isthmus.tables.choose_columns` takes them; rows without a label go unless ``missing`` is "error".
    """
    import numpy as np

    from isthmus._atomic import shown
    from isthmus._checks import fail
    from isthmus._errors import DataError
    from isthmus.tables import choose_columns

    names = [str(name) for name in frame.columns]
    wanted = classes.strip()
    if wanted not in names:
        listed = ", ".join(repr(name) for name in names[:20]) + (f" and {len(names) - 20} more" * (len(names) > 20))
        raise typer.BadParameter(f"--classes must name a column, and {wanted!r} is none. Columns: {listed}")
    column = frame.iloc[:, names.index(wanted)]
    kept = np.arange(len(frame)) if missing == "error" else np.flatnonzero(column.notna().to_numpy())
    others = frame.drop(columns=frame.columns[names.index(wanted)]).iloc[kept].reset_index(drop=True)
    others.attrs = dict(frame.attrs)
    chosen = choose_columns(others, **roles, missing=missing, text=text, need_targets=False)
    rows = kept[chosen.rows]
    notes = chosen.notes
    if len(kept) < len(frame):
        notes = (*notes, f"dropped {len(frame) - len(kept)} rows without a class")
    labels = column.to_numpy()[rows]
    if labels.dtype.kind == "f" and np.isfinite(labels).all():
        if not np.array_equal(labels, np.round(labels)):
            do = "Use --target for numbers, or cut them into classes."
            must, got = "--classes must name a column of labels", f"continuous numbers in {shown(wanted, 60)}"
            fail("discover", must, got, do, error=DataError)
        # Whole numbers that a gap elsewhere in the column has turned into 1.0, 2.0, …
        labels = labels.astype(np.int64)
    return dataclasses.replace(chosen, rows=rows, notes=notes), labels


def indicators(labels: np.ndarray) -> np.ndarray:
    """Rows of 0 and 1, classes in their order."""
    import numpy as np

    classes, index = np.unique(labels, return_inverse=True)
    return np.eye(len(classes))[index.reshape(-1)]
