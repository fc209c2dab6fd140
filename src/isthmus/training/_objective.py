"""Regularised losses as functions of flat vectors, value and gradient, in bounded memory.

Networks of one shape are the rows of a :class:`Stack` and are evaluated in one computation where their family can; a
single network is a stack of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from isthmus._activations import Rounded, Rounding, idle_centres, preactivations, scales_of
from isthmus._checks import fail
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.networks._direct import Direct, use_threads, views
from isthmus.networks._network import hooks_of
from isthmus.objective import cost


class Value:
    """Loss = cost + ridge·‖θ‖² at a point, with its gradient and that of the cost alone.

    ``finite`` tells whether loss and gradient are; ``total`` is the sum of the gradient's entries where it is known.
    """

    __slots__ = ("cost", "cost_gradient", "finite", "gradient", "loss", "norm")

    def __init__(
        self, ridge: float, cost: float, norm: float, gradient: Tensor, of_cost: Tensor, total: float | None = None
    ) -> None:
        self.loss = cost + ridge * norm
        self.cost, self.norm, self.gradient, self.cost_gradient = cost, norm, gradient, of_cost
        # A sum is finite only if its terms are; one pass, where asking each of them takes three.
        self.finite = math.isfinite(self.loss) and math.isfinite(float(gradient.sum()) if total is None else total)

    def at_ridge(self, ridge: float, theta: Tensor) -> Value:
        """The value at the same point ``theta`` for another ridge, bit for bit as if evaluated."""
        gradient = self.cost_gradient.add(theta, alpha=2.0 * ridge)
        return Value(ridge, self.cost, self.norm, gradient, self.cost_gradient)


class Objective:
    """cost(net(X), Y) + ridge·‖θ‖² over the trainable parameters of ``net``, seen as one vector ``theta``.

    The parameters are views into ``theta`` and their gradients views into one buffer, so that a step is a single
    vector operation and any ``nn.Module`` works.
    """

    def __init__(self, stack: Stack, index: int, net: nn.Module, X: Tensor, Y: Tensor) -> None:
        self.stack, self.index, self.net, self.X, self.Y = stack, index, net, X, Y
        self.theta, self.buffer, self.spare = stack.theta[index], stack.gradients[index], stack.spare[index]
        self.parameters = trainable(net)
        self.values, self.gradients = (views(vector, self.parameters) for vector in (self.theta, self.buffer))
        #: Without a graph, for this network alone.
        self.direct: Direct | None = None
        #: What stands in the place of the kinks of each activation that has some; none: the kinks.
        self.rounded: tuple[Rounding, ...] = ()
        #: Where θ is held, and by how much: ½·pull·‖θ − centre‖² is part of the cost.
        self.centre: Tensor | None = None
        self.pull = 0.0
        self.evaluations = 0

    def set_rounding(self, rounded: Sequence[Rounding]) -> None:
        """From now on the objective is that of the network with its kinks rounded off; with none, as it is."""
        self.rounded = tuple(rounded)
        if self.direct is not None:
            self.direct.set_rounding(self.rounded)

    def hold(self, centre: Tensor | None, pull: float = 0.0) -> None:
        """From now on ½·pull·‖θ − centre‖² is part of the cost; without a centre nothing is."""
        self.centre, self.pull = centre, pull

    def released(self, value: Value, ridge: float) -> Value:
        """The value at ``theta`` without what holds θ."""
        if self.centre is None:
            return value
        away = self.theta - self.centre
        own = value.cost_gradient.sub(away, alpha=self.pull)
        cost = value.cost - 0.5 * self.pull * float(away @ away)
        return Value(ridge, cost, value.norm, own.add(self.theta, alpha=2.0 * ridge), own)

    def roundings(self, share: float) -> tuple[Rounding, ...]:
        """Half-widths that are this share of the root mean square of what each activation is applied to.

        Neurons that have been removed are left off, where all samples fit in memory.
        """
        zs = preactivations(self.net, self.X[: self.stack.rows])
        bands = [share * scale for scale in scales_of(zs)]
        return tuple(
            Rounding(band, idle_centres(Z, band) if len(Z) == len(self.X) else None) for Z, band in zip(zs, bands)
        )

    def moved(self, share: float) -> tuple[Rounding, ...]:
        """The same, moved to the slopes that entries have now; where not all samples fit in memory, unmoved."""
        new = self.roundings(share)
        if len(self.X) > self.stack.rows or not self.rounded:
            return new
        zs = preactivations(self.net, self.X, self.rounded)
        return tuple(old.moved(z, own.band) for old, z, own in zip(self.rounded, zs, new))

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, the module's parameters live in ``theta``; afterwards in their own storage, with its values."""
        saved = [(p.data, p.grad) for p in self.parameters]
        for p, value, gradient in zip(self.parameters, self.values, self.gradients):
            value.copy_(p.data)
            p.data, p.grad = value, gradient
        try:
            yield
        finally:
            for p, (data, grad) in zip(self.parameters, saved):
                data.copy_(p.data)
                p.data, p.grad = data, grad

    def __call__(self, ridge: float, batch: Tensor | None = None, *, fleeting: bool = False) -> Value:
        """Value and gradient at ``theta`` over all samples, or over the rows ``batch``.

        ``fleeting``: its gradients are memory that the next call overwrites, and not new tensors.
        """
        if self.direct is None and batch is None and self.stack.together:
            return self.stack.evaluate([self], [ridge])[0]
        X, Y = (self.X, self.Y) if batch is None else (self.X[batch], self.Y[batch])
        count, most = X.shape[0], self.stack.rows
        parts = zip(X.split(most), Y.split(most)) if count > most else [(X, Y)]
        if self.direct is not None:
            total = sum(self.direct.add(A, B, A.shape[0] / count, first=i == 0)[0] for i, (A, B) in enumerate(parts))
        else:
            self.buffer.zero_()
            total = sum(self._by_autograd(A, B, A.shape[0] / count) for A, B in parts)
        self.evaluations += 1
        norm = float(self.theta @ self.theta)
        own = self.buffer if fleeting else self.buffer.clone()
        if self.centre is not None:
            away = self.theta - self.centre
            total += 0.5 * self.pull * float(away @ away)
            own.add_(away, alpha=self.pull)
        gradient = torch.add(own, self.theta, alpha=2.0 * ridge, out=self.spare if fleeting else None)
        return Value(ridge, total, norm, gradient, own)

    def _by_autograd(self, X: Tensor, Y: Tensor, share: float) -> float:
        with torch.enable_grad():
            net = Rounded(self.net, self.rounded) if self.rounded else self.net
            part = cost(net(X), Y, self.stack.loss) * share
            part.backward()
        return float(part.detach())


def trainable(net: nn.Module) -> list[nn.Parameter]:
    """Parameters that move, of one dtype and device."""
    found = [p for p in net.parameters() if p.requires_grad]
    if not found:
        fail("train", "`net` must have trainable parameters", "none", "Set requires_grad on its parameters.")
    kinds = {(p.dtype, p.device) for p in found}
    if len(kinds) > 1:
        shown = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        fail("train", "the parameters of `net` must share dtype and device", shown, "Convert with net.to(…).")
    return found


class Stack:
    """Objectives of networks of one shape, their parameters the rows of ``theta`` (B, P).

    Parameters
    ----------
    nets : sequence of nn.Module
    Xs, Ys : sequence of Tensor
        One for each network: the same tensor where they share it.
    loss : str
    chunk_bytes : int, optional
        Samples are taken in parts where activations would need more than about four times as much memory.
    """

    def __init__(
        self,
        nets: Sequence[nn.Module],
        Xs: Sequence[Tensor],
        Ys: Sequence[Tensor],
        loss: str,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.loss, count, samples = loss, len(nets), len(Xs[0])
        parameters = trainable(nets[0])
        self.theta = torch.stack([torch.cat([p.detach().reshape(-1) for p in trainable(net)]) for net in nets])
        self.gradients, self.spare = torch.zeros_like(self.theta), torch.empty_like(self.theta)
        self.objectives = [Objective(self, i, *each) for i, each in enumerate(zip(nets, Xs, Ys))]
        # Activations and their gradients of every layer are alive at once; the widths bound their number.
        width = sum(max(p.shape) for p in parameters if p.ndim > 0) + Xs[0][0].numel()
        self.rows = min(samples, chunk_rows(samples, 4.0 * count * width * self.theta.element_size(), 4 * chunk_bytes))
        self.shapes = [p.shape for p in parameters]
        #: The way of so many of the networks together; of all of them it works on ``theta`` itself.
        self.together: dict[int, Direct] = {}
        way = None
        if count > 1:
            values, gradients = self._views(self.theta, count), self._views(self.gradients, count)
            way = hooks_of(nets[0]).direct(loss, values, gradients, self.rows)
        if way is None:
            for own in self.objectives:
                own.direct = hooks_of(own.net).direct(loss, own.values, own.gradients, self.rows)
            return
        self.together[count] = way
        # Where parameters and gradients of some networks are put side by side.
        self.work, self.work_gradients = torch.empty_like(self.theta), torch.zeros_like(self.theta)
        self.data = [Ts[0] if all(T is Ts[0] for T in Ts) else torch.stack(list(Ts)) for Ts in (Xs, Ys)]
        self.shared = [all(T is Ts[0] for T in Ts) for Ts in (Xs, Ys)]

    def _views(self, T: Tensor, count: int) -> list[Tensor]:
        """Parameters of the first ``count`` rows, with a leading axis from 2 on."""
        parts = T[:count].split([shape.numel() for shape in self.shapes], 1)
        found = [part.view(count, *shape) for part, shape in zip(parts, self.shapes)]
        return found if count > 1 else [part[0] for part in found]

    def threads(self) -> AbstractContextManager[None]:
        """Within, as many threads as these objectives are worth: one where their activations are few."""
        ways = [*self.together.values()] or [own.direct for own in self.objectives]
        return use_threads(1) if all(way is not None and way.small for way in ways) else nullcontext()

    def evaluate(self, chosen: Sequence[Objective], ridges: Sequence[float], *, fleeting: bool = False) -> list[Value]:
        """Values of some of the networks, in one computation; ``fleeting`` as for one of them, if they are all."""
        count = len(chosen)
        whole = count == len(self.objectives)
        rows = torch.tensor([own.index for own in chosen], device=self.theta.device)
        theta, gradients = self.theta, self.gradients
        if not whole:
            theta, gradients = self.work[:count], self.work_gradients[:count]
            torch.index_select(self.theta, 0, rows, out=theta)
        costs = self._costs(rows, whole=whole)
        kept = fleeting and whole
        own = gradients if kept else gradients.clone()
        factors = theta.new_tensor([2.0 * ridge for ridge in ridges])[:, None]
        gradient = torch.addcmul(own, theta, factors, out=self.spare if kept else None)
        # Not as a batch of products of vectors: that sums one term after the other, ten times as slow and less exact.
        norms = torch.stack([row @ row for row in theta.unbind()]).tolist()
        sums = gradient.sum(1).tolist()
        found = zip(ridges, costs, norms, gradient.unbind(), own.unbind(), sums)
        for one in chosen:
            one.evaluations += 1
        return [Value(*each) for each in found]

    def _costs(self, rows: Tensor, *, whole: bool) -> list[float]:
        """The cost of each network; the gradients are written beside the parameters."""
        count, samples = len(rows), self.data[0].shape[-2]
        way = self._way(count)
        total = [0.0] * count
        for start in range(0, samples, self.rows):
            stop = min(start + self.rows, samples)
            parts = []
            for T, shared in zip(self.data, self.shared):
                part = T[start:stop] if shared else (T if whole else T[rows])[:, start:stop]
                parts.append(part[0] if not shared and count == 1 else part)
            shares = way.add(parts[0], parts[1], (stop - start) / samples, first=start == 0)
            total = [sum(pair) for pair in zip(total, shares)]
        return total

    def _way(self, count: int) -> Direct:
        if count not in self.together:
            values, gradients = self._views(self.work, count), self._views(self.work_gradients, count)
            self.together[count] = self.together[len(self.objectives)].of_first(count, values, gradients)
        return self.together[count]
