"""A convolutional network as configuration and tensors, for files: everything is checked before anything is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus.files import register
from isthmus.networks.convolutional import HEADS, ConvolutionalNet
from isthmus.networks.fully_connected import DTYPES, MAX_DEPTH, MAX_WIDTH

FIX = "The file was not written by isthmus.save, or the network was altered by hand."
KEYS = ("channels", "size", "filter_sizes", "slope", "bias", "head", "outputs", "dtype")


def check_parts(who: str, config: Any, tensors: Mapping[str, Tensor]) -> None:
    """Fail unless the configuration and the tensors are those of one network. Nothing is allocated."""
    if not isinstance(config, dict) or set(config) != set(KEYS):
        fail(who, f"the configuration must have the keys {', '.join(KEYS)}", ascii(config), FIX)
    channels = _integers(who, "channels", config["channels"], 2, MAX_DEPTH + 1, MAX_WIDTH)
    size = _integers(who, "size", config["size"], 1, 2, MAX_WIDTH)
    layers = len(channels) - 1
    taps = config["filter_sizes"]
    if not isinstance(taps, list) or len(taps) != layers:
        fail(who, f"`filter_sizes` must be a list of {layers} entries", ascii(taps), FIX)
    for index, one in enumerate(taps):
        _integers(who, f"filter_sizes[{index}]", one, len(size), len(size), MAX_WIDTH)
        if one != size and (len(set(one)) > 1 or max(one) > min(size)):
            fail(who, f"`filter_sizes[{index}]` must be that of the images, or equal and no larger", ascii(one), FIX)
    check_number(who, "slope", config["slope"], low=-1.0, high=1.0)
    bias = check_number(who, "bias", config["bias"])
    check_choice(who, "head", config["head"], HEADS)
    if not isinstance(config["dtype"], str) or config["dtype"] not in DTYPES:
        fail(who, f"`dtype` must be one of {', '.join(DTYPES)}", ascii(config["dtype"]), FIX)
    shapes: dict[str, tuple[int, ...]] = {
        f"filters.{i}": (channels[i + 1], channels[i], *taps[i]) for i in range(layers)
    }
    if bias != 0.0:
        shapes |= {f"biases.{i}": (c,) for i, c in enumerate(channels[1:])}
    if config["head"] is None:
        if config["outputs"] is not None:
            fail(who, "`outputs` must be null without a head", ascii(config["outputs"]), FIX)
    else:
        outputs = check_integer(who, "outputs", config["outputs"], low=1, high=MAX_WIDTH)
        seen = channels[-1] * (1 if config["head"] == "mean" else math.prod(size))
        shapes["head_weight"] = (outputs, seen)
        if bias != 0.0:
            shapes["head_bias"] = (outputs,)
    if shapes.keys() != tensors.keys():
        odd = sorted(shapes.keys() ^ tensors.keys())[0]
        got = f"{ascii(odd)} {'missing' if odd in shapes else 'too many'}, {len(tensors)} tensors in all"
        fail(who, f"the tensors must be the {len(shapes)} that the configuration implies", got, FIX)
    for name, shape in shapes.items():
        T = tensors[name]
        if tuple(T.shape) != shape or T.dtype != DTYPES[config["dtype"]]:
            must = f"tensor {name!r} must have shape {shape} and dtype {config['dtype']}"
            fail(who, must, f"shape {tuple(T.shape)}, {T.dtype}", FIX)


def _integers(who: str, name: str, value: Any, low: int, high: int, most: int) -> list[int]:
    if not isinstance(value, list) or not low <= len(value) <= high:
        fail(who, f"`{name}` must be a list of {low} to {high} integers", ascii(value), FIX)
    return [check_integer(who, f"{name}[{i}]", n, low=1, high=most) for i, n in enumerate(value)]


def to_parts(net: ConvolutionalNet) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and tensors, bit for bit."""
    config = {
        "channels": list(net.channels),
        "size": list(net.size),
        "filter_sizes": [list(one) for one in net.filter_sizes],
        "slope": net.slope,
        "bias": net.bias,
        "head": net.head,
        "outputs": net.outputs,
        "dtype": str(net.filters[0].dtype).removeprefix("torch."),
    }
    tensors = {name: parameter.detach() for name, parameter in net.named_parameters(remove_duplicate=False)}
    check_parts("save", config, tensors)
    return config, tensors


def from_parts(config: Any, tensors: dict[str, Tensor]) -> ConvolutionalNet:
    """The network of a file."""
    check_parts("load", config, tensors)
    size = config["size"]
    net = ConvolutionalNet(
        config["channels"],
        size,
        [None if taps == size else taps[0] for taps in config["filter_sizes"]],
        config["slope"],
        config["bias"],
        head=config["head"],
        outputs=config["outputs"],
        init_scale=0.0,
        dtype=DTYPES[config["dtype"]],
    )
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(tensors[name])
    return net


register("ConvolutionalNet", ConvolutionalNet, to_parts, from_parts)
