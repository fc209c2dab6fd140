"""Run the tutorials on classification and denoising, write what they print into the pages, and keep their pictures.

python docs/figures/tutorials.py [classification|denoising …]
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
PAGES = ("classification", "denoising")
#: A Python block, and the block of text that holds what it prints.
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", flags=re.DOTALL)


def renew(name: str) -> None:
    """Run one page from top to bottom in an empty folder."""
    page = DOCS / "tutorials" / f"{name}.md"
    names = {"__name__": "tutorial"}

    def again(match: re.Match[str]) -> str:
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec(compile(match["code"], str(page), "exec"), names)
        told = "" if match["printed"] is None else f"\n```text\n{stream.getvalue()}```\n"
        return f"```python\n{match['code']}```\n{told}"

    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            content = BLOCK.sub(again, page.read_text(encoding="utf-8"))
            for picture in Path(folder).glob("*.png"):
                shutil.copy(picture, DOCS / "figures" / picture.name)
        finally:
            os.chdir(home)
    page.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PAGES:
        renew(chosen)
