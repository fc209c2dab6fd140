"""From a result to its file; which module knows which kind of result."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import isthmus
from isthmus._atomic import as_path
from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError
from isthmus._html import TONES, number
from isthmus.files import write_atomic
from isthmus.plotting.figure import Column, Figure
from isthmus.report.page import Badge, Page, Picture

#: Kinds of results and the function that makes their page. To add one, write that function and a line here.
PAGES = {
    "Discovery": "isthmus.report.discovery_page:page_of",
    "RankProfile": "isthmus.report.discovery_page:profile_page",
    "Run": "isthmus.report.run_page:page_of",
    "Diagnosis": "isthmus.report.diagnosis_page:page_of",
    "History": "isthmus.report.diagnosis_page:history_page",
    "Verdicts": "isthmus.report.run_page:verdicts_page",
    "Mechanics": "isthmus.report.diagnosis_page:mechanics_page",
    "Compressed": "isthmus.report.run_page:compression_page",
    "Certificate": "isthmus.report.run_page:compression_page",
    "SweepResult": "isthmus.report.sweep_page:page_of",
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
    module, _, function = home.partition(":")
    return getattr(importlib.import_module(module), function)(result, **more)


#: Formats of JSON documents: the class that reads it, and what writes it. A Discovery's is drawn as it is.
DOCUMENTS = {
    "isthmus.diagnosis": ("isthmus.diagnosis:Diagnosis", "`isthmus diagnose` writes one as diagnosis.json."),
    "isthmus.history": ("isthmus.diagnosis:History", "`History.to_json` gives one."),
    "isthmus.mechanics": ("isthmus.measures:Mechanics", "`isthmus mechanics … --json` prints one."),
    "isthmus.compression": ("isthmus.compression:Certificate", "`isthmus compress … --json` prints one."),
    "isthmus discovery": ("isthmus.discovery:Discovery", "`isthmus discover` writes one as discovery.json."),
}


def page_of_document(document: Any, kind: str | None = None, *, where: str = "the document") -> Page:
    """The page of the JSON of a result; the file may be a stranger's.

    Parameters
    ----------
    document : object
    kind : str, optional
        One of ``DOCUMENTS``; by default what it says of itself.
    where : str
        It, for messages.
    """
    kind = kind or (str(document.get("format")) if isinstance(document, dict) else "")
    if kind not in DOCUMENTS:
        must = f"{where} must be the JSON of a discovery, a diagnosis, a history, a mechanics or a compression"
        do = "Give what `isthmus discover`, `diagnose`, `mechanics` or `compress` wrote or printed, or what "
        fail("report", must, "something else", f"{do}`History.to_json` gave, or a Run's folder.", error=FileFormatError)
    (module, _, name), do = DOCUMENTS[kind][0].partition(":"), DOCUMENTS[kind][1]
    try:
        if name == "Discovery":
            from isthmus.report.discovery_page import page_of_content

            return page_of_content(document)
        found = getattr(importlib.import_module(module), name).from_dict(document)
        return page_of(found, **({"document": document} if name == "Diagnosis" else {}))
    except IsthmusError:
        raise
    # RuntimeError is what torch says of a list that is no list of numbers.
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as problem:
        must, got = f"the JSON must be that of a {name}", f"{type(problem).__name__}: {problem}"
        return fail("report", must, got, do, error=FileFormatError)


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
        from isthmus.report.discovery_page import samples_of

        found = getattr(result, "discovery_", result)
        if type(found).__name__ != "Discovery":
            fail("save_report", "`X` and `Y` go with a Discovery", f"a {type(found).__name__}", "Leave them out.")
        more["samples"] = samples_of(found, X, Y)
    save_page(page_of(result, **more), target)
    return Path(target)


def save_page(page: Page, path: str | os.PathLike[str]) -> None:
    """Write a page as HTML."""
    from isthmus.report.save import render

    # A name may hold half of a surrogate pair, which no encoding knows.
    write_atomic(path, render(page).encode("utf-8", errors="backslashreplace"))


def render(page: Page) -> str:
    """The file's text: the same page gives the same text."""
    environment = Environment(
        loader=PackageLoader("isthmus.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "tone": lambda word: TONES.get(word, "note"), "cell": _cell}
    phases = [{"key": one.key, "figure": one.figure, **one.content} for one in page.phases()]
    scripts = [_asset(name) for name in ("theme.js", "draw.js", "report.js", *(["sweep.js"] if phases else []))]
    return environment.get_template("page.html").render(
        page=page,
        version=isthmus.__version__,
        policy=_policy(scripts),
        style=Markup(_asset("report.css")),  # noqa: S704 - our own files, as are the scripts
        scripts=[Markup(_closed(script)) for script in scripts],  # noqa: S704
        figures=Markup(_in_script([_figure(figure) for figure in page.figures()])),  # noqa: S704 - escaped there
        phases=Markup(_in_script(phases)) if phases else "",  # noqa: S704 - escaped there
        picture=_picture,
    )


def _asset(name: str) -> str:
    return resources.files("isthmus.report").joinpath("assets", name).read_text(encoding="utf-8")


def _closed(script: str) -> str:
    """A script as it can stand in a page; the hash in the policy is of these bytes."""
    # A browser reads line ends as "\n" before it hashes.
    script = script.replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a script of the report would end its own element")
    return script


def _policy(scripts: Sequence[str]) -> str:
    """Nothing may be fetched; only these scripts may run."""
    digests = [base64.b64encode(hashlib.sha256(_closed(script).encode()).digest()).decode() for script in scripts]
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in digests),
        # Elements of a drawing are styled one by one.
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{key} {value}" for key, value in allowed.items())


def _in_script(value: object) -> str:
    """JSON that can stand in a script element: no text in it can end the element or a line."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "key": figure.key,
        "data": _columned(figure.data),
        "layout": {**figure.layout, "height": figure.height},
        "columns": list(figure.columns),
        "choices": [
            {"options": [_columned(settings) for _, settings in choice.options], "selected": choice.selected}
            for choice in figure.choices
        ],
        "drives": None if figure.drives is None else {"key": figure.drives[0], "values": list(figure.drives[1])},
    }


def _columned(value: Any) -> Any:
    """Plain data; references to columns as ``{"column": i}``."""
    if isinstance(value, Column):
        return {"column": asdict(value)["index"]}
    if isinstance(value, dict):
        return {key: _columned(one) for key, one in value.items()}
    return [_columned(one) for one in value] if isinstance(value, (list, tuple)) else value


def _cell(value: Any) -> dict[str, Any]:
    """How a value of a table is shown, sorted and written to CSV."""
    if isinstance(value, Badge):
        return {"kind": "badge", "text": value.word, "raw": value.word}
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        shown = number(value)
        return {"kind": "number", "text": shown, "raw": "" if shown == "—" else repr(value)}
    return {"kind": "text", "text": str(value), "raw": str(value)}


def _picture(picture: Picture) -> str:
    return f"data:{picture.mime};base64,{base64.b64encode(picture.content).decode()}"
