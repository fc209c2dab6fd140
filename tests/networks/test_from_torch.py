"""from_torch and to_torch: round trips, and refusals that name the layer."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from isthmus import IsthmusError, from_torch
from tools import assert_close, gaussian, random_net


def check_same(module: nn.Module, d_in: int) -> None:
    X = gaussian(9, d_in, dtype=torch.float32)
    assert_close(from_torch(module)(X), module(X))


@pytest.mark.parametrize("slope", [-1.0, -0.4, 0.0, 0.2, 1.0])
@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dims", [[3, 2], [3, 5, 2], [3, 5, 4, 2]])
def test_round_trip(slope, bias, dims):
    net = random_net(dims, slope, bias)
    module = net.to_torch()
    X = gaussian(9, 3)
    assert_close(module(X), net(X))
    back = from_torch(module)
    assert_close(back(X), net(X))
    assert back.dims == net.dims
    if len(dims) > 2:
        assert back.slope == slope
    assert back.Ws[0].dtype == torch.float64


def test_copies():
    net = random_net([3, 5, 2])
    module = net.to_torch()
    back, again = from_torch(module), from_torch(net)
    with torch.no_grad():
        module[0].weight.zero_()  # pyright: ignore[reportAttributeAccessIssue]
    assert_close(back.Ws[0], net.Ws[0])
    assert again.Ws[0].data_ptr() != net.Ws[0].data_ptr()
    assert again.bias == net.bias


def test_accepted_forms():
    check_same(nn.Linear(3, 2), 3)
    check_same(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 3)
    check_same(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), 3)
    check_same(nn.Sequential(nn.Identity(), nn.Linear(3, 4), nn.Identity(), nn.ReLU(), nn.Linear(4, 2)), 3)
    check_same(nn.Sequential(nn.Linear(3, 4, bias=False), nn.LeakyReLU(0.2), nn.Linear(4, 2)), 3)
    inner = nn.Sequential(OrderedDict(first=nn.Linear(4, 4), act=nn.ReLU()))
    check_same(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(inner, nn.Sequential()), nn.Linear(4, 2)), 3)


def test_mixed_bias_and_none():
    mixed = from_torch(nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)))
    assert mixed.bias == 1.0
    assert not mixed.bs[0].any()
    none = from_torch(nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)))
    assert none.bias == 0.0
    assert none.bs == ()


def test_one_activation_object_used_twice():
    act = nn.ReLU()
    module = nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 4), act, nn.Linear(4, 2))
    check_same(module, 3)
    assert from_torch(module).slope == 0.0


class OwnReLU(nn.ReLU):
    def forward(self, input):  # noqa: A002
        return input.square()


class OwnSequential(nn.Sequential):
    def forward(self, input):  # noqa: A002
        return -super().forward(input)


def _shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), layer, nn.ReLU(), layer)


def _weight_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))


def _hooked() -> nn.Module:
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda *_: None)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), layer)


def _chain(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), *middle, nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("module", "offender"),
    [
        (_chain(nn.BatchNorm1d(4)), "'1': BatchNorm1d"),
        (_chain(nn.ReLU(), nn.Dropout(0.5)), "'2': Dropout"),
        (_chain(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))), "'1.1.0': Tanh"),
        (nn.Sequential(nn.Conv1d(3, 4, 1)), "'0': Conv1d"),
        (nn.Sequential(OrderedDict(a=nn.Linear(3, 4), odd=nn.GELU(), b=nn.Linear(4, 2))), "'odd': GELU"),
        (_chain(OwnReLU()), "'1': OwnReLU"),
        (OwnSequential(nn.Linear(3, 2)), "OwnSequential"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU()), "'1' after it"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 4)), "'0' before it"),
        (_chain(nn.ReLU(), nn.ReLU()), "'2'"),
        (_chain(nn.ReLU(), nn.Linear(4, 4), nn.LeakyReLU(0.1)), "'3'"),
        (_chain(nn.ReLU(), nn.Linear(4, 4)), "'3'"),
        (_chain(nn.LeakyReLU(1.5)), "'1'"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2)), "'2'"),
        (_chain(nn.ReLU6()), "'1': ReLU6"),
        (_shared(), "'4' again"),
        (_weight_norm(), "'2': ParametrizedLinear"),
        (_hooked(), "'2': Linear"),
        (nn.Sequential(), "without one"),
        (nn.Sequential(nn.Identity()), "without one"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_refusal_names_the_layer(module, offender):
    with pytest.raises(IsthmusError) as caught:
        from_torch(module)
    assert offender in str(caught.value)
    assert len(str(caught.value)) < 600
