"""M-leaky as an ordinary module: the formula, its limits, its steps, its copies and its errors."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch.func import functional_call

import isthmus
from isthmus import DataError, FullyConnected, IsthmusError, LeakyResNet, NumericalWarning
from isthmus.networks import LeakyStep
from isthmus.networks._leaky_resnet import limits
from leaky_nets import OPTIONS, leaky
from tools import assert_close, gaussian, generator


def by_hand(net: LeakyResNet, x: np.ndarray) -> list[np.ndarray]:
    """The path of one sample in NumPy, neuron by neuron, and its output last."""
    A = np.array([sum(w * v for w, v in zip(row, x)) for row in net.W_in.detach().numpy()])
    path = [A]
    for W, rho in zip(net.Ws, net.rho.tolist()):
        M = W.detach().numpy()
        sigma = [v if v >= 0 else net.slope * v for v in A] + ([1.0] if net.bias else [])
        branch = np.array([sum(m * s for m, s in zip(row, sigma)) for row in M])
        A = (1 - rho * net.effective_depth) * A + rho * branch
        path.append(A)
    return [*path, net.W_out.detach().numpy() @ A]


@pytest.mark.parametrize("options", OPTIONS)
def test_forward_and_trace_are_the_definition(options):
    net, X = leaky(**options), gaussian(6, 4, seed=2)
    expected = [by_hand(net, x) for x in X.numpy()]
    assert_close(net(X), np.stack([path[-1] for path in expected]))
    trace = net.trace(X)
    assert_close(trace.outputs, net(X))
    for ell in range(net.layers + 1):
        assert_close(trace.representations[ell], np.stack([path[ell] for path in expected]))
        assert_close(trace.A(ell), trace.representations[ell].mT)
    assert trace.Ws[0].shape == (7, 7 + int(net.bias)) and trace.sigma_A(0).shape == (7 + int(net.bias), 6)
    assert_close(trace.positions[-1], 1.0)
    assert_close(trace.A(2) - trace.A(1), trace.rho[1] * trace.derivative(2))
    assert (trace.depth, trace.width, trace.samples) == (5, 7, 6)


def test_weight_decay_is_the_papers_regulariser():
    net = leaky(steps="irregular")
    squared = sum(float(p.detach().square().sum()) for p in net.parameters())
    printed = sum(rho * float(W.detach().square().sum()) for rho, W in zip(net.rho.tolist(), net.Ws))
    assert_close(squared, printed)
    lam = 0.03
    assert_close(isthmus.ridge_from("hamiltonian2024", lam, effective_depth=2.5) * squared, lam / (2 * 2.5) * printed)


def test_without_leak_it_is_the_plain_resnet():
    net, X = leaky(effective_depth=0.0), gaussian(5, 4)
    A = X @ net.W_in.mT
    for step in net.stages:
        W = step.W
        A = A + float(step.rho) * (torch.relu(A) @ W[:, :7].mT + W[:, 7])
    assert_close(net(X), A @ net.W_out.mT)


def test_at_the_longest_step_it_is_fully_connected():
    """ρL̃ = 1: α ↦ Wσ(α)/L̃, the skip gone. The same function as a FullyConnected, layer by layer."""
    with pytest.warns(NumericalWarning, match=r"ρ·L̃ ≥ 1 in 8 of 8 steps \(largest 1\)"):
        net = leaky(layers=8, effective_depth=8.0)
    X = gaussian(5, 4)
    Ws = [net.W_in, *(W[:, :7] / 8 for W in net.Ws), net.W_out]
    A = X @ net.W_in.mT
    for W in net.Ws:
        A = (torch.relu(A) @ W[:, :7].mT + W[:, 7]) / 8
    assert_close(net(X), A @ net.W_out.mT)
    # Every map but the first acts on σ(α); without bias, on inputs whose images are non-negative, one network.
    bare = LeakyResNet.from_weights([W[:, :7] for W in net.Ws], net.rho, effective_depth=8.0, bias=0)
    chain = FullyConnected.from_weights([torch.eye(7, dtype=torch.float64), *Ws[1:-1]])
    assert_close(bare(X @ net.W_in.mT), chain(X @ net.W_in.mT))


def test_steps_that_turn_the_sign_are_named():
    with pytest.warns(NumericalWarning, match="Take more than 6 layers"):
        net = leaky(effective_depth=6.0)
    assert net.reversing == (1, 2, 3, 4, 5)
    assert "ρ·L̃ ≥ 1 in 5 of 5 steps (largest 1.2)" in repr(net)
    X = gaussian(9, 4)
    found = isthmus.mechanics(net, X, gaussian(9, 3), ridge=0.1)
    assert "ρ·L̃ ≥ 1 in 5 of 5 steps" in found.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert leaky(layers=7, effective_depth=6.0).reversing == ()
    assert "ρ·L̃" not in repr(leaky())


def test_size_is_kept_along_the_path_at_the_start():
    for options in ({}, {"effective_depth": 20.0, "layers": 40}, {"effective_depth": 0.0}, {"slope": 0.5}):
        settings = {"width": 200, "layers": 20, "generator": generator(), **options}
        A = LeakyResNet(30, 3, **settings).trace(gaussian(50, 30)).representations
        # Without leak every step multiplies the variance by 1 + 1/L: at most e in all.
        assert 0.3 < float(A[-1].norm() / A[0].norm()) < 2.0, options


def test_fixed_maps_are_isometries_and_no_parameters():
    net = leaky()
    assert_close(net.W_in.mT @ net.W_in, torch.eye(4, dtype=torch.float64))
    assert_close(net.W_out @ net.W_out.mT, torch.eye(3, dtype=torch.float64))
    assert {name.split(".")[0] for name, _ in net.named_parameters()} == {"path"}
    learned = leaky(embed="learned", width=2)
    assert {name.split(".")[0] for name, _ in learned.named_parameters()} == {"path", "W_in", "W_out"}
    assert learned(gaussian(3, 4)).shape == (3, 3)


def test_adapt_moves_the_steps_and_not_the_weights():
    net, X = leaky(steps="adaptive", layers=8), gaussian(40, 4)
    before, lengths, parameters = net.Ws, net.rho, [p.detach().clone() for p in net.parameters()]
    found = net.adapt(X)
    assert list(found) == list(net.parameters()) and not torch.equal(net.rho, lengths)
    factors = [found[step.weight] for step in net.stages]
    assert factors == [found[step.bias] for step in net.stages] and len(factors) == 8
    for old, new in zip(before, net.Ws):
        assert_close(new, old)
    assert_close(torch.tensor(factors, dtype=torch.float64), (net.rho / lengths).sqrt())
    for factor, old, step in zip(factors, parameters[::2], net.stages):
        assert_close(step.weight, factor * old)
    low, high = limits(8, 2.5)
    for _ in range(30):
        net.adapt(X)
        assert abs(float(net.rho.sum()) - 1.0) < 1e-12
        assert low <= float(net.rho.min()) * (1 + 1e-9) and float(net.rho.max()) <= high * (1 + 1e-9)


def test_adapt_evens_out_the_distances():
    """Settled, every step covers the same share of the path: what ρ ∝ 1/c is for."""
    net, X = leaky(steps="adaptive", layers=12, effective_depth=1.0, seed=4), gaussian(60, 4)
    with torch.no_grad():
        net.stages[4].weight.mul_(3.0)

    def shares():
        A = net.trace(X).representations
        return torch.stack([(b - a).norm() / b.norm() for a, b in zip(A, A[1:])])

    first = shares()
    for _ in range(60):
        net.adapt(X)
    assert float(shares().std() / shares().mean()) < 0.3 * float(first.std() / first.mean())


@pytest.mark.parametrize("steps", ["equidistant", "irregular"])
def test_other_steps_stay(steps):
    net = leaky(steps=steps)
    before = net.rho
    assert net.adapt(gaussian(9, 4)) == {} and torch.equal(net.rho, before)


def test_adapt_without_anything_to_measure():
    net = leaky(steps="adaptive", bias=0)
    for X in (torch.zeros(5, 4, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64), gaussian(3, 4) * 1e308):
        before = net.rho
        net.adapt(X)
        assert torch.isfinite(net.rho).all() and abs(float(net.rho.sum()) - 1) < 1e-12
        assert torch.equal(net.rho, before)


def test_gradients():
    net = leaky(width=4, d_in=3, d_out=2, layers=3, slope=0.2)
    names = [name for name, _ in net.named_parameters()]
    X = gaussian(4, 3).requires_grad_()

    def f(X, *values):
        return functional_call(net, dict(zip(names, values)), (X,))

    assert torch.autograd.gradcheck(f, (X, *net.parameters()))


def test_copies_dtypes_and_state():
    net, X = leaky(steps="irregular", layers=3), gaussian(5, 4)
    clone = copy.deepcopy(net)
    assert torch.equal(clone(X), net(X))
    with torch.no_grad():
        clone.stages[0].weight.zero_()
    assert not torch.equal(clone(X), net(X))
    other = leaky(layers=3, seed=9)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(X), net(X)) and torch.equal(other.rho, net.rho)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        low = copy.deepcopy(net).to(dtype)
        assert low.W_in.dtype == low.stages[0].weight.dtype == dtype
        # The lengths stay: rounded ones would be another network, and no longer sum to 1.
        assert torch.equal(low.rho, net.rho) and low.stages[0].rho.dtype == torch.float64
        assert_close(low(X.to(dtype)), net(X), rtol=0.1, atol=0.1, reason="half precision through three steps")
        assert low.trace(X).representations[0].dtype == torch.float64
        assert low.trace(X, dtype=None if dtype == torch.float32 else torch.float32).outputs.dtype == torch.float32
        assert low.trace(X).source_eps == torch.finfo(dtype).eps


def test_from_weights_copies_and_leaves_the_generator_alone():
    net, X = leaky(), gaussian(5, 4)
    state = torch.get_rng_state()
    same = LeakyResNet.from_weights(net.Ws, net.rho, effective_depth=2.5, W_in=net.W_in, W_out=net.W_out)
    assert torch.equal(torch.get_rng_state(), state)
    assert_close(same(X), net(X))
    with torch.no_grad():
        same.stages[0].weight.zero_()
        same.W_in.zero_()
        assert float(net.stages[0].weight.norm()) > 0 and float(net.W_in.norm()) > 0
    identity = LeakyResNet.from_weights([np.zeros((3, 4))] * 2, [0.5, 0.5], effective_depth=1.0)
    assert_close(identity(gaussian(2, 3)), 0.25 * gaussian(2, 3))
    learned = LeakyResNet.from_weights(net.Ws, net.rho, effective_depth=2.5, embed="learned")
    assert len(list(learned.parameters())) == 2 + 2 * 5


def test_generator_decides_alone():
    state = torch.get_rng_state()
    one, two = (LeakyResNet(4, 3, 7, 5, generator=generator(5)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values()))


def test_the_trace_is_detached_and_its_own():
    net, X = leaky(), gaussian(5, 4)
    trace = net.trace(X)
    kept = [T.clone() for T in (*trace.Ws, *trace.representations, trace.inputs, trace.rho)]
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net.stages[0].rho.fill_(0.7)
        X.zero_()
    assert all(torch.equal(a, b) for a, b in zip(kept, (*trace.Ws, *trace.representations, trace.inputs, trace.rho)))
    assert not any(W.requires_grad for W in trace.Ws)


def test_shown():
    net = leaky()
    assert "4 → 7 → 3, layers=5, effective_depth=2.5, steps='equidistant'" in repr(net)
    assert "LeakyStep(width=7, bias=True)" in repr(net)
    assert isinstance(net.stages[0], LeakyStep)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_in": 0}, "`d_in` must be an integer in"),
        ({"d_out": 2.0}, "`d_out` must be an integer"),
        ({"width": 2**40}, "`width` must be an integer in"),
        ({"layers": 0}, "`layers` must be an integer in"),
        ({"layers": 10**9}, "`layers` must be an integer in"),
        ({"effective_depth": -0.1}, "`effective_depth` must be a finite number in \\[0, inf\\]"),
        ({"effective_depth": float("nan")}, "`effective_depth`"),
        ({"steps": "random"}, "`steps` must be one of 'equidistant', 'irregular', 'adaptive'"),
        ({"embed": "none"}, "`embed` must be one of 'fixed', 'learned'"),
        ({"slope": 2.0}, "`slope`"),
        ({"bias": 0.5}, "`bias` must be an integer"),
        ({"irregularity": 2.0}, "`irregularity`"),
        ({"adapt_every": 0}, "`adapt_every`"),
        ({"init_scale": -1.0}, "`init_scale`"),
        ({"dtype": torch.int64}, "`dtype` must be a real floating dtype"),
        ({"width": 3}, 'at least 4 .* Got 3. Widen the path, or pass embed="learned"'),
    ],
)
def test_errors(changes, message):
    options = {"d_in": 4, "d_out": 3, "width": 7, "layers": 5, **changes}
    with pytest.raises(IsthmusError, match=message):
        LeakyResNet(**options)


@pytest.mark.parametrize(
    ("Ws", "rho", "more", "message"),
    [
        ([], [], {}, "`Ws` must be one or more matrices"),
        ([np.zeros(3)], [1.0], {}, "`Ws` must be one or more matrices"),
        ([np.zeros((3, 4)), np.zeros((3, 3))], [0.5, 0.5], {}, r"`Ws\[1\]` must have shape \(3, 4\)"),
        ([np.zeros((3, 4))], [0.5, 0.5], {}, "`rho` must be 1 positive lengths"),
        ([np.zeros((3, 4))], [0.0], {}, "`rho` must be 1 positive lengths"),
        ([np.zeros((3, 4))], [np.nan], {}, "`rho` must be 1 positive lengths"),
        ([np.zeros((3, 4))], [np.inf], {}, "`rho` must be 1 positive lengths"),
        ([np.zeros((3, 4))], [1.0], {"W_in": np.zeros((2, 2))}, "`W_in` must be a matrix with 3 rows"),
        ([np.zeros((3, 4))], [1.0], {"W_out": np.zeros(3)}, "`W_out` must be a matrix with 3 columns"),
        ([np.zeros((3, 4))], [1.0], {"embed": "no"}, "`embed` must be one of"),
    ],
)
def test_errors_of_from_weights(Ws, rho, more, message):
    with pytest.raises(IsthmusError, match=message):
        LeakyResNet.from_weights(Ws, rho, effective_depth=1.0, **more)


def test_errors_of_the_trace():
    net = leaky()
    with pytest.raises(IsthmusError, match="`X` must have 4 columns"):
        net.trace(gaussian(5, 3))
    with pytest.raises(DataError, match="must be finite"):
        net.trace(torch.full((2, 4), float("nan")))
    with torch.no_grad():
        net.stages[2].weight[0, 0] = float("nan")
    with pytest.raises(DataError, match="NaN or infinite values at step 3"):
        net.trace(gaussian(5, 4))
    with pytest.raises(IsthmusError, match="`ell`"):
        leaky().trace(gaussian(5, 4)).derivative(0)
