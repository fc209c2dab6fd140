"""What a sweep's folder is for: one experiment, one base, and grids of values that were added one by one.

Everything in it is plain data, so that the configurations and their keys follow from ``sweep.json`` alone: the folder
can be looked at where the experiment's class is not at hand.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from isthmus._checks import fail
from isthmus._errors import FileFormatError
from isthmus.runs import configuration_key

FORMAT, SCHEMA = "isthmus sweep", 1
#: Names of columns that have a meaning of their own: a swept parameter of that name is shown as ``set_NAME``.
TAKEN = ("key", "state", "seed", "seconds", "error", "rank", "norm", "loss", "cost", "converged", "training", "count")


@dataclass(frozen=True)
class Configuration:
    """One point of a grid: complete parameters, their key, and the values that people look at."""

    key: str
    parameters: Mapping[str, Any]
    values: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Grid:
    """Values by field of the experiment, and seeds; the configurations are their product."""

    values: Mapping[str, Sequence[Any]]
    seeds: Sequence[int]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        values = {name: [_plain(value) for value in values] for name, values in self.values.items()}
        return {"values": values, "seeds": list(self.seeds)}


@dataclass(frozen=True)
class Plan:
    """Experiment, base and grids.

    Attributes
    ----------
    experiment, title : str
    base : mapping
        Complete parameters; the seed is left to the grids.
    labels : mapping of str to str
        Swept fields, in the order in which they came, to the names they are shown under.
    grids : tuple of Grid
    about : mapping
        Further plain data: where the table of a discovery came from.
    """

    experiment: str
    title: str
    base: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    grids: tuple[Grid, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def with_grid(self, grid: Grid, names: Mapping[str, str]) -> Plan:
        """The same with one more grid; ``names`` are those of its fields, used for fields that have none yet."""
        labels = dict(self.labels)
        for field_ in grid.values:
            labels.setdefault(field_, label_of(names.get(field_, field_)))
        known = [one.to_dict() for one in self.grids]
        grids = self.grids if grid.to_dict() in known else (*self.grids, grid)
        return replace(self, labels=labels, grids=grids)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the swept parameters."""
        return tuple(self.labels.values())

    def configurations(self) -> dict[str, Configuration]:
        """Every configuration of every grid, by key, in order."""
        found: dict[str, Configuration] = {}
        for grid in self.grids:
            for parameters in self._points(grid):
                key = configuration_key(self.experiment, parameters)
                if key not in found:
                    values = {label: _shown(parameters[field_]) for field_, label in self.labels.items()}
                    found[key] = Configuration(key, parameters, values, parameters["seed"])
        return found

    def _points(self, grid: Grid) -> Iterator[dict[str, Any]]:
        fields = list(grid.values)
        for values in itertools.product(*grid.values.values()):
            # A field that holds several values gets a list of them, or one alone.
            chosen = {
                name: [value] if isinstance(self.base[name], (list, tuple)) and not isinstance(value, list) else value
                for name, value in zip(fields, map(_plain, values))
            }
            for seed in grid.seeds:
                yield {**self.base, **chosen, "seed": seed}

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for sweep.json."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "experiment": self.experiment,
            "title": self.title,
            "base": {name: list(v) if isinstance(v, tuple) else v for name, v in self.base.items()},
            "labels": dict(self.labels),
            "grids": [grid.to_dict() for grid in self.grids],
            "about": dict(self.about),
        }

    @classmethod
    def from_dict(cls, content: Any, where: str) -> Plan:
        """From plain data; what is wrong with it is a FileFormatError."""
        do = "It is no sweep, or damaged: restore it from a copy."
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            fail("sweep", f"{where} must be the plan of a sweep", "something else", do, error=FileFormatError)
        if content.get("schema") != SCHEMA:
            got = content.get("schema")
            fail("sweep", f"{where} must have the schema {SCHEMA}", got, "Upgrade isthmus.", error=FileFormatError)
        try:
            grids = tuple(Grid(dict(one["values"]), list(one["seeds"])) for one in content["grids"])
            made = cls(
                str(content["experiment"]),
                str(content["title"]),
                dict(content["base"]),
                dict(content["labels"]),
                grids,
                dict(content.get("about", {})),
            )
            unknown = [
                name for grid in grids for name in grid.values if name not in made.base or name not in made.labels
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fail("sweep", f"{where} must be complete", repr(error), do, error=FileFormatError)
        if unknown:
            fail("sweep", f"{where} must have a base value for each swept field", unknown, do, error=FileFormatError)
        return made

    def check_same(self, other: Plan, where: str) -> None:
        """Fail unless ``other`` may be added to this plan: the same experiment and base."""
        if self.experiment != other.experiment:
            do = f"Choose another folder, or sweep {self.experiment} here."
            fail("sweep", f"{where} is the sweep of {self.experiment}", other.experiment, do)
        mine, theirs = ({**plan.to_dict()["base"], "seed": 0} for plan in (self, other))
        differs = [
            f"{name}: {mine.get(name, 'absent')!r} there, {theirs.get(name, 'absent')!r} now"
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name, self) != theirs.get(name, self)
        ]
        if differs:
            do = "Set what differs with --set (it is then one value of a grid), or choose another folder."
            if "data" in "".join(name.partition(":")[0] for name in differs):
                do = "The data are others, or were read otherwise: choose another folder."
            must = f"{where} must keep the parameters it began with"
            fail("sweep", must, f"{len(differs)} that differ{'s' * (len(differs) == 1)}: {'; '.join(differs)}", do)


def label_of(name: str) -> str:
    """The name that a swept parameter is shown under."""
    return f"set_{name}" if name in TAKEN else name


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 else ",".join(map(str, value))
    return value


#: Values of one parameter, and configurations of one grid.
MOST_VALUES, MOST = 10_000, 50_000
_HOW = "Write 2,4,8 or 4:30:2 (ends included) or 1e-4:1e-1:log7 or 0:1:lin5."
_SPACED = re.compile(r"(log|lin)(\d+)")
_TRUTH = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def read_values(who: str, name: str, kind: type, given: Any, *, words: Mapping[str, Any] | None = None) -> list[Any]:
    """The values that ``given`` stands for, in order and without repetition.

    Parameters
    ----------
    who, name : str
        For messages.
    kind : {int, float, bool, str}
        Type of a value.
    given : str, number or sequence
        Parts separated by commas. A part is a value, or for numbers ``start:stop``, ``start:stop:step``,
        ``start:stop:linN`` or ``start:stop:logN``, ends included. A sequence may hold values or such texts.
    words : mapping, optional
        Texts that stand for themselves or another value whatever the type: ``{"auto": "auto"}``.

    Examples
    --------
    >>> read_values("sweep", "depth", int, "4:10:2")
    [4, 6, 8, 10]
    >>> read_values("sweep", "ridge", float, "1e-4:1e-1:log4")
    [0.0001, 0.001, 0.01, 0.1]
    >>> read_values("sweep", "width", int, [8, "16:32:16"])
    [8, 16, 32]
    """
    return _distinct(who, name, given, lambda item: _several(who, name, kind, item, words or {}))


def read_lists(who: str, name: str, kind: type, given: Any) -> list[Any]:
    """The same for a parameter that is a list: ``"2,4;8,16"`` stands for two lists.

    A part without a comma, and a number in a sequence, are lists of one value; a range is one such list after another.

    Examples
    --------
    >>> read_lists("sweep", "depths", int, "2,4;8,16,16;4:6")
    [(2, 4), (8, 16, 16), 4, 5, 6]
    >>> read_lists("sweep", "depths", int, [(2, 4), 8])
    [(2, 4), 8]
    """

    def lists(item: Any) -> list[Any]:
        if isinstance(item, str) and ";" in item:
            return [one for part in item.split(";") for one in lists(part)]
        several = isinstance(item, (list, tuple)) or (isinstance(item, str) and "," in item)
        values = [v for one in ([item] if isinstance(item, str) or not several else item) for v in of(one)]
        return [tuple(values)] if several and len(values) > 1 else values

    def of(item: Any) -> list[Any]:
        return _several(who, name, kind, item, {})

    return _distinct(who, name, given, lists)


def _distinct(who: str, name: str, given: Any, read: Callable[[Any], list[Any]]) -> list[Any]:
    """What ``read`` makes of each item, counted and without repetition."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    values: list[Any] = []
    for item in given:
        values += read(item)
        if len(values) > MOST_VALUES:
            fail(who, f"`{name}` must have at most {MOST_VALUES} values", "more", "Take a coarser step.")
    if not values:
        fail(who, f"`{name}` must have at least one value", repr(given), _HOW)
    return list(dict.fromkeys(values))


def _several(who: str, name: str, kind: type, item: Any, words: Mapping[str, Any]) -> list[Any]:
    if not isinstance(item, str):
        return [_converted(who, name, kind, item, words)]
    # A value may hold a comma only where it is text given in a sequence of Python, which nobody needs.
    return [value for part in item.split(",") for value in _part(who, name, kind, part.strip(), words)]


def count(axes: Mapping[str, Sequence[Any]]) -> int:
    """How many configurations the product of the axes has."""
    return math.prod(len(values) for values in axes.values())


def check_count(who: str, axes: Mapping[str, Sequence[Any]]) -> int:
    """The same, or fail if there are too many."""
    found = count(axes)
    if found > MOST:
        factors = " × ".join(f"{len(values)} of {name}" for name, values in axes.items())
        do = "Take coarser steps or fewer seeds, or several sweeps in folders of their own."
        fail(who, f"a grid must have at most {MOST} configurations", f"{found} ({factors})", do)
    return found


def _part(who: str, name: str, kind: type, text: str, words: Mapping[str, Any]) -> list[Any]:
    if text in words:
        return [words[text]]
    if ":" not in text or kind not in (int, float):
        return [_value(who, name, kind, text)]
    pieces = [piece.strip() for piece in text.split(":")]
    if len(pieces) not in (2, 3) or (len(pieces) == 2 and kind is float):
        _bad(who, name, kind, text)
    start, stop = (_decimal(who, name, kind, piece) for piece in pieces[:2])
    last = pieces[2] if len(pieces) == 3 else "1"
    if spaced := _SPACED.fullmatch(last):
        return _spaced(who, name, kind, text, (float(start), float(stop)), spaced[1], int(spaced[2]))
    step = _decimal(who, name, kind, last)
    if step == 0 or (stop - start) * step < 0:
        do = f"Give a step that leads from {pieces[0]} to {pieces[1]}."
        fail(who, f"`{name}` must have a step that reaches the end", repr(text), do)
    steps = int((stop - start) / step)
    if steps >= MOST_VALUES:
        fail(who, f"`{name}` must have at most {MOST_VALUES} values", f"{text!r}: {steps + 1}", "Take a coarser step.")
    # In decimals: 0:1:0.1 has the values that were written, not sums of roundings.
    return [kind(start + i * step) for i in range(steps + 1)]


def _spaced(
    who: str, name: str, kind: type, text: str, ends: tuple[float, float], how: str, number: int
) -> list[int | float]:
    low, high = ends
    if not 1 <= number <= MOST_VALUES or (number == 1 and low != high):
        fail(who, f"`{name}` must have 2 to {MOST_VALUES} values from end to end", repr(text), _HOW)
    if how == "log" and (low <= 0 or high <= 0):
        fail(who, f"`{name}` must have positive ends for a logarithmic range", repr(text), "Write linN, or move them.")
    if number == 1:
        return [kind(low)]
    if how == "log":
        low, high = math.log10(low), math.log10(high)
    inner = [low + (high - low) * i / (number - 1) for i in range(1, number - 1)]
    # Twelve digits: a value is the same on every machine, and so is the key made of it.
    middle = [float(f"{10**x if how == 'log' else x:.12g}") for x in inner]
    return [kind(round(x)) if kind is int else x for x in (ends[0], *middle, ends[1])]


def _decimal(who: str, name: str, kind: type, text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        _bad(who, name, kind, text)
    if not math.isfinite(float(number)) or (kind is int and number != number.to_integral_value()):
        _bad(who, name, kind, text)
    return number


def _value(who: str, name: str, kind: type, text: str) -> Any:
    try:
        if kind is bool:
            return _TRUTH[text.lower()]
        if kind is str:
            if not text:
                raise ValueError(text)  # noqa: TRY301 - one message for all
            return text
        # 1e3 is an integer to whoever types it.
        number = _decimal(who, name, kind, text)
        return kind(number)
    except (ValueError, KeyError):
        _bad(who, name, kind, text)


def _converted(who: str, name: str, kind: type, given: Any, words: Mapping[str, Any]) -> Any:
    value: Any = given
    if hasattr(given, "item"):
        value = given.item()
    if value is None:
        return None if None in words.values() else _bad(who, name, kind, "None")
    if type(value) is kind and (kind is not float or math.isfinite(value)):
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    do = "Pass values of that type, or a text: " + _HOW
    return fail(who, f"`{name}` must be {kind.__name__}", f"{type(value).__name__} {value!r}", do)


def _bad(who: str, name: str, kind: type, text: str) -> NoReturn:
    what = {bool: "true or false", str: "texts separated by commas"}.get(kind, f"{kind.__name__}s or a range of them")
    fail(who, f"`{name}` must be {what}", repr(text), _HOW)
