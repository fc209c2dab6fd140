"""The folder that `isthmus discover` leaves: written in one step, never over foreign files, resumed if unfinished."""

from __future__ import annotations

import fnmatch
import io
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import _folders, files
from isthmus._atomic import shown
from isthmus._checks import fail
from isthmus._errors import IsthmusError
from isthmus._live import LIVE

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from isthmus.discovery import Discovery

ANSWER, MODEL = "discovery.json", "model.safetensors"
COORDINATES, PROFILE, MEANING, FIGURE = "coordinates.csv", "profile.csv", "meaning.csv", "figure.png"
#: For the report: some samples' strongest columns, and the report.
SAMPLES, REPORT = "samples.csv", "report.html"
FILES = (ANSWER, MODEL, COORDINATES, PROFILE, MEANING, SAMPLES, FIGURE, REPORT)
#: Trainings that are finished, while the discovery is not.
PROGRESS = ".progress"
#: What says that a folder is ours.
FORMAT = "isthmus discovery"
#: What a killed process may leave of an atomic write.
_REMAINS = ".isthmus-*.tmp"
_WHO, _DO = "discover", "Choose another folder with --out, or move what is in it."


def check_destination(folder: str | os.PathLike[str]) -> Path:
    """Return the real path of ``folder`` if a discovery may be written there, or fail; nothing is changed.

    It must be absent, empty, a finished discovery (which will be replaced) or an interrupted one.
    """
    # The real path: a symbolic link keeps pointing where it did, and the folder it points to is replaced.
    target = Path(os.path.realpath(folder))
    must = "the folder must be absent, empty or a discovery"
    if not target.name:
        fail(_WHO, must, shown(target), _DO)
    if not target.exists():
        return target
    if not target.is_dir():
        fail(_WHO, must, f"{shown(target)}, a file", _DO)
    names = sorted(entry.name for entry in target.iterdir() if not fnmatch.fnmatchcase(entry.name, _REMAINS))
    strange = [name for name in names if name not in (*FILES, PROGRESS)]
    kept = target / PROGRESS
    if kept.is_symlink() or (kept.exists() and not kept.is_dir()):
        strange.append(PROGRESS)
    elif kept.is_dir():
        known = ("*.safetensors", LIVE, _REMAINS)
        inside = sorted(entry.name for entry in kept.iterdir())
        strange += [f"{PROGRESS}/{name}" for name in inside if not any(fnmatch.fnmatchcase(name, k) for k in known)]
    if strange:
        others = ", ".join(shown(name, 60) for name in strange[:5]) + (", …" if len(strange) > 5 else "")
        fail(_WHO, must, f"{shown(target)}, which also holds {others}", _DO)
    if set(names) - {PROGRESS} and not _is_discovery(target):
        fail(_WHO, must, f"{shown(target)}, a damaged or foreign folder", _DO)
    return target


def _is_discovery(folder: Path) -> bool:
    try:
        content = files.read_json(folder / ANSWER)
    except IsthmusError:
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def kept_trainings(folder: Path) -> int:
    """How many trainings an interrupted discovery has left in ``folder``."""
    return len(list((folder / PROGRESS).glob("*.safetensors")))


def forget_trainings(folder: Path) -> None:
    """Start from the beginning."""
    shutil.rmtree(folder / PROGRESS, ignore_errors=True)


def write_discovery(
    folder: Path,
    found: Discovery,
    document: Mapping[str, Any],
    rows: pd.DataFrame,
    samples: Mapping[str, np.ndarray],
) -> None:
    """Write everything as ``folder`` in one step; what was there, progress included, is gone with the same step.

    Parameters
    ----------
    folder : Path
        From :func:`check_destination`.
    found : Discovery
    document : mapping
        For discovery.json.
    rows : DataFrame
        What to write beside each row's coordinates: its number, and its group and time where there are any.
    samples : mapping
        From :func:`isthmus.report.samples.samples_of`.
    """
    import pandas as pd

    from isthmus.plotting.style import render
    from isthmus.report import page_of, save_page

    assembly = folder.parent / f".{folder.name}.{secrets.token_hex(6)}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _folders.sweep(folder)
        assembly.mkdir()
        files.write_json(assembly / ANSWER, document)
        files.save(found, assembly / MODEL)
        names = [f"coordinate{j}" for j in range(found.rank)]
        coordinates = pd.DataFrame(found.coordinates, columns=pd.Index(names, dtype=object))
        _write_csv(assembly / COORDINATES, pd.concat([rows.reset_index(drop=True), coordinates], axis=1))
        _write_csv(assembly / PROFILE, _profiles(found))
        _write_csv(assembly / MEANING, _meaning(found))
        _write_csv(assembly / SAMPLES, pd.DataFrame(samples))
        files.write_atomic(assembly / FIGURE, render(found.plot()))
        save_page(page_of(found, document=document, samples=samples), assembly / REPORT)
        # Again: somebody may have put a file of their own there meanwhile.
        check_destination(folder)
        _folders.install(assembly, folder)
    except OSError as problem:
        fail(_WHO, f"{shown(folder)} must be writable", problem.strerror, "Write elsewhere, with --out.")
    finally:
        # What is left here is the unfinished new folder, or the previous one after the exchange.
        shutil.rmtree(assembly, ignore_errors=True)


def read_samples(folder: Path, found: Discovery) -> Mapping[str, Any] | None:
    """What :func:`write_discovery` was given as ``samples``; None if the folder is of a time when it was not kept."""
    from isthmus.tables import read_table

    if found.rank == 0 or not (folder / SAMPLES).is_file():
        return None
    frame = read_table(folder / SAMPLES)
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def _profiles(found: Discovery) -> pd.DataFrame:
    import pandas as pd

    if found.profile is None:
        return pd.DataFrame(columns=pd.Index(["walk", "rank", "error", "standard_error"]))
    walks = {"main": found.profile, **{f"replica{i}": one for i, one in enumerate(found.replicas)}}
    rows = [{"walk": name, "depth": one.depth, **row} for name, one in walks.items() for row in one.to_dict()["rows"]]
    return pd.DataFrame(rows)


def _meaning(found: Discovery) -> pd.DataFrame:
    import pandas as pd

    if found.sensitivity is None:
        return pd.DataFrame(columns=pd.Index(["coordinate", "input", "sensitivity", "low", "high"]))
    return found.sensitivity.to_frame(found.feature_names)


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table as CSV: UTF-8, all digits of every number, what cannot be encoded as an escape."""
    stream = io.StringIO()
    frame.to_csv(stream, index=False, lineterminator="\n")
    return stream.getvalue().encode("utf-8", errors="backslashreplace")


def _write_csv(path: Path, frame: pd.DataFrame) -> None:
    files.write_atomic(path, csv_bytes(frame))
