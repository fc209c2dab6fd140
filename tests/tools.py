"""Shared by the tests: one comparison with tolerances by dtype, seeded generators, hand-made networks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import Tensor

from isthmus import FullyConnected

#: Every random draw of the suite starts here; `ISTHMUS_SEED=7 make test` tries another.
SEED = int(os.environ.get("ISTHMUS_SEED", "0"))

#: (rtol, atol) by the coarser dtype of the two sides.
TOLERANCES = {
    torch.float64: (1e-10, 1e-12),
    torch.float32: (1e-5, 1e-6),
    torch.float16: (1e-2, 1e-3),
    torch.bfloat16: (5e-2, 1e-2),
}


def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    reason: str | None = None,
) -> None:
    """Fail unless both sides agree within the tolerance of their coarser dtype; an override needs a
    reason.
    """
    if (rtol is not None or atol is not None) and not reason:
        raise ValueError("assert_close: an override of tolerances needs a reason")
    left, right = (torch.as_tensor(np.asarray(v) if not isinstance(v, Tensor) else v) for v in (actual, expected))
    coarse = max(
        (d for d in (left.dtype, right.dtype) if d in TOLERANCES),
        key=lambda d: TOLERANCES[d][0],
        default=torch.float64,
    )
    wide = TOLERANCES[coarse]
    torch.testing.assert_close(
        left.detach().double(),
        right.detach().double(),
        rtol=wide[0] if rtol is None else rtol,
        atol=wide[1] if atol is None else atol,
        equal_nan=True,
    )


def generator(offset: int = 0) -> torch.Generator:
    """A generator of its own: no test seeds the global one."""
    return torch.Generator().manual_seed(1000 * SEED + offset)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def random_net(
    dims: Sequence[int],
    slope: float = 0.0,
    bias: float = 1.0,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> FullyConnected:
    """A random network whose biases are not zero."""
    source = generator(seed)
    net = FullyConnected(dims, slope, bias, dtype=torch.float64, generator=source)
    with torch.no_grad():
        for b in net.biases:
            b.normal_(0.0, 0.3, generator=source)
    return net.to(dtype)


def orthogonal(rows: int, columns: int, *, seed: int = 0) -> Tensor:
    """Orthonormal columns (rows ≥ columns)."""
    return torch.linalg.qr(gaussian(rows, columns, seed=seed)).Q


def frame(width: int, k: int) -> Tensor:
    """k orthonormal non-negative columns of disjoint support: ReLU acts on their cone as the identity."""
    V = torch.zeros(width, k, dtype=torch.float64)
    for i in range(width):
        V[i, i % k] = 1.0
    return V / V.norm(dim=0)


def three_part_net(
    k: int,
    *,
    depth: int = 9,
    width: int = 24,
    d_in: int = 12,
    d_out: int = 10,
    noise: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    offset: float = 0.0,
) -> FullyConnected:
    """Encoder R^d_in → R^k_+, identity layers on R^k_+, decoder → R^d_out: bottleneck rank k by construction.

    Coordinate j of the code is a mixed-sign combination of features shifted into the positive cone, so that
    ReLU acts on it as the identity on most data. ``noise`` is added to every interior weight. With ``offset``
    there are no biases: the last input must be the constant 1, and a (k+1)-th direction carries it through.
    """
    extra = 1 if offset else 0
    V = frame(width, k + extra)
    P = torch.cat([orthogonal(d_in - extra, k, seed=seed).mT, torch.zeros(k, extra, dtype=torch.float64)], 1)
    M = gaussian(k, k, seed=seed + 1) * 0.3 + torch.eye(k, dtype=torch.float64)
    # Layer 1: ReLU of ±P x (and the constant); layer 2: their difference, mixed and shifted.
    first = torch.zeros(width, d_in, dtype=torch.float64)
    first[:k], first[k : 2 * k] = P, -P
    code = torch.zeros(k + extra, width, dtype=torch.float64)
    code[:k, :k], code[:k, k : 2 * k] = M, -M
    shift = torch.full((k + extra,), 2.0, dtype=torch.float64)
    if extra:
        shift[k] = offset
        first[2 * k, -1] = 1.0
        code[:, 2 * k] = shift
    Ws = [first, V @ code]
    for index in range(depth - 4):
        Ws.append(V @ V.mT + noise * gaussian(width, width, seed=seed + 10 + index) / width**0.5)
    mix = gaussian(width, k + extra, seed=seed + 2) / (k + extra) ** 0.5
    Ws += [mix @ V.mT, gaussian(d_out, width, seed=seed + 3) / width**0.5]
    bs = [torch.zeros(len(W), dtype=dtype) for W in Ws]
    bs[1] += (V @ shift).to(dtype)
    return FullyConnected.from_weights([W.to(dtype) for W in Ws], None if extra else bs)


def linear_net(
    singular: Sequence[float] | Tensor,
    dims: Sequence[int],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> FullyConnected:
    """The least-norm linear network W_ℓ = U_ℓ S^{1/L} U_{ℓ-1}ᵀ of the map U_L S U_0ᵀ."""
    s = torch.as_tensor(singular, dtype=torch.float64)
    L = len(dims) - 1
    U = [orthogonal(n, len(s), seed=seed + i) for i, n in enumerate(dims)]
    return FullyConnected.from_weights([((U[i + 1] * s ** (1 / L)) @ U[i].mT).to(dtype) for i in range(L)], slope=1.0)


def some_checks(estimator: Any, names: Sequence[str]) -> Any:
    """As scikit-learn's ``parametrize_with_checks``, for the checks of these names alone."""
    pairs = [pair for pair in estimator_checks_generator(estimator) if pair[1].func.__name__ in names]
    assert {check.func.__name__ for _, check in pairs} == set(names), "a check that scikit-learn has not"
    return pytest.mark.parametrize(("estimator", "check"), pairs, ids=[check.func.__name__ for _, check in pairs])
