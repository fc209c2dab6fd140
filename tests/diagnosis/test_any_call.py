"""Modules that are called in other ways than with one array, and few samples."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from isthmus import IsthmusError
from isthmus.diagnosis import Diagnosis, diagnose
from isthmus.diagnosis._calls import first_tensor, map_tensors, tensors_in
from tools import assert_close, gaussian, orthogonal


@dataclasses.dataclass
class Output:
    """As HuggingFace's are: named fields, some of them empty."""

    loss: Tensor | None
    hidden: Tensor


class Waist(nn.Module):
    """Twelve numbers through three."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first, self.waist, self.last = nn.Linear(12, 20), nn.Linear(20, width), nn.Linear(width, 12)
        for seed, layer in enumerate((self.first, self.waist, self.last)):
            rows, columns = layer.weight.shape
            layer.weight.data = orthogonal(32, 32, seed=seed)[:rows, :columns].float().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.waist(self.first(x)))


class Named(Waist):
    def forward(self, batch=None, *, scale: float = 1.0):  # type: ignore[override]
        x = batch["inputs"]["left"] * scale + batch["more"][0]
        hidden = super().forward(x)
        return Output(loss=hidden.sum(), hidden=hidden)


def found_at_the_waist(found: Diagnosis) -> None:
    assert (found.verdict, found.rank) == ("determined", 3), found.isthmus.reasons
    assert "waist" in found.isthmus.layers and found["waist"].passes


def test_nested_inputs_and_outputs():
    X = {"inputs": {"left": gaussian(60, 12, dtype=torch.float32)}, "more": (gaussian(60, 12, seed=1),)}
    found_at_the_waist(diagnose(Named(), {"batch": X, "scale": 2.0}))
    plain = {"batch": {"inputs": {"left": X["inputs"]["left"].numpy()}, "more": [X["more"][0].numpy()]}}
    found_at_the_waist(diagnose(Named(), plain))
    # A loader of such batches.
    halves = [{"batch": map_tensors(lambda t, rows=rows: t[rows], X)} for rows in torch.arange(60).split(30)]
    found_at_the_waist(diagnose(Named(), halves))


def test_a_function_that_calls_the_module():
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Waist()

        def run(self, x: Tensor) -> Tensor:
            assert x.shape[0] == 4, "time comes first"
            return self.body(x)

    net = TimeFirst()
    X = gaussian(60, 4, 12, dtype=torch.float32)
    found = diagnose(net, X, forward=lambda net, x: net.run(x.transpose(0, 1))[-1])
    assert found["body.waist"].order is not None and found.samples == 60
    assert found["body.waist"].representation.rank == 3
    with pytest.raises(IsthmusError, match="forward="):
        diagnose(net, X)
    with pytest.raises(IsthmusError, match="callable"):
        diagnose(net, X, forward="run")


class Graph(nn.Module):
    """Two rounds of messages, nodes through three numbers between them."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first, self.waist, self.last = nn.Linear(12, 20), nn.Linear(20, width), nn.Linear(width, 12)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        def heard(h: Tensor) -> Tensor:
            return h.index_add(0, edges[1], h[edges[0]])

        return self.last(heard(self.waist(heard(torch.tanh(self.first(x))))))


class Record:
    """As PyTorch Geometric's Data: tensors as attributes, changed by ``apply``."""

    def __init__(self, **tensors: Tensor) -> None:
        self.__dict__.update(tensors)

    def to_dict(self) -> dict[str, Tensor]:
        return dict(self.__dict__)

    def apply(self, change) -> Record:
        self.__dict__.update({key: change(value) for key, value in self.__dict__.items()})
        return self


def test_graphs():
    x, edges = gaussian(80, 12), torch.stack([torch.arange(80), torch.arange(80).roll(1)])
    torch.manual_seed(0)
    net = Graph().double()
    found = diagnose(net, (x, edges))
    assert found.samples == 80 and found.settings["together"]
    assert found["waist"].representation.rank == 3 and found["waist"].passes
    assert (found.verdict, found.rank) == ("determined", 3), found.isthmus.reasons
    data = Record(x=x, edge_index=edges)
    called = {"forward": lambda net, data: net(data.x, data.edge_index)}
    assert diagnose(net, data, **called).rank == 3
    assert data.x is x
    # A list of graphs: each is a batch.
    assert diagnose(net, [data, Record(x=x[:70], edge_index=edges % 70)], **called).samples == 150
    with pytest.raises(IsthmusError, match="together=True"):
        diagnose(net, (x, gaussian(79, 12)))


def test_nothing_is_said_to_pass_that_was_not_looked_at():
    """A graph network whose skip connection goes around the waist."""

    class Around(Graph):
        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return super().forward(x, edges) + x

    edges = torch.stack([torch.arange(80), torch.arange(80).roll(1)])
    torch.manual_seed(0)
    found = diagnose(Around().double(), (gaussian(80, 12), edges))
    assert found["waist"].passes is False and found.rank is None


@pytest.mark.parametrize("opaque", [False, True])
def test_few_samples_are_never_none(opaque):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 10), nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 30)
    )
    module = Wrapped(net) if opaque else net
    X = gaussian(40, 30, dtype=torch.float32)
    for samples in range(2, 12):
        found = diagnose(module, X[:samples])
        assert found.verdict == "undetermined", (samples, found.isthmus.reasons)
        assert "at least 22" in found.isthmus.reasons[0]
    found = diagnose(module, X)
    assert (found.verdict, found.rank) == ("determined", 10), found.isthmus.reasons


class Wrapped(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_what_the_budget_left_out_is_said():
    net = Waist()
    X = gaussian(2000, 12, dtype=torch.float32)
    whole = diagnose(net, X)
    assert whole.left_out == () and {part.state for part in whole.cost} == {"complete"}
    assert [part.name for part in whole.cost] == ["representations", "passage", "weights", "jacobians", "NTK"]
    hurried = diagnose(net, X, budget=1e-6)
    states = {part.name: part.state for part in hurried.cost}
    assert states["jacobians"] == "left out" and states["representations"] == "reduced"
    assert 16 <= hurried.samples < 2000
    assert len(hurried.left_out) == sum(state != "complete" for state in states.values())
    assert hurried["waist"].passes is None and hurried.verdict == "undetermined"
    again = Diagnosis.from_dict(hurried.to_dict())
    assert again.cost == hurried.cost and again["waist"].passes is None


def test_tensors_in_anything():
    inside = {"a": [torch.ones(2), None], "b": Output(torch.tensor(1.0), torch.zeros(3))}
    assert [tensor.ndim for tensor in tensors_in(inside)] == [1, 0, 1]
    assert first_tensor(Output(torch.tensor(1.0), torch.zeros(3))).shape == (3,)
    doubled = map_tensors(lambda t: 2 * t, inside)
    assert_close(doubled["a"][0], 2 * torch.ones(2))
    assert float(doubled["b"].loss) == 2.0
    assert doubled["a"][1] is None and isinstance(doubled["b"], Output)


class NamedOutput(OrderedDict):
    """As a HuggingFace output is: keys are attributes too, and there is no ``update``."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def update(self, *args, **kwargs):
        raise TypeError


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        out = NamedOutput()
        out["hidden"] = self.first(x)
        return out


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Layered(), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.inner(x).hidden)


def test_outputs_whose_keys_are_attributes():
    found = diagnose(Around(), gaussian(30, 4, dtype=torch.float32))
    assert found["inner.first"].passes
    assert found.samples == 30
