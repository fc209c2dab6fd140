"""What is said where no bottleneck is found: effective dimensions layer by layer, beside those of a fresh copy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from isthmus.diagnosis._calls import Call, count_samples, take
from isthmus.diagnosis._capture import OutputPlace
from isthmus.diagnosis._effective import POINT_SAMPLES, EffectiveDimension, Points, effective_dimension, points_of
from isthmus.diagnosis._effort import Effort
from isthmus.diagnosis._fresh import fresh_copy
from isthmus.diagnosis._inputs import Batches
from isthmus.diagnosis._projected import Factor, Held, Narrowest, directions_of, rank_of
from isthmus.diagnosis._result import LayerDiagnosis

#: Samples on which the outputs with a projected layer are compared, and bytes of their outputs, at most.
HELD, HELD_BYTES = 16, 2**27

#: Share of what is left of the budget that each part may take.
SHARES = {"effective dimensions": 0.4, "fresh copy": 0.5, "factors": 0.5}

#: Points of a layer that it is measured on before there is time for all.
FEW_POINTS = 128

#: Seconds that a layer's estimates are expected to take.
SECONDS_EACH = 0.1


@dataclass(frozen=True, eq=False)
class Subject:
    """A module that runs, what it runs on, where its layers are, and what a forward takes.

    Attributes
    ----------
    each : int
        Samples that fit into one forward.
    one : float
        Seconds of a forward for each sample.
    """

    run: nn.Module
    batches: Batches
    few: Call
    places: Mapping[str, OutputPlace]
    layouts: Mapping[str, str]
    each: int
    one: float
    seed: int

    def pieces(self, samples: int) -> Iterator[Call]:
        """So many samples, as far as there are."""
        return self.batches.pieces(self.each, most=samples)

    def points(self, module: nn.Module, samples: int) -> dict[str, Points]:
        """Points of every layer; of another module with the same layers too."""
        return points_of(module, self.pieces(samples), self.places, self.layouts, samples=samples, seed=self.seed)

    def channels_first(self, name: str) -> bool:
        """Whether the units of a layer's outputs are their second axis."""
        return self.layouts.get(name) == "channels-first"


def without_bottleneck(
    subject: Subject, layers: tuple[LayerDiagnosis, ...], effort: Effort
) -> tuple[tuple[LayerDiagnosis, ...], Narrowest | None, list[str]]:
    """The layers with effective dimensions and factors, the narrowest of them, and notes."""
    available = subject.batches.samples or POINT_SAMPLES
    room = int(0.25 * min(effort.left, 1e6) / max(subject.one, 1e-9))
    samples = available if subject.batches.together else min(available, POINT_SAMPLES, max(room, HELD))
    first = {one.name for one in layers if one.passes}
    found, points = _measured(subject, subject.run, "effective dimensions", samples, effort, first)
    if not found:
        return layers, None, []
    fresh, notes = _of_fresh_copy(subject, samples, effort, first)
    layers = tuple(replace(one, effective=found.get(one.name), fresh=fresh.get(one.name)) for one in layers)
    narrowest, factors = _projected(subject, layers, points, samples, effort)
    layers = tuple(replace(one, factor=factors.get(one.name)) for one in layers)
    how = "positions of images and tokens are pooled: each is a point; padding is left out"
    folded = any(one.rows > subject.batches.samples for one in layers) if subject.batches.samples else False
    return layers, narrowest, [*([f"effective dimensions: {how}"] if folded else []), *notes]


def _measured(
    subject: Subject, module: nn.Module, part_name: str, samples: int, effort: Effort, first: set[str]
) -> tuple[dict[str, EffectiveDimension], dict[str, Points]]:
    """The effective dimensions of every layer that there is time for, and the points that they were measured on."""
    estimated = samples * subject.one + SECONDS_EACH * len(subject.places)
    what = f"{samples} samples"
    if effort.left < 1.0 and not effort.fits(estimated, 1.0):
        effort.leave_out(part_name, estimated, what)
        return {}, {}
    found: dict[str, EffectiveDimension] = {}
    with effort.part(part_name, len(subject.places), estimated, what) as part:
        points = subject.points(module, samples)
        # Few points of every layer before all of one; what everything passes through before the rest.
        for done, (name, some) in enumerate(points.items()):
            if not part.goes_on(SHARES[part_name]):
                part.reduce(f"{done} of {len(points)} layers, on {FEW_POINTS} points; missing from {name!r} on")
                return found, points
            one = effective_dimension(some.thinned(FEW_POINTS))
            if one is not None:
                found[name] = one
            part.bar.advance()
        rest = [name for name, one in found.items() if one.points < len(points[name].rows)]
        for done, name in enumerate(sorted(rest, key=lambda name: name not in first)):
            if not part.goes_on(SHARES[part_name]):
                part.reduce(f"{done} of {len(rest)} layers on all their points, the others on {FEW_POINTS}")
                break
            found[name] = effective_dimension(points[name]) or found[name]
    return found, points


def _of_fresh_copy(
    subject: Subject, samples: int, effort: Effort, first: set[str]
) -> tuple[dict[str, EffectiveDimension], list[str]]:
    """The same of a freshly initialised copy, and how it was made."""
    try:
        fresh, how = fresh_copy(subject.run, subject.few, subject.seed)
        found, _ = _measured(subject, fresh, "fresh copy", samples, effort, first)
    except Exception as error:  # whatever a user's copy or forward raises
        reason = str(error).split("\n")[0][:200]
        return {}, [f"no freshly initialised copy to compare with ({type(error).__name__}: {reason})"]
    return found, [f"the freshly initialised copy was made by {how}"] if found else []


def _projected(
    subject: Subject, layers: tuple[LayerDiagnosis, ...], points: Mapping[str, Points], samples: int, effort: Effort
) -> tuple[Narrowest | None, dict[str, Factor]]:
    """What the leading directions of the narrowest layer carry, and which layers could be factored at what loss."""
    stride = max(2, samples // HELD)
    apart = (lambda owners: owners >= 0) if subject.batches.together else (lambda owners: owners % stride != 0)
    held = Held(subject.run, list(_held(subject, samples, stride)))
    seconds = held.samples * subject.one
    narrow = _narrowest(layers)
    known, factors = None, {}
    candidates = sorted(
        (one for one in layers if _is_matrix(one, subject.run)), key=lambda one: -math.prod(one.weights[0].shape)
    )
    with effort.part("factors", len(candidates) + 1, seconds * (len(candidates) + 1), "") as part:
        if narrow is not None and narrow.effective is not None:
            dimension = narrow.effective.participation
            directions = math.ceil(dimension.value)
            ways = directions_of(points[narrow.name], apart)
            lost = math.nan
            if ways is not None and directions <= ways[1].shape[1]:
                first = subject.channels_first(narrow.name)
                lost = held.loss(narrow.name, ways[0], ways[1][:, :directions], channels_first=first, centred=True)
            fresh = None if narrow.fresh is None else narrow.fresh.participation
            known = Narrowest(narrow.name, dimension, fresh, directions, 1.0 - lost, held.samples)
        part.bar.advance()
        part.what = f"{len(candidates)} layers"
        for done, layer in enumerate(candidates):
            if not part.goes_on(SHARES["factors"]):
                part.reduce(f"{done} of {len(candidates)} layers, the largest first")
                break
            part.bar.advance()
            ways = None if layer.name not in points else directions_of(points[layer.name], apart)
            if ways is None:
                continue
            mean, V, squares = ways
            shape = layer.weights[0].shape
            rank = rank_of(squares, shape, int(apart(points[layer.name].owners).sum()))
            if rank is not None:
                lost = held.loss(layer.name, mean, V[:, :rank], channels_first=subject.channels_first(layer.name))
                kept = rank * sum(shape) / math.prod(shape)
                factors[layer.name] = Factor(rank, kept, lost, held.samples)
    return known, factors


def _held(subject: Subject, samples: int, stride: int) -> Iterator[Call]:
    """Every so many of the samples; all where they belong together."""
    if subject.batches.together:
        yield subject.few
        return
    output = subject.places[""]
    most = max(2, min(HELD, HELD_BYTES // (8 * max(output.size, 1))))
    start = given = 0
    for call in subject.pieces(samples):
        count = count_samples(call)
        rows = torch.arange(-start % stride, count, stride)[: most - given]
        if len(rows):
            yield take(call, rows)
        start, given = start + count, given + len(rows)
        if given >= most:
            return


def _narrowest(layers: tuple[LayerDiagnosis, ...]) -> LayerDiagnosis | None:
    """Of the layers before the outputs through which everything passes."""
    last = max((one.order for one in layers if one.order is not None), default=0)
    inside = [one for one in layers if one.passes and one.name and one.order != last and one.effective is not None]
    sizes = {one.name: one.effective.participation.value for one in inside if one.effective is not None}
    return min((one for one in inside if math.isfinite(sizes[one.name])), key=lambda one: sizes[one.name], default=None)


def _is_matrix(layer: LayerDiagnosis, module: nn.Module) -> bool:
    """Whether a layer is one matrix, applied to each position: one that may be a product of two."""
    known = layer.kind in ("linear", "convolution") or layer.type_name == "Conv1D"
    if not known or len(layer.weights) != 1 or layer.calls != 1:
        return False
    if getattr(module.get_submodule(layer.name), "groups", 1) != 1:
        return False
    weight = layer.weights[0]
    return len(weight.shape) == 2 and layer.units in weight.shape and weight.frequencies is None
