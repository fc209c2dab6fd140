"""The draft of a smaller network: fully connected layers in float64 that are rewritten in place."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.networks import FullyConnected
from isthmus.trace import activate


@dataclass(eq=False)
class Draft:
    """A FullyConnected to be rewritten; hidden layer i (from 0) lies between ``Ws[i]`` and ``Ws[i + 1]``.

    Attributes
    ----------
    Ws : list of Tensor (n_{i+1}, n_i)
        Float64, on the CPU.
    bs : list of Tensor (n_{i+1},)
        What is added, βb; zeros where there is none.
    biased : list of bool
        Whether a layer has biases.
    slopes : list of float
        Of σ_a at each hidden layer.
    linear : list of Tensor (n_{i+1},) of bool
        Neurons without activation, in any place.
    bias : float
        β: the norm counts b, not βb; 0 where there can be no biases.
    names : list of str
        What the hidden layers were called at first.
    removed : dict
        Layer → what was done → how many neurons went.
    mixed : bool
        Whether some neurons of a layer may be linear beside others: PyTorch has ``PReLU`` for that, of rows alone.
    """

    Ws: list[Tensor]
    bs: list[Tensor]
    biased: list[bool]
    slopes: list[float]
    linear: list[Tensor]
    bias: float
    names: list[str]
    removed: dict[str, dict[str, int]] = field(default_factory=dict)
    mixed: bool = True

    @staticmethod
    def of(net: FullyConnected, names: Sequence[str] = ()) -> Draft:
        """A copy; the hidden layers are numbered unless they have names."""
        Ws = [W.detach().to("cpu", torch.float64, copy=True) for W in net.weights]
        bs = [net.bias * b.detach().to("cpu", torch.float64) for b in net.bs] or [W.new_zeros(len(W)) for W in Ws]
        biased = [b is not None for b in net.biases] or [False] * net.depth
        linear = [
            torch.arange(len(W)) < (len(W) if a == 1.0 else count) for W, a, count in zip(Ws, net.slopes, net.linear)
        ]
        called = list(names) or [str(ell) for ell in range(1, net.depth)]
        return Draft(Ws, bs, biased, list(net.slopes), linear, net.bias, called)

    def network(self, like: FullyConnected) -> FullyConnected:
        """What was drafted, in float64, linear neurons first; with the slope of ``like`` where no layer is hidden."""
        Ws, bs = list(self.Ws), list(self.bs)
        for i, mask in enumerate(self.linear):
            places = torch.argsort((~mask).int(), stable=True)
            Ws[i], bs[i], Ws[i + 1] = Ws[i][places], bs[i][places], Ws[i + 1][:, places]
        # A layer of linear neurons alone is one of slope 1.
        slopes = [1.0 if bool(mask.all()) else a for mask, a in zip(self.linear, self.slopes)]
        counts = [0 if a == 1.0 else int(mask.sum()) for mask, a in zip(self.linear, slopes)]
        stored = [b / self.bias if has else None for b, has in zip(bs, self.biased)] if self.bias else None
        slope = slopes or (like.slopes[0] if like.slopes else like.slope)
        return FullyConnected.from_weights(Ws, stored, slope=slope, bias=self.bias, linear=counts)

    def unmixed(self) -> Draft:
        """The same function without linear neurons beside others: z = (σ(z) − σ(−z))/(1 + a), two for one."""
        made = self.copy()
        for i, (mask, a) in enumerate(zip(self.linear, self.slopes)):
            if bool(mask.all()) or not bool(mask.any()) or a == -1.0:
                continue
            into, out = made.Ws[i][mask], made.Ws[i + 1].clone()
            out[:, mask] /= 1.0 + a
            made.Ws[i], made.bs[i] = torch.cat([made.Ws[i], -into]), torch.cat([made.bs[i], -made.bs[i][mask]])
            made.Ws[i + 1] = torch.cat([out, -out[:, mask]], 1)
            made.linear[i] = torch.zeros(len(made.Ws[i]), dtype=torch.bool)
        return made

    def copy(self) -> Draft:
        """An independent copy."""
        return copy.deepcopy(self)

    def become(self, other: Draft) -> None:
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
