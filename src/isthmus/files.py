"""Files: whole objects by ``save`` / ``load``, tensors and JSON; written atomically, never pickled."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus._atomic import as_path, open_checked, shown, write_atomic
from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError
from isthmus._strict_json import dumps, loads, read_json, write_json
from isthmus._tensorfile import (
    MAX_FILE_BYTES,
    fingerprint,
    read_body,
    read_header,
    read_tensors,
    write_tensors,
)

__all__ = [
    "FORMAT_VERSION",
    "fingerprint",
    "load",
    "read_json",
    "read_tensors",
    "register",
    "save",
    "write_atomic",
    "write_json",
    "write_tensors",
]

FORMAT_VERSION = 1

#: The kinds of object a file can hold unasked, and the module that registers each: a file never names a module. Beside
#: them there are the network families that the running program has defined itself.
_HOMES = {
    "FullyConnected": "isthmus.networks._fully_connected",
    "LeakyResNet": "isthmus.networks._leaky_resnet",
    "SmoothNetwork": "isthmus.networks._smooth",
    "Standardized": "isthmus.networks._standardized",
    "CompactNetwork": "isthmus.networks._standardized",
    "ConvolutionalNet": "isthmus.networks._convolutional",
    "Sequential": "isthmus.networks._plain",
    "Discovery": "isthmus.discovery._result",
    "BottleneckRegressor": "isthmus.estimators._regressor",
    "BottleneckClassifier": "isthmus.estimators._classifier",
    "BottleneckAutoencoder": "isthmus.estimators._autoencoder",
}


@dataclass(frozen=True)
class _Kind:
    cls: type
    to_parts: Callable[[Any], tuple[dict[str, Any], dict[str, Tensor]]]
    from_parts: Callable[[Any, dict[str, Tensor]], Any]


_KINDS: dict[str, _Kind] = {}


def register(
    kind: str,
    cls: type,
    to_parts: Callable[[Any], tuple[dict[str, Any], dict[str, Tensor]]],
    from_parts: Callable[[Any, dict[str, Tensor]], Any],
) -> None:
    """Say how objects of this ``kind`` are taken apart and built.

    Parameters
    ----------
    kind : str
        The name that files have for it. The names above belong to the modules beside them: a class of such a name from
        elsewhere is left out, and :func:`save` refuses its objects.
    cls : type
        Exactly this class is saved; a subclass, which a file could not give back, is refused.
    to_parts : callable
        Object → (configuration as plain JSON data, tensors by name).
    from_parts : callable
        (Configuration, tensors) → object. Both come from a file: check everything, against each other too,
        before building. May raise any ``IsthmusError``.
    """
    # A class of PyTorch's own is registered by the module of ours that reads it.
    if _HOMES.get(kind, cls.__module__) in (cls.__module__, from_parts.__module__):
        _KINDS[kind] = _Kind(cls, to_parts, from_parts)


def _kind(kind: str) -> _Kind:
    if kind not in _KINDS:
        importlib.import_module(_HOMES[kind])
    return _KINDS[kind]


def _known() -> list[str]:
    """Kinds by name: ours, and those that were registered since."""
    return [*_HOMES, *(kind for kind in _KINDS if kind not in _HOMES)]


def save(obj: Any, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Save a network, a Discovery or a fitted estimator as one safetensors file that :func:`load` gives back.

    Parameters
    ----------
    obj : Network, nn.Sequential, Discovery, or a fitted estimator
        Of exactly the class that was defined. Parameters are saved bit for bit; gradients, hooks, device and training
        mode are not. Of an ``nn.Sequential``, as :func:`~isthmus.compress` gives it, the tensors in the file have the
        names of its ``state_dict``: any reader of safetensors can load them.
    path : path
        In an existing folder; conventionally ``*.safetensors``. Written atomically.
    overwrite : bool, default True
        If false, an existing file is an error.

    Examples
    --------
    >>> import isthmus, tempfile, pathlib
    >>> net = isthmus.FullyConnected([4, 16, 2], slope=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     isthmus.save(net, pathlib.Path(folder) / "net.safetensors")
    ...     isthmus.load(pathlib.Path(folder) / "net.safetensors").dims
    (4, 16, 2)
    """
    who = "save"
    target = as_path(who, path)
    name = type(obj).__name__
    # By name first: to save a network, the module of the estimators need not be imported.
    kind = _kind(name) if name in _known() else None
    if kind is None or type(obj) is not kind.cls:
        fail(
            who,
            f"`obj` must be one of {', '.join(_known())}",
            f"a {shown(type(obj).__name__)}",
            "Put single layers into an nn.Sequential; save other modules with torch.export.save: a subclass would not "
            "come back as itself.",
        )
    config, tensors = kind.to_parts(obj)
    metadata = {
        "format": "isthmus",
        "format_version": str(FORMAT_VERSION),
        "kind": name,
        "config": dumps(who, config),
        "versions": dumps(who, _versions()),
    }
    write_tensors(target, tensors, metadata, overwrite=overwrite)


def load(path: str | os.PathLike[str], *, max_bytes: int = MAX_FILE_BYTES) -> Any:
    """Load what :func:`save` wrote: on the CPU, same dtype and bits, parameters requiring gradients.

    An ``nn.Sequential`` comes back in evaluation mode.

    Safe on files from untrusted sources: no code in them is run, only whitelisted kinds are built, and no more memory
    is taken than a small multiple of the file's size. Anything wrong is an ``IsthmusError``: ``DataError`` if
    the file cannot be read or is larger than ``max_bytes``, ``FileFormatError`` if its content is not right.
    The hashes inside guard against damage; they do not prove who wrote the file.
    """
    who, label = "load", shown(path)
    with open_checked(who, path, max_bytes) as (handle, size):
        header = read_header(who, handle, size, label)
        # Before the hashes: a newer format may define them differently, and deserves the clearer message.
        name = _identify(who, header.metadata, label)
        tensors = read_body(who, handle, header, label)
    config = loads(who, header.metadata.get("config", "").encode(errors="replace"), f"the configuration in {label}")
    try:
        return _kind(name).from_parts(config, tensors)
    except (IsthmusError, MemoryError) as problem:
        reason = str(problem) or "load: memory must suffice to build the network. Got an allocation failure."
    raise FileFormatError(f"{reason} File: {label}.")


def _identify(who: str, metadata: Mapping[str, str], label: str) -> str:
    if metadata.get("format") != "isthmus":
        fail(
            who,
            f"{label} must be a file of isthmus.save",
            f"format {shown(metadata.get('format'))}",
            "Plain safetensors files hold tensors without a network; `isthmus convert` reads a state_dict.",
            error=FileFormatError,
        )
    version = metadata.get("format_version", "")
    if not re.fullmatch("[1-9][0-9]{0,8}", version):
        fail(
            who,
            f"format_version of {label} must be a number",
            shown(version),
            "The file is damaged.",
            error=FileFormatError,
        )
    if int(version) > FORMAT_VERSION:
        fail(
            who,
            f"{label} must have a format version up to {FORMAT_VERSION}",
            f"version {version}, written by a newer isthmus ({shown(metadata.get('versions'))})",
            "Upgrade isthmus.",
            error=FileFormatError,
        )
    kind = metadata.get("kind")
    if kind not in _known():
        fail(
            who,
            f"the kind of object in {label} must be one of {', '.join(_known())}",
            shown(kind),
            "Upgrade isthmus, import the module that defines this network, or write the file again.",
            error=FileFormatError,
        )
    return kind


def _versions() -> dict[str, str]:
    return {
        "isthmus": str(importlib.import_module("isthmus").__version__),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
