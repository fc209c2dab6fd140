"""The documentation builds without warnings and without network; its pages ask for nothing from outside."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from docs_site import built_site, environment_without_network

RESOURCES = {
    "script": "src",
    "link": "href",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "embed": "src",
    "object": "data",
    "audio": "src",
    "video": "src",
    "use": "href",
    "image": "href",
}
REMOTE = re.compile(r"(?i)^\s*(https?:)?//")
REMOTE_CSS = re.compile(r"(?i)(url\(\s*['\"]?|@import\s+['\"]?)(https?:)?//")


class Page(HTMLParser):
    """What a page loads, its text outside code, and how many formulas it has."""

    def __init__(self, text):
        super().__init__()
        self.remote, self.formulas, self.text, self.depth = [], 0, [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        target = values.get(RESOURCES.get(tag, ""), "") or ""
        if REMOTE.match(target) or REMOTE_CSS.search(values.get("style") or ""):
            self.remote.append((tag, target))
        self.formulas += tag == "math"
        self.depth += tag in ("pre", "code", "script", "style")

    def handle_endtag(self, tag):
        self.depth -= tag in ("pre", "code", "script", "style")

    def handle_data(self, data):
        if not self.depth:
            self.text.append(data)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return environment_without_network(tmp_path_factory.mktemp("offline"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built_site(tmp_path_factory)


def test_the_network_is_really_blocked(environment, tmp_path):
    mark = tmp_path / "attempts"
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "NETWORK_MARK": str(mark)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no network in this test" in result.stderr
    assert mark.exists()


def test_build_asks_nothing_of_the_network(site):
    assert (site / "index.html").exists()
    offline = site.parents[1] / "offline"
    assert (offline / "sitecustomize.py").exists()
    assert not (offline / "attempts").exists()


def test_pages_load_nothing_from_outside(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= 40
    for path in pages:
        assert Page(path.read_text(encoding="utf-8")).remote == [], path.name
    for path in site.rglob("*.css"):
        assert not REMOTE_CSS.search(path.read_text(encoding="utf-8")), path.name


def test_formulas_became_mathml(site):
    for name in ("mathematics.html", "notation.html", "ids.html"):
        page = Page((site / name).read_text(encoding="utf-8"))
        assert page.formulas > 0, name
        assert not re.search(r"\\[a-z]{2,}|\$", "".join(page.text)), f"{name}: LaTeX left in the text"


def test_every_id_has_an_anchor(site):
    text = (site / "ids.html").read_text(encoding="utf-8")
    assert 'id="c-rank-14"' in text
    assert 'id="q-full-half"' in text
    assert "isthmus.networks._fully_connected.FullyConnected" in text


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<img src="http://example/a.png">',
        '<p style="background: url(https://example/a.png)">',
    ],
)
def test_remote_resources_are_noticed(html):
    assert Page(html).remote


def test_hyperlinks_are_not_resources():
    assert not Page('<a href="https://example.org">x</a><math></math>').remote
