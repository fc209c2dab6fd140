"""Training leaky ResNets: their metric against dense matrices, steps that adapt, and what it ends with."""

from __future__ import annotations

import math
import shutil

import pytest
import torch

from isthmus import LeakyResNet, mechanics, ridge_from
from isthmus.measures import momenta, stationarity
from isthmus.networks._leaky_resnet import LeakyMetric
from isthmus.networks._network import hooks_of
from isthmus.training import Phase, default_plan
from isthmus.training._core import ADAPT_EVERY, Job, _Room, _Training
from small import objective_of, quiet, same_bits, task, weights
from tools import assert_close, gaussian, generator


def leaky(d_in=4, d_out=3, width=6, layers=5, L_tilde=2.0, **options):
    return LeakyResNet(
        d_in,
        d_out,
        width,
        layers,
        L_tilde,
        **{"dtype": torch.float64, "init": "gaussian", "generator": generator(2), **options},
    )


def flat(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def joined(metric, matrices):
    """The flat vector, each number from the one place where the layout says it is."""
    sizes = [M[0].numel() if M.ndim == 3 else M.numel() for M in matrices]
    found = torch.full((*matrices[0].shape[:-2], sum(sizes)), torch.nan, dtype=torch.float64)
    for slot, M in zip(metric.layout(), matrices):
        found[..., slot.weight : slot.weight + slot.outputs * slot.inputs] = M[..., : slot.inputs].flatten(-2)
        if slot.bias is not None:
            found[..., slot.bias : slot.bias + slot.outputs] = M[..., -1]
    return found


@pytest.mark.parametrize("embed", ["fixed", "learned"])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_metric_finds_its_matrices_in_flat_vectors(embed, bias):
    net = leaky(embed=embed, bias=bias)
    metric = net.metric("mse")
    assert isinstance(metric, LeakyMetric)
    for vector in (flat(net), gaussian(3, len(flat(net)))):
        assert torch.equal(joined(metric, metric.matrices(vector)), vector)
    shapes = [tuple(M.shape) for M in metric.matrices(flat(net))]
    assert shapes == [slot.shape for slot in metric.layout()]
    assert shapes[-1] == (6, 6 + int(bias)) and len(shapes) == 5 + (2 if embed == "learned" else 0)


@pytest.mark.parametrize("embed", ["fixed", "learned"])
def test_metric_factors_are_those_of_autograd(embed):
    """inputs ⊗ cotangents of each matrix, summed over samples, is the gradient of Σ c·f in it."""
    net = leaky(embed=embed)
    X = gaussian(20, 4)
    metric = LeakyMetric(net, "mse")
    found = {number: g.mT @ a for number, a, g in metric.factors(flat(net), X, [generator(7)])}
    c = metric.cotangents(net(X).detach(), [generator(7)])
    (net(X) * c).sum().backward()
    gradients = metric.matrices(torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None]))
    assert sorted(found) == list(range(1, len(gradients) + 1))
    for number, expected in enumerate(gradients, start=1):
        assert_close(found[number], expected)


def test_metric_bounds_the_gauss_newton_matrix_where_factors_are_exact():
    """One sample: each block is exactly A ⊗ G, and L times the block diagonal is above the whole matrix."""
    net = leaky(layers=4, d_out=1)
    X = gaussian(1, 4)
    metric = LeakyMetric(net, "mse")
    metric.refresh(flat(net), X, [generator(0)])
    net(X).sum().backward()
    J = torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])
    ridge = 0.1
    gauss_newton = 2.0 * torch.outer(J, J) + 2.0 * ridge * torch.eye(len(J), dtype=torch.float64)
    inverse = torch.stack([metric.solve(e[None], [ridge])[0] for e in torch.eye(len(J), dtype=torch.float64)])
    model = torch.linalg.inv((inverse + inverse.mT) / 2)
    assert float(torch.linalg.eigvalsh(model - gauss_newton)[0]) > -1e-9
    metric.coupling = 1.0
    inverse = torch.stack([metric.solve(e[None], [ridge])[0] for e in torch.eye(len(J), dtype=torch.float64)])
    assert float(torch.linalg.eigvalsh(torch.linalg.inv((inverse + inverse.mT) / 2) - gauss_newton)[0]) < -1e-3


def test_frozen_parameters_have_no_metric():
    net = leaky()
    net.stages[0].weight.requires_grad_(False)
    assert net.metric("mse") is None


def test_when_steps_are_due(monkeypatch):
    net = leaky(steps="adaptive", adapt_every=7)
    assert net.adapt_interval() == 7
    assert leaky().adapt_interval() == hooks_of(torch.nn.Linear(2, 2)).adapt_interval() == 0
    done, original, taken = [], LeakyResNet.adapt, []
    monkeypatch.setattr(LeakyResNet, "adapt", lambda self, X: (done.append(len(taken)), original(self, X))[1])
    newton = ADAPT_EVERY + 10
    # Of each phase the step before which it happens; the last phase is not yet the one at the full ridge.
    phases = [Phase("gd", 1, 1e-3), Phase("adam", 20, 1e-3), Phase("lbfgs", newton, ridge_start=2.0, ridge_end=2.0)]
    quiet(net, *task(), ridge=1e-2, phases=phases, callbacks=[taken.append], tolerance=0.0)
    assert [s - 1 for s in done if s < 21] == [0, 7, 14]
    assert [s - 21 for s in done if s >= 21] == [0, ADAPT_EVERY]
    done.clear()
    quiet(leaky(), *task(), ridge=1e-2, phases=phases[:2])
    assert not done


def test_adapting_keeps_W_and_carries_vectors_over():
    net = leaky(steps="adaptive", embed="learned")
    X, Y = task()
    objective = objective_of(net, X, Y, "mse")
    job = Job(net, X, Y, {"ridge": 1e-2, "loss": "mse", "seed": 0})
    before, Ws = net.rho, [W.detach().clone() for W in net.Ws]
    kept = objective.theta.clone()
    with objective.attached():
        training = _Training(job, 0, _Room([job]), (), math.inf)
        training.good = kept
        with torch.no_grad():
            training.adapt(objective)
        assert training.good is kept
        assert_close(kept, objective.theta)
    assert float((net.rho - before).abs().max()) > 1e-3
    assert abs(float(net.rho.sum()) - 1.0) < 1e-12
    for old, new in zip(Ws, net.Ws):
        assert_close(new.detach(), old)


PLAN = [
    Phase("adam", 9, 1e-2, ridge_start=1e-2),
    Phase("lbfgs", 8, ridge_start=3.0, ridge_share=1.0),
    Phase("lbfgs", 6),
]


def test_resumes_to_the_same_bits_with_adaptive_steps(tmp_path):
    def start():
        return leaky(steps="adaptive", adapt_every=4)

    X, Y = task()
    live, copies, net = tmp_path / "live", [], start()

    def keep(event):
        if live.exists():
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(live, copies[-1])

    options = {"ridge": 1e-2, "phases": PLAN}
    quiet(net, X, Y, checkpoint=live, checkpoint_seconds=0.0, callbacks=[keep], **options)
    assert len(copies) > 15
    for copy in copies:
        again = start()
        quiet(again, X, Y, checkpoint=copy, **options)
        assert same_bits(weights(net), weights(again)) and torch.equal(net.rho, again.rho), copy.name


def test_steps_adapt_only_while_the_objective_may_change():
    X, Y = task()
    seen = []
    net = leaky(steps="adaptive", adapt_every=4)
    quiet(net, X, Y, ridge=1e-2, phases=PLAN, callbacks=[lambda event: seen.append(net.rho)])
    changes = [i for i, (a, b) in enumerate(zip(seen, seen[1:])) if not torch.equal(a, b)]
    # Steps 4 and 8 of Adam, and the start of the first quasi-Newton phase; none in the last phase.
    assert changes == [3, 7, 8]
    plain = leaky()
    before = plain.rho
    quiet(plain, X, Y, ridge=1e-2, phases=PLAN)
    assert torch.equal(plain.rho, before)


def test_default_plan_knows_what_a_dimension_costs():
    Y = gaussian(40, 3)
    plan = default_plan(leaky(L_tilde=5.0, layers=6), Y, ridge=1e-6)
    top = max(p.ridge_end for p in plan)
    variance = float((Y - Y.mean(0)).square().sum(1).mean())
    assert_close(torch.tensor(top * 1e-6), torch.tensor(0.02 * variance / 25.0))
    assert all(p.method != "narrow" for p in plan)


@pytest.fixture(scope="module")
def trained():
    """Two latent variables through a path of 12 steps, at a ridge large enough to converge in seconds."""
    X, Y = task(60, 5, 4, dtype=torch.float64)
    Y = (Y - Y.mean(0)) / Y.std()
    net = leaky(5, 4, 12, 12, 4.0, init="identity", steps="adaptive")
    ridge = ridge_from("hamiltonian2024", 0.05, effective_depth=4.0)
    result = quiet(net, X, Y, ridge=ridge)
    return net, X, Y, ridge, result


def test_training_ends_critical_with_a_bottleneck(trained):
    net, X, Y, ridge, result = trained
    plain = mechanics(net, X, Y, ridge=ridge)
    assert abs(plain.residual - result.criteria.gradient) < 1e-9
    resolved = mechanics(net, X, Y, ridge=ridge, kinks=1e-3)
    assert resolved.residual <= plain.residual + 1e-12
    assert resolved.arrays is not None and plain.arrays is not None
    assert_close(torch.tensor(resolved.arrays.residual_plain), torch.tensor(plain.arrays.residual))
    assert resolved.residual < 0.2
    middle = resolved.arrays.weight_spectra[6] / 4.0
    assert middle[1] > 0.7 and middle[4] < 0.2


def test_the_residual_is_that_of_the_certificate(trained):
    net, X, Y, ridge, _ = trained
    found = stationarity(net, X, Y, ridge=ridge, kink_tolerance=1e-3)
    resolved = mechanics(net, X, Y, ridge=ridge, kinks=1e-3)
    assert resolved.residual == pytest.approx(found.residual, rel=1e-6)
    trace, lam = net.trace(X), 2 * 4.0 * ridge
    # Off kinks the derivatives are those of autograd: nothing else is chosen.
    for z, D in zip(trace.representations, found.derivatives):
        off = z.abs() > 1e-3 * z.square().mean().sqrt()
        assert torch.equal(D[off], (z[off] > 0).to(D))
    plain, chosen = momenta(trace, Y, lam), momenta(trace, Y, lam, derivatives=found.derivatives)
    assert_close(chosen[-1], plain[-1])


def test_a_kink_is_resolved_by_an_admissible_derivative():
    """W chosen such that σ̇ = 0.3 at the one entry on its kink makes the step before it critical exactly."""
    L_tilde, lam = 1.0, 1.0
    A0 = torch.tensor([[1.0, 2.0, 0.5, 1.5]], dtype=torch.float64)  # one neuron, four samples
    rho = torch.tensor([0.5, 0.5], dtype=torch.float64)
    # The first step takes sample 2 (A = 2) to 0: A1 = 0.5·A0 + 0.5(v·A0 + b) with (1 + v)·2 + b = 0.
    v = -0.4
    b = -(1.0 + v) * 2.0
    W1 = torch.tensor([[v, b]], dtype=torch.float64)
    A1 = 0.5 * A0 + 0.5 * (v * A0 + b)
    assert float(A1[0, 1].abs()) < 1e-15
    W2 = torch.tensor([[0.8, 0.1]], dtype=torch.float64)
    A2 = 0.5 * A1 + 0.5 * (W2[:, :1] @ A1.clamp_min(0) + W2[:, 1:])
    # Momenta that make W1 critical with σ̇ = 0.3 on the kink: B1 in the span of σ(A0) and 1, then B2 from B1.
    S0 = torch.cat([A0, torch.ones_like(A0)])
    B1 = (W1 / L_tilde) @ torch.linalg.inv(S0 @ S0.mT) @ S0
    derivative = (A1 > 0).double()
    derivative[0, 1] = 0.3
    B2 = B1 / (0.5 + 0.5 * derivative * 0.8)
    Y = (A2 + 0.5 * lam * 4 * B2).mT
    net = LeakyResNet.from_weights([W1, W2], rho, effective_depth=L_tilde)
    trace = net.trace(A0.mT)
    chosen = stationarity(net, A0.mT, Y, ridge=0.5 * lam / L_tilde, kink_tolerance=1e-3).derivatives
    found = momenta(trace, Y, lam, derivatives=chosen)
    assert_close(chosen[1][1, 0], torch.tensor(0.3, dtype=torch.float64), rtol=1e-3, reason="the second step moves too")
    assert_close(found[1], B1, rtol=1e-3, atol=1e-6, reason="the second step moves too")
    plain = momenta(trace, Y, lam)
    assert float((plain[1] - B1).norm() / B1.norm()) > 1e-2
