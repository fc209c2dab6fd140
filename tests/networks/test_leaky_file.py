"""Files of leaky ResNets: bit for bit for every option; what does not fit is refused before anything is built."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from old_files import old_parts

import isthmus
from isthmus import IsthmusError
from isthmus.networks._network import from_parts, to_parts
from leaky_nets import OPTIONS, leaky
from tools import gaussian


def same(a, b):
    """Whether two networks agree in every bit and every setting."""
    x, y = a.state_dict(), b.state_dict()
    bits = all(torch.equal(x[name].reshape(-1).view(torch.uint8), y[name].reshape(-1).view(torch.uint8)) for name in x)
    return list(x) == list(y) and bits and to_parts(a)[0] == to_parts(b)[0] and repr(a) == repr(b)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_round_trip(tmp_path, options, dtype):
    net = leaky(**options, dtype=dtype)
    net.adapt(gaussian(20, 4, dtype=dtype))
    isthmus.save(net, tmp_path / "net.safetensors")
    back = isthmus.load(tmp_path / "net.safetensors")
    assert type(back) is isthmus.LeakyResNet and same(net, back)
    X = gaussian(5, 4, dtype=dtype)
    assert torch.equal(net(X), back(X))
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in back.named_parameters()]


def test_a_copy_that_trains_on(tmp_path):
    net = leaky(steps="adaptive")
    isthmus.save(net, tmp_path / "net.safetensors")
    back = isthmus.load(tmp_path / "net.safetensors")
    back(gaussian(5, 4)).sum().backward()
    assert all(p.grad is not None for p in back.parameters())
    moved = [net.adapt(gaussian(9, 4)), back.adapt(gaussian(9, 4))]
    assert list(moved[0].values()) == list(moved[1].values()) != []


def changed(old, **changes):
    """Parts of a good file with some of its configuration or tensors replaced; None takes a tensor away."""
    config, tensors = old_parts(leaky())[1:] if old else to_parts(leaky())
    for key, value in changes.items():
        if key in config or key == "surplus":
            config[key] = value
        elif value is None:
            tensors.pop(key.replace("__", "."))
        else:
            tensors[key.replace("__", ".")] = value
    return config, tensors


RHO = torch.full((5,), 0.2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surplus": 1}, "must have the keys"),
        ({"width": 8}, "tensor 'W_in' must have shape"),
        ({"width": 2**60}, "`width` must be an integer in"),
        ({"width": "7"}, "`width` must be an integer"),
        ({"layers": 10**5}, "there must be at least 200000 tensors"),
        ({"layers": 10**12}, "there must be at least 2000000000000 tensors"),
        ({"layers": -1}, "`layers` must be an integer in"),
        ({"layers": 4}, "the tensors must be the 14 that the configuration implies"),
        ({"bias": 0}, "the tensors must be the 12 that the configuration implies"),
        ({"bias": 0.5}, "`bias` must be an integer"),
        ({"effective_depth": -1.0}, "`effective_depth`"),
        ({"effective_depth": "inf"}, "`effective_depth`"),
        ({"steps": "other"}, "`steps` must be one of"),
        ({"embed": "other"}, "`embed` must be one of"),
        ({"slope": 3}, "`slope`"),
        ({"irregularity": -1}, "`irregularity`"),
        ({"adapt_every": 0}, "`adapt_every`"),
        ({"dtype": "int8"}, "`dtype` must be one of"),
        ({"dtype": ["float64"]}, "`dtype` must be one of"),
        ({"dtype": "float32"}, "and dtype torch.float32. Got shape"),
        ({"W_in": torch.zeros(7, 5, dtype=torch.float64)}, r"tensor 'W_in' must have shape \(7, 4\)"),
        ({"W_out": torch.zeros(3, dtype=torch.float64)}, "tensor 'W_out'"),
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_parts_that_do_not_fit(old, changes, message):
    refused(changed(old, **changes), message)


def refused(parts, message):
    """Without any memory of the size that the file asks for."""
    tracemalloc.start()
    try:
        with pytest.raises(IsthmusError, match=message):
            from_parts(isthmus.LeakyResNet, *parts)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights__0": torch.zeros(7, 6, dtype=torch.float64)}, r"tensor 'path.0.weight' must have shape \(7, 7\)"),
        ({"biases__3": torch.zeros(7, dtype=torch.float32)}, "tensor 'path.3.bias'"),
        ({"weights__2": None, "weights__9": torch.zeros(7, 7, dtype=torch.float64)}, "'path.2.weight' missing"),
        ({"rho": RHO.float()}, r"tensor 'path.0.rho' must have shape \(\)"),
        ({"rho": RHO[:4]}, "'path.4.rho' missing"),
        ({"rho": RHO * torch.nan}, "`rho` must be positive lengths that sum to 1"),
        ({"rho": RHO * 2}, "`rho` must be positive lengths that sum to 1. Got sum 2"),
        ({"rho": torch.tensor([1.2, -0.2, 0.0, 0.0, 0.0], dtype=torch.float64)}, "`rho` must be positive"),
        ({"rho": torch.tensor([torch.inf, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)}, "`rho` must be positive"),
    ],
)
def test_old_tensors_that_do_not_fit(changes, message):
    refused(changed(True, **changes), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path__0__weight": torch.zeros(7, 6, dtype=torch.float64)}, r"'path.0.weight' must have shape \(7, 7\)"),
        ({"path__3__bias": torch.zeros(7, dtype=torch.float32)}, "tensor 'path.3.bias'"),
        ({"path__2__weight": None, "path__9__weight": RHO}, "'path.2.weight' missing"),
        ({"path__0__rho": RHO[0].float()}, r"tensor 'path.0.rho' must have shape \(\)"),
        ({"path__0__rho": RHO}, r"tensor 'path.0.rho' must have shape \(\)"),
        ({"path__0__rho": RHO[0] * torch.nan}, "`rho` must be positive lengths that sum to 1"),
        ({"path__0__rho": RHO[0] * 6}, "`rho` must be positive lengths that sum to 1. Got sum 2"),
        ({"path__0__rho": RHO[0] * 3, "path__1__rho": -RHO[0]}, "`rho` must be positive"),
        ({"path__1__rho": RHO[0] * torch.inf}, "`rho` must be positive"),
    ],
)
def test_tensors_that_do_not_fit(changes, message):
    refused(changed(False, **changes), message)


@pytest.mark.parametrize("config", [None, [], "x", {}, 3])
def test_no_configuration(config):
    with pytest.raises(IsthmusError, match="must have the keys" if config == {} else "must be an object"):
        from_parts(isthmus.LeakyResNet, config, {})


def test_a_forged_file_is_refused(tmp_path, monkeypatch):
    """All hashes right, the content wrong: written by ourselves with the check taken out."""
    net = leaky()
    monkeypatch.setattr(isthmus.LeakyResNet, "check_state", lambda *_: None)
    with torch.no_grad():
        net.stages[1].rho.fill_(float("nan"))
    isthmus.save(net, tmp_path / "forged.safetensors")
    monkeypatch.undo()
    with pytest.raises(IsthmusError, match="`rho` must be positive lengths"):
        isthmus.load(tmp_path / "forged.safetensors")


def test_steps_of_another_sum_are_not_saved(tmp_path):
    net = isthmus.LeakyResNet.from_weights(leaky().Ws, [1.0] * 5, effective_depth=0.5)
    with pytest.raises(IsthmusError, match="save: `rho` must be positive lengths that sum to 1"):
        isthmus.save(net, tmp_path / "net.safetensors")
    assert not (tmp_path / "net.safetensors").exists()
