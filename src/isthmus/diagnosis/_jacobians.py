"""Jacobians from the inputs to every layer of any module, all in one forward pass of forward-mode differentiation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from isthmus._checks import fail
from isthmus._forward_mode import load_forward_mode
from isthmus.diagnosis._calls import Call, count_samples, first_tensor, map_tensors, shuffled, take, tensors_in
from isthmus.diagnosis._capture import OutputPlace, capture
from isthmus.diagnosis._estimates import Estimate, certain, hutchinson, mean_of, of_ratio

#: Up to this many input numbers every direction is followed; beyond, this many random ones.
DIRECTIONS = 128

#: Bytes of tangents in float64 that one pass may hold in a layer: of one sample, and of several together.
PASS_BYTES, TOGETHER_BYTES = 2**26, 2**24

INFLUENCE = "influence each other's outputs"

#: Size of a layer from which spectra of float64 tangents come from their Gram matrix too: a QR of so long rows is slow.
LONG = 8192


@dataclass(frozen=True, eq=False)
class LayerJacobians:
    """Singular values of J(x → layer) at some samples.

    Attributes
    ----------
    spectra : Tensor (S, r)
        Decreasing, one row for each sample.
    method : str
        ``"exact"``, or ``"sketched"``: of J·Ω/√r for r random directions Ω, whose k-th value is that of J up to about
        a factor 1 ± √(k/r) when few directions matter.
    directions : int
        How many were followed: the inputs' numbers, or r.
    size : Estimate
        Mean of ‖J‖²_F over these samples.
    """

    spectra: Tensor
    method: str
    directions: int
    size: Estimate

    @property
    def median(self) -> Tensor:
        """Median over the samples, value by value."""
        return self.spectra.median(0).values


@dataclass(frozen=True, eq=False)
class Jacobians:
    """Jacobians at every layer, and the average gradient outer product of the whole.

    Attributes
    ----------
    layers : dict of LayerJacobians
    state : str
        ``"computed"``, or why not.
    source : str
        What was differentiated against: ``"inputs"``, or an embedding's output where inputs are integers.
    agop : Tensor (d_in, d_in) or None
        (1/S) Σ JᵀJ of the whole network; None unless every input direction was followed.
    """

    layers: dict[str, LayerJacobians]
    state: str
    source: str = "inputs"
    agop: Tensor | None = None


def layer_jacobians(
    module: nn.Module,
    call: Call,
    places: Mapping[str, OutputPlace],
    *,
    source: str | None = None,
    seed: int = 0,
    directions: int = DIRECTIONS,
    step: Callable[[int], bool] = lambda _: True,
) -> Jacobians:
    """Singular values of the Jacobians at every layer among ``places``, for every sample of ``call``.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode. Samples must not influence each other; that is checked.
    call : tuple of arguments
        A few samples: each is run once for each direction.
    places : dict of OutputPlace
        Where the layers stand, ``""`` (the output) among them.
    source : str, optional
        The layer whose output is the input of the Jacobians, for networks of integer inputs. By default the first
        floating argument.
    seed : int
        Of the random directions.
    directions : int, default 128
        Random directions to follow where the inputs have more numbers than that.
    step : function of int to bool
        Called with the samples done after each pass; False ends it there.
    """
    load_forward_mode()
    start = _Start(module, call, source)
    if start.why:
        return Jacobians({}, f"not computed: {start.why}")
    names = [name for name, place in places.items() if place.batch_axis is not None and name != source]
    widest = max((places[name].size for name in names), default=1)
    bytes_each = 8 * max(widest, start.size)
    exact = start.size <= min(DIRECTIONS, max(directions, 8))
    # One pass holds all directions of at least one sample.
    count = start.size if exact else max(2, min(directions, PASS_BYTES // bytes_each))
    generator = torch.Generator().manual_seed(seed)
    if exact:
        along = torch.eye(count, dtype=torch.float64)
    else:
        along = torch.randn(count, start.size, dtype=torch.float64, generator=generator) / count**0.5
    together = max(1, TOGETHER_BYTES // (count * bytes_each))
    grams: dict[str, Tensor] = {}
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    gradients = torch.zeros(start.size, start.size, dtype=torch.float64) if exact and "" in places else None
    if not start.independent():
        return Jacobians({}, f"not computed: samples of one batch {INFLUENCE}")
    samples = 0
    for rows in torch.arange(start.samples).split(together):
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        def visit(
            name: str, tangent: Tensor, rows: Tensor = rows, seen: dict[str, tuple[Tensor, Tensor]] = seen
        ) -> None:
            # Rows of T are images of directions: (directions, size) is the transpose of J.
            T = places[name].by_sample(tangent).reshape(len(rows), count, -1)
            # A layer that is called several times gives its last output: what it gave before is overwritten.
            seen[name] = _spectra(T)

        try:
            start.differentiate(rows, along, names, visit)
        except (RuntimeError, NotImplementedError) as error:
            return Jacobians({}, f"not computed: forward-mode differentiation failed ({_short(error)})")
        if gradients is not None and "" in seen:
            # T Tᵀ of the unit vectors is JᵀJ.
            gradients += seen[""][1].sum(0).cpu()
        for name in names:
            # A layer without a tangent does not depend on the inputs at all.
            values, gram = seen.get(name, (torch.zeros(len(rows), 1).double(), torch.zeros(len(rows), count, count)))
            found[name].append(values)
            # Their sum alone: all of them would be as large as the activations.
            grams[name] = gram.double().sum(0).cpu() + grams.get(name, 0.0)
        samples += len(rows)
        if not step(samples):
            break
    layers = {}
    for name in names:
        gram = (grams[name] / samples)[None]
        size = certain(gram) if exact else hutchinson(gram * count, samples)
        layers[name] = LayerJacobians(torch.cat(found[name]).cpu(), "exact" if exact else "sketched", count, size)
    agop = None if gradients is None else gradients / samples
    where = "inputs" if source is None else f"output of the embedding {source!r}"
    return Jacobians(layers, "computed", where, agop)


def _spectra(T: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values (S, r) and Gram matrices (S, directions, directions) of T (S, directions, size)."""
    gram = torch.stack([_gram(one) for one in T])
    # What single precision left is above the floor that squaring puts under the values, 1e-8 of the largest.
    if T.shape[2] <= LONG and T.dtype == torch.float64:
        return torch.linalg.svdvals(T.double()), gram
    return torch.linalg.eigvalsh(gram).flip(-1).clamp_min(0).sqrt(), gram


def _gram(T: Tensor) -> Tensor:
    """T Tᵀ in float64, some columns at a time."""
    gram = torch.zeros(len(T), len(T), dtype=torch.float64, device=T.device)
    for part in T.split(2**16, dim=1):
        part = part.double()
        gram.addmm_(part, part.mT)
    return gram


def input_size(call: Call) -> int:
    """Numbers in the first floating argument for one sample; 0 if there is none."""
    floating = [t for t in tensors_in(call) if t.is_floating_point() and t.ndim]
    return floating[0][0].numel() if floating else 0


class _Start:
    """Where tangents enter: an argument of the forward, or the output of one layer."""

    def __init__(self, module: nn.Module, call: Call, source: str | None) -> None:
        self.module, self.call, self.source, self.why = module, call, source, ""
        args, kwargs = call
        self.samples = count_samples(call)
        floating = [t for t in tensors_in((args, kwargs)) if t.is_floating_point() and t.ndim]
        self.size = 0
        if source is not None:
            with torch.no_grad(), capture(module, [source], self._measure):
                one, named = take(call, torch.zeros(1, dtype=torch.long))
                module(*one, **named)
        elif floating:
            self.size = floating[0][0].numel()
        else:
            self.why = "no floating-point input to differentiate against"

    def _measure(self, name: str, output: Tensor, number: int) -> None:
        self.size = output.numel()

    @torch.no_grad()
    def independent(self) -> bool:
        """Whether the first sample has the same output alone as beside the others."""
        together, alone = (
            first_tensor(self.module(*args, **kwargs))
            for args, kwargs in (self.call, take(self.call, torch.zeros(1, dtype=torch.long)))
        )
        if together is None or alone is None or len(together) != self.samples or len(alone) != 1:
            return True  # nothing to compare; the axis of samples is another one
        coarse = together.is_floating_point() and torch.finfo(together.dtype).eps > 1e-8
        together, alone = together.double(), alone.double()  # truth values have no size and no difference
        scale = float(together.abs().max())
        return bool((together[:1] - alone).abs().max() <= (1e-3 if coarse else 1e-6) * max(scale, 1e-300))

    @torch.no_grad()
    def differentiate(
        self, rows: Tensor, directions: Tensor, names: list[str], visit: Callable[[str, Tensor], None]
    ) -> None:
        """Run every sample of ``rows`` once for each direction, and visit the layers' tangents as they come."""
        count = len(directions)
        args, kwargs = take(self.call, rows.repeat_interleave(count))
        along = directions.repeat(len(rows), 1)

        def see(name: str, output: Tensor, number: int) -> None:
            tangent = forward_ad.unpack_dual(output).tangent
            if tangent is not None:
                visit(name, tangent)

        def with_tangent(tensor: Tensor) -> Tensor:
            return forward_ad.make_dual(tensor, along.reshape(tensor.shape).to(tensor))

        def enter(_module: nn.Module, _inputs: Any, output: Any) -> Tensor:
            return with_tangent(output)

        # The fused attention kernels have no forward mode.
        with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), contextlib.ExitStack() as stack:
            if self.source is None:
                entry = next(t for t in tensors_in((args, kwargs)) if t.is_floating_point() and t.ndim)
                args, kwargs = map_tensors(lambda t: with_tangent(t) if t is entry else t, (args, kwargs))
            else:
                layer = self.module.get_submodule(self.source)
                handle = layer.register_forward_hook(enter)
                stack.callback(handle.remove)
            stack.enter_context(capture(self.module, names, see))
            self.module(*args, **kwargs)


def _short(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


# ---- Does everything pass through a layer? A layer that others bypass is no isthmus, however narrow it is


#: What is left of the outputs' variation when all of it passes through the frozen layer: rounding.
NOTHING = 1e-9


@dataclass(frozen=True)
class Passage:
    """What survives in the outputs when a layer is frozen.

    Attributes
    ----------
    shares : dict of str to float
        As :func:`bypass` says; NaN where it could not be measured.
    inside : dict of str to str
        Layers inside a module that information goes around, which it goes around too: they were not run.
    left : tuple of str
        Layers for which no time was left.
    samples : int
        Samples that varied.
    ranges : dict of str to Estimate
        The shares that are neither 0 nor NaN, as estimates of those over all samples beside the same fixed one.
    """

    shares: dict[str, float]
    inside: dict[str, str]
    left: tuple[str, ...]
    samples: int
    ranges: dict[str, Estimate] = field(default_factory=dict)

    def passes(self, name: str) -> bool | None:
        """Whether everything passes through the layer; None if that is not known."""
        share = self.shares.get(name, math.nan)
        return False if name in self.inside else None if math.isnan(share) else share <= NOTHING


#: Bytes of layers' outputs that are kept from one forward of the fixed sample.
KEPT_BYTES = 2**27


@torch.no_grad()
def bypass(
    module: nn.Module,
    call: Call,
    names: Iterable[str],
    step: Callable[[], bool] = lambda: True,
    *,
    together: bool = False,
    room: int = KEPT_BYTES,
) -> Passage:
    """The share of the outputs' variation that survives when a layer is frozen, for each layer.

    The layer's outputs are replaced by those for one fixed sample while the inputs differ. If everything the network
    computes passes through it, the outputs no longer vary: the share is 0 and the layer separates inputs from outputs.
    Skip connections around it leave some: the share is up to 1 (or more, where the frozen part had cancelled).
    NaN where the outputs do not vary at all.

    What goes around a module goes around all that is inside it: of such a module nothing more is run.

    Parameters
    ----------
    module : nn.Module
    call : tuple of arguments
        The fixed sample, then those that vary.
    names : iterable of str
        The layers; outer ones are run first.
    step : function to bool
        Called before each layer; False leaves out the rest.
    together : bool, default False
        The samples belong together: what varies is the order of their numbers.
    """
    names = sorted(names, key=lambda name: name.count("."))
    samples = count_samples(call) if together else max(count_samples(call) - 1, 1)
    if together:
        same, varied_call = call, shuffled(call)
    else:
        same = take(call, torch.zeros(samples, dtype=torch.long))
        varied_call = take(call, torch.arange(samples) + (count_samples(call) > 1))
    fixed, varied = _output(module, same), _output(module, varied_call)
    # By sample, where the first axis counts them and they are draws of their own.
    separate = not together and len(fixed) == samples
    all_of_it = _squares(varied - fixed, separate)
    total = float(all_of_it.sum())
    # A network that is constant up to rounding shows nothing.
    floor = torch.finfo(fixed.dtype).eps ** 2 * float(varied.square().sum())
    shares: dict[str, float] = {}
    inside: dict[str, str] = {}
    ranges: dict[str, Estimate] = {}
    kept: dict[str, list[Any]] = {}
    if not total > 100 * floor:
        return Passage(dict.fromkeys(names, float("nan")), {}, (), samples)

    def around(name: str) -> str | None:
        return next((outer for outer in inside_of(name) if shares.get(outer, 0.0) > NOTHING or outer in inside), None)

    for place, name in enumerate(names):
        outer = around(name)
        if outer is not None:
            inside[name] = inside.get(outer, outer)
            continue
        if not step():
            return Passage(shares, inside, tuple(names[place:]), samples, ranges)
        if name not in kept:
            kept = _outputs_of(module, same, [one for one in names[place:] if around(one) is None], room)
        layer = module.get_submodule(name)
        # A layer that is called several times gets back what it gave at each call.
        again = iter(kept.pop(name, []))
        handle = layer.register_forward_hook(lambda *_, again=again: next(again))
        try:
            frozen = _output(module, varied_call)
        except StopIteration:
            # It was called more often than for the fixed sample: the computation depends on the data.
            shares[name] = float("nan")
            continue
        finally:
            handle.remove()
        some = _squares(frozen - fixed, separate)
        left = float(some.sum())
        # In single precision the same numbers may come out of another kernel with another rounding.
        shares[name] = 0.0 if left <= floor else left / total
        estimate = of_ratio(some, all_of_it, f"{samples} samples beside a fixed one")
        if shares[name] > 0 and math.isfinite(estimate.low):
            ranges[name] = estimate
    return Passage(shares, inside, (), samples, ranges)


def _squares(difference: Tensor, separate: bool) -> Tensor:
    """‖·‖² of each sample, (N,); of all together, (1,), where they are not separate."""
    return difference.reshape(len(difference) if separate else 1, -1).square().sum(1)


def _outputs_of(module: nn.Module, call: Call, names: Sequence[str], room: int) -> dict[str, list[Any]]:
    """What the first of these layers gives at each call, and as many others as there is room for.

    Copies: a later layer may overwrite in place what it was given.
    """
    kept: dict[str, list[Any]] = {}

    def keep(name: str, output: Any) -> None:
        nonlocal room
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(output))
        if name != names[0]:
            if size > room:
                kept.pop(name, None)
                full.add(name)
            if name in full:
                return
            room -= size
        kept.setdefault(name, []).append(map_tensors(torch.clone, output))

    full: set[str] = set()
    hooks = [
        module.get_submodule(name).register_forward_hook(lambda *call, name=name: keep(name, call[-1]))
        for name in names
    ]
    try:
        module(*call[0], **call[1])
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def inside_of(name: str) -> list[str]:
    """The modules around the one of this name, outermost first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _output(module: nn.Module, call: Call) -> Tensor:
    tensor = first_tensor(module(*call[0], **call[1]))
    if tensor is None:
        fail("diagnose", "`net` must return a tensor", "none in its output", "Wrap it so that it does.")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()


# ---- The neural tangent kernel of any module


#: Directions of the outputs that parameters' gradients are taken along at each sample.
NTK_DIRECTIONS = 4


def ntk_trace(module: nn.Module, call: Call, *, seed: int = 0, step: Callable[[], bool] = lambda: True) -> Estimate:
    """Mean over samples of Tr Θ(x, x) = ‖J_θ f(x)‖²_F, each from m orthonormal directions v of its outputs.

    Parameters
    ----------
    module : nn.Module
        Whose parameters are differentiated against.
    call : tuple of arguments
        Samples that do not influence each other.
    seed : int
        Of the directions.
    step : function to bool
        Called before each sample; False ends it there.

    Notes
    -----
    Σ‖J_θᵀv‖²·d/m has the mean ‖J_θ‖² for directions that are uniform, and is exact where m = d. The directions of each
    sample are drawn on their own, so that the spread between samples holds both errors. The interval is that of the
    mean over all samples, of which these are draws.
    """
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    wanted = [p.requires_grad for p in parameters]
    generator = torch.Generator().manual_seed(seed)
    values: list[float] = []
    count = 0
    try:
        for parameter in parameters:
            parameter.requires_grad_()
        for row in range(count_samples(call)):
            if not step():
                break
            with torch.enable_grad():
                output = _output(module, take(call, torch.tensor([row]))).flatten()
                count = min(NTK_DIRECTIONS, len(output))
                drawn = torch.randn(len(output), count, generator=generator, dtype=torch.float64)
                directions = torch.linalg.qr(drawn).Q.to(output)
                total = 0.0
                for at, direction in enumerate(directions.T, start=1):
                    found = torch.autograd.grad(
                        output, parameters, direction, retain_graph=at < count, allow_unused=True
                    )
                    total += sum(float(g.double().square().sum()) for g in found if g is not None)
            values.append(total * len(output) / count)
    finally:
        for parameter, flag in zip(parameters, wanted):
            parameter.requires_grad_(flag)
    return mean_of(
        torch.tensor(values, dtype=torch.float64), f"{count} directions of the outputs at each of {len(values)} samples"
    )
