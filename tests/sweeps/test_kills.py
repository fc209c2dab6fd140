"""Killed at any moment and continued: the same results bit by bit, nothing finished computed twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from drive import CONFIGURATIONS
from inline import Inline, contents, counts
from tiny import Tiny

from isthmus.sweeps import read, sweep
from isthmus.sweeps.places import RUNS, is_key

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def finished(folder: Path) -> dict[str, int]:
    """The Runs that are there, with the time of their folder, which is another if one is written again."""
    if not (folder / RUNS).is_dir():
        return {}
    return {p.name: p.stat().st_mtime_ns for p in (folder / RUNS).iterdir() if is_key(p.name)}


def test_driver_killed_twice(tmp_path):
    """The driver is a child of this process that computes by itself: killing it takes no time."""
    grid, generator = {"depth": "1:12", "slow": [0.03]}, random.Random(5)
    sweep(Tiny, grid, seeds=2, out=tmp_path / "whole", engine=Inline())
    once = counts()
    seen, settled = {}, {}
    for _ in range(2):
        with warnings.catch_warnings():
            # Newer Pythons warn of threads, which this process has none of that matter to the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            sweep(Tiny, grid, seeds=2, out=tmp_path / "killed", engine=Inline())
            os._exit(0)
        while len(finished(tmp_path / "killed")) <= len(seen) + 2:
            time.sleep(0.002)
        time.sleep(0.1 * generator.random())
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        now = finished(tmp_path / "killed")
        assert seen.items() <= now.items(), "what is finished stays as it is"
        seen = now
        settled |= {key: counts()[key] for key in seen if key not in settled}
        found = read(tmp_path / "killed")
        assert set(found.counts) <= {"done", "stale", "waiting"}
        assert found.counts["done"] == len(seen)
        assert len(found.frame) == 24
    found = sweep(Tiny, grid, seeds=2, out=tmp_path / "killed", engine=Inline())
    assert found.counts == {"done": 24}
    assert seen.items() <= finished(tmp_path / "killed").items()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    now = counts()
    assert settled.items() <= now.items(), "nothing finished is computed again"
    assert sum(now.values()) <= 2 * sum(once.values()) + 2, "a kill costs what was on its way"


def workers_of(driver: int) -> list[int]:
    """Processes that a driver started to compute."""
    try:
        children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    except OSError:
        return []
    found = []
    for pid in map(int, children):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"spawn_main" in line:
            found.append(pid)
    return found


def gone(pids: list[int], seconds: float) -> bool:
    """Whether all of these have ended before ``seconds`` are over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}/exe").exists() and _running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name("drive.py")), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find the workers")
def test_driver_and_workers_killed_ten_times(tmp_path, capsys):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    assert start(whole).wait() == 0
    one = time.monotonic() - began
    generator, seen, told = random.Random(11), {}, []
    driver = start(killed)
    try:
        for number in range(10):
            # After the first new result, so that ten kills do not only hit the loading of libraries; then at random.
            while len(finished(killed)) <= len(seen) and driver.poll() is None:
                time.sleep(0.02)
            time.sleep(1.5 * generator.random())
            assert driver.poll() is None, f"finished after {number} kills: make the trainings longer"
            workers = workers_of(driver.pid)
            if workers and generator.random() < 0.5:
                os.kill(generator.choice(workers), signal.SIGKILL)
                told.append("worker")
            else:
                driver.kill()
                driver.wait()
                told.append("driver")
                assert gone(workers, 20.0), "workers end with their driver"
                assert set(read(killed).counts) <= {"done", "stale", "waiting"}
            now = finished(killed)
            assert seen.items() <= now.items(), "what is finished stays as it is"
            seen = now
            if told[-1] == "driver":
                driver = start(killed)
        assert driver.wait() == 0
    finally:
        driver.kill()
        driver.wait()
    assert seen.items() <= finished(killed).items()
    found = read(killed)
    assert found.counts == {"done": CONFIGURATIONS}
    assert contents(killed) == contents(whole)
    seconds = time.monotonic() - began
    with capsys.disabled():
        print(
            f"\nunkilled {one:.0f} s; killed {told}, {len(seen)} of {CONFIGURATIONS} done by then; all {seconds:.0f} s"
        )
