"""Ray as an executor, on a connection to a Ray of two processors. Nodes and their loss: test_ray_cluster.py."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time

import numpy as np
import psutil
import pytest

import isthmus
from isthmus.engines.base import computed, execute
from isthmus.engines.ray import RayExecutor, _connect
from ray_toys import Toy, toy_task

pytest.importorskip("ray", reason="Ray is an extra")
# Ray leaves pipes and files of the processes that it started to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The connection that a user has."""
    import ray

    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Ray lets its processes be nice to all others: beside other tests they would hardly move.
    patch.setenv("RAY_worker_niceness", "0")
    # Not a folder of pytest's: the path of a socket in it would be too long.
    with tempfile.TemporaryDirectory(prefix="rt-", ignore_cleanup_errors=True) as folder:
        quiet = {"log_to_driver": False, "include_dashboard": False, "object_store_memory": 2**27}
        ray.init(address="local", num_cpus=2, _temp_dir=folder, **quiet)
        yield ray
        ray.shutdown()
    patch.undo()


def test_results_failures_and_lost_workers(here, tmp_path):
    fine = [Toy(seed=seed, size=size) for seed, size in enumerate((5, 300, 6, 7, 8, 9))]
    failing, mortal, fatal = (Toy(what=what, folder=str(tmp_path)) for what in ("fail", "die once", "die"))
    tasks = [toy_task(toy) for toy in (fatal, failing, mortal, *fine)]
    begun = []
    handler = signal.getsignal(signal.SIGTERM)
    with RayExecutor() as executor:
        # Two processors, and as many again, that none waits.
        assert executor.places == 4
        found = list(computed(executor, tasks, lambda task: begun.append(task.keys), retries=1))
    with RayExecutor(threads=2) as executor:
        (threads,) = computed(executor, [toy_task(Toy(seed=77))])
    assert threads.run.arrays["threads"].tolist() == [2, 2]
    assert here.is_initialized() and signal.getsignal(signal.SIGTERM) is handler
    results = {one.key: one for one in found}
    assert len(results) == len(found) == 9
    for toy in fine:
        run, expected = results[toy.key].run, execute(toy_task(toy))[0].run
        assert run is not None and expected is not None
        assert run.key == toy.key
        for name in ("A", "values"):
            assert np.array_equal(run.arrays[name], expected.arrays[name])
        assert run.arrays["threads"].tolist() == [1, 1]
        assert results[toy.key].attempt == 1 and results[toy.key].pid != os.getpid()
    failure = results[failing.key].failure
    assert (failure.kind, failure.message) == ("ArithmeticError", "told to fail")
    assert "ray_toys.py" in failure.traceback
    assert results[mortal.key].run is not None and results[mortal.key].attempt == 2
    assert results[fatal.key].failure.kind == "WorkerLost"
    assert "2 times" in results[fatal.key].failure.message
    assert {key for keys in begun for key in keys} == set(results)


def test_other_versions_compute_nothing(here, tmp_path):
    tasks = [toy_task(Toy(seed=seed, folder=str(tmp_path))) for seed in range(6)]
    with RayExecutor() as executor:
        executor._versions = {**executor._versions, "torch": "1.0.0"}
        found = list(computed(executor, tasks))
    assert sorted(one.key for one in found) == sorted(task.keys[0] for task in tasks)
    for one in found:
        assert one.failure is not None and one.failure.kind == "VersionMismatch"
        assert "torch" in one.failure.message and "not 1.0.0" in one.failure.message
        assert "numpy" not in one.failure.message
    assert not list(tmp_path.iterdir())


def test_what_no_node_holds(here):
    with pytest.raises(isthmus.IsthmusError, match="must have 64 processors"):
        RayExecutor(threads=64, patience=0.0)
    assert here.is_initialized()


def test_the_connection_that_exists_is_kept(here):
    with pytest.raises(isthmus.IsthmusError, match="must not be connected to another Ray"):
        RayExecutor("127.0.0.9:1")
    with pytest.raises(isthmus.IsthmusError, match="can be set only by whoever connects"):
        RayExecutor(runtime_env={"env_vars": {"A": "1"}})
    assert here.is_initialized()


def test_data_are_stored_once(here, monkeypatch):
    """Six tasks share one table, and Ray gets it once."""
    data = {"X": np.zeros((4, 2))}
    puts, put = [], here.put
    monkeypatch.setattr(here, "put", lambda value: puts.append(value) or put(value))
    tasks = [toy_task(Toy(seed=seed), data=data) for seed in range(6)]
    with RayExecutor() as executor:
        assert sum(one.run is not None for one in computed(executor, tasks)) == 6
    assert len(puts) == 1


def test_closing_stops_the_workers(here, tmp_path):
    sleepers = [Toy(seed=seed, what="sleep", folder=str(tmp_path), seconds=600.0) for seed in (0, 1)]
    executor, pids, until = RayExecutor(), [], time.monotonic() + 60
    futures = [executor.submit(execute, toy_task(toy)) for toy in sleepers]
    while not pids and time.monotonic() < until:
        time.sleep(0.05)
        pids = [int(path.name.split(".")[1]) for path in tmp_path.iterdir()]
    assert pids
    executor.shutdown(cancel_futures=True)
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert all(future.done() for future in futures)


@pytest.mark.parametrize(
    ("address", "message"),
    [("ray://10.0.0.1:10001", "ray job submit"), ("nowhere", "host:port"), ("127.0.0.1:1", "within reach")],
)
def test_addresses(address, message):
    with pytest.raises(isthmus.IsthmusError, match=message):
        _connect(None, address, {})


def test_a_connection_that_is_gone(here, monkeypatch):
    """A call to Ray would start one by itself: nothing may be called then."""
    with RayExecutor() as executor:
        monkeypatch.setattr(here, "is_initialized", lambda: False)
        with pytest.raises(isthmus.IsthmusError, match="connection to Ray must last"):
            list(computed(executor, [toy_task(Toy())]))
        monkeypatch.undo()


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(isthmus.IsthmusError, match=r'pip install "isthmus\[ray\]"'):
        RayExecutor()


@pytest.mark.parametrize(
    ("values", "message"),
    [({"threads": 0}, "`threads` must be"), ({"workers": 0}, "`workers`"), ({"patience": -1.0}, "`patience`")],
)
def test_wrong_arguments(values, message):
    with pytest.raises(isthmus.IsthmusError, match=message):
        RayExecutor(**values)
