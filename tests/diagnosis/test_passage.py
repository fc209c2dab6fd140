"""What gets past a frozen layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from architectures import ARCHITECTURES
from coverage_of_intervals import possible
from isthmus.diagnosis._capture import in_float64, untouched
from isthmus.diagnosis._jacobians import NOTHING, bypass
from tools import assert_close, gaussian


class Sum(nn.Module):
    """f(x) = a·x₁ + b·x₂ through two layers side by side, then one for both."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.left, self.right, self.last = (nn.Linear(1, 1, bias=False).double() for _ in range(3))
        self.left.weight.data.fill_(a)
        self.right.weight.data.fill_(b)
        self.last.weight.data.fill_(2.0)

    def forward(self, x):
        return self.last(self.left(x[:, :1]) + self.right(x[:, 1:]))


def test_shares_of_two_ways():
    X = gaussian(50, 2)
    shares = bypass(Sum(3.0, 1.0), ((X,), {}), ["left", "right", "last"]).shares
    d = X - X[0]
    both = (3 * d[:, 0] + d[:, 1]).square().sum()
    assert_close(shares["left"], d[:, 1].square().sum() / both)
    assert_close(shares["right"], (3 * d[:, 0]).square().sum() / both)
    assert shares["last"] == 0.0


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_gates_of_real_architectures(name):
    """The last layer always is one, the first too; what stands inside a residual block is not."""
    module, X = ARCHITECTURES[name]()
    module, _ = in_float64(module)
    X = X[:6].double() if X.is_floating_point() else X[:6]
    names = [n for n, m in module.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.LSTM, nn.Embedding))]
    names = [n for n in names if "out_proj" not in n]  # attention never calls it
    with untouched(module):
        shares = bypass(module, ((X,), {}), names).shares
    assert shares[names[-1]] <= NOTHING
    assert shares[names[0]] <= NOTHING
    bypassed = {n for n, share in shares.items() if share > 1e-6}
    assert bool(bypassed) == (name in ("resnet", "transformer", "unet"))


def test_a_layer_that_is_called_twice_is_frozen_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3).double()

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x))) + 0.0

    assert bypass(Twice(), ((gaussian(5, 3),), {}), ["layer"]).shares["layer"] == 0.0


def test_what_never_varies_and_what_depends_on_the_data():
    class Fickle(nn.Module):
        """Calls its layer more often for some inputs."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2).double()

        def forward(self, x):
            out = self.layer(x)
            return self.layer(out) if not torch.equal(x, x[:1].expand_as(x)) else out

    assert math.isnan(bypass(Fickle(), ((gaussian(5, 2),), {}), ["layer"]).shares["layer"])
    silent = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).double()
    silent[1].weight.data.zero_()
    assert math.isnan(bypass(silent, ((gaussian(5, 2),), {}), ["0"]).shares["0"])
    assert not silent[0]._forward_hooks


def test_what_is_overwritten_in_place_is_frozen_as_it_was():
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = (nn.Linear(3, 3).double() for _ in range(2))

        def forward(self, x):
            return self.last(self.first(x).mul_(2.0))

    assert bypass(InPlace(), ((gaussian(8, 3),), {}), ["first", "last"]).shares == {"first": 0.0, "last": 0.0}


@pytest.mark.parametrize("room", [0, 200, 2**27])
def test_what_is_kept_changes_nothing(room):
    module, X = ARCHITECTURES["resnet"]()
    module, _ = in_float64(module)
    names = [name for name, _ in module.named_modules() if name]
    with untouched(module):
        whole = bypass(module, ((X[:5].double(),), {}), names)
        assert bypass(module, ((X[:5].double(),), {}), names, room=room) == whole


def held(samples: int, draws: int) -> tuple[int, int]:
    """Draws whose interval holds the share of all samples beside the same fixed one, and those with a third of it."""
    module, _ = ARCHITECTURES["resnet"]()
    module, _ = in_float64(module)
    layers = ["stages.0.conv1"]
    fixed = gaussian(1, 3, 8, 8, seed=90_000)
    inside = narrowed = 0
    with untouched(module):
        everybody = torch.cat([fixed, gaussian(3000, 3, 8, 8, seed=90_001)])
        truth = bypass(module, ((everybody,), {}), layers).shares[layers[0]]
        for seed in range(draws):
            X = torch.cat([fixed, gaussian(samples, 3, 8, 8, seed=91_000 + seed)])
            one = bypass(module, ((X,), {}), layers).ranges[layers[0]]
            inside += one.low <= truth <= one.high
            narrowed += one.value - (one.value - one.low) / 3 <= truth <= one.value + (one.high - one.value) / 3
    return inside, narrowed


def test_the_interval_of_a_share():
    assert possible(held(16, 20)[0], 20)
    exact = bypass(Sum(1.0, 1.0), ((gaussian(30, 2),), {}), ["left", "last"])
    assert list(exact.ranges) == ["left"]  # a share of 0 is 0
    assert not bypass(Sum(1.0, 1.0), ((gaussian(5, 2),), {}), ["left"]).ranges


@pytest.mark.slow
@pytest.mark.parametrize("samples", [8, 16])
def test_it_holds_the_share_in_95_percent_of_200_draws(samples):
    inside, narrowed = held(samples, 200)
    assert possible(inside, 200)
    assert not possible(narrowed, 200)
