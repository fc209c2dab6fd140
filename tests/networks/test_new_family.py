"""A family of networks defined in this file alone: what everything else does with it, without knowing it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import isthmus
from isthmus import FullyConnected, IsthmusError, Network
from isthmus._cite import CITATIONS
from isthmus.claims import CLAIMS, verify_samples
from isthmus.claims._base import Subject, claim
from isthmus.diagnosis import weighted_layers
from isthmus.networks import Layer
from isthmus.training import Phase, minimise, train_together


@dataclass(frozen=True, eq=False)
class ResidualTrace:
    """Streams h_0 … h_L, samples as rows."""

    streams: tuple[Tensor, ...]
    outputs: Tensor


class SmallResidual(Network):
    """h_0 = W_in x, h_ℓ = h_{ℓ-1} + W_ℓ σ(h_{ℓ-1}), f = W_out h_L."""

    kind = "a small residual network"

    def __init__(self, d_in, d_out, width=8, layers=3, *, dtype=None, device=None, generator=None):
        super().__init__()
        self.sizes = {"d_in": d_in, "d_out": d_out, "width": width, "layers": layers}
        shapes = [(width, d_in), *[(width, width)] * layers, (d_out, width)]
        self.maps = nn.ParameterList()
        for shape in shapes:
            W = torch.zeros(shape, dtype=dtype, device=device)
            self.maps.append(nn.Parameter(W.normal_(0.0, shape[1] ** -0.5, generator=generator)))

    def streams(self, X):
        found = [X @ self.maps[0].mT]
        for W in list(self.maps)[1:-1]:
            found.append(found[-1] + torch.relu(found[-1]) @ W.mT)
        return found

    def forward(self, X):
        return self.streams(X)[-1] @ self.maps[-1].mT

    def trace(self, X, *, dtype=torch.float64):
        with torch.no_grad():
            copy = SmallResidual(**self.sizes, dtype=dtype or self.maps[0].dtype)
            copy.load_state_dict(self.state_dict())
            streams = copy.streams(torch.as_tensor(X).to(copy.maps[0].dtype))
            return ResidualTrace(tuple(streams), streams[-1] @ copy.maps[-1].mT)

    def to_torch(self):
        return _Blocks(self)

    def config(self):
        return dict(self.sizes)


class _Blocks(nn.Module):
    """The same of ``nn.Linear``."""

    def __init__(self, net):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(W.shape[1], W.shape[0], bias=False).to(W) for W in net.maps)
        for layer, W in zip(self.layers, net.maps):
            layer.weight = nn.Parameter(W.detach().clone())

    def forward(self, X):
        h = self.layers[0](X)
        for layer in list(self.layers)[1:-1]:
            h = h + layer(torch.relu(h))
        return self.layers[-1](h)


def made(seed=0, **options):
    return SmallResidual(3, 2, generator=torch.Generator().manual_seed(seed), **options)


@pytest.fixture(scope="module")
def data():
    X = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    return X, torch.stack([X[:, 0] + X[:, 1].abs(), X[:, 2]], 1)


@pytest.fixture(scope="module")
def trained(data):
    net = made()
    return net, minimise(net, *data, ridge=1e-3)


def test_it_is_trained_by_the_plan_that_all_networks_follow(trained):
    net, result = trained
    assert result.network is net
    assert result.state in ("stationary", "flat", "budget") and result.cost < 0.1
    assert {"scale", "adam", "lbfgs", "newton"} == {phase["method"] for phase in result.settings["phases"]}


def test_its_gradient_is_that_of_autograd(data):
    net = made().double()
    X, Y = (T.double() for T in data)
    result = minimise(net, X, Y, ridge=1e-2, phases=[Phase("gd", 1, 1e-3)])
    other = made().double()
    loss = (other(X) - Y).square().sum(1).mean() + 1e-2 * sum(p.square().sum() for p in other.parameters())
    loss.backward()
    assert float(loss.detach()) == pytest.approx(result.history["loss"][0], rel=1e-12)
    for own, p in zip(net.parameters(), other.parameters()):
        assert torch.allclose(own, p - 1e-3 * p.grad, rtol=1e-10, atol=1e-12)


def test_several_are_trained_together_as_each_alone(data):
    phases = [Phase("adam", 20, 1e-2), Phase("lbfgs", 30)]
    nets = [made(seed).double() for seed in range(3)]
    with pytest.warns(isthmus.ConvergenceWarning):
        results = train_together(nets, *data, ridges=1e-3, phases=phases)
    for seed, result in enumerate(results):
        alone = minimise(made(seed).double(), *(T.double() for T in data), ridge=1e-3, phases=phases)
        assert alone.loss == pytest.approx(result.loss, rel=1e-9)


def test_it_is_traced(trained, data):
    trace = trained[0].trace(data[0])
    assert trace.outputs.dtype == torch.float64 and len(trace.streams) == 4
    assert torch.allclose(trace.outputs.float(), trained[0](data[0]), atol=1e-5)


def test_it_is_saved_and_loaded_bit_for_bit(trained, tmp_path):
    isthmus.save(trained[0], tmp_path / "net.safetensors")
    loaded = isthmus.load(tmp_path / "net.safetensors")
    assert type(loaded) is SmallResidual and loaded.config() == trained[0].config()
    for one, other in zip(loaded.parameters(), trained[0].parameters()):
        assert torch.equal(one, other) and one.requires_grad


def test_a_file_whose_tensors_are_not_those_of_its_configuration_is_refused(trained, tmp_path):
    net = made(layers=4)
    net.sizes["layers"] = 3
    with pytest.raises(IsthmusError, match="must be the 5 that the configuration implies"):
        isthmus.save(net, tmp_path / "net.safetensors")


def test_its_name_does_not_shadow_ours(tmp_path):
    own = type("FullyConnected", (SmallResidual,), {})
    with pytest.raises(IsthmusError, match="obj"):
        isthmus.save(own(3, 2), tmp_path / "net.safetensors")
    isthmus.save(FullyConnected([3, 2]), tmp_path / "net.safetensors")
    assert type(isthmus.load(tmp_path / "net.safetensors")) is FullyConnected


def test_it_is_diagnosed(trained, data):
    found = isthmus.diagnose(trained[0], *data, ridge=1e-3)
    assert [layer.name for layer in found.layers if layer.kind == "linear"] == [f"layers.{i}" for i in range(5)]
    assert found.whole["parameters"] == sum(p.numel() for p in trained[0].parameters())


class Halved(Layer):
    """x ↦ 2Vx + c: the parameter is half of the matrix."""

    kind = "halved layer"
    reading = "the parameter doubled"

    def __init__(self, width):
        super().__init__()
        self.V = nn.Parameter(torch.eye(width) / 2)
        self.c = nn.Parameter(torch.zeros(width))

    def forward(self, X):
        return X @ (2 * self.V).mT + self.c

    def as_printed(self, name):
        return 2 * self.get_parameter(name)


def test_a_layer_of_its_own_says_what_is_shown_of_it():
    module = nn.Sequential(nn.Linear(3, 4), Halved(4), nn.Linear(4, 2))
    X = torch.randn(30, 3, generator=torch.Generator().manual_seed(4))
    found = isthmus.diagnose(module, X).layers
    assert [layer.kind for layer in found] == ["linear", "halved layer", "linear"]
    (part,) = weighted_layers(module)[1].parts
    assert (part.name, part.how) == ("V", Halved.reading)
    assert torch.equal(part.matrix(), torch.eye(4, dtype=torch.float64))
    assert found[1].weights[0].spectrum.values == pytest.approx([1.0] * 4)


def test_what_is_claimed_of_others_does_not_apply_to_it(trained, data):
    verdicts = isthmus.verify(trained[0], *data, ridge=1e-3, claims="C-rank-*")
    assert len(verdicts.verdicts) > 5
    assert {verdict.status for verdict in verdicts.verdicts} == {"not applicable"}
    assert {verdict.reason for verdict in verdicts.verdicts} == {"needs a fully connected network"}


@pytest.fixture
def growth():
    """A claim about the family: a stream is no longer than its branches together. Afterwards all is as it was."""
    claims, citations = dict(CLAIMS), list(CITATIONS)
    X = torch.randn(20, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    @claim(
        "C-residual-1",
        "‖h_L‖ ≤ ‖h_0‖ · Π(1 + ‖W_ℓ‖_op)",
        paper="residual",
        where="§1",
        hypotheses=("finite",),
        sample=lambda: Subject(made(3).double(), X),
        relation="≤",
        about=SmallResidual.kind,
    )
    def streams_grow_by_their_branches(check, subject):
        Ws = [W.detach() for W in subject.net.maps]
        check.assume("finite", all(bool(W.isfinite().all()) for W in Ws))
        check.require()
        streams, bound = subject.trace().streams, subject.known.get("factor", 1.0)
        for W in Ws[1:-1]:
            bound *= 1.0 + float(torch.linalg.matrix_norm(W, 2))
        check.compare(streams[-1].norm(dim=1), "≤", bound * streams[0].norm(dim=1), tolerance=1e-12)

    yield streams_grow_by_their_branches
    CLAIMS.clear()
    CLAIMS.update(claims)
    CITATIONS[:] = citations


def test_claims_about_it_name_its_kind(growth, trained, data):
    assert isthmus.verify(trained[0], data[0], claims=growth.id)[growth.id].status == "holds"
    assert verify_samples(growth.id)[growth.id].status == "holds"
    assert growth.evaluate(growth.sample().replace(known={"factor": 1e-3})).status == "fails"
    broken = growth.sample()
    broken.net.maps[1].data[0, 0] = torch.nan
    assert growth.evaluate(broken).status == "not applicable"
    other = isthmus.verify(FullyConnected([3, 5, 2]), data[0], claims=growth.id)[growth.id]
    assert (other.status, other.reason) == ("not applicable", "needs a small residual network")


def test_compression_finds_nothing_in_it_and_says_so(trained, data):
    made = isthmus.compress(trained[0], data[0])
    # What is given back is of PyTorch's layers, as the family writes itself.
    assert type(made.network) is type(trained[0].to_torch())
    assert made.certificate.domain == "unchanged"


def test_an_abstract_method_that_is_missing_is_named():
    class Half(Network):
        def trace(self, X, *, dtype=torch.float64):
            return None

    with pytest.raises(TypeError, match="config"):
        Half()
