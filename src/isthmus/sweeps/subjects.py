"""What can be swept: an Experiment, or discover on a table. Names and values in, complete configurations out."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import numpy as np

from isthmus._checks import check_choice, check_integer, check_seed, fail, without_mask
from isthmus._errors import DataError
from isthmus._settings import KINDS, Settings, present_name
from isthmus.engines.base import DISCOVER, ROLES, digest
from isthmus.experiments._experiment import Experiment, find_experiment
from isthmus.sweeps.plan import Grid, Plan, check_count, read_lists, read_values

_WHO = "sweep"


class Subject(ABC):
    """What is swept: how its parameters are called, and what follows from a configuration."""

    id: str
    title: str
    base: dict[str, Any]
    data: Mapping[str, np.ndarray] | None = None
    home: str = ""
    kind: type[Experiment] | None = None

    @abstractmethod
    def field_of(self, name: str) -> tuple[str, type, dict[str, Any]]:
        """The field that a name leads to, the type of its values (of lists ``tuple[…]``), and words that are values."""

    @abstractmethod
    def check(self, parameters: Mapping[str, Any]) -> None:
        """Fail if a configuration is none."""

    def shape(self, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:  # noqa: ARG002
        """Configurations of equal shape may be computed together; None: alone."""
        return None

    def lasting(self, parameters: Mapping[str, Any]) -> float:  # noqa: ARG002
        """How long it takes compared with others."""
        return 1.0

    def plan(self, grid: Mapping[str, Any], seeds: int | Sequence[int], about: Mapping[str, Any]) -> Plan:
        """The plan of one grid: values read, counted and checked, before anything is computed or written."""
        values: dict[str, list[Any]] = {}
        names: dict[str, str] = {}
        for name, given in grid.items():
            field, kind, words = self.field_of(name)
            if field in values:
                fail(_WHO, "each parameter may be swept once", f"{names[field]!r} and {name!r}", "Remove one of them.")
            if get_origin(kind) is tuple:
                values[field] = read_lists(_WHO, name, get_args(kind)[0], given)
            else:
                values[field] = read_values(_WHO, name, kind, given, words=words)
            names[field] = name
        chosen = self._seeds(values.pop("seed", None), seeds)
        check_count(_WHO, {**{names[field]: v for field, v in values.items()}, "seed": chosen})
        made = Plan(self.id, self.title, self.base, about=about).with_grid(Grid(values, chosen), names)
        for one in made.configurations().values():
            self.check(one.parameters)
        return made

    def _seeds(self, swept: list[Any] | None, seeds: int | Sequence[int]) -> list[int]:
        if swept is not None:
            if seeds != 1:
                fail(_WHO, "seeds may be given once", "`seed` in the grid and `seeds`", "Remove one of them.")
            return [check_seed(_WHO, seed) for seed in swept]
        first = int(self.base.get("seed", 0))
        if not isinstance(seeds, Sequence):
            return list(range(first, first + check_integer(_WHO, "seeds", seeds, low=1, high=100_000)))
        found = [check_integer(_WHO, "seeds", seed, low=0) for seed in seeds]
        if not found:
            fail(_WHO, "`seeds` must be a number of seeds or a list of them", repr(seeds), "Pass e.g. 3.")
        return list(dict.fromkeys(found))


@dataclass(eq=False)
class OfExperiment(Subject):
    """An Experiment, from the configuration ``first``."""

    first: Experiment

    def __post_init__(self) -> None:
        self.kind = kind = type(self.first)
        self.id, self.title = kind.id, kind.title
        self.base = {k: list(v) if isinstance(v, tuple) else v for k, v in self.first.parameters.items()}
        self.home = f"{kind.__module__}:{kind.__qualname__}"
        if "<locals>" in self.home or kind.__module__ == "__main__":
            do = "Put the class into a module of its own and import it: other processes must find it too."
            fail(_WHO, f"{kind.__name__} must be importable", self.home, do)

    def field_of(self, name: str) -> tuple[str, type, dict[str, Any]]:
        """A field's own name, or one of the experiment's ``sweep_names``, which gives a list one value at a time."""
        kind = type(self.first)
        hints = kind._hints()
        fields = [item.name for item in dataclasses.fields(kind)]
        field = kind.sweep_names.get(name, name)
        if field not in fields:
            valid = list(dict.fromkeys([*kind.sweep_names, *fields]))
            fail(f"{_WHO} {kind.id}", f"what is swept must be among {', '.join(valid)}", repr(name), "Choose one.")
        hint = hints[field]
        return field, get_args(hint)[0] if get_origin(hint) is tuple and name != field else hint, {}

    def check(self, parameters: Mapping[str, Any]) -> None:
        """What the experiment itself checks."""
        self._made(parameters)

    def shape(self, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The experiment's."""
        return self._made(parameters).batch_shape()

    def lasting(self, parameters: Mapping[str, Any]) -> float:
        """The experiment's."""
        return self._made(parameters).lasting()

    def _made(self, parameters: Mapping[str, Any]) -> Experiment:
        return type(self.first)(**parameters)


class OfDiscover(Subject):
    """discover on arrays: their digest is a parameter like the others."""

    id, title = DISCOVER, "How many variables the outputs depend on, over the arguments of discover"

    def __init__(self, data: Mapping[str, Any], base: Mapping[str, Any]) -> None:
        for name in data:
            check_choice(_WHO, "data", name, ROLES)
        if "X" not in data or "Y" not in data:
            fail(_WHO, "`data` must hold X and Y", ", ".join(data) or "nothing", "Pass data={'X': X, 'Y': Y}.")
        self.data = {name: _array(name, value) for name, value in data.items() if value is not None}
        base = {present_name(_WHO, name): value for name, value in base.items()}
        for name in base:
            check_choice(_WHO, "base", name, KINDS)
        settings = dataclasses.asdict(Settings())
        self.base = {**settings, **base, "data": digest(self.data), "samples": len(self.data["X"])}

    def field_of(self, name: str) -> tuple[str, type, dict[str, Any]]:
        """A setting of discover."""
        name = present_name(_WHO, name)
        check_choice(f"{_WHO} discover", "name", name, KINDS)
        first = getattr(Settings, name)
        words = {"auto": "auto"} if first == "auto" else {"none": None} if first is None else {}
        return name, KINDS[name], words

    def check(self, parameters: Mapping[str, Any]) -> None:
        """The one rule of discover that a range easily breaks; all others come as failures of their own."""
        if parameters["depth"] % 2 or parameters["depth"] < 4:
            do = "Sweep even depths: depth=4:12:2."
            fail(_WHO, "`depth` must be even and at least 4: half of the layers encode", parameters["depth"], do)

    def lasting(self, parameters: Mapping[str, Any]) -> float:
        """Depth × width × walks."""
        return float(parameters["depth"] * parameters["width"] * (1 + parameters["replicas"]))


def subject_of(experiment: Any, *, quick: bool, data: Mapping[str, Any] | None, base: Mapping[str, Any]) -> Subject:
    """What is to be swept.

    Parameters
    ----------
    experiment : str, class or Experiment
        An id or a class gives its ``single()``; an Experiment is itself the base.
    quick : bool
        The quick variant of it.
    data : mapping, optional
        For ``"discover"`` alone.
    base : mapping
        Parameters that differ from those of the base and are not swept.
    """
    if experiment == DISCOVER:
        if data is None:
            fail(_WHO, "a sweep over discover must have data", "none", "Pass data={'X': X, 'Y': Y}.")
        return OfDiscover(data, base)
    if data is not None:
        fail(_WHO, "`data` belong to a sweep over discover", repr(experiment), "Sweep 'discover', or leave them out.")
    if isinstance(experiment, Experiment):
        if quick:
            fail(_WHO, "`quick` is for an id or a class", "an Experiment", "Pass the quick one itself.")
        first: Experiment = experiment
    else:
        kind = find_experiment(experiment) if isinstance(experiment, str) else experiment
        if not (isinstance(kind, type) and issubclass(kind, Experiment)):
            do = "Pass an id, a class or an Experiment; `isthmus reproduce --list` shows them."
            fail(_WHO, "`experiment` must be an Experiment or 'discover'", repr(experiment), do)
        first = kind.single(quick=quick)
    return OfExperiment(first.replace(**base))


def _array(name: str, value: Any) -> np.ndarray:
    array = np.asarray(without_mask(value))
    if array.dtype.kind in "OUS":
        # Labels: their order is what discover goes by, and numbers are what may be sent and digested.
        array = np.unique(array.astype(str), return_inverse=True)[1].reshape(array.shape) if name == "Y" else array
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or not (len(array) or name == "na_values"):
        got = f"dtype {array.dtype}, shape {array.shape}"
        fail(_WHO, f"`data[{name!r}]` must be numbers, samples as rows", got, "Convert it.", error=DataError)
    return array
