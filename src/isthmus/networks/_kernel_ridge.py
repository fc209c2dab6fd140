"""M-kernel: kernel ridge regression with a radial kernel, the baseline that overestimates the rank of a task."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from isthmus._checks import as_matrix, check_choice, check_number, fail
from isthmus._cite import cites
from isthmus.linalg import CHUNK_BYTES, chunk_rows

#: Samples at most: the kernel matrix and its factor take 16 N² bytes.
MAX_SAMPLES = 10_000

#: Reciprocal condition number below which a Cholesky solution has no correct digits to speak of.
LEAST_RCOND = 1e-13


_ROOT_3 = math.sqrt(3.0)


def _laplace_pull(t: Tensor) -> Tensor:
    # At t = 0 the kernel has a kink: its one-sided slopes cancel to 0, as σ̇ does at 0 in autograd.
    return torch.where(t > 0, -torch.exp(-t) / torch.where(t > 0, t, torch.ones_like(t)), torch.zeros_like(t))


#: k(t) and k'(t)/t for t = ‖x − y‖ / length.
KERNELS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "gaussian": (lambda t: torch.exp(-0.5 * t.square()), lambda t: -torch.exp(-0.5 * t.square())),
    "laplace": (lambda t: torch.exp(-t), _laplace_pull),
    "matern-3/2": (lambda t: (1.0 + _ROOT_3 * t) * torch.exp(-_ROOT_3 * t), lambda t: -3.0 * torch.exp(-_ROOT_3 * t)),
}


@cites("rank2023", "App. D, 'Rank of kernel regression'", ids=("M-kernel",))
class KernelRidge:
    """f(x) = K(x, X) (K(X, X) + ridge·I)⁻¹ Y with K(x, y) = k(‖x − y‖ / length).

    Parameters
    ----------
    kernel : {"gaussian", "laplace", "matern-3/2"}, default "gaussian"
        k(t) = exp(−t²/2); exp(−t), which is Matérn-1/2; (1 + √3t)·exp(−√3t).
    length : float, optional
        Length scale; by default the median distance between samples.
    ridge : float, default 0.0
        Added to the diagonal of K; 0 interpolates.

    Attributes
    ----------
    coefficients_ : Tensor (N, d_out)
        (K + ridge·I)⁻¹ Y.
    length_ : float
        The length scale used.
    state_ : str
        ``"solved"`` (Cholesky), or ``"ill-conditioned"``: samples (nearly) coincide or the kernel is too flat
        for float64. The coefficients are then the least-norm solution over the eigenvectors of K + ridge·I
        above rounding: predictions are usable, but need not interpolate.
    rcond_ : float
        Reciprocal condition number of K + ridge·I in the 1-norm, estimated; 0 when it has no Cholesky factor.
    """

    def __init__(self, kernel: str = "gaussian", *, length: float | None = None, ridge: float = 0.0) -> None:
        self.kernel = kernel
        self.length = length
        self.ridge = ridge

    def fit(self, X: Any, Y: Any) -> Self:
        """Solve for the coefficients.

        Parameters
        ----------
        X : array (N, d_in)
        Y : array (N, d_out)
        """
        who = "KernelRidge.fit"
        check_choice(who, "kernel", self.kernel, KERNELS)
        ridge = check_number(who, "ridge", self.ridge, low=0.0)
        inputs, outputs = as_matrix(who, "X", X), as_matrix(who, "Y", Y)
        if len(inputs) != len(outputs):
            got = f"{len(inputs)} and {len(outputs)}"
            fail(who, "`X` and `Y` must have the same number of rows", got, "Pass one row for each sample.")
        if len(inputs) > MAX_SAMPLES:
            must = f"`X` must have at most {MAX_SAMPLES} rows: the kernel matrix is N × N"
            fail(who, must, len(inputs), "Fit on a subset.")
        self.length_ = _length(who, self.length, inputs)
        # Centred: the Jacobian is a difference of two sums, in which a common offset of the inputs cancels.
        self._center = inputs.mean(0)
        self._X = inputs - self._center
        K = KERNELS[self.kernel][0](_distances(self._X, self._X) / self.length_)
        K.diagonal().add_(ridge)
        self.coefficients_, self.rcond_, self.state_ = _solve(K, outputs)
        return self

    def predict(self, X: Any, *, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
        """f(x) for every row of X, (N_x, d_out), in chunks of ``chunk_bytes``."""
        parts = self._chunks("KernelRidge.predict", X, chunk_bytes)
        value = KERNELS[self.kernel][0]
        return torch.cat([value(_distances(x, self._X) / self.length_) @ self.coefficients_ for x in parts])

    @cites("rank2023", "App. D, 'Rank of kernel regression'", ids=("M-kernel",))
    def jacobian(self, X: Any, *, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
        """Jf(x) = Σᵢ cᵢ (k'(tᵢ)/tᵢ) (x − xᵢ)ᵀ / length², tᵢ = ‖x − xᵢ‖ / length, for every row of X.

        At a sample itself the Laplace kernel has a kink; that sample's term then counts as 0.

        Returns
        -------
        Tensor (N_x, d_out, d_in)
            Of rank at most min{Rank(X − x), Rank Y}, with equality for generic Y (C-rank-10).
        """
        inputs, jacobians = self._chunks("KernelRidge.jacobian", X, chunk_bytes), []
        slope, C = KERNELS[self.kernel][1], self.coefficients_
        for x in inputs:
            pull = slope(_distances(x, self._X) / self.length_) / self.length_**2
            # One output at a time: (N_x, N) weights, never (N_x, N, d_in).
            rows = [((pull @ C[:, o])[:, None] * x - (pull * C[:, o]) @ self._X) for o in range(C.shape[1])]
            jacobians.append(torch.stack(rows, dim=1))
        return torch.cat(jacobians)

    def _chunks(self, who: str, X: Any, chunk_bytes: int) -> tuple[Tensor, ...]:
        if not hasattr(self, "coefficients_"):
            fail(who, "the model must be fitted", "no coefficients", "Call `fit(X, Y)` first.")
        inputs = as_matrix(who, "X", X, columns=self._X.shape[1]) - self._center
        # Three copies of (rows, N) are alive at once: distances, weights and their product with an output.
        return inputs.split(chunk_rows(len(inputs), 24.0 * len(self._X), chunk_bytes))


def _distances(X: Tensor, Y: Tensor) -> Tensor:
    # The faster route over ‖x‖² + ‖y‖² − 2xᵀy loses half the digits of small distances.
    return torch.cdist(X, Y, compute_mode="donot_use_mm_for_euclid_dist")


def _length(who: str, length: float | None, inputs: Tensor) -> float:
    if length is not None:
        return check_number(who, "length", length, low=0.0, low_open=True)
    some = inputs[:: max(1, len(inputs) // 1000)]
    rows, columns = torch.triu_indices(len(some), len(some), offset=1)
    between = _distances(some, some)[rows, columns]
    between = between[between > 0]
    # One sample, or equal ones: any length gives the same constant.
    return float(between.median()) if len(between) else 1.0


def _solve(K: Tensor, Y: Tensor) -> tuple[Tensor, float, str]:
    factor, broken = torch.linalg.cholesky_ex(K)
    rcond = 0.0
    if int(broken) == 0:
        # LAPACK reads columns, torch holds rows: the lower factor is the upper one of the transpose.
        (estimate,) = get_lapack_funcs(("pocon",), dtype=float)
        rcond = float(estimate(factor.mT.cpu().numpy(), float(torch.linalg.matrix_norm(K, 1)), uplo="U")[0])
        if rcond >= LEAST_RCOND:
            return torch.cholesky_solve(Y, factor), rcond, "solved"
    values, vectors = torch.linalg.eigh(K)
    kept = values > values[-1] * len(K) * torch.finfo(K.dtype).eps
    V = vectors[:, kept]
    return V @ ((V.mT @ Y) / values[kept, None]), rcond, "ill-conditioned"
