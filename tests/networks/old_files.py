"""Files as earlier versions wrote them: configurations and tensors in their old layout, built by hand."""

from __future__ import annotations

import json

from isthmus import files


def old_parts(net):
    """(Kind, configuration, tensors) of a network as it was saved before there was one codec for all families."""
    name, state = type(net).__name__, {name: T.detach() for name, T in net.state_dict().items()}
    config = {**net.config(), "dtype": str(next(net.parameters()).dtype).removeprefix("torch.")}
    if name == "LeakyResNet":
        state = {key: T for key, T in state.items() if key.startswith("W_")} | {"rho": net.rho.detach()}
        for index, stage in enumerate(net.stages):
            state[f"weights.{index}"] = stage.weight.detach()
            if stage.bias is not None:
                state[f"biases.{index}"] = stage.bias.detach()
    elif name == "ConvolutionalNet":
        del config["filter_size"]
        config["filter_sizes"] = [list(one) for one in net.filter_sizes]
    elif name == "Standardized" or not net.uniform:
        return compact_parts(net)
    return name, config, state


def compact_parts(net):
    """The same of a network of several slopes, or with linear neurons, perhaps behind a scaling: a CompactNetwork."""
    layers = net.plain_layers()
    state = {name: T.detach() for name, T in layers.state_dict().items()}
    scaled = layers is not net
    config = {
        "dtype": str(layers.weights[0].dtype).removeprefix("torch."),
        "depth": layers.depth,
        "slopes": list(layers.slopes),
        "linear": list(layers.linear),
        "bias": layers.bias,
        "biased": [b is not None for b in layers.biases] or [False] * layers.depth,
        "scaled": scaled,
    }
    return "CompactNetwork", config, state | ({"shift": net.shift, "scale": net.scale} if scaled else {})


def write_old(path, kind, config, tensors):
    """A file of format version 1, as ``isthmus.save`` wrote it."""
    metadata = {"format": "isthmus", "format_version": "1", "kind": kind, "config": json.dumps(config)}
    files.write_tensors(path, tensors, {**metadata, "versions": json.dumps({"isthmus": "0.1.0"})})
