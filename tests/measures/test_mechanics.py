"""Mechanics of a network: every array against dense algebra, its states, its memory, and what it is written as."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import isthmus
from isthmus import DataError, IsthmusError, LeakyResNet, Mechanics, mechanics
from isthmus._errors import FileFormatError
from isthmus.measures import cost_of_identity, hamiltonian, identity_cost_bounds, momenta, step_energies
from isthmus.objective import cost
from leaky_nets import OPTIONS, critical, leaky
from tools import assert_close, gaussian, generator, random_net

APPLICABLE = [options for options in OPTIONS if options.get("effective_depth") != 0.0]


@pytest.fixture(scope="module")
def solved():
    """A critical network, its data, and its mechanics."""
    net, X, Y, ridge = critical()
    return net, X, Y, ridge, mechanics(net, X, Y, ridge=ridge)


@pytest.mark.parametrize("options", APPLICABLE)
@pytest.mark.parametrize("samples", [1, 6, 40])
def test_every_array(options, samples):
    net, X, Y = leaky(**options), gaussian(samples, 4), gaussian(samples, 3, seed=1)
    a = mechanics(net, X, Y, ridge=0.02, gamma_share=0.01).arrays
    trace = net.trace(X)
    Bs = momenta(trace, Y, 2 * 2.5 * 0.02)
    assert_close(a.positions, np.concatenate([[0.0], np.cumsum(net.rho.numpy())]))
    for ell in range(1, 6):
        i, A, B, S, dA = ell - 1, trace.A(ell - 1), Bs[ell], trace.sigma_A(ell - 1), trace.derivative(ell)
        gamma = 0.01 * float(torch.linalg.matrix_norm(S, ord=2)) ** 2
        assert_close(a.gamma[i], gamma)
        found = step_energies(S, A, dA, 2.5, gamma)
        for name in ("kinetic", "potential", "cross", "speed", "identity_cost"):
            assert_close(getattr(a, name)[i], getattr(found, name), rtol=1e-8, atol=1e-9, reason="rotated columns")
        exact = cost_of_identity(A, bias=net.bias, slope=net.slope)
        assert_close(a.identity_cost_exact[i], exact, rtol=1e-6, reason="rotated columns")
        assert_close(a.effective_dimension[i], identity_cost_bounds(A)[0])
        assert_close(a.hamiltonian[i], hamiltonian(A, B, 2.5, slope=net.slope, bias=net.bias))
        force = B @ S.mT
        assert_close(a.force_norm[i], float(force.norm()))
        W = trace.Ws[i]
        assert_close(a.weight_norm[i], float(W.norm()))
        assert_close(a.bias_norm[i], float(W[:, 7:].norm()))
        assert_close(a.residual[i], float((W - 2.5 * force).norm() / W.norm()))
        assert_close(a.weight_spectra[i], torch.linalg.svdvals(W))
        assert_close(a.step_length[i], float((trace.A(ell) - A).norm()))
    for ell in range(6):
        A, B = trace.A(ell), Bs[ell]
        assert_close(a.momentum_norm[ell], float(B.norm()))
        assert_close(a.momentum_product[ell], float((A * B).sum()))
        assert_close(a.size[ell], float(A.norm()))
        assert_close(a.negative_share[ell], float(A.clamp_max(0).square().sum() / A.square().sum()))
    assert_close(a.path_length, float((trace.rho.numpy() * a.speed).sum()))
    assert_close(a.length, sum(a.step_length))
    assert_close(a.hamiltonian_stable, a.kinetic + a.potential)


def test_the_plane_of_the_path():
    """Principal directions of the L + 1 points of R^(w·N), by an SVD of the points themselves."""
    net, X = leaky(), gaussian(9, 4)
    a = mechanics(net, X, gaussian(9, 3), ridge=0.1).arrays
    points = torch.stack([R.reshape(-1) for R in net.trace(X).representations])
    U, s, _ = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    expected = (U[:, :2] * s[:2]).numpy()
    expected *= np.where(expected[-1] < expected[0], -1.0, 1.0)
    assert_close(a.path, expected, rtol=1e-6, atol=1e-8, reason="eigenvalues of a Gram matrix")
    assert (a.path[-1] >= a.path[0]).all()


@pytest.mark.parametrize("options", APPLICABLE)
def test_the_residual_is_the_relative_gradient_of_the_loss(options):
    net, X, Y, ridge = leaky(**options), gaussian(15, 4), gaussian(15, 3, seed=1), 0.05
    path = list(net.path.parameters())
    loss = cost(net(X), Y) + ridge * sum(p.square().sum() for p in path)
    gradients = torch.autograd.grad(loss, path)
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in path))
    expected = math.sqrt(sum(float(g.square().sum()) for g in gradients)) / (2 * ridge * size)
    found = mechanics(net, X, Y, ridge=ridge)
    assert_close(found.residual, expected)
    assert found.state == "not yet critical" and f"{found.residual:.3g}" in found.reason


def test_cross_entropy():
    net, X, classes = leaky(), gaussian(15, 4), torch.randint(3, (15,), generator=generator())
    found = mechanics(net, X, classes, ridge=0.05, loss="cross_entropy")
    path = list(net.path.parameters())
    loss = cost(net(X), classes, "cross_entropy") + 0.05 * sum(p.square().sum() for p in path)
    gradients = torch.autograd.grad(loss, path)
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in path))
    assert_close(found.residual, math.sqrt(sum(float(g.square().sum()) for g in gradients)) / (0.1 * size))
    onehot = torch.nn.functional.one_hot(classes, 3).double()
    again = mechanics(net, X, onehot, ridge=0.05, loss="cross_entropy")
    assert_close(again.residual, found.residual)


@pytest.mark.parametrize("rows", [1, 7, 16, 1000])
def test_batches_change_nothing(rows):
    net, X, Y = leaky(), gaussian(60, 4), gaussian(60, 3, seed=1)
    whole, parts = (mechanics(net, X, Y, ridge=0.05, batch_size=size).arrays for size in (None, rows))
    for field in dataclasses.fields(whole):
        ours, theirs = getattr(parts, field.name), getattr(whole, field.name)
        assert_close(ours, theirs, rtol=1e-7, atol=1e-8, reason="sums in another order")


def test_states(solved):
    net, X, Y, ridge, found = solved
    assert found.state == "conserved" and found.residual < 1e-10 and found.spread < 0.01
    assert_close(found.rank_estimate, -2 / 3 * np.median(found.arrays.hamiltonian))
    assert abs(found.rank_estimate - 3) < 0.05 and abs(found.least_identity_cost - 3) < 0.15
    assert found.least_identity_cost == found.arrays.identity_cost.min()
    assert mechanics(net, X, Y + 1.0, ridge=ridge).state == "not yet critical"
    assert mechanics(net, X, Y, ridge=2 * ridge).state == "not yet critical"
    assert mechanics(net, X, Y, ridge=ridge, tolerance=1e-6).state == "drifting"
    rough = critical(layers=8, noise=0.1)
    drifting = mechanics(*rough[:3], ridge=rough[3])
    assert drifting.state == "drifting" and drifting.residual < 1e-10 and "steps are too long" in drifting.reason


def test_not_applicable():
    X, Y = gaussian(5, 4), gaussian(5, 3)
    plain = mechanics(leaky(effective_depth=0.0), X, Y, ridge=0.1)
    assert plain.state == "not applicable" and "effective_depth is 0" in plain.reason and plain.arrays is None
    free = mechanics(leaky(), X, Y, ridge=0.0)
    assert free.state == "not applicable" and "ridge is 0" in free.reason
    for found in (plain, free):
        assert math.isnan(found.rank_estimate) and math.isnan(found.least_identity_cost)
        assert math.isnan(found.residual) and math.isnan(found.spread)
        assert found.sentence.startswith("Mechanics not applicable") and len(found.to_frame()) == 0
    zero = leaky()
    with torch.no_grad():
        for p in zero.parameters():
            p.zero_()
    nothing = mechanics(zero, X, Y, ridge=0.1)
    assert nothing.state == "not applicable" and "all weights vanish" in nothing.reason


@pytest.mark.parametrize(
    ("size", "state"), [(1e20, "not yet critical"), (1e80, "not applicable"), (1e120, "not applicable")]
)
@pytest.mark.parametrize("kinks", [0.0, 1e-3])
@pytest.mark.parametrize("fitted", [False, True])
def test_squares_that_overflow(size, state, kinks, fitted):
    """A named state where energies are no numbers any more, with momenta and without; others are judged as ever."""
    Ws = [size * gaussian(4, 5, seed=i) for i in range(2)]
    net = LeakyResNet.from_weights(Ws, [0.5, 0.5], effective_depth=2.0).requires_grad_(False)
    X = gaussian(5, 4)
    found = mechanics(net, X, net.trace(X).outputs if fitted else gaussian(5, 4, seed=1), ridge=0.1, kinks=kinks)
    assert found.state == state and ("overflow" in found.reason) == (state == "not applicable")


def test_duplicates_and_zero_inputs():
    net, X, Y = leaky(), gaussian(10, 4), gaussian(10, 3, seed=1)
    once, twice = (mechanics(net, X.repeat(k, 1), Y.repeat(k, 1), ridge=0.05).arrays for k in (1, 2))
    for name in ("identity_cost", "kinetic", "potential", "hamiltonian", "residual", "speed"):
        assert_close(getattr(twice, name), getattr(once, name), rtol=1e-7, reason="γ doubles with the kernel")
    bare = leaky(bias=0)
    still = mechanics(bare, torch.zeros(5, 4), gaussian(5, 3), ridge=0.05)
    assert np.all(still.arrays.identity_cost == 0) and np.all(still.arrays.hamiltonian == 0)
    assert still.residual == 1.0 and all(np.isfinite(still.arrays.negative_share))


def test_dead_steps_cost_infinitely_much():
    """Without bias and with nothing active, what is there only leaks: no weights rebuild it."""
    net = leaky(bias=0)
    with torch.no_grad():
        net.W_in.copy_(-net.W_in.abs())
    found = mechanics(net, gaussian(5, 4).abs(), gaussian(5, 3), ridge=0.05)
    assert np.all(np.isinf(found.arrays.identity_cost)) and found.least_identity_cost == math.inf
    assert_close(found.arrays.kinetic + found.arrays.potential, np.zeros(5), atol=1e-9, reason="it only leaks")


def test_networks_in_single_precision(solved):
    net, X, Y, ridge, found = solved
    single = isthmus.LeakyResNet.from_weights([W.float() for W in net.Ws], net.rho, effective_depth=3.0)
    again = mechanics(single, X.float(), Y.float(), ridge=ridge)
    assert again.state == "conserved" and abs(again.rank_estimate - found.rank_estimate) < 1e-4
    assert single.stages[0].weight.dtype == torch.float32


def test_inputs_of_any_kind_and_nothing_changes():
    import pandas as pd

    net, X, Y = leaky(), gaussian(10, 4), gaussian(10, 3)
    before = {name: T.clone() for name, T in net.state_dict().items()}
    found = [mechanics(net, A, B, ridge=0.1) for A, B in ((X, Y), (X.numpy(), pd.DataFrame(Y.numpy())))]
    assert found[0].to_json() == found[1].to_json()
    assert all(torch.equal(T, before[name]) for name, T in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"net": random_net([4, 5, 3])}, IsthmusError, "must be a LeakyResNet. Got FullyConnected. For the cost"),
        ({"net": None}, IsthmusError, "must be a LeakyResNet"),
        ({"X": gaussian(5, 3)}, IsthmusError, "`X` must have 4 columns"),
        ({"Y": gaussian(5, 4)}, IsthmusError, "`Y` must have 3 columns"),
        ({"Y": gaussian(6, 3)}, DataError, "same number of rows. Got 5 and 6"),
        ({"X": torch.full((5, 4), torch.nan)}, DataError, "`X` must be finite"),
        ({"Y": torch.full((5, 3), torch.inf)}, DataError, "`Y` must be finite"),
        ({"ridge": -1.0}, IsthmusError, "`ridge`"),
        ({"ridge": math.nan}, IsthmusError, "`ridge`"),
        ({"loss": "hinge"}, IsthmusError, "`loss` must be one of"),
        ({"gamma_share": 0.0}, IsthmusError, "`gamma_share`"),
        ({"tolerance": -0.1}, IsthmusError, "`tolerance`"),
        ({"batch_size": 0}, IsthmusError, "`batch_size`"),
        ({"loss": "cross_entropy", "Y": gaussian(5, 2)}, IsthmusError, "class indices"),
    ],
)
def test_errors(changes, error, message):
    given = {"net": leaky(), "X": gaussian(5, 4), "Y": gaussian(5, 3), "ridge": 0.1, **changes}
    with pytest.raises(error, match=message):
        mechanics(given.pop("net"), given.pop("X"), given.pop("Y"), **given)


def test_written_and_read_back(solved):
    for found in (solved[-1], mechanics(leaky(), gaussian(40, 4), gaussian(40, 3), ridge=0.1)):
        back = Mechanics.from_dict(json.loads(found.to_json()))
        assert back.to_json() == found.to_json() and repr(back) == repr(found)
        for field in dataclasses.fields(found.arrays):
            assert np.array_equal(getattr(back.arrays, field.name), getattr(found.arrays, field.name), equal_nan=True)
    # More samples than neurons: infinite costs were among the numbers.
    assert np.isinf(found.arrays.identity_cost_exact).any()
    nothing = mechanics(leaky(), gaussian(5, 4), gaussian(5, 3), ridge=0.0)
    assert repr(Mechanics.from_dict(json.loads(nothing.to_json()))) == repr(nothing)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"state": "fine"},
        {"samples": "many"},
        {"ridge": None},
        {"arrays": None},
        {"arrays": []},
        {"arrays": {"rho": [1.0]}},
        *({"arrays": {name: value}} for name in ("rho", "path", "positions") for value in ([], 3.0, ["x"], [[[1.0]]])),
        {"arrays": {"kinetic": [1.0]}},
        {"arrays": {"rho": [0.05] * 19 + [0.0]}},
        {"arrays": {"positions": ["nan"] * 21}},
        {"effective_depth": 0.0},
        {"tolerance": "inf"},
        {"arrays": {"path": [[1.0, 2.0, 3.0]] * 21}},
        {"arrays": {"weight_spectra": [[]] * 20}},
    ],
)
def test_what_is_no_mechanics_is_refused(solved, change):
    content = json.loads(solved[-1].to_json())
    if isinstance(change.get("arrays"), dict):
        change = {"arrays": content["arrays"] | change["arrays"]}
    with pytest.raises(FileFormatError, match=r"Mechanics.from_dict"):
        Mechanics.from_dict(content | change)
    with pytest.raises(FileFormatError):
        Mechanics.from_dict([])


def test_shown(solved):
    found = solved[-1]
    frame = found.to_frame()
    assert len(frame) == 20 and frame.index.name == "step" and frame.loc[1, "p"] == 0.0
    assert frame["hamiltonian"].tolist() == found.arrays.hamiltonian.tolist()
    assert repr(found).startswith("Conserved: −(2/L̃)𝓗 = 2.9") and found.reason in found.sentence
    html = found._repr_html_()
    assert "conserved" in html and "least identity cost" in html and "<script" not in html


@pytest.mark.slow
def test_a_hundred_thousand_samples_fit():
    script = textwrap.dedent("""
        import resource, torch, isthmus
        source = torch.Generator().manual_seed(0)
        net = isthmus.LeakyResNet(20, 5, 200, 10, 3.0, generator=source)
        X, Y = torch.randn(100_000, 20, generator=source), torch.randn(100_000, 5, generator=source)
        found = isthmus.mechanics(net, X, Y, ridge=1e-3)
        assert found.samples == 100_000
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 3.0, f"{done.stdout} GB"
