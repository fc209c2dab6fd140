"""compress on networks as people have them: planted channels and ranks are found, and nothing else changes."""

from __future__ import annotations

import copy
import operator
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from plain_modules import Bert, Block, ResNet18, UNet, ViT, low_rank_, plant_channels, randomised
from torch import nn
from torch.nn.utils import parametrizations

import isthmus
from isthmus import compress
from isthmus.compression._certificate import EVERYWHERE, UNCHANGED, WITHIN
from tools import assert_close, gaussian, generator

HERE = Path(__file__).resolve().parent


def outputs(module, *args, **kwargs):
    with torch.no_grad():
        return copy.deepcopy(module).double().eval()(*args, **kwargs)


def images(*shape, seed=0):
    return gaussian(*shape, seed=seed)


def state(module):
    """Everything of a module that should be left as it was."""
    modes = [part.training for part in module.modules()]
    return {name: T.clone() for name, T in module.state_dict().items()}, modes, repr(module)


def same_state(one, other):
    return one[1:] == other[1:] and all(torch.equal(one[0][name], other[0][name]) for name in one[0])


def check(net, found, *fresh):
    """Exact on fresh inputs, of plain PyTorch alone, exportable."""
    says = found.certificate
    assert says.domain == EVERYWHERE and says.deviation <= 1e-12
    assert not any(type(part).__module__.startswith("isthmus") for part in found.network.modules())
    before, after = outputs(net, *fresh), outputs(found.network, *fresh)
    assert float((before - after).abs().max()) <= 1e-12 * float(before.abs().max())
    made = copy.deepcopy(found.network).double().eval()
    exported = torch.export.export(made, fresh).module()
    with torch.no_grad():
        assert_close(exported(*fresh), after)
    assert says.parameters_after == sum(p.numel() for p in found.network.parameters())
    assert says.parameters_after < says.parameters_before
    assert says.operations_after < says.operations_before


DEAD, COPIES = ((1, -0.3), (3, 0.4), (4, 0.0)), ((0, 5), (2, 6), (2, 7))


def planted_resnet(width=8, *, trunk=False):
    """Six channels of each inner convolution can go, and of each stage's trunk two."""
    net = randomised(ResNet18(width)).double()
    for block in net.blocks():
        plant_channels(block.conv1, block.bn1, dead=DEAD, copies=COPIES)
    if trunk:
        plant_channels(net.conv1, net.bn1, dead=((1, -1.0),), copies=((0, 2),))
        for block in net.blocks():
            plant_channels(block.conv2, block.bn2, dead=((1, -1.0),), copies=((0, 2),))
            if block.downsample is not None:
                plant_channels(*block.downsample, dead=((1, -1.0),), copies=((0, 2),))
    return net


@pytest.mark.parametrize("trunk", [False, True])
def test_all_planted_channels_of_a_resnet_go(trunk):
    net = planted_resnet(trunk=trunk).train()
    before = state(net)
    found = compress(net, images(2, 3, 32, 32))
    assert same_state(state(net), before) and all(part.training for part in found.network.modules())
    for block, small in zip(net.blocks(), found.network.blocks()):
        # Of eight channels one may be left where nothing is: there are two others.
        assert small.conv1.out_channels == block.conv1.out_channels - 6 == small.bn1.num_features
        assert small.bn2.num_features == block.bn2.num_features - 2 * trunk
    assert found.network.conv1.out_channels == 8 - 2 * trunk
    check(net, found, images(3, 3, 40, 40, seed=1))
    reasons = {why for layer in found.certificate.layers for why in layer.removed}
    assert reasons == {"dead", "constant", "on one ray"}
    again = compress(found.network, images(2, 3, 32, 32)).certificate
    assert again.domain == UNCHANGED


@pytest.mark.slow
def test_a_resnet_18_of_full_width():
    net = planted_resnet(64, trunk=True)
    found = compress(net, images(2, 3, 64, 64))
    widths = [(block.conv1.out_channels, block.bn2.num_features) for block in net.blocks()]
    left = [(block.conv1.out_channels, block.bn2.num_features) for block in found.network.blocks()]
    assert left == [(a - 6, b - 2) for a, b in widths]
    check(net, found, images(2, 3, 96, 96, seed=1))


def test_float32_and_half():
    X = images(2, 3, 32, 32)
    for dtype in (torch.float32, torch.bfloat16):
        net = planted_resnet().to(dtype)
        found = compress(net, X)
        assert {p.dtype for p in found.network.parameters()} == {dtype}
        assert found.network.layer1[0].conv1.out_channels == 2
        assert found.certificate.deviation <= 1e3 * torch.finfo(dtype).eps
    assert found.certificate.bytes_after == 2 * found.certificate.parameters_after


def test_the_result_runs_where_this_library_is_not(tmp_path):
    net = planted_resnet().float()
    found = compress(net, images(2, 3, 32, 32)).network.eval()
    vit = randomised(ViT())
    for layer in vit.encoder.layers:
        low_rank_(layer.self_attn.in_proj_weight[:24], 2)
        low_rank_(layer.linear1.weight, 3)
    small = compress(vit, images(20, 3, 16, 16), tolerance=1e-3).network.eval()
    chain = isthmus.FullyConnected([3, 9, 2], slope=0.1)
    with torch.no_grad():
        chain.weights[0][1] = chain.weights[0][0]
    plain = compress(chain).network
    cases = {"resnet": (found, torch.randn(1, 3, 32, 32)), "vit": (small, torch.randn(2, 3, 16, 16))}
    cases["chain"] = (plain, torch.randn(4, 3))
    with torch.no_grad():
        for name, (module, X) in cases.items():
            torch.save(module, tmp_path / f"{name}.pt")
            torch.save((module.state_dict(), X, module(X)), tmp_path / f"{name}.expected.pt")
            torch.export.save(torch.export.export(module, (X,)), tmp_path / f"{name}.pt2")
    code = f"""
import sys, warnings
warnings.simplefilter("ignore")
class Never:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "isthmus": raise ImportError("blocked")
sys.meta_path.insert(0, Never())
sys.path.insert(0, {str(HERE)!r})
import torch
for name in {sorted(cases)!r}:
    state, X, wanted = torch.load(name + ".expected.pt", weights_only=True)
    module = torch.load(name + ".pt", weights_only=False)
    module.load_state_dict(state)
    with torch.no_grad():
        assert torch.allclose(module(X), wanted, atol=1e-6), name
        assert torch.allclose(torch.export.load(name + ".pt2").module()(X), wanted, atol=1e-5), name
assert not any(name.startswith("isthmus") for name in sys.modules)
print("ran")
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "ran", ran.stderr[-2000:]


def test_a_unet_and_other_convolutions():
    net = randomised(UNet()).double()
    plant_channels(*net.one[:2], dead=((1, 0.4), (2, -1.0)), copies=((0, 3),))
    plant_channels(*net.two[:2], dead=((1, 0.4),), copies=((0, 3), (0, 4)))
    found = compress(net, images(2, 1, 8, 8))
    # Beside zero padding a constant is read from a channel of ones, which the next convolution appends.
    padded = found.network.two[0]
    assert [found.network.one[0].out_channels, padded[1].in_channels, padded[1].out_channels] == [5, 6, 13]
    check(net, found, images(2, 1, 12, 12, seed=1))


def test_grouped_dilated_strided_depthwise():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(2, 8, 3, stride=2, padding=2, dilation=2)
            self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.b = nn.Conv2d(8, 6, 1)
            self.grouped = nn.Conv2d(6, 6, 3, groups=3)
            self.c = nn.Conv2d(6, 3, 2, padding_mode="circular", padding=1)

        def forward(self, x):
            x = F.relu6(self.norm(self.deep(F.relu(self.a(x)))))
            return self.c(self.grouped(F.silu(self.b(x))))

    net = randomised(Mixed()).double()
    with torch.no_grad():
        net.a.weight[3], net.a.bias[3] = 0, -1.0
        net.a.weight[5], net.a.bias[5] = 2 * net.a.weight[4], 2 * net.a.bias[4]
        net.deep.weight[5] = net.deep.weight[4] / 2
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(net.norm, name)[5] = getattr(net.norm, name)[4]
        net.norm.bias[3] = net.norm.running_mean[3] = 0
    found = compress(net, images(2, 2, 16, 16))
    assert found.network.a.out_channels == found.network.deep.groups == 6
    assert found.network.grouped.groups == 3 and found.network.b.out_channels == 6
    check(net, found, images(2, 2, 20, 20, seed=1))


def test_sequences_and_rows_with_norms():
    net = nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=1), nn.BatchNorm1d(6), nn.GELU(), nn.MaxPool1d(2), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(30, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU(inplace=True), nn.Linear(7, 3),
    )  # fmt: skip
    net = randomised(net).double()
    plant_channels(net[0], net[1], dead=((0, 0.7),), copies=((1, 2),))
    plant_channels(net[6], net[7], dead=((0, 0.7), (3, -0.1)), copies=((1, 2),))
    found = compress(net, images(4, 2, 10))
    assert found.network[0].out_channels == 4 and found.network[6].in_features == 20
    assert found.network[6].out_features == 4 and type(found.network[9]) is nn.Linear
    check(net, found, images(5, 2, 10, seed=1))


def test_bounds_settle_a_relu():
    """Sigmoids are between 0 and 1: a row that cannot get above zero is dead, one that hardly can is not."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sigmoid(), nn.Conv2d(2, 3, 1), nn.ReLU(), nn.Conv2d(3, 1, 1)).double()
    with torch.no_grad():
        net[2].weight[:] = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, 1.0]]).reshape(3, 2, 1, 1)
        net[2].bias[:] = torch.tensor([-2.1, -1.9, 0.0])
    found = compress(net, images(3, 1, 4, 4))
    assert found.network[2].out_channels == 2 and found.certificate.layers[0].removed == {"dead": 1}
    assert_close(found.network[2].bias, net[2].bias[1:])


def test_what_is_not_known_is_left_alone():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.twice = nn.Linear(6, 6)
            self.tied, self.free = nn.Linear(6, 6), nn.Linear(6, 6)
            self.free.weight = self.tied.weight
            self.named = nn.Conv1d(1, 6, 1)
            self.normed = parametrizations.weight_norm(nn.Linear(6, 6))
            self.read = nn.Linear(6, 6)
            self.group = nn.GroupNorm(2, 6)
            self.rnn = nn.GRU(6, 6, batch_first=True)

        def forward(self, x):
            x = F.relu(self.twice(F.relu(self.twice(x))))
            x = F.relu(self.free(F.relu(self.tied(x))))
            x = F.linear(F.relu(self.normed(x)), self.read.weight) + self.read(x)
            x = self.named(x[:, None]).view(-1, 6 * 6)[:, ::6].softmax(-1)
            return self.rnn(self.group(x)[:, None])[0], x

    net = Odd().double()
    with torch.no_grad():
        for part in (net.twice, net.tied, net.free, net.named, net.read):
            part.weight[2], part.bias[2] = 0.0, -1.0
    found = compress(net, images(9, 6))
    says = found.certificate
    assert says.domain == UNCHANGED and says.parameters_after == says.parameters_before
    reasons = dict(says.untouched)
    assert "shared" in reasons["tied"] and "parametrized" in reasons["normed"]
    assert "GroupNorm" in reasons["group"] and "GRU" in reasons["rnn"]
    for a, b in zip(outputs(net, images(5, 6, seed=1)), outputs(found.network, images(5, 6, seed=1))):
        assert torch.equal(a, b)


def test_arguments_that_are_left_out():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8 * 36, 6)

        def forward(self, x, mask=None, *, scale=None):
            x = F.relu(self.a(x))
            x = x if mask is None else x * mask
            x = x if scale is None else scale * x
            return self.b(x.view(x.size(0), -1))

    net = Optional().double()
    with torch.no_grad():
        net.a.weight[1], net.a.weight[3] = 0, net.a.weight[2]
        net.a.bias[3] = net.a.bias[2]
    found = compress(net, images(2, 2, 6, 6))
    assert found.network.a.out_channels == 6 and found.network.b.in_features == 6 * 36
    check(net, found, images(3, 2, 6, 6, seed=1))
    mask = gaussian(2, 1, 6, 6, seed=2)
    masked = compress(net, (images(2, 2, 6, 6), mask))
    assert_close(outputs(masked.network, images(2, 2, 6, 6), mask), outputs(net, images(2, 2, 6, 6), mask))


def test_written_in_place_and_used_again():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            y = self.a(x)
            z = self.b(F.relu(y, inplace=True))
            return z * y.sum()

    net = InPlace().double()
    with torch.no_grad():
        net.a.weight[1], net.a.bias[1] = 0, -1.0
    found = compress(net, images(2, 1, 3, 3))
    assert_close(outputs(found.network, images(2, 1, 4, 4, seed=1)), outputs(net, images(2, 1, 4, 4, seed=1)))


@pytest.mark.parametrize("how", [operator.iadd, operator.isub, operator.imul, operator.ipow])
def test_an_augmented_assignment_writes_into_views_too(how):
    class Augmented(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x):
            y = self.a(x)
            view = y.contiguous()
            y = how(y, 2.0)
            return self.b(view)

    net = Augmented().double()
    with torch.no_grad():
        net.a.weight[1], net.a.bias[1] = 0, 1.0
    X = images(2, 3, 4, 4)
    for found in (compress(net), compress(net, X)):
        assert_close(found.network(X), net(X))


def test_squeeze_and_excite_and_dense_skips():
    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.down, self.up = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
            self.b = nn.Conv2d(11, 4, 3)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            y = F.relu(self.norm(self.a(x)))
            y = y * torch.sigmoid(self.up(F.relu(self.down(y.mean((2, 3), keepdim=True)))))
            y = self.b(torch.cat([x, y], 1))
            return self.head(F.avg_pool2d(y, 2).mean(dim=(-2, -1)))

    net = randomised(Dense()).double()
    plant_channels(net.a, net.norm, dead=((1, -1.0),), copies=((0, 2), (0, 3)))
    with torch.no_grad():
        for place in (2, 3):
            net.up.weight[place], net.up.bias[place] = net.up.weight[0], net.up.bias[0]
    found = compress(net, images(2, 3, 8, 8))
    assert found.network.a.out_channels == found.network.up.out_channels == 5 and found.network.b.in_channels == 8
    check(net, found, images(2, 3, 9, 9, seed=1))


@pytest.mark.parametrize("options", [{}, {"batch_first": False}, {"norm_first": True, "activation": "gelu"}])
def test_low_rank_of_a_transformer(options):
    net = randomised(ViT(**options)).float()
    planted = ["linear1", "linear2", "self_attn"]
    with torch.no_grad():
        for k, layer in enumerate(net.encoder.layers):
            low_rank_(layer.linear1.weight, 3, k)
            low_rank_(layer.linear2.weight, 4, k)
            low_rank_(layer.self_attn.in_proj_weight[24:48], 2, k)
            low_rank_(layer.self_attn.out_proj.weight, 5, k)
    before = state(net)
    X = images(40, 3, 16, 16)
    found = compress(net, X, tolerance=1e-4)
    says = found.certificate
    assert same_state(state(net), before)
    assert says.domain == WITHIN and says.deviation <= 1e-4 and says.bytes_after < says.bytes_before
    told = {layer.layer.partition(":")[0]: layer for layer in says.layers}
    for k in range(2):
        assert [told[f"encoder.layers.{k}.{name}"].after for name in planted] == [3, 4, 2 + 5]
    # Evaluation with and without gradients goes different ways in PyTorch.
    small = copy.deepcopy(found.network).double().eval()
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            assert_close(small(X), outputs(net, X), atol=1e-4, reason="the tolerance")
    exported = torch.export.export(small, (X,)).module()
    assert_close(exported(X), small(X), reason=None)
    small.train()(X).sum().backward()


def test_planted_neurons_of_a_transformer():
    net = randomised(ViT()).double()
    with torch.no_grad():
        for layer in net.encoder.layers:
            layer.linear1.weight[3], layer.linear1.bias[3] = 0, 0.5
            layer.linear1.weight[5], layer.linear1.bias[5] = layer.linear1.weight[4], layer.linear1.bias[4]
    found = compress(net, images(4, 3, 16, 16))
    assert [layer.linear1.out_features for layer in found.network.encoder.layers] == [46, 46]
    check(net, found, images(3, 3, 16, 16, seed=1))


def test_a_sentence_encoder_by_keywords():
    net = randomised(Bert()).float()
    for k in range(2):
        low_rank_(net.attention[k].query.weight, 3, k)
        low_rank_(net.attention[k].out.weight, 2, k)
        low_rank_(net.up[k].weight, 4, k)
    draw = generator(0)
    X = {"input_ids": torch.randint(50, (12, 9), generator=draw), "attention_mask": torch.ones(12, 9, dtype=torch.bool)}
    X["attention_mask"][3:, 6:] = False
    found = compress(net, X, tolerance=1e-4, check={name: T[:5] for name, T in X.items()})
    says = found.certificate
    assert says.domain == WITHIN and says.elsewhere <= 1e-4
    names = {layer.layer.partition(":")[0] for layer in says.layers}
    assert names >= {f"{part}.{k}{inner}" for k in range(2) for part, inner in (("attention", ".query"), ("up", ""))}
    assert "shared" in dict(says.untouched)["decoder"] and found.network.decoder.weight is found.network.words.weight
    before, after = outputs(net, **X), outputs(found.network, **X)
    assert_close(after["logits"], before["logits"], atol=1e-3, reason="the tolerance, of larger outputs")


def test_low_rank_of_convolutions():
    net = randomised(UNet(16)).double()
    low_rank_(net.two[0].weight, 3)
    with torch.no_grad():
        rows = torch.randn(16, 3, dtype=torch.float64, generator=generator(1)) @ torch.randn(
            3, 32 * 4, dtype=torch.float64, generator=generator(2)
        )
        net.up.weight.copy_(rows.reshape(16, 32, 2, 2).transpose(0, 1) / 20)
    X = images(6, 1, 16, 16)
    found = compress(net, X, tolerance=1e-6)
    two, up = found.network.two[0], found.network.up
    assert [two[0].out_channels, two[1].kernel_size, up[0].out_channels] == [3, (1, 1), 3]
    assert type(up[0]) is nn.ConvTranspose2d and type(up[1]) is nn.Conv2d
    before, after = outputs(net, X), outputs(found.network, X)
    assert float((before - after).abs().max()) <= 1e-6 * float(before.abs().max())
    assert found.certificate.operations_after < found.certificate.operations_before


def test_channels_and_rank_of_the_same_layer():
    net = planted_resnet(16)
    low_rank_(net.layer2[0].conv2.weight, 2)
    found = compress(net, images(4, 3, 32, 32), tolerance=1e-6)
    padded = found.network.layer2[0].conv2
    assert found.certificate.domain == WITHIN and found.network.layer2[0].conv1.out_channels == 26
    assert type(padded[0]) is nn.ConstantPad3d and [layer.out_channels for layer in padded[1]] == [2, 32]
    before, after = outputs(net, images(4, 3, 32, 32)), outputs(found.network, images(4, 3, 32, 32))
    assert float((before - after).abs().max()) <= 1e-6 * float(before.abs().max())


def test_a_layer_whose_weight_is_read_is_left_out():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)

        def forward(self, x):
            return self.b(torch.tanh(self.a(x.to(self.a.weight.dtype))))

    net = Reads().double()
    low_rank_(net.a.weight, 2)
    low_rank_(net.b.weight, 2)
    found = compress(net, images(30, 20), tolerance=1e-6)
    assert type(found.network.a) is nn.Linear and type(found.network.b) is nn.Sequential
    assert any("a was left alone" in note for note in found.certificate.notes)


def test_nothing_that_would_not_get_smaller():
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    found = compress(net, images(50, 6), tolerance=1e-9)
    assert found.certificate.domain == UNCHANGED
    assert all(torch.equal(p, q) for p, q in zip(found.network.parameters(), net.parameters(), strict=True))


def test_a_block_whose_last_channel_goes_keeps_one():
    net = Block(4, 4).double()
    with torch.no_grad():
        net.conv1.weight.zero_()
    found = compress(net, images(2, 4, 6, 6))
    assert found.network.conv1.out_channels == 1
    assert_close(outputs(found.network, images(2, 4, 7, 7)), outputs(net, images(2, 4, 7, 7)))
