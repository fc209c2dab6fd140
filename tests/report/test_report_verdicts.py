"""The page of theorems carries the verdicts' own numbers."""

from __future__ import annotations

from isthmus.claims import CLAIMS, Verdict, Verdicts, verify, verify_samples
from isthmus.report.save import page_of
from isthmus.report.write import render
from tools import gaussian, random_net


def test_verdicts_of_a_network():
    found = verify(random_net([5, 9, 9, 4]), gaussian(20, 5))
    page = page_of(found)
    assert page.answer.verdict == "holds" and page.answer.sentence == found.sentence
    figure = next(one for one in page.figures() if one.key == "slacks")
    shown = dict(zip(figure.data[0]["y"], figure.data[0]["x"]))
    judged = [v for v in found if v.status != "not applicable"]
    assert set(shown) == {v.claim for v in judged}
    assert all(shown[v.claim] == max(abs(v.slack), 1e-6) for v in judged)
    text = render(page)
    assert all(identity in text for identity in CLAIMS) and len(text) < 10**7


def test_a_failure_is_the_answer():
    bad = Verdict("C-rank-1", "fails", 2.0, 1.0, "≤", -0.5, 1e-9, reason="2 ≤ 1 is wrong by <b>half</b>")
    page = page_of(Verdicts((bad,), "a network"))
    assert page.answer.verdict == "fails" and "half" in page.answer.reasons[0]
    assert "<b>half</b>" not in render(page)


def test_numbers_behind_a_verdict():
    keys = [figure.key for figure in page_of(verify_samples("C-bn-6")).figures()]
    assert keys == ["slacks", "c-bn-6-0"]
