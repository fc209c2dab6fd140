"""Networks of known structure: the rank, where it is, and what must stay open."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from architectures import Opaque
from isthmus import DataError, IsthmusError
from isthmus.diagnosis import Diagnosis, Spectrum, diagnose
from isthmus.diagnosis._result import MOST_VALUES
from isthmus.measures import bottleneck_rank
from tools import assert_close, gaussian, generator, linear_net, orthogonal, random_net, three_part_net


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("opaque", [False, True])
def test_three_part_networks(k, opaque):
    net = three_part_net(k, noise=0.003, seed=k).to_torch()
    X = gaussian(200, 12, seed=k)
    found = diagnose(Opaque(net) if opaque else net, X)
    assert (found.verdict, found.rank) == ("determined", k), found.isthmus.reasons
    assert found.isthmus.kind == "full"
    # Where it is: in the middle.
    names = [layer.name for layer in found.layers]
    assert names[len(names) // 2] in found.isthmus.layers
    panel = {one.name: one for one in found.agreement}
    assert panel["bottleneck rank"].rank == k
    assert f"through {k} dimension" in found.sentence


@pytest.mark.parametrize("opaque", [False, True])
def test_linear_networks(opaque):
    net = linear_net(torch.ones(4, dtype=torch.float64), [9, 12, 12, 12, 9], seed=3).to_torch()
    found = diagnose(Opaque(net) if opaque else net, gaussian(200, 9, seed=1))
    assert (found.verdict, found.rank) == ("determined", 4), found.isthmus.reasons
    assert [layer.jacobian.rank for layer in found.layers] == [4] * len(found.layers)


@pytest.mark.parametrize("opaque", [False, True])
def test_no_bottleneck(opaque):
    net = linear_net(torch.linspace(1.0, 0.7, 9, dtype=torch.float64), [9, 9, 9], seed=3).to_torch()
    found = diagnose(Opaque(net) if opaque else net, gaussian(200, 9, seed=1))
    assert (found.verdict, found.rank) == ("none", None), found.isthmus.reasons
    assert "no bottleneck" in found.sentence


def test_random_networks_are_given_no_rank():
    verdicts = []
    for seed in range(12):
        net = random_net([12, 30, 30, 30, 10], seed=seed).to_torch()
        for module in (net, Opaque(net)):
            verdicts.append(diagnose(module, gaussian(150, 12, seed=seed), jacobian_samples=4).verdict)
    assert "determined" not in verdicts
    assert verdicts.count("undetermined") <= 2


@pytest.mark.parametrize("opaque", [False, True])
def test_a_borderline_spectrum_stays_open(opaque):
    """Values of 1, 1, 1, then 0.3, are neither a rank of three nor its absence.

    In any architecture representations decide (the drop is in the first layer); in a fully connected one weights too.
    """
    net = linear_net(torch.tensor([1.0] * 3 + [0.3**4] * 5).double(), [8, 12, 12, 12, 8], seed=2).to_torch()
    if opaque:
        net = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(4)]).double()
        for seed, layer in enumerate(net):
            layer.weight.data = orthogonal(8, 8, seed=seed)
        net[0].weight.data[3:] *= 0.3
    found = diagnose(Opaque(net) if opaque else net, gaussian(300, 8, seed=1))
    assert found.verdict == "undetermined", (found.rank, found.isthmus.reasons)
    assert found.rank is None
    assert found.sentence.startswith("Undetermined")


def test_a_half_bottleneck():
    """Outputs of three dimensions force the rank: nothing inside is narrower."""
    net = linear_net(torch.ones(3, dtype=torch.float64), [9, 12, 12, 12, 3], seed=3).to_torch()
    for module in (net, Opaque(net)):
        found = diagnose(module, gaussian(200, 9, seed=1))
        assert found.isthmus.kind == "half", (found.verdict, found.isthmus.reasons)
        assert found.rank in (None, 3)


def test_data_of_few_dimensions_are_no_bottleneck():
    X = gaussian(200, 2, seed=1) @ gaussian(2, 9, seed=2)
    net = linear_net(torch.linspace(1.0, 0.8, 9, dtype=torch.float64), [9, 9, 9, 9], seed=3).to_torch()
    for module in (net, Opaque(net)):
        assert diagnose(module, X).verdict == "none"


class Bypassed(nn.Module):
    """A layer of width two that a skip connection goes around."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8).double()
        self.narrow = nn.Linear(8, 2).double()
        self.wide = nn.Linear(2, 8).double()
        for seed, layer in enumerate((self.first, self.narrow, self.wide)):
            rows, columns = layer.weight.shape
            layer.weight.data = orthogonal(8, 8, seed=seed)[:rows, :columns].contiguous()

    def forward(self, x):
        x = self.first(x)
        return x + self.wide(self.narrow(x))


def test_a_narrow_layer_that_is_bypassed_is_no_bottleneck():
    found = diagnose(Bypassed(), gaussian(200, 8))
    assert found.verdict == "none", found.isthmus.reasons
    assert found["narrow"].dimensions.rank == 2
    assert found["narrow"].bypass > 0.01
    assert found["first"].bypass == 0.0
    # Without the skip it is one.
    chain = Opaque(nn.Sequential(*[getattr(Bypassed(), name) for name in ("first", "narrow", "wide")]))
    assert diagnose(chain, gaussian(200, 8)).rank == 2


class Then(nn.Module):
    """A network of three layers, and something done to its outputs."""

    def __init__(self, change):
        super().__init__()
        self.net, self.change = three_part_net(3).to_torch(), change

    def forward(self, x):
        return self.change(self.net(x))


class OfComplex(nn.Module):
    """Real numbers in and out, complex ones between."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return torch.view_as_real(self.net(x + 0j)).flatten(1)


class Idle(nn.Module):
    """Layers that the forward does not call."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 2), nn.Linear(2, 12)

    def forward(self, x):
        return x.flip(1)


class Around(nn.Module):
    """A narrow branch, and a skip connection around all of it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 2), nn.Linear(2, 12)

    def forward(self, x):
        return x + self.b(self.a(x))


@pytest.mark.parametrize(
    ("module", "verdict", "says"),
    [
        (Around(), "none", "information goes around every layer"),
        (Then(lambda y: y * 0 + 1), "undetermined", "the outputs do not vary on these data"),
        (Then(lambda y: (y > -1e6).double()), "undetermined", "the outputs do not vary on these data"),
        (Then(lambda y: y * (torch.arange(len(y)) > 50)[:, None]), "undetermined", "on the first samples"),
        (nn.Sequential(nn.ReLU(), nn.Linear(12, 4)), "none", "no layer between inputs and outputs"),
        (nn.ReLU(), "none", "no layer between inputs and outputs"),
        (nn.Identity(), "none", "no layer between inputs and outputs"),
        (nn.LSTM(12, 6), "none", "no layer between inputs and outputs"),
        (Idle(), "none", "no layer between inputs and outputs"),
    ],
)
def test_what_is_not_bypassed_is_not_called_so(module, verdict, says):
    found = diagnose(module, gaussian(200, 12))
    assert found.verdict == verdict
    assert says in found.isthmus.reasons[0] and says in found.sentence


def test_one_sample_shows_nothing():
    found = diagnose(Then(lambda y: 2 * y), gaussian(1, 12))
    assert found.verdict == "undetermined" and "one sample" in found.sentence


def test_outputs_that_are_no_real_numbers_or_have_no_samples():
    X = gaussian(60, 12)
    assert diagnose(Then(lambda y: y > 0), X).samples == 60
    with pytest.raises(IsthmusError, match=r"^diagnose: outputs must be real\. Got complex128"):
        diagnose(Then(lambda y: y + 1j), X)
    with pytest.raises(IsthmusError, match=r"^diagnose: outputs must have an axis of samples"):
        diagnose(Then(lambda y: y.sum()), X)
    complex_inside = nn.Sequential(nn.Linear(12, 4, dtype=torch.complex64))
    with pytest.raises(IsthmusError, match=r"^diagnose: outputs of layer 'net.0' must be real"):
        diagnose(OfComplex(complex_inside), X)


def test_a_jacobian_above_the_rank_is_refused():
    """Directions that samples hardly explore, but that matter: representations alone would say 2."""
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)).double()
    for p in net.parameters():
        p.data = torch.eye(6, dtype=torch.float64)
    X = gaussian(200, 6) * torch.tensor([1, 1, 1e-3, 1e-3, 1e-3, 1e-3], dtype=torch.float64)
    found = diagnose(Opaque(net), X)
    assert found.verdict != "determined"


def test_few_samples_stay_open():
    net = three_part_net(4, seed=1).to_torch()
    found = diagnose(Opaque(net), gaussian(7, 12))
    assert found.verdict == "undetermined"
    assert any("too few" in reason for reason in found.isthmus.reasons)


def test_a_network_of_this_library_is_as_good_as_its_torch_twin():
    net = three_part_net(3, seed=5, dtype=torch.float32)
    X = gaussian(150, 12)
    one, two = diagnose(net, X), diagnose(net.to_torch(), X)
    assert (one.verdict, one.rank) == ("determined", 3)
    assert one.to_frame().equals(two.to_frame())
    assert one.isthmus == two.isthmus
    assert bottleneck_rank(net.trace(X)).rank == 3


def test_numbers_of_the_whole():
    from isthmus.measures import balance, ntk_trace, parameter_norms

    net = three_part_net(3, seed=5)
    X, Y = gaussian(60, 12), gaussian(60, net.dims[-1], seed=9)
    found = diagnose(net, X, Y, ridge=0.01)
    assert_close(found.whole["norm_squared"], parameter_norms(net).total)
    assert_close(found.whole["norm_per_depth"], parameter_norms(net).per_depth)
    assert_close(found.whole["layer_imbalance"], balance(net).layer_residual)
    assert_close(found.whole["ntk_trace"], ntk_trace(net, X).mean())
    outputs = net(X).detach()
    assert_close(found.whole["cost"], (outputs - Y).square().sum(1).mean())
    assert_close(found.whole["unexplained"], (outputs - Y).square().sum() / (Y - Y.mean(0)).square().sum())
    # The gradient by hand.
    loss = (net(X) - Y).square().sum(1).mean() + 0.01 * sum(p.square().sum() for p in net.parameters())
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    pull = torch.cat([0.02 * p.flatten() for p in net.parameters()])
    assert_close(found.whole["criticality"], gradient.norm() / pull.norm())
    assert "cost" not in diagnose(net, X).whole


def test_classes_as_targets():
    net = random_net([5, 8, 3]).to_torch()
    X, labels = gaussian(40, 5), torch.arange(40) % 3
    found = diagnose(net, X, labels, loss="cross_entropy")
    assert_close(found.whole["cost"], nn.functional.cross_entropy(net(X), labels).detach())


def test_a_network_at_a_minimum_is_critical():
    """Least squares with a ridge, solved: the criticality is rounding; moved away it is not."""
    X, Y = gaussian(80, 5), gaussian(80, 4, seed=1)
    ridge = 0.1
    layer = nn.Linear(5, 4, bias=False).double()
    A = X.mT @ X / 80 + ridge * torch.eye(5, dtype=torch.float64)
    layer.weight.data = torch.linalg.solve(A, X.mT @ Y / 80).mT.contiguous()
    assert diagnose(layer, X, Y, ridge=ridge).whole["criticality"] < 1e-10
    layer.weight.data += 0.01
    assert diagnose(layer, X, Y, ridge=ridge).whole["criticality"] > 1e-3


def test_plain_data_and_back():
    net = three_part_net(3, seed=5).to_torch()
    found = diagnose(net, gaussian(150, 12))
    content = json.loads(found.to_json())
    assert content["format"] == "isthmus.diagnosis" and content["version"] == 1
    assert all(set(q) == {"formula", "threshold", "version"} for q in content["quantities"].values())
    again = Diagnosis.from_dict(content)
    assert again.to_json() == found.to_json()
    assert again.to_frame().equals(found.to_frame())
    assert again.sentence == found.sentence
    with pytest.raises(IsthmusError, match="diagnosis"):
        Diagnosis.from_dict({"format": "isthmus.diagnosis", "version": 999})


def test_non_finite_weights_are_a_state():
    net = random_net([5, 8, 8, 3]).to_torch()
    net[2].weight.data[0, 0] = float("nan")
    found = diagnose(net, gaussian(40, 5))
    assert found.verdict == "undetermined"
    assert found["2"].weights[0].spectrum.method == "not computed"
    assert found["2"].representation.method == "not computed"
    assert found["0"].weights[0].spectrum.method == "exact"
    json.loads(found.to_json())


def test_chosen_layers():
    net = random_net([5, 8, 8, 3]).to_torch()
    found = diagnose(net, gaussian(40, 5), layers="2")
    assert [layer.name for layer in found.layers if layer.kind == "linear"] == ["2"]
    with pytest.raises(IsthmusError, match="layers"):
        diagnose(net, gaussian(40, 5), layers=["nope"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_analysed_in_float64(dtype):
    net = three_part_net(3, seed=5).to_torch().to(dtype)
    found = diagnose(net, gaussian(150, 12))
    exact = torch.linalg.svdvals(net[2].weight.double())
    assert_close(found["2"].weights[0].spectrum.values, exact)
    assert (found.verdict, found.rank) == ("determined", 3), found.isthmus.reasons
    assert found.whole["dtype"] == str(dtype).removeprefix("torch.")


def test_mistakes_are_explained():
    net = random_net([5, 8, 3]).to_torch()
    X = gaussian(40, 5)
    with pytest.raises(IsthmusError, match="must run on"):
        diagnose(net, gaussian(40, 6))
    with pytest.raises(DataError, match="rows"):
        diagnose(net, X, gaussian(39, 3))
    with pytest.raises(DataError, match="shape of the outputs"):
        diagnose(net, X, gaussian(40, 2))
    with pytest.raises(IsthmusError, match="nn.Module"):
        diagnose("net", X)
    with pytest.raises(IsthmusError, match="loss"):
        diagnose(net, X, loss="l1")
    with pytest.raises(IsthmusError, match="ridge"):
        diagnose(net, X, ridge=-1.0)


def test_a_constant_network():
    net = random_net([5, 8, 3]).to_torch()
    net[2].weight.data.zero_()
    found = diagnose(net, gaussian(40, 5))
    assert found.verdict in ("determined", "undetermined")
    assert np.isnan(found["0"].bypass)
    assert found.rank in (0, None)


def test_the_same_twice():
    net = random_net([5, 8, 3], seed=4).to_torch()
    X = torch.randn(40, 5, generator=generator())
    one, two = (diagnose(net, X).to_dict() for _ in range(2))
    for content in (one, two):
        content.pop("provenance")
        content.pop("cost")  # seconds
    assert one == two


def test_networks_of_this_library_inside_others():
    inner = three_part_net(3, seed=5)
    outer = nn.Sequential(inner, nn.Linear(inner.dims[-1], inner.dims[-1]).double())
    before = torch.get_rng_state()
    found = diagnose(outer, gaussian(150, 12))
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(outer[0], type(inner))
    assert sum(layer.kind == "linear" for layer in found.layers) == inner.depth + 1
    assert (found.verdict, found.rank) == ("determined", 3), found.isthmus.reasons


def test_long_spectra_are_thinned_after_their_first_half():
    values = torch.linspace(1, 0, 5000, dtype=torch.float64)
    content = Spectrum(values, "exact").to_dict()
    assert content["count"] == 5000 and len(content["values"]) == MOST_VALUES
    assert content["values"][: MOST_VALUES // 2] == values[: MOST_VALUES // 2].tolist()
    assert content["values"][-1] == 0.0
    assert content["values"] == sorted(content["values"], reverse=True)
    with pytest.raises(IsthmusError, match="every field"):
        Diagnosis.from_dict({**diagnose(nn.Linear(3, 3), gaussian(20, 3)).to_dict(), "layers": [{"values": [None]}]})
