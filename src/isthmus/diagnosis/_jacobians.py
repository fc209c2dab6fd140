"""Jacobians from the inputs to every layer of any module, all in one forward pass of forward-mode differentiation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from isthmus._checks import fail
from isthmus._forward_mode import load_forward_mode
from isthmus.diagnosis._capture import Call, OutputPlace, capture, count_samples, first_tensor, take

#: Up to this many input numbers every direction is followed; beyond, this many random ones.
DIRECTIONS = 128

#: Bytes of tangents that one pass may hold in a layer.
PASS_BYTES = 2**28


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
    """

    spectra: Tensor
    method: str

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
    module: nn.Module, call: Call, places: dict[str, OutputPlace], *, source: str | None = None, seed: int = 0
) -> Jacobians:
    """Singular values of the Jacobians at every layer among ``places``, for every sample of ``call``.

    Parameters
    ----------
    module : nn.Module
        In float64 and in evaluation mode. Samples must not influence each other; that is checked.
    call : tuple of arguments
        A few samples: each is run once for each direction.
    places : dict of OutputPlace
        Where the layers stand, ``""`` (the output) among them.
    source : str, optional
        The layer whose output is the input of the Jacobians, for networks of integer inputs. By default the first
        floating argument.
    seed : int
        Of the random directions.
    """
    load_forward_mode()
    start = _Start(module, call, source)
    if start.why:
        return Jacobians({}, f"not computed: {start.why}")
    names = [name for name, place in places.items() if place.batch_axis is not None and name != source]
    exact = start.size <= DIRECTIONS
    count = start.size if exact else DIRECTIONS
    directions = torch.eye(start.size, dtype=torch.float64)
    if not exact:
        generator = torch.Generator().manual_seed(seed)
        directions = torch.randn(count, start.size, dtype=torch.float64, generator=generator) / count**0.5
    widest = max((places[name].size for name in names), default=1)
    together = max(1, PASS_BYTES // (8 * count * max(widest, start.size)))
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    gradients = torch.zeros(start.size, start.size, dtype=torch.float64) if exact and "" in places else None
    if not start.independent():
        return Jacobians({}, "not computed: samples of one batch influence each other's outputs")
    for rows in torch.arange(start.samples).split(together):
        tangents: dict[str, Tensor] = {}
        try:
            start.differentiate(rows, directions, names, tangents)
        except (RuntimeError, NotImplementedError) as error:
            return Jacobians({}, f"not computed: forward-mode differentiation failed ({_short(error)})")
        for name in names:
            place = places[name]
            T = tangents.get(name)
            if T is None:  # does not depend on the inputs at all
                found[name].append(torch.zeros(len(rows), 1, dtype=torch.float64))
                continue
            # Rows of T are images of directions: (directions, size) is the transpose of J.
            T = place.by_sample(T).double().reshape(len(rows), count, -1)
            found[name].append(torch.linalg.svdvals(T))
            if name == "" and gradients is not None:
                gradients += torch.einsum("sid,sjd->ij", T, T)
    method = "exact" if exact else "sketched"
    layers = {name: LayerJacobians(torch.cat(parts), method) for name, parts in found.items()}
    agop = None if gradients is None else gradients / start.samples
    where = "inputs" if source is None else f"output of the embedding {source!r}"
    return Jacobians(layers, "computed", where, agop)


class _Start:
    """Where tangents enter: an argument of the forward, or the output of one layer."""

    def __init__(self, module: nn.Module, call: Call, source: str | None) -> None:
        self.module, self.call, self.source, self.why = module, call, source, ""
        args, kwargs = call
        values: Sequence[object] = [*args, *kwargs.values()]
        tensors = [v for v in values if isinstance(v, Tensor)]
        floating = [v for v in tensors if v.is_floating_point()]
        self.samples = len(tensors[0]) if tensors else 0
        self.size = 0
        if source is not None:
            with torch.no_grad(), capture(module, [source], self._measure):
                one, named = take(call, torch.zeros(1, dtype=torch.long))
                module(*one, **named)
        elif floating:
            self.entry = next(i for i, v in enumerate(values) if v is floating[0])
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
        together, alone = together.double(), alone.double()  # truth values have no size and no difference
        scale = float(together.abs().max())
        return bool((together[:1] - alone).abs().max() <= 1e-6 * max(scale, 1e-300))

    @torch.no_grad()
    def differentiate(self, rows: Tensor, directions: Tensor, names: list[str], tangents: dict[str, Tensor]) -> None:
        """Run every sample of ``rows`` once for each direction and collect the layers' tangents."""
        count = len(directions)
        args, kwargs = take(self.call, rows.repeat_interleave(count))
        along = directions.repeat(len(rows), 1)

        def visit(name: str, output: Tensor, number: int) -> None:
            tangent = forward_ad.unpack_dual(output).tangent
            if tangent is not None:
                tangents[name] = tangent.clone()

        def with_tangent(tensor: Tensor) -> Tensor:
            return forward_ad.make_dual(tensor, along.reshape(tensor.shape).to(tensor))

        def enter(_module: nn.Module, _inputs: Any, output: Any) -> Tensor:
            return with_tangent(output)

        # The fused attention kernels have no forward mode.
        with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), contextlib.ExitStack() as stack:
            if self.source is None:
                values: list[Any] = [*args, *kwargs.values()]
                values[self.entry] = with_tangent(values[self.entry])
                args, kwargs = tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :]))
            else:
                layer = self.module.get_submodule(self.source)
                handle = layer.register_forward_hook(enter)
                stack.callback(handle.remove)
            stack.enter_context(capture(self.module, names, visit))
            self.module(*args, **kwargs)


def _short(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


# ---- Does everything pass through a layer? A layer that others bypass is no isthmus, however narrow it is


#: What is left of the outputs' variation when all of it passes through the frozen layer: rounding.
NOTHING = 1e-9


@torch.no_grad()
def bypass(module: nn.Module, call: Call, names: list[str]) -> dict[str, float]:
    """The share of the outputs' variation that survives when a layer is frozen, for each layer.

    The layer's outputs are replaced by those for one fixed sample while the inputs differ. If everything the network
    computes passes through it, the outputs no longer vary: the share is 0 and the layer separates inputs from outputs.
    Skip connections around it leave some: the share is up to 1 (or more, where the frozen part had cancelled).
    NaN where the outputs do not vary at all.
    """
    samples = count_samples(call)
    same = take(call, torch.zeros(samples, dtype=torch.long))
    fixed, varied = _output(module, same), _output(module, call)
    total = float((varied - fixed).square().sum())
    # A network that is constant up to rounding shows nothing.
    floor = torch.finfo(varied.dtype).eps ** 2 * float(varied.square().sum())
    if not total > 100 * floor:
        return dict.fromkeys(names, float("nan"))
    shares = {}
    for name in names:
        layer = module.get_submodule(name)
        kept: list[Any] = []
        handle = layer.register_forward_hook(lambda *call, kept=kept: kept.append(call[-1]))
        try:
            module(*same[0], **same[1])
        finally:
            handle.remove()
        # A layer that is called several times gets back what it gave at each call.
        again = iter(kept)
        handle = layer.register_forward_hook(lambda *call, again=again: next(again))
        try:
            frozen = _output(module, call)
        except StopIteration:
            # It was called more often than for the fixed sample: the computation depends on the data.
            shares[name] = float("nan")
            continue
        finally:
            handle.remove()
        shares[name] = float((frozen - fixed).square().sum()) / total
    return shares


def _output(module: nn.Module, call: Call) -> Tensor:
    tensor = first_tensor(module(*call[0], **call[1]))
    if tensor is None:
        fail("diagnose", "`module` must return a tensor", "none in its output", "Wrap it so that it does.")
    return tensor.double()
