"""The local engine: processes that fail, die, and end with whoever started them."""

from __future__ import annotations

import os
import pickle
import time

import numpy as np
import pytest
from tiny import Tiny

from isthmus import IsthmusError
from isthmus.engines.base import Failure, Finished, Task, alone, execute, lost
from isthmus.engines.local import AT_LEAST, LocalEngine, _environment
from isthmus.engines.machine import cores, free_memory


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
    results = LocalEngine(1, retries=0).run(
        [task(poison), task(good), task(bad), task(slow)], lambda t, where: begun.append(t.keys)
    )
    for one in results:
        assert one.key not in found
        found[one.key] = one
        if len(found) == 3:
            break
    pid = found[good.key].pid
    assert pid != os.getpid()
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < 60.0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert dict(os.environ) == before
    assert found[poison.key].failure.kind == "WorkerLost"
    assert found[bad.key].failure.kind == "ArithmeticError"
    assert same(found[good.key].run, execute(task(good))[0].run)
    assert found[good.key].run.provenance["threads"] == 1
    assert begun == [(poison.key,), (good.key,), (bad.key,), (slow.key,)]


@pytest.mark.slow
def test_of_a_batch_only_who_is_to_blame_fails():
    poison, mate = Tiny(does="die", grouped=True), Tiny(lam=0.5, grouped=True)
    once = Tiny(does="die once")
    begun, found = [], {}
    for one in LocalEngine(2, retries=2).run([task(poison, mate), task(once)], lambda t, where: begun.append(t.keys)):
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
    assert LocalEngine().places() == 8
    assert LocalEngine(threads=3).places() == 2
    assert LocalEngine(threads=16).places() == 1
    monkeypatch.setattr("isthmus.engines.local.free_memory", lambda: 3 * AT_LEAST)
    assert LocalEngine().places() == 3
    assert LocalEngine(5).places() == 5, "whoever names a number gets it"
    assert LocalEngine().places([task(Tiny(), memory=10 * AT_LEAST)]) == 1
    for wrong in ({"workers": 0}, {"threads": 0}, {"retries": -1}):
        with pytest.raises(IsthmusError, match="must be an integer"):
            LocalEngine(**wrong)


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
    both = task(Tiny(), Tiny(lam=0.5), threads=3)
    parts = alone(both)
    assert [one.keys for one in parts] == [(key,) for key in both.keys]
    assert {one.threads for one in parts} == {3}
    assert [one.failure.kind for one in lost(both, attempts=3, host="h", told="gone")] == ["WorkerLost"] * 2
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
