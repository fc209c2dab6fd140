"""The verb: what does a trained network really use, where is its isthmus, and how narrow is it?"""

from __future__ import annotations

import copy
import fnmatch
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, check_number, check_seed, fail
from isthmus._errors import IsthmusError
from isthmus._progress import ProgressFactory, silent
from isthmus._provenance import provenance
from isthmus.diagnosis._calls import Call, count_samples, take
from isthmus.diagnosis._capture import Called, OutputPlace, in_float64, survey, untouched, unwrap
from isthmus.diagnosis._effort import RATE, Effort
from isthmus.diagnosis._inputs import Batches
from isthmus.diagnosis._inputs import batches as batches_of
from isthmus.diagnosis._jacobians import (
    DIRECTIONS,
    Jacobians,
    LayerJacobians,
    Passage,
    bypass,
    input_size,
    layer_jacobians,
)
from isthmus.diagnosis._observe import MOST_ROWS, Observation, StreamedSpectrum, Streaming, observe
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
    forward: Callable[..., Any] | None = None,
    together: bool | None = None,
    precision: str = "auto",
    sketch: int = 1024,
    exact_up_to: int = 1024,
    seed: int = 0,
    budget: float | None = 90.0,
    progress: ProgressFactory = silent,
) -> Diagnosis:
    """Diagnose any trained PyTorch network: spectra, ranks and Jacobians at every layer, and where its isthmus is.

    Parameters
    ----------
    module : nn.Module
        Not changed, bit for bit: it is run in evaluation mode, on a copy where one can be made.
    X : array, tensor, DataFrame, tuple or dict of them, however nested, or DataLoader
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
        Samples at which Jacobians are taken at most, each run once for each input direction (at most 128); 0 for none.
    unpack : callable, optional
        Batch of a loader → arguments, where batches are neither tensors nor pairs nor dicts.
    forward : callable, optional
        How the network is called where not as ``module(X)``: ``forward(module, x)`` with ``x`` as ``X`` is, for some
        samples, for example ``lambda net, x: net(x.transpose(0, 1)).transpose(0, 1)`` where time comes first.
    together : bool, optional
        Whether all of ``X`` (of a loader, a batch) is one: the nodes of a graph, a set. Its rows count as samples and
        are never divided. By default so with a graph's edges, integers (2, E), and for objects like PyTorch
        Geometric's ``Data``.
    precision : {"auto", "float64", "module"}
        ``"module"`` runs the network in its own dtype, ``"auto"`` does so where one forward of all that is to be run
        takes more than 1e11 operations; spectra are computed in float64 all the same.
    sketch, exact_up_to : int
        Representations wider than ``exact_up_to`` are sketched to ``sketch`` columns, and labelled so.
    seed : int
        Of sketches and random directions.
    budget : float or None, default 90
        Seconds after which no new measurement begins; None for no limit. The most useful come first: representations,
        what passes through each layer, weights, Jacobians. ``cost`` of the result says what each took and what was
        reduced or left out.
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
    check_choice(who, "precision", precision, ("auto", "float64", "module"))
    if budget is not None:
        check_number(who, "budget", budget, low=0.0, low_open=True)
    effort = Effort(budget, progress)
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
    if forward is not None:
        if not callable(forward):
            fail(who, "`forward` must be callable", type(forward).__name__, "Pass a function of the module and of x.")
        plain = Called(plain, forward)
    weighted = [layer for layer in weighted_layers(plain) if wanted(layer.name, layers)]
    if layers is not None and not weighted:
        fail(who, "`layers` must name layers with parameters", layers, "See `module.named_modules()` for their names.")
    blocks = _blocks(plain, weighted, layers)

    def prepared(run: nn.Module) -> _Ready:
        batches = batches_of(
            who, X, run, batch_size=batch_size, unpack=unpack, together=together, whole=forward is not None
        )
        few = batches.first(max(PASSAGE_SAMPLES + 1, jacobian_samples))
        places = survey(
            run, few, [*(layer.name for layer in weighted if layer.name), *blocks, ""], together=batches.together
        )
        return _Ready(run, batches, few, places)

    ready, how = _in_precision(plain, precision, prepared)
    run, batches = ready.run, ready.batches
    notes.append(f"run in evaluation mode: {how}")
    eps = unit_roundoff(plain) * max(len(ready.places), 1)
    with untouched(run):
        size = {"sketch": sketch, "exact_up_to": exact_up_to, "jacobian_samples": jacobian_samples}
        found = _measure(ready, weighted, blocks, effort, **size, seed=seed, eps=eps)
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
    narrow = found.unless_few(narrow, table)
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
        "together": batches.together,
        "budget": budget,
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
        cost=tuple(effort.parts),
    )


@dataclass(frozen=True, eq=False)
class _Ready:
    """A module that runs, what it runs on, and where its layers are."""

    run: nn.Module
    batches: Batches
    few: Call
    places: dict[str, OutputPlace]

    @property
    def widest(self) -> int:
        """Bytes of the largest output of a layer for one sample."""
        sizes = (place.size for place in self.places.values() if place.batch_axis is not None)
        return 8 * max(sizes, default=1)

    def leading(self, samples: int) -> Call:
        """The first few samples; all of them where they belong together."""
        return self.few if self.batches.together else _leading(self.few, samples)

    @torch.no_grad()
    def seconds(self) -> float:
        """Of a forward, for each sample."""
        call = self.leading(max(1, min(4, BATCH_BYTES // self.widest)))
        started = time.perf_counter()
        self.run(*call[0], **call[1])
        return (time.perf_counter() - started) / count_samples(call)


#: Operations from which a network is run in its own dtype: 4,000 forwards beside those on all samples.
MOST_WORK, FORWARDS = 1e11, 4000

#: Bytes that the largest output of a layer may have for one batch, and all of them while something passes a layer.
BATCH_BYTES, PASSAGE_BYTES = 2**26, 2**28


def _in_precision(plain: nn.Module, precision: str, prepared: Callable[[nn.Module], _Ready]) -> tuple[_Ready, str]:
    """The module that is run, in float64 if it may and can be, and which it is in words."""
    single = any(p.dtype != torch.float64 for p in plain.parameters() if p.is_floating_point())
    if precision == "module" or not single:
        return prepared(plain), "own dtype, as asked" if precision == "module" else "float64, its own dtype"
    if precision == "auto":
        ready = prepared(plain)
        with untouched(plain):
            work = _operations(ready)
        if work > MOST_WORK:
            return ready, f"own dtype: in float64 {work:.1g} operations take long; `precision` says otherwise"
    run, how = in_float64(plain)
    try:
        return prepared(run), how
    except IsthmusError:
        if run is plain:
            raise
    # A forward that insists on a dtype runs in no other.
    return prepared(plain), "own dtype: it does not run in float64"


@torch.no_grad()
def _operations(ready: _Ready) -> float:
    """Floating-point operations of products in the forwards that a diagnosis makes."""
    from torch.utils.flop_counter import FlopCounterMode

    one = ready.leading(1)
    with FlopCounterMode(display=False) as counter:
        ready.run(*one[0], **one[1])
    return float(counter.get_total_flops()) * ((ready.batches.samples or 0) + FORWARDS)


def _measure(
    ready: _Ready,
    weighted: list[WeightedLayer],
    blocks: Mapping[str, nn.Module],
    effort: Effort,
    *,
    jacobian_samples: int,
    seed: int,
    eps: float,
    sketch: int,
    exact_up_to: int,
) -> Findings:
    """Everything that takes running the network, the most useful first."""
    run, places = ready.run, ready.places
    one = ready.seconds()
    seen = _representations(
        ready, {one.name for one in weighted}, _layouts(weighted, blocks), effort, one, sketch, exact_up_to, seed
    )
    passage = _passage(ready, effort, one)
    found = Findings(weighted, blocks, places, seen, passage, eps, seed)
    with effort.part("weights", len(weighted), 0.0, f"{len(weighted)} layers") as part:
        for done, layer in enumerate(weighted):
            if not part.goes_on(0.5):
                part.reduce(f"{done} of {len(weighted)} layers; missing from {layer.name!r} on")
                break
            found.weigh(layer)
            part.bar.advance()
    if jacobian_samples and ready.batches.together:
        found.jacobians = Jacobians({}, "not computed: samples that belong together influence each other's outputs")
    elif jacobian_samples:
        source = _embedding(ready.few, places, weighted)
        found.jacobians = _jacobians(run, ready.few, places, effort, one, jacobian_samples, source, seed)
    return found


#: Share of what is left of the budget that each part may take.
SHARES = {"representations": 0.5, "passage": 0.5, "jacobians": 0.6}


def _representations(
    ready: _Ready,
    owners: set[str],
    layouts: dict[str, str],
    effort: Effort,
    one: float,
    sketch: int,
    exact_up_to: int,
    seed: int,
) -> Observation:
    """One pass over as many samples as there is time for."""
    batches, places = ready.batches, ready.places
    kinds = {t.dtype for t in (*ready.run.parameters(), *ready.run.buffers()) if t.is_floating_point()}
    coarse = bool(kinds) and torch.float64 not in kinds
    available = batches.samples or 0
    streams = _streaming_seconds(places, layouts, available, sketch, exact_up_to)
    estimated = available * one + streams
    # A container hands on what its last layer gave: that is looked at once.
    looked = {name: place for name, place in places.items() if place.same_as is None or name in owners}
    what, most = f"{available} samples", None
    share = SHARES["representations"]
    if available and not effort.fits(estimated, share):
        most = max(FEWEST_SAMPLES, min(available, int(max(share * effort.left - streams, 0.0) / max(one, 1e-9))))
    each = max(1, BATCH_BYTES // ready.widest)
    with effort.part("representations", batches.samples, estimated, what) as part:
        how = Streaming(sketch, exact_up_to, seed, coarse, most or available)
        cut = batches.pieces(each, most=most, goes_on=lambda: part.goes_on(share))
        seen = observe(ready.run, cut, looked, layouts, how=how, bar=part.bar)
        part.what = f"{seen.samples} samples"
        all_of_them = available or batches.samples
        if seen.samples != all_of_them:
            part.reduce(f"{seen.samples} of {all_of_them or 'the'} samples")
    return seen


#: Samples that are run even if there is no time for them.
FEWEST_SAMPLES = 16


def _streaming_seconds(
    places: Mapping[str, OutputPlace], layouts: Mapping[str, str], samples: int, sketch: int, exact_up_to: int
) -> float:
    """What the spectra of all layers are expected to take."""
    work = 0.0
    for name, place in places.items():
        units = place.shape[0] if layouts.get(name) == "channels-first" else (place.shape or (1,))[-1]
        for width, rows in ((units, min(samples * place.size // max(units, 1), MOST_ROWS)), (place.size, samples)):
            columns = width if width <= exact_up_to else sketch
            few = min(rows, columns)
            work += 2.0 * rows * columns * few + 4.0 * few * few * columns
    return work / RATE


def _passage(ready: _Ready, effort: Effort, one: float) -> Passage:
    """What passes through each layer, on as many samples as there are time and memory for."""
    names = [name for name in ready.places if name]
    available = min(PASSAGE_SAMPLES, max(count_samples(ready.few) - 1, 1))
    room = PASSAGE_BYTES // (4 * ready.widest)
    choices = [n for n in (available, 4, 1) if n <= available]
    samples = next((n for n in choices if n <= room and effort.fits(2 * one * n * len(names), 0.25)), 1)
    share = SHARES["passage"]
    estimated = 2 * one * samples * len(names)
    with effort.part("passage", len(names), estimated, "") as part:

        def step() -> bool:
            part.bar.advance()
            return part.goes_on(share)

        passage = bypass(ready.run, ready.leading(samples + 1), names, step, together=ready.batches.together)
        what = f"{passage.samples} samples beside a fixed one"
        part.what = what
        if passage.left:
            part.reduce(f"{what}; {len(passage.left)} of {len(names)} layers left out, from {passage.left[0]!r} on")
        elif samples < available:
            part.reduce(f"{what} instead of {available}")
    return passage


#: Samples and random directions of the Jacobians, from the most to the least that says something.
JACOBIANS = ((16, 128), (8, 64), (4, 64), (4, 32), (2, 32), (2, 16))


def _jacobians(
    run: nn.Module,
    few: Call,
    places: Mapping[str, OutputPlace],
    effort: Effort,
    one: float,
    most: int,
    source: str | None,
    seed: int,
) -> Jacobians:
    """Jacobians on as many samples, in as many directions, as there is time for."""
    available = min(most, count_samples(few))
    entry = input_size(few) if source is None else places[source].size
    sizes = [place.size for place in places.values() if place.batch_axis is not None]

    def seconds(samples: int, directions: int) -> float:
        count = min(directions, entry)
        # A forward with tangents takes about three without; each layer's tangents are decomposed.
        return samples * (3.0 * one * count + sum(2.0 * size * count**2 for size in sizes) / RATE)

    choices = [(min(n, available), r) for n, r in JACOBIANS]
    share = SHARES["jacobians"]
    chosen = next(((n, r) for n, r in choices if effort.fits(seconds(n, r), share)), None)
    if chosen is None:
        least = seconds(*choices[-1])
        effort.leave_out("jacobians", least, f"the least that says something takes about {least:.0f} s")
        return Jacobians({}, "left out: the budget is used up")
    samples, directions = chosen
    with effort.part("jacobians", samples, seconds(*chosen), "") as part:
        done = 0

        def step(count: int) -> bool:
            nonlocal done
            part.bar.advance(count - done)
            done = count
            return part.goes_on(share)

        found = layer_jacobians(
            run, _leading(few, samples), places, source=source, seed=seed, directions=directions, step=step
        )
        # A module that has none says so itself, in its state.
        part.what = f"{done} samples" if entry <= DIRECTIONS else f"{done} samples, {directions} random directions"
        if chosen != (available, JACOBIANS[0][1]) or done < samples:
            part.reduce(f"{part.what}, instead of {available} samples and {JACOBIANS[0][1]} directions")
    return found


def _of_family(
    plain: nn.Module, family: Network | None, inputs: Sequence[Any], found: Findings, ridge: float | None
) -> tuple[dict[str, Any], Isthmus | None]:
    """Numbers that only some families have, and the rank of a fully connected network by its whole trace."""
    numbers: dict[str, Any] = {}
    narrow = None
    if len(inputs) != 1:
        return numbers, narrow
    X, chain = inputs[0], fully_connected(plain)
    if chain is not None and isinstance(X, Tensor) and X.ndim == 2:
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
    if input_size(call):
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
    """

    weighted: list[WeightedLayer]
    blocks: Mapping[str, nn.Module]
    places: Mapping[str, OutputPlace]
    seen: Observation
    passage: Passage
    eps: float
    seed: int = 0
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
            bypass=share,
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
        reading, share = read_samples(found.spectra, GapRule(), self.eps)
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

    def unless_few(self, narrow: Isthmus, layers: tuple[LayerDiagnosis, ...]) -> Isthmus:
        """The answer; undetermined where samples are too few to show more dimensions than they are.

        N samples show at most N − 1 dimensions at every layer. If inputs, outputs and data have more, a layer that is
        narrower than these need not look so: its width m, at most, is the rank that more than 2m + 1 samples decide.
        """
        gates, most = self.gates(layers), self.seen.samples - 1
        if narrow.rank is not None or len(gates) < 2 or not self.finite:
            return narrow
        inputs = self.seen.inputs
        ends = [self.places[self.output].size, *([] if inputs is None else [inputs.width])]
        narrowest = min([self.places[gate.name or self.output].size for gate in gates] + ends)
        if inputs is not None and inputs.rows > 1:
            reading = read_spectrum(inputs.spectrum(), eps=self.eps, floor=self._floor(inputs))
            if reading.status != "unclear" and reading.count < most:
                return narrow  # the data have no more dimensions, however many samples there were
        if most >= (min(ends) if narrow.verdict == "none" else narrowest):
            return narrow
        needed = 2 * narrowest + 2
        few = f"{most + 1} samples show at most {most} dimensions of any layer: supply at least {needed}"
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
