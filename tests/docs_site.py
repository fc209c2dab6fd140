"""The documentation, built once in a test run, without a network; what its pages hold."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

# Imported by every Python process of the build before anything else; a refused attempt also leaves a mark, in
# case somebody catches the error.
NO_NETWORK = """
import os, socket

def refuse(*arguments, **options):
    with open(os.environ["NETWORK_MARK"], "a") as mark:
        mark.write(repr(arguments) + chr(10))
    raise OSError("no network in this test")

socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
"""


def environment_without_network(folder: Path) -> dict[str, str]:
    """Variables under which Python refuses to connect; ``folder`` gets the mark of an attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "NETWORK_MARK": str(folder / "attempts"), "PYTHONPATH": os.pathsep.join(paths)}


def built_site(tmp_path_factory) -> Path:
    """The folder of pages: the first worker that asks builds it, the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent  # the folder that all workers of this run share
    out = base / "site"
    with FileLock(str(base / "site.lock")):
        if not (out / "done").exists():
            command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
            result = subprocess.run(
                [*command, "-d", str(out / "doctrees"), str(DOCS), str(out / "html")],
                env=environment_without_network(base / "offline"),
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
            out.mkdir(exist_ok=True)
            (out / "done").write_text(result.stdout + result.stderr if result.returncode else "", encoding="utf-8")
    complaint = (out / "done").read_text(encoding="utf-8")
    assert not complaint, complaint
    return out / "html"


class Anchors(HTMLParser):
    """Identifiers of a page, and the targets of its links and images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if identifier := values.get("id") or values.get("name"):
            self.ids.add(identifier)
        if tag == "a" and values.get("href") is not None:
            self.targets.append(values["href"] or "")
        if tag == "img":
            self.targets.append(values.get("src") or "")
