"""The verb: what does a trained network really use, where is its isthmus, and how narrow is it?"""

from __future__ import annotations

import copy
import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus._errors import IsthmusError
from isthmus._progress import ProgressFactory, silent
from isthmus._provenance import provenance
from isthmus.diagnosis.capture import in_float64, untouched, unwrap
from isthmus.diagnosis.findings import Findings
from isthmus.diagnosis.inputs import Batches
from isthmus.diagnosis.inputs import batches as batches_of
from isthmus.diagnosis.jacobians import Jacobians, layer_jacobians
from isthmus.diagnosis.observe import observe
from isthmus.diagnosis.passage import bypass
from isthmus.diagnosis.ranks import isthmus_of_chain
from isthmus.diagnosis.result import Diagnosis
from isthmus.diagnosis.survey import Call, Place, samples_of, survey, take
from isthmus.diagnosis.weights import WeightedLayer, weighted_layers
from isthmus.diagnosis.whole import describe, fit_numbers, fully_connected_numbers, mechanics_of
from isthmus.measures import bottleneck_rank, kept_frequencies
from isthmus.networks import ConvolutionalNet, FullyConnected, Hourglass, LeakyResNet, from_torch
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
    check_integer(who, "seed", seed, low=0)
    plain, notes = unwrap(module)
    convolved = plain if isinstance(plain, ConvolutionalNet) else None
    plain = as_torch(plain)
    weighted = [layer for layer in weighted_layers(plain) if wanted(layer.name, layers)]
    if layers is not None and not weighted:
        fail(who, "`layers` must name layers with parameters", layers, "See `module.named_modules()` for their names.")
    blocks = _blocks(plain, weighted, layers)
    names = [layer.name for layer in weighted if layer.name]

    def prepared(run: nn.Module) -> tuple[Batches, Call, dict[str, Place]]:
        batches = batches_of(who, X, run, batch_size=batch_size, unpack=unpack)
        few = batches.first(max(PASSAGE_SAMPLES, jacobian_samples))
        return batches, few, survey(run, few, [*names, *blocks, ""])

    run, how = in_float64(plain) if precision == "float64" else (plain, "own dtype, as asked")
    try:
        batches, few, places = prepared(run)
    except IsthmusError:
        if run is plain:
            raise
        # A forward that insists on a dtype runs in no other.
        run, how = plain, "own dtype: it does not run in float64"
        batches, few, places = prepared(run)
    notes.append(f"run in evaluation mode: {how}")
    with untouched(run), progress(batches.samples, who) as bar:
        layouts = _layouts(weighted, blocks)
        seen = observe(run, batches, places, layouts, sketch=sketch, exact_up_to=exact_up_to, seed=seed, bar=bar)
        shares = bypass(run, _leading(few, PASSAGE_SAMPLES), [name for name in places if name])
        jacobians = Jacobians({}, "not computed: not asked for")
        if jacobian_samples:
            source = _embedding(few, places, weighted)
            jacobians = layer_jacobians(run, _leading(few, jacobian_samples), places, source=source, seed=seed)
        numbers = describe(plain)
        if Y is not None:
            numbers |= fit_numbers(run, batches, Y, loss, ridge)
    eps = unit_roundoff(plain) * max(len(places), 1)
    found = Findings(weighted, blocks, places, seen, shares, jacobians, eps, seed)
    table = found.layers()
    narrow = found.isthmus(table)
    chain = _fully_connected(plain) if layers is None else None
    inputs = batches.first(TRACE_SAMPLES)[0]
    if chain is not None and len(inputs) == 1 and inputs[0].ndim == 2:
        X_few = inputs[0].double()
        numbers |= fully_connected_numbers(chain, X_few, ridge)
        order = [layer.name for layer in weighted]
        dims = chain.dims
        if found.finite:
            narrow = isthmus_of_chain(bottleneck_rank(chain.trace(X_few)), order, dims[0], dims[-1])
    if convolved is not None and layers is None and len(inputs) == 1 and found.finite:
        numbers["kept_frequencies"] = kept_frequencies(convolved.trace(inputs[0])).to_dict()
    moved = None
    if isinstance(plain, LeakyResNet) and Y is not None and ridge is not None:
        moved = mechanics_of(plain, batches, Y, loss, ridge)
    if jacobians.state != "computed":
        notes.append(f"Jacobians {jacobians.state}")
    elif jacobians.source != "inputs":
        notes.append(f"Jacobians are with respect to the {jacobians.source}")
    settings = {
        "ridge": ridge,
        "loss": loss,
        "layers": [layers] if isinstance(layers, str) else None if layers is None else list(layers),
        "batch_size": batch_size,
        "jacobian_samples": jacobian_samples,
        "precision": precision,
        "sketch": sketch,
        "exact_up_to": exact_up_to,
        "seed": seed,
    }
    return Diagnosis(
        isthmus=narrow,
        agreement=found.agreement(table, narrow),
        layers=table,
        whole=numbers,
        samples=seen.samples,
        notes=tuple(dict.fromkeys([*notes, *batches.notes])),
        settings=settings,
        provenance=provenance(
            seed=seed, dtype=how, device=numbers["device"], started=started, seconds=time.time() - started
        ),
        mechanics=moved,
    )


def as_torch(module: nn.Module) -> nn.Module:
    """The same with networks of this library, itself or inside, as plain layers, which can be hooked."""
    ours = (FullyConnected, Hourglass, ConvolutionalNet)
    if not any(isinstance(part, ours) for part in module.modules()):
        return module
    # New layers draw their first weights from the global generator.
    with torch.random.fork_rng(devices=[]):
        if isinstance(module, ours):
            return (module.merged() if isinstance(module, Hourglass) else module).to_torch()
        whole = copy.deepcopy(module)
        for name, part in list(whole.named_modules()):
            if isinstance(part, ours):
                whole.set_submodule(name, as_torch(part))
        return whole


def _fully_connected(module: nn.Module) -> FullyConnected | None:
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


def _embedding(call: Call, places: Mapping[str, Place], weighted: list[WeightedLayer]) -> str | None:
    """The embedding that comes first, where the inputs are integers."""
    values = [*call[0], *call[1].values()]
    if any(isinstance(v, Tensor) and v.is_floating_point() for v in values):
        return None
    kinds = {layer.name: layer.kind for layer in weighted}
    first = [name for name in places if kinds.get(name) == "embedding"]
    return min(first, key=lambda name: places[name].order, default=None)


def _leading(call: Call, samples: int) -> Call:
    return take(call, torch.arange(min(samples, samples_of(call))))
