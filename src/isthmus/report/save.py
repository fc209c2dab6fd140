"""From a result to its file; which module knows which kind of result."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from isthmus._atomic import as_path
from isthmus._checks import fail
from isthmus.files import write_atomic
from isthmus.report.page import Page

#: Kinds of results and the module whose ``page_of`` makes their page. To add one, write that module and a line here.
PAGES = {
    "Discovery": "isthmus.report.discovery_page",
    "RankProfile": "isthmus.report.profile_page",
    "Run": "isthmus.report.run_page",
    "Diagnosis": "isthmus.report.diagnosis_page",
    "History": "isthmus.report.history_page",
    "Verdicts": "isthmus.report.verdicts_page",
    "Mechanics": "isthmus.report.mechanics_page",
    "Compressed": "isthmus.report.compression_page",
    "Certificate": "isthmus.report.compression_page",
    "SweepResult": "isthmus.report.sweep_page",
}


def page_of(result: Any, **more: Any) -> Page:
    """The page of a result; ``more`` is what its module takes beside it."""
    result = getattr(result, "discovery_", result)
    # By name along the bases, so that only the module that is needed is imported.
    kinds = [kind.__name__ for kind in type(result).__mro__ if kind.__module__.startswith("isthmus.")]
    home = next((PAGES[kind] for kind in kinds if kind in PAGES), None)
    if home is None:
        must = f"`result` must be one of {', '.join(PAGES)}, or a fitted BottleneckRegressor"
        fail("save_report", must, f"a {type(result).__name__}", "Pass such a result; `isthmus report` takes folders.")
    return importlib.import_module(home).page_of(result, **more)


def save_report(result: Any, path: str | os.PathLike[str], *, X: Any = None, Y: Any = None) -> Path:
    """Write ``result`` as one HTML file that shows it offline; nothing is computed anew.

    Parameters
    ----------
    result : Discovery, RankProfile, Run, Diagnosis, History, Verdicts, Mechanics, Compressed, Certificate, SweepResult
        Or a fitted BottleneckRegressor.
    path : path
        Of the file, in an existing folder; written atomically.
    X, Y : array (N, d_in), (N, d_out), optional
        Of a Discovery: the data it was made from, so that its coordinates can be coloured by them.

    Returns
    -------
    Path
        Of the file.

    Examples
    --------
    >>> import isthmus, pathlib, tempfile
    >>> run = isthmus.Run("E-none", {"depth": 3})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     isthmus.save_report(run, pathlib.Path(folder) / "report.html").name
    'report.html'
    """
    target = as_path("save_report", path)
    more: dict[str, Any] = {}
    if X is not None or Y is not None:
        from isthmus.report.samples import samples_of

        found = getattr(result, "discovery_", result)
        if type(found).__name__ != "Discovery":
            fail("save_report", "`X` and `Y` go with a Discovery", f"a {type(found).__name__}", "Leave them out.")
        more["samples"] = samples_of(found, X, Y)
    save_page(page_of(result, **more), target)
    return Path(target)


def save_page(page: Page, path: str | os.PathLike[str]) -> None:
    """Write a page as HTML."""
    from isthmus.report.write import render

    # A name may hold half of a surrogate pair, which no encoding knows.
    write_atomic(path, render(page).encode("utf-8", errors="backslashreplace"))
