"""Ranks known by construction, networks without one, and cases that must stay open."""

from __future__ import annotations

import pytest
import torch

from isthmus import FullyConnected, SmoothNetwork
from isthmus.measures import bottleneck_rank, jacobian_rank, parameter_norms
from isthmus.measures._bottleneck_rank import read_samples
from tools import assert_close, frame, gaussian, generator, linear_net, orthogonal, random_net, three_part_net


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_three_part_networks(k, noise, dtype):
    for seed in range(3):
        net = three_part_net(k, noise=noise, seed=50 * seed, dtype=dtype)
        found = bottleneck_rank(net.trace(gaussian(200, 12, seed=seed)))
        assert (found.verdict, found.rank) == ("determined", k), found.reasons
        assert found["weights"].rank == found["representations"].rank == k
        assert found["weights"].layers
        assert_close(found["norm"].number, parameter_norms(net).per_depth)


@pytest.mark.parametrize("condition", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("depth", [1, 2, 5, 10])
def test_linear_networks(condition, depth):
    d = 8
    for k in range(1, d + 1):
        s = torch.logspace(0, -torch.tensor(condition).log10().item(), k, dtype=torch.float64)
        # A spread spectrum of few values is full of gaps: only k ≥ 4 values or equal ones are unambiguous.
        if condition > 10 and k < 4:
            continue
        for width, dtype in ((d, torch.float64), (d + 4, torch.float64), (d, torch.float32)):
            net = linear_net(s, [d, *[width] * (depth - 1), d], seed=k, dtype=dtype)
            found = bottleneck_rank(net.trace(gaussian(200, d, seed=k)))
            if k == d and (width == d or depth < 3):
                assert found.verdict == "none", (k, width, dtype, found.reasons)
            else:
                assert (found.verdict, found.rank) == ("determined", k), (k, width, dtype, found.reasons)


RANDOM = [
    ([12, *[w] * (L - 1), 10], slope, bias)
    for w in (20, 60)
    for L in (2, 4, 9)
    for slope in (-1.0, 0.0, 0.2, 1.0)
    for bias in (0.0, 1.0)
] + [([n] * (L + 1), slope, 1.0) for n in (20, 50) for L in (1, 3, 8) for slope in (-0.5, 0.0, 1.0)]


def test_random_networks_have_none():
    """At most 2 of 66 may stay open (small random spectra have gaps too); none may be given a rank."""
    verdicts = []
    for index, (dims, slope, bias) in enumerate(RANDOM):
        net = random_net(dims, slope, bias, seed=index)
        verdicts.append(bottleneck_rank(net.trace(gaussian(150, dims[0], seed=index))).verdict)
    assert "determined" not in verdicts
    assert verdicts.count("undetermined") <= 2


@pytest.mark.slow
def test_many_random_networks_have_none():
    verdicts = []
    source = generator(77)

    def pick(*values):
        return values[int(torch.randint(len(values), (1,), generator=source))]

    for index in range(600):
        L, width, slope = (
            pick(*range(1, 13)),
            pick(10, 20, 50, 100),
            pick(-1.0, -0.5, 0.0, 0.0, 0.1, 0.5, 0.9, 1.0),
        )
        d_in, d_out = (width, width) if pick(0, 1) else (pick(*range(1, width + 1)), pick(*range(1, width + 1)))
        net = random_net([d_in, *[width] * (L - 1), d_out], slope, pick(0.0, 0.5, 1.0), seed=index)
        verdicts.append(bottleneck_rank(net.trace(gaussian(200, d_in, seed=index))).verdict)
    assert verdicts.count("determined") <= 1
    assert verdicts.count("undetermined") <= 24  # 4 %


@pytest.mark.parametrize("gap", [2.5, 3.5, 4.5])
def test_borderline_spectrum_stays_open(gap):
    width, depth = 10, 6
    s = torch.tensor([1.0] * 3 + [1 / gap] * 7, dtype=torch.float64)
    Ws = [orthogonal(width, width, seed=2 * i) * s @ orthogonal(width, width, seed=2 * i + 1).mT for i in range(depth)]
    found = bottleneck_rank(FullyConnected.from_weights(Ws, slope=0.5).trace(gaussian(200, width)))
    assert (found.verdict, found.rank) == ("undetermined", None)
    assert found["weights"].status == "unclear"
    assert 1 < found["weights"].number < found["weights"].tolerance


def test_disagreement_stays_open():
    # Weights of rank 4, data in two of their dimensions.
    net = linear_net([1.0] * 4, [8, 10, 10, 10, 8])
    X = gaussian(100, 2) @ orthogonal(8, 2, seed=7).mT
    found = bottleneck_rank(net.trace(X))
    assert found.verdict == "undetermined"
    assert "weights say 4, representations 2" in found.reasons[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("where", [0, 2, 4])
def test_constant_networks_have_rank_zero(where, dtype):
    net = random_net([6, 12, 12, 12, 5], seed=3)
    with torch.no_grad():
        net.weights[where % 4].zero_()
        for b in net.biases:
            b.normal_(generator=generator(4)).mul_(3).add_(
                0.1
            )  # their mean over samples is not exact in floating point
    found = bottleneck_rank(net.to(dtype).trace(gaussian(123, 6)))
    assert (found.verdict, found.rank) == ("determined", 0), found.reasons


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("offset", [1.0, 5.0])
def test_a_direction_constant_over_the_data_is_no_dimension(k, offset):
    net = three_part_net(k, d_in=13, offset=offset)
    X = torch.cat([gaussian(200, 12), torch.ones(200, 1, dtype=torch.float64)], 1)
    found = bottleneck_rank(net.trace(X))
    assert found["weights"].rank == k + 1
    assert (found.verdict, found.rank) == ("determined", k), found.reasons
    assert "stands in for a bias" in " ".join(found.reasons)


def cross_net(depth: int = 8, width: int = 8) -> FullyConnected:
    """f(x) = min(|x₀|, |x₁|)·(sign x₀, sign x₁) on [−1, 1]²: Jacobian rank 1, bottleneck rank 2 (errata,
    Example 1).

    clip(a, −m, m) = σ(a + m) − σ(a − m) − m with m = |b|; then identity layers on R²_+.
    """
    first = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    second = torch.tensor(
        [[1.0, -1, 1, 1], [1, -1, -1, -1], [0, 0, 1, 1], [1, 1, 1, -1], [-1, -1, 1, -1], [1, 1, 0, 0]]
    )
    clip = torch.tensor([[1.0, -1, -1, 0, 0, 0], [0, 0, 0, 1, -1, -1]])
    E_in, E_out, V = orthogonal(5, 2), orthogonal(6, 2, seed=1), frame(width, 2)
    Ws = [first.double() @ E_in.mT, second.double(), V @ clip.double()]
    bs = [torch.zeros(4), torch.zeros(6), (V @ torch.ones(2).double())]
    for _ in range(depth - 4):
        Ws.append(V @ V.mT)
        bs.append(torch.zeros(width))
    Ws.append(E_out @ V.mT)
    bs.append(torch.zeros(6))
    return FullyConnected.from_weights(Ws, [b.double() for b in bs])


def test_jacobian_rank_one_and_bottleneck_rank_two():
    net = cross_net()
    z = 2 * torch.rand(300, 2, generator=generator(), dtype=torch.float64) - 1
    X = z @ orthogonal(5, 2).mT
    expected = z.abs().amin(1, keepdim=True) * z.sign() + 1
    assert_close(net(X), expected @ orthogonal(6, 2, seed=1).mT)
    assert jacobian_rank(net, X).rank == 1
    found = bottleneck_rank(net.trace(X))
    assert (found.verdict, found.rank) == ("determined", 2), found.reasons
    assert found["jacobian"].rank == 1
    assert "the Jacobian has rank 1 < 2" in " ".join(found.reasons)


def test_low_rank_data_do_not_make_a_bottleneck():
    for slope in (0.0, 1.0):
        net = random_net([20, 40, 40, 40, 40, 20], slope, 0.0, seed=5)
        X = gaussian(300, 3) @ orthogonal(20, 3).mT
        assert bottleneck_rank(net.trace(X)).verdict == "none"


def test_narrow_architecture():
    for k in (2, 4):
        found = bottleneck_rank(random_net([12, 30, k, 30, 10], 0.3, seed=k).trace(gaussian(300, 12)))
        assert (found.verdict, found.rank) == ("determined", k), found.reasons


def test_jacobian_above_the_rank_is_refused():
    # Representations on the sampled data lie on a line, which the Jacobian does not know.
    net = linear_net([1.0] * 3, [8, 10, 10, 10, 8])
    X = gaussian(100, 1) @ orthogonal(8, 1).mT
    found = bottleneck_rank(net.trace(X))
    assert found.verdict == "undetermined"


def test_few_samples():
    net = three_part_net(3)
    assert bottleneck_rank(net.trace(gaussian(1, 12))).verdict != "none"
    assert bottleneck_rank(net.trace(gaussian(8, 12))).rank == 3


def test_kinds():
    found = bottleneck_rank(three_part_net(2).trace(gaussian(50, 12)))
    assert [e.kind for e in found.evidence] == ["weights", "representations", "jacobian", "norm"]
    assert all(e.explanation for e in found.evidence)
    with pytest.raises(KeyError):
        found["hamiltonian"]


def test_the_jacobian_is_that_of_the_activation():
    net = SmoothNetwork([3, 6, 3], dtype=torch.float64, generator=generator(4))
    X = gaussian(30, 3, seed=1)
    s = torch.stack([torch.linalg.svdvals(torch.autograd.functional.jacobian(net, x)) for x in X])
    trace = net.trace(X)
    expected, _ = read_samples(s, trace.source_eps * trace.depth)
    assert_close(bottleneck_rank(trace)["jacobian"].number, expected.gap)
