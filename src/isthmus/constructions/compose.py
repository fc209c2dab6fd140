"""A-threepart, its parts: composition, sum in parallel, and identity layers, with their exact norms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus._checks import check_choice, check_integer, fail
from isthmus._cite import cites
from isthmus.constructions.construction import (
    Construction,
    Domain,
    Known,
    as_construction,
    biases,
    common_bias,
    frozen_copy,
    weights,
    where_outputs_nonnegative,
)
from isthmus.networks import FullyConnected


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
