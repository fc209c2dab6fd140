"""Curvature pairs of a stack of networks, and the directions of the two-loop recursion."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus.training._together_metric import StackedMetric
from isthmus.training._together_stack import Array, dots


class StackedPairs:
    """The last ``memory`` pairs (s, t) of each network, as ``LBFGS`` keeps them; places are overwritten in turn.

    Of the products s_i·t_j the recursion needs those with s_i no younger than t_j: a new pair adds one column, where a
    single training computes all of them at every step.
    """

    def __init__(self, theta: Tensor, memory: int) -> None:
        count, size = theta.shape
        self.S, self.T = theta.new_zeros((count, memory, size)), theta.new_zeros((count, memory, size))
        self.products = np.zeros((count, memory, memory))
        #: When the pair in each place was taken; −1 for none.
        self.age = np.full((count, memory), -1, dtype=np.int64)
        self.taken = 0

    @property
    def counts(self) -> Array:
        """Pairs of each network: they fill the first places."""
        return (self.age >= 0).sum(1)

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the networks."""
        chosen = rows.numpy(force=True)
        self.S, self.T = self.S[rows], self.T[rows]
        self.products, self.age = self.products[chosen], self.age[chosen]

    def forget(self, which: Array) -> None:
        """Drop the pairs of some networks."""
        self.age[which] = -1

    def move_ridges(self, changes: Array) -> None:
        """Other ridges: gradients change by 2·Δ·θ, hence their differences by 2·Δ·s, exactly."""
        for i in np.flatnonzero((changes != 0.0) & (self.counts > 0)):
            k = int(self.counts[i])
            self.T[i, :k].add_(self.S[i, :k], alpha=2.0 * float(changes[i]))
            self.products[i, :k, :k] = (self.S[i, :k] @ self.T[i, :k].mT).double().numpy(force=True)

    def remember(self, which: Array, s: Tensor, t: Tensor) -> None:
        """Take the pairs in the rows ``which`` of s and t, unless their curvature is not clearly positive."""
        if not len(which):
            return
        curvature, sizes = dots(s, t), (s.norm(dim=1) * t.norm(dim=1)).double().numpy(force=True)
        for i in which[curvature[which] > 1e-10 * sizes[which]]:
            # A free place if there is one, else that of the oldest.
            place = int(self.age[i].argmin())
            self.S[i, place], self.T[i, place] = s[i], t[i]
            self.age[i, place] = self.taken
            k = int((self.age[i] >= 0).sum())
            self.products[i, :k, place] = torch.mv(self.S[i, :k], t[i]).double().numpy(force=True)
        self.taken += 1

    def direction(self, gradient: Tensor, ridges: Array, metric: StackedMetric | None) -> Tensor:
        """−H·gradient of each network; the sums over pairs as triangular systems, see ``LBFGS``.

        Places without a pair get a row of the identity and a right-hand side 0.
        """
        counts = self.counts
        most = int(counts.max(initial=0))
        if most == 0:
            q = -gradient
            return q if metric is None else metric.solve(q[:, None], ridges)[:, 0]
        order = self.age[:, :most].argsort(axis=1, kind="stable")
        there = np.take_along_axis(self.age[:, :most] >= 0, order, 1)
        gram = np.take_along_axis(self.products[:, :most, :most], order[:, :, None], 1)
        gram = np.take_along_axis(gram, order[:, None, :], 2)
        gram = np.triu(np.where(there[:, :, None] & there[:, None, :], gram, np.eye(most)))
        back = order.argsort(axis=1)

        right = -np.take_along_axis(self._along(self.S, gradient, counts, most), order, 1)
        alpha = _solve(gram, right, upper=True)
        q = torch.baddbmm(gradient[:, None], self._weights(alpha, back), self.T[:, :most], beta=-1.0, alpha=-1.0)
        newest = torch.as_tensor(self.age.argmax(axis=1))
        t = self.T[torch.arange(len(newest)), newest]
        both = torch.cat([q, t[:, None]], 1)
        if metric is not None:
            both = metric.solve(both, ridges)
        q, image = both[:, 0], both[:, 1]
        some = counts > 0
        size = np.where(some, dots(t, image), 1.0)
        diagonal = np.diagonal(gram, axis1=1, axis2=2)
        scale = np.where(some, diagonal[:, -1] / size, 1.0)
        q = q * torch.as_tensor(scale, dtype=q.dtype, device=q.device)[:, None]
        along = np.take_along_axis(self._along(self.T, q, counts, most), order, 1)
        right = np.where(there, diagonal * alpha - along, 0.0)
        delta = _solve(gram.transpose(0, 2, 1), right, upper=False)
        return torch.baddbmm(q[:, None], self._weights(delta, back), self.S[:, :most])[:, 0]

    def _along(self, vectors: Tensor, direction: Tensor, counts: Array, most: int) -> Array:
        """Products of each network's vectors with its row of ``direction``; 0 in places without a pair."""
        found = np.zeros((len(counts), most))
        for i, k in enumerate(counts.tolist()):
            if k:
                # One by one: as a product of stacks it takes three times as long.
                found[i, :k] = torch.mv(vectors[i, :k], direction[i]).double().numpy(force=True)
        return found

    def _weights(self, numbers: Array, back: Array) -> Tensor:
        """Numbers in order of age as rows (B, 1, places)."""
        placed = np.take_along_axis(numbers, back, 1)[:, None]
        return torch.as_tensor(placed, device=self.S.device).to(self.S.dtype)


def _solve(triangles: Array, right: Array, *, upper: bool) -> Array:
    A, b = torch.from_numpy(np.ascontiguousarray(triangles)), torch.from_numpy(np.ascontiguousarray(right))
    return torch.linalg.solve_triangular(A, b[:, :, None], upper=upper)[:, :, 0].numpy()
