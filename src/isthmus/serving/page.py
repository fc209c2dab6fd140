"""The HTML of the live pages and what they are made with; numbers come later, as events."""

from __future__ import annotations

from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

import isthmus
from isthmus.serving.snapshot import badge, sentence, verdict
from isthmus.serving.watcher import RunView

#: Only what this server sends may run, be shown or be asked for.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: A report brings its own scripts, and with them its own policy. Here it is on an island: no origin, no requests.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_KINDS = {"js": "text/javascript", "css": "text/css"}


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """Content and type of a file of the page; None if there is none of that name."""
    homes = dict.fromkeys(("report.css", "theme.js", "draw.js"), "isthmus.report")
    homes |= dict.fromkeys(("live.css", "live.js"), "isthmus.serving")
    kind = _KINDS.get(name.rpartition(".")[2], "")
    if name not in homes:
        return None
    return resources.files(homes[name]).joinpath("assets", name).read_bytes(), kind


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("isthmus.serving", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def list_page(title: str, views: list[RunView], token: str) -> str:
    """The page of a folder."""
    rows = [
        {"view": view, "state": badge(view), "verdict": verdict(view), "sentence": sentence(view)} for view in views
    ]
    template = _environment().get_template("list.html")
    return template.render(title=title, rows=rows, token=token, version=isthmus.__version__)


def live_page(view: RunView, token: str) -> str:
    """The page of one run."""
    template = _environment().get_template("live.html")
    return template.render(
        view=view, state=badge(view), sentence=sentence(view), token=token, version=isthmus.__version__
    )
