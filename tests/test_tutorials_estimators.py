"""The tutorials on classification and denoising run as they stand and print what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isthmus import BottleneckAutoencoder, BottleneckClassifier
from test_tutorial import DOCS, blocks, run

PAGES = ("classification", "denoising")


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_tutorial_runs(name, tmp_path, monkeypatch):
    pytest.importorskip("sklearn.datasets")
    monkeypatch.chdir(tmp_path)
    run(blocks(DOCS / "tutorials" / f"{name}.md"))
    assert list(Path().glob("*.png"))


@pytest.mark.parametrize("name", PAGES)
def test_what_the_tutorial_names_is_there(name):
    page = DOCS / "tutorials" / f"{name}.md"
    content = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", content):
        assert (page.parent / target).is_file(), target
    code = "\n".join(code for code, _ in blocks(page))
    compile(code, str(page), "exec")
    assert all(printed != "" for _, printed in blocks(page))
    for method in re.findall(r"model\.(\w+)\(", code):
        assert hasattr(BottleneckClassifier, method) or hasattr(BottleneckAutoencoder, method), method
