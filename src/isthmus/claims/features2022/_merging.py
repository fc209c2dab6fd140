"""Shallow networks between scalars: neurons merge until at most 4N are left (features2022, Prop. 15)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim, rounding
from isthmus.claims._evidence import gaussian_inputs, seeded
from isthmus.compression._on_data import merge_one_dimensional
from isthmus.networks import FullyConnected
from isthmus.objective import cost

#: A cusp this near to an input, relative to the spread of the inputs, lies in no gap.
AT_AN_INPUT = 1e-9

#: Outputs are the same up to this many times the rounding of the network.
SAME = 10.0


TOGETHER = "merged neurons have cusps between the same inputs"

ALIKE = "merged neurons agree in the signs of a and c"


def many_neurons_between_scalars() -> Subject:
    """200 random neurons on 6 inputs, with targets and a ridge."""
    source = seeded(15)
    c, d, a = torch.randn(3, 200, dtype=torch.float64, generator=source)
    Ws, bs = [c[:, None], a[None, :] / 14.0], [d, torch.ones(1, dtype=torch.float64)]
    X = gaussian_inputs(6, 1, 16)
    return Subject(FullyConnected.from_weights(Ws, bs), X, X.abs(), 0.01)


@claim(
    "C-feat-8",
    "Neurons with cusps between the same neighbouring inputs and equal signs of a and c merge, ãc̃ = Σac, ãd̃ = Σad, "
    "ã² = c̃² + d̃²: same outputs, no larger norm, and at most 4N neurons in the end, so that wider ones do no better",
    paper="features2022",
    where="Prop. 15 and Prop. 24",
    hypotheses=("L = 2", "n_0 = n_2 = 1", "ReLU", TOGETHER, ALIKE),
    sample=many_neurons_between_scalars,
    relation="≤",
)
def merging_between_scalars(check: Check, subject: Subject) -> None:
    """Any network of depth 2 between scalars, merged: f(X) as before, ‖θ‖² (and the loss) not larger, n_1 ≤ 4N.

    Twice, by different rules: the printed one, gap by gap of the inputs, and that of
    :func:`~isthmus.compression._on_data.merge_one_dimensional`. ``known["merge"]`` are groups of neurons to be
    merged instead of those that a gap and signs make.
    """
    net: FullyConnected = subject.net
    check.assume("L = 2", net.depth == 2, f"L = {net.depth}")
    check.assume("n_0 = n_2 = 1", net.dims[0] == net.dims[-1] == 1, f"{net.dims[0]} and {net.dims[-1]}")
    check.assume("ReLU", net.slope == 0.0, f"slope {net.slope:g}")
    check.require()
    W, V = (M.detach().double() for M in net.Ws)
    c, a = W[:, 0], V[0]
    d = net.bs[0].detach().double() if net.bs else torch.zeros_like(c)
    x = subject.X[:, 0]
    gaps = _gaps(c, net.bias * d, x)
    groups = subject.known.get("merge")
    groups = _same(gaps, c, a) if groups is None else [torch.as_tensor(list(group)) for group in groups]
    check.assume(TOGETHER, _agree(groups, gaps), f"{len(groups)} groups")
    check.assume(ALIKE, signs_agree(groups, c, a), f"{len(groups)} groups")
    check.require()
    small = {
        "the printed rule": _merge_groups(c, d, a, groups),
        "by active inputs": merge_one_dimensional(c, d, a, x, bias=net.bias),
    }
    _judge(check, subject, (c, d, a), small)


#: c, d and a of all neurons.
Neurons = tuple[Tensor, Tensor, Tensor]


def _judge(check: Check, subject: Subject, before: Neurons, small: dict[str, Neurons]) -> None:
    net, (c, d, a) = subject.net, before
    x, last = subject.X[:, 0], net.bs[1].detach().double() if net.bs else torch.zeros(1, dtype=torch.float64)

    def outputs(neurons: Neurons) -> Tensor:
        into, shift, out = neurons
        return out @ torch.relu(torch.outer(into, x) + net.bias * shift[:, None]) + net.bias * last

    def norm(neurons: Neurons) -> float:
        return sum(float(v.square().sum()) for v in (*neurons, last))

    first, rules = outputs(before), list(small)
    # What is summed, not the sum: contributions cancel.
    scale = float(outputs((c, d, a.abs())).abs().max() + 1e-300)
    check.vanish(
        [float((outputs(small[rule]) - first).abs().max()) / scale for rule in rules],
        tolerance=SAME * rounding(net),
        part="same outputs",
        where=rules,
    )
    places = [(norm(small[rule]), norm(before), f"{rule}: ‖θ‖²") for rule in rules]
    if subject.Y is not None and subject.ridge is not None and subject.Y.shape == subject.X.shape:
        Y, ridge = subject.Y.double(), subject.ridge
        whole = [
            float(cost(outputs(n)[:, None], Y, "mse")) + ridge * norm(n) for n in (before, *(small[r] for r in rules))
        ]
        # What outputs that are the same may change the cost by: of an interpolated one that is all there is.
        off, misfit = SAME * rounding(net) * scale, float(cost(first[:, None], Y, "mse")) ** 0.5
        most = whole[0] + off * (2.0 * misfit + off)
        places += [(value, most, f"{rule}: the loss") for value, rule in zip(whole[1:], rules)]
    norms = [norm(before), *(norm(small[rule]) for rule in rules)]
    details = {"‖θ‖² before, and after each rule": norms}
    check.each(places, "≤", tolerance=1e-11, part="no larger norm", details=details)
    count, most = float(len(small["by active inputs"][0])), 4.0 * len(x.unique())
    check.compare(
        count,
        "≤",
        most,
        tolerance=0.0,
        part="neurons that are left, and 4N",
        details={"neurons before, after, and 4N": [float(len(c)), count, most]},
    )


def _gaps(c: Tensor, shift: Tensor, x: Tensor) -> Tensor:
    """Index of the gap of the inputs that each cusp −βd/c lies in; those in none have negative ones of their own."""
    points = x.unique()
    spread = float(points[-1] - points[0]) + float(points.abs().max())
    cusps = torch.where(c != 0, -shift / torch.where(c != 0, c, 1.0), torch.inf)
    index = torch.searchsorted(points, cusps)
    beside = (cusps[:, None] - points[None, :]).abs().amin(1)
    off = (beside > AT_AN_INPUT * spread) & torch.isfinite(cusps)
    return torch.where(off, index, -1 - torch.arange(len(c)))


def _same(gaps: Tensor, c: Tensor, a: Tensor) -> list[Tensor]:
    """Neurons of one gap with one sign of a and of c, where there are several."""
    key = torch.stack([gaps, c.sign().long(), a.sign().long()], 1)
    _, group, counts = key.unique(dim=0, return_inverse=True, return_counts=True)
    heard = a != 0
    return [torch.nonzero((group == i) & heard)[:, 0] for i in range(len(counts)) if int(counts[i]) > 1]


def _agree(groups: Sequence[Tensor], *values: Tensor) -> bool:
    return all(bool((value[group] == value[group[0]]).all()) for group in groups if len(group) for value in values)


def signs_agree(groups: Sequence[Tensor], c: Tensor, a: Tensor) -> bool:
    """Whether within each group all signs of a, and all of c, are equal."""
    return _agree(groups, c.sign(), a.sign())


def _merge_groups(c: Tensor, d: Tensor, a: Tensor, groups: Sequence[Tensor]) -> Neurons:
    """ãc̃ = Σac, ãd̃ = Σad, ã² = c̃² + d̃² for each group; the other neurons as they are."""
    alone = torch.ones(len(c), dtype=torch.bool)
    merged = []
    for group in groups:
        if not len(group):
            continue
        alone[group] = False
        ac, ad = float((a[group] * c[group]).sum()), float((a[group] * d[group]).sum())
        out = (ac**2 + ad**2) ** 0.25 * float(a[group[0]].sign())
        if out != 0.0:
            merged.append((ac / out, ad / out, out))
    new = torch.tensor(merged, dtype=torch.float64).reshape(-1, 3)
    return torch.cat([c[alone], new[:, 0]]), torch.cat([d[alone], new[:, 1]]), torch.cat([a[alone], new[:, 2]])
