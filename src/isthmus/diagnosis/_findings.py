"""From what was measured to a table of layers and to the rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from isthmus.diagnosis._capture import OutputPlace
from isthmus.diagnosis._jacobians import Jacobians, LayerJacobians, Passage
from isthmus.diagnosis._observe import Observation, StreamedSpectrum
from isthmus.diagnosis._ranks import (
    Evidence,
    Gate,
    Isthmus,
    agreement_panel,
    isthmus_of_gates,
    rounding_floor,
)
from isthmus.diagnosis._result import LayerDiagnosis, Spectrum, WeightDiagnosis
from isthmus.diagnosis._weights import WeightedLayer, WeightPart, weight_spectrum
from isthmus.measures import Reading, read_spectrum
from isthmus.measures._bottleneck_rank import read_samples


@dataclass(eq=False)
class Findings:
    """Everything that was measured on one network.

    Attributes
    ----------
    weighted : list of WeightedLayer
    blocks : dict of str to nn.Module
        Modules around others, whose outputs carry what skip connections add up.
    places, seen, passage, jacobians
        From ``survey``, ``observe``, ``bypass`` and ``layer_jacobians``.
    eps : float
        Relative rounding of the module's own dtype through its depth.
    seed : int
    one : float
        Seconds of a forward for each sample.
    entry : str or None
        The embedding that integer inputs enter by: dimensions are then counted from it on, position by position.
    """

    weighted: list[WeightedLayer]
    blocks: Mapping[str, nn.Module]
    places: Mapping[str, OutputPlace]
    seen: Observation
    passage: Passage
    eps: float
    seed: int = 0
    one: float = 0.0
    entry: str | None = None
    jacobians: Jacobians = field(default_factory=lambda: Jacobians({}, "not computed: not asked for"))
    _weighed: dict[str, list[WeightDiagnosis]] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """The layer whose output is that of the network: ``""``, or the one that it hands on."""
        return self.places[""].same_as or ""

    @property
    def finite(self) -> bool:
        """Whether the outputs are, at every sample."""
        return self.seen.layers[self.output].rows.nonfinite == 0

    def layers(self) -> tuple[LayerDiagnosis, ...]:
        """Every weighted layer and block in the order of the computation; those never called last."""
        table = [self._layer(layer.name, layer.kind, layer.type_name, layer) for layer in self.weighted]
        for name, block in self.blocks.items():
            if name in self.places and self.places[name].same_as is None:
                table.append(self._layer(name, "block", type(block).__name__, None))
        if self.output == "" and all(one.name != "" for one in table):
            table.append(self._layer("", "output", "", None))
        return tuple(sorted(table, key=lambda one: math.inf if one.order is None else one.order))

    def _layer(self, name: str, kind: str, type_name: str, layer: WeightedLayer | None) -> LayerDiagnosis:
        place, seen = self.places.get(name), self.seen.layers.get(name)
        notes = [layer.note] if layer is not None and layer.note else []
        weights = [] if layer is None else self._weighed.get(name) or [_unweighed(part) for part in layer.parts]
        rows = whole = None
        if place is None:
            notes.append("never called as a module: no representation" if name else "its own parameters")
        elif seen is not None:
            notes.append(seen.note)
            rows = self._representation(seen.rows)
            whole = None if seen.whole is None else self._representation(seen.whole)
            if place.calls > 1:
                notes.append(f"called {place.calls} times in a forward: all calls count as samples")
        jacobian = self.jacobians.layers.get(name)
        share = 0.0 if name == self.output else self.passage.shares.get(name, math.nan)
        if name in self.passage.inside:
            notes.append(f"inside {self.passage.inside[name]!r}, which is bypassed")
        return LayerDiagnosis(
            name=name,
            kind=kind,
            type_name=type_name,
            order=None if place is None else place.order,
            calls=0 if place is None else place.calls,
            units=0 if seen is None else seen.rows.width,
            rows=0 if seen is None else seen.rows.rows,
            note="; ".join(notes),
            weights=tuple(weights),
            representation=rows,
            whole=whole,
            jacobian=None if jacobian is None else self._jacobian(jacobian),
            jacobian_size=None if jacobian is None else jacobian.size,
            bypass=share,
            bypass_range=self.passage.ranges.get(name),
            passes=True if name == self.output else self.passage.passes(name),
            negative_count=math.nan if seen is None else seen.signs[0],
            negative_share=math.nan if seen is None else seen.signs[1],
        )

    def weigh(self, layer: WeightedLayer) -> None:
        """Decompose the weights of a layer."""
        place = self.places.get(layer.name)
        grid = place.shape[1:] if place is not None and layer.kind == "convolution" else None
        self._weighed[layer.name] = [self._weights(part, grid) for part in layer.parts]

    def _weights(self, part: WeightPart, grid: tuple[int, ...] | None) -> WeightDiagnosis:
        found = weight_spectrum(part, grid=grid, seed=self.seed)
        reading = _read(found.values, self.eps)
        spectrum = Spectrum(found.values, found.method, found.error, reading, found.note)
        return WeightDiagnosis(part.label, tuple(found.shape), found.norm, spectrum, found.by_frequency)

    def _representation(self, stream: StreamedSpectrum) -> Spectrum:
        if stream.rows < 2:
            left = f"; {stream.nonfinite} rows were not finite" if stream.nonfinite else ""
            return Spectrum(_EMPTY, "not computed", math.nan, None, f"fewer than two finite rows{left}")
        values = stream.spectrum()
        note = stream.explanation
        if stream.nonfinite:
            note += f"; {stream.nonfinite} rows that were not finite are left out"
        error = float(stream.error[: len(values)].max()) if len(values) else 0.0
        reading = _read(values, self.eps, self._floor(stream))
        if reading is not None and reading.status == "full" and stream.rows <= stream.columns:
            # As many as there are rows: there may be more.
            reading = replace(reading, status="unclear")
            note += f"; {stream.rows} rows cannot show more than {len(values)} dimensions"
        return Spectrum(values, stream.method, error, reading, note)

    def _floor(self, stream: StreamedSpectrum) -> float:
        return rounding_floor(stream.size, self.eps)

    def _jacobian(self, found: LayerJacobians) -> Spectrum:
        reading, share = read_samples(found.spectra, self.eps)
        samples = len(found.spectra)
        note = f"median over {samples} samples; count at {share:.0%} of them"
        if found.method == "sketched" and 4 * reading.count > found.directions:
            # Nearly as many as there were directions: there may be more.
            reading = replace(reading, status="unclear")
        return Spectrum(found.median, found.method, 0.0, reading, note)

    def gates(self, layers: tuple[LayerDiagnosis, ...]) -> list[Gate]:
        """The layers that separate inputs from outputs, in order, the output last."""
        gates = []
        for layer in layers:
            spectrum, seen = layer.dimensions, self.seen.layers.get(layer.name)
            place = self.places.get(layer.name)
            if seen is None or place is None or spectrum is None or len(spectrum.values) == 0:
                continue
            if place.batch_axis is None or not layer.passes:
                continue
            weights = layer.weights[0].spectrum.reading if len(layer.weights) == 1 else None
            stream = seen.dimensions
            along = self.entry is not None and stream.rows > self.seen.samples
            gates.append(Gate(layer.name, spectrum.values, self._floor(stream), weights, stream.kept, along))
        return gates

    @property
    def _ends(self) -> tuple[int, int, int]:
        """Numbers in inputs and outputs, and dimensions of the inputs' span; of tokens, at each position."""
        inputs, width = self.seen.inputs, self.places[self.output].size
        if self.entry is not None:
            inputs, width = self.seen.layers[self.entry].rows, self.seen.layers[self.output].dimensions.width
        if inputs is None:
            return 10**9, width, 10**9  # integers have no dimension of their own
        span = inputs.width
        if inputs.rows > 1:
            reading = read_spectrum(inputs.spectrum(), eps=self.eps, floor=self._floor(inputs))
            span = inputs.width if reading.status == "unclear" else reading.count
        return inputs.width, width, span

    def _points(self, gates: list[Gate]) -> int:
        """Samples of the layer that has the fewest: positions, where these are samples."""
        if self.entry is None:
            return self.seen.samples
        return min(self.seen.layers[gate.name or self.output].dimensions.rows for gate in gates)

    def isthmus(self, layers: tuple[LayerDiagnosis, ...]) -> Isthmus:
        """The rank by the rule for any architecture."""
        if not self.finite:
            bad = self.seen.layers[self.output].rows.nonfinite
            why = f"the outputs are not finite at {bad} samples: weights or inputs are broken"
            return Isthmus("undetermined", None, (), None, (why,))
        gates = self.gates(layers)
        if len(gates) < 2:
            return self._no_gates(layers)
        output = self.jacobians.layers.get(self.output)
        # The Jacobian of all positions together says nothing of one.
        along = any(gate.by_position for gate in gates)
        local = None if output is None or along else self._jacobian(output).reading
        d_in, d_out, data_rank = self._ends
        norms = {layer.name for layer in layers if layer.type_name == "LayerNorm"} if along else {}
        # A layer norm has one dimension less than units: the mean of its units is the same everywhere.
        most = min((len(gate.spectrum) - 1 for gate in gates if gate.name in norms), default=10**9)
        return isthmus_of_gates(
            gates,
            d_in=d_in,
            d_out=d_out,
            samples=self._points(gates),
            data_rank=data_rank,
            jacobian=local,
            eps=self.eps,
            most=most,
        )

    def unless_few(self, narrow: Isthmus, layers: tuple[LayerDiagnosis, ...]) -> Isthmus:
        """The answer; undetermined where samples are too few to show more dimensions than they are.

        N samples show at most N − 1 dimensions at every layer. If inputs, outputs and data have more, a layer that is
        narrower than these need not look so: its width m, at most, is the rank that more than 2m + 1 samples decide.
        """
        gates = self.gates(layers)
        if narrow.rank is not None or len(gates) < 2 or not self.finite:
            return narrow
        most = self._points(gates) - 1
        d_in, d_out, span = self._ends
        ends = [d_out, *([d_in] if d_in < 10**9 else [])]
        widths = [self.seen.layers[gate.name or self.output].dimensions.width for gate in gates]
        narrowest = min(widths + ends)
        if self.entry is None and span < min(d_in, most):
            return narrow  # the data have no more dimensions, however many samples there were
        if most >= (min(ends) if narrow.verdict == "none" else narrowest):
            return narrow
        needed = -(-(2 * narrowest + 2) * self.seen.samples // (most + 1))
        what = f"{most + 1} samples" if self.entry is None else f"{self.seen.samples} samples with {most + 1} positions"
        few = f"{what} show at most {most} dimensions of any layer: supply at least {needed}"
        return Isthmus("undetermined", None, (), None, (few, *narrow.reasons))

    def _no_gates(self, layers: tuple[LayerDiagnosis, ...]) -> Isthmus:
        """Why no layer before the output separates it from the inputs: that everything is bypassed must be seen."""
        last = self._representation(self.seen.layers[self.output].dimensions).reading
        names = {*self.passage.shares, *self.passage.inside, *self.passage.left}
        between = [layer.passes for layer in layers if layer.name != self.output and layer.name in names]
        verdict = "undetermined"
        if last is None:
            why = "one sample shows nothing that varies: supply more"
        elif last.status == "zero":
            why = "the outputs do not vary on these data, so that nothing is seen to pass through any layer"
        elif not between:
            verdict, why = "none", "there is no layer between inputs and outputs to look at"
        elif self.passage.left and not any(between):
            why = f"there was no time to see what passes through {len(self.passage.left)} layers: raise `budget`"
        elif all(passes is None for passes in between):
            why = "the outputs do not vary on the first samples, or the data decide what is computed: shuffle the rows"
        elif any(between):
            why = "the layers between inputs and outputs cannot be looked at sample by sample"
        else:
            verdict, why = "none", "information goes around every layer: none separates inputs from outputs"
        return Isthmus(verdict, None, (), None, (why,))

    def agreement(self, layers: tuple[LayerDiagnosis, ...], narrow: Isthmus) -> tuple[Evidence, ...]:
        """Our rank beside others."""
        where = self._narrowest(layers, narrow)
        stream = None if where is None else self.seen.layers[where].dimensions
        output = self.jacobians.layers.get(self.output)
        last = self.seen.layers.get(self.output)
        spectra = [w.spectrum.values for layer in layers for w in layer.weights if len(w.spectrum.values)]
        return agreement_panel(
            rank=narrow.rank,
            narrowest=where or "",
            points=None if stream is None else stream.kept,
            spectrum=None if stream is None or stream.rows < 2 else stream.spectrum(),
            weights=spectra,
            jacobian=None if output is None else self._jacobian(output).reading,
            agop=self.jacobians.agop,
            outputs=None if last is None or last.dimensions.rows < 2 else last.dimensions.spectrum(),
        )

    def _narrowest(self, layers: tuple[LayerDiagnosis, ...], narrow: Isthmus) -> str | None:
        # The output, where no submodule gives it, is not among those that were seen by name.
        known = [name for name in narrow.layers if name in self.seen.layers]
        if known:
            return known[len(known) // 2]
        gates = [gate.name for gate in self.gates(layers)]
        by_name = {layer.name: layer for layer in layers}
        return min(gates, key=lambda name: by_name[name].participation_ratio, default=None)


_EMPTY = torch.zeros(0, dtype=torch.float64)


def _unweighed(part: WeightPart) -> WeightDiagnosis:
    """A matrix that there was no time for."""
    nothing = Spectrum(_EMPTY, "not computed", math.nan, None, "left out: the budget was used up")
    return WeightDiagnosis(part.label, part.matrix_shape, math.nan, nothing)


def _read(values: Tensor, eps: float, floor: float = 0.0) -> Reading | None:
    return read_spectrum(values, eps=eps, floor=floor) if len(values) else None
