"""One name for one thing: parameters and docstrings against the words of the library in ``docs/notation.md``."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from sklearn.base import BaseEstimator
from typer.main import get_command

import isthmus
from docs_site import DOCS, ROOT
from isthmus.cli import app

TEXT = (DOCS / "notation.md").read_text(encoding="utf-8").split("## Words of the library")[1].split("\n## ")[0]
NAME = re.compile(r"`([^`]+)`")
#: Names that scikit-learn gives to what has another name elsewhere.
ESTIMATORS_ONLY = {"random_state", "verbose"}
#: Former names, accepted for one version with a warning: parameters of estimators and options, which cannot be hidden.
FORMER = {"ridge"}


@dataclasses.dataclass
class Word:
    """A row of the table: the types of its annotations ({} where any will do), and names that are not used for it."""

    types: set[str]
    refused: set[str]


@cache
def words() -> dict[str, Word]:
    found = {}
    for line in TEXT.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            for name in NAME.findall(cells[0]):
                found[name] = Word(set(NAME.findall(cells[2])), set(NAME.findall(cells[3])))
    return found


@cache
def refused_words() -> re.Pattern[str]:
    given = NAME.findall(TEXT.split("<!-- refused -->")[1].split("<!-- end -->")[0])
    return re.compile("|".join(rf"\b{re.escape(word)}" + (r"\b" if word[-1].isalpha() else "") for word in given))


def functions() -> Iterator[tuple[str, Callable[..., Any], type | None]]:
    """Every public function, method and class of the documented modules, once: its name, itself, its class."""
    listed = " ".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "api").glob("*.md")))
    modules = sorted({name for line in re.findall(r"<!-- modules: ([\w ]+) -->", listed) for name in line.split()})
    seen = set()
    for module in [isthmus, *(importlib.import_module(f"isthmus.{name}") for name in modules)]:
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if id(thing) in seen or not (inspect.isfunction(thing) or inspect.isclass(thing)):
                continue
            seen.add(id(thing))
            yield f"{thing.__module__}.{name}", thing, thing if inspect.isclass(thing) else None
            for key, value in vars(thing).items() if inspect.isclass(thing) else ():
                method = getattr(value, "__func__", value)
                if not key.startswith("_") and inspect.isfunction(method):
                    yield f"{thing.__module__}.{name}.{key}", method, None


def asked() -> Iterator[tuple[str, Callable[..., Any], type | None]]:
    """Those that people call: fields of results say what was found, not what is asked."""
    yield from (one for one in functions() if not (one[2] is not None and dataclasses.is_dataclass(one[2])))


def misnamed(function: Callable[..., Any]) -> list[str]:
    """Parameters whose name the table refuses."""
    refused = {name: now for now, word in words().items() for name in word.refused}
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # exceptions and other classes of C
        return []
    return [f"{name} (it is {refused[name]})" for name in names if name in refused]


def mistyped(function: Callable[..., Any]) -> list[str]:
    """Parameters of a name of the table whose annotation is of another type."""
    found = []
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    for one in parameters:
        types = words()[one.name].types if one.name in words() else set()
        given = set(str(one.annotation).split(" | ")) - {"None"}
        if types and not given <= types:
            found.append(f"{one.name}: {one.annotation}, not {' or '.join(sorted(types))}")
    return found


def undescribed(text: str) -> list[str]:
    return refused_words().findall(text)


def test_the_table_is_read():
    assert len(words()) > 35
    assert words()["ridge"] == Word({"float"}, {"weight_decay", "l2", "penalty"})
    assert len(list(functions())) > 300


def test_parameters_have_the_names_of_the_table():
    wrong = {name: found for name, function, _ in asked() if (found := misnamed(function))}
    assert not wrong


def test_a_name_means_one_thing():
    wrong = {
        name: found
        for name, function, cls in asked()
        if (found := mistyped(function))
        if not (cls is not None and issubclass(cls, BaseEstimator) and {one.split(":")[0] for one in found} <= FORMER)
    }
    assert not wrong


def test_words_of_scikit_learn_stay_with_its_estimators():
    for name, function, cls in functions():
        if cls is None or not issubclass(cls, BaseEstimator):
            try:
                given = set(inspect.signature(function).parameters)
            except (TypeError, ValueError):
                continue
            assert not given & ESTIMATORS_ONLY, name


def test_options_of_commands_have_the_names_of_the_table():
    # Files and Python modules with a network, and processes as joblib counts them.
    refused = {name for word in words().values() for name in word.refused} - {"jobs", "model", "module"}
    command: Any = get_command(app)
    for name, one in command.commands.items():
        given = {option.name for option in one.params if not getattr(option, "hidden", False)}
        assert not given & refused, name


def test_docstrings_use_plain_words():
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                name = f"{path.name}:{getattr(node, 'name', 1)}"
                wrong += [(name, word) for word in undescribed(ast.get_docstring(node) or "")]
    assert not wrong


def test_planted_words_are_found():
    def planted(module: int, tol: float, ridge: str, progress: bool = False):
        """What the caller was told."""

    assert misnamed(planted) == ["module (it is net)", "tol (it is tolerance)"]
    assert mistyped(planted) == ["ridge: str, not float"]
    assert undescribed(planted.__doc__ or "") == ["told"]
    assert undescribed("Divided by two; nobodyish, stolen") == []


def test_former_names_are_taken_with_a_warning():
    layer = torch.nn.Linear(2, 1)
    with pytest.warns(FutureWarning, match="from_torch: `module` is now called `net`"):
        assert isthmus.from_torch(module=layer).dims == (2, 1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="both `net` and `module`"):
        isthmus.from_torch(net=layer, module=layer)  # pyright: ignore[reportCallIssue]
