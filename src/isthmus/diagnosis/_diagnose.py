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
from isthmus._deprecations import renamed
from isthmus._errors import IsthmusError
from isthmus._progress import ProgressFactory, shown
from isthmus._provenance import provenance
from isthmus.diagnosis._calls import Call, count_samples, first_tensor, take
from isthmus.diagnosis._capture import Called, OutputPlace, in_float64, survey, untouched, unwrap
from isthmus.diagnosis._effort import RATE, Effort
from isthmus.diagnosis._findings import Findings
from isthmus.diagnosis._inputs import Batches
from isthmus.diagnosis._inputs import batches as batches_of
from isthmus.diagnosis._jacobians import (
    DIRECTIONS,
    INFLUENCE,
    NTK_DIRECTIONS,
    Jacobians,
    Passage,
    bypass,
    input_size,
    layer_jacobians,
    ntk_trace,
)
from isthmus.diagnosis._observe import MOST_ROWS, Observation, Streaming, observe
from isthmus.diagnosis._ranks import (
    Isthmus,
    isthmus_of_chain,
)
from isthmus.diagnosis._result import Diagnosis
from isthmus.diagnosis._soft import Subject, without_bottleneck
from isthmus.diagnosis._weights import WeightedLayer, weighted_layers
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
from isthmus.measures import Minimum, bottleneck_rank, nonnegativity
from isthmus.networks import FullyConnected, Network, from_torch
from isthmus.networks._reading import set_submodule
from isthmus.objective import LOSSES

#: Samples that are run with one layer frozen, for every layer.
PASSAGE_SAMPLES = 16

#: Samples whose whole trace a fully connected network is judged on.
TRACE_SAMPLES = 2000


@renamed(module="net")
def diagnose(
    net: nn.Module,
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
    progress: bool | ProgressFactory = False,
) -> Diagnosis:
    """Diagnose any trained PyTorch network: spectra, ranks and Jacobians at every layer, and where its isthmus is.

    Parameters
    ----------
    net : nn.Module
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
        How the network is called where not as ``net(X)``: ``forward(net, x)`` with ``x`` as ``X`` is, for some
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
    progress : bool or callable, default False
        Show on stderr how far it is, as in ``train``.

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
    effort = Effort(budget, shown(progress))
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
    plain, notes = unwrap(net)
    family = plain if isinstance(plain, Network) else None
    plain = as_torch(plain)
    if forward is not None:
        if not callable(forward):
            fail(who, "`forward` must be callable", type(forward).__name__, "Pass a function of the network and of x.")
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
        if jacobian_samples and layers is None and found.finite and fully_connected(plain) is None:
            numbers |= _ntk(ready, found, effort, jacobian_samples, seed)
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
    narrowest = None
    if narrow.verdict != "determined" and found.finite:
        # Every layer that was seen to hold what the forward gives.
        known = {one.name: ready.places[one.name] for one in table if one.name in ready.places}
        subject = Subject(
            run=run,
            batches=batches,
            few=ready.few,
            places={**known, "": ready.places[""]},
            layouts=_layouts(weighted, blocks),
            each=ready.each,
            one=found.one,
            seed=seed,
        )
        with untouched(run):
            table, narrowest, more_notes = without_bottleneck(subject, table, effort)
        notes += more_notes
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
        narrowest=narrowest,
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

    @property
    def each(self) -> int:
        """Samples that fit into one forward."""
        return max(1, BATCH_BYTES // self.widest)

    def leading(self, samples: int) -> Call:
        """The first few samples; all of them where they belong together."""
        return self.few if self.batches.together else _leading(self.few, samples)

    @torch.no_grad()
    def seconds(self) -> float:
        """Of a forward, for each sample; of the first two, as what is loaded at the first call is not repeated."""
        call = self.leading(max(1, min(4, BATCH_BYTES // self.widest)))
        taken = []
        for _ in range(2):
            started = time.perf_counter()
            self.run(*call[0], **call[1])
            taken.append(time.perf_counter() - started)
        return min(taken) / count_samples(call)


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
    entry = None if ready.batches.together or _begins_with_numbers(ready.few) else _embedding(places, weighted)
    how = Streaming(sketch, exact_up_to, seed, _coarse(run), 0, entry is not None)
    seen = _representations(ready, {one.name for one in weighted}, _layouts(weighted, blocks), effort, one, how)
    passage = _passage(ready, effort, one)
    found = Findings(weighted, blocks, places, seen, passage, eps, seed, one, entry)
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
        source = None if input_size(ready.few) else _embedding(places, weighted)
        found.jacobians = _jacobians(run, ready.few, places, effort, one, jacobian_samples, source, seed)
    return found


#: Share of what is left of the budget that each part may take.
SHARES = {"representations": 0.5, "passage": 0.5, "jacobians": 0.6, "NTK": 0.3}


def _representations(
    ready: _Ready,
    owners: set[str],
    layouts: dict[str, str],
    effort: Effort,
    one: float,
    how: Streaming,
) -> Observation:
    """One pass over as many samples as there is time for."""
    batches, places = ready.batches, ready.places
    available = batches.samples or 0
    streams = _streaming_seconds(places, layouts, available, how)
    estimated = available * one + streams
    # A container hands on what its last layer gave: that is looked at once.
    looked = {name: place for name, place in places.items() if place.same_as is None or name in owners}
    what, most = f"{available} samples", None
    share = SHARES["representations"]
    if available and not effort.fits(estimated, share):
        most = max(FEWEST_SAMPLES, min(available, int(max(share * effort.left - streams, 0.0) / max(one, 1e-9))))
    with effort.part("representations", batches.samples, estimated, what) as part:
        how = replace(how, expected=most or available)
        cut = batches.pieces(ready.each, most=most, goes_on=lambda: part.goes_on(share))
        seen = observe(ready.run, cut, looked, layouts, how=how, bar=part.bar)
        part.what = f"{seen.samples} samples"
        all_of_them = available or batches.samples
        if seen.samples != all_of_them:
            part.reduce(f"{seen.samples} of {all_of_them or 'the'} samples")
    return seen


#: Samples that are run even if there is no time for them.
FEWEST_SAMPLES = 16


def _coarse(module: nn.Module) -> bool:
    """Whether the module carries no more than single precision."""
    kinds = {t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()}
    return bool(kinds) and torch.float64 not in kinds


def _streaming_seconds(
    places: Mapping[str, OutputPlace], layouts: Mapping[str, str], samples: int, how: Streaming
) -> float:
    """What the spectra of all layers are expected to take."""
    work = 0.0
    for name, place in places.items():
        units = place.shape[0] if layouts.get(name) == "channels-first" else (place.shape or (1,))[-1]
        streams = [(units, min(samples * place.size // max(units, 1), MOST_ROWS)), (place.size, samples)]
        for width, rows in streams[: 1 if how.by_position else 2]:
            columns = width if width <= how.exact_up_to else how.sketch
            few = min(rows, columns)
            work += 2.0 * rows * columns * few + 4.0 * few * few * columns
    return work / RATE


def _passage(ready: _Ready, effort: Effort, one: float) -> Passage:
    """What passes through each layer, on as many samples as there are time and memory for."""
    names = [name for name in ready.places if name]
    available = min(PASSAGE_SAMPLES, max(count_samples(ready.few) - 1, 1))
    room = PASSAGE_BYTES // (4 * ready.widest)
    choices = [n for n in (available, 4, 1) if n <= available]
    samples = next((n for n in choices if n <= room and effort.fits(1.25 * one * n * len(names), 0.25)), 1)
    share = SHARES["passage"]
    estimated = 1.25 * one * samples * len(names)
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


def _ntk(ready: _Ready, found: Findings, effort: Effort, most: int, seed: int) -> dict[str, Any]:
    """The trace of the neural tangent kernel, where samples do not influence each other."""
    if found.jacobians.state.endswith(INFLUENCE) or ready.batches.together:
        return {}
    call = _leading(ready.few, most)
    # A backward pass takes about two forward ones.
    estimated = (1.0 + 2.0 * NTK_DIRECTIONS) * found.one * count_samples(call)
    share, done = SHARES["NTK"], 0
    if not effort.fits(estimated / count_samples(call), share):
        effort.leave_out("NTK", estimated, f"{count_samples(call)} samples")
        return {}
    with effort.part("NTK", count_samples(call), estimated, "") as part:

        def step() -> bool:
            nonlocal done
            part.bar.advance()
            goes_on = part.goes_on(share)
            done += goes_on
            return goes_on

        try:
            trace = ntk_trace(ready.run, call, seed=seed, step=step)
        except (RuntimeError, NotImplementedError) as problem:
            part.what = f"not computed: {' '.join(str(problem).split())[:200]}"
            return {}
        part.what = trace.method
        if done < count_samples(call):
            part.reduce(trace.method)
    if not math.isfinite(trace.value):
        return {}
    known = {"ntk_trace": trace.value}
    return known | ({"ntk_trace_range": [trace.low, trace.high]} if math.isfinite(trace.low) else {})


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
                set_submodule(whole, name, as_torch(part))
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


def _begins_with_numbers(call: Call) -> bool:
    """Whether the first argument is no array of integers."""
    first = first_tensor([*call[0], *call[1].values()])
    return first is None or first.is_floating_point()


def _embedding(places: Mapping[str, OutputPlace], weighted: list[WeightedLayer]) -> str | None:
    """The embedding that is called first."""
    kinds = {layer.name: layer.kind for layer in weighted}
    first = [name for name in places if kinds.get(name) == "embedding"]
    return min(first, key=lambda name: places[name].order, default=None)


def _notes_on(jacobians: Jacobians) -> list[str]:
    if jacobians.state != "computed":
        return [f"Jacobians {jacobians.state}"]
    return [] if jacobians.source == "inputs" else [f"Jacobians are with respect to the {jacobians.source}"]


def _leading(call: Call, samples: int) -> Call:
    return take(call, torch.arange(min(samples, count_samples(call))))
