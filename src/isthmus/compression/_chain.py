"""The working form of compression: a stack of layers in float64 whose neurons may each be linear or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from isthmus.networks import CompactNetwork, FullyConnected, Hourglass
from isthmus.networks._fully_connected import activation_modules, linear_module
from isthmus.trace import activate


@dataclass(eq=False)
class Chain:
    """Weights to be rewritten in place; hidden layer i (from 0) lies between ``Ws[i]`` and ``Ws[i + 1]``.

    Attributes
    ----------
    Ws : list of Tensor (n_{i+1}, n_i)
        Float64.
    bs : list of Tensor (n_{i+1},)
        What is added, βb; zeros where there is none.
    biased : list of bool
        Whether a layer has biases.
    slopes : list of float
        Of σ_a at each hidden layer.
    linear : list of Tensor (n_{i+1},) of bool
        Neurons without activation.
    bias : float
        β: the norm counts b, not βb; 0 where there can be no biases.
    names : list of str
        What the hidden layers were called at first.
    removed : dict
        Layer → what was done → how many neurons went.
    """

    Ws: list[Tensor]
    bs: list[Tensor]
    biased: list[bool]
    slopes: list[float]
    linear: list[Tensor]
    bias: float
    names: list[str]
    removed: dict[str, dict[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(
        Ws: Sequence[Tensor],
        bs: Sequence[Tensor | None],
        slopes: Sequence[float],
        *,
        bias: float = 1.0,
        linear: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> Chain:
        """From weights and biases as a module stores them: copies in float64 on the CPU."""
        weights = [W.detach().to("cpu", torch.float64, copy=True) for W in Ws]
        biases = [
            torch.zeros(len(W), dtype=torch.float64) if b is None else bias * b.detach().to("cpu", torch.float64)
            for W, b in zip(weights, bs)
        ]
        counts = linear or [0] * len(slopes)
        masks = [
            torch.arange(len(W)) < (len(W) if slope == 1.0 else count)
            for W, slope, count in zip(weights, slopes, counts)
        ]
        called = list(names) if names is not None else [str(i + 1) for i in range(len(slopes))]
        return Chain(weights, biases, [b is not None for b in bs], [float(a) for a in slopes], masks, bias, called)

    def copy(self) -> Chain:
        """An independent one."""
        return Chain(
            [W.clone() for W in self.Ws],
            [b.clone() for b in self.bs],
            list(self.biased),
            list(self.slopes),
            [mask.clone() for mask in self.linear],
            self.bias,
            list(self.names),
            {name: dict(counts) for name, counts in self.removed.items()},
        )

    def become(self, other: Chain) -> None:
        """Take over the parts of another one, which is not used any more."""
        self.__dict__.update(other.__dict__)

    @property
    def hidden(self) -> range:
        """Indices of the hidden layers."""
        return range(len(self.Ws) - 1)

    @property
    def widths(self) -> list[int]:
        """Neurons of each hidden layer."""
        return [len(W) for W in self.Ws[:-1]]

    @property
    def parameters(self) -> int:
        """Number of scalars."""
        return sum(W.numel() for W in self.Ws) + sum(len(b) for b, has in zip(self.bs, self.biased) if has)

    @property
    def norm(self) -> float:
        """‖θ‖², of W and b."""
        return float(sum(self.incoming(i).square().sum() for i in range(len(self.Ws))))

    def incoming(self, i: int) -> Tensor:
        """[W, b] of the layer after ``Ws[i]``: what acts on the activations with a row β below them."""
        if self.bias == 0.0:
            return self.Ws[i]
        return torch.cat([self.Ws[i], self.bs[i][:, None] / self.bias], 1)

    def set_incoming(self, i: int, rows: Tensor) -> None:
        """The opposite of :meth:`incoming`; a bias that appears is kept."""
        width = self.Ws[i].shape[1]
        self.Ws[i] = rows[:, :width].contiguous()
        if self.bias != 0.0:
            self.bs[i] = self.bias * rows[:, width]
            self.biased[i] = self.biased[i] or bool((self.bs[i] != 0).any())
        else:
            self.bs[i] = torch.zeros(len(rows), dtype=torch.float64)

    def sigma(self, i: int, Z: Tensor) -> Tensor:
        """Activations of hidden layer i from its pre-activations (N, n)."""
        if bool(self.linear[i].all()):
            return Z
        S = activate(Z, self.slopes[i])
        return torch.where(self.linear[i], Z, S) if bool(self.linear[i].any()) else S

    def run(self, X: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Pre-activations of all layers and activations from the inputs on, samples as rows."""
        activations, preactivations = [X], []
        for i, (W, b) in enumerate(zip(self.Ws, self.bs)):
            preactivations.append(activations[-1] @ W.mT + b)
            if i + 1 < len(self.Ws):
                activations.append(self.sigma(i, preactivations[-1]))
        return preactivations, activations

    def __call__(self, X: Tensor) -> Tensor:
        """Outputs (N, n_L)."""
        for i, (W, b) in enumerate(zip(self.Ws, self.bs)):
            X = X @ W.mT + b
            if i + 1 < len(self.Ws):
                X = self.sigma(i, X)
        return X

    def drop(self, i: int, gone: Tensor, why: str) -> bool:
        """Remove the marked neurons of hidden layer i; one that would be the last stays with zero weights."""
        count = int(gone.sum())
        if count == len(gone):
            # A layer of nothing has no shape in PyTorch: one neuron that says nothing stands for it.
            gone = gone.clone()
            gone[0] = False
            count -= 1
            self.Ws[i][0] = 0.0
            self.bs[i][0] = 0.0
            self.Ws[i + 1][:, 0] = 0.0
        if count == 0:
            return False
        keep = ~gone
        self.Ws[i], self.bs[i], self.linear[i] = self.Ws[i][keep], self.bs[i][keep], self.linear[i][keep]
        self.Ws[i + 1] = self.Ws[i + 1][:, keep]
        self.note(i, why, count)
        return True

    def note(self, i: int, why: str, count: int) -> None:
        """Count what was done to hidden layer i."""
        counts = self.removed.setdefault(self.names[i], {})
        counts[why] = counts.get(why, 0) + count

    def rescale(self, i: int, factors: Tensor) -> None:
        """Multiply what goes into each neuron of hidden layer i and divide what leaves it: the same function."""
        self.Ws[i] = factors[:, None] * self.Ws[i]
        self.bs[i] = factors * self.bs[i]
        self.Ws[i + 1] = self.Ws[i + 1] / factors

    def balance(self, i: int) -> None:
        """Make each neuron's incoming norm equal to its outgoing one: the least norm with the other layers fixed."""
        into, out = self.incoming(i).norm(dim=1), self.Ws[i + 1].norm(dim=0)
        alive = (into > 0) & (out > 0)
        ratio = torch.where(alive, out, 1.0) / torch.where(alive, into, 1.0)
        self.rescale(i, ratio.sqrt())

    def as_module(self, like: nn.Module) -> nn.Module:
        """A module of the kind, dtype and device of ``like``: itself where it can be, otherwise a CompactNetwork."""
        first = next(like.parameters())
        put = {"dtype": first.dtype, "device": first.device}
        order = [torch.argsort((~mask).int(), stable=True) for mask in self.linear]
        Ws = [W.clone() for W in self.Ws]
        bs: list[Tensor | None] = [b.clone() if has else None for b, has in zip(self.bs, self.biased)]
        for i, places in enumerate(order):
            Ws[i], Ws[i + 1] = Ws[i][places], Ws[i + 1][:, places]
            old = bs[i]
            bs[i] = None if old is None else old[places]
        Ws = [W.to(**put) for W in Ws]
        counts = [int(mask.sum()) for mask in self.linear]
        # A layer of linear neurons alone is one of slope 1.
        slopes = [1.0 if k == len(W) else a for k, W, a in zip(counts, Ws, self.slopes)]
        stored = [None if b is None else (b / self.bias).to(**put) for b in bs]
        made: nn.Module
        if isinstance(like, nn.Sequential):
            layers: list[nn.Module] = []
            for i, W in enumerate(Ws):
                b = bs[i]
                layers.append(linear_module(W, None if b is None else b.to(**put)))
                if i + 1 < len(Ws):
                    layers += activation_modules(counts[i], slopes[i], len(W))
            made = nn.Sequential(*layers)
        else:
            pure = all(k == 0 or a == 1.0 for k, a in zip(counts, slopes)) and len(set(slopes)) <= 1
            given = [b for b in stored if b is not None]
            if pure and isinstance(like, FullyConnected) and len(given) in (0, len(Ws)):
                slope = slopes[0] if slopes else like.slope
                made = FullyConnected.from_weights(Ws, given or None, slope=slope, bias=self.bias if given else 0.0)
            elif pure and len(given) == len(Ws) and isinstance(like, Hourglass):
                made = FullyConnected.from_weights(Ws, given, slope=slopes[0] if slopes else 1.0, bias=self.bias)
            else:
                scaling = {}
                if isinstance(like, CompactNetwork) and like.shift is not None:
                    scaling = {"shift": like.shift, "scale": like.scale}
                made = CompactNetwork(Ws, stored, slopes=slopes, linear=counts, bias=self.bias or 1.0, **scaling)
        return made.requires_grad_(first.requires_grad).train(like.training)


def chain_of(net: nn.Module) -> Chain | None:
    """The chain of one of our own networks, or None."""
    if isinstance(net, (FullyConnected, Hourglass)) and type(net) in (FullyConnected, Hourglass):
        bs = list(net.bs) if net.bs else [None] * net.depth
        return Chain.of(net.Ws, bs, net.slopes, bias=net.bias)
    if type(net) is CompactNetwork:
        bs = [net.b(ell) for ell in range(1, net.depth + 1)]
        return Chain.of(list(net.weights), bs, net.slopes, bias=net.bias, linear=net.linear)
    return None
