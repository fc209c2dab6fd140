"""C-rank-2 and C-rank-3 on families whose norms are known: the slope is judged by the terms that its fit leaves out."""

from __future__ import annotations

import pytest
import torch
from judged import status, verdict

from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import uniform_inputs
from isthmus.claims.rank2023._families import norm_slope
from isthmus.constructions import linear_network, positive_linear_network


def of_family(family):
    return Subject(family[0].network, uniform_inputs(20, 2, 1), known={"family": family})


@pytest.mark.parametrize("make", [linear_network, positive_linear_network])
@pytest.mark.parametrize("depths", [(10, 20, 40, 80), (50, 60, 80, 120, 200, 300), (100, 150, 200, 300, 400, 600)])
def test_exact_linear_families(make, depths):
    """What the fit leaves of ‖θ‖² is R3/L² and no noise: from six depths on, Student's interval missed the rank."""
    for values in ((2.0, 0.5), (0.3, 0.2), (4.0, 3.0)):
        family = [make(torch.tensor(values).double().diag(), L) for L in depths]
        found = verdict("C-rank-2", of_family(family))
        assert found.status == "holds", found.reason
        assert found.tolerance < 0.1
        slope = norm_slope(family)
        assert slope.low <= 2 <= slope.high
    sample = CLAIMS["C-rank-3"].sample()
    A = sample.known["affine"][0]
    affine = A, [linear_network(A, L) for L in depths]
    assert status("C-rank-3", sample.replace(known={**sample.known, "affine": affine})) == "holds"


def test_families_too_shallow_to_tell_ranks_apart():
    A = torch.tensor([60.0, 1.0]).double().diag()
    found = verdict("C-rank-2", of_family([positive_linear_network(A, L) for L in (3, 4, 5, 6)]))
    assert found.status == "not applicable" and "a family by depth" in found.reason
