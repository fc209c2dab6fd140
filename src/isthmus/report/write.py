"""A Page as one HTML file that needs no network: style and scripts inside, a policy against all else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import isthmus
from isthmus._html import TONES, number
from isthmus.plotting.figure import Column, Figure
from isthmus.report.page import Badge, Page, Picture


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
