"""The verb: what does a trained network really use, where is its isthmus, and how narrow is it?"""

from __future__ import annotations

import copy
import fnmatch
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, check_number, check_seed, fail
from isthmus._errors import IsthmusError
from isthmus._progress import ProgressFactory, silent
from isthmus._provenance import provenance
from isthmus.diagnosis._capture import Call, OutputPlace, count_samples, in_float64, survey, take, untouched, unwrap
from isthmus.diagnosis._inputs import Batches
from isthmus.diagnosis._inputs import batches as batches_of
from isthmus.diagnosis._jacobians import DIRECTIONS, NOTHING, Jacobians, LayerJacobians, bypass, layer_jacobians
from isthmus.diagnosis._observe import Observation, StreamedSpectrum, observe
from isthmus.diagnosis._ranks import (
    Evidence,
    Gate,
    Isthmus,
    agreement_panel,
    isthmus_of_chain,
    isthmus_of_gates,
    rounding_floor,
)
from isthmus.diagnosis._result import Diagnosis, LayerDiagnosis, Spectrum, WeightDiagnosis
from isthmus.diagnosis._weights import WeightedLayer, WeightPart, weight_spectrum, weighted_layers
from isthmus.diagnosis._whole import (
    describe,
    fit_numbers,
    fully_connected_numbers,
    mechanics_of,
    minimum_of,
    rank_in_use,
    stability_of,
    targets_of,
)
from isthmus.measures import GapRule, Minimum, Reading, bottleneck_rank, nonnegativity, read_spectrum
from isthmus.measures._bottleneck_rank import read_samples
from isthmus.networks import FullyConnected, Network, from_torch
from isthmus.objective import LOSSES

#: Samples that are run with one layer frozen, for every layer.
PASSAGE_SAMPLES = 16

#: Samples whose whole trace a fully connected network is judged on.
TRACE_SAMPLES = 2000


def diagnose(
    module: nn.Module,
    X: Any,
    Y: Any = None,
    *,
    ridge: float | None = None,
    loss: str = "mse",
    learning_rate: float | None = None,
    training_batch: int | None = None,
    true_rank: int | None = None,
    layers: Sequence[str] | str | None = None,
    batch_size: int = 256,
    jacobian_samples: int = 16,
    unpack: Callable[[Any], Any] | None = None,
    precision: str = "float64",
    sketch: int = 1024,
    exact_up_to: int = 2048,
    seed: int = 0,
    progress: ProgressFactory = silent,
) -> Diagnosis:
    """Diagnose any trained PyTorch network: spectra, ranks and Jacobians at every layer, and where its isthmus is.

    Parameters
    ----------
    module : nn.Module
        Not changed, bit for bit: it is run in evaluation mode, on a copy where one can be made.
    X : array, tensor, DataFrame, tuple or dict of them, or DataLoader
        Samples along the first axis. A tuple gives positional arguments, a dict keyword arguments; of a loader's pairs
        the second is taken for targets and left out.
    Y : array, optional
        Targets: adds the cost, and with ``ridge`` how near a minimum of cost + ridge·‖θ‖² the network is, and of a
        :class:`~isthmus.LeakyResNet` its ``mechanics``.
    ridge : float, optional
        Weight decay that the network was trained with, in this library's convention (``isthmus.ridge_from``).
    loss : {"mse", "cross_entropy"}
    learning_rate : float, optional
        Of the training: adds ``stability``, whether steps of this size stay at the minimum and which samples are too
        sharp for them (:func:`isthmus.measures.step_stability`, which says in what convention).
    training_batch : int, optional
        Samples of one training step; all unless given.
    true_rank : int, optional
        Of the task, for example ``discover(X, Y).rank``. With targets and ``ridge``, ``minimum`` says of a fully
        connected network whether it recovers the rank, over- or underestimates it, and fits
        (:func:`isthmus.measures.kind_of_minimum`). Without it, only that the rank is overestimated can be shown.
    layers : str or sequence of str, optional
        Names or globs of the layers to look at; all unless given.
    batch_size : int, default 256
    jacobian_samples : int, default 16
        Samples at which Jacobians are taken, each run once for each input direction (at most 128); 0 for none.
    unpack : callable, optional
        Batch of a loader → arguments, where batches are neither tensors nor pairs nor dicts.
    precision : {"float64", "module"}
        ``"module"`` runs the network in its own dtype; weights are analysed in float64 all the same.
    sketch, exact_up_to : int
        Representations wider than ``exact_up_to`` are sketched to ``sketch`` columns, and labelled so.
    seed : int
        Of sketches and random directions.
    progress : callable, optional
        As in ``train``: shows how far it is.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.Linear(2, 8))
    >>> found = diagnose(net, torch.randn(100, 8, generator=torch.Generator().manual_seed(0)))
    >>> found.verdict, found.rank
    ('determined', 2)
    """
    who = "diagnose"
    started = time.time()
    check_choice(who, "loss", loss, LOSSES)
    check_choice(who, "precision", precision, ("float64", "module"))
    check_integer(who, "jacobian_samples", jacobian_samples, low=0)
    if ridge is not None:
        check_number(who, "ridge", ridge, low=0.0)
    if learning_rate is not None:
        check_number(who, "learning_rate", learning_rate, low=0.0, low_open=True)
    if training_batch is not None:
        check_integer(who, "training_batch", training_batch, low=1)
    if true_rank is not None:
        check_integer(who, "true_rank", true_rank, low=0)
    check_seed(who, seed)
    plain, notes = unwrap(module)
    family = plain if isinstance(plain, Network) else None
    plain = as_torch(plain)
    weighted = [layer for layer in weighted_layers(plain) if wanted(layer.name, layers)]
    if layers is not None and not weighted:
        fail(who, "`layers` must name layers with parameters", layers, "See `module.named_modules()` for their names.")
    blocks = _blocks(plain, weighted, layers)

    def prepared(run: nn.Module) -> tuple[Batches, Call, dict[str, OutputPlace]]:
        batches = batches_of(who, X, run, batch_size=batch_size, unpack=unpack)
        few = batches.first(max(PASSAGE_SAMPLES, jacobian_samples))
        return batches, few, survey(run, few, [*(layer.name for layer in weighted if layer.name), *blocks, ""])

    run, how, (batches, few, places) = _in_precision(plain, precision, prepared)
    notes.append(f"run in evaluation mode: {how}")
    eps = unit_roundoff(plain) * max(len(places), 1)
    with untouched(run), progress(batches.samples, who) as bar:
        size = {"sketch": sketch, "exact_up_to": exact_up_to, "jacobian_samples": jacobian_samples}
        found = _measure(run, batches, few, places, weighted, blocks, **size, seed=seed, bar=bar, eps=eps)
        numbers = describe(plain)
        if Y is not None:
            numbers |= fit_numbers(run, batches, Y, loss, ridge)
        steps = None
        if learning_rate is not None and found.finite:
            options = {"loss": loss, "ridge": ridge, "learning_rate": learning_rate, "training_batch": training_batch}
            steps, why_not = stability_of(fully_connected(run) or run, batches, Y, found.seen.samples, **options)
            notes += [why_not] if why_not else []
    notes += _notes_on(found.jacobians)
    table = found.layers()
    narrow = found.isthmus(table)
    if layers is None:
        more, by_trace = _of_family(plain, family, batches.first(TRACE_SAMPLES)[0], found, ridge)
        numbers |= more
        narrow = by_trace or narrow
    reached = None
    if Y is not None and ridge and layers is None and found.finite and batches.samples is not None:
        reached = _minimum(plain, batches, targets_of(who, Y, loss), narrow, numbers, ridge, loss, true_rank)
    moved = None
    if family is not None and Y is not None and ridge is not None:
        moved = mechanics_of(family, batches, Y, loss, ridge)
    settings = {
        "ridge": ridge,
        "loss": loss,
        "learning_rate": learning_rate,
        "training_batch": training_batch,
        "true_rank": true_rank,
        "layers": [layers] if isinstance(layers, str) else None if layers is None else list(layers),
        "batch_size": batch_size,
        "jacobian_samples": jacobian_samples,
        "precision": precision,
        "sketch": sketch,
        "exact_up_to": exact_up_to,
        "seed": seed,
    }
    spent = time.time() - started
    return Diagnosis(
        isthmus=narrow,
        agreement=found.agreement(table, narrow),
        layers=table,
        whole=numbers,
        samples=found.seen.samples,
        notes=tuple(dict.fromkeys([*notes, *batches.notes])),
        settings=settings,
        provenance=provenance(seed=seed, dtype=how, device=numbers["device"], started=started, seconds=spent),
        mechanics=moved,
        stability=steps,
        minimum=reached,
    )


def _in_precision(plain: nn.Module, precision: str, prepared: Callable[[nn.Module], Any]) -> tuple[nn.Module, str, Any]:
    """The module that is run, in float64 if it may and can be, which it is in words, and what was prepared with it."""
    run, how = in_float64(plain) if precision == "float64" else (plain, "own dtype, as asked")
    try:
        return run, how, prepared(run)
    except IsthmusError:
        if run is plain:
            raise
    # A forward that insists on a dtype runs in no other.
    return plain, "own dtype: it does not run in float64", prepared(plain)


def _measure(
    run: nn.Module,
    batches: Batches,
    few: Call,
    places: dict[str, OutputPlace],
    weighted: list[WeightedLayer],
    blocks: Mapping[str, nn.Module],
    *,
    jacobian_samples: int,
    seed: int,
    eps: float,
    **streaming: Any,
) -> Findings:
    """Everything that takes running the network."""
    seen = observe(run, batches, places, _layouts(weighted, blocks), seed=seed, **streaming)
    shares = bypass(run, _leading(few, PASSAGE_SAMPLES), [name for name in places if name])
    jacobians = Jacobians({}, "not computed: not asked for")
    if jacobian_samples:
        source = _embedding(few, places, weighted)
        jacobians = layer_jacobians(run, _leading(few, jacobian_samples), places, source=source, seed=seed)
    return Findings(weighted, blocks, places, seen, shares, jacobians, eps, seed)


def _of_family(
    plain: nn.Module, family: Network | None, inputs: Sequence[Any], found: Findings, ridge: float | None
) -> tuple[dict[str, Any], Isthmus | None]:
    """Numbers that only some families have, and the rank of a fully connected network by its whole trace."""
    numbers: dict[str, Any] = {}
    narrow = None
    if len(inputs) != 1:
        return numbers, narrow
    X, chain = inputs[0], fully_connected(plain)
    if chain is not None and X.ndim == 2:
        numbers |= fully_connected_numbers(chain, X.double(), ridge)
        if found.finite:
            order = [layer.name for layer in found.weighted]
            trace = chain.trace(X.double())
            narrow = isthmus_of_chain(bottleneck_rank(trace), order, chain.dims[0], chain.dims[-1])
            numbers["nonnegativity"] = nonnegativity(trace, rank=narrow.rank).to_dict()["layers"]
    if family is not None and found.finite:
        numbers |= family.numbers(X)
    return numbers, narrow


def _minimum(
    plain: nn.Module,
    batches: Batches,
    targets: Tensor,
    narrow: Isthmus,
    numbers: Mapping[str, Any],
    ridge: float,
    loss: str,
    true_rank: int | None,
) -> Minimum | None:
    """Which kind of minimum a fully connected network is at, on some of the samples; None of other modules."""
    chain, inputs = fully_connected(plain), batches.first(TRACE_SAMPLES)[0]
    if chain is None or len(inputs) != 1 or inputs[0].ndim != 2:
        return None
    assert batches.samples is not None
    X = inputs[0].double()
    rows = torch.arange(len(X)) * batches.samples // len(X)
    gradient = numbers.get("criticality") or 0.0
    rank = rank_in_use(narrow, X, chain)
    options = {"rank": rank, "loss": loss, "ridge": ridge, "true_rank": true_rank, "gradient": gradient}
    return minimum_of(chain.double(), X, targets[rows], **options)


def as_torch(module: nn.Module) -> nn.Module:
    """The same with networks of this library, itself or inside, as plain layers, which can be hooked."""
    if not any(isinstance(part, Network) for part in module.modules()):
        return module
    # New layers draw their first weights from the global generator.
    with torch.random.fork_rng(devices=[]):
        if isinstance(module, Network):
            made = module.simplified().to_torch()
            # A family that has no plain form is looked at as it is.
            return module if isinstance(made, Network) else made
        whole = copy.deepcopy(module)
        replaced: list[str] = []
        for name, part in list(whole.named_modules()):
            # What is inside a network that was replaced went with it.
            if isinstance(part, Network) and not any(name.startswith(f"{outer}.") for outer in replaced):
                whole.set_submodule(name, as_torch(part))
                replaced.append(name)
        return whole


def fully_connected(module: nn.Module) -> FullyConnected | None:
    """The module as a fully connected network, if it is one."""
    try:
        net = from_torch(module)
    except IsthmusError:
        return None
    # float32 holds half precision exactly.
    return net.float() if net.Ws[0].dtype in (torch.float16, torch.bfloat16) else net


def unit_roundoff(module: nn.Module) -> float:
    """Of the coarsest floating dtype among the parameters, at most that of float32.

    Half-precision weights are exact numbers once stored: what their rounding did to the spectrum is random and stays
    below the thresholds by which ranks are read, whereas counted through the depth it would hide every rank.
    """
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
    coarsest = max((torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float64).eps)
    return min(coarsest, torch.finfo(torch.float32).eps)


def wanted(name: str, layers: Sequence[str] | str | None) -> bool:
    """Whether a layer of this name is among the names or globs; all are unless given."""
    patterns = [layers] if isinstance(layers, str) else layers
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _blocks(
    module: nn.Module, weighted: list[WeightedLayer], layers: Sequence[str] | str | None
) -> dict[str, nn.Module]:
    """Modules around weighted layers, but not inside one: residual blocks, encoder layers."""
    owners = {layer.name for layer in weighted}
    blocks = {}
    for name, child in module.named_modules():
        inside = any(name.startswith(f"{owner}.") for owner in owners if owner)
        around = any(owner.startswith(f"{name}.") for owner in owners)
        if name and name not in owners and around and not inside and wanted(name, layers):
            blocks[name] = child
    return blocks


def _layouts(weighted: list[WeightedLayer], blocks: Mapping[str, nn.Module]) -> dict[str, str]:
    """Where the features of each output are; a block's are where those of the last layer in it are."""
    layouts = {layer.name: layer.layout for layer in weighted}
    for name in blocks:
        layouts[name] = [layer.layout for layer in weighted if layer.name.startswith(f"{name}.")][-1]
    layouts.setdefault("", weighted[-1].layout if weighted else "last")
    return layouts


def _embedding(call: Call, places: Mapping[str, OutputPlace], weighted: list[WeightedLayer]) -> str | None:
    """The embedding that comes first, where the inputs are integers."""
    values = [*call[0], *call[1].values()]
    if any(isinstance(v, Tensor) and v.is_floating_point() for v in values):
        return None
    kinds = {layer.name: layer.kind for layer in weighted}
    first = [name for name in places if kinds.get(name) == "embedding"]
    return min(first, key=lambda name: places[name].order, default=None)


def _notes_on(jacobians: Jacobians) -> list[str]:
    if jacobians.state != "computed":
        return [f"Jacobians {jacobians.state}"]
    return [] if jacobians.source == "inputs" else [f"Jacobians are with respect to the {jacobians.source}"]


def _leading(call: Call, samples: int) -> Call:
    return take(call, torch.arange(min(samples, count_samples(call))))


# ---- From what was measured to a table of layers and to the rank


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that was measured on one network.

    Attributes
    ----------
    weighted : list of WeightedLayer
    blocks : dict of str to nn.Module
        Modules around others, whose outputs carry what skip connections add up.
    places, seen, shares, jacobians
        From ``survey``, ``observe``, ``bypass`` and ``layer_jacobians``.
    eps : float
        Relative rounding of the module's own dtype through its depth.
    seed : int
    """

    weighted: list[WeightedLayer]
    blocks: Mapping[str, nn.Module]
    places: Mapping[str, OutputPlace]
    seen: Observation
    shares: Mapping[str, float]
    jacobians: Jacobians
    eps: float
    seed: int = 0

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
        grid = place.shape[1:] if place is not None and kind == "convolution" else None
        weights = [self._weights(part, grid) for part in layer.parts] if layer is not None else []
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
        share = 0.0 if name == self.output else self.shares.get(name, math.nan)
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
            bypass=share,
            negative_count=math.nan if seen is None else seen.signs[0],
            negative_share=math.nan if seen is None else seen.signs[1],
        )

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
        return rounding_floor(stream.spectrum(centered=False), self.eps)

    def _jacobian(self, found: LayerJacobians) -> Spectrum:
        reading, share = read_samples(found.spectra, GapRule(), self.eps)
        samples = len(found.spectra)
        note = f"median over {samples} samples; count at {share:.0%} of them"
        if found.method == "sketched" and 4 * reading.count > DIRECTIONS:
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
            if place.batch_axis is None or not layer.bypass <= NOTHING:
                continue
            weights = layer.weights[0].spectrum.reading if len(layer.weights) == 1 else None
            stream = seen.dimensions
            gates.append(Gate(layer.name, spectrum.values, self._floor(stream), weights, stream.kept))
        return gates

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
        local = None if output is None else self._jacobian(output).reading
        inputs = self.seen.inputs
        d_out = self.places[self.output].size
        d_in = d_out if inputs is None else inputs.width
        data_rank = d_in
        if inputs is not None and inputs.rows > 1:
            reading = read_spectrum(inputs.spectrum(), eps=self.eps, floor=self._floor(inputs))
            data_rank = d_in if reading.status == "unclear" else reading.count
        elif inputs is None:
            # Tokens have no dimension of their own.
            d_in = data_rank = 10**9
        return isthmus_of_gates(
            gates,
            d_in=d_in,
            d_out=d_out,
            samples=self.seen.samples,
            data_rank=data_rank,
            jacobian=local,
            eps=self.eps,
        )

    def _no_gates(self, layers: tuple[LayerDiagnosis, ...]) -> Isthmus:
        """Why no layer before the output separates it from the inputs: that everything is bypassed must be seen."""
        last = self._representation(self.seen.layers[self.output].dimensions).reading
        between = [layer.bypass for layer in layers if layer.name != self.output and layer.name in self.shares]
        verdict = "undetermined"
        if last is None:
            why = "one sample shows nothing that varies: supply more"
        elif last.status == "zero":
            why = "the outputs do not vary on these data, so that nothing is seen to pass through any layer"
        elif not between:
            verdict, why = "none", "there is no layer between inputs and outputs to look at"
        elif all(map(math.isnan, between)):
            why = "the outputs do not vary on the first samples, or the data decide what is computed: shuffle the rows"
        elif any(share <= NOTHING for share in between):
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


def _read(values: Tensor, eps: float, floor: float = 0.0) -> Reading | None:
    return read_spectrum(values, eps=eps, floor=floor) if len(values) else None
