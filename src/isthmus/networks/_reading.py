"""Reading networks built from PyTorch's own layers."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._atomic import as_path, open_checked, shown
from isthmus._checks import check_number, fail
from isthmus._deprecations import renamed
from isthmus._errors import FileFormatError
from isthmus._inside import Inside
from isthmus.files import save, write_tensors
from isthmus.networks._fully_connected import FullyConnected
from isthmus.networks._network import Network


def _flatten(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        # Not named_children(), which leaves out a module that appears twice: a shared ReLU, or a shared
        # Linear.
        for name, child in module._modules.items():
            assert child is not None
            yield from _flatten(child, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix or "module", module


def set_submodule(module: nn.Module, name: str, part: nn.Module) -> None:
    """Put ``part`` in the place of the submodule ``name``; PyTorch has a method for it from 2.5 on."""
    outer, _, last = name.rpartition(".")
    setattr(module.get_submodule(outer), last, part)


@renamed(module="net")
def from_torch(net: nn.Module) -> FullyConnected:
    """Read an ``nn.Sequential`` of Linear, ReLU, LeakyReLU and Identity into a :class:`FullyConnected` (a
    copy).

    Nested ``nn.Sequential`` are flattened; a Linear without bias gets a zero bias if another one has a bias.
    Two Linear with nothing between them are the linear network ``slope=1``. Anything else is refused by name:
    other modules, mixed activations, an activation before the first or after the last Linear, shared Linear.
    """
    who = "from_torch"
    fix = "Use nn.Linear with one kind of nn.ReLU / nn.LeakyReLU / nn.Identity between them."
    layers = net.plain_layers() if isinstance(net, Network) else None
    if layers is not None and layers is net:
        return layers.part(0, layers.depth)
    linears: list[tuple[str, nn.Linear]] = []
    slopes: list[tuple[str, float]] = []
    pending: tuple[str, float] | None = None
    for name, layer in _flatten(net):
        if layer._forward_hooks or layer._forward_pre_hooks:
            # Old-style weight_norm and spectral_norm, or anything a user attached: not what the weights say.
            fail(who, "layers must have no forward hooks", f"layer {name!r}: {layer}", "Remove them first.")
        if type(layer) is nn.Linear:
            if any(layer is other for _, other in linears):
                fail(who, "each Linear must appear once", f"layer {name!r} again", "Copy the shared layer.")
            if linears:
                slopes.append(pending or (name, 1.0))
            elif pending is not None and pending[1] != 1.0:
                fail(who, "the first layer must be an nn.Linear", f"layer {pending[0]!r} before it", fix)
            linears.append((name, layer))
            pending = None
        elif type(layer) is nn.ReLU or type(layer) is nn.LeakyReLU:
            if pending is not None and pending[1] != 1.0:
                fail(who, "one activation may stand between two Linear", f"a second one, layer {name!r}", fix)
            pending = (name, float(layer.negative_slope) if type(layer) is nn.LeakyReLU else 0.0)
        elif type(layer) is not nn.Identity:
            fail(who, "layers must be Linear, ReLU, LeakyReLU or Identity", f"layer {name!r}: {layer}", fix)
    if not linears:
        fail(who, "`net` must contain an nn.Linear", f"{type(net).__name__} without one", fix)
    if pending is not None and pending[1] != 1.0:
        fail(who, "the last layer must be an nn.Linear", f"activation {pending[0]!r} after it", fix)
    for name, slope in slopes:
        if slope != slopes[0][1]:
            fail(
                who,
                f"all activations must have the same slope, {slopes[0][1]:g} as at {slopes[0][0]!r}",
                f"slope {slope:g} at layer {name!r}",
                fix,
            )
        if not -1.0 <= slope <= 1.0:
            fail(
                who,
                "slopes must be in [-1, 1]",
                f"slope {slope:g} at layer {name!r}",
                "Rescale the activation.",
            )
    for (before, first), (name, second) in zip(linears, linears[1:]):
        if first.out_features != second.in_features:
            fail(
                who,
                f"layer {name!r} must take the {first.out_features} outputs of layer {before!r}",
                f"in_features={second.in_features}",
                "Match the sizes.",
            )
    has_bias = any(layer.bias is not None for _, layer in linears)
    bs = [torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias.detach() for _, layer in linears]
    return FullyConnected.from_weights(
        [layer.weight.detach() for _, layer in linears],
        bs if has_bias else None,
        slope=slopes[0][1] if slopes else 0.0,
    )


# ---- From a PyTorch state_dict to safetensors: the one place that reads a pickle, in restricted mode


MAX_SOURCE_BYTES = 2**34

#: Tied weights make a state_dict larger than its file; more than this is an expanded tensor (stride 0).
_MAX_EXPANSION = 16


class UntrustedFileWarning(UserWarning):
    """A pickle was opened, though in restricted mode: its source should be trusted."""


@dataclass(frozen=True)
class Conversion:
    """What :func:`convert_state_dict` wrote.

    ``kind`` is ``"FullyConnected"`` or ``"tensors"`` (raw); ``layers`` the names taken, from input to output
    (raw: all names); ``dims`` the sizes n_0 … n_L (raw: none); ``parameters`` the number of scalars.
    """

    source: Path
    target: Path
    kind: str
    layers: tuple[str, ...]
    dims: tuple[int, ...] | None
    parameters: int


def convert_state_dict(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    slope: float = 0.0,
    bias: float = 1.0,
    raw: bool = False,
    overwrite: bool = True,
    max_bytes: int = MAX_SOURCE_BYTES,
) -> Conversion:
    """Convert a ``torch.save``-d state_dict to a safetensors file, with one warning that pickles need trust.

    Parameters
    ----------
    source : path
        A state_dict, as ``torch.save(module.state_dict(), path)`` writes it (PyTorch ≥ 1.6).
    target : path
        A file for :func:`isthmus.load`, or with ``raw`` for :func:`isthmus.files.read_tensors`.
    slope : float, default 0.0
        Slope of the activation, which a state_dict does not hold: 0 for ReLU, 1 for a linear network.
    bias : float, default 1.0
        Amount of bias β, not held either: 1 unless it comes from a FullyConnected with another.
    raw : bool, default False
        Write the tensors as they are, whatever they are.
    overwrite : bool, default True
        If false, an existing target is an error.
    max_bytes : int
        Refuse a larger source.

    Notes
    -----
    Layers are names ``*.weight`` (2-D) with optional ``*.bias``, or FullyConnected's own ``weights.0``, ….
    Numbered layers are put in the order of their numbers, others kept in the order of the file; the result
    lists them. A state_dict cannot tell *how* a module used its layers: compare outputs once.
    """
    who = "convert"
    origin, goal = as_path(who, source), as_path(who, target)
    slope = check_number(who, "slope", slope, low=-1.0, high=1.0)
    bias = check_number(who, "bias", bias)
    tensors = _read(who, origin, max_bytes)
    parameters = sum(T.numel() for T in tensors.values())
    if raw:
        write_tensors(goal, tensors, {"format": "pt"}, overwrite=overwrite)
        return Conversion(Path(origin), Path(goal), "tensors", tuple(tensors), None, parameters)
    Ws, bs, layers = _chain(who, tensors)
    # Zero biases for layers without one, if another has one, as from_torch does.
    filled = [W.new_zeros(W.shape[0]) if b is None else b for W, b in zip(Ws, bs)]
    has_bias = bias != 0.0 and any(b is not None for b in bs)
    with torch.random.fork_rng(devices=[]):
        net = FullyConnected.from_weights(Ws, filled if has_bias else None, slope=slope, bias=bias if has_bias else 0.0)
    save(net, goal, overwrite=overwrite)
    return Conversion(Path(origin), Path(goal), "FullyConnected", layers, net.dims, parameters)


def _read(who: str, source: Path | Inside, max_bytes: int) -> dict[str, Tensor]:
    """The tensors of a state_dict file by name; anything else fails."""
    label = shown(source)
    with open_checked(who, source, max_bytes) as (handle, size):
        _check_archive(who, handle, size, label)
    warnings.warn(
        f"{label} is a pickle: it is read in PyTorch's restricted mode, which has been broken before. "
        "Convert only files from sources you trust, and keep the safetensors file instead.",
        UntrustedFileWarning,
        stacklevel=3,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one warning only: PyTorch's own would bury it
            state = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as problem:  # whatever a hostile archive provokes inside PyTorch
        fail(
            who,
            f"{label} must be a state_dict that torch.load reads with weights_only=True",
            f"{type(problem).__name__}: {shown(str(problem).strip().split(chr(10))[0], 200)}",
            "Save it as torch.save(module.state_dict(), path).",
            error=FileFormatError,
        )
    do = "Save only module.state_dict()."
    if not isinstance(state, dict) or not state:
        got = "no entry" if isinstance(state, dict) else f"a {shown(type(state).__name__)}"
        fail(who, f"{label} must hold a state_dict, a dict of tensors", got, do, error=FileFormatError)
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            got = f"a {shown(type(value).__name__)} at {shown(name)}"
            fail(
                who,
                f"every entry of the state_dict in {label} must be a tensor",
                got,
                do,
                error=FileFormatError,
            )
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            got = f"{value.dtype}, {value.layout}, device {value.device} at {shown(name)}"
            fail(
                who,
                f"tensors in {label} must be dense",
                got,
                "Convert it before saving.",
                error=FileFormatError,
            )
    logical = sum(T.numel() * T.element_size() for T in state.values())
    if logical > _MAX_EXPANSION * size:
        fail(
            who,
            f"the tensors of {label} must have at most {_MAX_EXPANSION} times its {size} bytes",
            f"{logical} bytes",
            "It holds expanded tensors (stride 0): save .contiguous() ones.",
            error=FileFormatError,
        )
    return state


def _check_archive(who: str, handle: Any, size: int, label: str) -> None:
    """Refuse what ``torch.save`` never writes, before PyTorch sees it: other formats, compressed archives."""
    try:
        with zipfile.ZipFile(handle) as archive:
            records = archive.infolist()
    except Exception as problem:  # zipfile raises many kinds on damaged archives
        fail(
            who,
            f"{label} must be a zip archive as torch.save writes it",
            f"{type(problem).__name__}: {shown(str(problem))}",
            "Save it again with PyTorch 1.6 or later.",
            error=FileFormatError,
        )
    # A compressed record could stand for a thousand times its size.
    unpacked = sum(record.file_size for record in records)
    if unpacked > size or any(record.compress_type != zipfile.ZIP_STORED for record in records):
        got = f"records of {unpacked} bytes in a file of {size}, or compressed ones"
        fail(
            who,
            f"{label} must be an uncompressed archive",
            got,
            "Save it again with torch.save.",
            error=FileFormatError,
        )


def _chain(who: str, state: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor | None], tuple[str, ...]]:
    """Weights, biases and names of the layers from input to output; fails on the first misfit."""
    # Each tensor's layer and role: "0.weight", or FullyConnected's own "weights.0", → ("0", "weight").
    own = all(re.fullmatch(r"(weights|biases)\.[0-9]{1,6}", name) for name in state)
    layers: dict[str, dict[str, str]] = {}
    for name in state:
        if own:
            role, layer = name.split(".")
            role = {"weights": "weight", "biases": "bias"}[role]
        else:
            layer, _, role = name.rpartition(".")
        if role not in ("weight", "bias"):
            _misfit(who, name, state, "is not called *.weight or *.bias")
        if role == "weight" and (state[name].ndim != 2 or 0 in state[name].shape):
            _misfit(who, name, state, "is not a matrix")
        layers.setdefault(layer, {})[role] = name
    order = list(layers)
    numbered = [re.fullmatch(r"(.*?)([0-9]{1,6})", layer, re.DOTALL) for layer in order]
    if all(numbered) and len({match[1] for match in numbered if match}) == 1:
        # "10" after "2", whatever the order in the file: equal widths would not show a wrong order.
        order.sort(key=lambda layer: int(re.findall("[0-9]+", layer)[-1]))
    Ws: list[Tensor] = []
    bs: list[Tensor | None] = []
    for layer in order:
        names = layers[layer]
        if "weight" not in names:
            _misfit(who, names["bias"], state, "has no weight beside it")
        W, b = state[names["weight"]], state[names["bias"]] if "bias" in names else None
        if W.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            _misfit(who, names["weight"], state, "is not of a real floating dtype")
        if Ws and W.dtype != Ws[0].dtype:
            _misfit(who, names["weight"], state, f"is not of the first layer's dtype {Ws[0].dtype}")
        if Ws and W.shape[1] != Ws[-1].shape[0]:
            _misfit(
                who,
                names["weight"],
                state,
                f"does not take the {Ws[-1].shape[0]} outputs of the layer before it",
            )
        if b is not None and (b.shape != W.shape[:1] or b.dtype != W.dtype):
            _misfit(who, names["bias"], state, f"is not a vector of {W.shape[0]} entries of dtype {W.dtype}")
        Ws.append(W)
        bs.append(b)
    return Ws, bs, tuple(order)


def _misfit(who: str, name: str, state: dict[str, Tensor], why: str) -> None:
    fail(
        who,
        "the state_dict must be a chain of 2-D weights with optional biases",
        f"tensor {shown(name)} of shape {shown(tuple(state[name].shape))}, {state[name].dtype}, which {why}",
        "Use raw=True (--raw) to write the tensors as they are.",
        error=FileFormatError,
    )
