"""What a sweep's folder is for: one experiment, one base, and grids of values that were added one by one.

Everything in it is plain data, so that the configurations and their keys follow from ``sweep.json`` alone: the folder
can be looked at where the experiment's class is not at hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
        return {"values": {name: list(values) for name, values in self.values.items()}, "seeds": list(self.seeds)}


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
            # A field that holds several values gets this one alone.
            chosen = {
                name: [value] if isinstance(self.base[name], (list, tuple)) else value
                for name, value in zip(fields, values)
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


def _shown(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 else ",".join(map(str, value))
    return value
