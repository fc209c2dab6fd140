"""Real architectures, whole: every layer is there, every number is what a direct computation gives, nothing changes."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from architectures import ARCHITECTURES, Opaque
from isthmus import IsthmusError, discover, problems
from isthmus._progress import silent
from isthmus.diagnosis import diagnose
from isthmus.diagnosis._weights import weighted_layers
from isthmus.experiments.rank2023._bottleneck import RankFigure1
from tools import assert_close, gaussian, random_net


def state(module: nn.Module):
    """Everything that must not change, as comparable data."""
    tensors = {name: t.detach().clone() for name, t in module.state_dict().items()}
    modes = [m.training for m in module.modules()]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in module.modules()]
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    flags = [p.requires_grad for p in module.parameters()]
    return tensors, modes, hooks, grads, flags, torch.get_rng_state()


def assert_unchanged(before, after) -> None:
    for name, tensor in before[0].items():
        assert torch.equal(tensor, after[0][name]), name
    assert before[1:3] == after[1:3] and before[4] == after[4]
    for one, two in zip(before[3], after[3], strict=True):
        assert (one is None) == (two is None) and (one is None or torch.equal(one, two))
    assert torch.equal(before[5], after[5])


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_layer_and_nothing_changed(name):
    module, X = ARCHITECTURES[name]()
    module.train()
    next(module.parameters()).grad = torch.ones_like(next(module.parameters()))
    before = state(module)
    found = diagnose(module, X, jacobian_samples=3)
    assert_unchanged(before, state(module))
    listed = {layer.name for layer in found.layers}
    assert {layer.name for layer in weighted_layers(module)} <= listed
    owned = {parameter for layer in weighted_layers(module) for parameter in layer.parameters}
    assert owned == {name for name, _ in module.named_parameters()}
    for layer in found.layers:
        child = module.get_submodule(layer.name)
        if isinstance(child, nn.Linear):
            assert_close(layer.weights[0].spectrum.values, torch.linalg.svdvals(child.weight.detach().double()))
        elif isinstance(child, nn.Conv2d):
            flat = child.weight.detach().double().flatten(1)
            assert_close(layer.weights[0].spectrum.values, torch.linalg.svdvals(flat))
            assert layer.weights[0].spectrum.method == "unfolded filter"
        elif isinstance(child, nn.Embedding):
            assert_close(layer.weights[0].spectrum.values, torch.linalg.svdvals(child.weight.detach().double()))
        elif isinstance(child, nn.MultiheadAttention):
            query = child.in_proj_weight.detach().double().chunk(3)[0]
            assert_close(layer.weights[0].spectrum.values, torch.linalg.svdvals(query))
            assert len(layer.weights) == 4
        elif isinstance(child, nn.LSTM):
            gate = child.weight_ih_l0.detach().double().chunk(4)[0]
            assert_close(layer.weights[0].spectrum.values, torch.linalg.svdvals(gate))
        elif layer.kind == "norm":
            assert layer.weights == ()


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_representations_are_what_a_hook_sees(name):
    module, X = ARCHITECTURES[name]()
    found = diagnose(module, X, batch_size=7, jacobian_samples=0)
    twin = copy.deepcopy(module).double().eval()
    raw = {}
    for layer in found.layers:
        if layer.representation is not None:

            def keep(_, __, output, key=layer.name):
                raw[key] = (output[0] if isinstance(output, tuple) else output).detach().clone()

            twin.get_submodule(layer.name).register_forward_hook(keep)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        twin(X.double() if X.is_floating_point() else X)
    torch.backends.mha.set_fastpath_enabled(fast)
    assert len(raw) >= 2
    for key, output in raw.items():
        layer = found[key]
        if output.ndim == 4:
            output = output.movedim(1, -1)
        rows = output.reshape(-1, output.shape[-1])
        direct = torch.linalg.svdvals(rows - rows.mean(0)) / len(rows) ** 0.5
        count = min(len(direct), len(layer.representation.values))
        assert_close(layer.representation.values[:count], direct[:count])
        assert layer.rows == len(rows)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_nothing_changes_when_the_forward_fails(name):
    module, X = ARCHITECTURES[name]()
    last = [m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1]
    handle = last.register_forward_hook(lambda *_: 1 / 0)
    before = state(module)
    with pytest.raises(IsthmusError, match="ZeroDivisionError"):
        diagnose(module, X)
    with pytest.raises(IsthmusError, match="ZeroDivisionError"):
        diagnose(module, X, precision="module")
    assert_unchanged(before, state(module))
    handle.remove()


def test_a_forward_that_insists_on_its_dtype():
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return nn.functional.linear(x.float(), self.layer.weight) + self.layer(x.float())

    found = diagnose(Stubborn(), gaussian(20, 4), jacobian_samples=0)
    assert any("does not run in float64" in note for note in found.notes)
    assert found["layer"].representation.method == "exact"


def test_own_precision():
    module, X = ARCHITECTURES["resnet"]()
    before = state(module)
    found = diagnose(module, X, precision="module", jacobian_samples=0)
    assert_unchanged(before, state(module))
    exact = diagnose(module, X, jacobian_samples=0)
    for one, two in zip(found.layers, exact.layers, strict=True):
        assert_close(one.representation.values.float(), two.representation.values.float())


def test_inputs_of_every_kind():
    net = random_net([4, 6, 3], dtype=torch.float32).to_torch()
    X = gaussian(30, 4, dtype=torch.float32)
    ways = [
        X,
        X.numpy(),
        X.tolist(),
        pd.DataFrame(X.numpy()),
        (X,),
        {"input": X},
        DataLoader(TensorDataset(X, torch.zeros(30)), batch_size=7),
        DataLoader(X, batch_size=8),
    ]
    values = [diagnose(net, way, jacobian_samples=2).to_frame() for way in ways]
    for frame in values[1:]:
        numbers = frame.select_dtypes("number").astype(float)
        assert np.allclose(numbers, values[0].select_dtypes("number").astype(float), rtol=1e-5, equal_nan=True)


def test_wrappers_come_off():
    net = random_net([4, 6, 3], dtype=torch.float32).to_torch()
    X = gaussian(30, 4)
    found = diagnose(nn.DataParallel(net), X)
    assert found.to_frame().equals(diagnose(net, X).to_frame())
    assert any("DataParallel" in note for note in found.notes)


def test_a_convolution_of_known_spectrum():
    """A circular filter that is a permutation of positions times a diagonal over channels: its values are known."""
    conv = nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular", bias=False).double()
    conv.weight.data.zero_()
    for channel, size in enumerate((2.0, 1.0, 0.5)):
        conv.weight.data[channel, channel, 0, 2] = size
    net = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(3, 1, 1).double())
    found = diagnose(net, gaussian(20, 3, 4, 4))
    part = found["0"].weights[0].spectrum
    assert part.method == "by frequency"
    assert_close(part.values, torch.tensor([2.0] * 16 + [1.0] * 16 + [0.5] * 16, dtype=torch.float64))
    # A filter that only lets the mean through has one frequency.
    conv.weight.data.fill_(1 / 9)
    flat = diagnose(net, gaussian(20, 3, 3, 3))["0"].weights[0].spectrum
    assert flat.rank == 1 and flat.values.shape == (27,)


def agree(experiment: RankFigure1, **options) -> None:
    """A trained network has the rank that ``discover`` finds from its data."""
    net, X, _ = experiment.solve(silent)
    problem = problems.teacher(
        d_in=experiment.d_in,
        rank=experiment.rank,
        d_out=experiment.d_out,
        relu_latents=True,
        samples=experiment.samples,
        seed=experiment.seed,
    )
    found = diagnose(net, X, problem.Y, ridge=experiment.ridge)
    assert (found.verdict, found.rank) == ("determined", experiment.rank), found.isthmus.reasons
    assert discover(X, problem.Y, **options).rank == experiment.rank
    assert found.whole["criticality"] < 1.0
    assert found.whole["unexplained"] < 0.2


def test_a_bent_surface_stays_open():
    """Trained at little depth, this network keeps a third direction, weak and curved: neither 2 nor 3 is sure."""
    net, X, _ = RankFigure1(d_in=10, d_out=10, rank=2, depth=6, width=20, samples=200, lam=1e-2).solve(silent)
    for module in (net, Opaque(net.to_torch())):
        found = diagnose(module, X)
        assert found.verdict == "undetermined"
        assert "unrolls into 2" in found.isthmus.reasons[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["quick", "rank-2", "f-rank-1"])
def test_networks_of_step_2_have_the_rank_that_discover_finds(name, seed):
    tasks = {
        "quick": RankFigure1.quick(),
        "rank-2": RankFigure1(d_in=20, d_out=20, rank=2, depth=8, width=50, samples=500, lam=1e-3),
        "f-rank-1": RankFigure1(),
    }
    agree(tasks[name].replace(network_seed=seed))
