"""Taking snapshots of a module on the same samples, without a trace in it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, fail
from isthmus._errors import DataError
from isthmus.diagnosis.capture import run, untouched, unwrap
from isthmus.diagnosis.diagnose import as_torch, unit_roundoff, wanted
from isthmus.diagnosis.inputs import batches
from isthmus.diagnosis.ranks import rounding_floor
from isthmus.diagnosis.snapshot import FAILED, MEASURED, NOT_FINITE, TOP, LayerSnapshot, Snapshot, SpectrumSnapshot
from isthmus.diagnosis.streaming import as_rows
from isthmus.diagnosis.weight_parts import WeightPart
from isthmus.diagnosis.weight_spectra import weight_spectrum
from isthmus.diagnosis.weights import WeightedLayer, weighted_layers
from isthmus.diagnosis.whole import targets_of
from isthmus.measures import participation_ratio, read_spectrum
from isthmus.objective import LOSSES, cost

#: Smaller side up to which all singular values are computed: an SVD of 512² takes a twentieth of a second.
EXACT_UP_TO = 512
#: Rows of a representation for each sample asked for: positions of images and tokens count as rows.
ROWS_PER_SAMPLE = 8

_NONE = torch.empty(0, dtype=torch.float64)


class Camera:
    """Takes snapshots of a module on the same samples.

    Parameters
    ----------
    who : str
        The public function that errors name.
    module, X, Y, loss, layers, unpack
        As in ``diagnose``.
    max_samples : int
        Samples that are run for a snapshot: evenly spaced ones of arrays, the first ones of a loader.
    """

    def __init__(
        self,
        who: str,
        module: nn.Module,
        X: Any,
        Y: Any = None,
        *,
        loss: str = "mse",
        layers: Sequence[str] | str | None = None,
        max_samples: int = 512,
        unpack: Callable[[Any], Any] | None = None,
        seed: int = 0,
    ) -> None:
        check_choice(who, "loss", loss, LOSSES)
        check_integer(who, "max_samples", max_samples, low=2)
        self.module, notes = unwrap(module, who=who)
        self._who, self._layers, self._loss, self._seed = who, layers, loss, seed
        self._rows = ROWS_PER_SAMPLE * max_samples
        if layers is not None and not any(wanted(layer.name, layers) for layer in self._weighted(self._plain())):
            fail(who, "`layers` must name layers with parameters", layers, "See `module.named_modules()`.")
        # A loader may draw from any generator, and its first batch is not the user's first batch.
        with untouched(self.module, eval=False):
            source = batches(who, X, self.module, unpack=unpack)
            self._targets = None if Y is None else self._matching(Y, source.samples, max_samples)
            self._call = source.first(max_samples)
        self.notes = (*notes, *source.notes)

    def _matching(self, Y: Any, samples: int | None, max_samples: int) -> Tensor:
        """The targets of the samples that are run."""
        if samples is None:
            got, do = "`X` as a loader", "Pass arrays for both, or leave `Y` out."
            fail(self._who, "`Y` goes with `X` given as arrays", got, do)
        targets = targets_of(self._who, Y, self._loss)
        if len(targets) != samples:
            got, do = f"{samples} and {len(targets)}", "Pass one target for each sample."
            fail(self._who, "`X` and `Y` must have as many rows", got, do, error=DataError)
        count = min(max_samples, samples)
        return targets[torch.arange(count) * samples // count]

    def _plain(self) -> nn.Module:
        """The module with layers that can be hooked; networks of this library are written out, with their weights."""
        with torch.random.fork_rng(devices=[]):  # new layers draw their first weights
            return as_torch(self.module)

    def _weighted(self, module: nn.Module) -> list[WeightedLayer]:
        return [layer for layer in weighted_layers(module) if wanted(layer.name, self._layers)]

    @torch.no_grad()
    def take(self, step: int) -> Snapshot:
        """A snapshot; the module, the generators and the user's graph stay as they are."""
        module = self._plain()
        weighted = self._weighted(module)
        eps = unit_roundoff(module) * max(len(weighted), 1)
        layouts = {layer.name: layer.layout for layer in weighted}
        seen: dict[str, SpectrumSnapshot] = {}
        costs: list[float] = []

        def visit(name: str, output: Tensor, number: int) -> None:  # noqa: ARG001
            # Of a layer that is called several times, the last call.
            if name in layouts:
                seen[name] = self._representation(output, layouts[name], eps)
            if name == "" and self._targets is not None:
                costs.append(self._cost(output, self._targets))

        with ExitStack() as stack:
            for device in {"cpu", *(p.device.type for p in module.parameters())}:
                # In the module's own dtype; weights that autocast casts and keeps must not reach the user's step.
                stack.enter_context(torch.autocast(device, enabled=False))
            run(module, [self._call], dict.fromkeys([*layouts, ""]), visit, who=self._who)
        layers = [self._layer(layer, seen.get(layer.name), eps) for layer in weighted]
        bad = [
            f"{one.name or '(itself)'} ({part.label})"
            for one in layers
            for part in _spectra(one)
            if part.status == NOT_FINITE
        ]
        return Snapshot(
            step=step,
            state=NOT_FINITE if bad else MEASURED,
            note=f"NaN or infinite: {', '.join(bad[:6])}{' and more' * (len(bad) > 6)}" if bad else "",
            layers=tuple(layers),
            norm_squared=sum(_square(p) for p in self.module.parameters()),
            cost=costs[-1] if costs else math.nan,
        )

    def _layer(self, layer: WeightedLayer, seen: SpectrumSnapshot | None, eps: float) -> LayerSnapshot:
        return LayerSnapshot(layer.name, layer.kind, tuple(self._weights(part, eps) for part in layer.parts), seen)

    def _weights(self, part: WeightPart, eps: float) -> SpectrumSnapshot:
        found = weight_spectrum(part, exact_up_to=EXACT_UP_TO, k=TOP, seed=self._seed)
        if found.method == "not computed":
            return _missing(part.label, "not computed" if part.note else NOT_FINITE)
        whole = found.method != "randomised"
        return _spectrum_snapshot(part.label, found.values, found.norm * found.norm, eps, whole=whole)

    def _representation(self, output: Tensor, layout: str, eps: float) -> SpectrumSnapshot:
        rows, _ = as_rows(output, layout)
        # With more units than an exact spectrum may have, as many rows.
        most = self._rows if rows.shape[1] <= EXACT_UP_TO else EXACT_UP_TO
        if len(rows) > most:
            rows = rows[torch.arange(most, device=rows.device) * len(rows) // most]
        A = rows.double()
        size = torch.linalg.vector_norm(A) / len(A) ** 0.5
        if not bool(torch.isfinite(size)):
            return _missing("representation", NOT_FINITE)
        if len(A) < 2:
            return _missing("representation", "not computed")
        values = _singular_values(A - A.mean(0), unit_roundoff(self.module)) / len(A) ** 0.5
        norm, floor = float(values.square().sum()), rounding_floor(size, eps)
        return _spectrum_snapshot("representation", values.cpu(), norm, eps, floor=floor)

    def _cost(self, output: Tensor, targets: Tensor) -> float:
        targets = targets.to(output.device)
        if self._loss == "mse":
            if targets.shape != output.shape:
                got = f"{tuple(targets.shape[1:])} for outputs {tuple(output.shape[1:])}"
                fail(self._who, "`Y` must have the shape of the outputs", got, "Match it.", error=DataError)
            output, targets = output.flatten(1), targets.flatten(1)
        return float(cost(output.double(), targets, self._loss))


def safely(take: Callable[[int], Snapshot], step: int) -> Snapshot:
    """A snapshot whatever happens: what fails is its ``note``, never an exception in somebody's training loop."""
    try:
        return take(step)
    except Exception as error:  # whatever the user's forward raises
        note = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Snapshot(step, FAILED, note, (), math.nan, math.nan)


def timed(take: Callable[[], Snapshot]) -> tuple[Snapshot, float]:
    """A snapshot and the seconds it took."""
    started = time.perf_counter()
    return take(), time.perf_counter() - started


def _singular_values(A: Tensor, eps: float) -> Tensor:
    """All singular values of A (float64), as exact as data with the unit round-off ``eps`` deserve.

    Square roots of the eigenvalues of the Gram matrix have a floor near 1e-7·s₁: twice as fast as an SVD, and below
    what single precision leaves.
    """
    if eps < 1e-8:
        return torch.linalg.svdvals(A)
    gram = A.mT @ A if A.shape[0] >= A.shape[1] else A @ A.mT
    return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()


def _spectrum_snapshot(
    label: str, values: Tensor, norm_squared: float, eps: float, *, floor: float = 0.0, whole: bool = True
) -> SpectrumSnapshot:
    reading = read_spectrum(values, eps=eps, floor=floor)
    # Of the largest values alone, only a clear drop says how many there are.
    told = reading.status in ("clear", "zero") or (whole and reading.status == "full")
    return SpectrumSnapshot(
        label=label,
        values=values[:TOP].clone(),
        norm_squared=norm_squared,
        participation_ratio=float(participation_ratio(values)),
        rank=reading.count if told else None,
        status=reading.status if told else "unclear",
    )


def _spectra(layer: LayerSnapshot) -> list[SpectrumSnapshot]:
    return [*layer.weights, *([] if layer.representation is None else [layer.representation])]


def _missing(label: str, status: str) -> SpectrumSnapshot:
    return SpectrumSnapshot(label, _NONE, math.nan, math.nan, None, status)


def _square(parameter: Tensor) -> float:
    if not parameter.is_floating_point():
        return 0.0
    norm = float(torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64))
    return norm * norm
