"""Negative outputs layer by layer, in `diagnose` and `Monitor`."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from architectures import Opaque
from isthmus.diagnosis import Diagnosis, History, Monitor, diagnose
from tools import gaussian, random_net, three_part_net


@pytest.mark.parametrize("opaque", [False, True])
def test_signs_of_every_layer(opaque):
    net, X = random_net([4, 9, 9, 3], seed=2), gaussian(600, 4)
    module = Opaque(net.to_torch()) if opaque else net
    found = diagnose(module, X, batch_size=100)
    trace = net.trace(X)
    shares = [float(Z.clamp_max(0).square().sum() / Z.square().sum()) for Z in trace.preactivations]
    linear = [layer for layer in found.layers if layer.kind == "linear"]
    assert [layer.negative_share for layer in linear] == pytest.approx(shares)
    assert [layer.negative_count for layer in linear] == pytest.approx(
        [float((Z < 0).double().mean()) for Z in trace.preactivations]
    )
    again = Diagnosis.from_dict(json.loads(found.to_json()))
    assert [layer.negative_share for layer in again.layers] == [layer.negative_share for layer in found.layers]
    assert {"negative_share", "negative_count"} <= set(found.to_frame())
    content = found.to_dict()
    for layer in content["layers"]:
        del layer["negative_share"], layer["negative_count"]
    assert math.isnan(Diagnosis.from_dict(content).layers[0].negative_share)


def test_the_isthmus_of_a_chain_is_non_negative_and_costs_its_rank():
    net = three_part_net(3)
    found = diagnose(net, gaussian(200, 12))
    assert found.rank == 3
    layers = found.whole["nonnegativity"]
    inside = layers[3:7]
    assert max(layer["change"] for layer in inside) < 0.05 < layers[0]["change"]
    assert max(abs(layer["excess"]) for layer in inside) < 1e-9
    assert layers[-1]["R1"] == pytest.approx(found.whole["norm_squared"] - 3 * 9)
    assert layers[-1]["R1_below"] <= layers[-1]["R1"]


def test_a_monitor_has_them_at_every_step():
    module, X = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), gaussian(64, 4).float()
    with Monitor(module, X) as monitor:
        pass
    (snapshot,) = monitor.history.snapshots
    Z = module[0](X).detach()
    assert snapshot["0"].negative_share == pytest.approx(float(Z.clamp_max(0).square().sum() / Z.square().sum()), 1e-5)
    again = History.from_dict(json.loads(monitor.history.to_json()))
    assert again.snapshots[0]["0"].negative_share == snapshot["0"].negative_share
    assert "negative_share" in monitor.history.to_frame()


def test_what_is_not_finite_has_no_sign():
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight[0, 0] = math.nan
    with Monitor(module, gaussian(5, 2).float()) as monitor:
        pass
    assert math.isnan(monitor.history.snapshots[0][""].negative_share)
