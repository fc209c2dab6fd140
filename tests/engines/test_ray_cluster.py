"""The Ray engine on a cluster whose nodes die: the same results as on this machine alone, bit by bit."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import isthmus
from isthmus.engines import ray as engine_module
from isthmus.engines.base import computed, execute
from isthmus.engines.ray import RayExecutor
from ray_cluster import PATIENCE, cluster
from ray_toys import Toy, toy_task

ray = pytest.importorskip("ray", reason="Ray is an extra")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    # Ray leaves pipes and files of the processes that it started to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    return folder


def wait_for(condition, what):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def killable() -> list[dict]:
    """Nodes that compute and are not the one that this process is connected by."""
    mine = ray.get_runtime_context().get_node_id()
    return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != mine and node["Resources"].get("CPU")]


def test_a_sweep_loses_a_node(home, tmp_path):
    """F-bn-1 over depths 4…30, three seeds, on a head and three nodes of which one is killed midway."""
    options = {"seeds": 3, "quick": True, "together": 1, "base": {"adam_steps": 60, "steps": 30}}
    grid = {"depth": "4:30:2"}
    local = isthmus.sweep("F-bn-1", grid, out=tmp_path / "local", workers=1, **options)
    killed = []

    def kill_midway(made):
        runs = tmp_path / "ray" / "runs"
        wait_for(lambda: runs.is_dir() and len(list(runs.iterdir())) >= 10, "no results")
        ip = killable()[0]["NodeManagerAddress"]
        made.kill(ip)
        killed.append((ip, len(list(runs.iterdir()))))

    with cluster(home, 3) as made:
        killer = threading.Thread(target=kill_midway, args=[made])
        killer.start()
        found = isthmus.sweep("F-bn-1", grid, out=tmp_path / "ray", engine="ray", address=made.address, **options)
        killer.join()
        assert not ray.is_initialized()
        # The cluster goes on without us.
        wait_for(lambda: made.alive() == {"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} - {killed[0][0]}, "nodes")
    assert len(killed) == 1 and killed[0][1] < 42, "the node must be killed before the end"
    assert local.counts == found.counts == {"done": 42}
    assert set(local.frame.index) == set(found.frame.index)
    for key in local.frame.index:
        here, there = local.run(key), found.run(key)
        assert set(here.arrays) == set(there.arrays)
        for name, array in here.arrays.items():
            assert array.dtype == there.arrays[name].dtype
            assert array.tobytes() == there.arrays[name].tobytes(), (key, name)


def test_lost_results_wrong_nodes_and_poison(home, tmp_path, monkeypatch):
    """What a node computed when it died is computed again; a node with another isthmus computes nothing."""
    monkeypatch.setattr(engine_module, "RENEWED_AFTER", 3)  # so that processes are renewed too
    # A copy whose version is the same and whose source is not.
    other, marks = tmp_path / "other", tmp_path / "marks"
    marks.mkdir()
    shutil.copytree(Path(isthmus.__file__).parent, other / "isthmus", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "isthmus" / "runs.py").open("a", encoding="utf-8") as stream:
        stream.write("\n# another source\n")
    large = [Toy(seed=seed, size=400, folder=str(marks), seconds=2.0) for seed in range(12)]
    fatal, beside = Toy(what="die", folder=str(marks)), Toy(seed=99, folder=str(marks))
    with cluster(home, 3, {"127.0.0.9": {"PYTHONPATH": str(other)}}) as made:
        tasks = [toy_task(toy) for toy in large] + [toy_task(fatal, beside)]
        with RayExecutor(made.address) as executor:
            assert executor.places == 8
            results = computed(executor, tasks)
            got = [next(results)]
            # Nothing is fetched meanwhile but what was handed over: the node that computes most of it is killed.
            wait_for(lambda: len(list(marks.glob("done.*"))) >= 4, "too little was computed")
            victim = killable()[0]
            if victim["NodeManagerAddress"] == "127.0.0.9":
                victim = killable()[1]
            made.kill(victim["NodeManagerAddress"])
            wrong = next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == "127.0.0.9")
            got += results
    found = {one.key: one for one in got}
    assert len(found) == len(got) == 14
    for toy in large:
        run, expected = found[toy.key].run, execute(toy_task(toy))[0].run
        assert run is not None and expected is not None
        assert np.array_equal(run.arrays["A"], expected.arrays["A"])
    begun = Counter(path.name.split(".")[0] for path in marks.iterdir() if not path.name.startswith("done."))
    assert max(begun[toy.key] for toy in large) >= 2, "nothing was computed again: the test tests nothing"
    assert found[beside.key].run is not None
    assert found[fatal.key].failure is not None and found[fatal.key].failure.kind == "WorkerLost"
    assert not list(marks.glob(f"*{wrong}"))
    assert not ray.is_initialized()
