"""Reports in a real browser without network: drawn, quiet, and every button does what it says."""

import csv

import numpy as np
import pytest

import isthmus
from reported import HOSTILE, Watched, chromium, discovery, hostile, profile, run

#: The colour of what is written in a drawing.
INK = "getComputedStyle(document.querySelector('[data-figure=profile] .drawn')).fill"


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Files by name."""
    folder = tmp_path_factory.mktemp("reports")
    found = discovery()
    X = np.random.default_rng(0).standard_normal((40, 4))
    isthmus.save_report(found, folder / "discovery.html", X=X)
    for name, result in (("hostile", hostile()), ("profile", profile()), ("run", run(layers=50, values=100))):
        isthmus.save_report(result, folder / f"{name}.html")
    return folder


@pytest.fixture(scope="module")
def opened(browser, reports):
    """Each report opened once, at the width it is tested at; every test leaves it as it was."""
    pages = {}

    def give(name):
        if name not in pages:
            size = {"width": 390 if name == "hostile" else 1200, "height": 900}
            pages[name] = Watched(browser, reports / f"{name}.html", viewport=size)
        return pages[name]

    yield give
    for watched in pages.values():
        watched.context.close()


@pytest.mark.parametrize("name", ["discovery", pytest.param("profile", marks=pytest.mark.slow), "run", "hostile"])
def test_every_plot_is_drawn(opened, name):
    watched = opened(name)
    watched.show_all()
    drawn = watched.drawn()
    assert drawn and all(drawn), drawn
    assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    watched.check_quiet()


def test_what_is_forbidden_does_not_happen_and_is_noticed(browser, reports, tmp_path):
    text = (reports / "profile.html").read_text(encoding="utf-8")
    mine = '<img src="https://example.org/x.png"><script>document.title = "mine"</script>'
    path = tmp_path / "report.html"
    path.write_text(text.replace("<main>", f"<main>{mine}"), encoding="utf-8")
    watched = Watched(browser, path)
    assert watched.page.title() != "mine"
    assert sum("Content Security Policy" in one for one in watched.complaints) == 2
    with pytest.raises(AssertionError):
        watched.check_quiet()
    watched.context.close()


def test_hover_and_menu(opened):
    watched = opened("discovery")
    page = watched.page
    _hover(watched, "profile", 2)
    assert "k = 2" in page.text_content("[data-figure=profile] .tip")
    colours = "document.querySelector('[data-figure=cloud] .plot').data[0].marker.color.slice(0, 3)"
    watched.show("cloud")
    first = page.evaluate(colours)
    page.select_option("[data-figure=cloud] [data-choice='2']", label="input x0")
    assert page.evaluate(colours) != first
    watched.check_quiet()


def test_theme_by_keyboard(opened):
    watched = opened("discovery")
    page = watched.page
    watched.show("profile")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate(INK)
    page.focus("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert page.evaluate(INK) != ink
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before
    watched.check_quiet()


def test_sort_and_downloads(opened, tmp_path):
    watched = opened("discovery")
    page = watched.page
    # By number and not by text, both ways.
    head = "[data-table=profile-numbers] th:nth-child(2)"
    page.click(f"{head} button")
    assert page.get_attribute(head, "aria-sort") == "ascending"
    cells = "[...document.querySelectorAll('[data-table=profile-numbers] td:nth-child(2)')].map(c => +c.dataset.raw)"
    assert page.evaluate(cells) == sorted([0.9, 0.031, 0.034, 0.036])
    page.click(f"{head} button")
    assert page.get_attribute(head, "aria-sort") == "descending"
    assert page.evaluate(cells) == sorted([0.9, 0.031, 0.034, 0.036], reverse=True)
    svg = watched.saved("[data-figure=profile] [data-save=svg]")
    assert svg.suggested_filename == "isthmus-profile.svg"
    svg.save_as(tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text(encoding="utf-8")[:200]
    watched.saved("[data-figure=profile] [data-save=png]").save_as(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    watched.saved("[data-csv=profile-numbers]").save_as(tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["k"] for row in rows] == ["1", "wide", "3", "2"] and float(rows[0]["held-out error"]) == 0.9
    watched.check_quiet()


def test_layers_are_linked(opened):
    watched = opened("run")
    page = watched.page
    layer = "document.querySelector('[data-figure=weights-layer] .plot').data[0].y[1]"
    share = run(layers=50, values=100).arrays["weight_spectra"]
    expected = [float(f"{row[1] / row[0]:.5g}") for row in share]
    watched.show("weights-layer")
    assert page.evaluate(layer) == expected[25]
    _hover(watched, "weights-map", 7)
    assert page.evaluate(layer) == expected[6]
    assert page.eval_on_selector("[data-figure=weights-layer] select", "s => s.value") == "6"
    page.select_option("[data-figure=weights-layer] select", label="layer 9")
    assert page.evaluate(layer) == expected[8]
    watched.check_quiet()


def test_hostile_names_are_text(opened, tmp_path):
    watched = opened("hostile")
    page = watched.page
    shown = page.evaluate(
        "[...document.querySelectorAll('[data-table=meaning-numbers] td:nth-child(2)')].map(c => c.textContent)"
    )
    assert {name.strip() for name in HOSTILE} == {text.strip() for text in shown}
    page.locator("details", has=page.locator("[data-table=meaning-numbers]")).locator("summary").click()
    height = page.evaluate(
        "Math.max(...[...document.querySelectorAll('[data-table=meaning-numbers] tr')].map(r => r.offsetHeight))"
    )
    assert height < 200
    watched.show("meaning")
    ticks = page.text_content("[data-figure=meaning] .grid")
    assert "</script>" in ticks and "@blue" in ticks and "\\u202e" in ticks
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    watched.saved("[data-csv=meaning-numbers]").save_as(tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["input"] for row in rows} == set(HOSTILE)
    watched.check_quiet()


def test_paper_is_white(opened):
    watched = opened("discovery")
    page = watched.page
    light = page.evaluate(INK)
    page.click("#theme")
    dark = page.evaluate(INK)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(INK) == light != dark
    assert page.evaluate("[...document.querySelectorAll('details')].every(d => d.open)")
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(INK) == dark
    assert not page.evaluate("[...document.querySelectorAll('details')].some(d => d.open)")
    page.click("#theme")
    watched.check_quiet()


def _hover(watched, figure, x):
    """Move the mouse over what is drawn at ``x`` in the first trace there, as a hand would."""
    watched.show(figure)
    page = watched.page
    place = page.locator(f"[data-figure={figure}] .plot").evaluate(
        """(plot, x) => {
            const trace = plot.data.findLast((one) => one.text || one.z || one.y);
            const heat = trace.type === "heatmap";
            const y = heat ? trace.y[0] : trace.y[trace.x.indexOf(x)];
            return plot.where(x, y);
        }""",
        x,
    )
    page.mouse.move(place[0] - 3, place[1] - 3)
    page.mouse.move(*place, steps=3)
    page.wait_for_selector(f"[data-figure={figure}] .tip:not([hidden])")
