"""Checkpoints of a training: written atomically, the last two kept, each with its checksum."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from isthmus import files
from isthmus._atomic import check_writable
from isthmus._checks import fail
from isthmus._errors import NumericalWarning
from isthmus._inside import Inside, clear_remains
from isthmus._strict_json import loads

_NAMES = ("checkpoint-even.safetensors", "checkpoint-odd.safetensors")


@dataclass
class TrainingState:
    """Everything needed to continue: tensors, and numbers as plain data."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class Checkpoints:
    """The two checkpoint files of a folder, written every so many seconds.

    ``fingerprint`` identifies data, network and settings.
    """

    def __init__(self, folder: str | Path, identity_of_training: str, every: float = 10.0) -> None:
        self.folder, self.fingerprint, self.every = Path(folder), identity_of_training, every
        self.count = 0
        # Noticed now, not after an hour of training.
        check_writable("train", self.folder)
        clear_remains(Inside(self.folder.parent, self.folder.name))

    def write(self, snapshot: TrainingState) -> None:
        """Overwrite the older of the two files; the newer one stays valid whatever happens meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        metadata = {
            "kind": "training checkpoint",
            "fingerprint": self.fingerprint,
            "count": str(self.count),
            "numbers": json.dumps(snapshot.numbers),
        }
        files.write_tensors(self._path(_NAMES[self.count % 2]), snapshot.tensors, metadata)
        self.count += 1

    def read(self) -> TrainingState | None:
        """The newest readable checkpoint, or None if there is none; one of another training is refused.

        If all are damaged the training starts anew, with a warning: that ends in the same weights, only later.
        """
        found: list[tuple[int, TrainingState]] = []
        damaged: list[str] = []
        there = Inside(self.folder.parent, self.folder.name).names()
        for name in _NAMES:
            path = self._path(name)
            if name not in there:
                continue
            try:
                tensors, metadata = files.read_tensors(path)
                numbers = loads("train", metadata["numbers"].encode(), "the numbers")
                count, identity = int(metadata["count"]), metadata["fingerprint"]
            except (KeyError, ValueError):
                # Damaged (a disk, not us: writes are atomic): the other file stands in.
                damaged.append(name)
                continue
            if identity != self.fingerprint:
                fail(
                    "train",
                    "the checkpoint must be of the same data, network and settings",
                    f"another training in {path.name}",
                    "Build the network with the same initial weights as then, choose another `checkpoint` folder, or "
                    "pass resume=False to start anew there.",
                )
            found.append((count, TrainingState(tensors, numbers)))
        if not found:
            if damaged:
                warnings.warn(
                    f"train: {' and '.join(damaged)} in {self.folder} cannot be read; the training starts anew",
                    NumericalWarning,
                    stacklevel=4,
                )
            return None
        count, snapshot = max(found, key=lambda item: item[0])
        self.count = count + 1
        return snapshot

    def _path(self, name: str) -> Inside:
        return Inside(self.folder.parent, self.folder.name, name)

    def clear(self) -> None:
        """Remove both files."""
        for name in _NAMES:
            self._path(name).remove()


def identity_of_training(settings: dict[str, Any], net: nn.Module, data: list[Tensor]) -> str:
    """SHA-256 of settings, network (structure, initial weights and buffers) and data."""
    identity = {
        **settings,
        # A module's text has its structure and its slopes; addresses in it differ from process to process.
        "network": re.sub("0x[0-9a-f]+", "", repr(net)),
        "trainable": [p.requires_grad for p in net.parameters()],
        "tensors": files.fingerprint({str(i): t for i, t in enumerate([*net.parameters(), *net.buffers(), *data])}),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
