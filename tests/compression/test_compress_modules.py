"""compress on modules of other people: which stacks are taken, which are left alone, and that the whole is the same."""

from __future__ import annotations

import pytest
import torch
from planted import minimal, plant
from torch import nn
from torch.nn.utils import parametrizations

from isthmus import IsthmusError, compress
from isthmus.compression._certificate import EVERYWHERE, ON_DATA, UNCHANGED, WITHIN
from isthmus.compression._stacks import find_stacks
from tools import assert_close, gaussian, generator, random_net

KINDS = ("silent", "unheard", "copy", "scaled", "constant")


def redundant(dims, seed=0):
    """An nn.Sequential with planted neurons."""
    return plant(minimal(dims, seed=seed), KINDS, seed=seed).to_torch()


def outputs(module, X):
    with torch.no_grad():
        return module.double().eval()(X)


class Residual(nn.Module):
    """x + mlp(norm(x)), then a head."""

    def __init__(self, mlp):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = mlp
        self.head = nn.Linear(4, 2)

    def forward(self, X):
        return self.head(X + self.mlp(self.norm(X)))


def test_sequential_in_sequential_out():
    net = redundant([4, 6, 5, 3])
    found = compress(net)
    assert isinstance(found.network, nn.Sequential)
    assert [type(layer) for layer in found.network] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [layer.out_features for layer in found.network if isinstance(layer, nn.Linear)] == [6, 5, 3]
    assert_close(outputs(found.network, gaussian(30, 4)), outputs(net, gaussian(30, 4)))
    assert found.certificate.layers[0].layer == "0" and found.certificate.layers[1].layer == "2"


def test_mixed_slopes_and_missing_biases():
    net = nn.Sequential(
        nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 8, bias=False), nn.LeakyReLU(0.1), nn.Linear(8, 7), nn.Linear(7, 3)
    ).double()
    with torch.no_grad():
        net[0].weight[3] = 3 * net[0].weight[2]
        net[0].bias[3] = 3 * net[0].bias[2]
        net[2].weight[5] = 0.5 * net[2].weight[4]
    found = compress(net)
    assert [layer.after for layer in found.certificate.layers] == [8, 7, 0]  # the last was linear, and is joined
    assert_close(outputs(found.network, gaussian(30, 4)), outputs(net, gaussian(30, 4)))


def test_inside_a_residual_block():
    net = Residual(redundant([4, 7, 4])).double()
    X = gaussian(40, 4)
    found = compress(net, X)
    assert type(found.network) is Residual and found.certificate.domain in (EVERYWHERE, ON_DATA)
    assert [layer.layer for layer in found.certificate.layers] == ["mlp.0"] and found.certificate.layers[0].after <= 7
    assert {part for part, _ in found.certificate.untouched} == {"norm"}
    assert_close(outputs(found.network, X), outputs(net, X))
    assert net.mlp[0].out_features == 17
    blind = compress(net)
    assert blind.certificate.domain == EVERYWHERE and any("pass X" in note for note in blind.certificate.notes)
    assert_close(outputs(blind.network, X), outputs(net, X))


def test_sequences_and_images():
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), *redundant([27, 6, 2]), nn.Softmax(-1)).double()
    X = torch.randn(12, 1, 5, 5, dtype=torch.float64, generator=generator(0))
    found = compress(net, X)
    assert found.certificate.layers[0].after <= 6 and not found.certificate.untouched
    assert_close(outputs(found.network, X), outputs(net, X))
    tokens = nn.Sequential(nn.Embedding(10, 4), redundant([4, 6, 3])).double()
    T = torch.randint(10, (7, 5), generator=generator(1))
    small = compress(tokens, T)
    assert small.certificate.layers[0].after <= 6
    assert_close(outputs(small.network, T), outputs(tokens, T))


def test_networks_of_ours_inside():
    net = Residual(plant(minimal([4, 5, 4]), KINDS)).double()
    found = compress(net, gaussian(30, 4))
    assert type(found.network.mlp) is nn.Sequential and found.network.mlp[0].out_features == 5
    assert found.certificate.layers[0].layer == "mlp.0"


def test_what_cannot_be_taken_out_is_listed():
    shared = nn.Linear(4, 4)
    tied = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))
    hooked = redundant([4, 5, 4])
    hooked[0].register_forward_hook(lambda *_: None)
    normed = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 4))

    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.twice = nn.Sequential(shared, nn.ReLU(), shared)
            self.tied = tied
            self.other = nn.Linear(4, 5)
            self.other.weight = tied[0].weight
            self.hooked = hooked
            self.normed = normed
            self.tanh = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

        def forward(self, X):
            return self.tanh(self.normed(self.hooked(self.tied(self.twice(X)))))

    net = Several().double()
    stacks, untouched = find_stacks(net)
    reasons = dict(untouched)
    assert "several places" in reasons["twice.0"] and "shared" in reasons["tied.0"] and "hooks" in reasons["hooked.0"]
    assert "normed.0" in reasons or any(part.startswith("normed.0") for part in reasons)
    # Single layers around a tanh can only be factored.
    assert {stack.name for stack in stacks} >= {"tanh.0", "tanh.2"}
    found = compress(net, gaussian(20, 4))
    assert not any(layer.removed for layer in found.certificate.layers)
    assert found.certificate.parameters_after == found.certificate.parameters_before


def test_a_module_that_reaches_into_its_stack_is_taken_back():
    class Reaching(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = redundant([4, 5, 3])

        def forward(self, X):
            return self.stack(X), self.stack[0](X)

    net = Reaching().double()
    found = compress(net, gaussian(20, 4))
    assert found.certificate.domain == UNCHANGED
    assert found.network.stack[0].out_features == net.stack[0].out_features


def test_a_part_that_is_not_reached():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = redundant([4, 5, 3])
            self.unused = redundant([4, 5, 3], seed=1)

        def forward(self, X):
            return self.used(X)

    found = compress(Unused().double(), gaussian(9, 4))
    assert found.network.used[0].out_features == 5 and found.network.unused[0].out_features == 15


def test_tolerance_over_several_stacks():
    net = nn.Sequential(redundant([6, 12, 5]), nn.Tanh(), nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 40)).double()
    with torch.no_grad():
        net[4].weight.copy_(gaussian(40, 2) @ gaussian(2, 40, seed=1) / 40)
    X = gaussian(150, 6)
    found = compress(net, X, tolerance=0.05)
    assert found.certificate.domain == WITHIN and found.certificate.deviation <= 0.05
    assert [layer.out_features for layer in found.network[4]] == [2, 40]
    before, after = outputs(net, X), outputs(found.network, X)
    assert_close(found.certificate.deviation, float((before - after).abs().max() / before.abs().max()))


def test_wrong_inputs_are_named():
    with pytest.raises(IsthmusError, match="must run on `X`"):
        compress(Residual(redundant([4, 5, 4])).double(), gaussian(3, 5))


def settled():
    """Of the second layer two neurons never fire and four always do: two linear neurons are left of them."""
    net = random_net([3, 6, 7, 2], seed=5)
    with torch.no_grad():
        net.weights[1][:2] = -net.weights[1][:2].abs()
        net.biases[1][:2] = -0.1
        net.weights[1][2:6] = net.weights[1][2:6].abs()
        net.biases[1][2:6] = 0.1
    return net.to_torch()


@pytest.mark.parametrize("trained", [True, False])
def test_linear_neurons_of_a_layer_are_ones_of_a_frozen_prelu(trained):
    net = settled().requires_grad_(trained)
    found = compress(net)
    kinds = [nn.Linear, nn.ReLU, nn.Linear, nn.PReLU, nn.Linear]
    assert [type(layer) for layer in found.network] == kinds
    prelu = found.network[3]
    assert prelu.weight.tolist() == [1.0, 1.0, 0.0] and not prelu.weight.requires_grad
    assert all(p.requires_grad == trained for layer in found.network[::2] for p in layer.parameters())
    X = gaussian(40, 3)
    assert_close(outputs(found.network, X), outputs(net, X))
    # The slopes tell which neurons are linear, and are no parameters.
    layers = [layer for layer in found.network if isinstance(layer, nn.Linear)]
    assert found.certificate.parameters_after == sum(p.numel() for layer in layers for p in layer.parameters())
    assert found.certificate.layers[1].linear == 2 and found.certificate.layers[1].after == 3
    again = compress(found.network)
    assert again.certificate.domain == UNCHANGED and again.certificate.untouched == ()
    assert [layer.linear for layer in again.certificate.layers] == [0, 2]
    assert again.certificate.parameters_before == found.certificate.parameters_after
    assert_close(again.certificate.norm_before, found.certificate.norm_after)


def test_linear_neurons_inside_a_module_take_inputs_of_any_shape():
    """PReLU has its slopes on the second axis; in a module of others nothing says that there are two."""
    net = nn.Sequential(nn.Tanh(), settled(), nn.Tanh())
    for X in (None, gaussian(9, 3), gaussian(9, 4, 3)):
        found = compress(net, X)
        assert found.certificate.layers[1].after <= 5 and found.certificate.domain in (EVERYWHERE, ON_DATA)
        for Y in (gaussian(9, 3), gaussian(9, 4, 3)):
            if X is None or Y.shape == X.shape:
                assert_close(outputs(found.network, Y), outputs(net, Y))
        assert not any(type(part).__module__.startswith("isthmus") for part in found.network.modules())


@pytest.mark.parametrize(
    "slopes", [[1.0, 0.5, 0.1], [0.1, 1.0, 1.0], [0.1, 0.1, 0.1], [1.0, 1.0, 1.0], [1.0, 3.0, 3.0], [0.25], [1.0, 0.1]]
)
def test_other_prelus_are_left_alone(slopes):
    """One slope beside the ones, which come first; what is trained is not read either."""
    net = nn.Sequential(nn.Linear(2, 3), nn.PReLU(len(slopes)), nn.Linear(3, 2)).double()
    net[1].weight.data = torch.tensor(slopes, dtype=torch.float64)
    assert [stack.name for stack in find_stacks(net.requires_grad_(False))[0]] == ["0", "2"]
    assert dict(find_stacks(net)[1])["1"] == "PReLU is not a linear layer of a plain stack"
    net[1] = nn.PReLU(3, dtype=torch.float64)
    net[1].weight.data = torch.tensor([1.0, 0.1, 0.1], dtype=torch.float64)
    assert [stack.name for stack in find_stacks(net)[0]] == ["0", "2"]
    net[1].requires_grad_(False)
    (stack,), untouched = find_stacks(net)
    assert untouched == [] and stack.layers.linear == (1,) and stack.layers.slopes == (0.1,)
    assert_close(stack.layers(gaussian(9, 2)), net(gaussian(9, 2)))
