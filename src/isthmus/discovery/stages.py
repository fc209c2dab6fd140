"""What has been trained so far, kept in a folder: a killed discovery continues from there to the same answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus import files
from isthmus._errors import IsthmusError
from isthmus.discovery.fits import Fit
from isthmus.networks import FullyConnected, Hourglass

_KIND = "discovery stage"


def fingerprint(settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """SHA-256 of settings and data."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    text = json.dumps({**settings, "data": files.fingerprint(tensors)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Stages:
    """Fits by name, in memory or in ``folder``; those of another discovery are not used.

    Each fit is a function of the fits before it and of its own seed, so that the ones read back and the ones repeated
    are the same bits.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        self.folder, self.identity = folder, identity
        #: How many fits came from the folder.
        self.reused = 0

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def get(self, name: str, make: Callable[[], Fit]) -> Fit:
        """The fit of that name: read if it was kept, otherwise made and kept."""
        found = self.read(name)
        if found is None:
            found = make()
            self.write(name, found)
        return found

    def read(self, name: str) -> Fit | None:
        """The fit, or None if it is not there, damaged, or of another discovery."""
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        try:
            tensors, metadata = files.read_tensors(path)
            wanted = {"kind": _KIND, "identity": self.identity, "name": name}
            if any(metadata.get(key) != value for key, value in wanted.items()):
                return None
            numbers = json.loads(metadata["numbers"])
            found = _build(tensors, numbers)
        except (IsthmusError, KeyError, ValueError, TypeError):
            # Training it again ends in the same bits, only later.
            return None
        self.reused += 1
        return found

    def write(self, name: str, fit: Fit) -> None:
        """Keep a fit; nothing without a folder."""
        path = self._path(name)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        net = fit.network
        numbers = {
            "waist": net.waist,
            "slope": net.slope,
            "bias": net.bias,
            **{key: repr(getattr(fit, key)) for key in ("cost", "loss", "norm", "rest")},
            "state": fit.state,
        }
        tensors = {key: p.detach() for key, p in net.named_parameters()}
        metadata = {"kind": _KIND, "identity": self.identity, "name": name, "numbers": json.dumps(numbers)}
        files.write_tensors(path, tensors, metadata)

    def clear(self) -> None:
        """Remove what was kept, once the answer is written."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _build(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> Fit:
    depth = sum(name.startswith("weights.") for name in tensors)
    Ws, bs = ([tensors[f"{kind}.{i}"] for i in range(depth)] for kind in ("weights", "biases"))
    m, shape = int(numbers["waist"]), {"slope": float(numbers["slope"]), "bias": float(numbers["bias"])}
    with torch.random.fork_rng(devices=[]):
        net = Hourglass(
            FullyConnected.from_weights(Ws[:m], bs[:m], **shape), FullyConnected.from_weights(Ws[m:], bs[m:], **shape)
        )
    cost, loss, norm, rest = (float(numbers[key]) for key in ("cost", "loss", "norm", "rest"))
    return Fit(net, cost, loss, norm, rest, str(numbers["state"]))
