"""Disk full, read-only, damaged, two at once, changed under the same name: a clear message each, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
from pathlib import Path

import pytest
from inline import Inline, contents, counts, small_disk
from tiny import Tiny

from isthmus import DataError, IsthmusError
from isthmus.runs import Run
from isthmus.sweeps import read, sweep
from isthmus.sweeps.places import DAMAGED, LAPSE, LOCK, PENDING, RUNS, SWEEP, Lock, holder

GRID = {"depth": [4, 5, 6]}


def test_disk_full(tmp_path, monkeypatch):
    """On a small file system of its own where we may make one; else by the error that a full one gives."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with small_disk(tmp_path / "disk", "160k") as made:
        out = tmp_path / "disk" / "o"
        sweep(Tiny, {"depth": [4]}, out=out, engine=Inline())
        safe = contents(out)
        if made:
            # Room for the small files of the beginning, not for a Run.
            disk = os.statvfs(tmp_path / "disk")
            (tmp_path / "disk" / "ballast").write_bytes(b"x" * (disk.f_bavail * disk.f_frsize - 28 * 2**10))
        else:
            _full(monkeypatch)
        with pytest.raises(DataError, match="must be writable. Got .*(No space|full).*computing has stopped") as error:
            sweep(Tiny, {"depth": "4:40"}, out=out, engine=(engine := Inline()))
        assert len(engine.tasks) < 36, "computing has stopped"
        assert "Free some space" in str(error.value)
        (saved,) = tmp_path.glob("isthmus-rescued-*/*")
        assert Run.read(saved).key == saved.name
        assert saved.name in str(error.value)
        now = contents(out)
        assert safe.items() <= now.items()
        assert saved.name not in now
        # With room again, the same command continues; what was saved may be moved in.
        if made:
            (tmp_path / "disk" / "ballast").unlink()
            subprocess.run(["mount", "-o", "remount,size=8m", str(tmp_path / "disk")], check=True)
        else:
            monkeypatch.undo()
        Run.read(saved).write(out / RUNS / saved.name)
        engine = Inline()
        found = sweep(Tiny, {"depth": "4:40"}, out=out, engine=engine)
        assert found.counts == {"done": 37}
        assert saved.name not in {key for task in engine.tasks for key in task.keys}
        assert now.items() <= contents(out).items()


def _full(monkeypatch):
    write = Run.write

    def refused(self, folder):
        if "isthmus-rescued" in str(folder):
            return write(self, folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "write", refused)


def test_no_room_anywhere(tmp_path, monkeypatch):
    def refused(self, folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "write", refused)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    key = Tiny.single().key
    with pytest.raises(DataError, match=f"the result of {key} is lost and will be computed again"):
        sweep(Tiny, {"depth": [4]}, out=tmp_path / "o", engine=Inline())
    monkeypatch.undo()
    assert read(tmp_path / "o").counts == {"interrupted": 1}


def test_a_run_that_cannot_be_written_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(Tiny, "compute", lambda self, progress: {"norm": 1.0, "x" * 5000: 0.0})
    found = sweep(Tiny, {"depth": [4, 5]}, out=tmp_path, engine=Inline())
    assert found.counts == {"failed": 2}
    assert found.frame["error"].str.contains("names of tensors").all()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_read_only(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as made:
        if not made and os.geteuid() == 0:
            pytest.skip("root writes everywhere")
        out = tmp_path / "disk" / "o"
        first = sweep(Tiny, GRID, out=out, engine=Inline())
        before = contents(out)
        if made:
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        else:
            out.chmod(0o555)
        told = "must be writable. Got (Read-only|Permission denied).*`isthmus runs` reads it"
        with pytest.raises(DataError, match=told):
            sweep(Tiny, GRID, out=out, engine=(engine := Inline()))
        assert engine.tasks == []
        assert contents(out) == before
        assert read(out).frame.equals(first.frame)
        out.chmod(0o755) if not made else None


@pytest.mark.parametrize("damage", ["flipped", "torn", "missing", "moved", "parameters", "extra"])
def test_a_damaged_run(tmp_path, damage, capsys):
    first = sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    safe = contents(tmp_path)
    key, other = first.frame.index[:2]
    path = tmp_path / RUNS / key
    if damage == "flipped":
        content = bytearray((path / "arrays.safetensors").read_bytes())
        content[-3] ^= 1
        (path / "arrays.safetensors").write_bytes(content)
    elif damage == "torn":
        (path / "provenance.json").write_bytes((path / "provenance.json").read_bytes()[:100])
    elif damage == "missing":
        (path / "verdicts.json").unlink()
    elif damage == "moved":
        # A complete Run under another's key.
        for name in path.iterdir():
            name.write_bytes((tmp_path / RUNS / other / name.name).read_bytes())
    elif damage == "parameters":
        # A configuration changed under the same name.
        config = json.loads((path / "config.json").read_text())
        config["parameters"]["lam"] = 0.7
        (path / "config.json").write_text(json.dumps(config))
    elif damage == "extra":
        (path / "figure.png").write_bytes(b"no picture of this run")
    kept = {name.name: name.read_bytes() for name in path.iterdir()}
    found = sweep(Tiny, GRID, out=tmp_path, engine=(engine := Inline()), progress=True)
    assert [task.keys for task in engine.tasks] == [(key,)]
    assert f"runs/{key}" in (told := capsys.readouterr().err)
    assert f"damaged/{key}-1" in told
    assert found.counts == {"done": 3}
    assert contents(tmp_path) == safe
    assert {name.name: name.read_bytes() for name in (tmp_path / DAMAGED / f"{key}-1").iterdir()} == kept
    assert any("damaged" in line for line in found.problems)
    assert counts()[other] == 1


def test_two_at_once(tmp_path):
    sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    before = contents(tmp_path)
    with Lock(tmp_path):
        told = f"one sweep at a time.*process {os.getpid()} on .*--watch"
        with pytest.raises(IsthmusError, match=told):
            sweep(Tiny, {"depth": [9]}, out=tmp_path, engine=Inline())
    assert contents(tmp_path) == before
    assert len(read(tmp_path).frame) == 3, "nothing was added to the plan"
    assert sweep(Tiny, {"depth": [9]}, out=tmp_path, engine=Inline()).counts == {"done": 4}


def test_who_died_does_not_lock(tmp_path):
    """Neither a dead process of this machine nor a silent one of another; but a living one of another does."""
    sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    done = subprocess.Popen(["true"])
    done.wait()
    dead = {"host": os.uname().nodename, "pid": done.pid, "since": 0.0}
    (tmp_path / LOCK).write_text(json.dumps(dead))
    found = holder(tmp_path)
    assert found is not None
    assert not found.alive
    sweep(Tiny, {"depth": [9]}, out=tmp_path, engine=Inline())
    (tmp_path / LOCK).write_text(json.dumps({**dead, "host": "elsewhere"}))
    with pytest.raises(IsthmusError, match="on elsewhere"):
        sweep(Tiny, {"depth": [10]}, out=tmp_path, engine=Inline())
    long_ago = (tmp_path / LOCK).stat().st_mtime - 2 * LAPSE
    os.utime(tmp_path / LOCK, (long_ago, long_ago))
    sweep(Tiny, {"depth": [10]}, out=tmp_path, engine=Inline())


def test_without_locks_of_the_system_the_sign_of_life_decides(tmp_path, monkeypatch):
    monkeypatch.setattr("isthmus.sweeps.places.fcntl", None)
    test_two_at_once(tmp_path)


def test_another_experiment_or_base(tmp_path):
    sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    before = contents(tmp_path)
    plan = (tmp_path / SWEEP).read_bytes()
    with pytest.raises(IsthmusError, match="is the sweep of T-tiny. Got F-bn-1. Choose another folder"):
        sweep("F-bn-1", {"depth": [4]}, quick=True, out=tmp_path, engine=Inline())
    with pytest.raises(IsthmusError, match="1 that differs: lam: 0.001 there, 0.5 now. Set what differs with --set"):
        sweep(Tiny, GRID, base={"lam": 0.5}, out=tmp_path, engine=Inline())
    assert (tmp_path / SWEEP).read_bytes() == plan
    assert contents(tmp_path) == before
    (tmp_path / SWEEP).write_bytes(plan[:50])
    with pytest.raises(IsthmusError, match="strict JSON"):
        sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    assert contents(tmp_path) == before


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(IsthmusError, match="must be absent, empty or a sweep.*thesis.tex"):
        sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(IsthmusError, match="must be a folder"):
        sweep(Tiny, GRID, out=tmp_path / "thesis.tex", engine=Inline())


def test_runs_of_no_grid_are_left_alone(tmp_path):
    sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    stranger = Tiny.single().replace(lam=3.0).run(figures=False)
    stranger.write(tmp_path / RUNS / stranger.key)
    found = sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    assert len(found.frame) == 3
    assert any("1 runs in runs/ belong to no grid" in line for line in found.problems)
    assert Run.read(tmp_path / RUNS / stranger.key).key == stranger.key


def test_what_killed_drivers_leave_is_cleared(tmp_path):
    found = sweep(Tiny, GRID, out=tmp_path, engine=Inline())
    key = found.frame.index[0]
    half = tmp_path / RUNS / f".{key}.abcdef.tmp"
    half.mkdir()
    (half / "config.json").write_text("{")
    (tmp_path / RUNS / key).rename(tmp_path / RUNS / f".{key}.previous")
    (tmp_path / PENDING / f"{key}.json").write_text("{")
    assert read(tmp_path).frame.loc[key, "state"] == "stale"
    sweep(Tiny, GRID, out=tmp_path, engine=(engine := Inline()))
    assert engine.tasks == []
    assert sorted(path.name for path in (tmp_path / RUNS).iterdir()) == sorted(found.frame.index)
    assert Path(tmp_path / RUNS / key / "config.json").is_file()


@pytest.mark.parametrize(
    ("pid", "since"), [(10**30, 1e300), (-1, -5.0), (0, 0.0), (1.5, 2.0), (10**400, 0.0), ("x", 0.0)]
)
def test_a_lock_that_says_nonsense_is_no_holder_that_stops_us(tmp_path, pid, since):
    """Whoever copies a folder may bring any lock along."""
    (tmp_path / LOCK).write_text(json.dumps({"host": platform.node(), "pid": pid, "since": since}), encoding="utf-8")
    found = holder(tmp_path)
    assert found is None or str(found)
    if pid != 1.5:  # number 1 is alive
        assert found is None or not found.alive
