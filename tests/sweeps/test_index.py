"""The index: made from the folders at will, never believed against them, quick to list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from inline import Inline
from tiny import Tiny

from isthmus._inside import Inside
from isthmus.runs import Outcome, Run
from isthmus.sweeps import read, sweep
from isthmus.sweeps.index import append, changed, read_index
from isthmus.sweeps.places import INDEX, RUNS
from isthmus.sweeps.reading import look
from isthmus.sweeps.records import make_index, read_plan
from isthmus.sweeps.subjects import OfExperiment

GRID = {"depth": [4, 5, 6]}


def synthetic(folder: Path, depths: int, ridges: int, seeds: int, monkeypatch) -> int:
    """A sweep of so many runs, written without being computed."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    grid = {"depth": range(1, depths + 1), "ridge": [0.001 * i for i in range(1, ridges + 1)]}
    with pytest.raises(KeyboardInterrupt):
        sweep(Tiny, grid, seeds=seeds, out=folder, engine=Inline(stop_after=0))
    source = Tiny.single().run(figures=False).provenance
    every = OfExperiment(Tiny.single()).plan(grid, seeds, {}).configurations()
    rng = np.random.default_rng(0)
    for key, one in every.items():
        measured = {"rank": int(rng.integers(0, 6)), "norm": float(rng.random()), "training": "converged"}
        arrays = {"noise": rng.random(5), "rank": np.array(measured["rank"])}
        run = Run("T-tiny", one.parameters, arrays, [Outcome("finite", "agrees")], {**source, "measured": measured})
        assert run.key == key
        run.write(folder / RUNS / key)
    return len(every)


def listed(folder: Path, *arguments: str) -> tuple[dict, float]:
    """What `isthmus runs` says in a process of its own, and how long that took."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "isthmus", "runs", str(folder), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(done.stdout), time.perf_counter() - began


def check_many(folder: Path, number: int, capsys) -> None:
    began = time.perf_counter()
    index = look(folder, rebuild=True)
    rebuilt = time.perf_counter() - began
    assert len(index.finished) == number
    assert not index.problems
    # The clock of this machine: what starting Python and the libraries of a command line takes.
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "isthmus", "--version"], capture_output=True, check=True)
    start = time.perf_counter() - began
    found, seconds = listed(folder, "--where", "rank>2", "--sort", "norm", "--limit", "20")
    frame = read(folder).frame
    right = frame[frame["rank"] > 2].sort_values("norm")
    assert found["matching"] == len(right)
    assert [row["key"] for row in found["runs"]] == list(right.index[:20])
    with capsys.disabled():
        print(f"\n{number} runs: index rebuilt in {rebuilt:.2f} s, listed in {seconds:.2f} s (start: {start:.2f} s)")
    # Ten thousand take about as long as the start itself on an idle machine: this fails if it is not the index alone.
    assert seconds < 6 * start + 1.0
    assert rebuilt < 60.0 * max(1.0, start)


def test_five_hundred(tmp_path, monkeypatch, capsys):
    assert synthetic(tmp_path, 10, 10, 5, monkeypatch) == 500
    check_many(tmp_path, 500, capsys)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand(tmp_path, monkeypatch, capsys):
    assert synthetic(tmp_path, 20, 50, 10, monkeypatch) == 10_000
    check_many(tmp_path, 10_000, capsys)


def test_listing_imports_nothing_heavy(tmp_path):
    sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    script = (
        "import sys; from isthmus.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules); assert not heavy, heavy; sys.exit(code)"
    )
    command = [sys.executable, "-c", script, "runs", str(tmp_path), "--where", "depth>4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 of 3 configurations of T-tiny: 3 done" in done.stdout


def test_the_folders_decide(tmp_path):
    found = sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    first, second, _ = found.frame.index
    index = look(tmp_path)
    assert changed(Inside(tmp_path), index) == set()
    made = make_index(Inside(tmp_path), read_plan(Inside(tmp_path)))
    assert (made.head, made.planned, made.finished) == (index.head, index.planned, index.finished)
    # Gone, and moved to another time: only the first is news.
    (tmp_path / RUNS / first).rename(tmp_path / "aside")
    os.utime(tmp_path / RUNS / second, (1e9, 1e9))
    assert changed(Inside(tmp_path), index) == {first}
    assert read(tmp_path).counts == {"done": 2, "waiting": 1}
    (tmp_path / "aside").rename(tmp_path / RUNS / first)
    assert read(tmp_path).counts == {"done": 3}
    # Other contents under an old time are noticed by who reads all.
    (tmp_path / RUNS / second / "arrays.safetensors").write_bytes(b"nothing")
    assert second in look(tmp_path, rebuild=True).problems
    seen = read(tmp_path)
    assert seen.frame.loc[second, "state"] == "waiting"
    assert any(f"{second} is unreadable" in line for line in seen.problems)


@pytest.mark.parametrize("damage", ["absent", "torn", "garbage", "half a line", "another plan"])
def test_a_damaged_index_is_made_again(tmp_path, damage):
    found = sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    path = tmp_path / INDEX
    content = path.read_bytes()
    if damage == "absent":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(content[:-20])
    elif damage == "garbage":
        path.write_bytes(os.urandom(1000))
    elif damage == "half a line":
        path.write_bytes(content[:-20])
        append(Inside(tmp_path), found.frame.index[0], read_index(Inside(tmp_path)).finished[found.frame.index[0]])
    elif damage == "another plan":
        path.write_bytes(content.replace(b'"plan":"', b'"plan":"0'))
    assert read(tmp_path).frame.equals(found.frame)
    again = read_index(Inside(tmp_path))
    assert again is not None
    assert len(again.finished) == 3


def test_a_run_without_measures_is_measured_by_its_experiment(tmp_path):
    one = {"depth": [4], "ridge": [1e-3]}
    base = Tiny.single()
    found = sweep(Tiny, one, out=tmp_path, engine=Inline())
    key = found.frame.index[0]
    run = Run.read(tmp_path / RUNS / key)
    bare = {name: value for name, value in run.provenance.items() if name != "measured"}
    Run(run.experiment, run.parameters, run.arrays, run.outcomes, bare).write(tmp_path / RUNS / key)
    row = read(tmp_path).frame.loc[key]
    assert row["rank"] == 1
    assert row["norm"] == base.measured(run.arrays)["norm"]
