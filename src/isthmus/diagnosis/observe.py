"""One pass over the data: the spectra of every layer's representation, streamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus._progress import Progress
from isthmus.diagnosis.capture import first_tensor, run
from isthmus.diagnosis.inputs import Batches
from isthmus.diagnosis.streaming import StreamedSpectrum, as_rows
from isthmus.diagnosis.survey import Call, Place

#: Samples of the narrowest layer that are kept for measures of neighbours.
KEPT = 1000


@dataclass(eq=False)
class Seen:
    """What one layer gave: ``rows`` with positions as samples, ``whole`` with one row for each sample (or None)."""

    rows: StreamedSpectrum
    whole: StreamedSpectrum | None
    note: str

    @property
    def dimensions(self) -> StreamedSpectrum:
        """The stream whose spectrum counts the dimensions of the map."""
        return self.whole if self.whole is not None else self.rows


@dataclass(frozen=True, eq=False)
class Observation:
    """All layers, the inputs (None unless they are numbers), and how many samples there were."""

    layers: Mapping[str, Seen]
    inputs: StreamedSpectrum | None
    samples: int


def observe(
    module: nn.Module,
    batches: Batches,
    places: Mapping[str, Place],
    layouts: Mapping[str, str],
    *,
    sketch: int,
    exact_up_to: int,
    seed: int,
    bar: Progress,
) -> Observation:
    """Run every batch and stream what each layer among ``places`` gives; nothing of the size of the data is kept."""
    layers: dict[str, Seen] = {}
    inputs: StreamedSpectrum | None = None
    samples = 0

    def stream(width: int, keep: int = 0) -> StreamedSpectrum:
        return StreamedSpectrum(width, sketch=sketch, exact_up_to=exact_up_to, seed=seed, keep=keep)

    def visit(name: str, output: Tensor, number: int) -> None:
        place = places[name]
        rows, note = as_rows(output, layouts.get(name, "last"))
        if name not in layers:
            separate = place.batch_axis is not None and (len(place.shape) > 1 or place.per_sample > 1)
            whole = stream(place.size, KEPT) if separate else None
            layers[name] = Seen(stream(rows.shape[1], 0 if separate else KEPT), whole, note)
        seen = layers[name]
        seen.rows.update(rows)
        if seen.whole is not None and number == place.calls - 1:
            # Of a layer that is called several times, the last call.
            seen.whole.update(place.by_sample(output))

    def counted() -> Iterator[Call]:
        nonlocal inputs, samples
        for args, kwargs in batches:
            first = first_tensor([*args, *kwargs.values()])
            if first is None:
                fail("diagnose", "`X` must hold a tensor", "none in a batch", "Pass arrays.")
            if first.is_floating_point():
                flat = first.reshape(len(first), -1)
                inputs = stream(flat.shape[1]) if inputs is None else inputs
                inputs.update(flat)
            yield args, kwargs
            samples += len(first)
            bar.advance(len(first))

    with torch.no_grad():
        run(module, counted(), list(places), visit)
    return Observation(layers, inputs, samples)
