"""One training step by every side of step.py: its GEMMs alone, ours, plain PyTorch, jitted JAX with optax.

Every side has weights, data and buffers of its own and takes a number of steps in a row, as training does: what one
step leaves in the caches serves its own next one and no other side's.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus import FullyConnected, LeakyResNet
from isthmus.networks._direct import Rows, multiply
from isthmus.training import Phase
from isthmus.training._first_order import FirstOrder
from isthmus.training._objective import Stack
from isthmus.training._requests import Steps, drive

RIDGE = 1e-4
RATE = 1e-3
#: Takes so many steps; the loss before the last of them.
Side = Callable[[int], float]


@dataclass(frozen=True)
class Case:
    """One network and its data."""

    kind: str
    depth: int
    width: int
    samples: int
    d: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.kind} L={self.depth} w={self.width} N={self.samples} d={self.d}"

    def data(self) -> tuple[Tensor, Tensor]:
        """X and Y, copies at every call; Y is a smooth function of X."""
        generator = torch.Generator().manual_seed(1)
        X = torch.randn(self.samples, self.d, generator=generator, dtype=torch.float64)
        M = torch.randn(self.d, self.d, generator=generator, dtype=torch.float64) / self.d**0.5
        dtype = getattr(torch, self.dtype)
        return X.to(dtype), torch.tanh(X @ M).to(dtype)

    def network(self) -> FullyConnected | LeakyResNet:
        """The start, the same at every call."""
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(0), "dtype": getattr(torch, self.dtype)}
        if self.kind == "leaky":
            return LeakyResNet(self.d, self.d, self.width, self.depth, 3.0, **options)
        return FullyConnected([self.d, *[self.width] * (self.depth - 1), self.d], **options)

    def products(self) -> list[tuple[int, int, bool, bool]]:
        """(Inputs, outputs, whether the weight is trained, whether the gradient goes on to its inputs)."""
        d, w = self.d, self.width
        if self.kind == "leaky":
            # The embeddings are fixed: no gradient of theirs, and none before the first trained layer.
            inner = [(w, w, True, index > 0) for index in range(self.depth)]
            return [(d, w, False, False), *inner, (w, d, False, True)]
        dims = [d, *[w] * (self.depth - 1), d]
        return [(n, m, True, index > 0) for index, (n, m) in enumerate(zip(dims, dims[1:]))]

    @property
    def flops(self) -> float:
        """Additions and multiplications in the GEMMs of one step."""
        return sum(2.0 * self.samples * n * m * (1 + trained + on) for n, m, trained, on in self.products())


def gemms(case: Case, blocks: int = 1) -> Side:
    """The matrix products of one step alone, into outputs that are there: A·Wᵀ, Gᵀ·A and G·W.

    Each product is the input of the next, as in a step: outputs apart from inputs would be twice the memory, a slower
    baseline and a share that flatters us. With several ``blocks`` each product is a batch, of as many parts of the
    samples.
    """
    dtype, generator = getattr(torch, case.dtype), torch.Generator().manual_seed(2)
    rows = Rows(blocks, case.samples)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    products = case.products()
    widths = [*(n for n, _, _, _ in products), products[-1][1]]
    Ws = [rows.repeat(random(m, n) / n**0.5) for n, m, _, _ in products]
    As, Gs = ([rows.divide(random(rows.total, n)) for n in widths] for _ in range(2))
    gradients = [torch.empty(W.shape, dtype=dtype) for W in Ws]

    def run(steps: int) -> float:
        for _ in range(steps):
            for index, W in enumerate(Ws):
                multiply(As[index], W.mT, As[index + 1])
            for index in range(len(Ws) - 1, -1, -1):
                _, _, trained, on = products[index]
                if trained:
                    multiply(Gs[index + 1].mT, As[index], gradients[index])
                if on:
                    multiply(Gs[index + 1], Ws[index], Gs[index])
        return 0.0

    return run


@contextmanager
def ours(case: Case, *, adam: bool) -> Iterator[Side]:
    """Our gradient alone, or the whole step of Adam as ``train`` takes it."""
    X, Y = case.data()
    objective = Stack([case.network()], [X], [Y], "mse").objectives[0]
    optimiser = FirstOrder(Phase("adam", 10**6, RATE), objective.theta, torch.Generator().manual_seed(0))
    taken = 0

    def several(steps: int) -> Steps[float]:
        nonlocal taken
        loss = 0.0
        for _ in range(steps):
            loss = (yield from optimiser.step(objective, taken, RIDGE)).loss
            taken += 1
        return loss

    def run(steps: int) -> float:
        with torch.no_grad(), objective.stack.threads():
            if adam:
                return drive([several(steps)])[0]
            return [objective(RIDGE).loss for _ in range(steps)][-1]

    with objective.attached():
        yield run


def regularised(module: nn.Module, X: Tensor, Y: Tensor) -> Tensor:
    """The loss as people write it."""
    penalty = torch.stack([p.square().sum() for p in module.parameters()]).sum()
    return (module(X) - Y).square().sum(1).mean() + RIDGE * penalty


def plain(case: Case) -> Side:
    """Autograd and ``torch.optim.Adam``."""
    net, (X, Y) = case.network(), case.data()
    module = net.to_torch() if isinstance(net, FullyConnected) else copy.deepcopy(net)
    optimiser = torch.optim.Adam(module.parameters(), lr=RATE)

    def run(steps: int) -> float:
        loss = torch.zeros(())
        for _ in range(steps):
            optimiser.zero_grad()
            loss = regularised(module, X, Y)
            loss.backward()
            optimiser.step()
        return float(loss.detach())

    return run


def limit_jax(threads: int) -> None:
    """Before its import: as many threads for JAX's products and its pool as for ours."""
    os.environ["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'} intra_op_parallelism_threads={threads}"
    )
    os.environ["NPROC"] = str(threads)
    os.environ["JAX_PLATFORMS"] = "cpu"


def jax_side(case: Case) -> tuple[Side, Callable[[], list[np.ndarray]]]:
    """Jitted step of JAX and optax, its buffers donated; and its gradient at the start, in the order of ours."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import optax  # pyright: ignore[reportMissingImports]

    net, (X, Y) = case.network(), case.data()
    inputs, targets = jnp.array(X.numpy()), jnp.array(Y.numpy())
    own = [jnp.array(p.detach().numpy()) for p in net.parameters()]
    embeddings, rho, leak = [], [], 0.0
    if isinstance(net, LeakyResNet):
        embeddings = [jnp.array(M.detach().numpy()) for M in (net.W_in, net.W_out)]
        rho, leak = net.rho.tolist(), net.effective_depth

    def forward(parameters: list[Any], A: Any, fixed: list[Any]) -> Any:
        if fixed:
            A = A @ fixed[0].T
            for index, length in enumerate(rho):
                W, b = parameters[2 * index : 2 * index + 2]
                A = (1.0 - length * leak) * A + length**0.5 * (jax.nn.relu(A) @ W.T + b)
            return A @ fixed[1].T
        half = len(parameters) // 2
        for index, (W, b) in enumerate(zip(parameters[:half], parameters[half:])):
            A = A @ W.T + b
            A = jax.nn.relu(A) if index + 1 < half else A
        return A

    def loss(parameters: list[Any], A: Any, B: Any, fixed: list[Any]) -> Any:
        penalty = sum(jnp.sum(p * p) for p in parameters)
        return jnp.mean(jnp.sum((forward(parameters, A, fixed) - B) ** 2, axis=1)) + RIDGE * penalty

    optimiser = optax.adam(RATE)

    def step(parameters: list[Any], state: Any, A: Any, B: Any, fixed: list[Any]) -> tuple[Any, Any, Any]:
        value, gradient = jax.value_and_grad(loss)(parameters, A, B, fixed)
        updates, state = optimiser.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    jitted = jax.jit(step, donate_argnums=(0, 1))
    now: list[Any] = [[jnp.array(p) for p in own], optimiser.init(own)]

    def run(steps: int) -> float:
        value = None
        for _ in range(steps):
            now[0], now[1], value = jitted(now[0], now[1], inputs, targets, embeddings)
        # Once, at the end: in between JAX may run ahead, as it would in training.
        jax.block_until_ready((now, value))
        return float(value)  # pyright: ignore[reportArgumentType]

    def gradient() -> list[np.ndarray]:
        return [np.asarray(g) for g in jax.jit(jax.grad(loss))(own, inputs, targets, embeddings)]

    return run, gradient
