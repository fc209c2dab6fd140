"""Reading a record that grows, is torn, thinned, replaced or hostile; and telling whether anybody still writes it."""

import json
import os
import platform
import subprocess
import sys
import time

import pytest

from isthmus._inside import Inside, Refused
from isthmus._live import LIVE
from isthmus.serving import record as reading
from isthmus.serving.record import GONE, POINTS, SILENT, Follower, Record, is_alive
from served import end, start, step, write_record

HERE = platform.node()


@pytest.fixture
def path(tmp_path):
    return write_record(tmp_path, start(0.0), step(2.0, 10, error=0.5), step(4.0, 20, rank=5, error=0.25))


@pytest.fixture
def follower(path):
    return Follower(Inside(path.parent), LIVE)


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_what_was_said(follower):
    record = follower.follow()
    assert record.session.sentence == "How many variables?"
    assert record.walks == {(0, 0): 0.5, (0, 5): 0.25}
    assert record.curves == {"error": [(10.0, 0.5), (20.0, 0.25)], "rank": [(20.0, 5.0)]}
    assert [text for _, text in record.lines] == [
        "started",
        "discover 10 of about 100: error 0.5",
        "discover 20 of about 100: rank 5, error 0.25",
    ]
    # Ten steps in two seconds, eighty to go.
    assert record.seconds_left() == 16.0


def test_walks_are_told_apart():
    """Several wide networks before the first rank are one beginning; what is looked at again is told again."""
    record = Record()
    record.take(json.dumps(start(0.0)).encode())
    told = [{"error": 0.5}, {"λ": 1e-4, "resolution": 4e-4, "tolerance": 0.1, "error": 0.25}]
    told += [{"rank": 3, "error": 0.25}, {"rank": 2, "error": 0.75}, {"rank": 2, "error": 0.5}]
    told += [{"error": 0.3}, {"rank": 3, "error": 0.3}, {"error": 0.4}]
    for i, numbers in enumerate(told):
        record.take(json.dumps(step(1.0 + i, i, **numbers)).encode())
    assert record.walks == {(0, 0): 0.25, (0, 3): 0.25, (0, 2): 0.5, (1, 0): 0.3, (1, 3): 0.3, (2, 0): 0.4}
    assert record.told == {"λ": 1e-4, "resolution": 4e-4, "tolerance": 0.1}


def test_a_training_does_not_flood_the_lines():
    record = Record()
    record.take(json.dumps(start(0.0)).encode())
    for i in range(1, 101):
        record.take(json.dumps(step(0.25 * i, i, loss=1.0 / i)).encode())
    told = [text for _, text in record.lines]
    assert told[1] == "discover 20 of about 100: loss 0.05"
    assert len(told) == 6
    assert len(record.curves["loss"]) == 100


def test_only_new_lines_are_read(follower, path, monkeypatch):
    record = follower.follow()
    taken = []
    monkeypatch.setattr(Record, "take", lambda _, line: taken.append(json.loads(line)["done"]))
    append(path, json.dumps(step(6.0, 30)) + "\n")
    assert follower.follow() is record
    assert follower.follow() is record
    assert taken == [30]


def test_a_torn_line_is_ignored_until_it_is_whole(follower, path):
    line = json.dumps(step(6.0, 30, rank=4, error=0.125))
    append(path, line[:20])
    assert follower.follow().done == 20
    append(path, line[20:] + "\n")
    assert follower.follow().done == 30
    assert follower.record.walks[0, 4] == 0.125
    assert follower.record.damaged == 0


@pytest.mark.parametrize(
    "line",
    [
        "",
        "not JSON",
        "[]",
        "null",
        '"start"',
        '{"kind": "start"}',
        '{"kind": "step", "time": 1e999, "label": "x", "done": 1, "total": 1, "numbers": {}}',
        '{"kind": "step", "time": NaN, "label": "x", "done": 1, "total": 1, "numbers": {}}',
        '{"kind": "step", "time": 1, "label": "x", "done": "many", "total": 1, "numbers": {}}',
        '{"kind": "step", "time": 1, "label": "x", "done": 1, "total": 1, "numbers": 7}',
        '{"kind": ["step"], "time": 1}',
        "[" * 100_000,
        '{"kind": "end", "time": 3}',
        "\x00\xff",
    ],
)
def test_lines_of_another_kind_change_nothing(follower, path, line):
    append(path, line + "\n" + json.dumps(step(6.0, 30)) + "\n")
    record = follower.follow()
    assert record.done == 30
    assert record.damaged == bool(line)
    assert record.session.end == ""


def test_an_end_without_a_start_is_damage(tmp_path):
    write_record(tmp_path, end(1.0))
    follower = Follower(Inside(tmp_path), LIVE)
    assert follower.follow().damaged == 1
    assert follower.state() == "silent"


def test_a_replaced_file_is_read_again(follower, path, tmp_path):
    follower.follow()
    other = write_record(tmp_path / "other", start(0.0, sentence="Another?"), step(1.0, 1))
    other.replace(path)
    record = follower.follow()
    assert record.session.sentence == "Another?"
    assert record.walks == {}


def test_started_again_the_walk_is_told_anew_and_the_old_one_kept(follower, path):
    again = [start(10.0), step(10.1, 10, error=0.5), step(12.0, 30, rank=4, error=0.3), step(14.0, 40, error=0.6)]
    append(path, "".join(json.dumps(line) + "\n" for line in again))
    record = follower.follow()
    assert record.sessions == 2
    assert record.walks == {(0, 0): 0.5, (0, 5): 0.25, (0, 4): 0.3, (1, 0): 0.6}
    # What is only read back in the first moment says nothing about the speed.
    assert record.seconds_left() == 12.0
    assert "started again, from what was kept" in [text for _, text in record.lines]


def test_long_curves_stay_bounded():
    record = Record()
    record.take(json.dumps(start(0.0)).encode())
    for i in range(5 * POINTS):
        record.take(json.dumps(step(float(i), i, loss=float(i))).encode())
    points = record.curves["loss"]
    assert POINTS // 4 < len(points) <= POINTS
    assert points[-1] == (5 * POINTS - 1.0, 5 * POINTS - 1.0)
    assert points == sorted(points)


def test_too_large_is_not_read(follower, path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 10)
    record = follower.follow()
    assert (record.session, record.damaged) == (None, 1)


@pytest.mark.parametrize(
    ("silence", "host", "alive", "state"),
    [
        (0.0, HERE, True, "running"),
        (SILENT - 5, HERE, True, "running"),
        (GONE + 1, HERE, False, "killed"),
        (GONE - 1, HERE, False, "running"),
        (SILENT + 1, HERE, False, "killed"),
        (SILENT + 1, HERE, True, "silent"),
        # Of another machine's processes nothing is known.
        (GONE + 1, "elsewhere", False, "running"),
        (SILENT + 1, "elsewhere", False, "silent"),
    ],
)
def test_signs_of_life(tmp_path, monkeypatch, silence, host, alive, state):
    now = time.time()
    write_record(tmp_path, start(now - 100, host=host), step(now - 90, 1), age=silence)
    follower = Follower(Inside(tmp_path), LIVE)
    follower.follow()
    monkeypatch.setattr(reading, "is_alive", lambda _: alive)
    assert follower.state(now, HERE) == state


@pytest.mark.parametrize("state", ["interrupted", "failed"])
def test_its_own_word_counts_more_than_silence(tmp_path, state):
    write_record(tmp_path, start(0.0), end(1.0, state, "why"), age=1e6)
    follower = Follower(Inside(tmp_path), LIVE)
    follower.follow()
    assert follower.state(time.time(), HERE) == state


def test_processes():
    assert is_alive(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not is_alive(child.pid)
    assert not any(map(is_alive, (0, -1, 10**30)))


# --- files inside a folder


def test_nothing_outside_can_be_read(tmp_path):
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    (root / "run").mkdir(parents=True)
    (root / "run" / "file").write_text("inside")
    (root / "run" / "link").symlink_to(tmp_path / "secret")
    (root / "way").symlink_to(tmp_path)
    inside = Inside(root)
    assert inside.read("run", "file", limit=10) == b"inside"
    assert inside.read("run", "file", limit=10, start=2) == b"side"
    for names in (("..", "secret"), ("run/../../secret",), ("run", "link"), ("way", "secret"), ("", "run", "file")):
        with pytest.raises(OSError):
            inside.read(*names, limit=100)
        assert inside.stamp(*names) is None
    assert inside.names("way") == []
    assert not inside.is_folder("way")
    assert inside.is_folder("run")
    for limit, name in ((3, ("run", "file")), (100, ("run",))):
        with pytest.raises(OSError):
            inside.read(*name, limit=limit)


def test_pipes_do_not_make_it_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused):
        Inside(tmp_path).read("pipe", limit=10)
