"""The page of theorems carries the verdicts' own numbers."""

from __future__ import annotations

import pytest

import isthmus
from isthmus.claims import CLAIMS, Verdict, Verdicts, verify, verify_samples
from isthmus.claims._base import CAUSES
from isthmus.report.save import page_of, render
from reported import Watched, chromium
from tools import gaussian, random_net


def test_verdicts_of_a_network():
    found = verify(random_net([5, 9, 9, 4]), gaussian(20, 5))
    page = page_of(found)
    assert page.answer.verdict == "holds" and page.answer.sentence == found.sentence
    assert page.answer.reasons[-1] == found.closing
    figure = next(one for one in page.figures() if one.key == "margins")
    shown = dict(zip(figure.data[0]["y"], figure.data[0]["x"]))
    assert set(shown) == {v.claim for v in found.judged}
    assert all(shown[v.claim] == max(abs(v.margin), 1e-6) for v in found.judged)
    tables = {block.key: block for section in page.sections for block in section.blocks if hasattr(block, "rows")}
    assert [row[0] for row in tables["verdicts"].rows] == [v.claim for v in found.judged]
    assert len(tables["parts"].rows) == sum(len(v.parts) for v in found.judged if len(v.parts) > 1)
    assert {row[0] for row in tables["silent"].rows} == {CAUSES[cause] for cause in found.silent}
    assert len(tables["statements"].rows) == len(found)
    text = render(page)
    assert all(identity in text for identity in CLAIMS) and len(text) < 10**7


def test_a_failure_is_the_answer():
    bad = Verdict("C-rank-1", "fails", 2.0, 1.0, "≤", -0.5, 1e-9, reason="2 ≤ 1 is wrong by <b>half</b>")
    page = page_of(Verdicts((bad,), "a network"))
    assert page.answer.verdict == "fails" and "half" in page.answer.reasons[0]
    assert "<b>half</b>" not in render(page)


def test_numbers_behind_a_verdict():
    keys = [figure.key for figure in page_of(verify_samples("C-bn-6")).figures()]
    assert keys == ["margins", "c-bn-6-0"]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_window(tmp_path, width):
    """Nothing is cut off at 1280 pixels, and a telephone scrolls within tables alone."""
    found = verify(random_net([5, 9, 9, 4]), gaussian(20, 5), gaussian(20, 4, seed=1), ridge=0.1)
    isthmus.save_report(found, tmp_path / "verdicts.html")
    with chromium() as browser:
        watched = Watched(browser, tmp_path / "verdicts.html", viewport={"width": width, "height": 900})
        watched.show_all()
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        wide = watched.page.evaluate(
            "[...document.querySelectorAll('table')].filter(t => t.offsetParent !== null && "
            "t.getBoundingClientRect().right > innerWidth + 1).map(t => t.innerText.slice(0, 80))"
        )
        assert width < 1280 or wide == []
        watched.check_quiet()
