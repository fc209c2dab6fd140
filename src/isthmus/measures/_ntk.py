"""Q-ntk: the neural tangent kernel and the Hessian as operators; their large matrices are never formed.

Θ(x, y) = J_θ f(x) · J_θ f(y)ᵀ is d_out × d_out for each pair of samples. With our cost C = (1/N)Σ‖f − y‖² +
ridge·‖θ‖², the Hessian at an interpolating network is H = (2/N)·J_θᵀJ_θ + 2·ridge, whose spectrum is (2/N)
that of Θ(X, X), plus 2·ridge. (Departs from bottleneck2023, which omits the factor 2: see
``docs/errata.md``.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor
from torch.func import functional_call, jvp, vjp

from isthmus._checks import as_matrix, as_tensor, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus._forward_mode import load_forward_mode
from isthmus.linalg import CACHE_BYTES, CHUNK_BYTES, chunk_rows
from isthmus.objective import LOSSES, cost
from isthmus.trace import Trace, Traceable


@cites("bottleneck2023", "Thm. 7, proof", ids=("Q-ntk",))
@torch.no_grad()
def ntk_trace(net: Traceable, X: Any, *, chunk_bytes: int = CHUNK_BYTES, dtype: torch.dtype = torch.float64) -> Tensor:
    """Tr Θ(x, x) = Σ_ℓ (‖α_{ℓ-1}(x)‖² + β²) · ‖J(α̃_ℓ → f)(x)‖²_F for every row of X, (N,).

    One backward product for each output and no gradient of any parameter: the P-dimensional rows of J_θ f
    factor as (α_{ℓ-1}, β) ⊗ J(α̃_ℓ → f), so that their squared norms are products.
    """
    dims = (net.Ws[0].shape[1], *(W.shape[0] for W in net.Ws))
    inputs = as_matrix("ntk_trace", "X", X, columns=dims[0], dtype=dtype, device=net.Ws[0].device)
    per_row = inputs.element_size() * (2 * dims[-1] * max(dims[1:]) + 4 * sum(dims))
    parts = inputs.split(chunk_rows(len(inputs), per_row, chunk_bytes))
    return torch.cat([_ntk_trace_of(net.trace(part, dtype=dtype)) for part in parts])


def _ntk_trace_of(trace: Trace, block_bytes: int = CACHE_BYTES) -> Tensor:
    """The sum over layers for the samples of one trace, block by block of samples: (N,)."""
    L, d_out, widest = trace.depth, trace.dims[-1], max(trace.dims[1:])
    sizes = [a.square().sum(1) + trace.bias**2 for a in trace.activations]
    # Layer L: J(α̃_L → f) is the identity.
    total = sizes[L - 1] * d_out
    derivatives = [trace.derivative(ell) for ell in range(1, L)]
    # The product is masked and squared while it is still in the cache, and goes back and forth between two buffers.
    block = chunk_rows(trace.samples, total.element_size() * d_out * widest, block_bytes)
    buffers = [total.new_empty(block * d_out * widest) for _ in range(2)]
    for start in range(0, trace.samples, block):
        rows = slice(start, min(start + block, trace.samples))
        n = rows.stop - start
        G = None
        for ell in range(L - 1, 0, -1):
            after = buffers[ell % 2][: n * d_out * trace.dims[ell]].view(n, d_out, -1)
            D = derivatives[ell - 1][rows, None, :]
            if G is None:
                torch.mul(trace.Ws[ell], D, out=after)
            else:
                torch.mm(G.view(n * d_out, -1), trace.Ws[ell], out=after.view(n * d_out, -1))
                after.mul_(D)
            G = after
            total[rows].addcmul_(sizes[ell - 1][rows], torch.linalg.vector_norm(G, dim=(1, 2)).square_())
    return total


@dataclass(frozen=True)
class Eigenvalue:
    """An extreme eigenvalue by Lanczos iteration.

    Attributes
    ----------
    value : float
    residual : float
        ‖Av − value·v‖ / |value|: a bound on the relative distance to an eigenvalue (the operator is
        symmetric).
    products : int
        Operator applications used.
    state : str
        ``"converged"`` or ``"not converged"``: then ``value`` is the best Ritz value, a lower bound of the
        largest.
    """

    value: float
    residual: float
    products: int
    state: str


def top_eigenvalue(
    apply: Callable[[Tensor], Tensor], size: int, *, tolerance: float = 1e-6, max_products: int = 1000
) -> Eigenvalue:
    """Largest (algebraic) eigenvalue of a symmetric operator given by ``apply``: (size,) → (size,),
    float64.
    """
    count = 0

    def matvec(v: np.ndarray) -> np.ndarray:
        nonlocal count
        count += 1
        return apply(torch.from_numpy(np.ascontiguousarray(v).reshape(-1))).cpu().numpy()

    # A fixed start vector: the answer must not depend on a global generator.
    start = np.random.default_rng(0).standard_normal(size)
    state = "converged"
    image = matvec(start)
    if not np.isfinite(image).all():
        fail(
            "top_eigenvalue",
            "operator products must be finite",
            "NaN or infinite values",
            "Check the weights and the data.",
            error=DataError,
        )
    if not image.any():  # the zero operator, almost surely: ARPACK has no start vector for it
        return Eigenvalue(0.0, 0.0, count, state)
    if size <= 2:
        full = np.stack([matvec(e) for e in np.eye(size)])
        values, vectors = np.linalg.eigh((full + full.T) / 2)
        value, vector = values[-1], vectors[:, -1]
    else:
        operator = LinearOperator((size, size), matvec=matvec, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        restarts = max(2, max_products // 20)
        try:
            values, vectors = eigsh(
                operator,
                k=1,
                which="LA",
                v0=start,
                tol=tolerance,  # pyright: ignore[reportArgumentType]
                maxiter=restarts,
            )
            value, vector = values[0], vectors[:, 0]
        except ArpackNoConvergence as error:
            state = "not converged"
            if len(error.eigenvalues):
                value, vector = error.eigenvalues[0], error.eigenvectors[:, 0]
            else:
                vector = start / np.linalg.norm(start)
                for _ in range(20):
                    image = matvec(vector)
                    vector = image / max(np.linalg.norm(image), np.finfo(float).tiny)
                value = float(vector @ matvec(vector))
    gap = float(np.linalg.norm(matvec(vector) - value * vector))
    return Eigenvalue(float(value), float(gap / max(abs(value), np.finfo(float).tiny)), count, state)


class _Flat:
    """A module as a function of one flat float64 parameter vector, on chunks of a data set."""

    def __init__(self, who: str, module: torch.nn.Module, X: Any, Y: Any, chunk_bytes: int) -> None:
        named = {k: p.detach().double() for k, p in module.named_parameters()}
        if not named:
            fail(who, "the network must have parameters", "none", "Pass a torch.nn.Module with weights.")
        buffers = {k: b.detach() for k, b in module.named_buffers()}
        self.buffers = {k: b.double() if b.is_floating_point() else b for k, b in buffers.items()}
        load_forward_mode()
        self.module = module
        self.shapes = {k: p.shape for k, p in named.items()}
        self.theta = torch.cat([p.reshape(-1) for p in named.values()])
        device = self.theta.device
        inputs = as_tensor(who, "X", X, device=device)
        if inputs.ndim == 1:
            inputs = inputs[:, None]
        if inputs.ndim == 0 or inputs.numel() == 0:
            fail(
                who,
                "`X` must hold samples",
                f"shape {tuple(inputs.shape)}",
                "Pass at least one row.",
                error=DataError,
            )
        if Y is not None and len(Y) != len(inputs):
            fail(
                who,
                "`X` and `Y` must have as many rows",
                f"{len(inputs)} and {len(Y)}",
                "Pass one target for each sample.",
                error=DataError,
            )
        # Activations of every layer are alive in a derivative; parameters bound their total width from above.
        width = sum(max(p.shape) for p in named.values() if p.ndim > 0)
        rows = chunk_rows(len(inputs), 8.0 * 6 * width, chunk_bytes)
        self.inputs = inputs.split(rows)
        self.targets = (None,) * len(self.inputs) if Y is None else Y.to(device).split(rows)
        self.samples = len(inputs)

    def outputs(self, theta: Tensor, inputs: Tensor) -> Tensor:
        parts = theta.split([int(np.prod(s)) for s in self.shapes.values()])
        parameters = {k: p.reshape(s) for (k, s), p in zip(self.shapes.items(), parts)}
        return functional_call(self.module, {**parameters, **self.buffers}, (inputs,))

    def gram(self, u: Tensor) -> Tensor:
        """J_θᵀJ_θ u, summed over the chunks."""
        total = torch.zeros_like(u)
        for inputs in self.inputs:
            f = lambda theta, inputs=inputs: self.outputs(theta, inputs)  # noqa: E731
            image = jvp(f, (self.theta,), (u,))[1]
            total += vjp(f, self.theta)[1](image)[0]
        return total

    def hessian_product(self, u: Tensor, loss: str, ridge: float) -> Tensor:
        """H u of the regularised objective, summed over the chunks."""
        total = 2.0 * ridge * u
        for inputs, targets in zip(self.inputs, self.targets):
            share = len(inputs) / self.samples

            def gradient(theta: Tensor, inputs: Tensor = inputs, targets: Tensor | None = targets) -> Tensor:
                assert targets is not None
                pulled = vjp(lambda t: cost(self.outputs(t, inputs), targets, loss), theta)
                return pulled[1](torch.ones_like(pulled[0]))[0]

            total = total + share * jvp(gradient, (self.theta,), (u,))[1]
        return total


def _targets(who: str, Y: Any, loss: str) -> Tensor:
    check_choice(who, "loss", loss, LOSSES)
    if loss == "cross_entropy":
        whole = (
            not (Y.is_floating_point() or Y.is_complex())
            if isinstance(Y, Tensor)
            else np.asarray(Y).dtype.kind in "iub"
        )
        if whole:
            labels = as_tensor(who, "Y", Y).long()
            if labels.ndim == 1 and bool((labels >= 0).all()):
                return labels
            fail(
                who,
                "class indices must be a vector of integers ≥ 0",
                f"shape {tuple(labels.shape)}",
                "Flatten `Y`.",
            )
    return as_matrix(who, "Y", Y)


@cites("bottleneck2023", "§4", ids=("Q-ntk",))
def ntk_top_eigenvalue(
    net: torch.nn.Module, X: Any, *, tolerance: float = 1e-6, chunk_bytes: int = CHUNK_BYTES
) -> Eigenvalue:
    """Largest eigenvalue of Θ(X, X), the N·d_out × N·d_out kernel matrix.

    Computed on parameters: Θ = J_θJ_θᵀ and J_θᵀJ_θ share their non-zero spectrum, and a product with the
    latter is one forward-mode and one reverse-mode pass over chunks of X.
    """
    flat = _Flat("ntk_top_eigenvalue", net, X, None, chunk_bytes)
    return top_eigenvalue(flat.gram, len(flat.theta), tolerance=tolerance)


@cites("bottleneck2023", "§4", ids=("Q-ntk",))
def hessian_top_eigenvalue(
    net: torch.nn.Module,
    X: Any,
    Y: Any,
    *,
    loss: str = "mse",
    ridge: float = 0.0,
    tolerance: float = 1e-6,
    chunk_bytes: int = CHUNK_BYTES,
) -> Eigenvalue:
    """Largest eigenvalue of the Hessian of cost + ridge·‖θ‖², by forward-over-reverse products."""
    who = "hessian_top_eigenvalue"
    check_number(who, "ridge", ridge, low=0.0)
    flat = _Flat(who, net, X, _targets(who, Y, loss), chunk_bytes)
    return top_eigenvalue(lambda u: flat.hessian_product(u, loss, ridge), len(flat.theta), tolerance=tolerance)


@dataclass(frozen=True)
class TraceEstimate:
    """A trace by random probes: ``value`` ± ``standard_error`` from ``probes`` of them."""

    value: float
    standard_error: float
    probes: int


@cites("bottleneck2023", "§4", ids=("Q-ntk",))
def hessian_trace(
    net: torch.nn.Module,
    X: Any,
    Y: Any,
    *,
    loss: str = "mse",
    ridge: float = 0.0,
    probes: int = 32,
    seed: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
) -> TraceEstimate:
    """Tr H of cost + ridge·‖θ‖² by Hutchinson's estimator with random signs.

    At an interpolating network it equals (2/N)·Σ Tr Θ(xᵢ, xᵢ) + 2·ridge·P exactly: see :func:`ntk_trace`.
    """
    who = "hessian_trace"
    check_integer(who, "probes", probes, low=2)
    check_number(who, "ridge", ridge, low=0.0)
    flat = _Flat(who, net, X, _targets(who, Y, loss), chunk_bytes)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.empty(probes, dtype=torch.float64)
    for index in range(probes):
        signs = torch.randint(0, 2, (len(flat.theta),), generator=generator).double().mul_(2).sub_(1)
        signs = signs.to(flat.theta.device)
        draws[index] = signs @ flat.hessian_product(signs, loss, ridge)
    return TraceEstimate(float(draws.mean()), float(draws.std() / probes**0.5), probes)


@cites("bottleneck2023", "§4", ids=("Q-ntk",))
def largest_stable_step(sharpness: float) -> float:
    """2/‖H‖_op: gradient descent with a larger step leaves the minimum (∞ when ‖H‖ ≤ 0)."""
    value = check_number("largest_stable_step", "sharpness", sharpness)
    return 2.0 / value if value > 0 else float("inf")
