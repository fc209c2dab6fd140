"""Q-stable: steps that stay at a minimum and steps that leave it, against the exact operator on covariances."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian

from isthmus import IsthmusError
from isthmus.measures import Stability, hessian_top_eigenvalue, ntk_blocks, ntk_trace, sharpness, step_stability
from isthmus.objective import cost
from tools import assert_close, gaussian, random_net


def jacobians(module, X):
    """J_θ f at each sample, (N, d_out, P): the whole of it, by autograd."""
    parameters = list(module.parameters())
    outputs = module(X)
    rows = []
    for row in outputs:
        gradients = [torch.autograd.grad(value, parameters, retain_graph=True) for value in row]
        rows.append(torch.stack([torch.cat([g.reshape(-1) for g in one]) for one in gradients]))
    return torch.stack(rows)


def sample_hessians(module, X, ridge):
    J = jacobians(module, X)
    return [2 * Ji.mT @ Ji + 2 * ridge * torch.eye(Ji.shape[1], dtype=Ji.dtype) for Ji in J]


def growth(Hs, batch, step):
    """Spectral radius of Σ ↦ E[(I − ηH_b)Σ(I − ηH_b)] over all batches without replacement."""
    identity = torch.eye(len(Hs[0]), dtype=torch.float64)
    total = 0
    batches = list(itertools.combinations(range(len(Hs)), batch))
    for chosen in batches:
        A = identity - step * sum(Hs[i] for i in chosen) / batch
        total = total + torch.kron(A, A) / len(batches)
    return float(torch.linalg.eigvalsh(total)[-1])


def test_full_batches_by_the_whole_matrix():
    net, X = random_net([3, 6, 2], seed=1), gaussian(12, 3)
    H = sum(sample_hessians(net, X, 0.01)) / 12
    top = float(torch.linalg.eigvalsh(H)[-1])
    found = step_stability(net, X, learning_rate=1.9 / top, ridge=0.01)
    assert found.verdict == "stable" and found.curvature == "Gauss–Newton" and found.batch_size == 12
    assert (found.sharpness, found.trace) == pytest.approx((top, float(H.trace())), rel=1e-4)
    assert found.stable_step == found.unstable_step == found.trace_step == pytest.approx(2 / top, rel=1e-4)
    assert step_stability(net, X, learning_rate=2.1 / top, ridge=0.01).verdict == "unstable"
    assert sharpness(net, X, ridge=0.01).value == pytest.approx(top, rel=1e-4)


def test_targets_bring_in_the_hessian():
    net, X, Y = random_net([3, 6, 2], seed=1), gaussian(12, 3), gaussian(12, 2, seed=5)
    found = step_stability(net, X, Y, learning_rate=0.1, ridge=0.02)
    assert found.curvature == "Hessian"
    assert found.sharpness == pytest.approx(hessian_top_eigenvalue(net, X, Y, ridge=0.02).value, rel=1e-3)
    # Where f fits both are the same.
    fitted = step_stability(net, X, net(X).detach(), learning_rate=0.1)
    assert fitted.sharpness == pytest.approx(step_stability(net, X, learning_rate=0.1).sharpness, rel=1e-3)


@pytest.mark.parametrize("ridge", [0.0, 0.05])
@pytest.mark.parametrize("batch", [1, 2, 4, 6])
@pytest.mark.parametrize("dims", [[2, 3, 1], [2, 2, 2]])
def test_the_exact_limit_lies_between_the_two_steps(dims, batch, ridge):
    net, X = random_net(dims, seed=2), gaussian(6, 2, seed=3)
    Hs = sample_hessians(net, X, ridge)
    found = step_stability(net, X, learning_rate=0.1, batch_size=batch, ridge=ridge)
    assert found.stable_step <= found.unstable_step * (1 + 1e-6)
    assert growth(Hs, batch, 0.999 * found.stable_step) <= 1 + 1e-9
    assert growth(Hs, batch, 1.001 * found.unstable_step) > 1 + 1e-9
    # Twice as long as what stays is not far from what leaves: the bracket says something.
    assert found.unstable_step < 3 * found.stable_step
    between = (found.stable_step * found.unstable_step) ** 0.5
    wanted = "stable" if batch == 6 else "undetermined"
    if batch < 6:
        assert step_stability(net, X, learning_rate=between, batch_size=batch, ridge=ridge).verdict == wanted


def test_the_trace_decides_where_samples_are_alike():
    """One output and gradients of one length: E[H_i²] = Tr(H)·H, so that the trace's step is the one that stays."""
    X = torch.linalg.qr(gaussian(8, 8)).Q * 1.7
    net = nn.Linear(8, 1, bias=False).double()
    found = step_stability(net, X, learning_rate=0.1, batch_size=1)
    assert found.trace_step == pytest.approx(found.stable_step, rel=1e-6)
    assert found.trace_step == pytest.approx(2 / found.trace, rel=1e-6)
    assert found.unstable_step == pytest.approx(found.stable_step, rel=1e-6)  # orthogonal samples: nothing between


def test_descent_itself_stays_and_leaves():
    net, X = random_net([3, 5, 2], seed=4), gaussian(10, 3, seed=1)
    Y = net(X).detach()
    limit = step_stability(net, X, Y, learning_rate=0.1).stable_step
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    noise = torch.Generator().manual_seed(0)
    for factor, leaves in ((0.9, False), (1.1, True)):
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.copy_(start[name] + 1e-7 * torch.randn(p.shape, generator=noise, dtype=p.dtype))
        before = float(cost(net(X), Y).detach())
        for _ in range(200):
            net.zero_grad()
            cost(net(X), Y).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= factor * limit * p.grad
        assert (float(cost(net(X), Y).detach()) > 100 * before) == leaves


def test_a_sharp_sample_is_named():
    net, X = random_net([3, 6, 2], seed=1), gaussian(20, 3)
    X[13] *= 30
    each = torch.linalg.eigvalsh(ntk_blocks(net, X))[:, -1]
    step = 1.5 * 20 / float(each[13])  # the criterion is ‖J_i‖²/N > 1/η
    found = step_stability(net, X, learning_rate=step)
    assert found.verdict == "unstable" and found.sample[0] == 13 and found.unstable_samples == 1
    assert "rows 13" in found.sentence
    assert found.sample_sharpness[0] == pytest.approx(2 * float(each[13]), rel=1e-9)
    assert step_stability(net, X, learning_rate=0.6 * step).unstable_samples == 0
    assert step_stability(net, X, learning_rate=0.06 * step, batch_size=1).unstable_samples == 1
    # Without it the step is no trouble.
    rest = torch.cat([X[:13], X[14:]])
    assert step_stability(net, rest, learning_rate=step).verdict == "stable"


def test_blocks_of_the_kernel_by_three_routes():
    net, X = random_net([3, 7, 7, 4], 0.2, seed=6), gaussian(9, 3)
    blocks = ntk_blocks(net, X)
    J = jacobians(net, X)
    assert_close(blocks, J @ J.mT)
    assert_close(blocks.diagonal(dim1=1, dim2=2).sum(1), ntk_trace(net, X))
    plain = step_stability(net.to_torch(), X, learning_rate=0.1, batch_size=3)
    layered = step_stability(net, X, learning_rate=0.1, batch_size=3)
    assert plain.sample_sharpness == pytest.approx(layered.sample_sharpness, rel=1e-9)
    assert plain.unstable_step == pytest.approx(layered.unstable_step, rel=1e-6)


def test_cross_entropy_by_its_hessian():
    """At a linear network the Hessian of the cross-entropy is its Gauss–Newton matrix, whatever the labels."""
    net = nn.Linear(3, 4).double()
    X, labels = gaussian(7, 3), torch.arange(7) % 4
    found = step_stability(net, X, learning_rate=0.1, batch_size=2, ridge=0.03, loss="cross_entropy")
    theta = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters, x, y):
        return cost(functional_call(net, parameters, (x,)), y, "cross_entropy")

    each = []
    for i in range(7):
        blocks = hessian(loss)(theta, X[i : i + 1], labels[i : i + 1])
        rows = [torch.cat([blocks[a][b].reshape(theta[a].numel(), -1) for b in theta], 1) for a in theta]
        each.append(torch.cat(rows) + 0.06 * torch.eye(16, dtype=torch.float64))
    tops = torch.stack([torch.linalg.eigvalsh(H)[-1] for H in each])
    assert found.sample_sharpness == pytest.approx(tops.sort(descending=True).values.tolist(), rel=1e-9)
    mean = torch.stack(each).mean(0)
    assert found.sharpness == pytest.approx(float(torch.linalg.eigvalsh(mean)[-1]), rel=1e-4)
    assert found.trace == pytest.approx(float(mean.trace()), rel=1e-9)


def test_plain_data_and_errors():
    net, X = random_net([3, 6, 2], seed=1), gaussian(12, 3)
    found = step_stability(net, X, learning_rate=0.1, batch_size=5)
    assert Stability.from_dict(found.to_dict()) == found
    dead = random_net([3, 6, 2], bias=0.0)
    with torch.no_grad():
        for p in dead.parameters():
            p.zero_()
    still = step_stability(dead, X, learning_rate=0.1)
    assert still.verdict == "stable" and still.stable_step == math.inf
    assert Stability.from_dict(still.to_dict()) == still
    for wrong in ({"learning_rate": 0.0}, {"learning_rate": 0.1, "batch_size": 13}, {"learning_rate": 1, "samples": 3}):
        with pytest.raises(IsthmusError):
            step_stability(net, X, **wrong)
