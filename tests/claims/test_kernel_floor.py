"""C-bn-16: without biases the trace of the tangent kernel is at least L‖f‖²/(‖θ‖²/L)."""

from __future__ import annotations

import pytest
import torch
from judged import status, verdict

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
    found = verdict("C-bn-16", subject)
    row = int(found.where.split()[1])
    x = subject.X[row]
    assert found.lhs == pytest.approx(kernel_by_autograd(subject.net, x), rel=1e-10)
    theta = sum(float(p.detach().square().sum()) for p in subject.net.parameters())
    assert found.rhs == pytest.approx(25 * float(subject.net(x).detach().square().sum()) / theta, rel=1e-10)


def test_chains_of_equal_numbers_attain_it():
    net = FullyConnected.from_weights([torch.tensor([[1.3]], dtype=torch.float64)] * 6)
    found = verdict("C-bn-16", Subject(net, torch.tensor([[0.7]], dtype=torch.float64)))
    assert found.status == "holds" and abs(found.slack) < 1e-12


def test_with_biases_it_says_nothing_and_would_be_false():
    zeros = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)]
    net = FullyConnected.from_weights(zeros, [torch.zeros(3).double(), torch.tensor([2.0]).double()])
    X = gaussian_inputs(5, 2, 0)
    assert status("C-bn-16", Subject(net, X)) == "not applicable"
    # Tr Θ = d_out = 1 against L²‖f‖²/‖θ‖² = 4.
    assert kernel_by_autograd(net, X[0]) < 4 * float(net(X[:1]).detach().square()) / parameter_norms(net).total


def test_a_smaller_norm_is_noticed_and_a_vanishing_function_is_left_out():
    subject = positive_net()
    norm = parameter_norms(subject.net).total
    assert status("C-bn-16", subject.replace(known={"norm": norm / 100})) == "fails"
    dead = FullyConnected.from_weights([torch.zeros(2, 3).double(), torch.ones(1, 2).double()])
    assert status("C-bn-16", Subject(dead, gaussian_inputs(4, 3, 0))) == "not applicable"
