"""C-bn-16: the trace of the tangent kernel is at least L‖f‖²/(‖θ‖²/L), and with biases what each layer carries."""

from __future__ import annotations

import pytest
import torch
from judged import part, status, verdict

from isthmus.claims._base import Subject
from isthmus.claims._evidence import gaussian_inputs, random_subject
from isthmus.claims.bottleneck2023._kernel_floor import positive_net
from isthmus.measures import parameter_norms
from isthmus.networks import FullyConnected


def kernel_by_autograd(net, x):
    """‖J_θ f(x)‖², from the gradients of all parameters."""
    total = 0.0
    for output in range(net.dims[-1]):
        gradients = torch.autograd.grad(net(x[None])[0, output], list(net.parameters()))
        total += sum(float(g.square().sum()) for g in gradients)
    return total


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_it_holds_for_any_weights(slope, seed):
    found = verdict("C-bn-16", random_subject([4, 9, 9, 3], slope=slope, bias=0.0, scale=0.5 + seed, seed=seed))
    assert found.status == "holds" and 0.0 < found.slack < 1.0


def test_both_sides_by_a_second_route():
    subject = positive_net()
    found = part("C-bn-16", subject, "by ‖θ‖²")
    row = int(found.where.split()[1])
    x = subject.X[row]
    assert found.lhs == pytest.approx(kernel_by_autograd(subject.net, x), rel=1e-10)
    theta = sum(float(p.detach().square().sum()) for p in subject.net.parameters())
    assert found.rhs == pytest.approx(25 * float(subject.net(x).detach().square().sum()) / theta, rel=1e-10)


def test_chains_of_equal_numbers_attain_it():
    net = FullyConnected.from_weights([torch.tensor([[1.3]], dtype=torch.float64)] * 6)
    found = verdict("C-bn-16", Subject(net, torch.tensor([[0.7]], dtype=torch.float64)))
    assert found.status == "holds" and abs(found.slack) < 1e-12


def test_with_biases_f_is_less_what_they_add():
    zeros = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)]
    net = FullyConnected.from_weights(zeros, [torch.zeros(3).double(), torch.tensor([2.0]).double()])
    X = gaussian_inputs(5, 2, 0)
    # Tr Θ = d_out = 1 against L²‖f‖²/‖θ‖² = 4 as it is without biases; the last layer alone carries f.
    assert kernel_by_autograd(net, X[0]) < 4 * float(net(X[:1]).detach().square()) / parameter_norms(net).total
    assert part("C-bn-16", Subject(net, X), "by each layer").rhs == pytest.approx(1.0)


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.3])
def test_what_each_layer_carries_by_a_second_route(slope):
    subject = random_subject([4, 9, 7, 8, 3], slope=slope, seed=5)
    found = part("C-bn-16", subject, "by each layer")
    assert found.status == "holds" and 0.0 < found.slack < 0.99
    x = subject.X[int(found.where.split()[1])][None]
    assert found.lhs == pytest.approx(kernel_by_autograd(subject.net, x[0]), rel=1e-10)
    trace, total = subject.net.trace(x), 0.0
    for ell in range(1, 5):
        z = trace.preactivations[ell - 1][0]

        def onward(z, ell=ell):
            for layer in range(ell, 4):
                z = trace.Ws[layer] @ torch.where(z > 0, z, slope * z) + trace.bs[layer]
            return z

        G = torch.autograd.functional.jacobian(onward, z)
        wide = torch.cat([trace.Ws[ell - 1], trace.bs[ell - 1][:, None]], 1)
        total += float((G @ z).square().sum() / torch.linalg.matrix_norm(wide, 2).square())
    assert found.rhs == pytest.approx(total, rel=1e-10)


def test_a_smaller_norm_is_noticed_and_a_vanishing_function_is_left_out():
    subject = positive_net()
    norm = parameter_norms(subject.net).total
    assert status("C-bn-16", subject.replace(known={"norm": norm / 100})) == "fails"
    dead = FullyConnected.from_weights([torch.zeros(2, 3).double(), torch.ones(1, 2).double()])
    assert status("C-bn-16", Subject(dead, gaussian_inputs(4, 3, 0))) == "not applicable"
