"""A series of checkpoints of one network, looked at one after the other."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._atomic import open_checked, shown
from isthmus._checks import check_integer, fail
from isthmus._errors import DataError, FileFormatError
from isthmus._tensorfile import DTYPES, MAX_FILE_BYTES, read_body, read_header
from isthmus.diagnosis.camera import Camera
from isthmus.diagnosis.capture import unwrap
from isthmus.diagnosis.history import History

_CONVERT = "`isthmus convert OLD NEW.safetensors` makes a file of numbers of it; with --raw, of any class of network."


def diagnose_checkpoints(
    module: nn.Module,
    checkpoints: Iterable[Mapping[str, Tensor] | str | os.PathLike[str]],
    X: Any,
    Y: Any = None,
    *,
    steps: Sequence[int] | None = None,
    loss: str = "mse",
    layers: Sequence[str] | str | None = None,
    max_samples: int = 512,
    unpack: Callable[[Any], Any] | None = None,
    seed: int = 0,
) -> History:
    """Ranks, norms and spectra over a series of checkpoints of one network.

    Parameters
    ----------
    module : nn.Module
        Of the same shape; a copy is loaded, the module itself stays as it is.
    checkpoints : iterable of state dicts or paths
        Paths of ``.safetensors`` files, those of this library or of any other; pickles are never loaded. One is read
        at a time.
    X, Y, loss, layers, max_samples, unpack, seed
        As in :class:`~isthmus.diagnosis.Monitor`.
    steps : sequence of int, optional
        The step of each checkpoint; 0, 1, 2, … unless given.

    Returns
    -------
    History
    """
    who = "diagnose_checkpoints"
    if isinstance(checkpoints, (str, os.PathLike, Mapping)):
        got = type(checkpoints).__name__
        fail(who, "`checkpoints` must be a series of state dicts or paths", got, "Put it into a list.")
    numbers = None if steps is None else [check_integer(who, "steps", one, low=0) for one in steps]
    if isinstance(checkpoints, Sequence) and numbers is not None and len(numbers) != len(checkpoints):
        got = f"{len(numbers)} steps for {len(checkpoints)} checkpoints"
        fail(who, "`steps` must have one entry for each checkpoint", got, "Give each its step.")
    plain, _ = unwrap(module, who=who)
    try:
        replica = copy.deepcopy(plain)
    except Exception as error:  # whatever a user's __deepcopy__ raises
        got = f"{type(error).__name__}: {error}"
        fail(who, "`module` must be copyable", got, "Pass a new module of the same class.")
    camera = Camera(who, replica, X, Y, loss=loss, layers=layers, max_samples=max_samples, unpack=unpack, seed=seed)
    snapshots = []
    for index, checkpoint in enumerate(checkpoints):
        if numbers is not None and index >= len(numbers):
            fail(who, "`steps` must have one entry for each checkpoint", f"{len(numbers)} for more", "Give all.")
        is_path = isinstance(checkpoint, (str, os.PathLike))
        label = shown(checkpoint) if is_path else f"checkpoint {index}"
        load_strictly(who, replica, read_state(who, checkpoint) if is_path else checkpoint, label)
        snapshots.append(camera.take(index if numbers is None else numbers[index]))
    if not snapshots:
        fail(who, "`checkpoints` must not be empty", "none", "Pass state dicts or paths.", error=DataError)
    settings = {"checkpoints": len(snapshots), "max_samples": max_samples, "seed": seed}
    return History(tuple(snapshots), camera.notes, settings)


def read_state(who: str, path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, written by this library (its hashes are checked) or by any other."""
    label = shown(path)
    with open_checked(who, path, MAX_FILE_BYTES) as (handle, size):
        refuse_pickle(who, path, handle.read(4))
        handle.seek(0)
        header = read_header(who, handle, size, label)
        if "sha256" in header.metadata:
            return read_body(who, handle, header, label)
        # The header accounts for every byte of the file: nothing larger than it can be asked for.
        return {
            entry.name: _tensor(handle.read(entry.end - entry.begin), DTYPES[entry.code], entry.shape)
            for entry in header.entries
        }


def _tensor(content: bytes, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(tuple(shape))


def refuse_pickle(who: str, path: str | os.PathLike[str], start: bytes) -> None:
    """Fail if a file is a pickle by its name or its first bytes: loading one runs whatever code is in it."""
    name = Path(path).name
    by_name = name.lower().endswith((".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin"))
    if by_name or start[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        must = f"{shown(path)} must be a safetensors file"
        fail(who, must, "a pickle, which can run code when it is loaded", _CONVERT, error=FileFormatError)


def load_strictly(who: str, module: nn.Module, state: Any, label: str) -> None:
    """Load a state dict into ``module``, or fail naming the tensors that do not match."""
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        fail(who, f"{label} must be a state dict or a path", type(state).__name__, "Pass `module.state_dict()`.")
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        own = module.state_dict()
        shapes = {name: (tuple(own[name].shape), tuple(state[name].shape)) for name in own if name in state}
        wrong = [f"{name} {there} for {here}" for name, (here, there) in shapes.items() if here != there]
        parts = {
            "missing": [name for name in own if name not in state],
            "not in the module": [name for name in state if name not in own],
            "of another shape": wrong,
        }
        said = [f"{what}: {', '.join(names[:5])}{', …' * (len(names) > 5)}" for what, names in parts.items() if names]
        got, do = "; ".join(said) or str(error), "Pass the module that it was saved from."
        fail(who, f"{label} must have the tensors of the module", got, do, error=DataError)
