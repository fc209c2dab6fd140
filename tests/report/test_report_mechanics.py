"""The page of a mechanics: the state on top, figures with the result's own numbers, every step in the table."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import isthmus
from isthmus import Mechanics
from isthmus._errors import FileFormatError
from isthmus.report import page_of_document
from isthmus.report.save import page_of, render
from leaky_nets import critical, leaky
from reported import HOSTILE, Watched, chromium, diagnosis
from tools import gaussian

FIGURES = ["mechanics-path", "mechanics-spectra", "mechanics-energies", "mechanics-residual"]


@pytest.fixture(scope="module")
def found():
    net, X, Y, ridge = critical(layers=10)
    return isthmus.mechanics(net, X, Y, ridge=ridge)


def figure(page, key):
    return next(one for one in page.figures() if one.key == key)


def test_the_answer_comes_first(found):
    page = page_of(found)
    assert page.answer.sentence == found.sentence and page.answer.verdict == "conserved"
    assert [one.key for one in page.figures()] == FIGURES
    assert all(len(one.reading) >= 2 and one.alternative for one in page.figures())
    facts = {fact.label: fact.value for fact in page.facts}
    assert facts["−(2/L̃)𝓗"] == f"{found.rank_estimate:.3g}" and facts["samples"] == "12"


def test_figures_have_the_numbers(found):
    page, a = page_of(found), found.arrays
    path = figure(page, "mechanics-path").data[0]
    np.testing.assert_allclose(np.array([path["x"], path["y"]]).T, a.path, rtol=1e-4, atol=1e-9)
    spectra = figure(page, "mechanics-spectra")
    assert len(spectra.data) == a.weight_spectra.shape[1]
    np.testing.assert_allclose(spectra.data[-1]["y"][:-1], a.weight_spectra[:, 0] / 3.0, rtol=1e-4)
    solid = [shape for shape in spectra.layout["shapes"] if shape["line"]["dash"] == "solid"]
    assert [shape["x0"] for shape in solid] == a.positions.tolist()
    lines = {one["name"]: one["y"] for one in figure(page, "mechanics-energies").data}
    np.testing.assert_allclose(lines["cost of identity"], a.identity_cost, rtol=1e-4)
    np.testing.assert_allclose(lines["−(2/L̃)𝓗"], -2 / 3 * a.hamiltonian, rtol=1e-4)
    np.testing.assert_allclose(figure(page, "mechanics-residual").data[0]["y"][:-1], a.residual, rtol=1e-4)


def test_every_step_is_in_the_table(found):
    (section,) = [one for one in page_of(found).sections if one.key == "steps"]
    (table,) = section.blocks
    assert len(table.rows) == 10 and all(len(row) == len(table.heads) for row in table.rows)
    column = table.heads.index("𝓗")
    assert [row[column] for row in table.rows] == found.arrays.hamiltonian.tolist()
    wide = isthmus.mechanics(leaky(), gaussian(40, 4), gaussian(40, 3), ridge=0.1)
    (section,) = [one for one in page_of(wide).sections if one.key == "steps"]
    assert "∞" in [row[table.heads.index("without γ")] for row in section.blocks[0].rows]


@pytest.mark.parametrize("given", [{"ridge": 0.0}, {"ridge": 0.1}, {"ridge": 0.1, "tolerance": 0.0}])
@pytest.mark.parametrize("layers", [1, 5, 200])
def test_every_state_has_a_page(given, layers):
    told = isthmus.mechanics(leaky(layers=layers, effective_depth=0.5), gaussian(9, 4), gaussian(9, 3), **given)
    page = page_of(told)
    assert page.answer.verdict == told.state and page.answer.meaning
    assert len(page.figures()) == (0 if told.arrays is None else 4)
    json.dumps([(one.data, one.layout) for one in page.figures()], allow_nan=False)
    if layers == 200:
        text = render(page)
        assert told.state in text and len(text) < 10**7


def test_from_its_json(found):
    document = json.loads(found.to_json())
    assert render(page_of_document(document)) == render(page_of(found))
    for change in ({"arrays": {}}, {"state": "fine"}, {"format": "isthmus.diagnosis"}, {"arrays": "x"}):
        with pytest.raises(FileFormatError):
            page_of_document(document | change)


def test_no_text_is_markup(found):
    document = json.loads(found.to_json())
    for name in (HOSTILE[0], " ".join(HOSTILE[1:4])):
        text = render(page_of_document({**document, "reason": name}))
        assert "<script>alert" not in text and 'onerror="alert' not in text
    strange = {**document["arrays"], "residual": ["nan", "inf", "-inf", 1e308, 1e-308, 0, -1, 1, 1, 1]}
    assert render(page_of_document({**document, "arrays": strange}))


def test_a_section_of_a_diagnosis(found):
    page = page_of(diagnosis(mechanics=found))
    (section,) = [one for one in page.sections if one.key == "mechanics"]
    assert section.lead == found.sentence and [one.key for one in section.blocks[:4]] == FIGURES
    assert not any(one.key == "mechanics" for one in page_of(diagnosis()).sections)
    none = Mechanics("not applicable", "ridge is 0", 3.0, 0.0, 1e-3, 0.05, 5, None)
    page = page_of(diagnosis(mechanics=none))
    (section,) = [one for one in page.sections if one.key == "mechanics"]
    assert section.blocks[0].sentences == [none.sentence]
    keys = [one.key for one in page_of(diagnosis(mechanics=found)).figures()]
    assert len(keys) == len(set(keys))
    assert math.isnan(none.residual) and render(page)


@pytest.mark.slow
def test_in_the_browser(found, tmp_path):
    isthmus.save_report(found, tmp_path / "mechanics.html")
    with chromium() as browser:
        watched = Watched(browser, tmp_path / "mechanics.html", viewport={"width": 1200, "height": 900})
        watched.show_all()
        assert len(watched.drawn()) == 4 and all(watched.drawn())
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        head = watched.page.locator("[data-table=mechanics-steps] th button").nth(3)
        head.click()
        cells = watched.page.eval_on_selector_all(
            "[data-table=mechanics-steps] tbody tr", "rows => rows.map(row => +row.cells[3].dataset.raw)"
        )
        assert cells == sorted(found.arrays.hamiltonian.tolist())
        watched.check_quiet()
        watched.context.close()
