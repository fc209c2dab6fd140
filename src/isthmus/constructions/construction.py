"""What every construction returns: a network, and what is known about it without looking at it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from isthmus._checks import as_matrix, fail
from isthmus.measures import parameter_norms
from isthmus.networks import FullyConnected
from isthmus.trace import activate


@dataclass(frozen=True, eq=False)
class Domain:
    """Where a construction computes what it says.

    Attributes
    ----------
    text : str
        The condition, for people.
    columns : int
        Dimension of the inputs.
    test : callable
        From a float64 tensor (N, columns) to booleans (N,).
    whole : bool
        Whether it is all of ℝ^columns.
    """

    text: str
    columns: int
    test: Callable[[Tensor], Tensor]
    whole: bool = False

    def contains(self, X: Any) -> Tensor:
        """Which rows of ``X`` (N, columns) lie in the domain, up to rounding: (N,) of bool."""
        return self.test(as_matrix("Domain.contains", "X", X, columns=self.columns, device="cpu"))

    def narrowed(self, text: str, test: Callable[[Tensor], Tensor]) -> Domain:
        """The part of this domain on which ``test`` holds too."""
        text = text if self.whole else f"{self.text}; {text}"
        return Domain(text, self.columns, lambda X: self.test(X) & test(X))


def everywhere(columns: int) -> Domain:
    """All of ℝ^columns."""
    return Domain(f"all of R^{columns}", columns, lambda X: torch.ones(len(X), dtype=torch.bool), whole=True)


@dataclass(frozen=True, eq=False)
class Known:
    """What theory says about a constructed network; none of it is measured on the network.

    Attributes
    ----------
    norm_squared : float
        ‖θ‖², biases included.
    rank : int
        k, a bound of the bottleneck rank of the function: it passes through k dimensions.
    excess_limit : float or None
        Limit of ‖θ‖² − kL as the same construction is made deeper; ∞ where its identity layers are wider than
        k, None where nothing says how it is made deeper.
    domain : Domain
        Where the network computes the intended function.
    details : mapping of str to float
        Further numbers, named by the construction.
    """

    norm_squared: float
    rank: int
    excess_limit: float | None
    domain: Domain
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Construction:
    """A network written down by hand, and what is known about it."""

    network: FullyConnected
    known: Known

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return self.network.depth

    @property
    def excess(self) -> float:
        """‖θ‖² − kL at this depth."""
        return self.known.norm_squared - self.known.rank * self.depth

    def with_known(self, **changes: Any) -> Self:
        """The same network with other knowledge."""
        return replace(self, known=replace(self.known, **changes))


def frozen_copy(net: FullyConnected) -> FullyConnected:
    """In float64, for domains: training the network afterwards must not move where it was known to be right."""
    return copy.deepcopy(net).cpu().double().requires_grad_(False)


def as_construction(who: str, name: str, net: FullyConnected | Construction) -> Construction:
    """A construction as it is; of a plain network a copy, known by its norm and its narrowest layer."""
    if isinstance(net, Construction):
        return net
    if not isinstance(net, FullyConnected):
        fail(who, f"`{name}` must be a FullyConnected or a Construction", type(net).__name__, "Convert it first.")
    known = Known(parameter_norms(net).total, min(net.dims), None, everywhere(net.dims[0]))
    return Construction(copy.deepcopy(net), known)


def nonnegative(X: Tensor, W: Tensor, b: Tensor | float, eps: float) -> Tensor:
    """Whether W x + b ≥ 0 in every coordinate, for each row of X: (N,) of bool.

    A value counts as zero within 100·eps of the sum of its terms' magnitudes: that much is rounding, and
    cutting it off changes the function by no more than rounding does.
    """
    size = X.abs() @ W.abs().mT + abs(b)
    return (X @ W.mT + b >= -100 * eps * size).all(-1)


def where_outputs_nonnegative(domain: Domain, net: FullyConnected) -> Domain:
    """The part of ``domain`` on which another layer may follow ``net``: σ leaves its outputs as they are."""
    if net.slope == 1.0:
        return domain
    eps = torch.finfo(net.weights[0].dtype).eps
    frozen = frozen_copy(net)
    *inner, last = zip(frozen.Ws, [frozen.bias * b for b in biases(frozen)])

    def test(X: Tensor) -> Tensor:
        for W, b in inner:
            X = activate(X @ W.mT + b, frozen.slope)
        return nonnegative(X, *last, eps)

    return domain.narrowed("outputs of the inner network >= 0", test)


def common_bias(who: str, f: FullyConnected, g: FullyConnected) -> float:
    """The amount of bias β of a network made of both; 0 only when neither has biases."""
    for name, a, b in (("slope", f.slope, g.slope), ("dtype", f.weights[0].dtype, g.weights[0].dtype)):
        if a != b:
            fail(who, f"both networks must have the same {name}", f"{a} and {b}", "Convert one of them.")
    if f.bias != g.bias and 0.0 not in (f.bias, g.bias):
        fail(
            who,
            "both networks must have the same amount of bias, or one none",
            f"{f.bias:g} and {g.bias:g}",
            "Write one with the other's bias: only β·b matters for the function.",
        )
    return f.bias or g.bias


def weights(net: FullyConnected) -> list[Tensor]:
    """W_1 … W_L, detached."""
    return [W.detach() for W in net.Ws]


def biases(net: FullyConnected) -> list[Tensor]:
    """b_1 … b_L, detached; zeros where the network has none."""
    return [b.detach() for b in net.bs] or [torch.zeros_like(W[:, 0]) for W in weights(net)]
