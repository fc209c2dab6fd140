"""The Ray engine on a private Ray of two processors. Nodes and their loss: test_ray_cluster.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import isthmus
from isthmus.engines import ray as engine_module
from isthmus.engines.base import execute
from isthmus.engines.ray import MISMATCH, NO_NODE, RayEngine
from isthmus.engines.ray_session import _checked_address, session
from ray_toys import Toy, toy_task

pytest.importorskip("ray", reason="Ray is an extra")
# Ray leaves pipes and files of the processes that it started to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def nothing(task, where):
    pass


def ray_processes() -> list[psutil.Process]:
    """Processes of a Ray that this process started."""
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """One private Ray for all, used by engines as the connection that exists; afterwards no trace of it."""
    home, patch = tmp_path_factory.mktemp("home"), pytest.MonkeyPatch()
    patch.setenv("HOME", str(home))
    state = dict(os.environ), signal.getsignal(signal.SIGTERM), {process.pid for process in ray_processes()}
    with session(None, cpus=2, store=2**27, retries=1, variables=engine_module._threads(2)) as kind:
        import ray

        assert kind == "private"
        assert (dict(os.environ), signal.getsignal(signal.SIGTERM)) == state[:2]
        folder = Path(ray.get_runtime_context().get_temp_dir())
        assert folder.is_dir()
        assert ray.nodes()[0]["NodeManagerAddress"].startswith("127.")
        yield ray
    assert not ray.is_initialized()
    assert not folder.exists()
    assert not (home / ".ray").exists()  # where Ray would keep a token
    assert {process.pid for process in ray_processes() if process.is_running()} == state[2]
    patch.undo()


def test_results_failures_and_lost_workers(here, tmp_path, capfd, monkeypatch):
    fine = [Toy(seed=seed, size=size) for seed, size in enumerate((5, 300, 6, 7, 8, 9))]
    failing, mortal, fatal = (Toy(what=what, folder=str(tmp_path)) for what in ("fail", "die once", "die"))
    tasks = [toy_task(toy, threads=2) for toy in (fatal, failing, mortal, *fine)]
    assert RayEngine().places(tasks) == 2
    begun, most, submit = [], [], engine_module._Flight._submit

    def watched(flight, task):
        submit(flight, task)
        most.append(len(flight.aboard))

    monkeypatch.setattr(engine_module._Flight, "_submit", watched)
    found = list(RayEngine(retries=1).run(tasks, lambda task, where: begun.append((task.keys, where))))
    results = {one.key: one for one in found}
    assert len(results) == len(found) == 9
    for toy in fine:
        run, expected = results[toy.key].run, execute(toy_task(toy, threads=2))[0].run
        assert run is not None and expected is not None
        assert run.key == toy.key
        for name in ("A", "values"):
            assert np.array_equal(run.arrays[name], expected.arrays[name])
        assert run.arrays["threads"].tolist() == [2, 2]
        assert results[toy.key].attempt == 1 and results[toy.key].pid != os.getpid()
    failure = results[failing.key].failure
    assert (failure.kind, failure.message) == ("ArithmeticError", "told to fail")
    assert "ray_toys.py" in failure.traceback
    assert results[mortal.key].run is not None and results[mortal.key].attempt == 2
    assert results[fatal.key].failure.kind == "WorkerLost"
    assert "2 times" in results[fatal.key].failure.message
    assert {key for keys, _ in begun for key in keys} == set(results)
    assert all(where for _, where in begun)
    assert max(most) <= 4  # two processors, and as many again
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_other_versions_compute_nothing(here, tmp_path, monkeypatch):
    wanted = {**engine_module.versions_here(), "torch": "1.0.0"}
    monkeypatch.setattr(engine_module, "versions_here", lambda: wanted)
    tasks = [toy_task(Toy(seed=seed, folder=str(tmp_path)), threads=2) for seed in range(6)]
    found = list(RayEngine().run(tasks, nothing))
    assert sorted(one.key for one in found) == sorted(task.keys[0] for task in tasks)
    for one in found:
        assert one.failure is not None and one.failure.kind == MISMATCH
        assert "torch" in one.failure.message and "not 1.0.0" in one.failure.message
        assert "numpy" not in one.failure.message
    assert not list(tmp_path.iterdir())


def test_a_repeated_task_may_meet_the_wrong_node(here):
    """Ray repeats what was lost on any node, and refuses another number of items than before."""
    items = list(engine_module.computation()({"torch": "1.0.0"}, [], {"keys": ("a", "b")}, None))
    assert len(items) == 3 and all(item["node"] == here.nodes()[0]["NodeID"] for item in items)
    right, toys = {**items[0], "versions": engine_module.versions_here()}, [Toy(seed=0), Toy(seed=1)]
    stream = iter([right, execute(toy_task(toys[0]))[0], {**items[2], "versions": {}}])
    flight = engine_module._Flight(RayEngine(), here, nothing)
    flight.ray = SimpleNamespace(exceptions=here.exceptions, get=lambda item: item)
    flight.aboard[stream] = engine_module._Aboard(toy_task(*toys))
    found = [one.key for _ in range(3) for one in flight._next(stream)]
    assert found == [toys[0].key]
    assert [task.keys for task in flight.queue] == [(toys[1].key,)]
    assert not flight.aboard and list(flight.avoided) == [items[0]["node"]]


def test_what_no_node_holds(here):
    small, large = Toy(seed=1), Toy(seed=2)
    found = list(
        RayEngine(patience=0.0).run([toy_task(large, cpus=64.0, threads=2), toy_task(small, threads=2)], nothing)
    )
    results = {one.key: one for one in found}
    assert results[small.key].run is not None
    assert results[large.key].failure.kind == NO_NODE
    assert "64 CPUs" in results[large.key].failure.message


def test_the_connection_that_exists_is_kept(here):
    with pytest.raises(isthmus.IsthmusError, match="must not be connected to another Ray"):
        next(RayEngine("127.0.0.9:1").run([toy_task(Toy())], nothing))
    with pytest.raises(isthmus.IsthmusError, match="can be set only by whoever connects"):
        next(RayEngine(runtime_env={"env_vars": {"A": "1"}}).run([toy_task(Toy())], nothing))
    assert here.is_initialized()


@pytest.mark.slow
def test_data_are_stored_once(here, monkeypatch):
    """Six tasks share one table, and Ray gets it once."""
    data = {"X": np.zeros((4, 2))}
    puts, put = [], here.put
    monkeypatch.setattr(here, "put", lambda value: puts.append(value) or put(value))
    tasks = [toy_task(Toy(seed=seed), data=data, threads=2) for seed in range(6)]
    assert sum(one.run is not None for one in RayEngine().run(tasks, nothing)) == 6
    assert len(puts) == 1


def test_closing_stops_the_workers(here, tmp_path):
    sleepers = [Toy(seed=seed, what="sleep", folder=str(tmp_path), seconds=600.0) for seed in (0, 1)]
    run = RayEngine().run([toy_task(Toy(seed=5), threads=2), *(toy_task(toy, threads=2) for toy in sleepers)], nothing)
    assert next(run).run is not None
    pids: list[int] = []
    until = time.monotonic() + 60
    while not pids and time.monotonic() < until:
        time.sleep(0.05)
        pids = [int(path.name.split(".")[1]) for path in tmp_path.iterdir()]
    assert pids
    run.close()
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("address", "message"),
    [("ray://10.0.0.1:10001", "ray job submit"), ("nowhere", "host:port"), ("127.0.0.1:1", "within reach")],
)
def test_addresses(address, message):
    with pytest.raises(isthmus.IsthmusError, match=message):
        _checked_address(address)


def test_no_tasks_no_ray():
    assert list(RayEngine("127.0.0.9:1").run([], nothing)) == []


def test_a_closed_connection_starts_no_other():
    """Every call to Ray would start one by itself: an iterator that is collected late must not make any."""
    gone = SimpleNamespace(is_initialized=lambda: False, remote=lambda **options: lambda function: function)
    flight = engine_module._Flight(RayEngine(), gone, nothing)
    flight.queue.append(toy_task(Toy()))
    with pytest.raises(isthmus.IsthmusError, match="connection to Ray must last"):
        next(flight.results())
    flight.aboard["stream"] = engine_module._Aboard(toy_task(Toy()))
    flight.cancel()
    assert not flight.aboard


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(isthmus.IsthmusError, match=r'pip install "isthmus\[ray\]"'):
        RayEngine()


@pytest.mark.parametrize(
    ("values", "message"),
    [({"retries": -1}, "`retries` must be"), ({"workers": 0}, "`workers`"), ({"patience": -1.0}, "`patience`")],
)
def test_wrong_arguments(values, message):
    with pytest.raises(isthmus.IsthmusError, match=message):
        RayEngine(**values)
