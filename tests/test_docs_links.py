"""Links of the documentation lead somewhere: pages, anchors and pictures exist, addresses outside are well formed.

No address outside is opened: there is no network in tests.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import isthmus
from docs_site import ROOT, Anchors, built_site

MARKDOWN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built_site(tmp_path_factory)


def outside(target):
    """Why an address outside cannot be right, or nothing."""
    parts = urlsplit(target)
    if parts.scheme not in ("https", "http"):
        return f"{target}: not an address of a page"
    return "" if HOST.fullmatch(parts.netloc) else f"{target}: no host"


def broken(folder):
    """What the links and images of all pages below ``folder`` miss."""
    pages = {path.resolve(): Anchors(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for target in page.targets:
            if urlsplit(target).scheme:
                wrong += [f"{name}: {said}"] if (said := outside(target)) else []
                continue
            where, _, anchor = target.partition("#")
            found = (path.parent / unquote(where)).resolve() if where else path
            if not found.is_file():
                wrong.append(f"{name}: {target}: no such file")
            elif anchor and found in pages and unquote(anchor) not in pages[found].ids:
                wrong.append(f"{name}: {target}: no such anchor")
    return wrong


def test_every_link_anchor_and_picture_of_the_site_exists(site):
    assert sum(len(Anchors(path.read_text(encoding="utf-8")).targets) for path in site.rglob("*.html")) > 2000
    assert not broken(site)


def test_broken_ones_are_noticed(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">x</h1><a href="b.html#there">b</a><img src="p.png">', encoding="utf-8"
    )
    (tmp_path / "b.html").write_text('<h1 id="here">x</h1><a href="a.html#top">a</a>', encoding="utf-8")
    assert broken(tmp_path) == ["a.html: b.html#there: no such anchor", "a.html: p.png: no such file"]
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "b.html").write_text('<h1 id="there">x</h1><a href="https:///x">a</a>', encoding="utf-8")
    assert broken(tmp_path) == ["b.html: https:///x: no host"]
    assert outside("ftp://example.org/x")
    assert not outside("https://example.org/x")


@pytest.mark.parametrize("name", MARKDOWN)
def test_files_that_are_read_without_the_site_link_to_what_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if urlsplit(target).scheme:
            assert not outside(target)
        else:
            where, _, anchor = target.partition("#")
            assert (ROOT / where).exists(), target
            assert not anchor or anchor in headings(ROOT / where), target


def headings(path: Path):
    """Anchors that a Markdown file gets from its headings."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def test_every_public_name_is_in_the_reference(site):
    ids = set()
    for path in (site / "api").glob("*.html"):
        ids |= Anchors(path.read_text(encoding="utf-8")).ids
    missing = []
    for name in isthmus.__all__:
        if name.startswith("_"):
            continue
        home = isthmus._NAMES.get(name, "isthmus")
        wanted = f"module-isthmus.{name}" if name in isthmus._MODULES else f"{home}.{name}"
        missing += [wanted] if wanted not in ids else []
    assert not missing


def test_the_navigation_has_its_parts_in_order(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">([^<]+)</span>', text)
    assert captions == ["Start", "Use", "Tutorials", "The papers", "Reference", "House"]


@pytest.mark.parametrize("paper", ["rank2023", "bottleneck2023", "hamiltonian2024", "features2022", "talk2023"])
def test_a_page_of_a_paper_shows_its_claims_errata_and_figures(site, paper):
    from isthmus.experiments._experiment import find_experiments
    from isthmus.files import read_json

    text = (site / "papers" / f"{paper}.html").read_text(encoding="utf-8")
    assert text.count('class="row-') > 10
    shown = [name for name in find_experiments() if f'<section id="{name.lower()}">' in text]
    assert shown
    for name in shown:
        kept = ROOT / "docs" / "figures" / f"{name}.json"
        part = text[text.index(f'<section id="{name.lower()}">') :].split("</section>")[0]
        assert f"isthmus reproduce {name}" in re.sub(r"<[^>]+>", "", part)
        badges = re.findall(r'class="badge badge-([\w-]+)', part)
        if kept.exists():
            run = read_json(kept)
            outcomes = (outcome["status"].replace(" ", "-") for outcome in run["outcomes"])
            assert badges == [run["status"], *outcomes]
            assert f"{name}.png" in part
        else:
            assert badges == ["not-run-yet"]
