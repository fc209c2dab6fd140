"""The folder that `isthmus diagnose` leaves: written in one step, never over foreign files."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import _folders, files
from isthmus._atomic import shown
from isthmus._checks import fail
from isthmus.cli.discovery_folder import csv_bytes

if TYPE_CHECKING:
    from isthmus.diagnosis import Diagnosis

ANSWER, LAYERS, FIGURE, REPORT = "diagnosis.json", "layers.csv", "figure.png", "report.html"
FILES = (ANSWER, LAYERS, FIGURE, REPORT)
_WHO, _DO = "diagnose", "Choose another folder with --out, or move what is in it."


def check_destination(folder: str | os.PathLike[str]) -> Path:
    """Return the real path of ``folder`` if a diagnosis may be written there, or fail; nothing is changed.

    It must be absent, empty, or a diagnosis, which will be replaced.
    """
    target = Path(os.path.realpath(folder))
    must = "the folder must be absent, empty or a diagnosis"
    if not target.name:
        fail(_WHO, must, shown(target), _DO)
    if not target.exists():
        return target
    if not target.is_dir():
        fail(_WHO, must, f"{shown(target)}, a file", _DO)
    names = sorted(entry.name for entry in target.iterdir())
    strange = [name for name in names if name not in FILES]
    if strange:
        others = ", ".join(shown(name, 60) for name in strange[:5]) + (", …" if len(strange) > 5 else "")
        fail(_WHO, must, f"{shown(target)}, which also holds {others}", _DO)
    if names and not _is_diagnosis(target):
        fail(_WHO, must, f"{shown(target)}, a damaged or foreign folder", _DO)
    return target


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

    assembly = folder.parent / f".{folder.name}.{secrets.token_hex(6)}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _folders.sweep(folder)
        assembly.mkdir()
        files.write_json(assembly / ANSWER, document)
        files.write_atomic(assembly / LAYERS, csv_bytes(found.to_frame()))
        files.write_atomic(assembly / FIGURE, render(found.plot()))
        save_page(page_of(found, document=document), assembly / REPORT)
        # Again: somebody may have put a file of their own there meanwhile.
        check_destination(folder)
        _folders.install(assembly, folder)
    except OSError as problem:
        fail(_WHO, f"{shown(folder)} must be writable", problem.strerror, "Write elsewhere, with --out.")
    finally:
        # What is left here is the unfinished new folder, or the previous one after the exchange.
        shutil.rmtree(assembly, ignore_errors=True)
