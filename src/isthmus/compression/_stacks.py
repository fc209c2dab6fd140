"""Stacks of layers inside any module: which can be taken out safely, and which are left alone and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from isthmus.compression._certificate import EVERYWHERE, ON_DATA, UNCHANGED, WITHIN
from isthmus.compression._draft import Draft
from isthmus.compression._everywhere import ROUNDING, shrink_everywhere
from isthmus.compression._on_data import settle_on_data, shrink_on_data
from isthmus.compression._rebalance import rescaled
from isthmus.compression._within import approximate
from isthmus.networks import FullyConnected, Network

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(eq=False)
class PlainStack:
    """Layers that only feed one another.

    Attributes
    ----------
    name : str
        Of the module that holds them.
    module : nn.Module
        One of our networks, or the layers as an ``nn.Sequential`` of their own.
    layers : FullyConnected
        Those of the network, or a copy of those in the ``nn.Sequential``.
    draft : Draft
    holder : nn.Module or None
        The ``nn.Sequential`` they stand in; None for a network of ours.
    first, last : str
        Names of the first and last layer within the holder.
    """

    name: str
    module: nn.Module
    layers: FullyConnected
    draft: Draft
    holder: nn.Module | None = None
    first: str = ""
    last: str = ""

    @property
    def entry(self) -> nn.Module:
        """The module that is fed what ``layers`` would be."""
        return self.layers if self.holder is None else next(iter(self.module.children()))

    def rewritten(self, draft: Draft) -> nn.Module:
        """PyTorch's own layers, in the dtype, on the device and in the mode of ``module``."""
        own, mode = next(self.module.parameters()), self.module.training
        draft = draft if draft.mixed else draft.unmixed()
        made = draft.network(self.layers).to(own.device, own.dtype).requires_grad_(own.requires_grad).train(mode)
        if isinstance(self.module, Network):
            return self.module.with_plain_layers(made).to_torch()
        return nn.Sequential(*(layer for layer in made.to_torch() if type(layer) is not nn.Identity)).train(mode)


def unmixed(net: Network) -> Network:
    """The same without layers of which only some neurons are linear: inputs need not be rows."""
    layers = net.plain_layers()
    if layers is None or not any(layers.linear):
        return net
    own = next(layers.parameters())
    made = Draft.of(layers).unmixed().network(layers).to(own.device, own.dtype).requires_grad_(own.requires_grad)
    return net.with_plain_layers(made.train(net.training))


def find_stacks(module: nn.Module) -> tuple[list[PlainStack], list[tuple[str, str]]]:
    """Stacks of linear layers with homogeneous activations, and the other parts with parameters, with the reason."""
    places = Counter(id(child) for _, child in module.named_modules(remove_duplicate=False))
    owners = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    stacks: list[PlainStack] = []
    untouched: list[tuple[str, str]] = []
    _visit(module, "", places, owners, stacks, untouched)
    return stacks, untouched


def _visit(
    module: nn.Module,
    name: str,
    places: Counter[int],
    owners: Counter[int],
    stacks: list[PlainStack],
    untouched: list[tuple[str, str]],
) -> None:
    own = module.plain_layers() if isinstance(module, Network) else None
    if own is not None:
        problem = _problem(module, places, owners)
        if problem:
            untouched.append((name or "module", problem))
        else:
            stacks.append(PlainStack(name, module, own, Draft.of(own)))
    elif type(module) is nn.Sequential:
        for run in _runs(module):
            if isinstance(run, tuple):
                child_name, child = run
                _visit(child, f"{name}.{child_name}" if name else child_name, places, owners, stacks, untouched)
                continue
            label = f"{name}.{run[0][0]}" if name else run[0][0]
            problem = next((p for _, layer in run if (p := _problem(layer, places, owners))), "")
            if not problem and _hooked(module):
                problem = "its container has hooks"
            if not problem and name and places[id(module)] > 1:
                problem = "its container is used in several places"
            if problem:
                untouched.append((label, problem))
            else:
                layers = _layers(run)
                draft = Draft.of(layers, [name for name, layer in run[:-1] if isinstance(layer, nn.Linear)])
                inside = nn.Sequential(*(layer for _, layer in run))
                stacks.append(PlainStack(label, inside, layers, draft, module, run[0][0], run[-1][0]))
    else:
        if list(module.parameters(recurse=False)):
            untouched.append((name or "module", f"{type(module).__name__} is not a linear layer of a plain stack"))
        for child_name, child in module.named_children():
            if child_name == "parametrizations":
                continue  # what a layer's weight is made of is no layer
            _visit(child, f"{name}.{child_name}" if name else child_name, places, owners, stacks, untouched)


def _hooked(module: nn.Module) -> bool:
    return any(getattr(module, hooks, None) for hooks in _HOOKS)


def _problem(layer: nn.Module, places: Counter[int], owners: Counter[int]) -> str:
    """Why a layer cannot be replaced, or nothing."""
    parts = list(layer.modules())
    if any(_hooked(part) for part in parts):
        return "it has hooks"
    if list(layer.parameters()) and any(places[id(part)] > 1 for part in parts if list(part.parameters())):
        return "it is used in several places"
    if any(owners[id(p)] > 1 for p in layer.parameters()):
        return "its parameters are shared"
    kinds = {(p.dtype, p.device) for p in layer.parameters()}
    if any(not dtype.is_floating_point for dtype, _ in kinds) or len(kinds) > 1:
        return "its parameters differ in dtype or device, or are not real"
    if not all(bool(torch.isfinite(p).all()) for p in layer.parameters()):
        return "it has weights that are not finite"
    return ""


Run = list[tuple[str, nn.Module]]


def _runs(sequence: nn.Sequential) -> Iterator[Run | tuple[str, nn.Module]]:
    """Maximal runs Linear (activation) Linear … within a Sequential; anything else on its own."""
    run: Run = []
    pending: Run = []
    for name, child in sequence._modules.items():
        assert child is not None
        if type(child) is nn.Linear and (not run or _fits(run, pending, child)):
            run += [*pending, (name, child)]
            pending = []
        elif run and _activation(child, run[-1][1]) is not None:
            pending.append((name, child))
        else:
            if run:
                yield run
            run, pending = ([(name, child)], []) if type(child) is nn.Linear else ([], [])
            if not run:
                yield name, child
    if run:
        yield run


def _fits(run: Run, pending: Run, linear: nn.Linear) -> bool:
    last = run[-1][1]
    same = isinstance(last, nn.Linear) and last.out_features == linear.in_features
    same = same and last.weight.dtype == linear.weight.dtype and last.weight.device == linear.weight.device
    return same and sum(type(layer) is not nn.Identity for _, layer in pending) <= 1


def _activation(layer: nn.Module, before: nn.Module) -> tuple[float, int] | None:
    """Slope of a homogeneous activation, and how many neurons ``before`` it are linear; None for other modules."""
    if type(layer) is nn.ReLU or type(layer) is nn.Identity:
        return (0.0 if type(layer) is nn.ReLU else 1.0), 0
    if type(layer) is nn.LeakyReLU:
        return (float(layer.negative_slope), 0) if -1.0 <= layer.negative_slope <= 1.0 else None
    if type(layer) is nn.PReLU and not layer.weight.requires_grad:
        # As FullyConnected.to_torch writes it: 1 for linear neurons, which come first, and one slope for the others.
        slopes = layer.weight.tolist()
        linear = slopes.count(1.0)
        others = set(slopes[linear:])
        if linear and len(others) == 1 and len(slopes) == before.out_features and -1.0 <= min(others) < 1.0:
            return min(others), linear
    return None


def _layers(run: Run) -> FullyConnected:
    """A copy of the layers of a run, of one amount of bias 1."""
    linears: list[nn.Linear] = []
    found: list[tuple[float, int]] = []
    for _, layer in run:
        if isinstance(layer, nn.Linear):
            linears.append(layer)
            found.append((1.0, 0))
        elif type(layer) is not nn.Identity:
            found[-1] = _activation(layer, linears[-1]) or (1.0, 0)
    slopes, linear = zip(*found)
    Ws, bs = [layer.weight for layer in linears], [layer.bias for layer in linears]
    return FullyConnected.from_weights(Ws, bs, slope=slopes[:-1], linear=linear[:-1])


def put_back(root: nn.Module, stack: PlainStack, made: nn.Module) -> None:
    """Set ``made`` in the place of the stack within ``root``, which holds it."""
    if stack.holder is None:
        parent_name, _, child = stack.name.rpartition(".")
        parent = root.get_submodule(parent_name) if parent_name else root
        setattr(parent, child, made)
        return
    names = list(stack.holder._modules)
    start, end = names.index(stack.first), names.index(stack.last)
    layers = list(stack.holder._modules.values())
    # Names are kept outside the stack and begin with that of its first layer inside it.
    entries: list[tuple[str, nn.Module | None]] = list(zip(names[:start], layers[:start]))
    inside = list(made.children())
    free = names[start : end + 1] + [f"{stack.last}_{k}" for k in range(1, len(inside) + 1)]
    entries += list(zip(free, inside)) + list(zip(names[end + 1 :], layers[end + 1 :]))
    stack.holder._modules.clear()
    for name, layer in entries:
        stack.holder._modules[name] = layer


# ---- Compression of one stack of layers: each phase is tried on a copy, measured, and kept only if it holds


#: Largest deviation, relative to the largest output, that is called equality in float64.
EXACT = 1e-12

#: Share of ‖θ‖² below which rescaling alone is not worth a change of the weights.
WORTH = 1e-4

#: Random points at which equality everywhere is measured, and their sizes.
PROBES, SCALES = 256, (0.1, 1.0, 10.0)


@dataclass(eq=False)
class Shrunk:
    """A smaller draft, where it is equal to the first, and what to know about it."""

    draft: Draft
    domain: str
    points: int
    deviation: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Options:
    """What the user allows."""

    rebalance: bool = True
    free_norm: bool = False
    #: Of the dtype that the weights are stored in: rows of float32 are proportional up to float32's rounding.
    eps: float = torch.finfo(torch.float64).eps

    @property
    def roundings(self) -> tuple[float, ...]:
        """How far from proportional rows of norm 1 may be: as sums that cancel leave them, then more safely."""
        return (1e-12, ROUNDING) if self.eps < 1e-12 else (4 * self.eps,)

    @property
    def exact(self) -> float:
        """The largest relative difference that counts as equal: rounding of the stored weights gives as much."""
        return max(EXACT, 1e3 * self.eps if self.eps > 1e-12 else 0.0)


def shrink_exactly(draft: Draft, X: Tensor | None, options: Options) -> Shrunk:
    """Shrink a copy of ``draft`` as far as it goes without any change, everywhere or on the data."""
    done = Shrunk(draft.copy(), UNCHANGED, 0)
    probes = probe_points(draft.Ws[0].shape[1], X)
    _phase(
        done,
        draft,
        EVERYWHERE,
        probes,
        options,
        [partial(shrink_everywhere, rounding=rounding) for rounding in options.roundings],
    )
    if X is not None:
        ways = [partial(shrink_on_data, X=X, rounding=rounding) for rounding in options.roundings]
        ways.append(partial(settle_on_data, X=X, rounding=options.roundings[-1]))
        _phase(done, draft, ON_DATA, [X], options, ways)
    return done


def _phase(
    done: Shrunk,
    first: Draft,
    domain: str,
    at: list[Tensor],
    options: Options,
    ways: Sequence[Callable[..., None]],
) -> None:
    """Try the ways from the boldest on; keep the first that is exact, smaller and of no larger norm."""
    wanted = [first(points) for points in at]
    for way in ways:
        for free in (True,) if options.free_norm else (True, False):
            trial = done.draft.copy()
            way(trial, free_norm=free)
            note = balanced(trial) if options.rebalance else ""
            if options.free_norm or trial.norm <= first.norm * (1 + 1e-12):
                break
        else:
            done.notes.append(f"what was tried for {domain} would have a larger norm and was taken back")
            continue
        found = max(deviation(outputs, trial(points)) for outputs, points in zip(wanted, at))
        if not found <= options.exact:
            done.notes.append(
                f"what was tried for {domain} deviates by {found:.1e} of the largest output, which is more than "
                f"rounding, and was taken back"
            )
            continue
        if trial.parameters > done.draft.parameters:
            continue
        smaller = trial.parameters < done.draft.parameters or _fewer_active(trial, done.draft)
        if smaller or trial.norm < done.draft.norm * (1 - WORTH):
            done.draft, done.domain, done.deviation = trial, domain, found
            done.points = sum(len(points) for points in at)
            done.notes += [note] if note else []
        return


def shrink_within(done: Shrunk, first: Draft, X: Tensor | None, tolerance: float, options: Options) -> Shrunk:
    """Fewer neurons and low-rank factors within ``tolerance`` of the outputs of ``first``; else ``done``."""
    trial = None if X is None else approximate(done.draft, first(X), X, tolerance)
    if trial is None or X is None:
        return done
    note = balanced(trial) if options.rebalance else ""
    found = deviation(first(X), trial(X))
    if found > tolerance or trial.parameters >= done.draft.parameters:
        return done
    notes = [*done.notes, *([note] if note else [])]
    if trial.norm > first.norm:
        notes.append(f"‖θ‖² grew from {first.norm:.4g} to {trial.norm:.4g}: refitted weights are larger")
    return Shrunk(trial, WITHIN, len(X), found, notes)


def _fewer_active(trial: Draft, other: Draft) -> bool:
    def active(draft: Draft) -> int:
        return sum(int((~mask).sum()) for mask in draft.linear)

    return active(trial) < active(other)


def balanced(draft: Draft) -> str:
    """Rescale all neurons to the least norm, in place; what to say of it, or nothing."""
    if not len(draft.hidden):
        return ""
    bs = [b / draft.bias for b in draft.bs] if draft.bias != 0.0 else None
    # Scales do not depend on the activation as long as it is homogeneous.
    done = rescaled(FullyConnected.from_weights(draft.Ws, bs, slope=0.0, bias=draft.bias))
    if done.norm_after > done.norm_before:
        return ""
    draft.Ws = [W.detach().clone() for W in done.network.Ws]
    if bs is not None:
        draft.bs = [draft.bias * b.detach() for b in done.network.bs]
    return "" if done.state == "converged" else "rebalancing did not converge: the norm is not the least"


def deviation(before: Tensor, after: Tensor) -> float:
    """max|Δ| / max|before|; ∞ where something is not finite."""
    difference, scale = float((after - before).abs().max()), float(before.abs().max())
    if not torch.isfinite(after).all():
        return float("inf")
    return difference / scale if scale > 0 else (0.0 if difference == 0 else float("inf"))


def probe_points(inputs: int, X: Tensor | None, around: tuple[Tensor, Tensor] | None = None) -> list[Tensor]:
    """Random points of several sizes, around the data where there are data, or of the centre and scale given."""
    draw = torch.Generator().manual_seed(0)
    G = torch.randn(PROBES, inputs, dtype=torch.float64, generator=draw)
    if X is None:
        centre, spread = around or (torch.zeros(inputs), torch.ones(inputs))
        return [centre.to("cpu", torch.float64) + scale * spread.to("cpu", torch.float64) * G for scale in SCALES]
    centre, spread = X.mean(0), X.std(0, correction=0) if len(X) > 1 else torch.ones(inputs, dtype=torch.float64)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    return [*(centre + scale * spread * G for scale in SCALES), X]
