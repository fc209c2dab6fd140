"""Attraction and repulsion in a Diagnosis: those of the measure, and left out where they cannot be had."""

from __future__ import annotations

import torch

from isthmus import diagnose
from isthmus.claims import CLAIMS
from isthmus.diagnosis._whole import FORCE_WIDTH
from isthmus.measures import forces
from isthmus.report.diagnosis_page import page_of
from tools import assert_close, gaussian, random_net


def test_forces_of_a_stationary_network():
    subject = CLAIMS["C-feat-2"].sample()
    found = diagnose(subject.net, subject.X)
    told = found.whole["forces"]
    measured = forces(subject.net, subject.X)
    assert [one["layer"] for one in told] == list(measured.layers)
    assert_close([one["residual"] for one in told], list(measured.residual))
    assert "balanced" in {one["state"] for one in told}
    tables = [block for part in page_of(found).sections for block in part.blocks if block.kind == "table"]
    assert len(next(table for table in tables if table.key == "forces").rows) == len(told)


def test_forces_are_left_out_of_what_is_too_wide_or_shallow():
    assert diagnose(random_net([3, FORCE_WIDTH + 1, 2]), gaussian(9, 3)).whole["forces"] == []
    assert diagnose(random_net([3, 2]), gaussian(9, 3)).whole.get("forces", []) == []


def test_a_random_network_is_not_balanced():
    told = diagnose(random_net([6, 8, 8, 2]), gaussian(5, 6)).whole["forces"]
    assert told and "balanced" not in {one["state"] for one in told}
    assert all(torch.isfinite(torch.tensor(one["attraction"])) for one in told)
