"""The folder that `isthmus diagnose` leaves: written in one step, never over foreign files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import files
from isthmus.cli.answer_folder import assembled, check_folder, csv_bytes

if TYPE_CHECKING:
    from isthmus.diagnosis import Diagnosis

ANSWER, LAYERS, FIGURE, REPORT = "diagnosis.json", "layers.csv", "figure.png", "report.html"
FILES = (ANSWER, LAYERS, FIGURE, REPORT)
_WHO = "diagnose"


def check_destination(folder: str | os.PathLike[str]) -> Path:
    """Return the real path of ``folder`` if a diagnosis may be written there, or fail; nothing is changed."""
    return check_folder(_WHO, folder, "a diagnosis", FILES, lambda target, _: _is_diagnosis(target))


def _is_diagnosis(folder: Path) -> bool:
    """Whether the answer begins as ours do; that of a large network has more numbers than `read_json` takes."""
    try:
        with (folder / ANSWER).open("rb") as handle:
            return re.match(rb'\s*\{\s*"format"\s*:\s*"isthmus\.diagnosis"', handle.read(200)) is not None
    except OSError:
        return False


def write_diagnosis(folder: Path, found: Diagnosis, document: Mapping[str, Any]) -> None:
    """Write everything as ``folder`` in one step; a diagnosis that was there is gone with the same step.

    Parameters
    ----------
    folder : Path
        From :func:`check_destination`.
    found : Diagnosis
    document : mapping
        For diagnosis.json.
    """
    from isthmus.plotting.style import render
    from isthmus.report import page_of, save_page

    with assembled(_WHO, folder, check_destination) as assembly:
        files.write_json(assembly / ANSWER, document)
        files.write_atomic(assembly / LAYERS, csv_bytes(found.to_frame()))
        files.write_atomic(assembly / FIGURE, render(found.plot()))
        save_page(page_of(found, document=document), assembly / REPORT)
