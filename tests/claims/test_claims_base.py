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
        (1.0, "≤", float("inf"), "holds"),
        (float("inf"), "≤", 1.0, "fails"),
        (0.0, "=", 0.0, "holds"),
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
