"""Q-plateau: loss against width where the whole curve is known, bounds of the start, and what stays undetermined."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import FullyConnected, IsthmusError, loss_plateau
from isthmus.constructions import bipartite_data, bipartite_optimum
from isthmus.discovery._plateau import _judged, _resized
from isthmus.objective import cost
from isthmus.plotting.style import new_figure
from tools import assert_close, gaussian, generator, random_net


def loss_of(net, X, Y, ridge):
    with torch.no_grad():
        return float(cost(net(X), Y)) + ridge * sum(float(p.square().sum()) for p in net.parameters())


@pytest.mark.parametrize(("classes", "each"), [(2, 4), (4, 2)])
def test_the_curve_of_one_hot_outputs_is_known_at_every_width(classes, each):
    """X = I, no bias: each singular value s = √m of Y that is kept becomes s − λN, at the price 2λ(s − λN)."""
    N, ridge, s = classes * each, 0.01, math.sqrt(each)
    Y = torch.eye(classes, dtype=torch.float64).repeat(each, 1)
    here = loss_plateau(torch.eye(N), Y, ridge=ridge, depth=2, bias=0.0, max_width=12, starts=2)
    kept = ridge**2 * N + 2 * ridge * (s - ridge * N)
    for n, value in zip(here.widths, here.losses):
        count = min(n, classes)
        assert_close(value, count * kept + (classes - count) * s**2 / N, rtol=1e-6, reason="an iteration's end")
    assert (here.start, here.state) == (classes, "plateau")
    # By another route: neurons of the wide network fall onto as many rays.
    assert here.rays == (classes,)
    assert here.bound == N * (N + 1) and here.outputs == N * classes
    assert here.parameters == classes * (N + classes) < here.widest
    assert_close(loss_of(here.network, torch.eye(N, dtype=torch.float64), Y, ridge), here.loss, rtol=0.01, reason="1 %")
    assert here.network.dims[1] == classes
    assert str(classes) in here.sentence and here.to_dict()["state"] == "plateau"
    (axes,) = here.plot(new_figure(6.0, 4.0, dpi=30)).axes
    drawn = {line.get_label(): line.get_data() for line in axes.lines}
    assert_close(drawn["least up to this width"][1], list(here.losses))
    assert drawn[f"from width {classes} on"][0][0] == classes


def test_the_data_of_high_rank_need_a_quarter_of_the_square():
    """B_4 of Prop. 14: N²/4 = 4 neurons, though its rank is 3; the loss is that of the known optimum."""
    X, Y = bipartite_data(4)
    here = loss_plateau(X, Y, ridge=0.02, depth=2, bias=0.0, widths=[1, 2, 3, 4, 6, 10], starts=2)
    assert here.loss == pytest.approx(loss_of(bipartite_optimum(4, ridge=0.02), X, Y, 0.02), rel=1e-6)
    assert (here.start, here.state) == (4, "plateau") and int(torch.linalg.matrix_rank(Y)) == 3


def test_scalar_inputs_and_outputs_need_at_most_four_times_the_samples():
    X = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    here = loss_plateau(X, X.abs(), ridge=1e-3, depth=2, max_width=24, starts=2)
    assert here.state == "plateau" and 2 <= here.start <= 4 * len(X)


def test_widths_that_are_too_few_leave_it_undetermined():
    Y = torch.eye(4, dtype=torch.float64).repeat(2, 1)
    here = loss_plateau(torch.eye(8), Y, ridge=0.01, depth=2, bias=0.0, widths=[1, 2, 3], starts=1)
    assert here.state == "undetermined" and "max_width" in here.reasons[0]
    # At 4 it has begun, and to know it one must look further.
    assert loss_plateau(torch.eye(8), Y, ridge=0.01, depth=2, bias=0.0, widths=[2, 4], starts=1).state == "undetermined"


def test_a_theorem_ends_the_search():
    """Two samples: no more than six neurons are tried, and the last one needs no proof."""
    here = loss_plateau(torch.eye(2), torch.eye(2), ridge=0.01, depth=2, bias=0.0, starts=1)
    assert here.bound == 6 and here.widths[-1] == 6 and here.state == "plateau"


def test_a_strong_ridge_leaves_a_constant():
    X = gaussian(20, 3)
    here = loss_plateau(X, X[:, :2], ridge=10.0, depth=3, max_width=4, starts=1)
    assert here.start == 0 and here.parameters == 2
    without = loss_plateau(X, X[:, :2], ridge=10.0, depth=3, max_width=4, starts=1, bias=0.0)
    assert without.start == 0 and without.parameters == 0


def test_classes():
    X = torch.cat([gaussian(8, 2, seed=i) * 0.2 + 3 * torch.tensor([[math.cos(i), math.sin(i)]]) for i in (0, 2, 4)])
    labels = torch.arange(3).repeat_interleave(8)
    here = loss_plateau(X, labels, ridge=3e-3, depth=2, loss="cross_entropy", max_width=12, starts=2)
    assert here.state == "plateau" and 1 <= here.start <= 6 and here.outputs == 24 * 3


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_neurons_are_added_small_and_removed_weakest_first(bias):
    net = random_net([3, 4, 4, 2], bias=bias)
    X = gaussian(10, 3)
    wide = _resized(net, 9, generator(1))
    assert wide.dims == (3, 9, 9, 2)
    back = _resized(wide, 4, generator(2))
    with torch.no_grad():
        assert float((wide(X) - net(X)).norm()) < 0.3 * float(net(X).norm())
        assert_close(back(X), net(X))


def test_judgements():
    """One lucky training, and trainings that were still falling, are no evidence."""
    widths, losses = [1, 2, 4, 8], [1.0, 0.5, 0.5, 0.5]
    good = [[1.0], [0.5, 0.6], [0.5], [0.5]]
    assert _judged(widths, losses, good, 1, 0.01, 100, {})[0] == "plateau"
    lucky = [[1.0], [0.5, 0.6], [0.7], [0.7]]
    assert "starts" in _judged(widths, losses, lucky, 1, 0.01, 100, {})[1][0]
    assert "steps" in _judged(widths, losses, good, 1, 0.01, 100, {2: True, 8: True})[1][0]
    assert "diverged" in _judged([1], [math.inf], [[math.inf]], 0, 0.01, 100, {})[1][0]
    # At N(N+1) it need not go on.
    assert _judged([1, 2], [1.0, 0.5], [[1.0], [0.5, 0.5]], 1, 0.01, 2, {})[0] == "plateau"
    assert _judged([1, 2], [1.0, 0.5], [[1.0], [0.5, 0.5]], 1, 0.01, 3, {})[0] == "undetermined"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ridge": 0.0}, "ridge"),
        ({"depth": 1}, "depth"),
        ({"widths": [4, 2]}, "widths"),
        ({"widths": []}, "widths"),
        ({"starts": 0}, "starts"),
        ({"loss": "hinge"}, "loss"),
        ({"Y": gaussian(3, 1)}, "rows"),
    ],
)
def test_bad_input(change, match):
    given = {"X": gaussian(4, 2), "Y": gaussian(4, 1), "ridge": 0.1, **change}
    with pytest.raises(IsthmusError, match=match):
        loss_plateau(given.pop("X"), given.pop("Y"), **given)


def test_the_result_holds_a_network_of_the_library():
    here = loss_plateau(torch.eye(2), torch.eye(2), ridge=0.01, depth=2, starts=1, max_width=2)
    assert type(here.network) is FullyConnected
