"""The recipe of CONTRIBUTING.md for a claim can be followed: its two files, as they are printed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from isthmus import verify
from isthmus._cite import CITATIONS
from isthmus.claims import CLAIMS, verify_samples
from tools import gaussian, random_net

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
NAME = "isthmus.claims.rank2023._nuclear_norm"


def imported(name, path, code):
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recipe(tmp_path):
    """The module and its test; afterwards all is as it was."""
    section = PAGE.read_text(encoding="utf-8").split("## To add a claim")[1].split("\n## ")[0]
    source, test = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    claims, citations = dict(CLAIMS), list(CITATIONS)
    try:
        module = imported(NAME, tmp_path / "_nuclear_norm.py", source)
        yield module, imported("test_nuclear_norm", tmp_path / "test_nuclear_norm.py", test)
    finally:
        for name in (NAME, "test_nuclear_norm"):
            sys.modules.pop(name, None)
        CLAIMS.clear()
        CLAIMS.update(claims)
        CITATIONS[:] = citations


def test_the_recipe_can_be_followed(recipe):
    module, test = recipe
    test.test_the_nuclear_norm()
    (identity,) = [one.id for one in CLAIMS.values() if one.judge.__module__ == NAME]
    assert CITATIONS[-1].ids == (identity,)
    assert verify_samples(identity)[identity].status == "holds"
    found = verify(random_net([5, 6, 3], 1.0, bias=0.0), gaussian(4, 5), claims=identity)[identity]
    assert found.status == "holds" and found.slack > 0
    assert "σ = id: not met" in verify(random_net([5, 6, 3]), gaussian(4, 5), claims=identity)[identity].reason


def test_a_claim_of_the_recipe_can_fail(recipe, monkeypatch):
    module, _ = recipe
    monkeypatch.setattr(module, "parameter_norms", lambda net: type("Norms", (), {"total": 1e-3}))
    (identity,) = [one.id for one in CLAIMS.values() if one.judge.__module__ == NAME]
    assert verify_samples(identity).failed == (identity,)


def test_nothing_of_the_recipe_is_left():
    assert NAME not in sys.modules and all(one.judge.__module__ != NAME for one in CLAIMS.values())
