"""Verdicts: which side is nearer, what is granted to rounding, and what an unmet hypothesis does."""

from __future__ import annotations

import json
import math

import pytest
import torch

from isthmus import IsthmusError
from isthmus.claims._base import CLAIMS, Claim, Hypothesis, Verdict, claim, compare, unmet

MET = Hypothesis.of("given", True)


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
    found = compare("C-x", lhs, relation, rhs, tolerance=1e-9, hypotheses=[MET])
    assert found.status == status
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_place_with_the_least_slack_is_shown():
    found = compare("C-x", [1.0, 5.0, 2.0], "≤", [10.0, 5.5, 10.0], tolerance=0.0, hypotheses=[MET], where=str)
    assert (found.where, found.lhs, found.rhs) == ("1", 5.0, 5.5)
    assert found.slack == pytest.approx(0.5 / 5.5)
    # One number for all places.
    many = compare("C-x", torch.tensor([1.0, 2.0]), "≤", 1.5, tolerance=0.0, hypotheses=[MET])
    assert many.status == "fails" and "wrong by" in many.reason


def test_each_place_is_granted_its_own():
    """What one place is granted does not help another."""
    options = {"hypotheses": [MET], "where": str}
    found = compare("C-x", [1.0, 1.0], "=", [2.0, 1.01], tolerance=[0.6, 1e-9], **options)
    assert found.status == "fails" and (found.where, found.tolerance) == ("1", 1e-9)
    found = compare("C-x", [1.0, 1.0], "=", [2.0, 1.01], tolerance=[0.6, 0.1], **options)
    assert found.status == "holds" and (found.where, found.tolerance) == ("1", 0.1)


@pytest.mark.parametrize("status", [False, None])
def test_an_unmet_hypothesis_silences_the_claim(status):
    missing = Hypothesis.of("stationary", status, "gradient 3")
    found = compare("C-x", 2.0, "≤", 1.0, tolerance=0.0, hypotheses=[MET, missing])
    assert found.status == "not applicable"
    assert "stationary" in found.reason and "gradient 3" in found.reason
    assert math.isnan(found.lhs)
    assert unmet([MET]) == ""


def test_nothing_to_evaluate():
    assert compare("C-x", [], "≤", [], tolerance=0.0, hypotheses=[MET]).status == "not applicable"


def test_registration():
    with pytest.raises(IsthmusError, match="unique"):
        claim("C-rank-1", "twice", paper="p", where="w", hypotheses=(), sample=lambda: None)(lambda s: s)
    assert isinstance(CLAIMS["C-rank-1"], Claim)
    with pytest.raises(IsthmusError, match="status"):
        Verdict("C-x", "maybe", 0.0, 0.0, "≤", 0.0, 0.0)
