"""The loss of a network whose activations have chosen slopes: gradient, multipliers and Hessian at kinks.

With every σ_a(z) replaced by S·z + c for constants S and c the loss is a smooth function of θ. Where S is the slope of
the side on which z lies it is the loss itself, near θ; at a kink any S from a to 1 is a derivative that the chain rule
may use. See docs/notes/stationarity.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from isthmus._activations import Activations, Slope, plain
from isthmus._forward_mode import load_forward_mode
from isthmus.objective import cost

#: (number of the activation, z, a, rows) → what stands in its place.
OfRows = Callable[[int, Tensor, Slope, slice], Tensor]

#: Memory for the tangents of a Hessian that are computed at once, and how many of them at most.
TANGENT_BYTES, TANGENTS = 2**28, 256


class Kinked:
    """cost(net(X), Y) + ridge·‖θ‖² with chosen slopes S and offsets c, one of each for every entry of every activation.

    Parameters
    ----------
    net : nn.Module
        In float64; only parameters that require gradients are θ.
    X, Y : Tensor
    loss : str
    ridge : float
    rows : int, optional
        Samples that are propagated at once.

    Attributes
    ----------
    kinds : list of (float or Tensor)
        a of each activation, in the order of the forward pass.
    """

    def __init__(self, net: nn.Module, X: Tensor, Y: Tensor, loss: str, ridge: float, rows: int | None = None) -> None:
        self.net, self.X, self.Y, self.loss, self.ridge = net, X, Y, loss, ridge
        self.rows = min(len(X), rows or len(X))
        self.names = [name for name, p in net.named_parameters() if p.requires_grad]
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.kinds: list[Slope] = []

        def record(_: int, Z: Tensor, a: Slope) -> Tensor:
            self.kinds.append(a)
            return plain(Z, a)

        with torch.no_grad(), Activations(record):
            net(X[:1])

    def theta(self) -> Tensor:
        """The parameters as one vector: a copy."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters by name, from one vector."""
        parts = theta.split(self.sizes)
        return {name: part.view(p.shape) for name, part, p in zip(self.names, parts, self.parameters)}

    def parts(self) -> Iterator[slice]:
        """Slices of rows that are propagated at once."""
        for start in range(0, len(self.X), self.rows):
            yield slice(start, min(start + self.rows, len(self.X)))

    def run(self, theta: Tensor, part: slice, replacement: Callable[[int, Tensor, Slope], Tensor]) -> Tensor:
        """The share of the cost that these rows have."""
        with Activations(replacement):
            outputs: Any = functional_call(self.net, self.split(theta), (self.X[part],))
        return cost(outputs, self.Y[part], self.loss) * (len(self.X[part]) / len(self.X))

    def value(self, theta: Tensor) -> float:
        """The loss with σ_a itself, kinks included."""
        with torch.no_grad():
            total = sum(float(self.run(theta, part, lambda _, Z, a: plain(Z, a))) for part in self.parts())
            return total + self.ridge * float(theta @ theta)

    @torch.no_grad()
    def z(self, theta: Tensor, replacement: OfRows) -> list[Tensor]:
        """The argument of each activation, where ``replacement`` (place, z, a, rows) computes the activations."""
        found: list[list[Tensor]] = [[] for _ in self.kinds]
        for part in self.parts():

            def record(place: int, Z: Tensor, a: Slope, part: slice = part) -> Tensor:
                found[place].append(Z)
                return replacement(place, Z, a, part)

            with Activations(record):
                functional_call(self.net, self.split(theta), (self.X[part],))
        return [torch.cat(parts) for parts in found]

    def first_order(
        self, theta: Tensor, slopes: Sequence[Tensor], offsets: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """(Gradient, z, derivatives of the loss by what each activation gives)."""
        gradient = 2.0 * self.ridge * theta
        zs: list[list[Tensor]] = [[] for _ in self.kinds]
        pulled: list[list[Tensor]] = [[] for _ in self.kinds]
        for part in self.parts():
            point = theta.detach().requires_grad_()
            extra: list[Tensor] = []

            def replaced(place: int, Z: Tensor, _: Slope, part: slice = part, extra: list[Tensor] = extra) -> Tensor:
                extra.append(torch.zeros_like(Z).requires_grad_())
                zs[place].append(Z.detach())
                return slopes[place][part] * Z + offsets[place][part] + extra[-1]

            with torch.enable_grad():
                share = self.run(point, part, replaced)
                found = torch.autograd.grad(share, [point, *extra])
            gradient += found[0]
            for place, one in enumerate(found[1:]):
                pulled[place].append(one)
        return gradient, [torch.cat(z) for z in zs], [torch.cat(one) for one in pulled]

    def tangents(
        self, theta: Tensor, slopes: Sequence[Tensor], offsets: Sequence[Tensor], direction: Tensor
    ) -> list[Tensor]:
        """Directional derivative of each z along ``direction``, for fixed slopes."""
        load_forward_mode()
        found: list[list[Tensor]] = [[] for _ in self.kinds]
        for part in self.parts():

            def preactivations(point: Tensor, part: slice = part) -> tuple[Tensor, ...]:
                zs: list[Tensor] = []

                def replaced(place: int, Z: Tensor, _: Slope) -> Tensor:
                    zs.append(Z)
                    return slopes[place][part] * Z + offsets[place][part]

                self.run(point, part, replaced)
                return tuple(zs)

            for kept, one in zip(found, jvp(preactivations, (theta,), (direction,))[1]):
                kept.append(one)
        return [torch.cat(parts) for parts in found]

    def second_order(
        self,
        theta: Tensor,
        slopes: Sequence[Tensor],
        offsets: Sequence[Tensor],
        active: Sequence[Tensor],
        live: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """(Hessian among the coordinates ``live``, derivatives of the ``active`` z by these), for fixed slopes.

        ``active`` are masks, one for each activation; the rows of the second are in the order of the masks' entries,
        activation by activation.
        """
        load_forward_mode()
        count = len(live)
        hessian = torch.zeros(count, count, dtype=theta.dtype, device=theta.device)
        hessian.diagonal().add_(2.0 * self.ridge)
        rows: list[list[Tensor]] = [[] for _ in self.kinds]
        for part in self.parts():
            chosen = [mask[part].reshape(-1).nonzero()[:, 0] for mask in active]
            columns, zs = self._columns(
                theta, part, [S[part] for S in slopes], [c[part] for c in offsets], chosen, live
            )
            hessian += columns
            for kept, one in zip(rows, zs):
                kept.append(one.mT)
        jacobian = [torch.cat(one) for one in rows]
        empty = torch.zeros(0, count, dtype=theta.dtype, device=theta.device)
        return 0.5 * (hessian + hessian.mT), torch.cat([empty, *jacobian])

    def _columns(
        self,
        theta: Tensor,
        part: slice,
        slopes: Sequence[Tensor],
        offsets: Sequence[Tensor],
        chosen: Sequence[Tensor],
        live: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Derivatives by each coordinate ``live`` of the gradient of the cost of these rows, and of the chosen z."""

        def share(point: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            zs: list[Tensor] = []

            def replaced(place: int, Z: Tensor, _: Slope) -> Tensor:
                zs.append(Z.reshape(-1)[chosen[place]])
                return slopes[place] * Z + offsets[place]

            return self.run(point, part, replaced), tuple(zs)

        def column(index: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            tangent = torch.zeros_like(theta).scatter(0, index[None], 1.0)
            moved, zs = jvp(grad(share, has_aux=True), (theta,), (tangent,))[1]
            return moved[live], zs

        if not len(live):
            return theta.new_zeros(0, 0), tuple(theta.new_zeros(0, len(one)) for one in chosen)
        size = sum(S.numel() for S in slopes)
        at_once = max(1, min(TANGENTS, int(TANGENT_BYTES / (40.0 * max(size, 1)))))
        return vmap(column, chunk_size=at_once)(live)
