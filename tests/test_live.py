"""The record of a running computation: its lines, its size, and that it never disturbs what it records."""

import errno
import itertools
import json
import os
import random
import time

import numpy as np
import pytest
import torch

from isthmus import _live, discover, problems
from isthmus._live import BURST, LIVE, RATE, LiveRecord, forget, progress_folder
from isthmus._progress import silent


class Clock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def read(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def record(path, **options):
    return LiveRecord(path, sentence="What is it?", command=["demo"], **options)


def kinds(path):
    return [line["kind"] for line in read(path)]


def test_lines_of_a_computation(tmp_path):
    path, clock = tmp_path / "new" / LIVE, Clock()
    with record(path, facts={"resolution": 0.1}, clock=clock) as live, live.beside(silent)(10, "train") as bar:
        clock.now += 1
        bar.advance(3, loss=0.5)
        clock.now += 1
        bar.advance(4, loss=float("nan"), rank=np.float32(2))
    start, zero, first, second, end = read(path)
    assert (start["kind"], start["sentence"], start["command"], start["resolution"]) == (
        "start",
        "What is it?",
        "demo",
        0.1,
    )
    assert start["pid"] == os.getpid() and start["time"] == 1000.0
    assert (zero["kind"], zero["done"], zero["total"], zero["numbers"]) == ("step", 0, 10, {})
    assert (first["label"], first["done"], first["numbers"], first["time"]) == ("train", 3, {"loss": 0.5}, 1001.0)
    assert (second["done"], second["numbers"]) == (7, {"loss": None, "rank": 2.0})
    assert (end["kind"], end["state"], end["error"]) == ("end", "done", "")


def test_the_bar_beside_is_told_all(tmp_path):
    told = []

    class Bar:
        def advance(self, steps=1, **numbers):
            told.append((steps, numbers))

    class Shown:
        def __enter__(self):
            return Bar()

        def __exit__(self, *_):
            told.append("closed")

    with record(tmp_path / LIVE) as live, live.beside(lambda *_: Shown())(None, "train") as bar:
        bar.advance(2, loss=1.0)
    assert told == [(0, {}), (2, {"loss": 1.0}), "closed"]


def test_few_lines_a_second_and_the_last_count_is_there(tmp_path):
    path, clock = tmp_path / LIVE, Clock()
    with record(path, clock=clock) as live, live.beside(silent)(100_000, "train") as bar:
        for step in range(100_000):
            clock.now += 0.001
            bar.advance(1, loss=float(step))
    steps = [line for line in read(path) if line["kind"] == "step"]
    assert 100 < len(steps) <= BURST + RATE * 100 + 2
    assert steps[-1]["done"] == 100_000 and steps[-1]["numbers"] == {"loss": 99_999.0}


def test_numbers_of_two_moments_are_not_mixed(tmp_path):
    path, clock = tmp_path / LIVE, Clock()
    with record(path, clock=clock) as live, live.beside(silent)(None, "walk") as bar:
        for _ in range(100):
            bar.advance(1, rank=5, error=0.1)
        bar.advance(1, error=0.7)
        bar.advance(1)
    last = [line for line in read(path) if line["kind"] == "step"][-1]
    assert last["numbers"] == {"error": 0.7} and last["done"] == 102


@pytest.mark.parametrize(
    ("error", "state", "told"),
    [
        (KeyboardInterrupt(), "interrupted", ""),
        (ValueError("first line\nsecond"), "failed", "first line"),
        (MemoryError(), "failed", "MemoryError"),
    ],
)
def test_how_it_ended(tmp_path, error, state, told):
    path = tmp_path / LIVE
    with pytest.raises(type(error)), record(path) as live, live.beside(silent)(1, "train"):
        raise error
    assert {k: read(path)[-1][k] for k in ("kind", "state", "error")} == {"kind": "end", "state": state, "error": told}


def test_refused_at_once_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="bad data"), record(tmp_path / "new" / LIVE):
        raise ValueError("bad data")
    assert list(tmp_path.iterdir()) == []


def test_a_torn_line_spoils_none_but_itself(tmp_path):
    path = tmp_path / LIVE
    with record(path) as live, live.beside(silent)(1, "train"):
        pass
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "st')
    with record(path) as live, live.beside(silent)(1, "train"):
        pass
    lines = path.read_bytes().splitlines()
    torn = len(whole.splitlines())
    assert lines[torn] == b'{"kind": "st'
    assert [json.loads(line)["kind"] for i, line in enumerate(lines) if i != torn] == ["start", "step", "end"] * 2


def test_long_records_are_thinned(tmp_path):
    path, clock = tmp_path / LIVE, Clock()
    with record(path, clock=clock, most_bytes=20_000) as live, live.beside(silent)(5000, "train") as bar:
        for step in range(5000):
            clock.now += 1
            bar.advance(1, loss=float(step))
            assert path.stat().st_size <= 20_500
    lines = read(path)
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("start", "end")
    done = [line["done"] for line in lines if line["kind"] == "step"]
    assert done == sorted(done) and done[-1] == 5000
    # Evenly: the beginning is as dense as the end, within a factor.
    quarters = np.histogram(done, bins=4, range=(0, 5000))[0]
    assert quarters.min() >= 5 and quarters.max() <= 4 * quarters.min(), quarters
    assert [p.name for p in tmp_path.iterdir()] == [LIVE]


def test_where_it_cannot_be_written_one_warning_and_the_work_goes_on(tmp_path):
    (tmp_path / "file").write_text("in the way")

    def compute():
        with record(tmp_path / "file" / LIVE) as live:
            for _ in range(2):
                with live.beside(silent)(3, "train") as bar:
                    bar.advance(3, loss=1.0)

    with pytest.warns(RuntimeWarning, match="cannot be written") as caught:
        compute()
    assert len(caught) == 1


def test_a_full_disk_is_one_warning(tmp_path, monkeypatch):
    path, clock = tmp_path / LIVE, Clock()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def compute():
        with record(path, clock=clock) as live, live.beside(silent)(9, "train") as bar:
            bar.advance(1)
            monkeypatch.setattr(os, "write", full)
            for _ in range(5):
                bar.advance(1)
            monkeypatch.undo()

    with pytest.warns(RuntimeWarning, match="No space left") as caught:
        compute()
    assert len(caught) == 1
    assert kinds(path) == ["start", "step", "step"]


def test_links_are_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_text("mine\n")
    (tmp_path / LIVE).symlink_to(other)
    with pytest.warns(RuntimeWarning), record(tmp_path / LIVE) as live, live.beside(silent)(1, "train"):
        pass
    assert other.read_text() == "mine\n"


def test_a_quiet_computation_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(_live, "BEAT", 0.01)
    path = tmp_path / LIVE
    with record(path) as live, live.beside(silent)(1, "train"):
        os.utime(path, (1.0, 1.0))
        ends = time.monotonic() + 20
        while path.stat().st_mtime < 2 and time.monotonic() < ends:
            time.sleep(0.01)
        assert path.stat().st_mtime > 2
        # The folder may be replaced meanwhile by the answer.
        path.unlink()
        time.sleep(0.05)
    assert not path.exists()


def test_the_same_bits_with_and_without(tmp_path):
    task = problems.linear(d_in=4, d_out=3, rank=2, samples=60)
    options = {"steps": 2, "width": 8, "depth": 4, "replicas": 0}
    alone = discover(task.X, task.Y, **options)
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002 - looked at only
    with record(tmp_path / LIVE) as live:
        found = discover(task.X, task.Y, **options, progress=live.beside(silent))
    after = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert np.array_equal(found.coordinates, alone.coordinates)
    assert found.rank == alone.rank and found.error == alone.error
    # Ranks and their errors are those of the profile.
    assert found.profile is not None
    numbers = [line["numbers"] for line in read(tmp_path / LIVE) if "error" in line.get("numbers", ())]
    listed = dict(zip(found.profile.ranks.tolist(), found.profile.error.tolist()))
    walked = {one["rank"]: one["error"] for one in numbers if "rank" in one}
    assert walked and walked.items() <= listed.items()


def test_the_first_error_is_of_the_wide_network(tmp_path):
    """With a ridge that is given it is trained once."""
    task = problems.linear(d_in=4, d_out=3, rank=2, samples=60)
    with record(tmp_path / LIVE) as live:
        options = {"steps": 2, "width": 8, "depth": 4, "replicas": 0, "resolution": 1e-3}
        found = discover(task.X, task.Y, **options, progress=live.beside(silent))
    errors = [line["numbers"]["error"] for line in read(tmp_path / LIVE) if "error" in line.get("numbers", ())]
    assert found.profile is not None
    assert errors[0] == found.profile.error[list(found.profile.starts).index("fresh")]


def test_forgetting(tmp_path):
    folder = progress_folder(tmp_path / "run")
    assert folder == tmp_path / ".run.progress"
    for more, left in ((False, False), (True, True)):
        folder.mkdir()
        (folder / LIVE).write_text("x")
        if more:
            (folder / "mine").write_text("y")
        forget(folder / LIVE)
        assert folder.exists() == left
        assert not (folder / LIVE).exists()
    forget(folder / LIVE)


def test_it_costs_next_to_nothing(tmp_path):
    with record(tmp_path / LIVE) as live, live.beside(silent)(None, "train") as bar:
        began = time.perf_counter()
        for _ in itertools.repeat(None, 20_000):
            bar.advance(1, loss=1.0)
        assert time.perf_counter() - began < 2.0  # 100 µs a step; about 3 on a quiet machine
