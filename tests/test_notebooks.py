"""Tutorials as notebooks: the cells are the blocks that other tests run, and a notebook runs from top to bottom."""

from __future__ import annotations

import json
import sys

import pytest

from docs_site import DOCS, built_site
from test_tutorial import blocks, run

sys.path.insert(0, str(DOCS / "_ext"))
from notebooks import notebook  # noqa: E402

PAGES = sorted((DOCS / "tutorials").glob("*.md"))


def code_cells(content):
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    return [
        ("".join(cell["source"]) + "\n", "".join(cell["outputs"][0]["text"]) if cell["outputs"] else None)
        for cell in cells
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_are_the_blocks_of_the_page(page):
    content = notebook(page)
    wanted = [(code.strip("\n") + "\n", printed and printed.strip("\n")) for code, printed in blocks(page)]
    assert code_cells(content) == wanted and wanted
    names = [cell["id"] for cell in content["cells"]]
    assert len(set(names)) == len(names)
    prose = "".join("".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "markdown")
    assert prose.startswith("# ") and "```python" not in prose and ".md)" not in prose and "<!--" not in prose
    for cell in content["cells"]:
        for name in cell.get("attachments", {}):
            assert f"(attachment:{name})" in "".join(cell["source"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebooks_are_valid(page):
    nbformat = pytest.importorskip("nbformat", reason="an optional check: not installed")
    nbformat.validate(nbformat.from_dict(notebook(page)))


def test_the_site_has_them(tmp_path_factory):
    site = built_site(tmp_path_factory)
    for page in PAGES:
        assert f'href="../notebooks/{page.stem}.ipynb"' in (site / "tutorials" / f"{page.stem}.html").read_text("utf-8")
        assert json.loads((site / "notebooks" / f"{page.stem}.ipynb").read_text("utf-8")) == notebook(page)


@pytest.mark.slow
def test_a_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(code_cells(notebook(DOCS / "tutorials" / "denoising.md")))
