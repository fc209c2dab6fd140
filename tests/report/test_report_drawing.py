"""What a figure shows is drawn wherever it stands: at load, in another window, on paper, once it is opened."""

import pytest

import isthmus
from reported import Watched, chromium, constant, run

SIZE = {"viewport": {"width": 1200, "height": 1000}, "reduced_motion": "reduce"}
HEIGHTS = "[...document.querySelectorAll('.plot')].map(p => p.offsetHeight)"


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A Run of many layers: eight figures below one another, some of which drive others."""
    return isthmus.save_report(run(layers=12, values=10), tmp_path_factory.mktemp("reports") / "run.html")


@pytest.fixture
def fresh(browser, path):
    """The report, opened just now."""
    watched = Watched(browser, path, **SIZE)
    yield watched
    watched.check_quiet()
    watched.context.close()


def test_all_at_load_and_again_for_another_window(fresh):
    page = fresh.page
    drawn = fresh.drawn()
    assert len(drawn) == 8 and all(drawn)
    first = page.eval_on_selector("[data-figure=norms] svg", "svg => svg.viewBox.baseVal.width")
    # Browsers without a screen pass through a window of no size when theirs is resized.
    for size in ({"width": 1, "height": 1}, {"width": 390, "height": 800}, SIZE["viewport"]):
        page.set_viewport_size(size)
        page.wait_for_timeout(200)
        widths = page.eval_on_selector_all(".plot", "all => all.map(p => [p.clientWidth, p.firstChild.clientWidth])")
        assert all(outer == inner for outer, inner in widths)
    assert fresh.drawn() == drawn
    assert page.eval_on_selector("[data-figure=norms] svg", "svg => svg.viewBox.baseVal.width") == first


def test_nothing_jumps_and_links_land(fresh):
    page = fresh.page
    # The place that is kept before the drawing is the place that it takes.
    kept = "[...document.querySelectorAll('.plot')].map(p => parseFloat(getComputedStyle(p).minHeight))"
    assert page.evaluate(HEIGHTS) == page.evaluate(kept)
    page.click("nav a[href='#jacobians']")
    assert 0 <= page.evaluate("document.getElementById('jacobians').getBoundingClientRect().top") < 100


@pytest.mark.slow
def test_a_menu_changes_what_another_figure_drives(fresh):
    page = fresh.page
    spot = page.eval_on_selector("[data-figure=weights-lines] .plot", "plot => plot.where(3, plot.data.at(-1).y[2])")
    page.locator("[data-figure=weights-lines] .plot").scroll_into_view_if_needed()
    spot = page.eval_on_selector("[data-figure=weights-lines] .plot", "plot => plot.where(3, plot.data.at(-1).y[2])")
    page.mouse.move(*spot)
    assert page.eval_on_selector("[data-figure=weights-layer] select", "menu => menu.value") == "2"
    assert page.text_content("[data-figure=weights-lines] .tip").startswith("layer 3, value 1: 1")


@pytest.mark.slow
def test_what_a_legend_names_can_be_hidden_by_keyboard(fresh):
    page = fresh.page
    bars = "document.querySelectorAll('[data-figure=norms] .trace').length"
    assert page.evaluate(bars) == 2
    page.focus("[data-figure=norms] .key")
    page.keyboard.press("Enter")
    assert page.evaluate(bars) == 1
    assert page.get_attribute("[data-figure=norms] .key", "aria-pressed") == "false"


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["details", "div hidden"])
def test_what_is_closed_waits_until_it_is_opened(browser, path, tmp_path, inside):
    """No page has a figure inside something closed yet: here the first one is put there."""
    tag = inside.split()[0]
    text = path.read_text(encoding="utf-8")
    start = text.index('<figure class="card" data-figure="weights-lines">')
    end = text.index("</figure>", start) + len("</figure>")
    closed = tmp_path / "closed.html"
    closed.write_text(f"{text[:start]}<{inside}>{text[start:end]}</{tag}>{text[end:]}", encoding="utf-8")
    watched = Watched(browser, closed, **SIZE)
    page = watched.page
    assert watched.drawn()[0] == 0
    what = "open" if tag == "details" else "hidden"
    page.eval_on_selector("[data-figure=weights-lines]", f"one => one.parentElement.toggleAttribute('{what}')")
    page.wait_for_selector("[data-figure=weights-lines] .drawn")
    assert page.eval_on_selector("[data-figure=weights-lines] .drawn", "one => one.clientWidth") > 700
    watched.check_quiet()
    watched.context.close()


def test_a_report_without_figures_is_ready(browser, tmp_path):
    watched = Watched(browser, isthmus.save_report(constant(), tmp_path / "report.html"))
    assert watched.drawn() == []
    watched.check_quiet()
    watched.context.close()
