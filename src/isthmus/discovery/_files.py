"""How a Discovery is taken apart for a file, and put together again; nothing in the file is believed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus._errors import FileFormatError
from isthmus.diagnosis._ranks import Evidence
from isthmus.discovery._columns import checked_names
from isthmus.discovery._maps import ConstantMap, Encoder, Sensitivity
from isthmus.discovery._profile import RankProfile
from isthmus.discovery._result import VERDICTS, Discovery
from isthmus.files import register
from isthmus.networks import FullyConnected

_FIX = "The file was not written by isthmus.save, or was altered by hand."

_MEANING = ("value", "low", "high", "agreement")

#: What the configuration of a file holds, and of what type each is.
_CONTENT = {
    "rank": int,
    "verdict": str,
    "reasons": list,
    "profile": (dict, type(None)),
    "replicas": list,
    "evidence": list,
    "error": (float, int, type(None)),
    "feature_names": list,
    "target_names": list,
    "notes": list,
    "settings": dict,
    "shape": dict,
    "samples": int,
}


def to_parts(found: Discovery) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration as plain data, and tensors by name."""
    whole = found.to_dict()
    tensors: dict[str, Tensor] = {"coordinates": torch.from_numpy(np.ascontiguousarray(found.coordinates))}
    shape: dict[str, Any] = {}
    if isinstance(found.encoder, Encoder) and isinstance(found.decoder, FullyConnected):
        tensors |= {"shift": found.encoder.shift, "scale": found.encoder.scale}
        for part, net in (("encoder", found.encoder.network), ("decoder", found.decoder)):
            shape[part] = {"depth": net.depth, "slope": net.slope, "bias": net.bias}
            tensors |= {f"{part}.{name}": p.detach() for name, p in net.named_parameters()}
    elif isinstance(found.decoder, ConstantMap):
        tensors["constant"] = found.decoder.value
    else:
        got = f"{type(found.encoder).__name__} and {type(found.decoder).__name__}"
        fail("save", "a Discovery must have the maps it was made with", got, "Save those maps by themselves.")
    if found.sensitivity is not None:
        for name in _MEANING:
            tensors[f"sensitivity.{name}"] = torch.from_numpy(np.array(getattr(found.sensitivity, name)))
    if found.fill is not None:
        tensors["fill"] = torch.from_numpy(np.array(found.fill))
    config = {key: whole[key] for key in _CONTENT if key in whole}
    config |= {"feature_names": whole["inputs"], "target_names": whole["outputs"], "shape": shape}
    return config, tensors


def from_parts(config: Any, tensors: dict[str, Tensor]) -> Discovery:
    """Inverse of :func:`to_parts`, for files of strangers."""
    try:
        return _build(config, dict(tensors))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as problem:
        # An IsthmusError is a ValueError, and says more than this would.
        raise FileFormatError(f"load: the parts of a Discovery must fit together. {problem}. {_FIX}") from problem


def _build(config: Any, tensors: dict[str, Tensor]) -> Discovery:
    who = "load"
    if not isinstance(config, dict) or set(config) != set(_CONTENT):
        fail(who, f"a Discovery must have the keys {', '.join(_CONTENT)}", ascii(config)[:200], _FIX)
    for key, kind in _CONTENT.items():
        # True is an int to Python; nothing here is.
        if not isinstance(config[key], kind) or isinstance(config[key], bool):
            fail(who, f"`{key}` must be {kind}", type(config[key]).__name__, _FIX)
    names = [
        checked_names(who, _texts(who, key, config[key]), len(config[key]), "")
        for key in ("feature_names", "target_names")
    ]
    d_in, d_out = len(names[0]), len(names[1])
    rank = check_integer(who, "rank", config["rank"], low=0, high=max(d_in, 1))
    check_choice(who, "verdict", config["verdict"], VERDICTS)
    arrays = {name: T.numpy() for name, T in tensors.items() if T.dtype == torch.float64}
    # Of rank 0 there is no number in them, and so no checksum that would tell how many rows there were.
    coordinates = _shaped(who, arrays, "coordinates", (config["samples"], rank))
    if rank == 0:
        encoder, decoder = (
            ConstantMap(torch.zeros(0, dtype=torch.float64)),
            ConstantMap(torch.from_numpy(_shaped(who, arrays, "constant", (d_out,)))),
        )
    else:
        parts = {part: _network(who, part, config["shape"], tensors) for part in ("encoder", "decoder")}
        ends = [
            (parts["encoder"].dims[0], parts["encoder"].dims[-1]),
            (parts["decoder"].dims[0], parts["decoder"].dims[-1]),
        ]
        if ends != [(d_in, rank), (rank, d_out)]:
            fail(who, f"the maps must lead {d_in} → {rank} → {d_out}", ends, _FIX)
        shift, scale = (torch.from_numpy(_shaped(who, arrays, key, (d_in,))) for key in ("shift", "scale"))
        if not bool((scale > 0).all()):
            fail(who, "`scale` must be positive", "something else", _FIX)
        encoder, decoder = Encoder(shift, scale, parts["encoder"]).requires_grad_(False), parts["decoder"]
    meaning = None
    if "sensitivity.value" in arrays:
        shapes = {name: (rank,) if name == "agreement" else (rank, d_in) for name in _MEANING}
        meaning = Sensitivity(*(_shaped(who, arrays, f"sensitivity.{name}", shapes[name]) for name in _MEANING))
    known = {"coordinates", "fill", "shift", "scale", "constant", *(f"sensitivity.{name}" for name in _MEANING)}
    surplus = [name for name in tensors if name not in known and not name.startswith(("encoder.", "decoder."))]
    if surplus:
        fail(who, "a Discovery must have no further tensors", ascii(surplus)[:200], _FIX)
    profile = None if config["profile"] is None else RankProfile.from_dict(config["profile"])
    return Discovery(
        rank=rank,
        verdict=config["verdict"],
        reasons=tuple(_texts(who, "reasons", config["reasons"])),
        profile=profile,
        replicas=tuple(RankProfile.from_dict(one) for one in config["replicas"]),
        evidence=tuple(Evidence.from_dict(one) for one in config["evidence"]),
        sensitivity=meaning,
        encoder=encoder,
        decoder=decoder,
        coordinates=coordinates,
        error=math.nan if config["error"] is None else float(config["error"]),
        feature_names=names[0],
        target_names=names[1],
        notes=tuple(_texts(who, "notes", config["notes"])),
        fill=_shaped(who, arrays, "fill", (d_in,)) if "fill" in tensors else None,
        settings=config["settings"],
    )


def _texts(who: str, name: str, values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        fail(who, f"`{name}` must be a list of texts", ascii(values)[:200], _FIX)
    return values


def _shaped(who: str, arrays: dict[str, Any], name: str, shape: tuple[int | None, ...]) -> Any:
    array = arrays.get(name)
    if array is None:
        fail(who, f"`{name}` must be there, in float64", "nothing of that name", _FIX)
    if array.ndim != len(shape) or any(wanted not in (None, got) for wanted, got in zip(shape, array.shape)):
        fail(who, f"`{name}` must have shape {shape}", array.shape, _FIX)
    if not np.isfinite(array).all():
        fail(who, f"`{name}` must be finite", "NaN or infinite values", _FIX)
    return array


def _network(who: str, part: str, shape: dict[str, Any], tensors: dict[str, Tensor]) -> FullyConnected:
    depth = check_integer(who, f"{part}.depth", shape[part]["depth"], low=1, high=len(tensors))
    Ws = [tensors[f"{part}.weights.{i}"] for i in range(depth)]
    bs = [tensors[f"{part}.biases.{i}"] for i in range(depth)]
    if any(T.dtype != torch.float64 or not bool(T.isfinite().all()) for T in (*Ws, *bs)):
        fail(who, f"`{part}` must be finite, in float64", "something else", _FIX)
    slope, bias = (check_number(who, f"{part}.{key}", shape[part][key]) for key in ("slope", "bias"))
    with torch.random.fork_rng(devices=[]):
        net = FullyConnected.from_weights(Ws, bs, slope=slope, bias=bias)
    return net.requires_grad_(False)


register("Discovery", Discovery, to_parts, from_parts)
