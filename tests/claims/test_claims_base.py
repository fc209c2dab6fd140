"""Verdicts: which side is nearer, what is granted to rounding, and what an unmet hypothesis does."""

from __future__ import annotations

import json
import math

import pytest
import torch

from isthmus import FullyConnected, IsthmusError
from isthmus.claims._base import CLAIMS, Check, Claim, Hypothesis, NotApplicable, Subject, Verdict, claim, unmet

MET = Hypothesis.of("given", True)


def compare(lhs, relation, rhs, *, hypotheses=(MET,), **options):
    """The verdict of a claim with one part."""
    check = Check("C-x", [one.name for one in hypotheses])
    check.add(*hypotheses)
    try:
        check.compare(lhs, relation, rhs, **options)
    except NotApplicable as silent:
        return silent.verdict
    return check.verdict


@pytest.mark.parametrize(
    ("lhs", "relation", "rhs", "status"),
    [
        (1.0, "≤", 2.0, "holds"),
        (2.0, "≤", 1.0, "fails"),
        (2.0, "≥", 1.0, "holds"),
        (1.0, "≥", 2.0, "fails"),
        (1.0, "=", 1.0 + 1e-12, "holds"),
        (1.0, "=", 1.1, "fails"),
        (1.0, "≤", 1.0 - 1e-12, "holds"),
        (float("nan"), "≤", 1.0, "fails"),
        (1.0, "≤", float("inf"), "holds trivially"),
        (1.0, "≤", 99.0, "holds"),
        (1.0, "≤", 101.0, "holds trivially"),
        (101.0, "≥", 1.0, "holds trivially"),
        (float("inf"), "≤", 1.0, "fails"),
        (0.0, "=", 0.0, "holds trivially"),
        (math.inf, "=", math.inf, "not applicable"),
        (math.inf, "≤", math.inf, "not applicable"),
        (math.inf, "=", -math.inf, "fails"),
        (math.inf, "=", 1.0, "fails"),
        ([math.inf, 1.0], "=", [math.inf, 1.0], "holds"),
        ([math.inf, 1.0], "=", [math.inf, 2.0], "fails"),
    ],
)
def test_one_place(lhs, relation, rhs, status):
    found = compare(lhs, relation, rhs, tolerance=1e-9)
    assert found.status == status
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_place_with_the_least_slack_is_shown():
    found = compare([1.0, 5.0, 2.0], "≤", [10.0, 5.5, 10.0], tolerance=0.0, where=str)
    assert (found.where, found.lhs, found.rhs) == ("1", 5.0, 5.5)
    assert found.slack == pytest.approx(0.5 / 5.5)
    # One number for all places.
    many = compare(torch.tensor([1.0, 2.0]), "≤", 1.5, tolerance=0.0)
    assert many.status == "fails" and "wrong by" in many.reason


def test_the_margin_is_what_is_left_until_it_fails():
    """Sides that move by a little less than the margin still hold, and by a little more fail."""
    for lhs, relation, rhs, tolerance in ((1.0, "≤", 1.5, 0.01), (3.0, "≥", 2.0, 0.0), (1.0, "=", 1.02, 0.05)):
        found = compare(lhs, relation, rhs, tolerance=tolerance)
        assert found.status == "holds" and found.margin == found.slack + found.tolerance
        assert found.to_dict()["margin"] == pytest.approx(found.margin)
        larger = max(lhs, rhs)
        for share, status in ((0.99, "holds"), (1.01, "fails")):
            move = share * found.margin * larger * (1 if relation == "≥" else -1)
            # The larger side stays, so that margins stay relative to it.
            moved = (
                (lhs, rhs + move) if relation == "≥" else (lhs - move, rhs) if relation == "≤" else (lhs + move, rhs)
            )
            assert compare(*moved[:1], relation, *moved[1:], tolerance=tolerance).status == status


def test_what_vanishes_has_a_scale_of_its_own():
    check = Check("C-x", ["given"])
    check.add(MET)
    assert check.vanish([1e-12, 3e-10], tolerance=1e-9, where=["a", "b"]).where == "b"
    found = check.verdict
    assert found.status == "holds" and found.margin == pytest.approx(7e-10)
    assert check.vanish(2e-9, tolerance=1e-9).status == "fails"


def test_trivially_for_a_reason():
    check = Check("C-x", ["given"])
    check.add(MET)
    check.compare(1.0, "≤", 1.1, tolerance=0.0, trivial="by construction")
    assert (check.verdict.status, check.verdict.reason) == ("holds trivially", "by construction")
    check.compare(2.0, "≤", 1.1, tolerance=0.0, trivial="by construction")
    assert check.verdict.status == "fails"


def test_parts_are_judged_apart():
    """A part without its hypotheses says nothing, and the others stand; the headline, the first, is the verdict's."""
    check = Check("C-x", ["given", "rare"])
    check.add(MET, Hypothesis.of("rare", False, "too common"))
    silent = check.compare(1.0, "≤", 2.0, tolerance=0.0, part="second", assuming=("given", "rare"))
    assert silent.status == "not applicable" and "too common" in silent.reason
    check.compare(1.0, "≤", 1e9, tolerance=0.0, part="first", assuming=("given",))
    check.compare(1.0, "≤", 2.0, tolerance=0.0, part="third", assuming=())
    found = check.verdict
    assert (found.status, found.where) == ("holds trivially", "first")
    assert [part.status for part in found.parts] == ["not applicable", "holds trivially", "holds"]
    assert [part["name"] for part in found.to_dict()["parts"]] == ["second", "first", "third"]
    check.compare(3.0, "≤", 2.0, tolerance=0.0, part="fourth", assuming=())
    assert (check.verdict.status, check.verdict.where) == ("fails", "fourth")


@pytest.mark.parametrize(
    ("hypotheses", "options", "cause", "supply"),
    [
        ([("a", False, "")], {}, "network", ""),
        ([("a", None, "")], {}, "numerical", ""),
        ([("a", None, "ridge")], {}, "supply", "ridge"),
        ([("a", None, "ridge"), ("b", None, "Y")], {}, "supply", "ridge, Y"),
        # What could be supplied does not help a network that is not what the claim is about.
        ([("a", None, "ridge"), ("b", False, "")], {}, "network", ""),
        ([], {"supply": "known['f']"}, "supply", "known['f']"),
        ([], {"cause": "kind"}, "kind", ""),
        ([], {}, "numerical", ""),
    ],
)
def test_causes(hypotheses, options, cause, supply):
    check = Check("C-x", ["a", "b"])
    check.add(*(Hypothesis.of(name, met, supply=wanted) for name, met, wanted in hypotheses))
    with pytest.raises(NotApplicable) as silent:
        check.not_applicable("so", **options)
    found = silent.value.verdict
    assert (found.cause, found.supply) == (cause, supply)


def test_each_place_is_granted_its_own():
    """What one place is granted does not help another."""
    options = {"where": str}
    found = compare([1.0, 1.0], "=", [2.0, 1.01], tolerance=[0.6, 1e-9], **options)
    assert found.status == "fails" and (found.where, found.tolerance) == ("1", 1e-9)
    found = compare([1.0, 1.0], "=", [2.0, 1.01], tolerance=[0.6, 0.1], **options)
    assert found.status == "holds" and (found.where, found.tolerance) == ("1", 0.1)


@pytest.mark.parametrize("status", [False, None])
def test_an_unmet_hypothesis_silences_the_claim(status):
    missing = Hypothesis.of("stationary", status, "gradient 3")
    found = compare(2.0, "≤", 1.0, tolerance=0.0, hypotheses=[MET, missing])
    assert found.status == "not applicable"
    assert "stationary" in found.reason and "gradient 3" in found.reason
    assert math.isnan(found.lhs)
    assert unmet([MET]) == ""


def test_nothing_to_evaluate():
    assert compare([], "≤", [], tolerance=0.0).status == "not applicable"


def test_a_hypothesis_that_nobody_looked_at_silences_the_claim():
    check = Check("C-x", ["given", "forgotten"])
    check.add(MET)
    check.require()
    with pytest.raises(NotApplicable, match="forgotten: not known"):
        check.compare(1.0, "≤", 2.0, tolerance=0.0)
    with pytest.raises(IsthmusError, match="hypothesis"):
        check.assume("of another claim", True)


def test_the_parts_of_a_claim():
    """The first that fails is shown, or else the first; the details are those of all."""
    check = Check("C-x", ["given"])
    check.add(MET)
    with pytest.raises(NotApplicable, match="nothing was compared"):
        _ = check.verdict
    check.compare(1.0, "≤", 2.0, tolerance=0.0, where="first", details={"a": [1.0]})
    check.each([(2.0, 1.0, "far"), (3.0, 1.0, "near")], "≥", tolerance=0.0, details={"b": [2.0]})
    found = check.verdict
    assert (found.status, found.where, found.details) == ("holds", "first", {"a": [1.0], "b": [2.0]})
    check.compare([1.0, 1.0], "=", [1.0, 2.0], tolerance=0.0, where=["c", "d"], details=lambda i: {"at": [float(i)]})
    found = check.verdict
    assert (found.status, found.where, found.details["at"]) == ("fails", "d", [1.0])


def test_registration():
    with pytest.raises(IsthmusError, match="unique"):
        claim("C-rank-1", "twice", paper="p", where="w", hypotheses=(), sample=lambda: None)(lambda check, s: None)
    assert isinstance(CLAIMS["C-rank-1"], Claim)
    for about in ("", None, FullyConnected):
        with pytest.raises(IsthmusError, match="`about` must be the kind"):
            claim("C-x", "of what?", paper="p", where="w", hypotheses=(), sample=lambda: None, about=about)
    with pytest.raises(IsthmusError, match="status"):
        Verdict("C-x", "maybe", 0.0, 0.0, "≤", 0.0, 0.0)


def test_a_claim_about_a_kind_that_nobody_has_is_not_applicable():
    one = Claim("C-x", "s", "p", "w", (), lambda check, subject: None, lambda: None, about="a network of the future")
    for net in (FullyConnected([2, 2]), torch.nn.Linear(2, 2), None):
        found = one.evaluate(Subject(net, torch.zeros(1, 2)))
        assert (found.status, found.reason) == ("not applicable", "needs a network of the future")
