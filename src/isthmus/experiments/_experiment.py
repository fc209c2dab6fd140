"""The Experiment: a figure as a frozen dataclass whose fields are the parameters."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import time
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import numpy as np
from matplotlib.figure import Figure

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus._progress import ProgressFactory, shown
from isthmus.plotting.style import new_figure, render
from isthmus.runs import Outcome, Run, configuration_key, provenance

SOURCES = ("paper", "our choice")


def parameter(
    default: Any,
    help: str,  # noqa: A002 - the word of every command line
    *,
    source: str = "our choice",
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A field of an :class:`Experiment`.

    Parameters
    ----------
    default : int, float, bool, str or tuple of numbers
        The paper's setting, or ours where the paper states none.
    help : str
        One line, shown by ``isthmus reproduce ID --list``.
    source : {"paper", "our choice"}
        Who set the default.
    low, high : float, optional
        Bounds of the number, or of each number of a tuple.
    choices : sequence of str
        The valid texts, if not all are.
    """
    check_choice("parameter", "source", source, SOURCES)
    extra = {"help": help, "source": source, "low": low, "high": high, "choices": tuple(choices)}
    return field(default=default, metadata=extra)


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """One figure of a paper.

    To add a figure, write one file with a subclass decorated ``@dataclass(frozen=True, kw_only=True)``: the
    class attributes below, fields made with :func:`parameter`, and the four methods ``quick``, ``compute``,
    ``outcomes``, ``plot``.

    Attributes
    ----------
    id, title, paper, where : str
        ``"F-rank-1"``, a headline, the paper's key in ``papers.bib``, and the figure in it.
    convention : str
        The convention in which its regularisation is given.
    quick_seconds, full_seconds : float
        About how long it takes on two cores.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    where: ClassVar[str]
    convention: ClassVar[str]
    quick_seconds: ClassVar[float]
    full_seconds: ClassVar[float]

    seed: int = parameter(0, "seed of everything random", low=0, high=2**63 - 1)

    def __new__(cls, *args: Any, **values: Any) -> Self:  # noqa: ARG004
        """Refuse unknown parameters with the list of the valid ones."""
        cls._check_names(values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        hints = self._hints()
        for item in fields(self):
            # Converted, because 1 and 1.0 must give the same key to the same configuration.
            value = _checked(self.id, item, hints[item.name], getattr(self, item.name))
            object.__setattr__(self, item.name, value)

    @classmethod
    @abstractmethod
    def quick(cls) -> Self:
        """The variant that takes seconds and shows the same thing."""

    @abstractmethod
    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """All numbers of the figure."""

    @abstractmethod
    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """What became of each statement of the figure, from the arrays alone."""

    @abstractmethod
    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Draw on ``figure``, from the arrays alone."""

    #: Size of the figure in inches, for those that need another one.
    figure_size: ClassVar[tuple[float, float]] = (10.0, 4.4)

    @property
    def parameters(self) -> dict[str, Any]:
        """Name and value of every parameter."""
        return asdict(self)

    @property
    def key(self) -> str:
        """The key of the Run that this experiment will give, known before it is run."""
        return configuration_key(self.id, self.parameters)

    def replace(self, **changes: Any) -> Self:
        """The same experiment with some parameters changed."""
        return replace(self, **changes)

    def run(
        self,
        *,
        progress: bool | ProgressFactory = False,
        command: Sequence[str] | None = None,
        device: str = "cpu",
        figures: bool = True,
    ) -> Run:
        """Compute, judge and draw; the result is in memory, ``.write(folder)`` keeps it.

        Parameters
        ----------
        progress : bool or callable, default False
            Show on stderr how far it is, as in :func:`isthmus.train`.
        command : sequence of str, optional
            Recorded in the provenance, ``sys.argv[1:]`` unless given.
        device : str
            Recorded in the provenance.
        figures : bool
            Whether to draw: not in a sweep, which has pictures of its own.
        """
        started, clock = time.time(), time.perf_counter()
        arrays = self.compute(shown(progress))
        return self.recorded(arrays, started=started, clock=clock, command=command, device=device, figures=figures)

    def recorded(
        self,
        arrays: Mapping[str, Any],
        *,
        started: float,
        clock: float | None = None,
        seconds: float = 0.0,
        command: Sequence[str] | None = None,
        device: str = "cpu",
        figures: bool = True,
        more: Mapping[str, Any] | None = None,
    ) -> Run:
        """The Run of arrays that were computed: judged, drawn, measured, with their provenance.

        Parameters
        ----------
        arrays : mapping
            From :meth:`compute` or :meth:`compute_together`.
        started : float
            When, in seconds since the epoch.
        clock, seconds : float
            ``time.perf_counter()`` at the start, or how long it took.
        command, device, figures
            As in :meth:`run`.
        more : mapping, optional
            Further entries of the provenance.
        """
        arrays = {name: np.asarray(value) for name, value in arrays.items()}
        outcomes = tuple(self.outcomes(arrays))
        drawn = {}
        if figures:
            figure = new_figure(*self.figure_size)
            self.plot(arrays, figure)
            drawn = {"figure.png": render(figure, "png"), "figure.svg": render(figure, "svg")}
        took = seconds if clock is None else time.perf_counter() - clock
        source = provenance(seed=self.seed, device=device, started=started, seconds=round(took, 3), command=command)
        # Kept with the Run, so that a table of many need not read the arrays of each.
        account = {"measured": plain_scalars(self.measured(arrays))}
        return Run(self.id, self.parameters, arrays, outcomes, {**source, **account, **(more or {})}, drawn)

    # ---------------------------------------------------------------- for sweeps

    #: Names that people type, to fields; a name that leads to a tuple sets it to one value.
    sweep_names: ClassVar[Mapping[str, str]] = types.MappingProxyType({})

    @classmethod
    def single(cls, *, quick: bool = False) -> Self:
        """The configuration that a sweep starts from: of several networks, one."""
        return cls.quick() if quick else cls()

    def measured(self, arrays: Mapping[str, np.ndarray]) -> dict[str, float | int | bool | str]:
        """Scalars of a Run for tables and phase diagrams, from the arrays alone.

        Standard names where they apply: ``rank``, ``norm`` (‖θ‖²), ``loss``, ``cost``, ``converged``, ``training``
        (``"stationary"``, ``"flat"``, ``"budget"`` or ``"diverged"``). By default every array of one element under its
        own name.
        """
        return {name: value.item() for name, value in arrays.items() if value.size == 1}

    @classmethod
    def spectrum_table(cls, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:  # noqa: ARG003
        """Singular values of the weights of the network of a single run, (layers, values); None if there is none."""
        return None

    def batch_shape(self) -> tuple[Any, ...] | None:
        """Configurations of equal shape may be computed together; None: this one is computed alone."""
        return None

    @classmethod
    def compute_together(cls, experiments: Sequence[Any], progress: ProgressFactory) -> list[dict[str, np.ndarray]]:
        """The arrays of several configurations of one :meth:`batch_shape`, in their order."""
        return [experiment.compute(progress) for experiment in experiments]

    def lasting(self) -> float:
        """How long it takes compared with others of its kind; a sweep begins with those that take longest."""
        return float(getattr(self, "depth", 1))

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What ``isthmus reproduce --list --json`` says of it: plain data."""
        quick = cls.quick().parameters
        hints = cls._hints()
        return {
            "id": cls.id,
            "title": cls.title,
            "paper": cls.paper,
            "where": cls.where,
            "convention": cls.convention,
            "quick_seconds": cls.quick_seconds,
            "full_seconds": cls.full_seconds,
            "parameters": [
                {
                    "name": item.name,
                    "type": _type_name(hints[item.name]),
                    "default": item.default,
                    "quick": quick[item.name],
                    "source": item.metadata.get("source", "our choice"),
                    "help": item.metadata.get("help", ""),
                }
                for item in fields(cls)
            ],
        }

    @classmethod
    def _hints(cls) -> dict[str, Any]:
        return {name: hint for name, hint in get_type_hints(cls).items() if get_origin(hint) is not ClassVar}

    @classmethod
    def _check_names(cls, names: Iterable[str]) -> None:
        valid = [item.name for item in fields(cls)]
        for name in names:
            if name not in valid:
                fail(cls.id, f"parameters must be among {', '.join(valid)}", repr(name), "Choose one of these.")


def parse_overrides(experiment: type[Experiment], texts: Iterable[str]) -> dict[str, Any]:
    """Values from texts like ``"depth=12"``, read by the type of the field. Nothing is evaluated.

    Tuples are numbers separated by commas: ``"depths=2,4,8"``.
    """
    values: dict[str, Any] = {}
    hints = experiment._hints()
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            fail(experiment.id, "a parameter is set as field=value", repr(text), "Write e.g. seed=1.")
        experiment._check_names([name])
        if name in values:
            fail(experiment.id, "each parameter may be set once", f"{name!r} twice", "Remove one of them.")
        values[name] = _parsed(experiment.id, name, hints[name], value.strip())
    return values


def find_experiments(package: types.ModuleType | None = None) -> dict[str, type[Experiment]]:
    """Every Experiment under ``package`` (``isthmus.experiments`` unless given), by id in order."""
    root = importlib.import_module("isthmus.experiments") if package is None else package
    found: dict[str, type[Experiment]] = {}
    for info in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        module = importlib.import_module(info.name)
        for _, member in inspect.getmembers(module, inspect.isclass):
            if not issubclass(member, Experiment) or inspect.isabstract(member):
                continue
            if member.__module__ != module.__name__:
                continue
            missing = [name for name in Experiment.__annotations__ if not hasattr(member, name)]
            if missing:
                fail(
                    "find_experiments",
                    f"{member.__name__} must define {', '.join(missing)}",
                    "none",
                    "Add it.",
                )
            if member.id in found:
                other = found[member.id].__module__
                fail(
                    "find_experiments",
                    f"id {member.id!r} must be used once",
                    f"{other}, {info.name}",
                    "Rename.",
                )
            found[member.id] = member
    return dict(sorted(found.items()))


def find_experiment(name: str) -> type[Experiment]:
    """The Experiment of that id; an unknown one fails with the list of the valid ones."""
    found = find_experiments()
    check_choice("reproduce", "id", name, found)
    return found[name]


def plain_scalars(measured: Mapping[str, Any]) -> dict[str, float | int | bool | str]:
    """Measured values as JSON has them: numbers that are not finite are texts, which ``float`` reads."""
    found = {}
    for name, value in measured.items():
        value = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
        found[name] = str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return found


def _type_name(hint: Any) -> str:
    inner = get_args(hint)
    return f"{inner[0].__name__}s" if inner else hint.__name__


def _checked(who: str, item: Field[Any], hint: Any, value: Any) -> Any:
    """``value`` as the field's type exactly, within its bounds, or fail."""
    name = item.name
    low, high = item.metadata.get("low"), item.metadata.get("high")
    if get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            fail(who, f"`{name}` must be a tuple of {get_args(hint)[0].__name__}", repr(value), "Pass numbers.")
        single = get_args(hint)[0]
        return tuple(_number(who, f"{name}[{i}]", single, one, low, high) for i, one in enumerate(value))
    if hint in (int, float):
        return _number(who, name, hint, value, low, high)
    if type(value) is not hint:
        fail(who, f"`{name}` must be {hint.__name__}", f"{type(value).__name__} {value!r}", "Convert it.")
    if choices := item.metadata.get("choices"):
        check_choice(who, name, value, choices)
    return value


def _number(who: str, name: str, kind: type, value: Any, low: float | None, high: float | None) -> int | float:
    if kind is int:
        top = None if high is None else int(high)
        return check_integer(who, name, value, low=-(2**63) if low is None else int(low), high=top)
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    return check_number(who, name, value, low=least, high=most)


def _parsed(who: str, name: str, hint: Any, text: str) -> Any:
    try:
        if get_origin(hint) is tuple:
            parts = [part.strip() for part in text.strip("()[] ").split(",")]
            return tuple(get_args(hint)[0](part) for part in parts if part)
        if hint is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return hint(text)
    except (ValueError, KeyError):
        return fail(who, f"`{name}` must be {_type_name(hint)}", repr(text), f"Write {name}=value of that type.")
