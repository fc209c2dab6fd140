"""The same recipe in jitted JAX with optax: what people write who want the loop itself compiled."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from torch import Tensor

from isthmus import FullyConnected

#: Steps compiled into one call: the loop itself costs nothing then.
CHUNK = 50


def jax_there() -> bool:
    """Whether jax and optax can be imported."""
    try:
        import jax  # noqa: F401  # pyright: ignore[reportMissingImports]
        import optax  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def jitted_jax(
    net: FullyConnected, X: Tensor, Y: Tensor, ridge: float, *, adam: int, descent: int, rate: float
) -> dict[str, Any]:
    """Adam at 1e-3, then gradient descent at ``rate``: seconds without compilation, loss at the end, weights.

    All steps run inside ``lax.scan``, CHUNK at a time, with donated buffers, on all the cores that XLA takes.
    """
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import optax  # pyright: ignore[reportMissingImports]

    parameters = [(jnp.asarray(W.detach().numpy()), jnp.asarray(b.detach().numpy())) for W, b in zip(net.Ws, net.bs)]
    A, B = jnp.asarray(X.numpy()), jnp.asarray(Y.numpy())

    def loss(theta: Any) -> Any:
        Z = A
        for index, (W, b) in enumerate(theta):
            Z = Z @ W.T + b
            if index + 1 < len(theta):
                Z = jax.nn.relu(Z)
        penalty = sum(jnp.sum(W**2) + jnp.sum(b**2) for W, b in theta)
        return jnp.mean(jnp.sum((Z - B) ** 2, axis=1)) + ridge * penalty

    compiling, running = 0.0, 0.0
    theta = parameters
    for optimiser, steps in ((optax.adam(1e-3), adam), (optax.sgd(rate), descent)):
        if not steps:
            continue
        state = optimiser.init(theta)

        def one(carry: Any, _: Any, optimiser: Any = optimiser) -> Any:
            weights, inner = carry
            changes, inner = optimiser.update(jax.grad(loss)(weights), inner)
            return (optax.apply_updates(weights, changes), inner), None

        def many(carry: Any, one: Any = one) -> Any:
            return jax.lax.scan(one, carry, None, length=CHUNK)[0]

        began = time.perf_counter()
        call = jax.jit(many, donate_argnums=0).lower((theta, state)).compile()
        compiling += time.perf_counter() - began
        began = time.perf_counter()
        carry = (theta, state)
        for _ in range(-(-steps // CHUNK)):
            carry = call(carry)
        theta, _ = jax.block_until_ready(carry)
        running += time.perf_counter() - began
    weights = [(np.asarray(W), np.asarray(b)) for W, b in theta]
    return {"seconds": running, "compiling": compiling, "loss": float(loss(theta)), "weights": weights}
