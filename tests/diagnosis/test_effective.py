"""Effective dimensions with their intervals, a fresh copy beside them, and what projections leave of the outputs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from architectures import ARCHITECTURES
from coverage_of_intervals import possible
from isthmus.diagnosis import Diagnosis, diagnose
from isthmus.diagnosis._capture import OutputPlace, survey
from isthmus.diagnosis._effective import Points, _owners, effective_dimension, points_of
from isthmus.diagnosis._estimates import mean_of
from isthmus.diagnosis._fresh import fresh_copy
from isthmus.diagnosis._observe import StreamedSpectrum, as_rows
from isthmus.diagnosis._projected import Held, directions_of, rank_of
from tools import assert_close, gaussian, orthogonal


def exact(rows: torch.Tensor) -> tuple[float, float]:
    values = torch.linalg.eigvalsh(torch.cov(rows.double().T))
    return float(values.sum() ** 2 / values.square().sum()), float(values.sum() / values[-1])


class Tokens(nn.Module):
    """Positions of a sample that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(12, 20)

    def forward(self, x):
        return torch.tanh(self.mix(x[:, :1] + 0.5 * x))


NETS = {
    "relu": (lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 40)), (20,)),
    "narrow": (lambda: nn.Sequential(nn.Linear(20, 3), nn.ReLU(), nn.Linear(3, 40)), (20,)),
    "linear": (lambda: nn.Linear(30, 50), (30,)),
    "tokens": (Tokens, (6, 12)),
}


def coverage(name: str, samples: int, draws: int, population: int = 40_000) -> tuple[int, int, float]:
    """Draws whose intervals hold the number of the population, and the mean estimate over it.

    Seeds are others than those that the intervals were tried on.
    """
    build, shape = NETS[name]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(11)
        net = build()
        truth = exact(net(gaussian(population, *shape, seed=99, dtype=torch.float32)).flatten(0, -2))
        inside, values = [0, 0], []
        for seed in range(draws):
            out = net(gaussian(samples, *shape, seed=50_000 + seed, dtype=torch.float32))
            owners = torch.arange(samples).repeat_interleave(math.prod(out.shape[1:-1]))
            found = effective_dimension(Points(out.flatten(0, -2), owners, None))
            assert found is not None
            values.append(found.participation.value)
            for at, one in enumerate((found.participation, found.stable)):
                inside[at] += one.low <= truth[at] <= one.high
    return inside[0], inside[1], sum(values) / draws / truth[0]


def test_intervals_hold_the_number_of_all_samples():
    spread, stable, mean = coverage("relu", 48, 30, 10_000)
    assert possible(spread, 30)
    assert possible(stable, 30)
    assert 0.9 < mean < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("samples", [8, 16, 64, 256])
@pytest.mark.parametrize("name", list(NETS))
def test_intervals_hold_it_in_95_percent_of_200_draws(name, samples):
    spread, stable, mean = coverage(name, samples, 200)
    assert possible(spread, 200)
    assert possible(stable, 200)
    assert abs(mean - 1) < (0.3 if samples < 16 else 0.2 if samples < 64 else 0.1)


def surface(d: int, curved: bool, samples: int, seed: int) -> torch.Tensor:
    """A product of d circles, or of tanhs of d standard normals: of even density, and of a falling one."""
    if curved:
        weights = gaussian(d, 20, seed=d) / d**0.5
        return torch.tanh(0.7 * gaussian(samples, d, seed=60_000 + seed) @ weights)
    angles = 6.283185307 * torch.rand(samples, d, generator=torch.Generator().manual_seed(60_000 + seed)).double()
    return torch.cat([angles.cos(), angles.sin()], 1)


def around(d: int, curved: bool, samples: int, draws: int) -> tuple[int, int]:
    """Draws whose interval of TwoNN holds d, and those with a third of it."""
    inside = narrowed = 0
    for seed in range(draws):
        found = effective_dimension(Points(surface(d, curved, samples, seed), torch.arange(samples), None))
        assert found is not None
        one = found.intrinsic
        inside += one.low <= d <= one.high
        narrowed += one.value - (one.value - one.low) / 3 <= d <= one.value + (one.high - one.value) / 3
    return inside, narrowed


def test_intervals_of_two_nn_hold_the_dimension():
    assert possible(around(2, False, 100, 40)[0], 40)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "samples"), [(1, 60), (1, 400), (2, 100), (2, 400), (3, 200), (3, 400)])
@pytest.mark.parametrize("curved", [False, True])
def test_intervals_of_two_nn_hold_it_in_95_percent_of_200_draws(d, samples, curved):
    inside, narrowed = around(d, curved, samples, 200)
    assert possible(inside, 200)
    assert not possible(narrowed, 200)


def test_a_mean_of_eight_skewed_draws():
    """exp of standard normals, more skewed than squares of them: computed for 99 %, the interval holds 95 %."""
    source, inside, plain = torch.Generator().manual_seed(70_000), 0, 0
    for _ in range(1000):
        draws = torch.randn(8, generator=source, dtype=torch.float64).exp()
        one = mean_of(draws, "")
        inside += one.low <= math.exp(0.5) <= one.high
        plain += abs(float(draws.mean()) - math.exp(0.5)) <= 2.365 * float(draws.std()) / 8**0.5
    assert possible(inside, 1000)
    assert not possible(plain, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("flat", [False, True])
def test_sketched_spectra_are_within_their_stated_error_in_95_percent_of_200_draws(flat):
    scale = torch.ones(1500) if flat else torch.logspace(0, -3, 1500)
    rows = gaussian(60, 1500) @ torch.diag(scale.double())
    direct = torch.linalg.svdvals(rows - rows.mean(0)) / len(rows) ** 0.5
    inside = 0
    for seed in range(50_000, 50_200):
        stream = StreamedSpectrum(1500, sketch=512, exact_up_to=1024, seed=seed)
        stream.update(rows)
        found = stream.spectrum()
        inside += bool(((found[:59] / direct[:59] - 1).abs() <= stream.error[:59]).all())
    assert possible(inside, 200)


def test_equal_directions_are_counted():
    found = effective_dimension(Points(gaussian(400, 6) @ orthogonal(30, 6).mT, torch.arange(400), None))
    assert found is not None
    assert found.participation.low <= 6 <= found.participation.high
    assert found.stable.low <= 6 <= found.stable.high
    # Moved, turned and scaled, they are as many.
    again = effective_dimension(Points((gaussian(400, 6) @ orthogonal(30, 6).mT) * 1e-5 + 3.0, torch.arange(400), None))
    assert again is not None
    assert_close(again.participation.value, found.participation.value, rtol=1e-6, reason="digits lost to the shift")


def test_no_number_exceeds_the_units():
    found = effective_dimension(Points(gaussian(12, 300), torch.arange(12), None))
    assert found is not None
    assert max(found.participation.value, found.participation.high, found.stable.value, found.stable.high) <= 300


def test_points_of_one_sample_do_not_count_as_more():
    """Each point eight times: the number stays, and the interval does not get narrower."""
    X, owners = gaussian(40, 10), torch.arange(40)
    once, often = (
        effective_dimension(Points(X.repeat_interleave(k, 0), owners.repeat_interleave(k), None)) for k in (1, 8)
    )
    assert once is not None
    assert often is not None
    assert_close(once.participation.value, often.participation.value)
    assert_close(once.participation.high, often.participation.high)


@pytest.mark.parametrize("rows", [torch.ones(20, 4), torch.full((20, 4), math.nan)])
def test_what_does_not_vary_has_none(rows):
    assert effective_dimension(Points(rows, torch.arange(20), None)) is None
    assert effective_dimension(Points(gaussian(20, 4), torch.zeros(20).long(), None)) is None


def test_few_samples_have_no_interval():
    found = effective_dimension(Points(gaussian(5, 4), torch.arange(5), None))
    assert found is not None
    assert math.isnan(found.participation.low)
    assert "(" not in found.participation.shown


@pytest.mark.parametrize(
    ("shape", "axis", "each", "layout"),
    [
        ((4, 7), 0, 1, "last"),
        ((4, 5, 7), 0, 1, "last"),
        ((5, 4, 7), 1, 1, "last"),
        ((4, 7, 3, 2), 0, 1, "channels-first"),
        ((8, 7), 0, 2, "last"),
        ((8, 3, 7), 0, 2, "last"),
    ],
)
def test_owners_are_the_samples_of_the_rows(shape, axis, each, layout):
    numbers = torch.arange(shape[axis]) // each
    output = numbers.reshape([-1 if at == axis else 1 for at in range(len(shape))]).expand(shape).double()
    rows, _ = as_rows(output, layout)
    place = OutputPlace("", 0, 1, tuple(shape), axis, each)
    assert torch.equal(rows[:, 0].long(), _owners(output, place, layout))


def test_points_come_from_all_samples_and_not_from_padding():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 5)

        def forward(self, ids, attention_mask):
            return self.table(ids)

    module, ids = Masked(), torch.arange(1, 7).repeat(10, 1)
    mask = (torch.arange(6) < 4).long().repeat(10, 1)
    calls = [((), {"ids": ids[:6], "attention_mask": mask[:6]}), ((), {"ids": ids[6:], "attention_mask": mask[6:]})]
    places = survey(module, calls[0], ["table"])
    found = points_of(module, calls, places, {"table": "last"}, samples=10, seed=0)["table"]
    assert found.owners.unique().tolist() == list(range(10))
    assert len(found.rows) == 40
    padding = module.table.weight[5:7].detach()
    assert not any(bool((row == padding).all(1).any()) for row in found.rows)


# ---- The fresh copy


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_fresh_copy_is_another_network_and_leaves_the_first(name):
    module, X = ARCHITECTURES[name]()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    random = torch.get_rng_state()
    fresh, how = fresh_copy(module, ((X,), {}), 0)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert "reset_parameters" in how
    weights = {key: value for key, value in fresh.named_parameters() if value.ndim > 1 and value.unique().numel() > 1}
    assert weights
    assert not any(torch.equal(value, before[key]) for key, value in weights.items())
    assert not fresh.training


def test_what_cannot_be_initialised_is_shuffled_and_said():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.arange(12.0).reshape(3, 4))

        def forward(self, x):
            return x @ self.matrix

    module = Own()
    fresh, how = fresh_copy(module, ((torch.ones(2, 3),), {}), 0)
    assert "'matrix'" in how
    assert not torch.equal(fresh.matrix, module.matrix)
    assert torch.equal(fresh.matrix.flatten().sort().values, module.matrix.flatten().sort().values)


# ---- Projections


def test_the_loss_of_a_projection():
    """z = x, f = Wz: the loss is that of the directions that are left out."""
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 4, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(6))
    X = gaussian(30, 6) * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.1]).double()
    points = Points(X, torch.arange(30), None)
    ways = directions_of(points, lambda owners: owners >= 0)
    assert ways is not None
    mean, V, _ = ways
    held = Held(net, [((X[:10],), {}), ((X[10:],), {})])
    assert held.samples == 30
    left = (X - mean) @ (torch.eye(6).double() - V[:, :2] @ V[:, :2].mT) @ net[1].weight.mT
    out = X @ net[1].weight.mT
    assert_close(held.loss("0", mean, V[:, :2]), left.square().sum() / (out - out.mean(0)).square().sum())
    assert held.loss("0", mean, V) < 1e-20


def test_a_rank_needs_points_and_a_smaller_product():
    values = torch.tensor([5.0, 3.0, 1e-6, 1e-6, 1e-6, 1e-6]).double()
    assert rank_of(values, (6, 6), 100) == 2
    assert rank_of(values, (6, 6), 3) is None
    assert rank_of(values, (6, 2), 100) is None


def residual(planted: int = 0) -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x):
            return x + self.b(torch.tanh(self.a(x)))

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(16, 16), Block(), Block(), nn.Linear(16, 16))
        if planted:
            for layer in (net[1].b, net[2].a):
                U, s, Vt = torch.linalg.svd(layer.weight, full_matrices=False)
                layer.weight.copy_(U[:, :planted] * s[:planted] @ Vt[:planted])
    return net


def test_a_diagnosis_without_a_bottleneck_says_what_there_is():
    found = diagnose(residual(planted=2), gaussian(80, 16, dtype=torch.float32))
    assert found.verdict == "none"
    assert found.narrowest is not None
    layer = found[found.narrowest.layer]
    sizes = {one.name: one.effective.participation.value for one in found.layers if one.passes and one.effective}
    assert layer.effective is not None
    assert layer.effective.participation.value == min(value for name, value in sizes.items() if name not in ("3", ""))
    assert f"narrowest at layer {layer.name!r}" in found.sentence
    assert "freshly initialised" in found.sentence
    # The planted ones are found at no loss; what is of full rank is not.
    assert found["1.b"].factor is not None
    assert (found["1.b"].factor.rank, found["2.a"].factor.rank) == (2, 2)
    assert found["1.b"].factor.loss < 0.02
    assert found["0"].factor is None
    keys = [table.key for table in found.tables()]
    assert keys[:2] == ["effective", "factors"]
    again = Diagnosis.from_dict(found.to_dict())
    assert again.sentence == found.sentence
    assert again["1.b"].factor == found["1.b"].factor
    assert again[layer.name].fresh == layer.fresh


def test_where_there_is_a_bottleneck_nothing_more_is_measured():
    net = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 8))
    found = diagnose(net, gaussian(60, 8, dtype=torch.float32))
    assert found.verdict == "determined"
    assert found.narrowest is None
    assert all(one.effective is None for one in found.layers)


def test_a_module_that_cannot_be_copied_has_no_fresh_one():
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    net = nn.Sequential(nn.Linear(8, 8), Stubborn(8, 8)).double()
    found = diagnose(net, gaussian(60, 8))
    assert found["0"].effective is not None
    assert found["0"].fresh is None
    assert any("no copies" in note for note in found.notes)


def test_few_points_of_every_layer_come_before_all_of_one():
    """A clock that only the estimates move: with time for few points all layers have them."""
    points = {name: Points(gaussian(300, 6), torch.arange(300), None) for name in "abcd"}
    assert [len(one.thinned(128).rows) for one in points.values()] == [128] * 4
    assert points["a"].thinned(128).owners.tolist() == [at * 300 // 128 for at in range(128)]
    found = diagnose(residual(), gaussian(300, 16, dtype=torch.float32))
    assert {one.effective.points for one in found.layers if one.effective} == {256}


def test_without_time_they_are_left_out():
    found = diagnose(residual(), gaussian(80, 16, dtype=torch.float32), budget=1e-6)
    assert any(line.startswith("effective dimensions left out") for line in found.left_out)
    assert found.narrowest is None
