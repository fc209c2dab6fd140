"""The papers' recipes as people write them: plain PyTorch modules, ``torch.optim``, the ridge in the loss."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from isthmus import ConvergenceWarning, FullyConnected, LeakyResNet
from isthmus.networks._leaky_resnet import adapted
from isthmus.training import Phase, TrainingEvent, TrainingResult, train

#: Adam's learning rate, and those that plain gradient descent may take: the largest at which the loss falls.
ADAM_RATE = 1e-3
DESCENT_RATES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
#: Steps on which a rate is tried.
TRIED = 40
#: Epochs between two updates of adaptive steps.
ADAPT_EVERY = 20


@dataclass
class Trained:
    """What a recipe ended with: its module, losses every so many steps, and the seconds of its steps alone."""

    module: nn.Module
    adam_steps: int
    descent_steps: int
    rate: float
    seconds: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """(Step, seconds so far, loss before that step)."""

    @property
    def loss(self) -> float:
        """The regularised loss at the end."""
        return self.curve[-1][2]


class PlainLeaky(nn.Module):
    """α ← (1 − ρ_ℓL̃)α + √ρ_ℓ(V_ℓσ(α) + b_ℓ) with V_ℓ = √ρ_ℓW_ℓ as parameters, and the regulariser Σ‖V_ℓ‖².

    With W_ℓ itself as parameters, as the paper prints it, Adam's steps are √50 times shorter at L = 50: after 1,700 of
    them the loss of F-ham-1's network at L̃ = 7 was 17.7 of the 20 of a constant. This is the stronger recipe.
    """

    def __init__(self, net: LeakyResNet) -> None:
        super().__init__()
        self.effective_depth, self.rho = net.effective_depth, net.rho
        self.register_buffer("W_in", net.W_in.detach().clone())
        self.register_buffer("W_out", net.W_out.detach().clone())
        self.layers = nn.ModuleList()
        for W in net.Ws:
            layer = nn.Linear(net.width, net.width)
            with torch.no_grad():
                root = float(self.rho[len(self.layers)]) ** 0.5
                layer.weight.copy_(root * W[:, :-1])
                layer.bias.copy_(root * W[:, -1])
            self.layers.append(layer)

    def path(self, X: Tensor) -> list[Tensor]:
        """All representations."""
        A = [X @ self.get_buffer("W_in").mT]
        for layer, length in zip(self.layers, self.rho.tolist()):
            A.append((1.0 - length * self.effective_depth) * A[-1] + length**0.5 * layer(torch.relu(A[-1])))
        return A

    def forward(self, X: Tensor) -> Tensor:
        """Outputs."""
        return self.path(X)[-1] @ self.get_buffer("W_out").mT

    @torch.no_grad()
    def adapt(self, X: Tensor) -> None:
        """Steps in inverse proportion to the speed of the path, by the rule that ours follow."""
        A = self.path(X)
        speeds = torch.tensor([float((b - a).norm() / b.norm()) for a, b in zip(A, A[1:])]).double() / self.rho
        old, self.rho = self.rho, adapted(self.rho, speeds, self.effective_depth)
        for layer, factor in zip(self.layers, (self.rho / old).sqrt().tolist()):
            for p in layer.parameters():
                p.mul_(factor)

    def to_isthmus(self) -> LeakyResNet:
        """The same network as ours, for its mechanics."""
        Ws = []
        for layer, length in zip(self.layers, self.rho.tolist()):
            V, b = (p.detach() for p in layer.parameters())
            Ws.append(torch.cat([V, b[:, None]], 1) / length**0.5)
        return LeakyResNet.from_weights(
            Ws,
            self.rho,
            effective_depth=self.effective_depth,
            W_in=self.get_buffer("W_in"),
            W_out=self.get_buffer("W_out"),
            steps="adaptive",
        )


def penalty_of(module: nn.Module) -> Tensor:
    """‖θ‖²."""
    return torch.stack([p.square().sum() for p in module.parameters()]).sum()


def plain_pytorch(
    net: FullyConnected | LeakyResNet,
    X: Tensor,
    Y: Tensor,
    ridge: float,
    *,
    adam: int,
    descent: int,
    every: int = 100,
    report: Callable[[Trained], object] | None = None,
) -> Trained:
    """Adam at 1e-3, then gradient descent at the largest rate of a list at which the loss falls; all samples a step.

    Choosing that rate is not timed.
    """
    module = PlainLeaky(net) if isinstance(net, LeakyResNet) else net.to_torch()
    done = Trained(module, adam, descent, 0.0)

    def go(optimiser: torch.optim.Optimizer, steps: int, offset: int) -> None:
        for step in range(offset, offset + steps):
            began = time.perf_counter()
            if isinstance(module, PlainLeaky) and step % ADAPT_EVERY == 0 and offset == 0:
                module.adapt(X)
            optimiser.zero_grad()
            loss = (module(X) - Y).square().sum(1).mean() + ridge * penalty_of(module)
            loss.backward()
            optimiser.step()
            done.seconds += time.perf_counter() - began
            if (step + 1) % every == 0 or step + 1 == adam + descent:
                with torch.no_grad():
                    value = float((module(X) - Y).square().sum(1).mean() + ridge * penalty_of(module))
                done.curve.append((step + 1, done.seconds, value))
                if report is not None:
                    report(done)

    go(torch.optim.Adam(module.parameters(), lr=ADAM_RATE), adam, 0)
    if descent:
        done.rate = _largest_rate(module, X, Y, ridge)
        go(torch.optim.SGD(module.parameters(), lr=done.rate), descent, adam)
    return done


def _largest_rate(module: nn.Module, X: Tensor, Y: Tensor, ridge: float) -> float:
    """The largest rate of the list at which TRIED steps lower the loss; the module is left as it was."""
    start = {name: value.clone() for name, value in module.state_dict().items()}
    for rate in DESCENT_RATES:
        optimiser = torch.optim.SGD(module.parameters(), lr=rate)
        losses = []
        for _ in range(TRIED):
            optimiser.zero_grad()
            loss = (module(X) - Y).square().sum(1).mean() + ridge * penalty_of(module)
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        module.load_state_dict(start)
        if losses[-1] < losses[0] and max(losses) <= losses[0] * (1.0 + 1e-3):
            return rate
    return DESCENT_RATES[-1]


def followed(
    net: nn.Module, X: Tensor, Y: Tensor, ridge: float, phases: Sequence[Phase] | None = None
) -> tuple[TrainingResult, list[tuple[float, float]]]:
    """Our own training, in place: its account, and (seconds, loss at the full ridge) after each step."""
    curve: list[tuple[float, float]] = []
    start = time.perf_counter()

    def watch(event: TrainingEvent) -> None:
        curve.append((time.perf_counter() - start, event.cost + ridge * event.norm))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = train(net, X, Y, ridge=ridge, phases=phases, callbacks=[watch])
    return result, curve
