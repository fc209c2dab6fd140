"""Leaky ResNets under diagnosis: the papers' W, every step a layer, an isthmus past the skip, and their mechanics."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import isthmus
from isthmus import Diagnosis, LeakyResNet
from isthmus._errors import FileFormatError
from isthmus.diagnosis._weights import effective, weighted_layers
from isthmus.training._objective import Value
from isthmus.training._result import Criteria, criteria, why_not
from leaky_nets import critical, leaky, narrow
from tools import assert_close, gaussian


@pytest.fixture(scope="module")
def found():
    """A diagnosis of a critical network, with targets and ridge."""
    net, X, Y, ridge = critical()
    return net, X, Y, ridge, isthmus.diagnose(net, X, Y, ridge=ridge)


def test_weights_are_those_of_the_papers():
    net = leaky(steps="irregular")
    layers = weighted_layers(net)
    assert [layer.name for layer in layers] == [f"path.{i}" for i in range(5)]
    assert {layer.kind for layer in layers} == {"leaky step"} and not any(layer.note for layer in layers)
    for layer, W, step in zip(layers, net.Ws, net.stages):
        (part,) = layer.parts
        assert part.label == "weight" and part.matrix_shape == (7, 7) and "√ρ" in part.how
        assert_close(part.matrix(), W[:, :7])
        assert_close(effective(step, "bias"), W[:, 7])
        assert not torch.equal(part.matrix(), step.weight.detach())
    # Learned maps belong to the network itself.
    assert [part.name for part in weighted_layers(leaky(embed="learned"))[0].parts] == ["W_in", "W_out"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_leak_is_no_way_around(dtype):
    """An isthmus of rank 3 by construction: no step is bypassed, though every step has a skip inside."""
    net, X = narrow(dtype=dtype, layers=12, effective_depth=9.0), gaussian(100, 6)
    told = isthmus.diagnose(net, X)
    assert (told.verdict, told.rank, told.isthmus.kind) == ("determined", 3, "full")
    steps = [layer for layer in told.layers if layer.kind == "leaky step"]
    assert [layer.name for layer in steps] == [f"path.{i}" for i in range(12)]
    assert [layer.order for layer in steps] == list(range(12))
    assert all(layer.bypass <= 1e-9 for layer in told.layers)
    assert told.isthmus.layers[0] in ("path.1", "path.2", "path.3", "path.4") and told.isthmus.layers[-1] == "(output)"
    # W = L̃VVᵀ: three singular values L̃.
    weight = told["path.8"].weights[0]
    assert weight.spectrum.rank == 3
    assert_close(weight.norm, 9 * math.sqrt(3), rtol=1e-6, reason="stored in single precision")
    assert told.mechanics is None


def test_a_skip_around_the_path_is_a_way_around():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.skip = narrow(layers=12, effective_depth=9.0), nn.Linear(6, 5, dtype=torch.float64)

        def forward(self, X):
            return self.inner(X) + self.skip(X)

    told = isthmus.diagnose(Around(), gaussian(100, 6))
    assert all(layer.passes is False for layer in told.layers if layer.kind == "leaky step")
    assert told.verdict != "determined" and told.mechanics is None


def test_mechanics_are_part_of_the_answer(found):
    net, X, Y, ridge, told = found
    assert told.mechanics.state == "conserved"
    assert told.mechanics.to_json() == isthmus.mechanics(net, X, Y, ridge=ridge).to_json()
    # Two routes to the same number: the gradient by autograd, the residual by momenta.
    assert_close(told.whole["criticality"], told.mechanics.residual, atol=1e-8, reason="both are rounding")
    assert told.mechanics.sentence in told._repr_html_()
    other = isthmus.diagnose(net, X, Y + 0.1, ridge=ridge)
    assert other.mechanics.state == "not yet critical"
    assert_close(other.whole["criticality"], other.mechanics.residual)
    for given in ({"ridge": ridge}, {"Y": Y}):
        assert isthmus.diagnose(net, X, **given, jacobian_samples=0).mechanics is None


def test_the_json_carries_them_and_old_ones_load(found):
    told = found[-1]
    content = json.loads(told.to_json())
    back = Diagnosis.from_dict(content)
    assert back.mechanics.to_json() == told.mechanics.to_json() and back.to_json() == told.to_json()
    content.pop("mechanics")
    old = Diagnosis.from_dict(content)
    assert old.mechanics is None and old.sentence == told.sentence
    with pytest.raises(FileFormatError, match="every field must be there"):
        Diagnosis.from_dict({**content, "mechanics": {"format": "isthmus.mechanics", "version": 1}})
    with pytest.raises(FileFormatError):
        Diagnosis.from_dict({**content, "mechanics": [1.0]})


@pytest.mark.parametrize("X", ["array", "frame", "tuple", "dict"])
def test_inputs_of_every_kind(X):
    import pandas as pd

    net, rows, Y = leaky(), gaussian(30, 4), gaussian(30, 3)
    given = {"array": rows.numpy(), "frame": pd.DataFrame(rows.numpy()), "tuple": (rows,), "dict": {"X": rows}}[X]
    told = isthmus.diagnose(net, given, Y, ridge=0.1, jacobian_samples=0)
    assert told.mechanics.to_json() == isthmus.mechanics(net, rows, Y, ridge=0.1).to_json()


def test_classes():
    net, X, labels = leaky(), gaussian(30, 4), torch.arange(30) % 3
    for Y in (labels, labels[:, None]):
        told = isthmus.diagnose(net, X, Y, ridge=0.1, loss="cross_entropy", jacobian_samples=0)
        assert_close(told.mechanics.residual, told.whole["criticality"])


def test_what_cannot_be_had_is_said():
    plain = isthmus.diagnose(leaky(effective_depth=0.0), gaussian(20, 4), gaussian(20, 3), ridge=0.1)
    assert plain.mechanics.state == "not applicable" and "effective_depth is 0" in plain.mechanics.reason
    broken = leaky()
    with torch.no_grad():
        broken.stages[2].weight[0, 0] = float("nan")
    told = isthmus.diagnose(broken, gaussian(20, 4), gaussian(20, 3), ridge=0.1)
    assert told.mechanics.state == "not applicable" and "NaN or infinite values at step 3" in told.mechanics.reason
    assert Diagnosis.from_dict(json.loads(told.to_json())).mechanics.sentence == told.mechanics.sentence


def test_the_module_is_left_alone(found):
    net, X, Y, ridge, _ = found
    before = {name: T.clone() for name, T in net.state_dict().items()}
    isthmus.diagnose(net, X, Y, ridge=ridge, jacobian_samples=0)
    assert all(torch.equal(T, before[name]) for name, T in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def test_monitor():
    """A loop with adaptive steps: the lengths change, and what is recorded is W."""
    net, X, Y = leaky(steps="adaptive"), gaussian(40, 4), gaussian(40, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with isthmus.Monitor(net, X, every=5, Y=Y) as monitor:
        for step in range(10):
            optimizer.zero_grad()
            (net(X) - Y).square().sum(1).mean().backward()
            optimizer.step()
            if step == 7:
                net.adapt(X)
    history = monitor.history
    assert history.steps == (0, 5, 10) and set(history.states) == {"measured"}
    last = history.snapshots[-1]
    assert [layer.name for layer in last.layers] == [f"path.{i}" for i in range(5)]
    for layer, W in zip(last.layers, net.Ws):
        assert layer.kind == "leaky step"
        assert_close(layer.weights[0].norm_squared, float(W.detach()[:, :7].square().sum()))
    assert_close(last.cost, float((net(X) - Y).square().sum(1).mean().detach()))


def test_criteria_of_training():
    """The gradient criterion is the residual of mechanics; there is no law of balance, and no word about one."""
    net, X, Y, ridge = leaky(), gaussian(15, 4), gaussian(15, 3), 0.05
    parameters = list(net.parameters())
    norm = sum(p.square().sum() for p in parameters)
    cost = (net(X) - Y).square().sum(1).mean()
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(cost + ridge * norm, parameters)])
    value = Value(ridge, float(cost.detach()), float(norm.detach()), gradient, gradient)
    told = criteria(net, value, ridge, [2.0, 1.5], 1)
    assert_close(told.gradient, isthmus.mechanics(net, X, Y, ridge=ridge).residual)
    assert math.isnan(told.balance) and not isinstance(net, isthmus.FullyConnected)
    for found in (told, Criteria(told.gradient, 0.0, math.nan, 1)):
        said = why_not(found, 1e-6, 10, judged=True)
        assert "nan" not in said and "balanced" not in said and "gradient" in said
    assert "balancedness residual 2.0e-01 (wanted 1e-04)" in why_not(Criteria(0.1, 0.0, 0.2, 1), 1e-6, 10, judged=True)


def test_a_module_that_holds_one():
    net = nn.Sequential(nn.Linear(6, 4, dtype=torch.float64), leaky())
    told = isthmus.diagnose(net, gaussian(30, 6))
    names = [layer.name for layer in told.layers]
    assert names[0] == "0" and "1.path.4" in names and isinstance(net[1], LeakyResNet)


def test_narrowest_at_the_last_step_and_at_the_output():
    """The output is a product, not a submodule: it can be as narrow as the last step, and has no name."""
    generator = torch.Generator().manual_seed(0)
    W1, W2 = (torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    W2[:, :3] = W2[:, 3:] @ torch.randn(2, 3, generator=generator, dtype=torch.float64)
    net = LeakyResNet.from_weights([4 * torch.eye(5).double() + W1, W2], [0.5, 0.5], effective_depth=2.0, bias=0.0)
    X = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    found = isthmus.diagnose(net, X)
    assert (found.verdict, found.rank) == ("determined", 2)
    assert found.isthmus.layers == ("path.1", "(output)")
