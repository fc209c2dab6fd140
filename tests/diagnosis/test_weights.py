"""Every parameter in one layer, every matrix the right one."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from isthmus import IsthmusError
from isthmus.diagnosis._weights import WeightedLayer, weight_spectrum, weighted_layers
from tools import assert_close, gaussian


def only(module: nn.Module) -> WeightedLayer:
    (layer,) = weighted_layers(module)
    return layer


def matrices(module: nn.Module) -> dict[str, torch.Tensor]:
    return {part.name: part.matrix() for part in only(module).parts}


class Custom(nn.Module):
    """Parameters of its own, of all shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.table = nn.Parameter(gaussian(3, 4, dtype=torch.float32))
        self.cube = nn.Parameter(gaussian(2, 3, 4, dtype=torch.float32))
        self.inner = nn.Linear(4, 2)


class LowRank(nn.Linear):
    """A linear layer with more parameters than its own."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.down = nn.Parameter(gaussian(2, 4, dtype=torch.float32))
        self.gain = nn.Parameter(torch.ones(4))


class Doubled(nn.Module):
    def forward(self, W: torch.Tensor) -> torch.Tensor:
        return 2 * W


def zoo() -> nn.Module:
    tied = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    tied[1].weight = tied[0].weight
    shared = nn.Linear(4, 4)
    return nn.ModuleDict({
        "mlp": nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)),
        "encoder": nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        "attention": nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
        "lstm": nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2),
        "cell": nn.GRUCell(3, 4),
        "conv": nn.Conv3d(4, 6, 2, groups=2),
        "transposed": nn.ConvTranspose2d(4, 6, 3),
        "bag": nn.EmbeddingBag(5, 3),
        "bilinear": nn.Bilinear(2, 3, 4),
        "norms": nn.ModuleList(
            [nn.LayerNorm((3, 3)), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.InstanceNorm2d(3, affine=True)]
        ),
        "prelu": nn.PReLU(),
        "custom": Custom(),
        "low_rank": LowRank(),
        "list": nn.ParameterList([torch.zeros(2, 2)]),
        "normed": parametrizations.weight_norm(nn.Linear(3, 4)),
        "orthogonal": parametrizations.orthogonal(nn.Linear(4, 4)),
        "tied": tied,
        "once": shared,
        "twice": shared,
    })  # fmt: skip


def missing_or_doubled(module: nn.Module, layers: list[WeightedLayer]) -> set[str]:
    listed = [name for layer in layers for name in layer.parameters]
    every = [name for name, _ in module.named_parameters()]
    return set(every) ^ set(listed) | {name for name in listed if listed.count(name) > 1}


def test_every_parameter_is_in_exactly_one_layer():
    module = zoo()
    layers = weighted_layers(module)
    assert not missing_or_doubled(module, layers)
    assert missing_or_doubled(module, layers[1:]) == set(layers[0].parameters)
    assert missing_or_doubled(module, [*layers, layers[0]]) == set(layers[0].parameters)
    order = [name for name, _ in module.named_modules()]
    places = [order.index(layer.name) for layer in layers]
    assert places == sorted(places)


def test_kinds_and_layouts():
    found = {layer.name: (layer.kind, layer.type_name, layer.layout) for layer in weighted_layers(zoo())}
    assert found["mlp.0"] == ("linear", "Linear", "last")
    assert found["mlp.2"] == ("norm", "BatchNorm1d", "channels-first")
    assert found["encoder.self_attn"] == ("attention", "MultiheadAttention", "last")
    assert "encoder.self_attn.out_proj" not in found and "mlp.1" not in found
    assert found["lstm"] == ("recurrent", "LSTM", "last") and found["cell"][0] == "recurrent"
    assert found["conv"] == ("convolution", "Conv3d", "channels-first")
    assert found["transposed"] == ("transposed convolution", "ConvTranspose2d", "channels-first")
    assert found["bag"][0] == "embedding" and found["bilinear"][0] == "bilinear"
    assert found["normed"] == ("linear", "Linear", "last")
    assert found["prelu"][0] == found["custom"][0] == found["list"][0] == "parameters"
    assert [found[f"norms.{i}"][0] for i in range(4)] == ["norm"] * 4


def test_norms_are_not_matrices():
    assert only(nn.LayerNorm((3, 3))).parts == ()


def test_the_shape_told_is_the_shape_read():
    for layer in weighted_layers(zoo()):
        for part in layer.parts:
            assert tuple(part.matrix().shape) == part.matrix_shape
            assert part.matrix().dtype == torch.float64


def test_own_parameters():
    layers = {layer.name: layer for layer in weighted_layers(Custom())}
    assert [(part.name, part.label) for part in layers[""].parts] == [("table", "parameter matrix")]
    assert layers[""].note == "temperature of shape () is not a matrix; cube of shape (2, 3, 4) is not a matrix"
    assert layers["inner"].parts[0].label == "weight"
    found = only(LowRank())
    assert [part.name for part in found.parts] == ["weight", "down"] and "gain of shape (4,)" in found.note


def test_attention():
    same = nn.MultiheadAttention(4, 2)
    found = matrices(same)
    query, key, value = same.in_proj_weight.detach().double().chunk(3)
    for name, expected in {"query": query, "key": key, "value": value}.items():
        assert_close(found[f"in_proj_weight[{name}]"], expected)
    assert_close(found["out_proj.weight"], same.out_proj.weight.double())
    labels = [part.label for part in only(same).parts]
    assert labels == ["query projection", "key projection", "value projection", "output projection"]
    other = nn.MultiheadAttention(4, 2, kdim=3, vdim=5)
    assert [part.label for part in only(other).parts] == labels
    assert [part.matrix_shape for part in only(other).parts] == [(4, 4), (4, 3), (4, 5), (4, 4)]


def test_the_query_is_the_query():
    """By the module itself: with the query part zeroed all positions get equal attention."""
    attention = nn.MultiheadAttention(4, 1, bias=False).double()
    part = only(attention).parts[0]
    with torch.no_grad():
        attention.in_proj_weight[:4] = 0
    assert float(part.matrix().abs().max()) == 0
    _, weights = attention(*[gaussian(3, 1, 4)] * 3)
    assert_close(weights, torch.full((1, 3, 3), 1 / 3))


@pytest.mark.parametrize(("make", "gates"), [(nn.LSTM, "ifgo"), (nn.GRU, "rzn"), (nn.RNN, "")])
def test_recurrent_gates(make, gates):
    net = make(3, 5, 2, bidirectional=True)
    found = matrices(net)
    assert len(found) == 2 * 2 * 2 * max(len(gates), 1)
    for name in ("weight_ih_l0", "weight_hh_l1_reverse"):
        for piece, expected in zip(gates or [""], getattr(net, name).detach().double().chunk(len(gates) or 1)):
            assert_close(found[f"{name}[{piece}]" if piece else name], expected)
    labels = {part.name: part.label for part in only(net).parts}
    first = f"weight_hh_l1_reverse[{gates[0]}]" if gates else "weight_hh_l1_reverse"
    assert labels[first].startswith("recurrent weight, layer 1 backward")


def test_the_forget_gate_is_the_forget_gate():
    """By the module itself: a forget gate that is shut leaves nothing of the cell's past."""
    cell = nn.LSTMCell(1, 2, bias=False).double()
    forget = only(cell).parts[1]
    assert forget.name == "weight_ih[f]"
    with torch.no_grad():
        for W in cell.parameters():
            W.zero_()
        cell.weight_ih[2:4] = -50.0
    assert_close(forget.matrix(), torch.full((2, 1), -50.0).double())
    _, past = cell(torch.ones(1, 1).double(), (torch.zeros(1, 2).double(), torch.ones(1, 2).double()))
    assert float(past.detach().abs().max()) < 1e-12


def test_projections():
    found = matrices(nn.LSTM(3, 4, proj_size=2))
    assert found["weight_hr_l0"].shape == (2, 4) and found["weight_hh_l0[i]"].shape == (4, 2)


@pytest.mark.parametrize("groups", [1, 2])
def test_filters_act_on_patches(groups):
    """The unfolded filter is the map from a patch to an output: a kernel as large as its input shows it."""
    conv = nn.Conv2d(4, 6, (2, 3), groups=groups, bias=False).double()
    X = gaussian(1, 4, 2, 3)
    M = only(conv).parts[0].matrix().reshape(groups, 6 // groups, -1)
    patches = X.reshape(groups, -1, 1)
    assert_close((M @ patches).flatten(), conv(X).flatten())


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_filters_have_their_own_order_of_axes(groups):
    """With one input position the operator is (out · k, in): the unfolded filter holds its entries, out first."""
    conv = nn.ConvTranspose1d(4, 6, 3, groups=groups, bias=False).double()
    M = only(conv).parts[0].matrix().reshape(groups, 6 // groups, 4 // groups, 3)
    x = gaussian(1, 4, 1)
    expected = torch.einsum("goik,gi->gok", M, x.reshape(groups, -1)).reshape(6, 3)
    assert_close(conv(x)[0], expected)


def test_bilinear():
    net = nn.Bilinear(2, 3, 4, bias=False).double()
    x, y = gaussian(2), gaussian(3, seed=1)
    assert_close(matrices(net)["weight"] @ torch.outer(x, y).flatten(), net(x, y))


def test_tied_weights_belong_to_the_first():
    net = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7), nn.Linear(4, 7, bias=False))
    net[1].weight = net[2].weight = net[0].weight
    first, second, third = weighted_layers(net)
    assert first.shared_with == ("1.weight", "2.weight") and first.parameters == ("0.weight",)
    assert second.parameters == ("1.bias",) and second.parts == () and second.kind == "linear"
    assert third.parameters == () and third.note == "weight is 0.weight (tied): see there"
    shared = nn.Linear(2, 2)
    assert only(nn.Sequential(shared, shared)).shared_with == ("1.weight", "1.bias")


@pytest.mark.parametrize("parametrise", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrised_weights_are_the_effective_ones(parametrise):
    torch_layer = parametrise(nn.Linear(3, 4).double())
    layer = only(torch_layer)
    before = {name: value.clone() for name, value in torch_layer.state_dict().items()}
    found = layer.parts[0].matrix()
    assert all(torch.equal(value, before[name]) for name, value in torch_layer.state_dict().items())
    assert torch_layer.training and all(inner.training for inner in torch_layer.modules())
    torch_layer.eval()
    assert_close(found, torch_layer(torch.eye(3).double()).mT - torch_layer.bias[:, None])
    assert all(name.startswith("parametrizations.weight") or name == "bias" for name in layer.parameters)


def test_a_parametrisation_inside_attention():
    attention = nn.MultiheadAttention(4, 2)
    register_parametrization(attention.out_proj, "weight", Doubled())
    register_parametrization(attention, "in_proj_weight", Doubled())
    layer = only(attention)
    assert not missing_or_doubled(attention, [layer]) and layer.type_name == "MultiheadAttention"
    original = attention.get_parameter("out_proj.parametrizations.weight.original")
    assert_close({part.label: part for part in layer.parts}["output projection"].matrix(), 2 * original.double())


def test_old_hooks_are_recomputed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        normed = nn.utils.weight_norm(nn.Linear(3, 4).double())
    spectral = spectral_norm(nn.Linear(3, 4).double())
    pruned = prune.l1_unstructured(nn.Linear(3, 4).double(), "weight", amount=5)
    for net, changed in ((normed, "weight_g"), (spectral, "bias"), (pruned, "weight_orig")):
        with torch.no_grad():
            net.get_parameter(changed).mul_(3.0)  # the cached weight is now stale
        assert not missing_or_doubled(net, weighted_layers(net))
        before = {name: value.clone() for name, value in net.state_dict().items()}
        found = matrices(net)["weight"]
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        net.eval()
        assert_close(found, net(torch.eye(3).double()).mT - net.bias[:, None])
    assert int((matrices(pruned)["weight"] == 0).sum()) == 5


def with_weight(tensor: torch.Tensor) -> nn.Module:
    net = nn.Linear(3, 4, bias=False)
    net.weight = nn.Parameter(tensor, requires_grad=False)
    return net


def test_what_cannot_be_computed_is_said():
    cases = {
        "meta": nn.Linear(3, 4, device="meta"),
        "not initialised": nn.LazyLinear(4),
        "sparse": with_weight(gaussian(4, 3).to_sparse()),
        "complex": with_weight(torch.zeros(4, 3, dtype=torch.complex64)),
        "int8": with_weight(torch.zeros(4, 3, dtype=torch.int8)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases["quantised"] = with_weight(torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.qint8))
    for word, net in cases.items():
        layer = only(net)
        assert word in layer.note and "not computed: " in layer.note
        spectrum = weight_spectrum(layer.parts[0])
        assert spectrum.method == "not computed" and word in spectrum.note and len(spectrum.values) == 0
        with pytest.raises(IsthmusError, match="real numbers"):
            layer.parts[0].matrix()


def test_packed_quantised_layers_are_listed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = [torch.ao.nn.quantized.dynamic.Linear(3, 4), torch.ao.nn.quantized.dynamic.LSTM(3, 4)]
    first, second, third = weighted_layers(nn.ModuleList([*packed, nn.Linear(4, 2)]))
    for layer in (first, second):
        assert layer.parts == () and "quantised" in layer.note
    assert third.kind == "linear" and third.note == ""


def test_wrong_input_is_named():
    with pytest.raises(IsthmusError, match="torch.nn.Module"):
        weighted_layers([nn.Linear(2, 2)])  # pyright: ignore[reportArgumentType]
    assert weighted_layers(nn.ReLU()) == []


def test_spectra_of_the_whole_zoo():
    for layer in weighted_layers(zoo()):
        for part in layer.parts:
            M, found = part.matrix(), weight_spectrum(part)
            truth = np.sort(np.linalg.svd(M.numpy(), compute_uv=False).ravel())[::-1].copy()
            assert_close(found.values, truth)
            assert_close(found.norm, M.norm())
            assert found.error < 1e-12
