"""The folder that `isthmus discover` leaves: written in one step, never over foreign files, resumed if unfinished."""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import files
from isthmus._errors import IsthmusError
from isthmus._live import LIVE
from isthmus.cli.answer_folder import REMAINS, assembled, check_folder, csv_bytes

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
_WHO = "discover"


def check_destination(folder: str | os.PathLike[str]) -> Path:
    """Return the real path of ``folder`` if a discovery may be written there, or fail; nothing is changed.

    It must be absent, empty, a finished discovery (which will be replaced) or an interrupted one.
    """

    def ours(target: Path, names: set[str]) -> bool:
        return not names - {PROGRESS} or _is_discovery(target)

    return check_folder(_WHO, folder, "a discovery", (*FILES, PROGRESS), ours, _strange_progress)


def _strange_progress(folder: Path) -> list[str]:
    """What stands among the finished trainings and is none."""
    kept = folder / PROGRESS
    if kept.is_symlink() or (kept.exists() and not kept.is_dir()):
        return [PROGRESS]
    if not kept.is_dir():
        return []
    known = ("*.safetensors", LIVE, REMAINS)
    inside = sorted(entry.name for entry in kept.iterdir())
    return [f"{PROGRESS}/{name}" for name in inside if not any(fnmatch.fnmatchcase(name, k) for k in known)]


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

    with assembled(_WHO, folder, check_destination) as assembly:
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


def _write_csv(path: Path, frame: pd.DataFrame) -> None:
    files.write_atomic(path, csv_bytes(frame))
