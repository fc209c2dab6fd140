"""The fuzzer itself: it is clean on what there is, reproducible, guided, and finds what is planted."""

from __future__ import annotations

import math
import os
import random

import pytest

import fuzz


def test_a_few_hundred_executions_find_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Without those that draw a whole page, which takes longest.
    which = [target for target in fuzz.targets() if target.name != "document"]
    assert len(which) == 11
    found = fuzz.fuzz(which, seconds=math.inf, seed=0, most=200, guided=0.1)
    assert found.findings == []
    assert found.executions >= 200
    assert 0 < found.refused < found.executions
    assert found.lines > 300


@pytest.mark.parametrize("planted", ["error", "write", "process", "forever"])
def test_what_is_planted_is_found(tmp_path, monkeypatch, planted):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzz, "PATIENCE", 1)

    def read(path):
        content = path.read_bytes()
        if b"<script>" not in content:
            return
        if planted == "error":
            raise KeyError("planted")
        if planted == "write":
            (tmp_path / "elsewhere").write_bytes(b"x")
        if planted == "process":
            os.system("true")
        while planted == "forever":
            pass

    target = fuzz.Target("planted", ".json", _insert, read, [b'{"a": 1}'])
    found = fuzz.fuzz([target], seconds=math.inf, seed=1, most=6)
    assert found.findings
    assert not (tmp_path / "elsewhere").exists()
    assert list((tmp_path / ".fuzz").iterdir())


def _insert(data: bytes, rng: random.Random) -> bytes:  # noqa: ARG001
    return data + b"<script>"
