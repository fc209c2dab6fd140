"""The report of a sweep in a real browser: every cell can be looked into, by mouse and by keyboard, at every width."""

import pytest

import isthmus
from reported import Watched, chromium
from swept import DEPTHS, RIDGES, rank_at, result_of, row_of, spectrum_at, sweep_result
from test_sweep_report import hostile

#: Texts of the cells, row by row from the top; None where there is no cell.
CELLS = """[...document.querySelectorAll('.cells tbody tr')].map((row) =>
    [...row.cells].slice(1).map((cell) => (cell.dataset.cell === undefined ? null : cell.textContent)))"""
#: Colour, agreement and class of every cell.
LOOKS = """[...document.querySelectorAll('.cells [data-cell]')].map((cell) =>
    [cell.className, cell.style.getPropertyValue('--agreement'), getComputedStyle(cell).backgroundColor])"""
INSIDE = "document.querySelector('.inside h4').textContent"
PLOT = "document.querySelector('[data-figure=cell] .plot')"
WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 800}
WIDTHS = (8, 16, 32)


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    rows = [row_of(d, r, 0, width=w, rank=d + w) for d in (4, 6) for r in RIDGES for w in WIDTHS if (d, w) != (6, 32)]
    three = result_of(rows, ("depth", "ridge", "width"))
    for name, result in (("two", sweep_result()), ("three", three), ("hostile", hostile())):
        isthmus.save_report(result, folder / f"{name}.html")
    return folder


@pytest.fixture
def fresh(browser, reports):
    """A report, opened just now."""
    opened = []

    def give(name, **options):
        opened.append(Watched(browser, reports / f"{name}.html", reduced_motion="reduce", **options))
        return opened[-1]

    yield give
    for watched in opened:
        watched.context.close()
        watched.check_quiet()


def rank_of(depth, ridge):
    """The most frequent rank of three seeds."""
    ranks = [rank_at(depth, ridge, seed) for seed in range(3)]
    return str(max(sorted(set(ranks)), key=ranks.count))


def expected():
    table = [[rank_of(depth, ridge) for depth in DEPTHS] for ridge in reversed(RIDGES)]
    table[2][-1] = "·"
    return table


def test_click_and_keyboard(fresh):
    watched = fresh("two", viewport=WIDE)
    page = watched.page
    assert page.evaluate(CELLS) == expected()
    # A cell that was not measured has no colour of a rank; the paler one is not the full one.
    looks = page.evaluate(LOOKS)
    empty = next(look for look in looks if look[0] == "unmeasured")
    assert empty[2] == "rgba(0, 0, 0, 0)"
    assert len({look[2] for look in looks if look[0].startswith("rank r2")}) == 3  # all, two thirds, a half
    page.click(".cells tbody tr:nth-child(2) td:nth-child(2)")
    assert page.evaluate(INSIDE) == "depth 4, ridge 0.001: rank 3 in 3 of 3 runs"
    assert page.locator(".inside tbody tr").count() == 3
    watched.show("cell")
    lines = page.evaluate(f"{PLOT}.data.filter(one => one.legendgroup === 'seed 2: rank 3').map(one => one.y)")
    assert len(lines) == 6
    assert lines[0] == pytest.approx(spectrum_at(4, 3, 2)[:, 0].tolist(), rel=1e-2)
    assert page.evaluate(f"{PLOT}.data.map(one => one.opacity)") == [1, 1, 1, 0.4, 0.4, 0.4] * 3
    # One stop for the tabulator; arrows walk, Enter looks, and the edge stops.
    assert page.locator(".cells [tabindex='0']").count() == 1
    page.focus(".cells [tabindex='0']")
    for key in ("ArrowUp", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert (
        page.evaluate("document.activeElement.title") == "depth 10, ridge 0.01: rank 1 in 2 of 3 runs, 2 in the others"
    )
    page.keyboard.press("Enter")
    assert page.evaluate(INSIDE).startswith("depth 10, ridge 0.01") and len(page.evaluate(f"{PLOT}.data")) == 18
    assert page.locator(".cells [aria-selected=true]").count() == 1
    # What failed says why; what was never computed has no spectrum.
    page.click(".cells tbody tr:nth-child(3) td:nth-child(5)")
    assert "samples must be finite" in page.text_content(".inside table")
    page.click(".cells tbody tr:nth-child(3) td:nth-child(9)")
    assert page.evaluate(INSIDE).endswith(": 3 waiting") and page.evaluate(f"{PLOT}.data") == []


@pytest.mark.slow
def test_every_figure_on_a_phone_and_in_the_dark(fresh):
    watched = fresh("two", viewport=PHONE)
    page = watched.page
    watched.show_all()
    assert all(watched.drawn())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    blue = "getComputedStyle(document.querySelector('.cells .r2.firm')).backgroundColor"
    line = "getComputedStyle(document.querySelector('[data-figure=cell] .trace .mark')).stroke"
    before = page.evaluate(blue), page.evaluate(line)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(line) != before[1]
    assert page.evaluate(blue) != before[0] and all(watched.drawn())


@pytest.mark.slow
def test_choose_two_of_three_parameters(fresh):
    watched = fresh("three", viewport=WIDE)
    page = watched.page

    def shown(ridge=None, width=None):
        found = []
        for up in reversed(RIDGES if ridge is None else WIDTHS):
            w = up if width is None else width
            found.append([None if (d, w) == (6, 32) else str(d + w) for d in (4, 6)])
        return found

    menus = ".choices label select"
    assert page.locator(f"[data-phase] {menus}").count() == 3
    width = page.evaluate("document.querySelectorAll('[data-phase] select')[2].value")
    assert page.evaluate(CELLS) == shown(width=WIDTHS[int(width)])
    page.locator(f"[data-phase] {menus}").nth(2).select_option(label="32")
    assert page.evaluate(CELLS) == shown(width=32)
    page.locator(f"[data-phase] {menus}").nth(1).select_option(label="width")
    assert page.evaluate(CELLS) == shown(ridge=RIDGES[0])
    assert page.text_content("[data-up]") == "↑ width (logarithmic)"
    # The same parameter twice changes places with the other.
    page.locator(f"[data-phase] {menus}").nth(0).select_option(label="width")
    assert page.evaluate(CELLS) == [list(row) for row in zip(*shown(ridge=RIDGES[0])[::-1])][::-1]
    page.click(".cells tbody tr:first-child td:nth-child(3)")
    assert page.evaluate(INSIDE).startswith("depth 6, ridge 0.0001, width 16: rank 22")


def test_without_scripts_the_cells_and_tables_are_there(browser, reports):
    context = browser.new_context(offline=True, java_script_enabled=False, viewport=WIDE)
    page = context.new_page()
    page.goto((reports / "two.html").as_uri())
    rows = page.locator(".cells tbody tr")
    found = [[cell.strip() for cell in rows.nth(i).locator("td").all_text_contents()] for i in range(3)]
    assert found == expected()
    kinds = page.locator(".cells [data-cell]")
    assert [kinds.nth(i).get_attribute("class") for i in (0, 3, 20, 23)] == [
        "rank r3 firm",
        "rank r1",
        "rank r2 firm",
        "unmeasured",
    ]
    assert page.locator(".inside").is_hidden() and page.locator("[data-table=problems] tbody tr").count() == 2
    context.close()


def test_hostile_texts_are_text(fresh):
    watched = fresh("hostile", viewport=PHONE)
    page = watched.page
    watched.show_all()
    for index in range(page.locator(".cells [data-cell]").count()):
        page.locator(".cells [data-cell]").nth(index).click()
    assert page.locator("main img").count() == 0 and page.locator("main b").count() == 0
    assert "<img" in page.text_content("[data-phase]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
