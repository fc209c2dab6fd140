"""The verb: a smaller network with a certificate of equality."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from isthmus._checks import as_matrix, check_number, fail
from isthmus._cite import cites
from isthmus._errors import IsthmusError
from isthmus.compression._calls import Call, outputs_in
from isthmus.compression._certificate import (
    EVERYWHERE,
    UNCHANGED,
    WITHIN,
    Certificate,
    Compressed,
    LayerChange,
    Untouched,
)
from isthmus.compression._channels import without_channels
from isthmus.compression._draft import Draft
from isthmus.compression._graphs import blocked
from isthmus.compression._low_rank import put, with_low_rank
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
    unmixed,
)
from isthmus.compression._values import Convolution, Transposed
from isthmus.networks import Network
from isthmus.networks._reading import set_submodule

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
        A chain (FullyConnected, also Standardized; an ``nn.Sequential`` of Linear, ReLU, LeakyReLU and Identity; a
        module that holds one such chain and no other linear layers), or any other module. Not modified.
    X : array (N, …), tuple of arguments or dict of keyword arguments, optional
        Without it only what is exact for every input is done: of a chain dead and constant neurons and those on one
        ray. With it, of a chain, also what is exact on these samples, whose outputs the result keeps; elsewhere it may
        differ. Of other modules channels that no input needs go in either case; X says the shapes.
    tolerance : float, default 0
        Above 0, and with ``X``: outputs on X may move by this share of the largest output. Neurons of a chain are then
        chosen and the weights after them refitted, and weights of low rank become two factors where that has fewer
        parameters: of linear layers, convolutions and attention in any module.
    check : as X, optional
        Other samples, on which the deviation is measured too.
    rebalance : bool, default True
        Rescale neurons to the least ‖θ‖² at the same function.
    allow_larger_norm : bool, default False
        Allow what saves parameters though ‖θ‖² grows: constants into biases, linear layers into one another.

    Returns
    -------
    Compressed
        ``network``, of PyTorch's own layers, and ``certificate``.

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
    >>> [str(layer) for layer in small.network[:2]], small.certificate.domain
    (['Linear(in_features=1, out_features=1, bias=True)', 'ReLU()'], 'everywhere')
    """
    if not isinstance(net, nn.Module):
        fail(_WHO, "`net` must be a torch.nn.Module", type(net).__name__, "Pass the network itself.")
    check_number(_WHO, "tolerance", tolerance, low=0.0, high=1.0)
    if tolerance > 0.0 and X is None:
        fail(_WHO, "`X` must be given with a tolerance", "none", "Pass the inputs on which outputs may move by it.")
    parameters = _counted(net)
    if not parameters:
        fail(_WHO, "`net` must have parameters", type(net).__name__, "Pass a network with layers.")
    if any(p.is_complex() for p in parameters):
        fail(_WHO, "the weights of `net` must be real", "complex ones", "Write them as real and imaginary parts.")
    eps = max(torch.finfo(p.dtype).eps for p in parameters if p.dtype.is_floating_point)
    options = Options(rebalance, allow_larger_norm, max(eps, torch.finfo(torch.float64).eps))
    double = copy.deepcopy(net).double().eval()
    stacks, untouched = find_stacks(double)
    parts = dict(double.named_modules())
    if len(stacks) == 1 and not any(isinstance(parts.get(name, double), _LOOKED_AT) for name, _ in untouched):
        done = _of_chain(net, double, stacks[0], X, tolerance, check, options)
        done.untouched = untouched
    else:
        done = _of_module(plain(net), plain(double), X, tolerance, check, options)
    left = _counted(done.network)
    times = latency(done.before, done.network, done.at)
    work = operations(done.before, done.at), operations(done.network, done.at)
    certificate = Certificate(
        domain=done.domain,
        deviation=done.deviation,
        before_rounding=done.before_rounding,
        tolerance=tolerance if done.domain == WITHIN else 0.0,
        points=done.points,
        elsewhere=done.elsewhere,
        norm_before=done.norms[0],
        norm_after=done.norms[1],
        parameters_before=sum(p.numel() for p in parameters),
        parameters_after=sum(p.numel() for p in left),
        bytes_before=sum(p.numel() * p.element_size() for p in parameters),
        bytes_after=sum(p.numel() * p.element_size() for p in left),
        latency_before=times[0],
        latency_after=times[1],
        batch=times[2],
        operations_before=work[0],
        operations_after=work[1],
        layers=tuple(done.layers),
        untouched=tuple(Untouched(*one) for one in done.untouched),
        notes=tuple(dict.fromkeys(done.notes)),
    )
    return Compressed(done.network, certificate)


def plain(module: nn.Module) -> nn.Module:
    """The same of PyTorch's own layers, with networks of this library, itself or inside, written with these."""
    if not any(isinstance(part, Network) for part in module.modules()):
        return module
    # New layers draw their first weights from the global generator.
    with torch.random.fork_rng(devices=[]):
        if isinstance(module, Network):
            return module.to_torch()
        whole = copy.deepcopy(module)
        names = [name for name, part in whole.named_modules() if isinstance(part, Network)]
        for name in names:
            if not any(name.startswith(f"{outer}.") for outer in names):
                set_submodule(whole, name, unmixed(cast(Network, whole.get_submodule(name))).to_torch())
        return whole


@dataclass(eq=False)
class _Done:
    """What was made of a network, before its size and speed are measured; ``at`` is how both can be called."""

    network: nn.Module
    before: nn.Module
    domain: str
    at: Call | None = None
    deviation: float = 0.0
    before_rounding: float = 0.0
    points: int = 0
    elsewhere: float | None = None
    norms: tuple[float, float] = (0.0, 0.0)
    layers: list[LayerChange] = field(default_factory=list)
    untouched: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# ---- A chain of linear layers with homogeneous activations: neurons, rays, relations between them


def _of_chain(
    net: nn.Module, double: nn.Module, stack: PlainStack, X: Any, tolerance: float, check: Any, options: Options
) -> _Done:
    beside = (
        []
        if stack.holder is not double
        else [part for part in double.children() if part not in [*stack.module.children()]]
    )
    # Inputs are rows, and may be scaled first.
    alone = stack.module is double or (stack.holder is double and all(type(p) is nn.BatchNorm1d for p in beside))
    columns = stack.layers.d_in if alone else None
    stack.draft.mixed = alone
    data, other = (
        None if given is None else _inputs(given, name, columns) for given, name in ((X, "X"), (check, "check"))
    )
    seen = _inputs_of_stack(double, stack, data)
    whole = Whole(double, points_for(double, columns, data))
    done, exact, notes = _shrunk(whole, stack, seen, tolerance, options)
    if data is not None and seen is None:
        notes.append("X does not reach every part: there only what is exact everywhere was done")
    if not whole.at and done.domain != UNCHANGED:
        notes.append("the layers were evaluated by themselves; pass X to evaluate the whole")
    if done.domain == EVERYWHERE and columns is not None and data is not None:
        whole = Whole(double, [Call((points,), {}) for points in probe_points(columns, data.args[0])])
    before = plain(net)
    # What nothing was done to is given back as it is, to the bit.
    result = copy.deepcopy(before) if done.domain == UNCHANGED else rebuilt(net, done)
    final = copy.deepcopy(result).double().eval()
    off = exact if done.domain == UNCHANGED or not whole.at else whole.deviation_of(final)
    if not off <= options.exact + (tolerance if done.domain == WITHIN else 0.0):
        notes.append(f"stored in the digits of the network the result would deviate by {off:.1e}: all was taken back")
        done, exact, off = Shrunk(stack.draft, UNCHANGED, 0), 0.0, 0.0
        result, final = copy.deepcopy(before), double
    return _Done(
        network=result,
        before=before,
        domain=done.domain,
        at=whole.at[0] if whole.at else None,
        deviation=off,
        before_rounding=exact,
        points=0 if done.domain == UNCHANGED else sum(call.rows for call in whole.at) or done.points,
        elsewhere=None if other is None else Whole(double, [other]).deviation_of(final),
        norms=(_norm(stack, stack.draft, double), _norm(stack, done.draft, double)),
        layers=_changes(stack, done),
        notes=notes,
    )


def _counted(module: nn.Module) -> list[Tensor]:
    """The parameters, without slopes that only tell which neurons of a stack are linear."""
    inside = (layer for stack in find_stacks(module)[0] for layer in stack.module.children())
    slopes = {id(layer.weight) for layer in inside if isinstance(layer, nn.PReLU)}
    return [p for p in module.parameters() if id(p) not in slopes]


def _inputs(X: Any, name: str, columns: int | None) -> Call:
    """Float64 rows for a plain network; for other modules whatever they take."""
    return Call.of(X, name) if columns is None else Call((as_matrix(_WHO, name, X, columns=columns),), {})


def _inputs_of_stack(module: nn.Module, stack: PlainStack, call: Call | None) -> Tensor | None:
    """What the stack is fed when the module is called, as rows; None where it was not reached."""
    if call is None:
        return None
    caught: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        caught.append(given[0].reshape(-1, stack.layers.d_in).detach().to("cpu", torch.float64))

    handle = stack.entry.register_forward_pre_hook(keep)
    try:
        _run(module, call)
    finally:
        handle.remove()
    return torch.cat(caught) if caught else None


def _run(module: nn.Module, call: Call) -> Any:
    """What the module returns; what it says where the call does not fit it."""
    try:
        return call.to(module).run(module)
    except Exception as problem:  # whatever a user's module raises on inputs that do not fit
        got = f"{type(problem).__name__}: {problem}"
        do = "Pass X in the shape that the module takes; a tuple holds several arguments, a dict keyword arguments."
        fail(_WHO, "`net` must run on `X`", got, do)


def _shrunk(
    whole: Whole, stack: PlainStack, rows: Tensor | None, tolerance: float, options: Options
) -> tuple[Shrunk, float, list[str]]:
    """A smaller stack within what is allowed, the deviation of the whole, and notes."""
    notes: list[str] = []
    done = shrink_exactly(stack.draft, rows, options)
    found = whole.deviation(done)
    if not found <= options.exact:
        notes.append(
            f"in the whole the result deviates by {found:.1e} of the largest output, more than rounding: all was taken "
            f"back; the module uses {stack.name or 'its layers'} in another way as well"
        )
        done, found = Shrunk(stack.draft, UNCHANGED, 0), 0.0
    # A deviation may grow on its way to the outputs.
    for power in range(4) if tolerance > 0.0 else ():
        share = tolerance / 4**power
        trial = shrink_within(done, stack.draft, rows, share, options)
        off = whole.deviation(trial)
        if off <= tolerance:
            done, found = trial, off
            break
        notes.append(f"at {share:.2g} the whole deviates by {off:.1e}; taken back")
    return done, found, notes + done.notes


def _norm(stack: PlainStack, draft: Draft, module: nn.Module) -> float:
    """‖θ‖² of the whole module with this draft in the place of its stack; b counts, not βb."""
    inside = {id(p) for p in stack.module.parameters()}
    return draft.norm + sum(float(p.square().sum()) for p in module.parameters() if id(p) not in inside)


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


# ---- Any other module: channels that no input needs, and weights of low rank


#: Kinds of layers whose channels or rank are looked at.
_LOOKED_AT = (nn.Linear, *Convolution, *Transposed, nn.MultiheadAttention)


def _of_module(before: nn.Module, double: nn.Module, X: Any, tolerance: float, check: Any, options: Options) -> _Done:
    data, other = (None if given is None else Call.of(given, name) for given, name in ((X, "X"), (check, "check")))
    if data is not None:
        _run(double, data)
    notes: list[str] = []
    try:
        whole = Whole(double, [] if data is None else [data, data.fresh(1.0)])
    except IsthmusError:
        # Integers that mean something together, such as lengths, cannot be drawn one by one.
        whole = Whole(double, [] if data is None else [data])
    if data is None:
        notes.append("pass X: without it shapes are not known, fewer channels can be removed, and nothing is evaluated")
    elif not all(bool(torch.isfinite(one).all()) for one in whole.outputs):
        # A mask of −∞, say: other inputs may mean nothing to the module.
        whole = Whole(double, [data])
    changed, made, layers, exact = double, {}, [], 0.0
    for pads in (True, False):
        trial = copy.deepcopy(double)
        made, layers = without_channels(trial, data, pads=pads)
        exact = whole.deviation_by(trial) if made else 0.0
        if exact <= options.exact:
            changed = trial
            break
        notes.append(f"without channels that no input needs the outputs deviate by {exact:.1e}: taken back")
        changed, made, layers, exact = double, {}, [], 0.0
    domain = EVERYWHERE if made else UNCHANGED
    factors: dict[str, nn.Module] = {}
    if tolerance > 0.0 and data is not None:
        near = Whole(double, [data])
        found, more = with_low_rank(changed, data, tolerance, near.deviation_by)
        notes += more
        if found:
            domain, whole = WITHIN, near
            factors = {name: layer for name, (layer, _, _) in found.items()}
            layers = [
                *layers,
                *(LayerChange(f"{name}: {', '.join(words)}", 0, rank) for name, (_, words, rank) in found.items()),
            ]
            final = copy.deepcopy(changed)
            for name, layer in factors.items():
                put(final, name, layer)
            changed, exact = final, near.deviation_by(final)
    result = copy.deepcopy(before)
    for name, layer in (*made.items(), *factors.items()):
        put(result, name, _like(layer, result.get_submodule(name), keep=name in made))
    off = whole.deviation_by(copy.deepcopy(result).double().eval()) if domain != UNCHANGED else 0.0
    if not off <= options.exact + (tolerance if domain == WITHIN else 0.0):
        notes.append(f"stored in the digits of the network the result would deviate by {off:.1e}: all was taken back")
        domain, result, layers, off, exact, changed = UNCHANGED, copy.deepcopy(before), [], 0.0, 0.0, double
    return _Done(
        network=result,
        before=before,
        domain=domain,
        at=data,
        deviation=off,
        before_rounding=exact,
        points=0 if domain == UNCHANGED else sum(call.rows for call in whole.at),
        elsewhere=None if other is None else Whole(double, [other]).deviation_by(copy.deepcopy(result).double().eval()),
        norms=(_squares(double), _squares(changed)),
        layers=layers,
        untouched=_left_alone(double),
        notes=notes,
    )


def _like(layer: nn.Module, replaced: nn.Module, *, keep: bool) -> nn.Module:
    """A copy in the dtype, on the device and in the mode of the layer whose place it takes."""
    like = next(replaced.parameters())
    made = copy.deepcopy(layer).to(like.device, like.dtype)
    made.train(replaced.training)
    return made if keep else made.requires_grad_(like.requires_grad)


def _left_alone(module: nn.Module) -> list[tuple[str, str]]:
    """Layers with parameters that are not looked at, and why."""
    problems = blocked(module)
    found = []
    for name, layer in module.named_modules():
        inside = any(
            name.startswith(f"{other}.") and type(part) is nn.MultiheadAttention
            for other, part in module.named_modules()
        )
        if name in problems:
            found.append((name or "module", problems[name]))
        elif list(layer.parameters(recurse=False)) and not isinstance(layer, _LOOKED_AT) and not inside:
            found.append(
                (name or "module", f"{type(layer).__name__} is not a linear layer, a convolution or attention")
            )
    return found


def _squares(module: nn.Module) -> float:
    return sum(float(p.square().sum()) for p in module.parameters())


# ---- The whole network before and after: its outputs beside each other, and the time that it takes


#: Rows of a timed forward pass, passes, and the seconds that all of them may take.
BATCH, PASSES, SECONDS = 256, 21, 4.0


def points_for(module: nn.Module, columns: int | None, call: Call | None) -> list[Call]:
    """Where a network is evaluated: on the data, or at random points where the shape of inputs is known."""
    if call is not None:
        return [call]
    first = next(iter(module.children()), module)
    if type(first) is nn.BatchNorm1d and first.running_mean is not None and first.running_var is not None:
        shift, scale = first.running_mean, first.running_var.sqrt()
    else:
        shift, scale = getattr(module, "shift", None), getattr(module, "scale", None)
    # What a network divides its inputs by tells how large they are.
    around = (shift, scale) if isinstance(shift, Tensor) and isinstance(scale, Tensor) else None
    return [] if columns is None else [Call((points,), {}) for points in probe_points(columns, None, around)]


class Whole:
    """A module in float64 and its outputs at some points, to compare others with.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode.
    at : sequence of Call
        None if nothing is known that the module takes.
    """

    def __init__(self, module: nn.Module, at: Sequence[Call]) -> None:
        self.module, self.at = module, list(at)
        self.outputs = self._outputs(module)
        if self.at and not self.outputs:
            fail(_WHO, "`net` must return tensors", "none", "Wrap it in a module that returns what should be kept.")

    def _outputs(self, module: nn.Module) -> list[Tensor]:
        """Every tensor that the module gives at the points, flat."""
        found = (tensor for call in self.at for tensor in outputs_in(_run(module, call)))
        return [tensor.detach().double().flatten() for tensor in found]

    def deviation(self, done: Shrunk) -> float:
        """Of the module with this stack in place of its own; ∞ where it cannot be evaluated."""
        return self.deviation_by(rebuilt(self.module, done)) if self.at else done.deviation

    def deviation_by(self, other: nn.Module) -> float:
        """As :meth:`deviation_of`; ∞ where the other does not run."""
        try:
            return self.deviation_of(other)
        except IsthmusError:  # whatever a user's module raises when a layer inside it has another width
            return math.inf

    def deviation_of(self, other: nn.Module) -> float:
        """The largest max|Δ| / max|output| over all outputs; ∞ where they differ in shape."""
        after = self._outputs(other)
        if [len(one) for one in self.outputs] != [len(one) for one in after]:
            return math.inf
        return max((deviation(a, b) for a, b in zip(self.outputs, after) if len(a)), default=0.0)


def rebuilt(net: nn.Module, done: Shrunk) -> nn.Module:
    """A copy of ``net`` with its stack replaced by the one that was shrunk."""
    root = copy.deepcopy(net)
    (stack,), _ = find_stacks(root)
    if done.domain == UNCHANGED:
        return plain(root)
    made = stack.rewritten(done.draft)
    if stack.module is root:
        return made
    put_back(root, stack, made)
    return root


def _timed(module: nn.Module, call: Call) -> float:
    start = time.perf_counter()
    module(*call.args, **call.kwargs)
    return 1e3 * (time.perf_counter() - start)


@torch.no_grad()
def latency(net: nn.Module, other: nn.Module, call: Call | None) -> tuple[float, float, int]:
    """Median milliseconds of a forward pass of each, in turn, and the rows of a pass; NaN where there is none."""
    if call is None:
        return math.nan, math.nan, 0
    given = call.first(BATCH).to(net)
    modules = (net, other)
    modes = [[part.training for part in module.modules()] for module in modules]
    times: list[list[float]] = [[], []]
    try:
        # The first call of each is not counted.
        longest = max(_timed(module.eval(), given) for module in modules)
        passes = max(3, min(PASSES, int(1e3 * SECONDS / (2.0 * max(longest, 1e-3)))))
        for _ in range(passes):
            for spent, module in zip(times, modules):
                spent.append(_timed(module, given))
    except Exception:  # half precision, say, which not every device computes in
        return math.nan, math.nan, 0
    finally:
        for module, before in zip(modules, modes):
            for part, training in zip(module.modules(), before):
                part.training = training
    return statistics.median(times[0]), statistics.median(times[1]), given.rows


@torch.no_grad()
def operations(module: nn.Module, call: Call | None) -> float:
    """Floating-point operations of a forward pass of the timed rows, two for a product; NaN where it cannot be run."""
    if call is None:
        return math.nan
    modes = [part.training for part in module.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    # Nothing is counted inside attention's own kernel.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter:
            given = call.first(BATCH).to(module)
            module.eval()(*given.args, **given.kwargs)
        return float(counter.get_total_flops())
    except Exception:  # as for the time it takes
        return math.nan
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, training in zip(module.modules(), modes):
            part.training = training
