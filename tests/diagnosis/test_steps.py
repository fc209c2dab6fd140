"""Stability in `diagnose` and `Monitor`: the user's own learning rate, on any module."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from architectures import Opaque
from isthmus.diagnosis import Diagnosis, History, Monitor, diagnose
from isthmus.measures import step_stability
from tools import gaussian, random_net


@pytest.mark.parametrize("opaque", [False, True])
def test_diagnose_says_whether_steps_stay(opaque):
    net, X = random_net([3, 8, 8, 2], seed=1), gaussian(40, 3)
    Y = net(X).detach()
    module = Opaque(net.to_torch()) if opaque else net
    limit = step_stability(net, X, Y, learning_rate=0.1, ridge=1e-3).stable_step
    for factor, verdict in ((0.9, "stable"), (1.1, "unstable")):
        found = diagnose(module, X, Y, ridge=1e-3, learning_rate=factor * limit)
        assert found.stability.verdict == verdict
        assert found.stability.stable_step == pytest.approx(limit, rel=1e-3)
    assert found.stability.sentence in found._repr_html_().replace("&#x27;", "'")
    again = Diagnosis.from_dict(json.loads(found.to_json()))
    assert again.stability == found.stability
    assert diagnose(module, X, Y, learning_rate=limit, training_batch=4).stability.batch_size == 4
    assert diagnose(module, X, Y).stability is None


def test_rows_are_those_of_the_data():
    module = Opaque(random_net([3, 6, 2], seed=1).to_torch())
    X = gaussian(1000, 3)
    X[500] *= 100
    found = diagnose(module, X, learning_rate=1e-3)
    assert found.stability.samples == 1000 and found.stability.sample[0] == 500


def test_what_cannot_be_differentiated_is_noted():
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    found = diagnose(net, torch.randint(0, 10, (30, 3)), learning_rate=0.1)
    assert found.stability is None and any("stability not computed" in note for note in found.notes)


def test_a_monitor_follows_the_sharpness():
    net, X = random_net([3, 8, 2], seed=1), gaussian(50, 3)
    Y = net(X).detach()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.05
    rate = 0.5 * step_stability(net, X, learning_rate=0.1).stable_step
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    before = [p.detach().clone() for p in net.parameters()]
    with Monitor(net, X, every=5, Y=Y, optimizer=optimizer, learning_rate=rate, ridge=0.0) as monitor:
        for _ in range(10):
            optimizer.zero_grad()
            (net(X) - Y).square().sum(1).mean().backward()
            optimizer.step()
    assert any(not torch.equal(p, q) for p, q in zip(before, net.parameters()))
    history = monitor.history
    last = history.snapshots[-1].sharpness
    assert last == pytest.approx(step_stability(net, X, learning_rate=rate).sharpness, rel=0.02)
    assert "short enough" in history.sentence
    again = History.from_dict(json.loads(history.to_json()))
    assert again.snapshots[-1].sharpness == last and again.sentence == history.sentence
    assert "sharpness" in history.to_frame()


def test_a_monitor_without_a_rate_spends_nothing_on_it():
    net, X = random_net([3, 8, 2], seed=1), gaussian(50, 3)
    with Monitor(net, X) as monitor:
        pass
    assert monitor.history.snapshots[0].sharpness != monitor.history.snapshots[0].sharpness


def test_a_step_that_is_too_long_is_said():
    net, X = random_net([3, 8, 2], seed=1), gaussian(50, 3)
    with Monitor(net, X, learning_rate=100.0) as monitor:
        pass
    assert "too long" in monitor.history.sentence
