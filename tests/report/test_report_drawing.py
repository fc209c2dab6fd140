"""Figures are drawn when they come near: none at load that nobody sees, none forgotten, and nothing jumps."""

import pytest

import isthmus
from reported import Watched, chromium, constant, run

SIZE = {"viewport": {"width": 1200, "height": 1000}, "reduced_motion": "reduce"}
#: How far from what is seen report.js draws, in pixels.
MARGIN = 400
#: Keys of the figures that are drawn.
DRAWN = "[...document.querySelectorAll('[data-figure]:has(.main-svg)')].map(one => one.dataset.figure)"
#: How far each figure is from what is seen, by key.
AWAY = """Object.fromEntries([...document.querySelectorAll('[data-figure]')].map((one) => {
    const { top, bottom } = one.querySelector('.plot').getBoundingClientRect();
    return [one.dataset.figure, Math.max(top - innerHeight, -bottom, 0)];
}))"""


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


def ink(page, figure):
    return page.evaluate(f"document.querySelector('[data-figure={figure}] .plot').layout.font.color")


def test_at_load_only_what_is_near_and_by_scrolling_all(fresh):
    page = fresh.page
    away = page.evaluate(AWAY)
    near = {key for key, pixels in away.items() if pixels < MARGIN}
    assert set(page.evaluate(DRAWN)) == near
    assert 0 < len(near) < len(away) / 2
    heights = "[...document.querySelectorAll('.plot')].map(p => p.offsetHeight)"
    before = page.evaluate(heights), page.evaluate("document.documentElement.scrollHeight")
    # As a wheel does it, without looking for the figures.
    page.mouse.move(600, 400)
    for _ in range(before[1] // 500 + 1):
        page.mouse.wheel(0, 500)
        page.wait_for_timeout(50)
    fresh.until(f"{DRAWN}.length === document.querySelectorAll('.plot').length")
    assert all(fresh.drawn())
    # Nothing jumped: the place that was kept is the place that was taken.
    assert (page.evaluate(heights), page.evaluate("document.documentElement.scrollHeight")) == before
    # Browsers without a screen pass through a window of no size when theirs is resized.
    for size in ({"width": 1, "height": 1}, SIZE["viewport"]):
        page.set_viewport_size(size)
        page.wait_for_timeout(200)
    assert all(fresh.drawn())


@pytest.mark.slow
def test_links_land_and_paper_has_them_all(fresh):
    page = fresh.page
    page.click("nav a[href='#jacobians']")
    page.wait_for_selector("#jacobians .main-svg")
    top = page.evaluate("document.getElementById('jacobians').getBoundingClientRect().top")
    assert 0 <= top < 100
    page.wait_for_timeout(300)
    assert page.evaluate("document.getElementById('jacobians').getBoundingClientRect().top") == top
    # What was hurried past is still not drawn.
    first = page.evaluate(DRAWN)
    assert "weights-map" not in first
    page.evaluate(f"addEventListener('beforeprint', () => (window.printed = {DRAWN}.length))")
    page.pdf()
    assert page.evaluate("printed === document.querySelectorAll('.plot').length")
    # Afterwards only those remain that were there, and the others come when they are looked at.
    fresh.until(f"{DRAWN}.length === {len(first)}")
    assert page.evaluate(DRAWN) == first
    fresh.show_all()
    assert all(fresh.drawn())
    # As wide as the screen has room for again.
    assert page.evaluate("Math.min(...[...document.querySelectorAll('.main-svg')].map(one => one.clientWidth))") > 700


@pytest.mark.slow
def test_whatever_is_used_is_drawn(fresh, tmp_path):
    page = fresh.page
    first = page.evaluate(DRAWN)
    assert not {"weights-layer", "representations-layer", "norms"} & set(first)
    # Pressed where it stands, out of sight, so that nothing but the button can have drawn it.
    with page.expect_download() as waited:
        page.eval_on_selector("[data-figure=norms] [data-save=svg]", "button => button.click()")
    waited.value.save_as(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<svg" in text[:200] and text.count("<path") > 5
    assert set(page.evaluate(DRAWN)) == {*first, "norms"}
    page.eval_on_selector(
        "[data-figure=representations-layer] select",
        "menu => { menu.value = '1'; menu.dispatchEvent(new Event('change')); }",
    )
    assert set(page.evaluate(DRAWN)) == {*first, "norms", "representations-layer"}
    page.evaluate(
        "document.querySelector('[data-figure=weights-lines] .plot').emit('plotly_hover', { points: [{ x: 3 }] })"
    )
    assert page.eval_on_selector("[data-figure=weights-layer] select", "menu => menu.value") == "2"
    assert set(page.evaluate(DRAWN)) == {*first, "norms", "representations-layer", "weights-layer"}
    # Those that are drawn take the new theme at once, the others when they are drawn.
    light = ink(page, first[0])
    page.click("#theme")
    assert {ink(page, key) for key in page.evaluate(DRAWN)} == {ink(page, first[0])} != {light}
    assert len(page.evaluate(DRAWN)) < len(fresh.drawn())
    fresh.show_all()
    assert {ink(page, key) for key in page.evaluate(DRAWN)} == {ink(page, first[0])}
    assert all(fresh.drawn())


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

    def turn():
        what = "open" if tag == "details" else "hidden"
        page.eval_on_selector("[data-figure=weights-lines]", f"one => one.parentElement.toggleAttribute('{what}')")

    assert "weights-lines" not in page.evaluate(DRAWN)
    turn()
    page.wait_for_selector("[data-figure=weights-lines] .main-svg")
    # Drawn, then closed: once it is open again it has the theme and the width that the others have.
    light = ink(page, "weights-lines")
    turn()
    page.click("#theme")
    turn()
    plot = "document.querySelector('[data-figure=weights-lines] .plot')"
    watched.until(f"{plot}.layout.font.color !== '{light}'")
    assert page.eval_on_selector("[data-figure=weights-lines] .main-svg", "one => one.clientWidth") > 700
    watched.check_quiet()
    watched.context.close()


@pytest.mark.slow
def test_without_an_observer_all_at_once(browser, path):
    watched = Watched(browser, path, first="delete window.IntersectionObserver", **SIZE)
    assert all(watched.drawn())
    watched.check_quiet()
    watched.context.close()


def test_a_report_without_figures_is_ready(browser, tmp_path):
    watched = Watched(browser, isthmus.save_report(constant(), tmp_path / "report.html"))
    assert watched.drawn() == []
    watched.check_quiet()
    watched.context.close()
