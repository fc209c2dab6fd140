"""PyTorch's own ``nn.Sequential`` in files: its layers by kind and settings, its weights under their own names."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.files import register
from isthmus.networks._network import DTYPES

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding")

_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")

#: Kinds of layers, and the attributes that are arguments of their constructors; "bias" and "frozen" say whether.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "Linear": ("in_features", "out_features", "bias"),
    **{f"Conv{n}d": (*_CONVOLUTION, "dilation", "groups", "bias", "padding_mode") for n in (1, 2, 3)},
    **{
        f"ConvTranspose{n}d": (*_CONVOLUTION, "output_padding", "groups", "bias", "dilation", "padding_mode")
        for n in (1, 2, 3)
    },
    **{f"BatchNorm{n}d": _NORM for n in (1, 2, 3)},
    **{f"MaxPool{n}d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode") for n in (1, 2, 3)},
    **{f"AvgPool{n}d": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad") for n in (1, 2, 3)},
    **{f"Adaptive{kind}Pool{n}d": ("output_size",) for kind in ("Avg", "Max") for n in (1, 2, 3)},
    **dict.fromkeys(("ReLU", "ReLU6", "SiLU", "Tanh", "Sigmoid", "Identity", "Mish", "Softplus", "Hardswish"), ()),
    "LeakyReLU": ("negative_slope",),
    "PReLU": ("num_parameters", "frozen"),
    "GELU": ("approximate",),
    "ELU": ("alpha",),
    "Softmax": ("dim",),
    "Dropout": ("p",),
    "Flatten": ("start_dim", "end_dim"),
    "Unflatten": ("dim", "unflattened_size"),
    "ConstantPad3d": ("padding", "value"),
}

#: What settings of layers with weights have.
_WEIGHED = {"in_features", "in_channels", "num_features", "num_parameters"}

_ALTERED = "The file was not written by isthmus.save, or was altered by hand."

#: Nested containers are read so far.
_DEEPEST = 20


def _described(module: nn.Sequential, depth: int = 0) -> list[list[Any]]:
    """Of each layer its name, kind and settings, as plain data."""
    if depth > _DEEPEST:
        fail("save", f"containers must be nested at most {_DEEPEST} deep", "more", "Flatten them.")
    found = []
    for name, layer in module._modules.items():
        kind = type(layer).__name__
        if type(layer) is nn.Sequential:
            found.append([name, "Sequential", _described(layer, depth + 1)])
            continue
        known = _SETTINGS.get(kind)
        if known is None or type(layer) is not getattr(nn, kind):
            must = f"layers of an nn.Sequential must be of {', '.join(_SETTINGS)}"
            do = "Save other modules with torch.export.save, or their state_dict() with torch.save."
            fail("save", must, f"a {kind} at {name!r}", do)
        said: dict[str, Any] = {}
        for key in known:
            if key == "frozen":
                said[key] = not layer.weight.requires_grad
            else:
                value = getattr(layer, key)
                said[key] = value is not None if key == "bias" else value
        found.append([name, kind, said])
    # As JSON gives it back: tuples are lists.
    return json.loads(json.dumps(found))


def _to_parts(module: nn.Sequential) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {name: T.detach() for name, T in module.state_dict().items()}
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules()):
        fail("save", "layers must have no hooks", "some", "Remove them: a file does not hold what they do.")
    dtypes = {T.dtype for T in tensors.values() if T.is_floating_point()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES.values()):
        must = f"all weights must be of one dtype of {', '.join(DTYPES)}"
        fail("save", must, sorted(map(str, dtypes)) or "no weights", "Convert them with .to(dtype).")
    return {"layers": _described(module), "dtype": str(dtypes.pop()).removeprefix("torch.")}, tensors


def _from_parts(config: Any, tensors: dict[str, Tensor]) -> nn.Sequential:
    if not isinstance(config, dict) or set(config) != {"layers", "dtype"} or config["dtype"] not in DTYPES:
        fail("load", "the configuration must have `layers` and a `dtype`", ascii(config)[:200], _ALTERED)
    frozen: list[nn.PReLU] = []
    try:
        module = _built(config["layers"], DTYPES[config["dtype"]], frozen)
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError, AttributeError) as problem:
        fail("load", "the layers must be PyTorch's, with settings that they take", str(problem)[:200], _ALTERED)
    wanted = module.state_dict()
    shapes = {name: (T.shape, T.dtype) for name, T in wanted.items()}
    if {name: (T.shape, T.dtype) for name, T in tensors.items()} != shapes:
        odd = sorted(wanted.keys() ^ tensors.keys())[:1] or ["a shape or dtype"]
        fail("load", "the tensors must be those that the layers imply", f"{ascii(odd[0])} differs", _ALTERED)
    module.load_state_dict(tensors, assign=True)
    for layer in frozen:
        layer.requires_grad_(False)
    # Neither a default in the place of what was lost, nor a second spelling of anything.
    says, given = (json.dumps(one, sort_keys=True) for one in (_described(module), config["layers"]))
    if says != given:
        fail("load", f"the layers must be written as {says[:200]}", given[:200], _ALTERED)
    # Norms and dropout compute what was saved in evaluation mode alone.
    return module.eval()


def _built(layers: Any, dtype: torch.dtype, frozen: list[nn.PReLU], depth: int = 0) -> nn.Sequential:
    """The layers on the meta device: nothing is allocated before the tensors are known to be there."""
    if depth > _DEEPEST or not isinstance(layers, list):
        raise ValueError("layers that are no list, or too many of them in one another")
    made = nn.Sequential()
    for name, kind, said in layers:
        if not isinstance(name, str) or kind not in (*_SETTINGS, "Sequential"):
            raise ValueError(f"a layer {name!r:.40} of kind {kind!r:.40}")
        if kind == "Sequential":
            made.add_module(name, _built(said, dtype, frozen, depth + 1))
            continue
        if set(said) != set(_SETTINGS[kind]):
            raise ValueError(f"settings of a {kind}: {sorted(said)!r:.100}")
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
        still = given.pop("frozen", False)
        home = {"device": "meta", "dtype": dtype} if _WEIGHED & given.keys() else {}
        layer = getattr(nn, kind)(**given, **home)
        if still is True:
            frozen.append(layer)
        made.add_module(name, layer)
    return made


register("Sequential", nn.Sequential, _to_parts, _from_parts)
