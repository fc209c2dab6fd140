"""Leaky ResNets that meet the hypotheses of the claims: integrated flows and closed forms, nothing trained."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.base import Subject
from isthmus.claims.samples import gaussian_inputs
from isthmus.constructions import FlowNetwork, flow_network, steady_path
from isthmus.networks import LeakyResNet
from isthmus.trace import activate, with_ones


def as_subject(made: FlowNetwork, **known: object) -> Subject:
    """The network on its inputs and targets."""
    return Subject(made.network, made.X, made.Y, made.ridge, known=known)


def signed_start(width: int = 4, samples: int = 3, seed: int = 77, bias: float = 1.0) -> tuple[Tensor, Tensor]:
    """A start (A, B) of a flow with entries of both signs that keep them: |A| ≥ 1, and B near A(K + γI)⁻¹."""
    G = gaussian_inputs(2 * width, samples, seed)
    A = G[:width] + G[:width].sign()
    S = with_ones(activate(A, 0.0), bias)
    B = torch.linalg.solve(S.mT @ S + 0.3 * torch.eye(samples, dtype=torch.float64), A, left=False)
    B = B + 0.05 * G[width:]
    # Momenta of entries below zero grow as e^(L̃p): small ones do not turn them.
    return A, torch.where(A > 0, B, 0.1 * B)


def flow_sample() -> Subject:
    """An exact critical point of 40 steps with biases, off the kinks."""
    return as_subject(flow_network(*signed_start(), 2.0, 40))


def flow_family() -> Subject:
    """The same start on 20 to 160 steps."""
    members = [as_subject(flow_network(*signed_start(), 2.0, layers)) for layers in (20, 40, 80, 160)]
    return members[1].replace(known={"family": members})


def linear_flow() -> Subject:
    """A linear network of 40 steps without bias at an exact critical point whose weights move along the path."""
    A, B = gaussian_inputs(3, 3, 1), gaussian_inputs(3, 3, 2)
    A = torch.eye(3, dtype=torch.float64) + 0.3 * A
    return as_subject(flow_network(A, torch.linalg.inv(A).mT + 0.1 * B, 2.0, 40, slope=1.0, bias=0.0))


def standing_still(A: Tensor) -> Subject:
    """A network of one step without leak or weights: both its representations are A, (w, N)."""
    W = torch.zeros(len(A), len(A) + 1, dtype=torch.float64)
    return Subject(LeakyResNet.from_weights([W], [1.0], effective_depth=0.0), A.mT.contiguous())


def signed_representation() -> Subject:
    """A representation of 12 neurons on 3 samples, of both signs, that its activations can rebuild."""
    return standing_still(gaussian_inputs(12, 3, 1))


def stable_minimum() -> Subject:
    """A non-negative representation of rank 2 whose activations do not span the constants: a stable minimum."""
    A = torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0], [0.5, 1.0, 0.5, 1.5]], dtype=torch.float64)
    return standing_still(A)


def many_neurons() -> Subject:
    """20 neurons on 3 samples, more than N(N+1) = 12, of both signs."""
    return standing_still(gaussian_inputs(20, 3, 7))


def deepening_family() -> Subject:
    """Critical points in closed form for L̃ = 2, 4, 8, 12: two positive directions and a negative neuron that leaks."""
    A = torch.tensor([[1.0, 0.4], [0.3, 1.2]], dtype=torch.float64)
    D = torch.tensor([[0.2, 0.1], [0.1, -0.1]], dtype=torch.float64)
    members = []
    for L_tilde in (2.0, 4.0, 8.0, 12.0):
        G = torch.eye(2, dtype=torch.float64) + D / L_tilde
        leaking = torch.tensor([[-1.0, -0.5]], dtype=torch.float64)
        members.append(as_subject(steady_path(A, G, L_tilde, 18, leaking=leaking)))
    return members[-1].replace(known={"family": members})


def unbiased_net() -> Subject:
    """A random leaky ResNet without bias: any weights have the symmetries."""
    source = torch.Generator().manual_seed(3)
    net = LeakyResNet(4, 3, width=8, layers=6, effective_depth=2.0, bias=0.0, dtype=torch.float64, generator=source)
    return Subject(net.requires_grad_(False), gaussian_inputs(20, 4, 4))
