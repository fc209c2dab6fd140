"""The matrices inside one module: query, key and value; gates; unfolded filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from isthmus._checks import fail
from isthmus.diagnosis.effective_weights import effective, shape_of, why_not
from isthmus.networks import LeakyStep

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
    ("leaky step", (LeakyStep,)),
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
    """The kind of a module that owns parameters: one of the names of ``KINDS``, or ``"parameters"``."""
    return next((kind for kind, types in KINDS if isinstance(module, types)), "parameters")


def layout_of(module: nn.Module) -> str:
    """Where the channels of the output are: ``"channels-first"`` (axis 1 of a batch) or ``"last"``."""
    return "channels-first" if isinstance(module, _ConvNd | _NormBase | nn.GroupNorm) else "last"


def parts_of(module: nn.Module, name: str, tensor_name: str) -> Iterator[WeightPart]:
    """The matrices of one tensor; ``name`` is what to call it. None for biases and other tensors without one."""
    kind = kind_of(module)
    tensor = effective(module, tensor_name)
    dims, problem = shape_of(tensor), why_not(tensor)

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
    elif kind == "norm":
        return
    elif tensor_name == "weight" and kind in ("linear", "embedding"):
        yield part("weight" if kind == "linear" else "table of embeddings", "as it is", whole)
    elif tensor_name == "weight" and kind == "leaky step":
        yield part("weight", "the parameter √ρ·W divided by √ρ, its bias left out", whole)
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
