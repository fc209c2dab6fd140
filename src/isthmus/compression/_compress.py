"""The verb: a smaller network with a certificate of equality."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus._checks import as_matrix, as_tensor, check_number, fail
from isthmus._cite import cites
from isthmus.compression._certificate import (
    EVERYWHERE,
    ON_DATA,
    UNCHANGED,
    WITHIN,
    Certificate,
    Compressed,
    LayerChange,
)
from isthmus.compression._stacks import (
    Options,
    PlainStack,
    Shrunk,
    deviation,
    find_stacks,
    probe_points,
    put_back,
    shrink_exactly,
    shrink_within,
)

_WHO = "compress"


@cites("features2022", "§3.1 and §4", ids=("A-merge", "A-caratheodory"))
@torch.no_grad()
def compress(
    net: nn.Module,
    X: Any = None,
    *,
    tolerance: float = 0.0,
    check: Any = None,
    rebalance: bool = True,
    allow_larger_norm: bool = False,
) -> Compressed:
    """A smaller network that computes the same, and the evidence that it does.

    Parameters
    ----------
    net : nn.Module
        FullyConnected, also Standardized; an ``nn.Sequential`` of Linear, ReLU, LeakyReLU and Identity; or any module,
        of which stacks of this kind are compressed and the rest is left alone and listed. Not modified.
    X : array (N, d_in), optional
        Without it only what is exact for every input is done: dead and constant neurons, neurons on one ray. With it
        also what is exact on these samples, whose outputs the result keeps; elsewhere it may differ.
    tolerance : float, default 0
        Above 0, and with ``X``: outputs on X may move by this share of the largest output. Neurons are then chosen and
        the weights after them refitted, and layers of low rank are factored where that has fewer parameters.
    check : array, optional
        Other samples, on which the deviation is measured and told.
    rebalance : bool, default True
        Rescale neurons to the least ‖θ‖² at the same function.
    allow_larger_norm : bool, default False
        Allow what saves parameters though ‖θ‖² grows: constants into biases, linear layers into one another.

    Returns
    -------
    Compressed
        ``network`` and ``certificate``.

    Notes
    -----
    Each phase is done on a copy, the copy evaluated in float64 beside the original, and taken back if it deviates by
    more than rounding (1e-12 of the largest output; for weights stored in fewer digits, what those allow), is larger,
    or has a larger norm. So the result is never larger than ``net``.

    Examples
    --------
    >>> import torch, isthmus
    >>> net = isthmus.FullyConnected.from_weights([[[1.0], [2.0], [-1.0]], [[1.0, 1.0, 0.0]]], [[0.0] * 3, [0.5]])
    >>> small = isthmus.compress(net)
    >>> small.network.dims, small.certificate.domain
    ((1, 1, 1), 'everywhere')
    """
    if not isinstance(net, nn.Module):
        fail(_WHO, "`net` must be a torch.nn.Module", type(net).__name__, "Pass the network itself.")
    check_number(_WHO, "tolerance", tolerance, low=0.0, high=1.0)
    if tolerance > 0.0 and X is None:
        fail(_WHO, "`X` must be given with a tolerance", "none", "Pass the inputs on which outputs may move by it.")
    parameters = _counted(net)
    if not parameters:
        fail(_WHO, "`net` must have parameters", type(net).__name__, "Pass a network with layers.")
    double = copy.deepcopy(net).double().eval()
    stacks, untouched = find_stacks(double)
    alone = len(stacks) == 1 and not untouched and _spans(double, stacks[0])
    columns = stacks[0].layers.d_in if alone else None
    data = None if X is None else _inputs(X, "X", columns)
    other = None if check is None else _inputs(check, "check", columns)
    eps = max(torch.finfo(p.dtype).eps for p in parameters if p.dtype.is_floating_point)
    options = Options(rebalance, allow_larger_norm, max(eps, torch.finfo(torch.float64).eps))
    seen = _inputs_of_stacks(double, stacks, data)
    whole = Whole(double, points_for(double, columns, data))
    done, exact, notes = _shrunk(whole, stacks, seen, tolerance, options)
    domain = _domain(done)
    if data is not None and any(rows is None for rows in seen):
        notes.append("X does not reach every part: there only what is exact everywhere was done")
    if not whole.at and domain != UNCHANGED:
        notes.append("the parts were evaluated one by one; pass X to evaluate the whole")
    if domain == EVERYWHERE and columns is not None and data is not None:
        whole = Whole(double, probe_points(columns, data))
    # What nothing was done to is given back as it is, to the bit.
    result = copy.deepcopy(net) if domain == UNCHANGED else rebuilt(net, done)
    final = copy.deepcopy(result).double().eval()
    off = exact if domain == UNCHANGED or not whole.at else whole.deviation_of(final)
    if not off <= options.exact + (tolerance if domain == WITHIN else 0.0):
        notes.append(f"stored in the digits of the network the result would deviate by {off:.1e}: all was taken back")
        done, exact, off, domain = [_as_it_was(stack) for stack in stacks], 0.0, 0.0, UNCHANGED
        result, final = copy.deepcopy(net), double
    left = _counted(result)
    times = latency(net, result, whole.at[0] if whole.at else None)
    certificate = Certificate(
        domain=domain,
        deviation=off,
        before_rounding=exact,
        tolerance=tolerance if domain == WITHIN else 0.0,
        points=0 if domain == UNCHANGED else sum(map(len, whole.at)) or max(one.points for one in done),
        elsewhere=None if other is None else Whole(double, [other]).deviation_of(final),
        norm_before=_norm(stacks, None, double),
        norm_after=_norm(stacks, done, double),
        parameters_before=sum(p.numel() for p in parameters),
        parameters_after=sum(p.numel() for p in left),
        bytes_before=sum(p.numel() * p.element_size() for p in parameters),
        bytes_after=sum(p.numel() * p.element_size() for p in left),
        latency_before=times[0],
        latency_after=times[1],
        batch=times[2],
        layers=tuple(change for stack, one in zip(stacks, done) for change in _changes(stack, one)),
        untouched=tuple(untouched),
        notes=tuple(dict.fromkeys(notes)),
    )
    return Compressed(result, certificate)


def _counted(module: nn.Module) -> list[Tensor]:
    """The parameters, without slopes that only tell which neurons of a stack are linear."""
    inside = (layer for stack in find_stacks(module)[0] for layer in stack.module.children())
    slopes = {id(layer.weight) for layer in inside if isinstance(layer, nn.PReLU)}
    return [p for p in module.parameters() if id(p) not in slopes]


def _inputs(X: Any, name: str, columns: int | None) -> Tensor:
    """Float64 rows for a plain network; for other modules whatever shape, integers as they are."""
    if columns is not None:
        return as_matrix(_WHO, name, X, columns=columns)
    kind = X.dtype if isinstance(X, (Tensor, np.ndarray)) else None
    if isinstance(X, Tensor) and not X.dtype.is_floating_point and not X.is_complex():
        return X.detach()
    if isinstance(kind, np.dtype) and kind.kind in "iu":
        return torch.from_numpy(np.array(X, dtype=np.int64))
    return as_tensor(_WHO, name, X)


def _spans(module: nn.Module, stack: PlainStack) -> bool:
    """Whether a stack is all of the module."""
    return stack.module is module or (stack.holder is module and len(module._modules) == len(stack.module._modules))


def _inputs_of_stacks(module: nn.Module, stacks: Sequence[PlainStack], X: Tensor | None) -> list[Tensor | None]:
    """What each stack is fed when the module sees X, as rows; None where it was not reached."""
    if X is None:
        return [None] * len(stacks)
    if len(stacks) == 1 and _spans(module, stacks[0]) and module in (stacks[0].holder, stacks[0].layers):
        return [X]
    caught: list[list[Tensor]] = [[] for _ in stacks]
    handles = []
    for index, stack in enumerate(stacks):

        def keep(_: nn.Module, given: tuple[Any, ...], index: int = index, stack: PlainStack = stack) -> None:
            caught[index].append(given[0].reshape(-1, stack.layers.d_in).detach().to("cpu", torch.float64))

        handles.append(stack.entry.register_forward_pre_hook(keep))
    try:
        module(X.to(next(module.parameters()).device))
    except Exception as problem:  # whatever a user's module raises on inputs that do not fit
        got = f"{type(problem).__name__}: {problem}"
        fail(_WHO, "`net` must run on `X`", got, "Pass X in the shape that the module takes.")
    finally:
        for handle in handles:
            handle.remove()
    return [torch.cat(rows) if rows else None for rows in caught]


def _domain(done: Sequence[Shrunk]) -> str:
    found = {one.domain for one in done}
    return next((domain for domain in (WITHIN, ON_DATA, EVERYWHERE) if domain in found), UNCHANGED)


def _shrunk(
    whole: Whole, stacks: Sequence[PlainStack], seen: Sequence[Tensor | None], tolerance: float, options: Options
) -> tuple[list[Shrunk], float, list[str]]:
    """Smaller stacks that together stay within what is allowed, the deviation of the whole, and notes."""
    notes: list[str] = []
    if not stacks:
        return [], 0.0, notes
    done = [shrink_exactly(stack.draft, rows, options) for stack, rows in zip(stacks, seen)]
    found = whole.deviation(done)
    if not found <= options.exact:
        notes.append(f"the parts put together deviate by {found:.1e} of the largest output, more than rounding")
        for index, stack in enumerate(stacks):
            alone = [one if i == index else _as_it_was(stacks[i]) for i, one in enumerate(done)]
            if not whole.deviation(alone) <= options.exact:
                done[index] = _as_it_was(stack)
                notes.append(f"{stack.name or 'the network'} was taken back: the module uses it in another way as well")
        found = whole.deviation(done)
        if not found <= options.exact:
            done, found = [_as_it_was(stack) for stack in stacks], 0.0
            notes.append("all was taken back")
    # A deviation may grow on its way to the outputs: each stack gets an equal share of what is allowed, or less.
    for power in range(4) if tolerance > 0.0 else ():
        share = tolerance / len(stacks) / 4**power
        trial = [shrink_within(one, stack.draft, rows, share, options) for one, stack, rows in zip(done, stacks, seen)]
        off = whole.deviation(trial)
        if off <= tolerance:
            done, found = trial, off
            break
        notes.append(f"at {share:.2g} each the parts put together deviate by {off:.1e}; taken back")
    return done, found, notes + [note for one in done for note in one.notes]


def _as_it_was(stack: PlainStack) -> Shrunk:
    return Shrunk(stack.draft, UNCHANGED, 0)


def _norm(stacks: Sequence[PlainStack], done: Sequence[Shrunk] | None, module: nn.Module) -> float:
    """‖θ‖² of the whole module, its stacks counted as they are or as they were shrunk."""
    inside = {id(p) for stack in stacks for p in stack.module.parameters()}
    rest = sum(float(p.square().sum()) for p in module.parameters() if id(p) not in inside)
    drafts = [stack.draft for stack in stacks] if done is None else [one.draft for one in done]
    return rest + sum(draft.norm for draft in drafts)


def _changes(stack: PlainStack, one: Shrunk) -> list[LayerChange]:
    """Every hidden layer there was or is, in the order of depth."""
    prefix = stack.name.rpartition(".")[0] if stack.holder is not None else stack.name
    before = dict(zip(stack.draft.names, stack.draft.widths))
    after = dict(zip(one.draft.names, one.draft.widths))
    linear = {name: int(mask.sum()) for name, mask in zip(one.draft.names, one.draft.linear)}
    order = list(one.draft.names)
    for i, name in enumerate(stack.draft.names):
        if name not in after:
            # Joined with the next: it stands after the layer that it followed.
            place = order.index(stack.draft.names[i - 1]) + 1 if i else 0
            order.insert(place, name)
    return [
        LayerChange(
            f"{prefix}.{name}" if prefix else name,
            before.get(name, 0),
            after.get(name, 0),
            linear.get(name, 0),
            dict(one.draft.removed.get(name, {})),
        )
        for name in order
    ]


# ---- The whole network before and after: its outputs beside each other, and the time that it takes


#: Rows and repetitions of a timed forward pass.
BATCH, PASSES = 256, 21


def points_for(module: nn.Module, columns: int | None, X: Tensor | None) -> list[Tensor]:
    """Where a network is evaluated: on the data, or at random points where the shape of inputs is known."""
    if X is not None:
        return [X]
    shift, scale = getattr(module, "shift", None), getattr(module, "scale", None)
    # What a network divides its inputs by tells how large they are.
    around = (shift, scale) if isinstance(shift, Tensor) and isinstance(scale, Tensor) else None
    return [] if columns is None else probe_points(columns, None, around)


class Whole:
    """A module in float64 and its outputs at some points, to compare others with.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode.
    at : sequence of Tensor
        Inputs; none if nothing is known that the module takes.
    """

    def __init__(self, module: nn.Module, at: Sequence[Tensor]) -> None:
        device = next(module.parameters()).device
        self.module, self.at = module, [X.to(device) for X in at]
        self.outputs = _outputs(module, self.at)

    def deviation(self, done: Sequence[Shrunk]) -> float:
        """Of the module with these stacks in place of its own; ∞ where it cannot be evaluated."""
        if not self.at:
            return max((one.deviation for one in done), default=0.0)
        try:
            return self.deviation_of(rebuilt(self.module, done))
        except Exception:  # whatever a user's module raises when a layer inside it has another width
            return math.inf

    def deviation_of(self, other: nn.Module) -> float:
        """The largest max|Δ| / max|output| over all outputs; ∞ where they differ in shape."""
        after = _outputs(other, self.at)
        if [len(one) for one in self.outputs] != [len(one) for one in after]:
            return math.inf
        return max((deviation(a, b) for a, b in zip(self.outputs, after)), default=0.0)


def _outputs(module: nn.Module, at: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor that the module gives at the points, flat."""
    found: list[Tensor] = []

    def gather(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value.detach().double().flatten())
        elif isinstance(value, (tuple, list)):
            for item in value:
                gather(item)
        elif isinstance(value, dict):
            for item in value.values():
                gather(item)

    for X in at:
        gather(module(X))
    return found


def rebuilt(net: nn.Module, done: Sequence[Shrunk]) -> nn.Module:
    """A copy of ``net`` with its stacks replaced by those that were shrunk."""
    root = copy.deepcopy(net)
    stacks, _ = find_stacks(root)
    for stack, one in zip(stacks, done):
        if one.domain == UNCHANGED:
            continue
        made = stack.rewritten(one.draft, rows=_spans(root, stack))
        if stack.module is root:
            return made
        put_back(root, stack, made)
    return root


@torch.no_grad()
def latency(net: nn.Module, other: nn.Module, X: Tensor | None) -> tuple[float, float, int]:
    """Median milliseconds of a forward pass of each, in turn, and the rows of a pass; NaN without inputs."""
    if X is None:
        return math.nan, math.nan, 0
    first = next(net.parameters())
    rows = X[:BATCH].to(first.device)
    rows = rows.to(first.dtype) if rows.dtype.is_floating_point else rows
    modules = (net, other)
    modes = [module.training for module in modules]
    times: list[list[float]] = [[], []]
    for module in modules:
        module.eval()(rows)
    for _ in range(PASSES):
        for spent, module in zip(times, modules):
            start = time.perf_counter()
            module(rows)
            spent.append(1e3 * (time.perf_counter() - start))
    for module, training in zip(modules, modes):
        module.train(training)
    return statistics.median(times[0]), statistics.median(times[1]), len(rows)
