"""The Ray engine on a cluster whose nodes die: the same results as on this machine alone, bit by bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

import isthmus
from isthmus.engines import ray as engine_module
from isthmus.engines.base import execute
from isthmus.engines.ray import RayEngine
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
    """Results that a node held when it died are computed again; a node with another isthmus computes nothing."""
    monkeypatch.setattr(engine_module, "RENEWED_AFTER", 3)  # so that processes are renewed too
    # A copy whose version is the same and whose source is not.
    other, marks = tmp_path / "other", tmp_path / "marks"
    marks.mkdir()
    shutil.copytree(Path(isthmus.__file__).parent, other / "isthmus", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "isthmus" / "runs.py").open("a", encoding="utf-8") as stream:
        stream.write("\n# another source\n")
    large = [Toy(seed=seed, size=400, folder=str(marks), seconds=0.3) for seed in range(12)]
    fatal, beside = Toy(what="die", folder=str(marks)), Toy(seed=99, folder=str(marks))
    with cluster(home, 3, {"127.0.0.9": {"PYTHONPATH": str(other)}}) as made:
        tasks = [toy_task(toy) for toy in large] + [toy_task(fatal, beside)]
        engine = RayEngine(made.address, retries=2)
        assert engine.places() == 4
        results = engine.run(tasks, lambda task, where: None)
        got = [next(results)]
        # Nothing is fetched meanwhile: what the engine has handed to Ray is computed and kept by the nodes.
        # Of the eight tasks that it has, the wrong node may have sent back some.
        wait_for(lambda: len(list(marks.glob("done.*"))) >= 4, "too little was computed")
        time.sleep(2.0)
        held = Counter(path.name.split(".")[3] for path in marks.glob("done.*"))
        victim = max(killable(), key=lambda node: held[node["NodeID"]])
        assert held[victim["NodeID"]] >= 1
        made.kill(victim["NodeManagerAddress"])
        wrong = next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == "127.0.0.9")
        got += results
    found = {one.key: one for one in got}
    assert len(found) == len(got) == 14
    for toy in large:
        run, expected = found[toy.key].run, execute(toy_task(toy))[0].run
        assert run is not None and expected is not None
        assert np.array_equal(run.arrays["A"], expected.arrays["A"])
    executions = Counter(path.name.split(".")[1] for path in marks.glob("done.*"))
    assert max(executions[toy.key] for toy in large) >= 2, "nothing was computed again: the test tests nothing"
    assert found[beside.key].run is not None
    assert found[fatal.key].failure is not None and found[fatal.key].failure.kind == "WorkerLost"
    assert not list(marks.glob(f"*{wrong}"))
    assert not ray.is_initialized()


def test_private_twice_in_one_process(home):
    """The second private Ray has another token and another folder than the first."""
    for seed in (0, 1):
        found = list(RayEngine(workers=1).run([toy_task(Toy(seed=seed))], lambda task, where: None))
        assert [one.run.key for one in found if one.run] == [Toy(seed=seed).key]
        assert not ray.is_initialized()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_driver_leaves_no_process(home, number):
    """Of a private Ray nothing runs on when its driver is gone, and after Ctrl-C no folder is left either."""
    script = """
        import signal
        from ray_toys import Toy, toy_task
        from isthmus.engines.ray import RayEngine
        # A process in the background of a shell ignores Ctrl-C; this one must not.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sleepers = [toy_task(Toy(seed=seed, seconds=3000.0)) for seed in (0, 1)]
        list(RayEngine(workers=2).run(sleepers, lambda task, where: print("begun", flush=True)))
    """
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="rk-") as folder:
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder}
        command = [sys.executable, "-c", textwrap.dedent(script)]
        with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as driver:
            assert driver.stdout is not None and driver.stderr is not None
            assert driver.stdout.readline() == "begun\n", driver.stderr.read()
            family = psutil.Process(driver.pid).children(recursive=True)
            assert len(family) >= 4  # two daemons, two workers
            assert list(Path(folder).iterdir())
            driver.send_signal(number)
            try:
                driver.wait(PATIENCE)
            finally:
                driver.kill()
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
        if number == signal.SIGINT:
            assert not list(Path(folder).iterdir())
