"""In how many dimensions the outputs of a layer vary in effect, with intervals; and the same of a fresh copy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor, nn

from isthmus._codec import Plain
from isthmus.diagnosis._calls import Call, count_samples
from isthmus.diagnosis._capture import OutputPlace, run_hooked
from isthmus.diagnosis._estimates import CAUTIOUS, FEWEST_DRAWS, Estimate, spread
from isthmus.diagnosis._observe import TOKENS, as_rows, sparse_signs, tokens_present
from isthmus.measures import two_nn

#: Points of a layer, bytes of those of all layers, and samples that they come from, at most.
POINTS, POINT_BYTES, POINT_SAMPLES = 512, 2**28, 256

#: Units from which points are embedded into fewer coordinates, and these.
WIDE, SKETCH = 4096, 1024


@dataclass(frozen=True)
class EffectiveDimension(Plain):
    """Dimensions of the outputs of a layer, positions counting as points.

    Attributes
    ----------
    participation : Estimate
        (Tr Σ)²/Tr Σ² of their covariance, freed from the bias of few samples.
    stable : Estimate
        Tr Σ/‖Σ‖.
    intrinsic : Estimate
        TwoNN: of the surface that the points lie on. The interval is that of the draw where the density is constant
        between neighbours. Beside edges, and where coordinates saturate, TwoNN sees too few: of 400 points in a cube
        of four dimensions 7 %, of six 11 %; of ten and more it is no count.
    points, samples : int
        Points that were used, and samples that they come from.
    """

    participation: Estimate
    stable: Estimate
    intrinsic: Estimate
    points: int
    samples: int


@dataclass(frozen=True, eq=False)
class Points:
    """Some rows of the outputs of a layer.

    Attributes
    ----------
    rows : Tensor (n, columns)
    owners : Tensor (n,)
        The sample that each comes from.
    columns : int or None
        Coordinates that wider rows were embedded into; None if they are as they were.
    """

    rows: Tensor
    owners: Tensor
    columns: int | None

    def thinned(self, most: int) -> Points:
        """At most so many of them, of samples that are spread evenly."""
        if len(self.rows) <= most:
            return self
        chosen = torch.arange(most) * len(self.rows) // most
        return Points(self.rows[chosen.to(self.rows.device)], self.owners[chosen], self.columns)


def points_of(
    module: nn.Module,
    batches: Iterable[Call],
    places: Mapping[str, OutputPlace],
    layouts: Mapping[str, str],
    *,
    samples: int,
    seed: int,
) -> dict[str, Points]:
    """Points of every layer among ``places``, about as many of each sample, drawn at random.

    Padding that an ``attention_mask`` marks is left out.
    """
    widths = {name: _units(place, layouts.get(name, "last")) for name, place in places.items()}
    width = sum(min(width, WIDE) for width in widths.values())
    most = max(128, min(POINTS, POINT_BYTES // max(4 * width, 1)))
    drawn = torch.Generator().manual_seed(seed)
    rows_of: dict[str, list[Tensor]] = {name: [] for name in places}
    owners_of: dict[str, list[Tensor]] = {name: [] for name in places}
    present: Tensor | None = None
    start = 0

    def visit(name: str, output: Tensor, number: int) -> None:
        place = places[name]
        if number or not output.is_floating_point():
            return
        rows, note = as_rows(output.detach(), layouts.get(name, "last"))
        owners = start + _owners(output, place, layouts.get(name, "last"))
        each = max(1, round(most / samples))
        if present is not None and note == TOKENS and output.ndim == 3 and output.shape[:2] == present.shape:
            kept = present.flatten().to(rows.device)
            rows, owners = rows[kept], owners[kept.cpu()]
        # In random order, and stably by sample: the first few of each sample are a draw from it.
        order = torch.randperm(len(rows), generator=drawn)
        order = order[owners[order].sort(stable=True).indices]
        _, counts = owners[order].unique_consecutive(return_counts=True)
        firsts = counts.cumsum(0) - counts
        nth = torch.arange(len(order)) - firsts.repeat_interleave(counts)
        order = order[nth < each]
        rows = rows[order.to(rows.device)]
        if rows.shape[1] > WIDE:
            embedding = sparse_signs(rows.shape[1], SKETCH, seed)
            rows = torch.sparse.mm(embedding, rows.to("cpu", torch.float64).mT.contiguous()).mT
        rows_of[name].append(rows.to("cpu", copy=True))
        owners_of[name].append(owners[order])

    def counted() -> Iterable[Call]:
        nonlocal present, start
        for args, kwargs in batches:
            present = tokens_present(kwargs)
            yield args, kwargs
            start += count_samples((args, kwargs))

    run_hooked(module, counted(), list(places), visit)
    found = {}
    for name, parts in rows_of.items():
        if parts:
            columns = SKETCH if widths[name] > WIDE else None
            found[name] = Points(torch.cat(parts), torch.cat(owners_of[name]), columns)
    return found


def _units(place: OutputPlace, layout: str) -> int:
    if not place.shape:
        return 1
    return place.shape[0] if layout == "channels-first" else place.shape[-1]


def _owners(output: Tensor, place: OutputPlace, layout: str) -> Tensor:
    """The sample of each row that :func:`as_rows` makes; each row is its own where that is not known."""
    shape = list(output.shape)
    if output.ndim > 1:
        del shape[1 if layout == "channels-first" and output.ndim > 2 else -1]
    rows = math.prod(shape)
    axis = place.batch_axis
    if axis is None or axis >= len(shape) or shape[axis] == 0:
        return torch.arange(rows)
    along = torch.arange(shape[axis]) // place.per_sample
    return along.reshape([-1 if at == axis else 1 for at in range(len(shape))]).expand(shape).reshape(-1)


# ---- Estimates from points that come in groups: those of one sample are not independent


def effective_dimension(points: Points) -> EffectiveDimension | None:
    """The three dimensions of a layer; None where its points are not finite, do not vary or are of one sample.

    Notes
    -----
    With the centred points x_i, Tr Σ² is the mean of (x_iᵀx_j)² over pairs of different samples: that has no bias from
    few samples, however alike the points of one sample are. The interval is that of a logarithm, by the influence of
    each sample and Student's t. The top eigenvalue of a sample covariance is too large on average, and what the top
    direction of one half of the samples has in the other half too small: the interval of Tr Σ/‖Σ‖ holds both.
    """
    X = points.rows.double()
    if len(X) < 3 or not bool(torch.isfinite(X).all()):
        return None
    # Of samples in random order, as inputs may be sorted: halves of them are compared.
    _, owners = points.owners.unique(return_inverse=True)
    count = int(owners.max()) + 1
    size = float((X - X.mean(0)).abs().max())
    if count < 4 or not size > 1e-12 * float(X.abs().max()):
        return None
    X = (X - X.mean(0)) / size
    participation = _participation(X, owners, count, points.columns)
    return EffectiveDimension(participation, _stable(X, owners, count), _intrinsic(X, count), len(X), count)


def _sums(values: Tensor, owners: Tensor, count: int) -> Tensor:
    """Sum of the values of each sample, divided by the mean number of its points."""
    return torch.zeros(count, dtype=values.dtype).index_add_(0, owners, values) * (count / len(owners))


def _participation(X: Tensor, owners: Tensor, count: int, columns: int | None) -> Estimate:
    """(Tr Σ)²/Tr Σ² from pairs of points of different samples."""
    K = X @ X.mT
    apart = (owners[:, None] != owners[None, :]).to(K.dtype)
    pairs = apart.sum(1)
    # Centring on the mean of the points makes those of different samples differ by a little less than they do.
    below = float((K * apart).sum() / pairs.sum())
    each = ((K - below).square() * apart).sum(1) / pairs
    squares, trace = float((each * pairs).sum() / pairs.sum()), float(K.diagonal().mean()) - below
    # And their covariance is Σ − Σ_m/C, with that of the means of samples: Tr ΣΣ_m from pairs again.
    means = torch.zeros(count, len(X), dtype=K.dtype).index_add_(0, owners, K) / owners.bincount()[:, None]
    others = (torch.arange(count)[:, None] != owners[None, :]).to(K.dtype)
    mixed = float(((means - below) * others).square().sum() / others.sum())
    squares /= max(1.0 - 2.0 * mixed / (count * squares), 0.5)
    method = f"{len(X)} points of {count} samples"
    if not (squares > 0 and trace > 0):
        return Estimate(math.nan, math.nan, math.nan, method)
    inverse = squares / trace**2
    influence = 2.0 * (each / each.mean() - 1.0) - 2.0 * ((K.diagonal() - below) / trace - 1.0)
    per_sample = _sums(influence, owners, count)
    error = spread(per_sample)
    # An embedding into m coordinates adds 1/m to the inverse.
    added = 0.0 if columns is None else 1.0 / columns
    low, value, high = (
        1.0 / (inverse * math.exp(e) - added) if not inverse * math.exp(e) <= added else math.inf
        for e in (error, 0.0, -error)
    )
    most = X.shape[1] if columns is None else math.inf
    return _within(value, low, high, most, method)


def _within(value: float, low: float, high: float, most: float, method: str) -> Estimate:
    """A dimension within 1 and the units that there are."""
    value, low, high = (one if math.isnan(one) else min(max(one, 1.0), float(most)) for one in (value, low, high))
    return Estimate(value, low, high, method)


def _stable(X: Tensor, owners: Tensor, count: int) -> Estimate:
    """Tr Σ/‖Σ‖ by the top direction of one half of the samples in the other, and by that of all of them."""
    method = f"{len(X)} points of {count} samples, in halves"
    trace = X.square().sum(1)
    ratios, per_sample = [], []
    halves = torch.randperm(count, generator=torch.Generator().manual_seed(0))[owners] % 2 == 0
    for chosen, others in ((halves, ~halves), (~halves, halves), (halves | True, halves | True)):
        direction = _top(X[chosen])
        along = (X[others] @ direction).square()
        ratio = max(float(along.mean() / trace[others].mean().clamp_min(1e-300)), 1e-12)
        influence = along / along.mean().clamp_min(1e-300) - trace[others] / trace[others].mean().clamp_min(1e-300)
        _, groups = owners[others].unique(return_inverse=True)
        per_sample.append(_sums(influence, groups, int(groups.max()) + 1))
        ratios.append(ratio)
    # Both halves together have as many samples as all.
    error = max(spread(torch.cat(per_sample[:2])), spread(per_sample[2])) if count >= FEWEST_DRAWS else math.nan
    below, above = math.sqrt(ratios[0] * ratios[1]), ratios[2]
    value = 1.0 / math.sqrt(below * above)
    low, high = math.exp(-error) / max(above, below), math.exp(error) / min(above, below)
    return _within(value, low, high, X.shape[1], method)


def _top(X: Tensor) -> Tensor:
    """Leading right singular vector of centred rows."""
    X = X - X.mean(0)
    if X.shape[0] >= X.shape[1]:
        return torch.linalg.eigh(X.mT @ X).eigenvectors[:, -1]
    direction = X.mT @ torch.linalg.eigh(X @ X.mT).eigenvectors[:, -1]
    return direction / direction.norm()


def _intrinsic(X: Tensor, count: int) -> Estimate:
    """TwoNN; points of one sample count as one in the interval.

    Where the density is constant r/d̂ is a sum of r exponentials over d, 2r·d/d̂ ~ χ²_2r; with r counted as fewer, as the
    ratios of neighbours are not independent (:class:`isthmus.measures.TwoNN`).
    """
    found = two_nn(X)
    used = min(count, found.points)
    method = f"TwoNN of {found.points} points, {found.state}"
    if math.isnan(found.dimension) or used < FEWEST_DRAWS:
        return Estimate(found.dimension, math.nan, math.nan, method)
    freedom = 2.0 * (found.dimension / found.standard_error) ** 2 * used / found.points
    low, high = chi2.ppf([(1 - CAUTIOUS) / 2, (1 + CAUTIOUS) / 2], freedom) / freedom
    return Estimate(found.dimension, found.dimension * float(low), found.dimension * float(high), method)
