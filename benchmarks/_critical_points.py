"""The task, the curvature and the end points of ``criticality.py``: what is measured, not how it is trained."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from isthmus import LeakyResNet, mechanics, ridge_from
from isthmus.experiments.hamiltonian2024._trained import KINKS, split
from isthmus.measures import MechanicsArrays, read_spectrum
from isthmus.measures._stationarity import _Derivatives
from isthmus.networks._leaky_resnet import LeakyMetric
from isthmus.objective import cost
from isthmus.problems import teacher

#: How near a kink counts as on it; bounds of |A|/rms(A).
TOLERANCES = (0.0, KINKS / 10.0, KINKS, 10.0 * KINKS)
DECADES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The task, the network and the time."""

    d: int = 10
    rank: int = 3
    width: int = 64
    layers: int = 16
    effective_depth: float = 5.0
    samples: int = 400
    lam: float = 2e-3
    seconds: float = 60.0
    plan_steps: int = 300
    learning_rate: float = 1e-3
    seed: int = 0

    @property
    def ridge(self) -> float:
        """λ of the paper with the cost averaged over outputs, in our convention."""
        return ridge_from("hamiltonian2024", self.lam, effective_depth=self.effective_depth, outputs=self.d)

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        options = {"relu_latents": True, "samples": 2 * self.samples, "seed": self.seed}
        both = split(teacher(d_in=self.d, rank=self.rank, d_out=self.d, **options), self.samples)
        return both.X, both.Y

    def network(self, init: str = "identity") -> LeakyResNet:
        """The start."""
        generator = torch.Generator().manual_seed(self.seed)
        options = {"init": init, "generator": generator, "dtype": torch.float32}
        return LeakyResNet(self.d, self.d, self.width, self.layers, self.effective_depth, **options)


def flat(net: nn.Module) -> Tensor:
    """θ."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@torch.no_grad()
def place(net: nn.Module, theta: Tensor) -> None:
    """Put θ into the network."""
    torch.nn.utils.vector_to_parameters(theta, net.parameters())


def gradient(net: nn.Module, X: Tensor, Y: Tensor, ridge: float) -> tuple[float, Tensor, Tensor]:
    """Loss, its gradient and θ in float64; the gradients held by the module are not touched."""
    own = copy.deepcopy(net).double()
    parameters, theta = list(own.parameters()), flat(own)
    with torch.enable_grad():
        value = cost(own(X.double()), Y.double())
        cost_gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters)])
    return float(value.detach()) + ridge * float(theta @ theta), cost_gradient + 2.0 * ridge * theta, theta


class GaussNewton:
    """v ↦ (2/N)JᵀJv + 2·ridge·v at one θ, and the Kronecker metric there."""

    def __init__(self, net: LeakyResNet, X: Tensor, ridge: float) -> None:
        self.net, self.X, self.ridge, self.theta = net, X, ridge, flat(net)
        self.names = [name for name, _ in net.named_parameters()]
        self.shapes = [p.shape for p in net.parameters()]
        self.pull = torch.func.vjp(self.outputs, self.theta)[1]
        self.metric = LeakyMetric(net, "mse")
        self.metric.refresh(self.theta, X, [torch.Generator().manual_seed(0)])

    def outputs(self, theta: Tensor) -> Tensor:
        """f(X) as a function of θ."""
        parts = theta.split([math.prod(s) for s in self.shapes])
        named = {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes)}
        return torch.func.functional_call(self.net, named, (self.X,))

    def inverse(self, v: Tensor) -> Tensor:
        """M⁻¹v, M the metric."""
        return self.metric.solve(v[None], [self.ridge])[0]

    def push(self, v: Tensor) -> Tensor:
        """Jv."""
        return torch.func.jvp(self.outputs, (self.theta,), (v,))[1]

    def __call__(self, v: Tensor) -> Tensor:
        """The product."""
        return 2.0 / len(self.X) * self.pull(self.push(v))[0] + 2.0 * self.ridge * v

    def step(self, gradient: Tensor, rounds: int) -> tuple[Tensor, float]:
        """X ≈ −H⁻¹·gradient by conjugate gradients in the metric, and xᵀHx."""
        x, r = torch.zeros_like(gradient), -gradient
        z = self.inverse(r)
        p, rz = z, float(r @ z)
        for _ in range(rounds):
            Hp = self(p)
            alpha = rz / float(p @ Hp)
            x, r = x + alpha * p, r - alpha * Hp
            z = self.inverse(r)
            rz, last = float(r @ z), rz
            p = z + rz / last * p
        return x, float(x @ self(x))

    def against_metric(self, coupling: float, rounds: int = 60) -> dict[str, float]:
        """Largest vᵀHv/vᵀMv, M the metric, by power iteration; and what of it are coupling and factoring.

        With D the exact block diagonal of the Gauss–Newton matrix, vᵀ(2/N)JᵀJv/vᵀDv is at most the number of blocks;
        vᵀDv over its Kronecker form is 1 if factoring were exact.
        """
        self.metric.coupling = coupling
        v = torch.randn(len(self.theta), generator=torch.Generator().manual_seed(1)).to(self.theta)
        quotient, weight = 0.0, 1.0
        for _ in range(rounds):
            u = self(v / v.norm())
            v = self.inverse(u)
            weight = float(v @ u)  # vᵀMv
            quotient = float(v @ self(v)) / weight
        free = 2.0 * self.ridge * float(v @ v)
        blocks = 0.0
        for slot in self.metric.layout():
            alone = torch.zeros_like(v)
            places = [(slot.weight, slot.outputs * slot.inputs)]
            places += [] if slot.bias is None else [(slot.bias, slot.outputs)]
            for start, size in places:
                alone[start : start + size] = v[start : start + size]
            blocks += 2.0 / len(self.X) * float(self.push(alone).square().sum())
        curved = quotient * weight - free
        return {"quotient": quotient, "coupled": curved / blocks, "factoring": blocks * coupling / (weight - free)}


def model_by_length(setting: Setting, net: LeakyResNet, rounds: int) -> dict[str, Any]:
    """Decrease of the loss over that of the Gauss–Newton model, along parts of one of its steps, in float64."""
    X, Y = (T.double() for T in setting.data())
    own = copy.deepcopy(net).double()
    loss, g, theta = gradient(own, X, Y, setting.ridge)
    x, square = GaussNewton(own, X, setting.ridge).step(g, rounds)
    lengths = [10.0**-k for k in range(7)]
    right = []
    for t in lengths:
        place(own, theta + t * x)
        lower = loss - gradient(own, X, Y, setting.ridge)[0]
        right.append(lower / (-t * float(g @ x) - 0.5 * t**2 * square))
    return {"step": float(x.norm() / theta.norm()), "lengths": lengths, "right": right}


def largest_curvature(net: LeakyResNet, X: Tensor, Y: Tensor, ridge: float, rounds: int = 40) -> float:
    """Largest eigenvalue of the Hessian where it exists, by power iteration."""
    parameters = list(net.parameters())
    value = cost(net(X), Y) + ridge * sum(p.square().sum() for p in parameters)
    g = torch.cat([part.reshape(-1) for part in torch.autograd.grad(value, parameters, create_graph=True)])
    v, size = torch.randn(len(g), generator=torch.Generator().manual_seed(2)).to(X), 0.0
    for _ in range(rounds):
        v = torch.cat([p.reshape(-1) for p in torch.autograd.grad(g, parameters, v / v.norm(), retain_graph=True)])
        size = float(v.norm())
    return size


def perturbed(setting: Setting, net: LeakyResNet) -> list[list[float]]:
    """(ε, change of the gradient over 2·ridge·‖θ‖) under θ + ε‖θ‖u, the median over five directions u."""
    X, Y = setting.data()
    _, g, theta = gradient(net, X, Y, setting.ridge)
    own, scale = copy.deepcopy(net).double(), 2.0 * setting.ridge * float(theta.norm())
    generator, found = torch.Generator().manual_seed(3), []
    for share in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        changes = []
        for _ in range(5):
            u = torch.randn(len(theta), generator=generator, dtype=torch.float64)
            place(own, theta + share * float(theta.norm()) / float(u.norm()) * u)
            changes.append(float((gradient(own, X, Y, setting.ridge)[1] - g).norm()) / scale)
        found.append([share, float(np.median(changes))])
    return found


def near_zero(net: LeakyResNet, X: Tensor) -> dict[str, Any]:
    """Shares of entries of A_1 … A_{L-1} within decades of 0: relative to rms(A_ℓ), and to their own neuron's.

    The second leaves out neurons below a hundredth of rms(A_ℓ): a neuron that has died is near 0 without any kink.
    """
    trace = net.trace(X)
    shares: dict[str, list[list[float]]] = {"layer": [], "neuron": []}
    alive = []
    for A in trace.representations[1:-1]:
        rms, own = A.square().mean().sqrt(), A.square().mean(0).sqrt()
        living = own > 1e-2 * rms
        alive.append(int(living.sum()))
        for key, near in (("layer", A.abs() / rms), ("neuron", A[:, living].abs() / own[living])):
            shares[key].append([float((near <= bound).double().mean()) for bound in DECADES])
    return {"decades": list(DECADES), "living_neurons": alive, **shares}


_AT_KINKS = _Derivatives.masks


def elsewhere(problem: _Derivatives, tau: float) -> list[Tensor]:
    """As many entries of each neuron as are on their kinks, at samples drawn by lot."""
    found = []
    for place, mask in enumerate(_AT_KINKS(problem, tau)):
        lots = torch.rand(mask.shape, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        found.append(torch.gather(mask, 0, lots.argsort(0)))
    return found


def ended(setting: Setting, net: LeakyResNet) -> dict[str, Any]:
    """What the table and the third panel need."""
    X, Y = setting.data()

    def seen(kinks: float) -> MechanicsArrays:
        arrays = mechanics(net, X, Y, ridge=setting.ridge, kinks=kinks).arrays
        assert arrays is not None
        return arrays

    found = [seen(kinks) for kinks in TOLERANCES]
    plain, resolved = found[0], found[TOLERANCES.index(KINKS)]
    with mock.patch.object(_Derivatives, "masks", elsewhere):
        control = [seen(kinks).total_residual for kinks in TOLERANCES]
    loss, g, theta = gradient(net, X, Y, setting.ridge)
    reading = read_spectrum(plain.weight_spectra[setting.layers // 2])
    factor = -2.0 / setting.effective_depth
    return {
        "loss": loss,
        "norm": float(theta @ theta),
        "residual": float(g.norm()) / (2.0 * setting.ridge * float(theta.norm())),
        "residual_mechanics": plain.total_residual,
        "tolerances": list(TOLERANCES),
        "resolved": [arrays.total_residual for arrays in found],
        "resolved_elsewhere": control,
        "residual_layers": plain.residual.tolist(),
        "resolved_layers": resolved.residual.tolist(),
        "rank": reading.count if reading.status == "clear" else None,
        "spectrum": plain.weight_spectra[setting.layers // 2][:8].tolist(),
        "hamiltonian": [factor * float(np.median(a.hamiltonian)) for a in (plain, resolved)],
        "spread": [a.spread for a in (plain, resolved)],
        "near_zero": near_zero(net, X),
        "perturbed": perturbed(setting, net),
    }
