"""The folder that `isthmus diagnose` leaves: written in one step, never over foreign files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import files
from isthmus._atomic import open_checked
from isthmus._errors import IsthmusError
from isthmus._folders import Folder, csv_bytes
from isthmus._inside import Inside

if TYPE_CHECKING:
    from isthmus.diagnosis import Diagnosis

ANSWER, LAYERS, FIGURE, REPORT = "diagnosis.json", "layers.csv", "figure.png", "report.html"
#: It keeps up to 1,024 values of every spectrum of every layer.
MAX_BYTES = 2**27
FILES = (ANSWER, LAYERS, FIGURE, REPORT)


def _is_diagnosis(folder: Inside, names: set[str]) -> bool:  # noqa: ARG001
    """Whether the answer begins as ours do; that of a large network has more numbers than `read_json` takes."""
    try:
        with open_checked("diagnose", folder / ANSWER, MAX_BYTES) as (handle, _):
            return re.match(rb'\s*\{\s*"format"\s*:\s*"isthmus\.diagnosis"', handle.read(200)) is not None
    except IsthmusError:
        return False


FOLDER = Folder("diagnose", "a diagnosis", FILES, _is_diagnosis, named=", with --out")


def write_diagnosis(folder: Path, found: Diagnosis, document: Mapping[str, Any]) -> None:
    """Write everything as ``folder`` in one step; a diagnosis that was there is gone with the same step.

    Parameters
    ----------
    folder : Path
        From ``FOLDER.check``.
    found : Diagnosis
    document : mapping
        For diagnosis.json.
    """
    from isthmus.plotting.style import render
    from isthmus.report import page_of, save_page

    with FOLDER.replaced(folder) as assembly:
        files.write_json(assembly / ANSWER, document)
        files.write_atomic(assembly / LAYERS, csv_bytes(found.to_frame()))
        files.write_atomic(assembly / FIGURE, render(found.plot()))
        save_page(page_of(found, document=document), assembly / REPORT)
