"""The settings of discover: one list, from which the function, estimators, command line and sweeps take theirs."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import isthmus
from isthmus import IsthmusError, discover
from isthmus._settings import FIRST_STRENGTH, HELP, KINDS, STRENGTH
from isthmus.cli import app
from isthmus.discovery import Settings
from isthmus.objective import LOSSES

DEFAULTS = dataclasses.asdict(Settings())
#: Other names of settings: in estimators scikit-learn's.
ALIASES = {"random_state": "seed", "noise": "input_noise"}
ESTIMATORS = [isthmus.BottleneckRegressor, isthmus.BottleneckClassifier, isthmus.BottleneckAutoencoder]


def test_the_function_shows_what_people_use_and_names_every_setting():
    shown = inspect.signature(discover).parameters
    assert len(shown) <= 14
    named = set(re.findall(r"``(\w+)``", inspect.getdoc(discover) or ""))
    assert named | set(shown) >= set(DEFAULTS)
    explained = re.findall(r"^(\w+(?:, \w+)*) : ", inspect.getdoc(Settings) or "", re.MULTILINE)
    assert [name for line in explained for name in line.split(", ")] == list(DEFAULTS)


def test_the_former_name_is_taken_with_a_warning():
    warned = pytest.warns(FutureWarning, match="`ridge` is now called `resolution`")
    with warned, pytest.raises(IsthmusError, match="`resolution` must be"):
        discover(np.zeros((3, 2)), np.zeros((3, 2)), ridge=2.0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_have_the_same_defaults(estimator):
    given = {ALIASES.get(name, name): value for name, value in estimator().get_params().items()}
    shared = set(given) & set(DEFAULTS)
    assert {name: given[name] for name in shared} == {name: DEFAULTS[name] for name in shared}
    assert shared >= set(DEFAULTS) - {"loss", "input_noise"}
    assert set(given) - shared == {"cv", "n_jobs", "verbose", "ridge"}


def test_the_command_has_the_same_defaults_and_help():
    command: Any = get_command(app)
    options = {one.name: one for one in command.commands["discover"].params}
    for name in ("max_rank", "rank", "depth", "width", "activation", "units", "resolution", "replicas", "seed"):
        assert options[name].help == HELP[name]
        numbers = KINDS[name] is not str and DEFAULTS[name] == "auto"
        assert options[name].default == (None if numbers else DEFAULTS[name])
    assert options["ridge"].hidden  # the former name of the resolution


def test_every_loss_is_allowed():
    assert [Settings(loss=loss).loss for loss in LOSSES] == list(LOSSES)
    with pytest.raises(IsthmusError, match=", ".join(map(repr, LOSSES))):
        Settings(loss="hinge")


def test_values_are_checked_and_plain():
    kept = Settings(depth=np.int64(6), resolution=1, seed=np.uint8(3))
    assert (kept.depth, kept.resolution, kept.strength, kept.seed) == (6, 1.0, 1.0, 3)
    assert all(type(getattr(kept, name)) in (kind, str, type(None)) for name, kind in KINDS.items())
    assert (Settings().strength, Settings(loss="cross_entropy").strength) == (FIRST_STRENGTH, STRENGTH)
    assert Settings(activation="kinked").strength == STRENGTH
    with pytest.raises(IsthmusError, match="discover: `depth` must be even.*Pass 8"):
        Settings(depth=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kept.depth = 8  # pyright: ignore[reportAttributeAccessIssue]


def test_unknown_names_list_the_known_ones():
    with pytest.raises(IsthmusError, match=f"among {', '.join(DEFAULTS)}. Got 'ranks'"):
        discover(np.zeros((3, 2)), np.zeros((3, 2)), ranks=2)


def test_they_are_light():
    script = "import isthmus._settings, sys; assert not {'torch', 'numpy'} & set(sys.modules), 'heavy'"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0
