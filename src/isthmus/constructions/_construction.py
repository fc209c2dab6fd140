"""What every construction returns: a network, and what is known about it without looking at it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from isthmus._checks import as_matrix, as_tensor, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.measures import parameter_norms
from isthmus.networks import FullyConnected, Network
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
    if not isinstance(net, Network) or net.plain_layers() is not net:
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


# ---- A-threepart, its parts: composition, sum in parallel, and identity layers, with their exact norms


@cites("rank2023", "Thm 4(2)", ids=("A-threepart",))
@cites("bottleneck2023", "Thm 3(1)", ids=("A-threepart",))
def compose(f: FullyConnected | Construction, g: FullyConnected | Construction) -> Construction:
    """f∘g as the layers of g followed by those of f: depths and norms add, ‖θ‖² = ‖θ_f‖² + ‖θ_g‖².

    σ now acts on the outputs of g, so it is f∘g only where g ≥ 0: the domain says so. (Multiplying the two
    weights that meet would do without that condition, and without the additivity.)

    Parameters
    ----------
    f : FullyConnected or Construction, from ℝ^k
    g : FullyConnected or Construction, to ℝ^k
        Of the same slope, dtype and amount of bias (or none).
    """
    outer, inner = as_construction("compose", "f", f), as_construction("compose", "g", g)
    F, G = outer.network, inner.network
    if F.dims[0] != G.dims[-1]:
        must = f"`f` must take the {G.dims[-1]} outputs of `g`"
        fail("compose", must, f"{F.dims[0]} inputs", "Pass the outer network first.")
    beta = common_bias("compose", F, G)
    net = FullyConnected.from_weights(
        weights(G) + weights(F), biases(G) + biases(F) if beta else None, slope=F.slope, bias=beta
    )
    domain = where_outputs_nonnegative(inner.known.domain, G)
    if not outer.known.domain.whole:
        text, G_fixed = f"g(x) in the domain of the outer network ({outer.known.domain.text})", frozen_copy(G)
        domain = domain.narrowed(text, lambda X: outer.known.domain.contains(G_fixed(X)))
    same = outer.known.rank == inner.known.rank
    known = Known(
        outer.known.norm_squared + inner.known.norm_squared,
        min(outer.known.rank, inner.known.rank),
        # Of different ranks, the limit hangs on which of the two is made deeper.
        _sum(outer, inner) if same else None,
        domain,
    )
    return Construction(net, known)


@cites("rank2023", "Thm 4(3)", ids=("A-threepart",))
@cites("bottleneck2023", "Thm 3(2)", ids=("A-threepart",))
def parallel(f: FullyConnected | Construction, g: FullyConnected | Construction) -> Construction:
    """The sum f + g, side by side: ‖θ‖² = ‖θ_f‖² + ‖θ_g‖² + 2⟨b_L^f, b_L^g⟩.

    Hidden layers are block diagonal, the first weights stand above each other, the last ones next to each
    other. The output biases are added, hence the last term: 0 without biases.

    Parameters
    ----------
    f, g : FullyConnected or Construction
        Of equal depth ≥ 2, inputs, outputs, slope, dtype and amount of bias (or none).
    """
    first, second = as_construction("parallel", "f", f), as_construction("parallel", "g", g)
    F, G = first.network, second.network
    if F.depth != G.depth or F.depth < 2:
        fail("parallel", "depths must be equal and at least 2", f"{F.depth} and {G.depth}", "Use `pad`.")
    d_in, d_out = F.dims[0], F.dims[-1]
    if (d_in, d_out) != (G.dims[0], G.dims[-1]):
        got = f"{d_in} to {d_out} and {G.dims[0]} to {G.dims[-1]}"
        fail("parallel", "inputs and outputs must have equal dimensions", got, "Only such functions have a sum.")
    beta = common_bias("parallel", F, G)
    pairs = list(zip(weights(F), weights(G)))
    Ws = [
        torch.cat(pairs[0]),
        *(torch.block_diag(V, W) for V, W in pairs[1:-1]),
        torch.cat(pairs[-1], 1),
    ]
    bs = [torch.cat(pair) for pair in zip(biases(F)[:-1], biases(G)[:-1])] + [biases(F)[-1] + biases(G)[-1]]
    ranks = first.known.rank + second.known.rank
    rank = min(ranks, d_in, d_out)
    limit = _sum(first, second)
    overlap = 2.0 * float(biases(F)[-1].double() @ biases(G)[-1].double())
    known = Known(
        first.known.norm_squared + second.known.norm_squared + overlap,
        rank,
        limit if limit is None or rank == ranks else math.inf,
        _both(first.known.domain, second.known.domain),
    )
    return Construction(FullyConnected.from_weights(Ws, bs if beta else None, slope=F.slope, bias=beta), known)


@cites("rank2023", "Thm 4(1)", ids=("A-threepart",))
def pad(net: FullyConnected | Construction, depth: int, *, where: str = "output", signed: bool = False) -> Construction:
    """The same function at a larger depth L, by n = L − L_0 identity layers: ‖θ‖² = ‖θ_0‖² + n·k.

    Parameters
    ----------
    net : FullyConnected or Construction
        Of depth L_0.
    depth : int
        L ≥ L_0.
    where : {"output", "input"}
        Identity layers on the k outputs, valid where they are ≥ 0, or on the k inputs, valid for x ≥ 0.
    signed : bool, default False
        Carry x = [x]_+ − [−x]_+ as a pair, valid everywhere, ReLU only. Then ‖θ‖² = ‖θ_0‖² + 2kn +
        ‖W_1‖² (input) or ‖W_L‖² + ‖b_L‖² (output) for n ≥ 1.

    Notes
    -----
    A linear network (slope 1) is padded by identities that are valid everywhere.
    """
    check_choice("pad", "where", where, ("output", "input"))
    base = as_construction("pad", "net", net)
    N = base.network
    extra = check_integer("pad", "depth", depth, low=N.depth) - N.depth
    if signed and N.slope != 0.0:
        fail(
            "pad",
            "`signed` needs a ReLU network",
            f"slope {N.slope:g}",
            "Pad with ReLU, then use `relu_to_leaky`; a linear network needs no pairs.",
        )
    if extra == 0:
        return base
    k = N.dims[-1] if where == "output" else N.dims[0]
    Ws, bs, cost = _pad_pairs(N, extra, where) if signed else _pad_plain(N, extra, where)
    width = 2 * k if signed else k
    norm, rank = base.known.norm_squared + cost, min(base.known.rank, k)
    domain = base.known.domain
    if where == "output" and not signed:
        domain = where_outputs_nonnegative(domain, N)
    elif not signed and N.slope != 1.0:
        domain = domain.narrowed("x >= 0", lambda X: (X >= 0).all(-1))
    limit = norm - rank * depth if rank == width else math.inf
    padded = FullyConnected.from_weights(Ws, bs if N.bias else None, slope=N.slope, bias=N.bias)
    return Construction(padded, Known(norm, rank, limit, domain))


def _pad_plain(N: FullyConnected, extra: int, where: str) -> tuple[list[Tensor], list[Tensor], float]:
    """Weights, biases and added norm with ``extra`` identity layers."""
    identity = torch.eye(N.dims[-1] if where == "output" else N.dims[0]).to(N.weights[0])
    middle, zeros = [identity] * extra, [torch.zeros_like(identity[0])] * extra
    cost = float(len(identity) * extra)
    if where == "output":
        return weights(N) + middle, biases(N) + zeros, cost
    return middle + weights(N), zeros + biases(N), cost


def _pad_pairs(N: FullyConnected, extra: int, where: str) -> tuple[list[Tensor], list[Tensor], float]:
    """The same with pairs: x → ([x]_+, [−x]_+), carried by identities, and put together again."""
    Ws, bs = weights(N), biases(N)
    k = N.dims[-1] if where == "output" else N.dims[0]
    identity = torch.eye(k).to(N.weights[0])
    split, join = torch.cat([identity, -identity]), torch.cat([identity, -identity], 1)
    middle = [torch.block_diag(identity, identity)] * (extra - 1)
    zeros = [torch.zeros_like(split[:, 0])] * extra
    if where == "output":
        cost = float(Ws[-1].double().square().sum() + bs[-1].double().square().sum())
        Ws = [*Ws[:-1], split @ Ws[-1], *middle, join]
        bs = [*bs[:-1], split @ bs[-1], *zeros[1:], torch.zeros_like(bs[-1])]
    else:
        cost = float(Ws[0].double().square().sum())
        Ws, bs = [split, *middle, Ws[0] @ join, *Ws[1:]], zeros + bs
    return Ws, bs, cost + 2.0 * k * extra


def _both(first: Domain, second: Domain) -> Domain:
    return first if second.whole else first.narrowed(second.text, second.test)


def _sum(f: Construction, g: Construction) -> float | None:
    limits = f.known.excess_limit, g.known.excess_limit
    return None if limits[0] is None or limits[1] is None else limits[0] + limits[1]


# ---- A-threepart: f = h∘g through k dimensions at any depth, of norm ‖W_g‖² + k(L − L_g − L_h) + ‖W_h‖²


@cites("rank2023", "Thm 1, Thm 3", ids=("A-threepart",))
@cites("talk2023", "Sketch of proof", ids=("A-threepart",))
def three_part(
    g: FullyConnected | Construction,
    h: FullyConnected | Construction,
    depth: int,
    *,
    shift: Any = 0.0,
    X: Any = None,
) -> Construction:
    """h∘g as g, then identity layers on ℝ^k_+, then h: ‖θ‖² = ‖θ_g‖² + k(L − L_g − L_h) + ‖θ_h‖².

    Parameters
    ----------
    g : FullyConnected or Construction, ℝ^{d_in} → ℝ^k
    h : FullyConnected or Construction, ℝ^k → ℝ^{d_out}
        Of the same slope, dtype and amount of bias (or none).
    depth : int
        L ≥ L_g + L_h.
    shift : float, array (k,) or "least", default 0.0
        c: the middle carries g + c in place of g, and h undoes it, h(z − c). The biases b of g's last layer
        and b' of h's first, W', become b + c/β and b' − W'c/β (β = 1 if there were none before), and the
        formula holds with these. "least" takes the smallest c ≥ 0 for which g(X) + c ≥ 0.
    X : array (N, d_in), optional
        Samples of Ω: a construction that is not h∘g on all of them is refused.

    Returns
    -------
    Construction
        Its rank is at most k; ‖θ‖² − kL is the same at every depth. ``details["shift_cost"]`` is what the
        shift has added to ‖θ‖² (it can be negative).
    """
    who = "three_part"
    first, last = as_construction(who, "g", g), as_construction(who, "h", h)
    G, H = first.network, last.network
    k = G.dims[-1]
    if H.dims[0] != k:
        fail(who, f"`h` must take the {k} outputs of `g`", f"{H.dims[0]} inputs", "Pass g before h.")
    check_integer(who, "depth", depth, low=G.depth + H.depth)
    samples = None if X is None else as_matrix(who, "X", X, columns=G.dims[0], device="cpu")
    c = _shift(who, shift, G, samples)
    before = first.known.norm_squared + last.known.norm_squared
    if bool((c != 0).any()):
        first, last = _shifted(who, first, last, c)
    whole = compose(last, pad(first, depth - H.depth))
    # The identity layers add no condition of their own.
    domain = compose(last, first).known.domain
    if samples is not None:
        outside = int((~domain.contains(samples)).sum())
        if outside:
            must = f"`X` must lie in the domain ({domain.text})"
            fail(who, must, f"{outside} of {len(samples)} samples outside", 'Try shift="least" if g is negative.')
    parts = first.known.norm_squared + last.known.norm_squared
    limit = parts - k * (G.depth + H.depth) if whole.known.rank == k else math.inf
    return whole.with_known(excess_limit=limit, domain=domain, details={"shift_cost": parts - before})


def _shift(who: str, shift: Any, G: FullyConnected, samples: Tensor | None) -> Tensor:
    """c, (k,) in the dtype of the network."""
    k, like = G.dims[-1], G.weights[0]
    if isinstance(shift, str):
        if shift != "least":
            fail(who, '`shift` must be a number, k numbers or "least"', repr(shift), "Choose one of these.")
        if samples is None:
            fail(who, '`shift="least"` needs `X`', "none", "Pass samples of the domain.")
        return (-G.trace(samples).outputs.amin(0)).clamp_min(0.0).to(like)
    c = as_tensor(who, "shift", shift)
    if c.ndim > 1 or c.numel() not in (1, k):
        fail(who, f"`shift` must be one number or {k}", f"shape {tuple(c.shape)}", "Pass one for each output of g.")
    return c.expand(k).to(like)


def _shifted(who: str, first: Construction, last: Construction, c: Tensor) -> tuple[Construction, Construction]:
    """The pair g + c and h(· − c), each with what is known about it."""
    G, H = first.network, last.network
    beta = common_bias(who, G, H) or 1.0
    bs, b_primes = biases(G), biases(H)
    bs[-1] = bs[-1] + c / beta
    b_primes[0] = b_primes[0] - weights(H)[0] @ c / beta
    up = FullyConnected.from_weights(weights(G), bs, slope=G.slope, bias=beta)
    down = FullyConnected.from_weights(weights(H), b_primes, slope=H.slope, bias=beta)
    home, offset = last.known.domain, c.cpu().double()
    moved = home if home.whole else Domain(f"z - c: {home.text}", home.columns, lambda Z: home.test(Z - offset))
    return (
        Construction(up, first.known).with_known(norm_squared=parameter_norms(up).total),
        Construction(down, last.known).with_known(norm_squared=parameter_norms(down).total, domain=moved),
    )


# ---- A-threepart, for other slopes: a ReLU network written with σ_a by doubling its hidden neurons


@cites("rank2023", "App. E, Cor. 1", ids=("A-threepart",))
def relu_to_leaky(net: FullyConnected | Construction, slope: float) -> Construction:
    """The same function with σ_a in place of ReLU: [z]_+ = (σ_a(z) + a·σ_a(−z))/(1 − a²), a ∈ (−1, 1).

    Every hidden neuron becomes the pair (z, −z). With r = (1 + a²)/(1 − a²)² the squared norm is
    2‖W_1‖² + 2‖b_1‖² for the first layer, 2r‖W_ℓ‖² + 2‖b_ℓ‖² inside and r‖W_L‖² + ‖b_L‖² for the last.

    Departs from the paper: the sign printed in App. E is minus (see docs/notes/constructions.md).

    Parameters
    ----------
    net : FullyConnected or Construction
        Of slope 0.
    slope : float
        a; 0 gives the network back.

    Notes
    -----
    Identity layers would be doubled too, at 2r ≥ 2 per dimension, although σ_a is the identity on ℝ^k_+ as
    well: convert g and h, then join them by :func:`three_part`.
    """
    a = check_number("relu_to_leaky", "slope", slope, low=-1.0, high=1.0, low_open=True)
    if a == 1.0:
        fail("relu_to_leaky", "`slope` must be in (-1, 1)", slope, "A linear network has no kinks to build with.")
    base = as_construction("relu_to_leaky", "net", net)
    N = base.network
    if N.slope != 0.0:
        fail("relu_to_leaky", "`net` must be a ReLU network", f"slope {N.slope:g}", "Convert from slope 0.")
    if a == 0.0:
        return base
    Ws, bs, norm = [], [], 0.0
    split = torch.tensor([[1.0], [-1.0]]).to(N.weights[0])
    join = torch.tensor([[1.0, a]], dtype=torch.float64).to(N.weights[0]) / (1.0 - a**2)
    growth = (1.0 + a**2) / (1.0 - a**2) ** 2
    for index, (W, b) in enumerate(zip(weights(N), biases(N))):
        first, last = index == 0, index == N.depth - 1
        square, offset = float(W.double().square().sum()), float(b.double().square().sum())
        if not first:
            W, square = torch.kron(join, W), growth * square
        if not last:
            W, b, square, offset = torch.kron(split, W), torch.cat([b, -b]), 2.0 * square, 2.0 * offset
        Ws.append(W)
        bs.append(b)
        norm += square + offset
    leaky = FullyConnected.from_weights(Ws, bs if N.bias else None, slope=a, bias=N.bias)
    limit = None if base.known.excess_limit is None else math.inf
    return Construction(leaky, base.known).with_known(norm_squared=norm, excess_limit=limit, details={})
