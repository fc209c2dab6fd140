"""The executor of this machine: processes that fail, die, and end with whoever started them."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from tiny import Tiny

from isthmus import IsthmusError
from isthmus.engines.base import Failure, Finished, Task, alone, computed, execute, lost
from isthmus.engines.local import AT_LEAST, Processes, _environment, cores, free_memory


def task(*experiments: Tiny, **more) -> Task:
    parameters = tuple(
        {k: list(v) if isinstance(v, tuple) else v for k, v in e.parameters.items()} for e in experiments
    )
    return Task("T-tiny", parameters, tuple(e.key for e in experiments), home="tiny:Tiny", **more)


def same(run, other) -> bool:
    return {k: v.tobytes() for k, v in run.arrays.items()} == {k: v.tobytes() for k, v in other.arrays.items()}


def test_deaths_cost_only_their_own_task_and_closing_stops_all():
    good, bad = Tiny(depths=(5,)), Tiny(depths=(6,), does="raise")
    poison, slow = Tiny(does="die"), Tiny(slow=100.0)
    begun, found = [], {}
    before = dict(os.environ)
    tasks = [task(poison), task(good), task(bad)]
    with Processes(1) as executor:
        for one in computed(executor, tasks, lambda t: begun.append(t.keys), retries=0):
            assert one.key not in found
            found[one.key] = one
        pid = found[good.key].pid
        assert pid != os.getpid()
        began, left = time.monotonic(), executor.submit(execute, task(slow))
        while not left.running():
            time.sleep(0.01)
        executor.shutdown(cancel_futures=True)
        assert isinstance(left.exception(), BrokenExecutor)
        assert time.monotonic() - began < 60.0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert dict(os.environ) == before
    assert found[poison.key].failure.kind == "WorkerLost"
    assert found[bad.key].failure.kind == "ArithmeticError"
    assert same(found[good.key].run, execute(task(good))[0].run)
    assert found[good.key].run.provenance["threads"] == 1
    assert begun == [(poison.key,), (good.key,), (bad.key,)]


@pytest.mark.slow
def test_of_a_batch_only_who_is_to_blame_fails():
    poison, mate = Tiny(does="die", grouped=True), Tiny(lam=0.5, grouped=True)
    once = Tiny(does="die once")
    begun, found = [], {}
    with Processes(2) as executor:
        for one in computed(executor, [task(poison, mate), task(once)], lambda t: begun.append(t.keys)):
            assert one.key not in found
            found[one.key] = one
    assert found[poison.key].failure.kind == "WorkerLost"
    assert "lost 3 times" in found[poison.key].failure.message
    assert found[mate.key].run is not None
    assert found[mate.key].run.provenance.get("together") is None
    assert found[once.key].attempt == 2
    assert begun.count((poison.key,)) == 2


def test_how_many_workers(monkeypatch):
    monkeypatch.setattr("isthmus.engines.local.cores", lambda: 8)
    monkeypatch.setattr("isthmus.engines.local.free_memory", lambda: None)
    assert Processes().places == 8
    assert Processes(threads=3).places == 2
    assert Processes(threads=16).places == 1
    monkeypatch.setattr("isthmus.engines.local.free_memory", lambda: 3 * AT_LEAST)
    assert Processes().places == 3
    assert Processes(5).places == 5, "whoever names a number gets it"
    for wrong in ({"workers": 0}, {"threads": 0}):
        with pytest.raises(IsthmusError, match="must be an integer"):
            Processes(**wrong)


def test_any_executor_will_do():
    """As those of the standard library and of Dask: what it raises is the failure of its task, or its retry."""
    good, mate, gone = Tiny(depths=(5,)), Tiny(depths=(6,)), Tiny(depths=(7,))

    class Elsewhere(ThreadPoolExecutor):
        def submit(self, fn, one):
            return super().submit(self.lost if gone.key in one.keys else fn, one)

        def lost(self, one):
            raise ConnectionError("the scheduler gave it up")

    with Elsewhere(2) as executor:
        found = {one.key: one for one in computed(executor, [task(good), task(gone, mate)])}
        assert executor.submit(str, task(good)).result(), "it is left open"
    assert same(found[good.key].run, execute(task(good))[0].run) and found[mate.key].run is not None
    assert found[gone.key].failure == Failure(
        "ConnectionError", "the scheduler gave it up", found[gone.key].failure.traceback
    )


def test_an_executor_that_breaks_for_good_is_told():
    """A pool of the standard library does not survive the death of a process; the sweep then says so."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor, pytest.raises(IsthmusError, match="must work"):
        list(computed(executor, [task(Tiny(does="die")), task(Tiny(depths=(5,)))]))


def test_calls_of_processes():
    with Processes(2) as executor:
        assert sorted(executor.map(abs, (-1, 2, -3))) == [1, 2, 3]
        with pytest.raises(ValueError, match="invalid literal"):
            executor.submit(int, "x").result()
        with pytest.raises(RuntimeError, match="cannot be sent"):
            executor.submit(threading.Lock).result()
        with pytest.raises(SystemExit):
            executor.submit(sys.exit, 3).result()
    with pytest.raises(RuntimeError):
        executor.submit(abs, 1)


def test_what_the_machine_has(tmp_path):
    assert 1 <= cores() <= (os.cpu_count() or 1)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    group = tmp_path / "group"
    assert free_memory(meminfo=tmp_path / "meminfo", group=group) == 7 * 1024
    group.mkdir()
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("1000\n")
    assert free_memory(meminfo=tmp_path / "meminfo", group=group) == 4000
    (group / "memory.max").write_text("max\n")
    assert free_memory(meminfo=tmp_path / "nothing", group=group) is None


def test_what_is_sent_between_processes():
    run = Tiny().run(figures=False)
    sent = Finished(run.key, run, None, 1.5, "host", 7, 2)
    back = pickle.loads(pickle.dumps(sent))
    assert back.run.key == run.key
    assert dict(back.run.provenance) == dict(run.provenance)
    assert np.array_equal(back.run.arrays["noise"], run.arrays["noise"])
    assert (back.key, back.failure, back.seconds, back.host, back.pid, back.attempt) == (
        run.key,
        None,
        1.5,
        "host",
        7,
        2,
    )
    failed = Finished("k", None, Failure("ValueError", "no", "trace"), 0.0, "host", 7)
    assert pickle.loads(pickle.dumps(failed)) == failed


def test_tasks():
    both = task(Tiny(), Tiny(lam=0.5), figures=True)
    parts = alone(both)
    assert [one.keys for one in parts] == [(key,) for key in both.keys]
    assert all(one.figures for one in parts)
    assert [one.failure.kind for one in lost(both, attempts=3, why="gone")] == ["WorkerLost"] * 2
    with pytest.raises(IsthmusError, match="one key for each"):
        Task("T-tiny", ({},), ())


def test_another_version_of_the_experiment_is_noticed():
    one = task(Tiny())
    wrong = Task(one.experiment, one.configurations, ("0" * 12,), home=one.home)
    (found,) = execute(wrong)
    assert "must have the key 000000000000" in found.failure.message
    (found,) = execute(Task("T-tiny", one.configurations, one.keys, home="tiny:mark"))
    assert "must be the Experiment T-tiny" in found.failure.message
    (found,) = execute(Task("T-other", one.configurations, one.keys))
    assert "must be one of" in found.failure.message


def test_ctrl_c_is_no_failure(monkeypatch):
    def interrupted(self, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tiny, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(task(Tiny()))


def test_the_environment_is_given_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with _environment({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}):
        assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "2"
    assert os.environ["OMP_NUM_THREADS"] == "5"
    assert "MKL_NUM_THREADS" not in os.environ
