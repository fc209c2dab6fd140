"""Q-norm and Q-balance."""

from __future__ import annotations

import torch

from isthmus import FullyConnected
from isthmus.measures import balance, parameter_norms
from tools import assert_close, gaussian, linear_net, random_net


def test_norms_are_sums_of_squares():
    net = random_net([3, 5, 4, 2])
    norms = parameter_norms(net)
    assert_close(norms.total, sum(float(p.detach().square().sum()) for p in net.parameters()))
    assert_close(norms.layers, [W.detach().square().sum() + b.detach().square().sum() for W, b in zip(net.Ws, net.bs)])
    assert_close(norms.per_depth, norms.total / 3)
    assert_close(norms.weights + norms.biases, norms.layers)
    assert parameter_norms(net.trace(gaussian(2, 3))).total == norms.total
    bare = random_net([3, 5, 2], bias=0.0)
    assert not parameter_norms(bare).biases.any()


def test_norm_in_float64():
    net = FullyConnected.from_weights([torch.full((1000, 1000), 0.1)])
    assert_close(parameter_norms(net).total, 1e6 * float(torch.tensor(0.1).double()) ** 2)


def test_balance_by_hand():
    net = FullyConnected.from_weights(
        [torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[2.0, 1.0]])],
        [torch.tensor([1.0, 0.0]), torch.ones(1)],
    )
    found = balance(net)
    assert found.neurons[0].tolist() == [26.0 - 4.0, 1.0 - 1.0]
    assert found.layers.tolist() == [22.0]
    assert found.scale == (26.0 + 5.0) / 2
    assert_close(found.layer_residual, 22 / 15.5)
    assert_close(found.neuron_residual, 22 / 15.5)


def test_layers_may_balance_where_neurons_do_not():
    net = FullyConnected.from_weights([torch.diag(torch.tensor([2.0, 1.0])), torch.diag(torch.tensor([1.0, 2.0]))])
    assert balance(net).layer_residual == 0.0
    assert balance(net).neuron_residual > 1.0


def test_optimal_linear_nets_are_layer_balanced():
    assert balance(linear_net([2.0, 0.3], [4, 6, 5, 3])).layer_residual < 1e-14


def test_depth_one_and_zero():
    assert balance(random_net([3, 2])).layer_residual == 0.0
    assert balance(random_net([3, 2])).layers.shape == (0,)
    assert balance(FullyConnected([3, 4, 2], init_scale=0.0)).neuron_residual == 0.0
