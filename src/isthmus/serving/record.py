"""Reading a live record as it grows: sessions, curves, the walk down the ranks, and lines for people."""

from __future__ import annotations

import io
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isthmus._errors import IsthmusError
from isthmus._html import number, plain
from isthmus._inside import Inside, Stamp
from isthmus._live import BEAT, MOST_BYTES
from isthmus._processes import is_alive
from isthmus._strict_json import loads
from isthmus._tensorfile import read_body, read_header
from isthmus.discovery._walk import UNUSED, network_of

#: Seconds of silence after which a record without its process is that of a killed one, and any record a silent one.
GONE, SILENT = 3 * BEAT, 30.0
#: Points kept of a curve, lines kept for people, bytes of a line.
POINTS, LINES, LONGEST = 2000, 60, 2**14
#: Seconds between two lines for people that say nothing special.
EVERY = 5.0
#: Seconds from the start of a session, within which old work is only read back, and seconds that a speed is taken over.
SETTLING, RECENT = 1.0, 120.0


@dataclass
class Session:
    """One process that wrote to the record."""

    started: float
    pid: int
    host: str
    sentence: str
    command: str
    resolution: float | None
    #: ``"mse"``, or ``"cross_entropy"`` of classes.
    loss_kind: str
    #: ``""`` while it goes on.
    end: str = ""
    error: str = ""


@dataclass
class Record:
    """What has been read of one file. Lines that are torn or are not of this kind are counted and left out."""

    session: Session | None = None
    sessions: int = 0
    label: str = ""
    done: float = 0.0
    total: float | None = None
    last: float = 0.0
    damaged: int = 0
    #: (time, done) of recent steps, for the time left.
    speed: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=600))
    #: Name of a number → (done, value) so far.
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: Held-out error by walk and rank; rank 0 is the wide network.
    walks: dict[tuple[int, int], float] = field(default_factory=dict)
    #: λ, and the share of what there is to explain and the share of the best error that do not count, once told.
    told: dict[str, float] = field(default_factory=dict)
    lines: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=LINES))
    _walk: int = -1
    _narrow: bool = False
    _before: float = 0.0

    def take(self, line: bytes) -> None:
        """Read one line."""
        kinds = {"start": self._start, "step": self._step, "end": self._end}
        try:
            content = loads("live", line[:LONGEST], "the line", max_values=500)
            at = float(content["time"])
            kinds[content["kind"]](content, at)
            self.last = max(self.last, at)
        except (IsthmusError, LookupError, AttributeError, TypeError, ValueError, OverflowError):
            self.damaged += 1

    def _end(self, content: dict[str, Any], at: float) -> None:
        if self.session is None:
            raise ValueError("an end without a start")
        state, error = plain(content["state"], 20), plain(content["error"], 500)
        self.session.end, self.session.error = state, error
        told = {"done": "computed", "interrupted": "interrupted"}.get(state, "failed")
        self.lines.append((at, told + (f": {error}" if error else "")))

    def _start(self, content: dict[str, Any], at: float) -> None:
        resolution = content.get("resolution")
        self.session = Session(
            at,
            int(content["pid"]),
            plain(content["host"], 200),
            plain(content["sentence"], 500),
            plain(content["command"], 500),
            float(resolution) if isinstance(resolution, (int, float)) else None,
            # Records of a time when there were no classes do not say.
            plain(content.get("loss", "mse"), 20),
        )
        self.sessions += 1
        self.speed.clear()
        # The steps of curves go on counting; a walk is told again from its beginning.
        self._walk, self._narrow = -1, False
        self.lines.append((at, "started" if self.sessions == 1 else "started again, from what was kept"))

    def _step(self, content: dict[str, Any], at: float) -> None:
        total, numbers = content["total"], content["numbers"]
        if plain(content["label"], 60) != self.label or float(content["done"]) < self.done:
            self.speed.clear()
        self.label, self.done = plain(content["label"], 60), float(content["done"])
        self.total = float(total) if isinstance(total, (int, float)) else None
        values = {plain(k, 40): float(v) for k, v in numbers.items() if isinstance(v, (int, float))}
        if self.session is not None and at >= self.session.started + SETTLING:
            self.speed.append((at, self.done))
        self._level(values)
        self.told |= {name: values[name] for name in ("λ", "resolution", "tolerance") if name in values}
        for name, value in list(values.items())[:12]:
            _append(self.curves.setdefault(name, []) if len(self.curves) < 24 else self.curves.get(name), self, value)
        # Every level of a walk, and of a training enough to see that it moves.
        if "error" in values or at - self._before >= EVERY:
            self._before = at
            of = f" of about {self.total:.0f}" if self.total and self.done <= self.total else ""
            told = ", ".join(f"{name} {number(value, 4)}" for name, value in values.items())
            self.lines.append((at, f"{self.label} {self.done:.0f}{of}" + (f": {told}" if told else "")))

    def _level(self, values: dict[str, float]) -> None:
        """A walk begins with the error of a wide network, which has no rank; further errors come with theirs.

        Before the first rank there may be several wide networks, of which the last one counts.
        """
        if "error" not in values:
            return
        rank = int(values.get("rank", 0))
        self._walk += rank <= 0 and (self._walk < 0 or self._narrow)
        self._narrow = rank > 0
        if len(self.walks) < 1000:
            self.walks[max(self._walk, 0), max(rank, 0)] = values["error"]

    def seconds_left(self) -> float | None:
        """By the speed of late; None where it cannot be said."""
        if self.total is None or len(self.speed) < 2:
            return None
        end, done = self.speed[-1]
        start, first = next(point for point in self.speed if point[0] >= end - RECENT)
        if done <= first or end <= start:
            return None
        return max(self.total - done, 0.0) * (end - start) / (done - first)


def _append(curve: list[tuple[float, float]] | None, record: Record, value: float) -> None:
    if curve is None:
        return
    curve.append((record.done, value))
    if len(curve) > POINTS:
        # The newest stays.
        curve[:] = curve[-1::-2][::-1]


class Follower:
    """Reads a record's new lines, and all of it again when the file was replaced."""

    def __init__(self, inside: Inside, *names: str) -> None:
        self._inside, self._names = inside, names
        self._stamp: Stamp | None = None
        self._offset, self.record = 0, Record()

    def follow(self) -> Record | None:
        """The record as it is now; None if there is no file."""
        stamp = self._inside.stamp(*self._names)
        if stamp is None:
            return None
        replaced = self._stamp is None or stamp.inode != self._stamp.inode or stamp.size < self._offset
        if replaced:
            self._offset, self.record = 0, Record()
        if stamp.size > self._offset:
            try:
                data = self._inside.read(*self._names, limit=2 * MOST_BYTES, start=self._offset)
            except OSError:
                self.record.damaged += 1
                return self.record
            # A line without its end is still being written, or never will be.
            whole = data[: data.rfind(b"\n") + 1]
            for line in whole.split(b"\n"):
                if line.strip():
                    self.record.take(line)
            self._offset += len(whole)
        self._stamp = stamp
        return self.record

    @property
    def beat(self) -> float:
        """Time of the last sign of life."""
        return max(0.0 if self._stamp is None else self._stamp.changed / 1e9, self.record.last)

    def state(self, now: float | None = None, host: str | None = None) -> str:
        """running, done, interrupted, failed, killed or silent (no sign of life)."""
        session = self.record.session
        if session is None or self._stamp is None:
            return "silent"
        if session.end in ("interrupted", "failed"):
            return session.end
        silence = (time.time() if now is None else now) - self.beat
        here = host is not None and session.host == host
        if here and silence > GONE and not is_alive(session.pid):
            return "killed"
        if silence > SILENT:
            return "silent"
        return "done" if session.end == "done" else "running"


# ---- Trainings that a running discovery has finished: their loss, norm, and the spectrum of the waist


#: Files of one discovery that are read, bytes of one, and singular values kept of it.
MOST, STAGE_BYTES, VALUES = 300, 2**27, 32
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
            data = self._inside.read(*self._folder, name, limit=STAGE_BYTES)
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
