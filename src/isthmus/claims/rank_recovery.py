"""The true rank against rank 1: what f* costs, and from how many samples on it is cheaper (rank2023 Prop. 5)."""

from __future__ import annotations

import math

from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, rounding
from isthmus.claims.evidence import fit_exponent, lacking, some_rows
from isthmus.claims.rank_one_fits import PATH_POINTS, mean_squares, ridge_given, whole_loss
from isthmus.claims.rank_samples import linear_global_minimum, plane_to_learn
from isthmus.constructions import Construction, rank_one
from isthmus.measures import parameter_norms
from isthmus.measures.tsp import diameter, shortest_path

#: Relative difference up to which outputs are the targets.
SAME = 1e-8


@claim(
    "C-rank-6",
    "Minimisers of data y = f*(x) have ‖Ŵ‖²/L ≤ k + C/L, k = Rank_BN(f*) and C a constant of f* alone",
    paper="rank2023",
    where="Prop. 5 and Prop. 11",
    hypotheses=("ridge > 0 given", "mean squares", "f* written at depth L", "y_i = f*(x_i)", "loss ≤ that of f*"),
    sample=linear_global_minimum,
)
def no_more_than_the_truth(subject: Subject) -> Verdict:
    """‖Ŵ‖²/L ≤ k + C/L with C = ‖θ*‖² − kL of f* as a network of depth L, ``known["truth"]`` (a Construction).

    Of the global minimum the proof takes only that its loss is not above that of f*, which is what is checked.
    ``known["C"]`` replaces the constant.
    """
    truth, L = subject.known.get("truth"), subject.net.depth
    if truth is None:
        return lacking("C-rank-6", "≤", "needs f* as a construction of this depth: known['truth']")
    hypotheses = [
        ridge_given(subject),
        mean_squares(subject),
        Hypothesis.of("f* written at depth L", truth.depth == L, f"depths {truth.depth} and {L}"),
    ]
    if any(h.status != "met" for h in hypotheses) or subject.Y is None or subject.ridge is None:
        rest = [Hypothesis.of(name, None, "not looked at") for name in ("y_i = f*(x_i)", "loss ≤ that of f*")]
        return not_applicable("C-rank-6", "≤", [*hypotheses, *rest])
    total = parameter_norms(subject.net).total
    own = whole_loss(subject.net, subject.X, subject.Y, subject.ridge)
    best = whole_loss(truth.network, subject.X, subject.Y, subject.ridge)
    hypotheses += [
        _reproduces(truth, subject.X, subject.Y),
        Hypothesis.of("loss ≤ that of f*", own <= best * (1 + 1e-9), f"{own:.6g} and {best:.6g}"),
    ]
    k, C = truth.known.rank, float(subject.known.get("C", truth.excess))
    return compare(
        "C-rank-6",
        total / L,
        "≤",
        k + C / L,
        tolerance=rounding(subject.net) + 1e-9,
        hypotheses=hypotheses,
        where=f"k = {k}, C = {C:.4g}",
        details={"‖Ŵ‖²/L": [total / L], "‖θ*‖²/L": [parameter_norms(truth.network).per_depth]},
    )


def _reproduces(truth: Construction, X: Tensor, Y: Tensor) -> Hypothesis:
    gap = float((truth.network.trace(X).outputs - Y).abs().max()) / max(float(Y.abs().max()), 1e-300)
    return Hypothesis.of("y_i = f*(x_i)", gap <= SAME, f"relative difference {gap:.2g}")


@claim(
    "C-rank-14",
    "For N > ((k+C/L)/c)^(kL/(2k−2)) the truth of rank k costs less than any fit of rank 1, whose R1 ≥ 2 log(TSP/diam)",
    paper="rank2023",
    where="After Prop. 5; bottleneck2023 §3.1",
    hypotheses=("f* of rank k > 1 as a network", "y_i = f*(x_i)", "independent inputs", "N above the threshold"),
    sample=plane_to_learn,
    rate=True,
)
def regime_of_recovery(subject: Subject) -> Verdict:
    """‖θ*‖²/L ≤ (TSP/diam)^{2/L}, the least ‖W‖²/L of rank 1; and C_N ≥ 2 log(TSP/diam) for actual fits, over N.

    C = ‖θ*‖² − kL is that of ``known["truth"]``; c is the largest with (TSP/diam)^{2/L} ≥ c·N^{(2/L)(1−1/k)} for the
    data and for an eighth, a quarter and half of it, or ``known["c"]``: estimated, so that the threshold marks a
    regime and no bound.
    """
    truth = subject.known.get("truth")
    if truth is None or subject.known.get("independent") is None:
        reason = "needs f* as a construction, and whether inputs are i.i.d.: known['truth'], known['independent']"
        return lacking("C-rank-14", "≤", reason)
    k, L = truth.known.rank, truth.depth
    X = subject.X[some_rows(subject.X, PATH_POINTS)]
    Y = truth.network.trace(X).outputs
    sizes = [len(X) // 8, len(X) // 4, len(X) // 2, len(X)]
    hypotheses = [
        Hypothesis.of("f* of rank k > 1 as a network", k > 1, f"k = {k}"),
        Hypothesis.of("y_i = f*(x_i)", True, "computed")
        if subject.Y is None
        else _reproduces(truth, subject.X, subject.Y),
        Hypothesis.of("independent inputs", bool(subject.known["independent"])),
    ]
    if any(h.status != "met" for h in hypotheses) or sizes[0] < 2:
        rest = Hypothesis.of("N above the threshold", None, f"{len(X)} samples")
        return not_applicable("C-rank-14", "≤", [*hypotheses, rest])
    across = max(diameter(X), 1e-300)
    need = [shortest_path(Y[:n]).value / across for n in sizes]
    if min(need) <= 0:
        rest = Hypothesis.of("N above the threshold", None, "outputs coincide")
        return not_applicable("C-rank-14", "≤", [*hypotheses, rest])
    power = (2 / L) * (1 - 1 / k)
    c = float(subject.known.get("c", min(r ** (2 / L) / n**power for r, n in zip(need, sizes))))
    cost_of_truth = parameter_norms(truth.network).per_depth
    threshold = (cost_of_truth / c) ** (1 / power)
    hypotheses.append(Hypothesis.of("N above the threshold", len(X) > threshold, f"{len(X)} and {threshold:.4g}"))
    if hypotheses[-1].status != "met":
        return not_applicable("C-rank-14", "≤", hypotheses)
    constants = [rank_one(X[:n], Y[:n], max(L, 3)).known.details["norm_constant"] for n in sizes]
    growth = fit_exponent(sizes, need)
    return compare(
        "C-rank-14",
        [cost_of_truth, *(2 * math.log(r) for r in need)],
        "≤",
        [need[-1] ** (2 / L), *constants],
        tolerance=rounding(truth.network),
        hypotheses=hypotheses,
        where=lambda i: f"norms over L, N = {len(X)}" if i == 0 else f"R1 of rank 1, N = {sizes[i - 1]}",
        details={
            "N": [float(n) for n in sizes],
            "C_N of a fit of rank 1": constants,
            "c and threshold": [c, threshold],
            "2(1−1/k) and twice the exponent of TSP/diam, with its interval": [
                2 * (1 - 1 / k),
                *(2 * e for e in growth.numbers),
            ],
        },
    )
