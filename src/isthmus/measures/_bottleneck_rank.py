"""Q-bnrank: the bottleneck rank of a trained network from several kinds of evidence."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus._cite import cites
from isthmus.measures._dimension import FLAT, flattening_loss
from isthmus.measures._gaps import GapRule, Reading, read_spectrum
from isthmus.measures._jacobian import jacobian_of_trace
from isthmus.measures._norms import parameter_norms
from isthmus.measures._spectra import representation_spectra, weight_spectra
from isthmus.trace import Trace

#: Jacobians are read at this many samples at most, evenly spaced: enough for a maximum over linear regions.
JACOBIAN_SAMPLES = 64


@dataclass(frozen=True)
class RankEvidence:
    """One kind of evidence.

    Attributes
    ----------
    kind : str
        ``"weights"``, ``"representations"``, ``"jacobian"`` or ``"norm"``.
    rank : int or None
        None when this kind gives no rank.
    status : str
        ``"clear"``, ``"unclear"``, ``"none"`` (no narrowing) or ``"number"`` (a number, not a rank).
    number : float
        The number behind it: the gap s_k/s_{k+1}, or ‖θ‖²/L.
    tolerance : float
        What the number was held against.
    layers : tuple of int
        Layers ℓ (from 1) where the rank is attained; empty for the Jacobian and the norm.
    explanation : str
    """

    kind: str
    rank: int | None
    status: str
    number: float
    tolerance: float
    layers: tuple[int, ...]
    explanation: str


@dataclass(frozen=True)
class BottleneckRank:
    """The rank, or why there is none.

    Attributes
    ----------
    verdict : str
        ``"determined"``, ``"none"`` (no layer is narrower than inputs and outputs force) or
        ``"undetermined"``.
    rank : int or None
        Given only when determined.
    evidence : tuple of RankEvidence
    reasons : tuple of str
    """

    verdict: str
    rank: int | None
    evidence: tuple[RankEvidence, ...]
    reasons: tuple[str, ...]

    def __getitem__(self, kind: str) -> RankEvidence:
        return {e.kind: e for e in self.evidence}[kind]


@cites("bottleneck2023", "§4", ids=("Q-bnrank",))
@torch.no_grad()
def bottleneck_rank(trace: Trace) -> BottleneckRank:
    """Bottleneck rank of a traced network: weights and centred representations must agree, the Jacobian not
    exceed.

    Weights (bottleneck2023, Thm. 6: k singular values near 1, the others small) and centred representations
    (rank2023, Fig. 1A) each give the smallest rank that stands out clearly at some layer. The rank is
    determined when they agree, or when the weights have one more direction and it is constant over the data
    (it stands in for a bias). The Jacobian may have smaller rank (a circle: 1 against 2) but not a larger
    one. ‖θ‖²/L is reported as a number: it tends to the rank from above with depth, and is rarely near it at
    finite depth.

    Parameters
    ----------
    trace : Trace
        Of a trained network on data; a few hundred samples suffice.
    """
    limit = min(trace.dims[0], trace.dims[-1])
    eps = trace.source_eps
    weights = narrowest("weights", weight_spectra(trace), limit, eps)
    floors = [_rounding(trace, A) for A in trace.preactivations]
    centred = narrowest("representations", representation_spectra(trace), limit, eps * trace.depth, floors)
    local = _jacobian_evidence(trace)
    norms = parameter_norms(trace)
    norm = RankEvidence(
        "norm",
        None,
        "number",
        norms.per_depth,
        0.0,
        (),
        f"‖θ‖²/L = {norms.per_depth:.3g}; narrowest layer ‖W_ℓ‖² = {float(norms.weights.min()):.3g}",
    )
    verdict, rank, reasons = _decide(trace, weights, centred, local)
    return BottleneckRank(verdict, rank, (weights, centred, local, norm), tuple(reasons))


def narrowest(
    kind: str,
    spectra: list[Tensor],
    limit: int,
    eps: float,
    floors: list[float] | None = None,
    *,
    forced_everywhere: bool = False,
) -> RankEvidence:
    """The smallest rank below ``limit`` that the layers' spectra show clearly; the first and last are ends.

    One layer suffices if the drop is exact (a narrow layer, singular values at rounding). Otherwise a drop is
    held to be chance unless a quarter of the layers share it: the bottleneck takes up most layers
    (bottleneck2023, Thm. 6), whereas each layer of a random network drops somewhere else. ``forced_everywhere``: no
    layer can have more than ``limit`` (the data have no more), so that exactly as many are no finding.
    """
    depth = len(spectra)
    grounds = floors or [0.0] * depth
    readings = [read_spectrum(s, eps=eps, floor=f) for s, f in zip(spectra, grounds)]

    def narrow(ell: int, r: Reading) -> bool:
        # The first and last layer have rank ≤ limit whatever the network does; so has every layer if the
        # architecture is no wider. Elsewhere exactly `limit` dimensions are already a finding.
        forced = forced_everywhere or ell in (1, depth) or r.status == "full"
        return r.count < limit or (r.count == limit and not forced)

    found = {ell: r for ell, r in enumerate(readings, start=1) if narrow(ell, r)}
    votes = Counter(r.count for r in found.values())
    needed = 1 if depth < 4 else max(2, math.ceil(depth / 4))
    shared = {ell: r for ell, r in found.items() if votes[r.count] >= min(depth, max(2, needed))}
    clear = {ell: r for ell, r in found.items() if r.status != "unclear" and (r.exact or votes[r.count] >= needed)}
    if clear:
        rank = min(r.count for r in clear.values())
        layers = tuple(ell for ell, r in clear.items() if r.count == rank)
        best = max((clear[ell] for ell in layers), key=lambda r: r.gap)
        return RankEvidence(kind, rank, "clear", best.gap, GapRule.clear, layers, _say(kind, layers, best))
    # Drops at different places in most layers say that something is going on, though not what.
    if 2 * len(found) > depth:
        shared = found
    if shared:
        ell, r = max(shared.items(), key=lambda item: item[1].gap)
        return RankEvidence(kind, None, "unclear", r.gap, GapRule.clear, (ell,), _say(kind, (ell,), r))
    largest = max(readings, key=lambda r: r.gap)
    return RankEvidence(kind, None, "none", largest.gap, GapRule.unclear, (), f"{kind}: no layer narrower than {limit}")


def _say(kind: str, layers: tuple[int, ...], r: Reading) -> str:
    where = f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} layers, {layers[0]} to {layers[-1]}"
    if r.status == "full":
        return f"{kind}: {where} of width {r.count}"
    if r.status == "zero":
        return f"{kind}: zero at {where}"
    drop = f"s_{r.count}/s_1 = {r.kept:.2g}, s_{r.count + 1}/s_1 = {r.next:.2g} at {where}"
    return f"{kind}: {drop}" + ("" if r.status == "clear" else " (not a clear drop)")


def _jacobian_evidence(trace: Trace) -> RankEvidence:
    chosen = torch.linspace(0, trace.samples - 1, min(trace.samples, JACOBIAN_SAMPLES)).long()
    part = replace(
        trace,
        preactivations=tuple(z[chosen] for z in trace.preactivations),
        activations=tuple(a[chosen] for a in trace.activations),
    )
    J = jacobian_of_trace(part)
    # Only along the data: a constant input column stands in for a bias, and f there is nobody's concern.
    _, s, Vh = torch.linalg.svd(torch.linalg.qr(trace.inputs - trace.inputs.mean(0), mode="r").R)
    explored = int((s > _rounding(trace, trace.inputs)).sum())
    if 0 < explored < trace.dims[0]:
        J = J @ Vh[:explored].mT
    spectra = torch.linalg.svdvals(J)
    best, share = read_samples(spectra, trace.source_eps * trace.depth)
    if best.status == "unclear":
        said = "jacobian: no clear drop at most samples"
        return RankEvidence("jacobian", None, "unclear", best.gap, GapRule.clear, (), said)
    status = "none" if best.count == min(trace.dims[0], trace.dims[-1]) else "clear"
    return RankEvidence(
        "jacobian",
        best.count,
        status,
        best.gap,
        GapRule.clear,
        (),
        f"jacobian: rank {best.count} at {share:.0%} of {len(spectra)} samples (the maximum counts)",
    )


def read_samples(spectra: Tensor, eps: float) -> tuple[Reading, float]:
    """One reading of Jacobian spectra at many samples (N, r), and the share of the samples that have its count.

    The maximum over x, but of what a tenth of the samples show: one misread spectrum must not decide. Unclear if most
    are.
    """
    readings = [read_spectrum(s, eps=eps) for s in spectra]
    settled = [r for r in readings if r.status != "unclear"]
    if 2 * len(settled) < len(readings):
        gap = float(torch.tensor([r.gap for r in readings]).median())
        return replace(max(readings, key=lambda r: r.gap), status="unclear", gap=gap), 0.0
    counts = sorted(r.count for r in settled)
    rank = counts[-math.ceil(len(counts) / 10)]
    best = max((r for r in settled if r.count == rank), key=lambda r: r.gap)
    return best, counts.count(rank) / len(readings)


def _rounding(trace: Trace, A: Tensor) -> float:
    """What rounding leaves of representations after centring: relative to their size *before* it."""
    return 4.0 * trace.source_eps * trace.depth * float(A.double().norm()) / math.sqrt(len(A))


def _decide(
    trace: Trace, weights: RankEvidence, centred: RankEvidence, local: RankEvidence
) -> tuple[str, int | None, list[str]]:
    reasons = [weights.explanation, centred.explanation, local.explanation]
    if weights.status == "none":
        few_layers = 3 * len(centred.layers) < trace.depth
        # Representations of full rank `limit`, or of the rank of the data, were not narrowed by the network.
        wide = min(_data_rank(trace), trace.dims[0], trace.dims[-1])
        if centred.rank is None or centred.rank >= wide or few_layers:
            return "none", None, ["no layer's weights are narrower than inputs and outputs force", *reasons]
    if weights.rank is None or centred.rank is None:
        return "undetermined", None, ["weights and representations do not both show a clear drop", *reasons]
    rank = centred.rank
    if weights.rank != rank:
        if weights.rank != rank + 1 or not _one_direction_is_constant(trace, weights, rank):
            return "undetermined", None, [f"weights say {weights.rank}, representations {rank}", *reasons]
        reasons.insert(0, "one weight direction is constant over the data: it stands in for a bias")
    if local.rank is not None and local.rank > rank:
        return "undetermined", None, [f"the Jacobian has rank {local.rank} > {rank}", *reasons]
    if local.rank is not None and local.rank < rank:
        Z = trace.preactivations[centred.layers[len(centred.layers) // 2] - 1]
        doubt = curved_only(Z, rank, local.rank)
        if doubt:
            return "undetermined", None, [doubt, *reasons]
        reasons.insert(0, f"the Jacobian has rank {local.rank} < {rank}: the surface closes up, as a circle does")
    return "determined", rank, reasons


def curved_only(Z: Tensor, rank: int, local: int) -> str:
    """Why ``rank`` linear dimensions may be more than needed: the cloud unrolls into fewer. Empty if it does not.

    A representation that lies in k dimensions, while the Jacobian has rank j < k, is a curved surface. Closed (a
    circle) it needs k coordinates; open (an arc, a bent sheet) it does with fewer, and the function's rank is smaller.
    """
    centred = Z - Z.mean(0)
    loss = flattening_loss(centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:rank].mT, max(rank - 1, 1))
    if not loss < FLAT:
        return ""
    return (
        f"{rank - 1} or fewer may do: the Jacobian has rank {local}, and the {rank} dimensions hold a curved surface "
        f"that unrolls into {rank - 1}"
    )


def _data_rank(trace: Trace) -> int:
    """Dimension of the affine span of the inputs; their number of columns when it is not clearly smaller."""
    (s,) = representation_spectra(replace(trace, activations=trace.activations[:1]), kind="activations")
    reading = read_spectrum(s, eps=trace.source_eps, floor=_rounding(trace, trace.inputs))
    return trace.dims[0] if reading.status == "unclear" else reading.count


def _one_direction_is_constant(trace: Trace, weights: RankEvidence, rank: int) -> bool:
    """Whether uncentred representations have one direction more than centred ones where the weights do."""
    eps = trace.source_eps * trace.depth
    for ell in weights.layers:
        A = trace.preactivations[ell - 1]
        layer = replace(trace, preactivations=(A,))
        (whole,) = representation_spectra(layer, centered=False)
        (centred,) = representation_spectra(layer)
        if (
            read_spectrum(whole, eps=eps).count == rank + 1
            and read_spectrum(centred, eps=eps, floor=_rounding(trace, A)).count == rank
        ):
            return True
    return False
