"""The Run: one experiment, computed once, as a folder that is always complete.

``config.json``, ``arrays.safetensors``, ``verdicts.json``, ``figure.png`` (and other figures) and
``provenance.json``. A folder is assembled beside its destination and moved there in one step.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import torch

from isthmus import _html, files
from isthmus._atomic import open_checked, shown
from isthmus._checks import check_choice, fail
from isthmus._errors import DataError, FileFormatError, IsthmusError
from isthmus._folders import Folder, identity, previous
from isthmus._inside import Inside
from isthmus._provenance import provenance
from isthmus._result import Badge, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FOLDER", "Outcome", "Run", "configuration_key", "provenance", "worst"]

#: Version of the layout of a Run's folder; a reader refuses what it does not know. In version 1 outcomes had no kind.
SCHEMA, READABLE = 2, (1, 2)
#: What becomes of a statement, from best to worst, and of a condition.
STATUSES, CONDITIONS = ("agrees", "undetermined", "differs", "fails"), ("met", "not met")
KINDS = {"statement": STATUSES, "condition": CONDITIONS}

CONFIG, ARRAYS, VERDICTS, PROVENANCE = "config.json", "arrays.safetensors", "verdicts.json", "provenance.json"
FIGURES = ("figure.png", "figure.svg", "figure.pdf")
#: Made from a Run and kept beside it; it is no part of the record.
REPORT = "report.html"
_HASHED = (CONFIG, ARRAYS, VERDICTS)
_REQUIRED = (*_HASHED, PROVENANCE)

_MAX_JSON = 2**24
_MAX_ARRAYS = 2**33
_MAX_FIGURE = 2**28


@dataclass(frozen=True)
class Outcome:
    """How one statement of a paper, or a condition for it, came out.

    Parameters
    ----------
    name : str
        What is compared.
    status : str
        Of a statement ``"agrees"``, ``"undetermined"`` (it could not be tested), ``"differs"`` (for a stated reason) or
        ``"fails"``; of a condition ``"met"`` or ``"not met"``.
    value, expected : float, int, bool, str or None
        What came out and what it is compared with. NaN and infinities become the strings ``"nan"``, ``"inf"``
        and ``"-inf"``, because JSON has no such numbers.
    reason : str
        Required for ``"undetermined"`` and ``"differs"``.
    kind : {"statement", "condition"}
        A condition says what the judgement rests on, that a training converged, or is a further check that no paper
        states. It does not count in the status of a Run.
    quote, where : str
        The paper's words, and their place.
    """

    name: str
    status: str
    value: float | int | bool | str | None = None
    expected: float | int | bool | str | None = None
    reason: str = ""
    kind: str = field(default="statement", kw_only=True)
    quote: str = field(default="", kw_only=True)
    where: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        check_choice("Outcome", "kind", self.kind, KINDS)
        check_choice("Outcome", "status", self.status, KINDS[self.kind])
        for key in ("name", "reason", "quote", "where"):
            if not isinstance(getattr(self, key), str):
                fail("Outcome", f"`{key}` must be text", repr(getattr(self, key)), "Pass a string.")
        if self.status in ("undetermined", "differs") and not self.reason.strip():
            fail("Outcome", f"`reason` must say why it {_WHY[self.status]}", repr(self.reason), "Write the reason.")
        for key in ("value", "expected"):
            object.__setattr__(self, key, _scalar(key, getattr(self, key)))


_STATEMENTS = (
    "Each row is one statement of the paper, in its words, with the number that came out beside the expected one.",
    "“Differs” is a difference with a known reason, “fails” one without; “undetermined” could not be tested.",
)
_CONDITIONS = (
    "What the judgement rests on, such as convergence, and further checks that no paper states.",
    "A condition does not count in the status; where one is not met, a statement may be undetermined.",
)


def _cell(value: Any) -> Any:
    return "" if value is None else str(value) if isinstance(value, bool) else value


_WHY = {"undetermined": "is undetermined", "differs": "differs"}


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The record of one experiment: configuration, arrays, outcomes, figures and provenance.

    Parameters
    ----------
    experiment : str
        Id of the experiment, ``"F-rank-1"``.
    parameters : mapping
        Its parameters: numbers, text, booleans and lists of them.
    arrays : mapping of str to ndarray
        Real or boolean arrays; kept read-only.
    outcomes : sequence of Outcome
    provenance : mapping
        From :func:`provenance`.
    figures : mapping of str to bytes
        Files among ``figure.png``, ``figure.svg``, ``figure.pdf``.

    Examples
    --------
    >>> run = Run("E-none", {"depth": 3}, outcomes=[Outcome("two is two", "agrees", 2, 2)])
    >>> run
    Run('E-none', key='31b435197fa7', agrees, 0 arrays, 0 figures)
    """

    experiment: str
    parameters: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    outcomes: Sequence[Outcome] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.experiment, str) or not self.experiment:
            fail("Run", "`experiment` must be the id of an experiment", repr(self.experiment), "Pass its id.")
        # Through JSON at once, so that a Run in memory equals the same Run read back, and its key too.
        for name in ("parameters", "provenance"):
            object.__setattr__(self, name, MappingProxyType(_jsonable(name, getattr(self, name))))
        arrays = {key: _frozen(key, value) for key, value in self.arrays.items()}
        object.__setattr__(self, "arrays", MappingProxyType(arrays))
        for outcome in self.outcomes:
            if not isinstance(outcome, Outcome):
                fail("Run", "`outcomes` must hold Outcome objects", type(outcome).__name__, "Wrap it.")
        object.__setattr__(self, "outcomes", tuple(self.outcomes))
        for name, content in self.figures.items():
            check_choice("Run", "figures", name, FIGURES)
            if not isinstance(content, bytes):
                fail(
                    "Run",
                    f"`figures[{name!r}]` must be bytes",
                    type(content).__name__,
                    "Pass the file's content.",
                )
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of experiment and parameters."""
        return configuration_key(self.experiment, self.parameters)

    @property
    def status(self) -> str:
        """The worst status among the statements; ``"undetermined"`` when there is none."""
        return worst(self.outcomes)

    @property
    def statements(self) -> tuple[Outcome, ...]:
        """Outcomes that are statements of the paper: what the Run is judged by."""
        return tuple(o for o in self.outcomes if o.kind == "statement")

    @property
    def conditions(self) -> tuple[Outcome, ...]:
        """Outcomes that are conditions of the statements, such as a training that converged."""
        return tuple(o for o in self.outcomes if o.kind == "condition")

    @property
    def verdict(self) -> str:
        """The status of the run, as all results call it."""
        return self.status

    @property
    def sentence(self) -> str:
        """How many statements came out as stated."""
        counts = {status: sum(o.status == status for o in self.statements) for status in STATUSES}
        if not self.statements:
            return f"{self.experiment} was computed, and nothing about it was judged."
        if counts["agrees"] == len(self.statements):
            all_of = f"All {counts['agrees']} statements" if counts["agrees"] > 1 else "The one statement"
            return f"{all_of} of {self.experiment} came out as stated."
        parts = [f"{counts['agrees']} of {len(self.statements)} statements of {self.experiment} came out as stated"]
        for status, one, many in (
            ("undetermined", "could not be tested", "could not be tested"),
            ("differs", "differs for a known reason", "differ for known reasons"),
            ("fails", "fails", "fail"),
        ):
            if count := counts[status]:
                parts.append(f"{count} {one if count == 1 else many}")
        return f"{', '.join(parts)}."

    @property
    def reasons(self) -> tuple[str, ...]:
        """The statements that did not come out as stated, and why."""
        other = (o for o in self.statements if o.status != "agrees")
        return tuple(f"{o.name}: {o.reason}" if o.reason else o.name for o in other)

    def tables(self) -> list[Table]:
        """Statements, conditions, and the arrays that are kept."""
        cells = [[Badge(o.status), o.name, _cell(o.value), _cell(o.expected)] for o in self.outcomes]
        said = {o.kind: [] for o in self.outcomes}
        for o, row in zip(self.outcomes, cells):
            said[o.kind].append([*row, *([o.quote, o.where] if o.kind == "statement" else []), o.reason])
        heads = ["outcome", "statement", "value", "expected", "the paper's words", "where", "reason"]
        brief = (0, 2, 3, 1, 6)
        found = [Table("outcomes", "Statements", heads, said.get("statement", ()), _STATEMENTS, brief=brief)]
        heads = ["outcome", "condition", "value", "expected", "reason"]
        brief = (0, 2, 3, 1, 4)
        found.append(Table("conditions", "Conditions", heads, said.get("condition", ()), _CONDITIONS, brief=brief))
        rows = []
        for name, array in self.arrays.items():
            values = np.asarray(array, dtype=np.float64)
            finite = values[np.isfinite(values)]
            low, high = (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)
            shape = " × ".join(map(str, array.shape)) or "one number"
            rows.append([name, shape, str(array.dtype), low, high, int(values.size - finite.size)])
        heads = ["array", "shape", "type", "smallest", "largest", "not finite"]
        title = "Names, shapes and ranges"
        found.append(Table("arrays", title, heads, rows, folded=len(rows) > 12, brief=()))
        return [one for one in found if one.rows]

    def plot(self, figure: Figure | None = None) -> Figure:
        """The kept picture on a matplotlib figure, or the sentence where there is no picture."""
        from matplotlib.image import imread

        from isthmus.plotting.draw import sheet
        from isthmus.plotting.style import new_figure

        if FIGURES[0] not in self.figures:
            return sheet([], self.sentence, self.verdict, why=self.reasons, figure=figure)
        figure = figure or new_figure()
        axes = figure.add_subplot()
        axes.imshow(imread(io.BytesIO(self.figures[FIGURES[0]])))
        axes.set_axis_off()
        return figure

    def __repr__(self) -> str:
        return (
            f"Run({self.experiment!r}, key={self.key!r}, {self.status}, "
            f"{len(self.arrays)} arrays, {len(self.figures)} figures)"
        )

    def _repr_html_(self) -> str:
        return _html.result(self)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the Run as ``folder`` in one step and return its path.

        At every instant ``folder`` is absent, the previous complete Run, or this one. A folder that holds
        anything but a Run is refused.
        """
        target = FOLDER.check(folder if isinstance(folder, Inside) else Path(folder))
        with FOLDER.replaced(target) as assembly:
            self._assemble(assembly)
        return Path(target)

    def _assemble(self, folder: Inside) -> None:
        config = {"schema": SCHEMA, "experiment": self.experiment, "parameters": dict(self.parameters)}
        files.write_json(folder / CONFIG, config)
        files.write_tensors(folder / ARRAYS, self.arrays, {"kind": "run", "key": self.key})
        files.write_json(folder / VERDICTS, [asdict(outcome) for outcome in self.outcomes])
        for name, content in self.figures.items():
            files.write_atomic(folder / name, content)
        # The digests tie the files together: a mixture of two Runs, or a damaged one, is noticed on reading.
        digests = {name: _digest(folder / name) for name in sorted((*_HASHED, *self.figures))}
        files.write_json(folder / PROVENANCE, {**self.provenance, "key": self.key, "sha256": digests})

    @classmethod
    def read(cls, folder: str | os.PathLike[str], *, max_bytes: int = _MAX_ARRAYS) -> Self:
        """Read and check a Run; ``max_bytes`` bounds the arrays.

        Raises
        ------
        FileFormatError
            Saying which file is missing, too large, damaged or of an unknown version.
        """
        while True:
            path = Inside(folder)
            if not path.is_folder():
                old = Inside(path.root.parent) if not path.parts else Inside(path.root, *path.parts[:-1])
                path = old / previous(path.name) if old.is_folder(previous(path.name)) else path
            before = identity(path)
            if before is None:
                _bad(path, "a Run must be a folder", "no such folder", "Check the path.")
            problem, run = None, None
            try:
                run = cls._read(path, max_bytes)
            except (DataError, OSError) as error:
                problem = error
            # Replaced while it was read? Then the new one is complete, and wanted.
            if identity(path) != before:
                continue
            if isinstance(problem, OSError):
                _bad(path, "the files of a Run must be readable", problem.strerror, "Check them.")
            if problem is not None:
                raise problem
            if run is not None:
                return run

    @classmethod
    def _read(cls, path: Inside, max_bytes: int) -> Self:
        again = "Run the experiment again."
        missing = [name for name in _REQUIRED if not path.is_file(name)]
        if missing:
            _bad(path, f"a Run must hold {', '.join(_REQUIRED)}", f"no {', '.join(missing)}", again)
        config = _mapping(path, CONFIG)
        if config.get("schema") not in READABLE:
            must = f"`schema` must be among {', '.join(map(str, READABLE))}"
            _bad(path, must, shown(config.get("schema")), "Upgrade isthmus.")
        found = dict(_mapping(path, PROVENANCE))
        digests, key = found.pop("sha256", None), found.pop("key", None)
        figures = [name for name in FIGURES if path.is_file(name)]
        if not isinstance(digests, dict) or sorted(digests) != sorted((*_HASHED, *figures)):
            _bad(path, f"the files must be those listed in {PROVENANCE}", "others", again)
        for name, digest in digests.items():
            limit = max_bytes if name == ARRAYS else _MAX_FIGURE if name in FIGURES else _MAX_JSON
            if digest != _digest(path / name, limit):
                _bad(path, f"`{name}` must have the SHA-256 in {PROVENANCE}", "another one", again)
        tensors, _ = files.read_tensors(path / ARRAYS, max_bytes=max_bytes)
        listed = files.read_json(path / VERDICTS, max_bytes=_MAX_JSON)
        known = {item.name for item in fields(Outcome) if config["schema"] == SCHEMA or not item.kw_only}
        if not isinstance(listed, list) or not all(isinstance(o, dict) and set(o) == known for o in listed):
            _bad(path, f"`{VERDICTS}` must be a list of outcomes", "something else", again)
        experiment, parameters = config.get("experiment"), config.get("parameters")
        if not isinstance(experiment, str) or not isinstance(parameters, dict):
            _bad(path, f"`{CONFIG}` must name `experiment` and `parameters`", sorted(config), again)
        try:
            run = cls(
                experiment,
                parameters,
                {name: tensor.numpy() for name, tensor in tensors.items()},
                tuple(Outcome(**outcome) for outcome in listed),
                found,
                {name: path.read(name, limit=_MAX_FIGURE) for name in figures},
            )
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"Run.read: {shown(path)}: {error}") from error
        if run.key != key:
            _bad(path, f"`{CONFIG}` must have the key {run.key} in {PROVENANCE}", repr(key), again)
        return run


def worst(outcomes: Sequence[Outcome]) -> str:
    """The worst status of the statements, or ``"undetermined"`` when there is none; conditions do not count."""
    judged = (o.status for o in outcomes if o.kind == "statement")
    return max(judged, key=STATUSES.index, default="undetermined")


def configuration_key(experiment: str, parameters: Mapping[str, Any]) -> str:
    """Short SHA-256 of the canonical JSON of an experiment's id and parameters."""
    content = {"experiment": experiment, "parameters": dict(parameters)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _jsonable(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        fail(
            "Run",
            f"`{name}` must be finite numbers, text, booleans and lists of them",
            error,
            "Convert them.",
        )


def _scalar(name: str, value: object) -> float | int | bool | str | None:
    """A JSON scalar: NumPy and torch scalars unwrapped, non-finite numbers as text."""
    if np.ma.is_masked(value):
        return None
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return fail("Outcome", f"`{name}` must be a number, text or None", type(value).__name__, "Convert it.")


def _frozen(name: str, value: object) -> np.ndarray:
    if np.ma.is_masked(value):
        do = "Fill them in: A.filled(numpy.nan)."
        fail("Run", f"`arrays[{name!r}]` must have no masked values", "some", do)
    array = np.array(value, order="C")
    if not isinstance(name, str) or not name or array.dtype.kind not in "biuf":
        fail(
            "Run",
            "`arrays` must map names to real or boolean arrays",
            f"{name!r}: dtype {array.dtype}",
            "Convert it to numbers.",
        )
    array.flags.writeable = False
    return array


def _bad(path: Inside, must: str, got: object, do: str) -> NoReturn:
    fail(f"Run.read: {shown(path)}", must, got, do, error=FileFormatError)


def _mapping(path: Inside, name: str) -> dict[str, Any]:
    content = files.read_json(path / name, max_bytes=_MAX_JSON)
    if not isinstance(content, dict):
        _bad(path, f"`{name}` must be a JSON object", type(content).__name__, "Run it again.")
    return content


def _is_run(folder: Inside) -> bool:
    """Whether the folder holds a Run: all its files, and a configuration of a known schema."""
    try:
        complete = all(folder.is_file(name) for name in _REQUIRED)
        return complete and {"schema", "experiment", "parameters"} <= set(_mapping(folder, CONFIG))
    except (IsthmusError, OSError):
        return False


def _digest(path: Inside, limit: int = _MAX_ARRAYS) -> str:
    with open_checked("Run.read", path, limit) as (stream, _):
        return hashlib.file_digest(stream, "sha256").hexdigest()


FOLDER = Folder("Run.write", "a Run", (*_REQUIRED, *FIGURES, REPORT), lambda folder, _: _is_run(folder))
