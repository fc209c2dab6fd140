"""Every parameter of any module, in the layer that owns it, and the matrices among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from isthmus._checks import fail
from isthmus._deprecations import renamed
from isthmus.measures._frequencies import FrequencySpectrum, filter_spectra, paired_frequencies
from isthmus.measures._spectra import EXACT_UP_TO, LargeSpectrum, Operator, large_spectrum
from isthmus.networks import Layer


@dataclass(frozen=True)
class WeightedLayer:
    """A submodule that owns parameters.

    Attributes
    ----------
    name : str
        In ``named_modules``; empty for the module itself.
    kind : str
        ``"linear"``, ``"convolution"``, ``"transposed convolution"``, ``"embedding"``, ``"attention"``,
        ``"recurrent"``, ``"bilinear"``, ``"norm"``, what a :class:`~isthmus.networks.Layer` says (``"leaky step"``), or
        ``"parameters"`` (those of a module of another type).
    type_name : str
        The class.
    layout : {"channels-first", "last"}
        Where the features of its output are.
    parts : tuple of WeightPart
        Its matrices.
    parameters : tuple of str
        Full names of the parameters that belong to this layer and to no other one.
    shared_with : tuple of str
        Other full names under which these same parameters appear.
    note : str
        Parameters that are not a matrix, that were not computed or that belong to an earlier layer.
    """

    name: str
    kind: str
    type_name: str
    layout: str
    parts: tuple[WeightPart, ...]
    parameters: tuple[str, ...]
    shared_with: tuple[str, ...]
    note: str


@renamed(module="net")
def weighted_layers(net: nn.Module) -> list[WeightedLayer]:
    """Every submodule that owns parameters, in the order of ``named_modules``: no parameter is left out.

    A parameter with several names (tied weights) belongs to the layer where it comes first; later layers that use it
    are listed with a note. Weights under parametrisations, weight norm, spectral norm or pruning are the effective
    ones; those of a leaky ResNet are W, not the parameters √ρ·W. The output projection inside
    ``nn.MultiheadAttention`` belongs to the attention: PyTorch never calls it.
    """
    if not isinstance(net, nn.Module):
        fail("weighted_layers", "`net` must be a torch.nn.Module", type(net).__name__, "Pass the network.")
    names: dict[Tensor, list[str]] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    layers, taken, inside = [], dict[Tensor, str](), set[nn.Module]()
    for name, layer in net.named_modules():
        if layer in inside:
            continue
        owners = {"": layer}
        if isinstance(layer, nn.MultiheadAttention):
            owners["out_proj."] = layer.out_proj
            inside.update(layer.out_proj.modules())
        if _is_quantised(layer):
            inside.update(layer.modules())
        for owner in owners.values():
            if parametrize.is_parametrized(owner):
                inside.update(owner.get_submodule("parametrizations").modules())
        found = _layer(name, layer, owners, names, taken)
        if found is not None:
            layers.append(found)
    return layers


def _layer(
    name: str,
    layer: nn.Module,
    owners: dict[str, nn.Module],
    names: dict[Tensor, list[str]],
    taken: dict[Tensor, str],
) -> WeightedLayer | None:
    """One entry, or None for a module without parameters; marks the parameters as ``taken``."""
    prefix = f"{name}." if name else ""
    parts: list[WeightPart] = []
    notes: list[str] = []
    own: dict[str, Tensor] = {}
    kind, seen = kind_of(layer), False
    for inner, owner in owners.items():
        for tensor_name, stored in tensors_of(owner).items():
            seen = True
            parameters = {f"{prefix}{inner}{local}": owner.get_parameter(local) for local in stored}
            new = {full: parameter for full, parameter in parameters.items() if parameter not in taken}
            shown = f"{inner}{tensor_name}"
            if not new:
                first = next(iter(parameters.values()))
                notes.append(f"{shown} is {taken[first]} (tied): see there")
                continue
            taken |= {parameter: full for full, parameter in new.items()}
            own |= new
            of_tensor = list(parts_of(owner, shown, tensor_name))
            parts += [replace(part, label="output projection") for part in of_tensor] if inner else of_tensor
            if not of_tensor and (kind == "parameters" or (kind != "norm" and "bias" not in tensor_name)):
                notes.append(_not_a_matrix(owner, tensor_name))
    if not seen:
        if not _is_quantised(layer):
            return None
        notes.append("not computed: quantised weights, packed; diagnose the module before quantising it")
    notes += [f"{part.name} {part.note}" for part in parts if part.note]
    return WeightedLayer(
        name=name,
        kind=kind,
        type_name=type_name(layer),
        layout=layout_of(layer),
        parts=tuple(parts),
        parameters=tuple(own),
        shared_with=tuple(other for full, parameter in own.items() for other in names[parameter] if other != full),
        note="; ".join(notes),
    )


def _not_a_matrix(owner: nn.Module, tensor_name: str) -> str:
    tensor = effective(owner, tensor_name)
    return f"{tensor_name} {why_unread(tensor) or f'of shape {shape_of(tensor)} is not a matrix'}"


def _is_quantised(layer: nn.Module) -> bool:
    """PyTorch's quantised layers keep their weights packed, outside the parameters."""
    return hasattr(layer, "_packed_params") or hasattr(layer, "_all_weight_values")


# ---- The matrices inside one module: query, key and value; gates; unfolded filters


#: In this order, since some types are subtypes of others.
KINDS: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("norm", (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)),
    ("attention", (nn.MultiheadAttention,)),
    ("transposed convolution", (_ConvTransposeNd,)),
    ("convolution", (_ConvNd,)),
    ("recurrent", (nn.RNNBase, nn.RNNCellBase)),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("bilinear", (nn.Bilinear,)),
    ("linear", (nn.Linear,)),
)

GATES = {4: ("i", "f", "g", "o"), 3: ("r", "z", "n"), 1: ("h",)}


@dataclass(frozen=True)
class CircularFilter:
    """A convolution whose input is wrapped around and keeps its size: an operator that frequencies make diagonal."""

    read: Callable[[], Tensor] = field(repr=False)
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class WeightPart:
    """One matrix of a layer, read when asked for.

    Attributes
    ----------
    name : str
        Of the tensor inside the layer, with the slice in brackets: ``"in_proj_weight[query]"``.
    label : str
        What it is, in words.
    matrix_shape : tuple of int
        (m, n), or (groups, m, n) for the blocks of a block-diagonal matrix.
    how : str
        How the matrix comes from the tensor.
    note : str
        ``"not computed: …"`` where there are no real numbers to read; else empty.
    circular : CircularFilter or None
        For convolutions whose exact spectrum frequencies give.
    """

    name: str
    label: str
    matrix_shape: tuple[int, ...]
    how: str
    read: Callable[[], Tensor] = field(repr=False)
    note: str = ""
    circular: CircularFilter | None = None

    def stored(self) -> Tensor:
        """The matrix, or stack of blocks, in the dtype and on the device of the module."""
        if self.note:
            fail("WeightPart", f"{self.name} must hold real numbers", self.note, "Check `note` before reading.")
        return self.read()

    def matrix(self) -> Tensor:
        """The matrix (m, n), or its blocks (groups, m, n), in float64 on the CPU."""
        return self.stored().to("cpu", torch.float64)


def kind_of(module: nn.Module) -> str:
    """The kind of a module that owns parameters: its own word, one of the names of ``KINDS``, or ``"parameters"``."""
    if isinstance(module, Layer):
        return module.kind
    return next((kind for kind, types in KINDS if isinstance(module, types)), "parameters")


def layout_of(module: nn.Module) -> str:
    """Where the channels of the output are: ``"channels-first"`` (axis 1 of a batch) or ``"last"``."""
    return "channels-first" if isinstance(module, _ConvNd | _NormBase | nn.GroupNorm) else "last"


def parts_of(module: nn.Module, name: str, tensor_name: str) -> Iterator[WeightPart]:
    """The matrices of one tensor; ``name`` is what to call it. None for biases and other tensors without one."""
    kind = kind_of(module)
    tensor = effective(module, tensor_name)
    dims, problem = shape_of(tensor), why_unread(tensor)

    def part(label: str, how: str, cut: Callable[[Tensor], Tensor], piece: str = "", **extra: CircularFilter | None):
        # The same cut of an empty tensor tells the shape, also where there are no values.
        shape = tuple(cut(torch.empty(dims, device="meta")).shape)
        shown = f"{name}[{piece}]" if piece else name
        return WeightPart(shown, label, shape, how, lambda: cut(effective(module, tensor_name)), problem, **extra)

    def whole(W: Tensor) -> Tensor:
        return W

    if not dims:
        if problem and tensor_name.startswith("weight"):
            yield WeightPart(name, "weight", (), "not initialised", lambda: tensor, problem)
    elif isinstance(module, Layer):
        if len(dims) == 2:
            yield part("weight" if tensor_name == "weight" else "parameter matrix", module.reading, whole)
    elif kind == "norm":
        return
    elif tensor_name == "weight" and kind in ("linear", "embedding"):
        yield part("weight" if kind == "linear" else "table of embeddings", "as it is", whole)
    elif tensor_name == "weight" and kind == "bilinear":
        yield part("weight", "flattened to (out, in1·in2)", lambda W: W.flatten(1))
    elif tensor_name == "weight" and isinstance(module, _ConvNd):
        unfold = _unfold_transposed if kind == "transposed convolution" else _unfold
        circular = None
        if is_circular(module):
            circular = CircularFilter(lambda: effective(module, "weight"), tuple(module.dilation), module.groups)
        rows = "(out, in·k)" if module.groups == 1 else f"{module.groups} blocks (out/groups, in/groups·k)"
        yield part("filter", f"unfolded to {rows}", lambda W: unfold(W, module.groups), circular=circular)
    elif kind == "attention" and tensor_name == "in_proj_weight":
        for index, piece in enumerate(("query", "key", "value")):
            yield part(f"{piece} projection", "a third of in_proj_weight", _slice(index, 3), piece)
    elif kind == "recurrent" and tensor_name.startswith("weight_"):
        yield from _recurrent(module, tensor_name, part)
    elif len(dims) == 2:
        known = {f"{piece[0]}_proj_weight": f"{piece} projection" for piece in ("query", "key", "value")}
        label = known.get(tensor_name, "parameter matrix") if kind == "attention" else "parameter matrix"
        yield part(label, "as it is", whole)


def is_circular(module: _ConvNd) -> bool:
    """Whether the input is wrapped around, with stride 1 and d·(k − 1) of padding in every direction."""
    if module.padding_mode != "circular" or module.transposed or any(step != 1 for step in module.stride):
        return False
    if isinstance(module.padding, str):
        return module.padding == "same" or all(size == 1 for size in module.kernel_size)
    needed = (d * (size - 1) for d, size in zip(module.dilation, module.kernel_size))
    return all(2 * padding == total for padding, total in zip(module.padding, needed))


def _unfold(W: Tensor, groups: int) -> Tensor:
    blocks = W.reshape(groups, W.shape[0] // groups, -1)
    return blocks if groups > 1 else blocks[0]


def _unfold_transposed(W: Tensor, groups: int) -> Tensor:
    """A transposed convolution stores (in, out/groups, k…)."""
    blocks = W.reshape(groups, W.shape[0] // groups, W.shape[1], -1).transpose(1, 2).flatten(2)
    return blocks if groups > 1 else blocks[0]


def _slice(index: int, pieces: int) -> Callable[[Tensor], Tensor]:
    return lambda W: W[index * (len(W) // pieces) : (index + 1) * (len(W) // pieces)]


def _recurrent(module: nn.Module, tensor_name: str, part: Callable[..., WeightPart]) -> Iterator[WeightPart]:
    """``weight_ih_l0_reverse`` → input weight of layer 0, backward, gate by gate."""
    words = tensor_name.split("_")
    role = {"ih": "input weight", "hh": "recurrent weight", "hr": "projection"}.get(words[1], "parameter matrix")
    place = ""
    if len(words) > 2 and words[2].startswith("l"):
        place = f", layer {words[2][1:]} {'backward' if words[-1] == 'reverse' else 'forward'}"
    if words[1] not in ("ih", "hh"):
        yield part(f"{role}{place}", "as it is", lambda W: W)
        return
    count = 4 if isinstance(module, nn.LSTM | nn.LSTMCell) else 3 if isinstance(module, nn.GRU | nn.GRUCell) else 1
    for index, gate in enumerate(GATES[count]):
        shown = (f", gate {gate}", f"rows of gate {gate}", gate) if count > 1 else ("", "as it is", "")
        yield part(f"{role}{place}{shown[0]}", shown[1], _slice(index, count), shown[2])


# ---- The spectrum of one weight: how it was computed, how exact it is, and what it is the spectrum of


#: Each frequency is an SVD of (out, in): 4096 of them take seconds for 64 channels and minutes for 512.
FREQUENCIES_UP_TO = 4096


@dataclass(frozen=True)
class WeightSpectrum:
    """Singular values of a weight.

    Attributes
    ----------
    values : Tensor (r,)
        Decreasing, over all groups and frequencies; the largest only if ``method`` is ``"randomised"``.
    method : {"exact", "by frequency", "unfolded filter", "randomised", "not computed"}
    error : float
        Bound on |sᵢ − ŝᵢ| / s₁ for all values shown.
    norm : float
        Frobenius norm of the matrix that ``shape`` describes; exact by every method.
    shape : tuple of int
        (m, n) of the whole matrix: block-diagonal for groups, the operator on the grid for ``"by frequency"``.
    note : str
        What the reader should know.
    by_frequency : FrequencySpectrum or None
        The same values frequency by frequency, with the norm of the filter itself.
    """

    values: Tensor
    method: str
    error: float
    norm: float
    shape: tuple[int, ...]
    note: str
    by_frequency: FrequencySpectrum | None = None


@torch.no_grad()
def weight_spectrum(
    part: WeightPart,
    *,
    grid: Sequence[int] | None = None,
    exact_up_to: int = EXACT_UP_TO,
    frequencies_up_to: int = FREQUENCIES_UP_TO,
    k: int = 128,
    seed: int = 0,
) -> WeightSpectrum:
    """Singular values of one part of a layer's weights, by the best method that its size allows.

    Parameters
    ----------
    part : WeightPart
        From :func:`weighted_layers`.
    grid : sequence of int, optional
        Spatial size of the layer's input. With it, circular convolutions get the spectrum of the operator.
    exact_up_to : int, default 2048
        Smaller side beyond which only the ``k`` largest values are computed, by random projection from ``seed``.
    frequencies_up_to : int, default 4096
        Frequencies (±ω once) beyond which a circular convolution falls back to its filter.
    """
    if part.note:
        none = torch.empty(0, dtype=torch.float64)
        return WeightSpectrum(none, "not computed", math.nan, math.nan, part.matrix_shape, part.note)
    notes = []
    if part.circular is not None and grid is not None:
        count = paired_frequencies(grid)
        if count <= frequencies_up_to:
            return _by_frequency(part.circular, grid)
        notes.append(f"{count} frequencies: pass `frequencies_up_to={count}` for the spectrum of the operator")
    elif part.circular is not None:
        notes.append("circular: pass `grid`, the spatial size of the input, for the spectrum of the operator")
    A = part.stored()
    if A.ndim == 3:
        found, shape = _block_diagonal(A, exact_up_to, k, seed), (A.shape[0] * A.shape[1], A.shape[0] * A.shape[2])
    else:
        found, shape = large_spectrum(A, k, exact_up_to=exact_up_to, seed=seed), (A.shape[0], A.shape[1])
    method = found.method
    if part.how.startswith("unfolded") and method != "not computed":
        notes.insert(0, "singular values of the unfolded filter, not of the convolution operator")
        method = "unfolded filter" if method == "exact" else method
    top = float(found.values[0]) if len(found.values) else 0.0
    error = float(found.error.max()) / top if top > 0 else (math.nan if method == "not computed" else 0.0)
    return WeightSpectrum(found.values, method, error, found.norm, shape, "; ".join(filter(None, [*notes, found.note])))


def _by_frequency(circular: CircularFilter, grid: Sequence[int]) -> WeightSpectrum:
    """The operator on periodic signals of the size ``grid``."""
    W = circular.read().to("cpu", torch.float64)
    positions = math.prod(grid)
    shape = (W.shape[0] * positions, W.shape[1] * circular.groups * positions)
    bad = int((~torch.isfinite(W)).sum())
    if bad:
        none = torch.empty(0, dtype=torch.float64)
        return WeightSpectrum(
            none, "not computed", math.nan, math.nan, shape, f"not computed: {bad} non-finite entries"
        )
    found = filter_spectra(W, list(grid), dilation=circular.dilation, groups=circular.groups)
    # Ŵ(ω) is a sum over the taps: their rounding comes on top of that of an SVD.
    error = (max(W.shape[:2]) + W[0, 0].numel()) * torch.finfo(W.dtype).eps
    note = f"the operator on periodic inputs of size {'×'.join(map(str, grid))}"
    return WeightSpectrum(found.union(), "by frequency", error, found.norm, shape, note, found)


def _block_diagonal(blocks: Tensor, exact_up_to: int, k: int, seed: int) -> LargeSpectrum:
    """Union of the singular values of the blocks (groups, m, n)."""
    groups, m, n = blocks.shape
    blocks = blocks.to("cpu", torch.float64)
    if not bool(torch.isfinite(blocks).all()):
        return large_spectrum(blocks.flatten(0, 1))  # which counts them
    if min(m, n) > exact_up_to:
        operator = Operator(
            (groups * m, groups * n),
            lambda X: (blocks @ X.reshape(groups, n, -1)).flatten(0, 1),
            lambda Y: (blocks.mT @ Y.reshape(groups, m, -1)).flatten(0, 1),
        )
        return large_spectrum(operator, k, exact_up_to=exact_up_to, seed=seed)
    values = torch.linalg.svdvals(blocks).flatten().sort(descending=True).values
    rounding = max(m, n) * torch.finfo(values.dtype).eps * values[:1].expand_as(values)
    return LargeSpectrum(values, rounding, rounding, "exact", _norm(blocks), 0.0, 0.0, "")


def _norm(values: Tensor) -> float:
    """‖·‖ without overflow of the squares."""
    top = float(values.abs().max()) or 1.0
    return top * float((values / top).norm())


# ---- The tensors a module computes with: behind parametrisations, weight norm, spectral norm, pruning and step lengths


def type_name(module: nn.Module) -> str:
    """Name of the class, without the ``Parametrized`` that PyTorch puts before it."""
    return parametrize.type_before_parametrizations(module).__name__


def tensors_of(module: nn.Module) -> dict[str, list[str]]:
    """Own tensors of a module and the parameters each is made of, by their names inside the module.

    ``{"weight": ["parametrizations.weight.original0", "parametrizations.weight.original1"], "bias": ["bias"]}``
    """
    stored = {}
    for hook in module._forward_pre_hooks.values():
        name = _hooked_name(hook)
        if name is not None:
            stored |= {f"{name}{ending}": name for ending in ("_g", "_v", "_orig")}
    found: dict[str, list[str]] = {}
    for parameter, _ in module.named_parameters(recurse=False, remove_duplicate=False):
        found.setdefault(stored.get(parameter, parameter), []).append(parameter)
    if parametrize.is_parametrized(module):
        inner = module.get_submodule("parametrizations")
        for parameter, _ in inner.named_parameters(remove_duplicate=False):
            found.setdefault(parameter.split(".")[0], []).append(f"parametrizations.{parameter}")
    return found


@torch.no_grad()
def effective(module: nn.Module, name: str) -> Tensor:
    """The tensor ``name`` as the next forward pass in evaluation mode will use it."""
    for hook in module._forward_pre_hooks.values():
        if _hooked_name(hook) != name:
            continue
        if isinstance(hook, WeightNorm):
            return hook.compute_weight(module).detach()
        if isinstance(hook, SpectralNorm):
            return hook.compute_weight(module, do_power_iteration=False).detach()
        if isinstance(hook, BasePruningMethod):
            return hook.apply_mask(module).detach()
    if parametrize.is_parametrized(module, name):
        with _in_evaluation_mode(module.get_submodule("parametrizations")):
            return getattr(module, name).detach()
    tensor = getattr(module, name)
    if isinstance(module, Layer):
        return module.as_printed(name).detach()
    return tensor if is_lazy(tensor) else tensor.detach()


def why_unread(tensor: Tensor) -> str:
    """Why a tensor has no spectrum here, as ``"not computed: …"``; empty if it has."""
    if is_lazy(tensor):
        return "not computed: not initialised yet; run the module once"
    if tensor.is_meta:
        return "not computed: on the meta device, without values"
    if tensor.is_quantized:
        return f"not computed: quantised ({tensor.dtype}); dequantise it first"
    if tensor.layout != torch.strided:
        return f"not computed: sparse ({tensor.layout}); make it dense first"
    if not tensor.is_floating_point():
        return f"not computed: {tensor.dtype} is not a real floating dtype"
    return ""


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Shape; ``()`` where it is not known yet."""
    return () if is_lazy(tensor) else tuple(tensor.shape)


def _hooked_name(hook: object) -> str | None:
    """Name of the tensor that a pre-forward hook of PyTorch recomputes."""
    if isinstance(hook, WeightNorm | SpectralNorm):
        return hook.name
    return hook._tensor_name if isinstance(hook, BasePruningMethod) else None


@contextmanager
def _in_evaluation_mode(module: nn.Module) -> Iterator[None]:
    """In training mode spectral norm makes a power iteration, and keeps it, whenever its weight is read."""
    before = [(inner, inner.training) for inner in module.modules()]
    try:
        for inner, _ in before:
            inner.training = False
        yield
    finally:
        for inner, training in before:
            inner.training = training
