"""Another network asked beside: its evidence, and that it changes nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import IsthmusError, LeakyResNet, discover, load, save
from isthmus.problems import linear
from tools import generator

QUICK = {"depth": 4, "width": 16, "steps": 8, "replicas": 0}


@pytest.fixture(scope="module")
def asked():
    task = linear(d_in=5, d_out=5, rank=2, samples=60)
    net = LeakyResNet(5, 5, 8, 6, 3.0, generator=generator(0))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = discover(task.X, task.Y, net=net, **QUICK)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    return task, found


def test_its_evidence_stands_beside(asked, tmp_path):
    task, found = asked
    plain = discover(task.X, task.Y, **QUICK)
    assert (found.rank, found.verdict) == (plain.rank, plain.verdict)
    assert np.array_equal(found.coordinates, plain.coordinates)
    extra = [e for e in found.evidence if e.name.startswith("given LeakyResNet")]
    assert [e.name for e in plain.evidence] == [e.name for e in found.evidence][: -len(extra)]
    assert extra[0].rank is None or extra[0].rank >= 1
    assert math.isfinite(extra[1].value) and "critical" in extra[1].meaning
    assert any("given LeakyResNet: training" in note for note in found.notes)
    save(found, tmp_path / "found.safetensors")
    again = load(tmp_path / "found.safetensors")
    assert [e.name for e in again.evidence] == [e.name for e in found.evidence]
    assert again.settings["network"] == "LeakyResNet"


def test_what_is_no_network_of_these_data():
    task = linear(d_in=5, d_out=5, rank=2, samples=60)
    for wrong, said in (
        ("leaky", "torch.nn.Module"),
        (nn.ReLU(), "parameters"),
        (nn.Linear(4, 5), r"\(N, 5\)"),
        (nn.Linear(5, 4), r"shape \(2, 4\)"),
    ):
        with pytest.raises(IsthmusError, match=said):
            discover(task.X, task.Y, net=wrong, **QUICK)
