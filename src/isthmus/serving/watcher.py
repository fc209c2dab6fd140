"""A folder of runs as it is now: read-only, cheap, and unmoved by files that are damaged or hostile."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus._checks import fail
from isthmus._errors import DataError, IsthmusError
from isthmus._html import plain
from isthmus._inside import Inside, Stamp
from isthmus._live import LIVE
from isthmus._strict_json import MAX_JSON_BYTES, loads
from isthmus.serving.record import Follower, Record, Stage, StageShelf

#: Runs that are shown, the newest first.
MOST_RUNS = 200
#: What tells each kind of a finished folder, in the order in which they are looked for.
KINDS = {"discovery.json": "discovery", "diagnosis.json": "diagnosis", "verdicts.json": "run", "sweep.json": "sweep"}
REPORT = "report.html"
#: Folders in which something unfinished keeps its record: inside the one of a discovery, beside that of a Run.
_INSIDE, _BESIDE = ".progress", ".{name}.progress"


@dataclass(frozen=True)
class Answer:
    """What a finished folder says of itself."""

    kind: str
    sentence: str
    verdict: str
    #: Held-out error by walk and rank, as in a record; empty where there is none.
    walks: dict[tuple[int, int], float]
    #: Of these errors: ``"mse"``, or ``"cross_entropy"`` of classes.
    loss_kind: str = "mse"


@dataclass(frozen=True)
class RunView:
    """One run as it is now.

    ``state`` is running, finished, interrupted, failed, killed, silent (no sign of life) or unreadable; ``problem``
    says why where that needs a word.
    """

    id: str
    name: str
    kind: str
    state: str
    problem: str
    changed: float
    answer: Answer | None
    record: Record | None
    stages: tuple[Stage, ...]
    has_report: bool


class Watcher:
    """Looks at ``root``, a folder of runs or one run, whenever asked.

    Parameters
    ----------
    root : path
        An existing folder. Its subfolders are the runs; links are not followed.
    host : str, optional
        Name of this machine, whose processes can be asked for.
    """

    def __init__(self, root: str | os.PathLike[str], *, host: str | None = None) -> None:
        if not Path(root).is_dir():
            fail("serve", "RUNS_DIR must be an existing folder", plain(root, 200), "Check the path.", error=DataError)
        self._inside = Inside(Path(root))
        self._host = platform.node() if host is None else host
        # Ids say nothing about names, and are others in every process.
        self._salt = secrets.token_bytes(16)
        self._runs: dict[str, _Watched] = {}

    @property
    def title(self) -> str:
        """The name of the folder."""
        return plain(self._inside.root.name or self._inside.root, 200)

    def runs(self) -> list[RunView]:
        """All runs, the newest first."""
        self._find()
        views = [view for one in self._runs.values() if (view := one.look()) is not None]
        return sorted(views, key=lambda view: (-view.changed, view.name))[:MOST_RUNS]

    def run(self, id_: str) -> RunView | None:
        """One run; None if there is none of that id."""
        if id_ not in self._runs:
            self._find()
        one = self._runs.get(id_)
        return None if one is None else one.look()

    def report(self, id_: str, limit: int = 2**26) -> bytes | None:
        """The file of the finished run's report; None if there is none."""
        if id_ not in self._runs:
            self._find()
        one = self._runs.get(id_)
        try:
            return None if one is None else self._inside.read(*one.folder, REPORT, limit=limit)
        except OSError:
            return None

    def _find(self) -> None:
        """Keep what is still there: its cache with it."""
        root = self._inside.names()
        folders: dict[str, tuple[str, ...]] = {}
        if {_INSIDE, *KINDS} & set(root):
            folders[self._inside.root.name] = ()
        for name in root:
            if name.startswith(".") and name.endswith(".progress") and name != _INSIDE:
                name = name.removeprefix(".").removesuffix(".progress")
            elif name.startswith("."):
                continue
            # As a key it must be text that can be written; the folder itself keeps its own name.
            folders.setdefault(name, (name,))
        wanted = {self._id(parts): (name, parts) for name, parts in folders.items()}
        self._runs = {
            key: self._runs.get(key) or _Watched(self._inside, key, name, parts, self._host)
            for key, (name, parts) in wanted.items()
        }

    def _id(self, parts: tuple[str, ...]) -> str:
        return hashlib.blake2b(os.fsencode("/".join(parts)), key=self._salt, digest_size=8).hexdigest()


class _Watched:
    """One run with what was read of it before."""

    def __init__(self, inside: Inside, id_: str, name: str, folder: tuple[str, ...], host: str) -> None:
        self._inside, self.id, self.name, self.folder, self._host = inside, id_, name, folder, host
        beside = (_BESIDE.format(name=name),) if folder else (_INSIDE,)
        self._followers = [Follower(inside, *place, LIVE) for place in ((*folder, _INSIDE), beside)]
        self._shelf = StageShelf(inside, *folder, _INSIDE)
        self._known: tuple[str, Stamp, Answer | str] | None = None

    def look(self) -> RunView | None:
        """The run as it is now; None if this is no run."""
        live = [(one, record) for one in self._followers if (record := one.follow()) is not None]
        follower, record = live[0] if live else (None, None)
        answer, changed = self._answer()
        if follower is None and answer is None:
            return self._strange()
        state, problem = ("finished", "") if isinstance(answer, Answer) else ("unreadable", answer or "")
        if follower is not None and record is not None:
            state, problem = self._live_state(follower, record)
            changed = max(record.last, follower.beat)
        stages = tuple(self._shelf.stages()) if follower is self._followers[0] else ()
        if self._shelf.unreadable and follower is not None:
            problem = problem or f"{self._shelf.unreadable} of the files in it cannot be read"
        kind = answer.kind if isinstance(answer, Answer) else "discovery" if stages else "run"
        if follower is not None and kind != "sweep":
            kind = "discovery" if follower is self._followers[0] else "run"
        return RunView(
            id=self.id,
            name=plain(self.name.encode(errors="backslashreplace").decode(), 200),
            kind=kind,
            state=state,
            problem=problem,
            changed=changed,
            answer=answer if isinstance(answer, Answer) and follower is None else None,
            record=record,
            stages=stages,
            has_report=follower is None and self._inside.stamp(*self.folder, REPORT) is not None,
        )

    def _live_state(self, follower: Follower, record: Record) -> tuple[str, str]:
        if record.session is None:
            return "unreadable", "its live record cannot be read"
        state = follower.state(time.time(), self._host)
        if state in ("killed", "silent"):
            # Its process may have written the end between the two looks.
            follower.follow()
            state = follower.state(time.time(), self._host)
        error = "" if record.session is None else record.session.error
        told = {"done": "the answer is being written", "failed": error}
        return "running" if state == "done" else state, told.get(state, "")

    def _strange(self) -> RunView | None:
        """A link or a folder that is no run: the first is said, the second passed over."""
        if not self.folder or self._inside.is_folder(*self.folder) or self._inside.stamp(*self.folder) is not None:
            return None
        if self.folder[0] not in self._inside.names():
            return None
        name = plain(self.name.encode(errors="backslashreplace").decode(), 200)
        why = "a link, which is not followed, or a folder that may not be read"
        return RunView(self.id, name, "run", "unreadable", why, 0.0, None, None, (), has_report=False)

    def _answer(self) -> tuple[Answer | str | None, float]:
        """What the finished folder says, or a sentence why it cannot be read; and when it was written."""
        for name, kind in KINDS.items():
            stamp = self._inside.stamp(*self.folder, name)
            if stamp is None:
                continue
            if self._known is None or self._known[:2] != (name, stamp):
                self._known = (name, stamp, self._read(name, kind))
            return self._known[2], stamp.changed / 1e9
        self._known = None
        return None, 0.0

    def _read(self, name: str, kind: str) -> Answer | str:
        try:
            content = loads("serve", self._inside.read(*self.folder, name, limit=MAX_JSON_BYTES), name)
            if kind == "run":
                config = self._inside.read(*self.folder, "config.json", limit=MAX_JSON_BYTES)
                return _answer_of_run(loads("serve", config, "config.json"), content)
            return _answer_of_document(kind, content)
        except (OSError, IsthmusError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
            return f"{name} cannot be read as that of a {kind}"


def _answer_of_document(kind: str, content: Any) -> Answer:
    if kind == "sweep":
        told = f"Sweep of {plain(content['experiment'], 100)}: {plain(content['title'], 400)}."
        return Answer(kind, told, "", {})
    if kind == "diagnosis":
        return Answer(kind, plain(content["sentence"], 500), plain(content["isthmus"]["verdict"], 40), {})
    walks: dict[tuple[int, int], float] = {}
    for index, profile in enumerate([content["profile"], *content["replicas"]]):
        for row in profile["rows"][:100] if profile is not None else ():
            if isinstance(row["error"], (int, float)):
                walks[index, 0 if row["start"] == "fresh" else int(row["rank"])] = float(row["error"])
    loss_kind = plain((content["profile"] or {}).get("loss_kind", "mse"), 20)
    return Answer(kind, plain(content["sentence"], 500), plain(content["verdict"], 40), walks, loss_kind)


def _answer_of_run(config: Any, outcomes: Any) -> Answer:
    """The sentence of a Run's report, from the two small files."""
    name = plain(config["experiment"], 100)
    # Runs of earlier versions say no kind: all that they judge are statements.
    statuses = [str(one["status"]) for one in outcomes if one.get("kind", "statement") == "statement"]
    worst = next((word for word in ("fails", "differs", "undetermined", "agrees") if word in statuses), "undetermined")
    told = f"{name}: {statuses.count('agrees')} of {len(statuses)} statements came out as stated."
    return Answer("run", told, worst, {})
