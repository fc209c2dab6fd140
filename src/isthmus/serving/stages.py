"""Trainings that a running discovery has finished: their loss, norm, and the spectrum of the waist.

The files are read, never trusted: whatever is wrong with one makes it unreadable and nothing else.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus._errors import IsthmusError
from isthmus._inside import Inside, Stamp
from isthmus._strict_json import loads
from isthmus._tensorfile import read_body, read_header
from isthmus.discovery._walk import UNUSED, network_of

#: Files of one discovery that are read, bytes of one, and singular values kept of it.
MOST, MAX_BYTES, VALUES = 300, 2**27, 32
#: The share of the largest singular value below which a coordinate is not in use.
IN_USE = math.sqrt(UNUSED)
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Stage:
    """One finished training.

    Attributes
    ----------
    name : str
        ``"main-wide"``, ``"strength-0.0001"``, ``"main-5"``, ``"main-5-anew"``, ``"replica0-3-fresh"``, ``"final"``, …
    changed : float
        When it was written, seconds since the epoch.
    loss, norm_per_depth : float or None
        The regularised loss relative to the variance of the outputs (to the entropy of the classes), and ‖θ‖²/L; None
        where not finite.
    values : tuple of float
        Singular values of W_{m+1}W_m, the product of the weights around the waist, falling. They do not depend on the
        coordinates chosen in it.
    """

    name: str
    changed: float
    loss: float | None
    norm_per_depth: float | None
    values: tuple[float, ...]

    @property
    def in_use(self) -> int:
        """How many coordinates carry more than next to nothing."""
        return sum(value > IN_USE * self.values[0] for value in self.values) if self.values else 0


class StageShelf:
    """The stages of one folder; each file is read once."""

    def __init__(self, inside: Inside, *folder: str) -> None:
        self._inside, self._folder = inside, folder
        self._read: dict[str, tuple[Stamp, Stage | None]] = {}

    def stages(self) -> list[Stage]:
        """Those that can be read, in the order in which they were written."""
        names = sorted(name for name in self._inside.names(*self._folder) if name.endswith(_SUFFIX))[:MOST]
        fresh: dict[str, tuple[Stamp, Stage | None]] = {}
        for name in names:
            stamp = self._inside.stamp(*self._folder, name)
            if stamp is None:
                continue
            known = self._read.get(name)
            fresh[name] = known if known is not None and known[0] == stamp else (stamp, self._load(name, stamp))
        self._read = fresh
        return sorted((one for _, one in fresh.values() if one is not None), key=lambda one: (one.changed, one.name))

    @property
    def unreadable(self) -> int:
        """Names of files that are not finished trainings."""
        return sum(one is None for _, one in self._read.values())

    def _load(self, name: str, stamp: Stamp) -> Stage | None:
        who = "serve"
        try:
            data = self._inside.read(*self._folder, name, limit=MAX_BYTES)
            handle = io.BytesIO(data)
            header = read_header(who, handle, len(data), "the stage")
            tensors = read_body(who, handle, header, "the stage")
            numbers = loads(who, header.metadata["numbers"].encode(), "the numbers")
            net = network_of(tensors, numbers)
            values = _spectrum(*(net.weights[ell].detach() for ell in (net.waist - 1, net.waist)))
            loss, norm = _finite(float(numbers["loss"])), _finite(float(numbers["norm"]) / net.depth)
            return Stage(name.removesuffix(_SUFFIX), stamp.changed / 1e9, loss, norm, values)
        except (OSError, IsthmusError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError):
            return None


def _spectrum(A: Tensor, B: Tensor) -> tuple[float, ...]:
    """Singular values of BA through triangular factors: the waist is narrow, its neighbours need not be."""
    if A.ndim != 2 or B.ndim != 2 or B.shape[1] != A.shape[0] or not A.shape[0]:
        raise ValueError("these are not the weights around a waist")
    R, S = (torch.linalg.qr(T.double(), mode="r").R for T in (B, A.mT))
    s = torch.linalg.svdvals(R @ S.mT)
    if not torch.isfinite(s).all():
        raise ValueError("the spectrum is not finite")
    return tuple(s[:VALUES].tolist())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
