"""The folder that `isthmus discover` leaves: written in one step, never over foreign files, resumed if unfinished."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import files
from isthmus._errors import IsthmusError
from isthmus._folders import Folder, as_written, csv_bytes
from isthmus._inside import Inside, is_remains
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


def _strange_progress(folder: Inside) -> list[str]:
    """What stands among the finished trainings and is none."""
    if PROGRESS not in folder.names():
        return []
    if not folder.is_folder(PROGRESS):
        return [PROGRESS]
    kept = folder / PROGRESS
    ours = {name for name in kept.names() if name.endswith(".safetensors") or name == LIVE or is_remains(name)}
    return [f"{PROGRESS}/{name}" for name in kept.names() if name not in ours or not kept.is_file(name)]


def _is_discovery(folder: Inside, names: set[str]) -> bool:
    if not names - {PROGRESS}:
        return True
    try:
        content = files.read_json(folder / ANSWER)
    except IsthmusError:
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


FOLDER = Folder("discover", "a discovery", (*FILES, PROGRESS), _is_discovery, _strange_progress, ", with --out")


def kept_trainings(folder: Path) -> int:
    """How many trainings an interrupted discovery has left in ``folder``."""
    return sum(name.endswith(".safetensors") for name in Inside(folder).names(PROGRESS))


def forget_trainings(folder: Path) -> None:
    """Delete the finished trainings of an interrupted run."""
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
        From ``FOLDER.check``: absent, empty, a finished discovery (which will be replaced) or an interrupted one.
    found : Discovery
    document : mapping
        For discovery.json.
    rows : DataFrame
        What to write beside each row's coordinates: its number, and its group and time where there are any.
    samples : mapping
        From :func:`isthmus.report.discovery_page.samples_of`.
    """
    import pandas as pd

    from isthmus.plotting.style import render
    from isthmus.report import page_of, save_page

    with FOLDER.replaced(folder) as assembly:
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


def read_samples(folder: Path | Inside, found: Discovery) -> Mapping[str, Any] | None:
    """What :func:`write_discovery` was given as ``samples``; None if the folder is of a time when it was not kept."""
    from isthmus.tables import read_table

    if found.rank == 0 or not Inside(folder).is_file(SAMPLES):
        return None
    frame = read_table(Inside(folder) / SAMPLES).rename(columns=as_written)
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


def _write_csv(path: Inside, frame: pd.DataFrame) -> None:
    files.write_atomic(path, csv_bytes(frame))
