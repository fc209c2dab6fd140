"""What the commands leave behind for the watcher: a record while they run, or end badly, and nothing afterwards."""

import functools
import importlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isthmus import cli, discovery, problems
from isthmus.experiments.bottleneck2023 import _linear_expansion as linear_expansion
from isthmus.plotting import style
from isthmus.serving import Watcher

DISCOVER = ["discover", "data.csv", "--target", "y*", "--width", "8", "--depth", "4", "--replicas", "0", "--out"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(style, "render", lambda _: b"\x89PNG")


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_discovery_from_its_interruption_to_its_end(monkeypatch, capsys):
    task = problems.linear(d_in=4, d_out=3, rank=2, samples=100)
    columns = pd.Index([*"abcd", "y0", "y1", "y2"])
    pd.DataFrame(np.hstack([task.X, task.Y]), columns=columns).to_csv("data.csv", index=False)
    monkeypatch.setattr(discovery, "discover", functools.partial(discovery.discover, steps=2))
    inner = importlib.import_module("isthmus.discovery._discover")
    original = inner.finish_fit

    def interrupted(*_, **__):
        (view,) = Watcher("runs").runs()
        assert (view.state, view.kind) == ("running", "discovery")
        assert (
            view.stages and {(0, 0), (0, 1)} <= {*view.record.walks} and not any(walk for walk, _ in view.record.walks)
        )
        assert set(view.record.told) == {"λ", "resolution", "tolerance"}
        raise KeyboardInterrupt

    monkeypatch.setattr(inner, "finish_fit", interrupted)
    assert cli.main([*DISCOVER, "runs/mine"]) == 130
    record = lines("runs/mine/.progress/live.jsonl")
    assert record[0]["sentence"] == "How many variables do 3 outputs depend on? 100 samples of 4 inputs."
    assert (record[-1]["kind"], record[-1]["state"]) == ("end", "interrupted")
    (view,) = Watcher("runs").runs()
    assert view.state == "interrupted" and view.stages
    # The same command goes on, appends, and the record goes when the answer comes.
    monkeypatch.setattr(inner, "finish_fit", original)
    assert cli.main([*DISCOVER, "runs/mine"]) in (0, 1)
    assert not Path("runs/mine/.progress").exists()
    (view,) = Watcher("runs").runs()
    assert (view.state, view.has_report) == ("finished", True)
    assert view.answer.sentence in capsys.readouterr().out


def test_bad_data_leaves_nothing(capsys):
    Path("data.csv").write_text("a,y0,y1\n1,2,3\n")
    assert cli.main([*DISCOVER, "runs/mine"]) == 3
    assert not Path("runs").exists()
    assert "error" in capsys.readouterr().err


def test_a_run_that_fails_and_one_that_does_not(monkeypatch, capsys):
    quick = ["reproduce", "E-linear", "--quick", "--out", "runs/mine"]
    original = linear_expansion.LinearExpansion.outcomes

    def broken(*_):
        (view,) = Watcher("runs").runs()
        assert (view.state, view.kind) == ("running", "run")
        raise RuntimeError("no luck\nat all")

    monkeypatch.setattr(linear_expansion.LinearExpansion, "outcomes", broken)
    assert cli.main(quick) == 70
    (view,) = Watcher("runs").runs()
    assert (view.name, view.state, view.problem) == ("mine", "failed", "no luck")
    monkeypatch.setattr(linear_expansion.LinearExpansion, "outcomes", original)
    assert cli.main(quick) == 0
    assert [path.name for path in Path("runs").iterdir()] == ["mine"]
    (view,) = Watcher("runs").runs()
    assert (view.state, view.has_report) == ("finished", True)
    assert capsys.readouterr().out.startswith("E-linear")
