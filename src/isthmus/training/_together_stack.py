"""Mean squared errors of a stack of equal networks and their gradients, written out: one product for a layer of all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.networks import FullyConnected
from isthmus.training._flat import Value

Array = np.ndarray


def dots(first: Tensor, second: Tensor) -> Array:
    """Σ_p first[i, p]·second[i, p] for each row, summed in the tensors' dtype as a single training does."""
    # Row by row: as products of stacks, matrix times vector is several times slower.
    return np.array([float(torch.dot(a, b)) for a, b in zip(first, second)])


def column(numbers: Array, like: Tensor) -> Tensor:
    """One number for each network, to multiply rows with."""
    return torch.as_tensor(numbers, dtype=like.dtype, device=like.device)[:, None]


@torch.no_grad()
def fill(net: FullyConnected, vector: Tensor) -> None:
    """Copy a row of parameters into the module's own memory."""
    for p, part in zip(net.parameters(), vector.split([p.numel() for p in net.parameters()])):
        p.copy_(part.view(p.shape))


@dataclass(eq=False)
class Values:
    """Loss = cost + ridge·‖θ‖² of each network, with the gradients as rows; :class:`~.flat.Value` for a stack."""

    loss: Array
    cost: Array
    norm: Array
    gradient: Tensor
    cost_gradient: Tensor

    def finite(self) -> Array:
        """Whether loss and gradient are finite, for each network."""
        good = np.isfinite(self.loss)
        # One pass: what is not finite does not vanish from a sum. A sum may also overflow, hence the second look.
        sums = self.gradient.sum(1).isfinite().numpy(force=True)
        for i in np.flatnonzero(good & ~sums):
            sums[i] = bool(self.gradient[i].isfinite().all())
        return good & sums

    def at_ridges(self, ridges: Array, theta: Tensor) -> Values:
        """The values at the same points for other ridges."""
        gradient = torch.addcmul(self.cost_gradient, theta, column(2.0 * ridges, theta))
        return Values(self.cost + ridges * self.norm, self.cost, self.norm, gradient, self.cost_gradient)

    def keep(self, rows: Tensor) -> Values:
        """Those of some networks, as copies."""
        chosen = rows.numpy(force=True)
        numbers = (self.loss[chosen], self.cost[chosen], self.norm[chosen])
        return Values(*numbers, self.gradient[rows], self.cost_gradient[rows])

    def one(self, k: int) -> Value:
        """That of one network."""
        numbers = float(self.loss[k]), float(self.cost[k]), float(self.norm[k])
        return Value(*numbers, self.gradient[k], self.cost_gradient[k])

    def put(self, rows: Array, other: Values, among: Array) -> None:
        """Overwrite ``rows`` by the rows ``among`` of other values."""
        self.loss[rows], self.cost[rows], self.norm[rows] = other.loss[among], other.cost[among], other.norm[among]
        to, of = torch.as_tensor(rows), torch.as_tensor(among)
        self.gradient[to], self.cost_gradient[to] = other.gradient[of], other.cost_gradient[of]


class StackedMeanSquare:
    """(1/N)Σ‖f_i(x) − y‖² + ridge_i·‖θ_i‖² of networks i of one shape, parameters as rows of ``theta`` (B, P).

    Rows are laid out W_1 … W_L, b_1 … b_L. Activations are taken once and overwritten at every evaluation, as in
    :class:`~.direct.DirectChain`, and samples are taken in parts where they would need too much memory.

    Parameters
    ----------
    net : FullyConnected
        One of the networks: dims, slope in [0, 1], amount of bias.
    X, Y : Tensor (N, d) or (B, N, d)
        Shared, or one for each network.
    count : int
        B.
    """

    def __init__(self, net: FullyConnected, X: Tensor, Y: Tensor, count: int) -> None:
        self.dims, self.slope, self.bias = net.dims, net.slope, net.bias
        self.X, self.Y, self.count = X, Y, count
        #: Evaluations of each network; rows of X and Y that belong to the rows of theta.
        self.evaluations = np.zeros(count, dtype=np.int64)
        self.members = np.arange(count)
        self.samples = X.shape[-2]
        element = X.element_size()
        self.rows = chunk_rows(self.samples, 2.0 * count * (sum(net.dims) + max(net.dims)) * element, CHUNK_BYTES)
        self.activations = [X.new_empty(count * self.rows * n) for n in net.dims[1:]]
        self.cotangents = [X.new_empty(count * self.rows * max(net.dims)) for _ in range(2)]
        shapes = list(zip(net.dims[1:], net.dims[:-1]))
        sizes = [n * m for n, m in shapes] + (list(net.dims[1:]) if net.bias else [])
        self.places = [slice(end - size, end) for end, size in zip(np.cumsum(sizes).tolist(), sizes)]
        self.shapes = shapes

    def split(self, theta: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Views: weights (B, n_ℓ, n_{ℓ-1}) and biases (B, 1, n_ℓ)."""
        Ws = [theta[:, place].view(-1, *shape) for place, shape in zip(self.places, self.shapes)]
        return Ws, [theta[:, place].unsqueeze(1) for place in self.places[len(Ws) :]]

    @torch.no_grad()
    def __call__(self, theta: Tensor, ridges: Array, which: Array | None = None, into: Tensor | None = None) -> Values:
        """Values of the networks ``which`` (all unless given), whose parameters are the rows of ``theta``.

        ``into`` receives the gradient of the cost; a new tensor otherwise.
        """
        members = self.members if which is None else self.members[which]
        gradient = torch.empty_like(theta) if into is None else into
        cost = np.zeros(len(theta))
        for start in range(0, self.samples, self.rows):
            part = slice(start, min(start + self.rows, self.samples))
            X, Y = (self._take(data, members, part) for data in (self.X, self.Y))
            cost += self._part(theta, X, Y, gradient, first=start == 0)
        self.evaluations[members] += 1
        return Values(cost, cost, dots(theta, theta), gradient, gradient).at_ridges(ridges, theta)

    def keep(self, rows: Array) -> None:
        """Go on with some of the networks."""
        self.members = self.members[rows]

    def _take(self, data: Tensor, members: Array, part: slice) -> Tensor:
        """The samples ``part`` of each network."""
        if data.ndim == 2:
            return data[part].expand(len(members), -1, -1)
        return data[:, part] if len(members) == len(data) else data[torch.as_tensor(members), part]

    def _part(self, theta: Tensor, X: Tensor, Y: Tensor, gradient: Tensor, *, first: bool) -> Array:
        """Cost of some samples, as a part of the mean; their gradient is written by the first, added by the others."""
        Ws, bs = self.split(theta)
        inputs = self._forward(Ws, bs, X)
        outputs, count = inputs.pop(), X.shape[1]
        share = count / self.samples
        G = torch.sub(outputs, Y, out=self._buffer(self.cotangents[0], outputs.shape))
        flat = G.view(len(theta), -1)
        cost = share * dots(flat, flat) / count
        G.mul_(2.0 * share / count)
        gWs, gbs = self.split(gradient)
        for index in range(len(Ws) - 1, -1, -1):
            if first:
                torch.bmm(G.mT, inputs[index], out=gWs[index])
            else:
                gWs[index].baddbmm_(G.mT, inputs[index])
            if self.bias:
                sums = G.sum(1, keepdim=True)
                torch.mul(sums, self.bias, out=gbs[index]) if first else gbs[index].add_(sums, alpha=self.bias)
            if index:
                spare = self.cotangents[(len(Ws) - index) % 2]
                G = torch.bmm(G, Ws[index], out=self._buffer(spare, inputs[index].shape))
                if self.slope != 1.0:
                    # Read off the outputs: their sign is that of the inputs where the slope is positive, and 0 counts
                    # as below where it is 0. In place and in one pass, which no public function does.
                    back = torch.ops.aten.leaky_relu_backward.grad_input
                    back(G, inputs[index], self.slope, True, grad_input=G)
        return cost

    def _forward(self, Ws: list[Tensor], bs: list[Tensor], X: Tensor) -> list[Tensor]:
        """α_0 … α_{L-1} and the outputs."""
        found = [X]
        for index, W in enumerate(Ws):
            out = self._buffer(self.activations[index], (len(W), X.shape[1], W.shape[1]))
            if self.bias:
                torch.baddbmm(bs[index], found[-1], W.mT, beta=self.bias, out=out)
            else:
                torch.bmm(found[-1], W.mT, out=out)
            if index + 1 < len(Ws) and self.slope != 1.0:
                out.relu_() if self.slope == 0.0 else torch.nn.functional.leaky_relu_(out, self.slope)
            found.append(out)
        return found

    @staticmethod
    def _buffer(memory: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """The beginning of ``memory``, contiguous in any shape."""
        return memory[: math.prod(shape)].view(shape)
