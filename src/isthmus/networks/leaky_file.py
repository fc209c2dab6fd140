"""A leaky ResNet as configuration and tensors, for files: everything in them is checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus.files import register
from isthmus.networks.fully_connected import DTYPES
from isthmus.networks.leaky_resnet import EMBEDDINGS, MAX_LAYERS, MAX_WIDTH, LeakyResNet
from isthmus.networks.leaky_steps import RULES

FIX = "The file was not written by isthmus.save, or the network was altered by hand."
KEYS = (
    "d_in",
    "d_out",
    "width",
    "layers",
    "effective_depth",
    "steps",
    "embed",
    "slope",
    "bias",
    "irregularity",
    "adapt_every",
    "dtype",
)


def check_parts(who: str, config: Any, tensors: Mapping[str, Tensor]) -> None:
    """Fail unless the configuration and the tensors are those of one network. Nothing is allocated."""
    if not isinstance(config, dict) or set(config) != set(KEYS):
        fail(who, f"the configuration must have the keys {', '.join(KEYS)}", ascii(config), FIX)
    for name in ("d_in", "d_out", "width"):
        check_integer(who, name, config[name], low=1, high=MAX_WIDTH)
    layers = check_integer(who, "layers", config["layers"], low=1, high=MAX_LAYERS)
    check_number(who, "effective_depth", config["effective_depth"], low=0.0)
    check_choice(who, "steps", config["steps"], RULES)
    check_choice(who, "embed", config["embed"], EMBEDDINGS)
    check_number(who, "slope", config["slope"], low=-1.0, high=1.0)
    bias = check_integer(who, "bias", config["bias"], low=0, high=1)
    check_number(who, "irregularity", config["irregularity"], low=0.0, high=1.0)
    check_integer(who, "adapt_every", config["adapt_every"], low=1)
    if not isinstance(config["dtype"], str) or config["dtype"] not in DTYPES:
        fail(who, f"`dtype` must be one of {', '.join(DTYPES)}", ascii(config["dtype"]), FIX)
    width = config["width"]
    shapes: dict[str, tuple[int, ...]] = {
        "W_in": (width, config["d_in"]),
        "W_out": (config["d_out"], width),
        "rho": (layers,),
    }
    # Compared before the names are listed: a hostile number of layers must not make a long list.
    wanted = len(shapes) + layers * (1 + bias)
    if len(tensors) != wanted:
        fail(who, f"there must be {wanted} tensors for {layers} layers", len(tensors), FIX)
    shapes |= {f"weights.{i}": (width, width) for i in range(layers)}
    if bias:
        shapes |= {f"biases.{i}": (width,) for i in range(layers)}
    for name, shape in shapes.items():
        T = tensors.get(name)
        dtype = torch.float64 if name == "rho" else DTYPES[config["dtype"]]
        if T is None or tuple(T.shape) != shape or T.dtype != dtype:
            got = "missing" if T is None else f"shape {tuple(T.shape)}, {T.dtype}"
            fail(who, f"tensor {name!r} must have shape {shape} and dtype {dtype}", got, FIX)
    rho = tensors["rho"]
    if not bool(torch.isfinite(rho).all()) or not bool((rho > 0).all()) or abs(float(rho.sum()) - 1.0) > 1e-6:
        fail(who, "`rho` must be positive lengths that sum to 1", f"sum {float(rho.sum()):g}", FIX)


def to_parts(net: LeakyResNet) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and tensors, the parameters √ρW bit for bit."""
    config = {
        "d_in": net.d_in,
        "d_out": net.d_out,
        "width": net.width,
        "layers": net.layers,
        "effective_depth": net.effective_depth,
        "steps": net.steps,
        "embed": net.embed,
        "slope": net.slope,
        "bias": int(net.bias),
        "irregularity": net.irregularity,
        "adapt_every": net.adapt_every,
        "dtype": str(net.W_in.dtype).removeprefix("torch."),
    }
    tensors = {"W_in": net.W_in.detach(), "W_out": net.W_out.detach(), "rho": net.rho.detach()}
    for index, step in enumerate(net.stages):
        tensors[f"weights.{index}"] = step.weight.detach()
        if step.bias is not None:
            tensors[f"biases.{index}"] = step.bias.detach()
    check_parts("save", config, tensors)
    return config, tensors


def from_parts(config: Any, tensors: dict[str, Tensor]) -> LeakyResNet:
    """The network of a file."""
    check_parts("load", config, tensors)
    width, layers, bias = config["width"], config["layers"], config["bias"]
    # Any valid weights of the right shape: the parameters are copied below, without going through W = V/√ρ.
    Ws = [torch.zeros((), dtype=DTYPES[config["dtype"]]).expand(width, width + bias)] * layers
    net = LeakyResNet.from_weights(
        Ws,
        tensors["rho"],
        effective_depth=config["effective_depth"],
        W_in=tensors["W_in"],
        W_out=tensors["W_out"],
        slope=config["slope"],
        bias=bias,
        steps=config["steps"],
        embed=config["embed"],
    )
    net.irregularity, net.adapt_every = float(config["irregularity"]), config["adapt_every"]
    with torch.no_grad():
        for index, step in enumerate(net.stages):
            step.weight.copy_(tensors[f"weights.{index}"])
            if step.bias is not None:
                step.bias.copy_(tensors[f"biases.{index}"])
    return net


register("LeakyResNet", LeakyResNet, to_parts, from_parts)
