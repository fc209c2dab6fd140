"""The oracle: is there a neuron whose gain |Vσ(z)|² exceeds its price zᵀ(K^σ_{ℓ-1})⁺z? A search, and proven bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

from isthmus.trace import activate, activation_derivative

#: Sign patterns that are looked at one by one.
MOST_PATTERNS = 5000

#: Patterns whose first bound is too weak and that are given a better one.
MOST_REFINED = 600

#: Width of a cell of signs below which it has no inside: its points belong to its neighbours too.
THIN = 1e-9

#: A ratio met beyond which no bound is worth its time: the layer is far from optimal.
FAR = 1.1

#: Different neurons that a search returns.
KEPT = 12


@dataclass(frozen=True, eq=False)
class Ratio:
    """max_z |Vσ(z)|² / zᵀ(K^σ_{ℓ-1})⁺z over z ∈ Im K^σ_{ℓ-1}.

    Attributes
    ----------
    found : float
        The largest that was met: a lower bound.
    c : Tensor (r,)
        Coordinates of its neuron, |c| = 1.
    bound : float
        No neuron has more, up to rounding.
    patterns : int
        Sign patterns behind the bound; 0 if it is that of norms.
    """

    found: float
    c: Tensor
    bound: float
    patterns: int


def largest_ratio(
    V: Tensor, Q: Tensor, *, slope: float, target: float, starts: int, seed: int, patterns: int = MOST_PATTERNS
) -> Ratio:
    """Search from many starts, then bound: by norms, else over all patterns of signs of z.

    In the cone of one pattern D the ratio is a quadratic form in c, at most the largest eigenvalue of QᵀDVᵀVDQ. Where
    that exceeds ``target`` non-negative multiples of products of the signs' inequalities are added (a split into a
    positive semi-definite and a non-negative part): any such T bounds the form on the cone, whatever found it.

    Parameters
    ----------
    V : Tensor (d, N)
    Q : Tensor (N, r)
    target : float
        The bound that is aimed at; beyond it nothing is spent.
    patterns : int
        Most sign patterns that are looked at; if there are more the bound is that of norms.
    """
    ratios, ends = search(V, Q, slope=slope, starts=starts, seed=seed)
    found, c = float(ratios[0]), ends[0]
    if not Q.shape[1]:
        return Ratio(found, c, 0.0, 0)
    norms = float(torch.linalg.matrix_norm(V, 2) ** 2 * torch.linalg.matrix_norm(Q, 2) ** 2)
    if found > FAR or norms <= target:
        return Ratio(found, c, norms, 0)
    signs = sign_patterns(Q, patterns) if patterns else None
    if signs is None:
        return Ratio(found, c, norms, 0)
    D = activation_derivative(signs, slope)
    forms = (V[None] * D[:, None, :]) @ Q
    forms = forms.mT @ forms
    values, vectors = torch.linalg.eigh(forms)
    bounds = values[:, -1] * (1.0 + 64 * len(Q) * torch.finfo(torch.float64).eps)
    # The top eigenvector of a pattern is a start like any other.
    ratios, ends = search(V, Q, slope=slope, starts=0, seed=seed, more=_both(vectors[:, :, -1]))
    if float(ratios[0]) > found:
        found, c = float(ratios[0]), ends[0]
    # A bound below what was met does not exist.
    target = max(target, found + target - 1.0)
    weak = torch.nonzero(bounds > target)[:, 0]
    if len(weak) <= MOST_REFINED:
        for index in weak.tolist():
            bounds[index] = _refined(forms[index], signs[index][:, None] * Q, target, float(bounds[index]))
    return Ratio(found, c, min(norms, float(bounds.max())), len(signs))


def search(
    V: Tensor, Q: Tensor, *, slope: float, starts: int, seed: int, more: Tensor | None = None, steps: int = 200
) -> tuple[Tensor, Tensor]:
    """Ascent of |Vσ(Qc)|² on the unit sphere from many starts at once: ratios in decreasing order, and their c.

    Ascent ends near a kink, where z vanishes on some samples; the best ends are then taken to it exactly
    (:func:`_polished`). At most ``KEPT`` ends are returned, no two of nearly one direction.
    """
    r = Q.shape[1]
    if r == 0:
        # The layer before passes nothing on: there is no neuron.
        return torch.zeros(1, dtype=torch.float64), torch.zeros(1, 0, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    c = torch.randn(max(starts, 0), r, generator=draw, dtype=torch.float64)
    if starts > 0:
        # From a random point a neuron that is off on a sample hardly ever comes on: begin at the best of some patterns.
        on = torch.rand(starts, len(Q), generator=draw, dtype=torch.float64) < torch.linspace(0.5, 1, starts)[:, None]
        forms = (V[None] * activation_derivative(on.double(), slope)[:, None, :]) @ Q
        c = torch.cat([c, _both(torch.linalg.svd(forms, full_matrices=False).Vh[:, 0])])
    if more is not None:
        c = torch.cat([c, more])
    c = c / c.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    # The curvature of the form is at most this: a safe first step.
    top = float(torch.linalg.matrix_norm(V, 2) ** 2 * torch.linalg.matrix_norm(Q, 2) ** 2)
    if top == 0.0 or not len(c):
        return torch.zeros(1, dtype=torch.float64), torch.eye(1, r, dtype=torch.float64)
    step = torch.full((len(c),), 1.0 / top, dtype=torch.float64)
    value = _ratio(c, V, Q, slope)
    for _ in range(steps):
        z = c @ Q.mT
        pull = ((activate(z, slope) @ V.mT) @ V * activation_derivative(z, slope)) @ Q
        trial = c + step[:, None] * pull
        trial = trial / trial.norm(dim=1, keepdim=True)
        reached = _ratio(trial, V, Q, slope)
        up = reached > value
        c = torch.where(up[:, None], trial, c)
        step = torch.where(up, 1.6 * step, 0.4 * step)
        value = torch.maximum(value, reached)
        if float(step.max()) * top < 1e-9:
            break
    ends: list[Tensor] = []
    for index in torch.argsort(value, descending=True).tolist():
        if len(ends) == KEPT:
            break
        if all(float(c[index] @ other) < 1.0 - 1e-6 for other in ends):
            ends.append(c[index])
    ends = [_polished(end, V, Q, slope) for end in ends]
    c = torch.stack(ends)
    value = _ratio(c, V, Q, slope)
    order = torch.argsort(value, descending=True)
    return value[order], c[order]


def _polished(c: Tensor, V: Tensor, Q: Tensor, slope: float) -> Tensor:
    """The best of c and the maxima, within its pattern of signs, on the faces where its smallest entries are 0."""
    z = Q @ c
    best, value = c, float(_ratio(c[None], V, Q, slope))
    form = (V * activation_derivative(z, slope)) @ Q
    for share in (1e-8, 1e-4, 1e-3, 1e-2, 0.05, 0.2):
        zero = z.abs() <= share * z.abs().max()
        face = torch.eye(Q.shape[1], dtype=torch.float64)
        if bool(zero.any()):
            _, s, Vh = torch.linalg.svd(Q[zero], full_matrices=True)
            face = Vh[int((s > 1e-12 * s[0]).sum()) :].mT
        if not face.shape[1]:
            break
        end = face @ torch.linalg.svd(form @ face, full_matrices=False).Vh[0]
        for trial in (end, -end):
            reached = float(_ratio(trial[None], V, Q, slope))
            if reached > value:
                best, value = trial, reached
    return best


def sign_patterns(Q: Tensor, most: int = MOST_PATTERNS) -> Tensor | None:
    """Patterns of signs of Qc over all c, (P, N); None if there are more than ``most``.

    Row by row: a cell of the signs so far is cut in two where the next row changes sign in it. A cell without an inside
    is dropped: σ is continuous and its points are in the closure of others. With as many independent rows as samples
    all 2^N occur.
    """
    N, r = Q.shape
    sizes = Q.norm(dim=1)
    rows = (Q / sizes.clamp_min(torch.finfo(torch.float64).tiny)[:, None]).numpy()
    moving = torch.nonzero(sizes > 1e-14 * sizes.max())[:, 0].tolist()
    if r == N:
        if most < 2**N:
            return None
        bits = torch.arange(2**N)[:, None] >> torch.arange(N)[None, :]
        return torch.where(bits % 2 == 1, 1.0, -1.0).double()
    cells: list[list[float]] = [[]]
    for count, index in enumerate(moving):
        grown = []
        for signs in cells:
            before = np.array(signs)[:, None] * rows[moving[:count]] if count else np.zeros((0, r))
            grown += [[*signs, s] for s in (1.0, -1.0) if _width(np.vstack([before, s * rows[index]])) > THIN]
            if len(grown) > most:
                return None
        cells = grown
    patterns = torch.ones(len(cells), N, dtype=torch.float64)
    patterns[:, moving] = torch.tensor(cells, dtype=torch.float64)
    return patterns


def _width(rows: np.ndarray) -> float:
    """The largest t with rows·c ≥ t and |c_i| ≤ 1."""
    m, r = rows.shape
    done = linprog(
        np.r_[np.zeros(r), -1.0],
        A_ub=np.c_[-rows, np.ones(m)],
        b_ub=np.zeros(m),
        bounds=[(-1.0, 1.0)] * r + [(0.0, None)],
        method="highs",
    )
    return float(-done.fun) if done.status == 0 else np.inf  # a cell that could not be decided is kept


def _refined(form: Tensor, G: Tensor, target: float, first: float) -> float:
    """The least over T ≥ 0 of the largest eigenvalue of form + GᵀTG, as far as needed: cᵀGᵀTGc ≥ 0 where Gc ≥ 0."""
    M, R = form.numpy(), G.numpy()
    N = len(R)
    i, j = np.triu_indices(N)
    products = R[i][:, :, None] * R[j][:, None, :]
    products = 0.5 * (products + products.transpose(0, 2, 1))
    sizes = np.linalg.norm(products, axis=(1, 2))
    best = first
    t = np.zeros(len(i))
    for softness in (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        mu = softness * max(first, 1e-300)

        def smooth(x: np.ndarray, mu: float = mu) -> tuple[float, np.ndarray]:
            values, vectors = np.linalg.eigh(M + np.tensordot(x, products, 1))
            weights = np.exp((values - values[-1]) / mu)
            total = weights.sum()
            P = (vectors * (weights / total)) @ vectors.T
            return float(values[-1] + mu * np.log(total)), np.tensordot(products, P, 2)

        t = minimize(smooth, t, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(t), options={"maxiter": 300}).x
        # Large multiples bring their own rounding, which is part of the bound.
        rounding = 64 * np.finfo(np.float64).eps * len(M) * (np.linalg.norm(M) + float(t @ sizes))
        best = min(best, float(np.linalg.eigvalsh(M + np.tensordot(t, products, 1))[-1]) + rounding)
        if best <= target:
            break
    return best


def _ratio(c: Tensor, V: Tensor, Q: Tensor, slope: float) -> Tensor:
    return (activate(c @ Q.mT, slope) @ V.mT).square().sum(1)


def _both(c: Tensor) -> Tensor:
    return torch.cat([c, -c])
