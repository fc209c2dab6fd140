"""Jacobians of any module by forward mode, beside reverse mode and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from architectures import ARCHITECTURES
from coverage_of_intervals import possible
from isthmus import measures
from isthmus.diagnosis._calls import count_samples, take
from isthmus.diagnosis._capture import in_float64, survey, untouched
from isthmus.diagnosis._jacobians import DIRECTIONS, layer_jacobians, ntk_trace
from isthmus.measures import agop, jacobian_spectra
from tools import assert_close, gaussian, random_net


def everywhere(module, X, names=None, **options):
    call = ((X,), {})
    with untouched(module):
        places = survey(module, call, names or [name for name, _ in module.named_modules()])
        return layer_jacobians(module, call, places, **options)


def test_fully_connected_networks_by_products_of_weights():
    net = random_net([5, 9, 9, 4], slope=0.1)
    X = gaussian(7, 5)
    found = everywhere(net.to_torch(), X)
    assert found.state == "computed"
    assert_close(found.layers[""].spectra, jacobian_spectra(net, X))
    assert_close(found.layers["0"].spectra, torch.linalg.svdvals(net.Ws[0]).expand(7, -1))
    assert_close(found.agop, agop(net, X))


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "transformer"])
def test_reverse_mode_agrees(name):
    module, X = ARCHITECTURES[name]()
    module, _ = in_float64(module)
    X = X[:2].double()
    found = everywhere(module, X, [""], seed=3)
    assert found.state == "computed"
    for row, x in enumerate(X):
        J = torch.autograd.functional.jacobian(lambda v: module(v[None]).flatten(), x).flatten(1)
        if found.layers[""].method == "exact":
            assert_close(found.layers[""].spectra[row], torch.linalg.svdvals(J))
        else:
            # The same random directions.
            source = torch.Generator().manual_seed(3)
            Omega = torch.randn(DIRECTIONS, x.numel(), dtype=torch.float64, generator=source) / DIRECTIONS**0.5
            assert_close(found.layers[""].spectra[row], torch.linalg.svdvals(J @ Omega.mT))


def test_a_sketch_shows_a_low_rank():
    layer = nn.Linear(1000, 40, bias=False).double()
    layer.weight.data = gaussian(40, 3, seed=1) @ gaussian(3, 1000, seed=2)
    found = everywhere(layer, gaussian(2, 1000), [""]).layers[""]
    assert found.method == "sketched"
    exact = torch.linalg.svdvals(layer.weight)
    assert bool(((found.median[:3] / exact[:3] - 1).abs() < 0.3).all())
    assert float(found.median[3]) < 1e-9 * float(found.median[0])


def covered(scale, draws, size=200, directions=16):
    """Share of the draws whose interval holds the exact ‖J‖²_F, and of those narrowed to a third that do."""
    layer = nn.Linear(size, 30, bias=False).double()
    layer.weight.data = gaussian(30, size, seed=1) * torch.tensor(scale, dtype=torch.float64) ** torch.arange(size)
    exact, inside, narrowed = float(layer.weight.detach().square().sum()), 0, 0
    for seed in range(draws):
        size_of = everywhere(layer, gaussian(2, size), [""], seed=seed, directions=directions).layers[""].size
        inside += size_of.low <= exact <= size_of.high
        narrowed += abs(exact - size_of.value) <= (size_of.high - size_of.low) / 6
    return inside / draws, narrowed / draws


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 0.9, 0.01])
def test_intervals_of_estimates_hold_the_exact_value(scale):
    """Flat, decaying and of rank one: the stated interval does, a third of it does not."""
    inside, narrowed = covered(scale, 200)
    assert possible(round(200 * inside), 200)
    assert not possible(round(200 * narrowed), 200)


def kernel_held(outputs: int, samples: int, draws: int) -> tuple[int, int]:
    """Draws whose interval holds the mean trace of the kernel over all samples, and those with a third of it."""
    net = random_net([6, 20, 20, outputs])
    truth = float(measures.ntk_trace(net, gaussian(20_000, 6, seed=80_000)).mean())
    module = net.to_torch()
    inside = narrowed = 0
    for seed in range(draws):
        one = ntk_trace(module, ((gaussian(samples, 6, seed=81_000 + seed),), {}), seed=seed)
        inside += one.low <= truth <= one.high
        narrowed += one.value - (one.value - one.low) / 3 <= truth <= one.value + (one.high - one.value) / 3
    return inside, narrowed


@pytest.mark.slow
@pytest.mark.parametrize(("outputs", "samples"), [(1, 8), (1, 16), (30, 16)])
def test_intervals_of_the_kernel_hold_its_trace_in_95_percent_of_200_draws(outputs, samples):
    inside, narrowed = kernel_held(outputs, samples, 200)
    assert possible(inside, 200)
    assert not possible(narrowed, 200)


def test_the_trace_of_the_kernel_is_exact_with_few_outputs():
    net, X = random_net([6, 20, 3]), gaussian(10, 6)
    module = net.to_torch()
    flags = [p.requires_grad for p in module.parameters()]
    found = ntk_trace(module, ((X,), {}))
    assert_close(found.value, measures.ntk_trace(net, X).mean())
    assert [p.requires_grad for p in module.parameters()] == flags
    assert possible(kernel_held(30, 16, 15)[0], 15)


def test_an_estimated_size_and_an_exact_one():
    assert covered(0.9, 12)[0] >= 0.75
    layer = nn.Linear(20, 30, bias=False).double()
    size = everywhere(layer, gaussian(2, 20), [""]).layers[""].size
    assert size.method == "exact"
    assert_close(torch.tensor([size.low, size.value, size.high]), layer.weight.detach().square().sum().expand(3))


def test_integer_inputs_start_at_the_embedding():
    module, X = ARCHITECTURES["transformer"]()
    module, _ = in_float64(module)
    X = X[:2]
    source = next(name for name, layer in module.named_modules() if isinstance(layer, nn.Embedding))
    assert everywhere(module, X).state.startswith("not computed: no floating-point input")
    found = everywhere(module, X, source=source)
    assert found.state == "computed" and source in found.source
    assert source not in found.layers
    # A finite difference along one random direction of the embedded tokens is in the range of the Jacobian.
    assert found.layers[""].spectra.shape[0] == 2


def test_samples_that_influence_each_other_are_refused():
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3).double()

        def forward(self, x):
            return self.layer(x - x.mean(0))

    assert "influence each other" in everywhere(Centred(), gaussian(4, 3)).state


def test_what_cannot_be_differentiated_is_a_state():
    class Stubborn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    class Module(nn.Module):
        def forward(self, x):
            return Stubborn.apply(x)

    found = everywhere(Module(), gaussian(4, 3))
    assert found.state.startswith("not computed: forward-mode differentiation failed")
    assert found.layers == {}


def test_an_output_that_does_not_depend_on_the_input_has_rank_zero():
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3).double()

        def forward(self, x):
            return self.layer(torch.ones_like(x))

    assert float(everywhere(Constant(), gaussian(4, 3)).layers[""].spectra.abs().max()) == 0.0


def test_places():
    class Folded(nn.Module):
        """Tokens folded into the axis of samples, and a recurrent layer that has them second."""

        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Linear(4, 6)
            self.recurrent = nn.LSTM(6, 5)
            self.position = nn.Embedding(7, 6)
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            n, t, _ = x.shape
            h = self.token(x.reshape(n * t, 4)).reshape(n, t, 6)
            h = h + self.position(torch.arange(t))
            out, _ = self.recurrent(h.transpose(0, 1))
            return self.head(self.head.weight.new_zeros(1) + out[-1])

    module = Folded()
    X = torch.zeros(5, 7, 4)
    places = survey(module, ((X,), {}), ["token", "recurrent", "position", "head", ""])
    assert [places[n].batch_axis for n in ("token", "recurrent", "position", "head")] == [0, 1, None, 0]
    assert places["token"].shape == (7, 6) and places["token"].per_sample == 7
    assert places["recurrent"].shape == (7, 5)
    assert places[""].same_as == "head"
    assert list(places) == ["token", "position", "recurrent", "head", ""]
    output = torch.arange(7 * 3 * 5).reshape(7, 3, 5)
    assert torch.equal(places["recurrent"].by_sample(output)[1], output[:, 1].flatten())
    folded = torch.arange(3 * 7 * 6).reshape(3 * 7, 6)
    assert torch.equal(places["token"].by_sample(folded)[1], folded[7:14].flatten())


def test_taking_samples():
    call = ((torch.arange(4),), {"mask": torch.arange(8).reshape(4, 2), "flag": True})
    args, kwargs = take(call, torch.tensor([2, 2]))
    assert args[0].tolist() == [2, 2]
    assert kwargs["mask"].tolist() == [[4, 5], [4, 5]] and kwargs["flag"] is True
    assert count_samples(call) == 4
