"""The folder of a private Ray, without Ray: gone at the end; of a killed process, at the next beginning."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from isthmus.engines import ray_folder
from isthmus.engines.ray_folder import OWNER, remove_leftovers, temporary_folder

#: A number that no process has.
NOBODY = 2**30
HOLD = """
import sys, tempfile
from isthmus.engines.ray_folder import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(monkeypatch):
    """A temporary folder with a short name, as Ray needs it."""
    with tempfile.TemporaryDirectory(prefix="rf-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def left(parent, name="isthmus-left", owner=None, **changes):
    """A folder as a killed process leaves it."""
    folder = parent / name
    (folder / "session" / "logs").mkdir(parents=True)
    (folder / "token").write_text("secret")
    text = json.dumps({"host": platform.node(), "pid": NOBODY} | changes) if owner is None else owner
    (folder / OWNER).write_text(text)
    return folder


def test_it_is_there_and_gone(parent):
    with temporary_folder() as folder:
        assert Path(folder).parent == parent
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        assert [path.name for path in Path(folder).iterdir()] == [OWNER]
        owner = json.loads((Path(folder) / OWNER).read_text())
        assert owner == {"host": platform.node(), "pid": os.getpid()}
        with (Path(folder) / OWNER).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with temporary_folder() as other:
            assert other != folder and Path(folder).is_dir()
    assert not list(parent.iterdir())


def test_a_long_name_is_avoided(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert len(str(tmp_path)) > 30
    seen = []
    monkeypatch.setattr(ray_folder, "remove_leftovers", seen.append)
    with temporary_folder() as folder:
        assert Path(folder).parent == Path("/tmp") == seen[0]


def test_what_a_killed_process_left_is_removed(parent):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        (folder / "session").mkdir()
        # While it lives its folder stays.
        remove_leftovers(parent)
        assert (folder / "session").is_dir()
        process.send_signal(signal.SIGKILL)
    assert (folder / "session").is_dir()
    with temporary_folder() as mine:
        assert list(parent.iterdir()) == [Path(mine)]


def test_leftovers_are_removed_and_nothing_else(parent):
    gone = [left(parent), left(parent, "isthmus-again")]
    kept = [
        left(parent, "isthmus-lives", pid=os.getpid()),
        left(parent, "isthmus-elsewhere", host="another"),
        left(parent, "other-prefix"),
        left(parent, "isthmus-true", pid=True),
        left(parent, "isthmus-text", pid=str(NOBODY)),
        left(parent, "isthmus-none", owner="null"),
        left(parent, "isthmus-torn", owner='{"host": "'),
        left(parent, "isthmus-empty", owner=""),
        left(parent, "isthmus-long", more="x" * 2000),
    ]
    (parent / "isthmus-runs").mkdir()  # of the user
    (parent / "isthmus-notes").write_text("mine")
    remove_leftovers(parent)
    assert not any(folder.exists() for folder in gone)
    assert all((folder / "session" / "logs").is_dir() for folder in kept)
    assert (parent / "isthmus-runs").is_dir() and (parent / "isthmus-notes").is_file()


def test_a_lock_that_is_held_says_that_it_lives(parent):
    """As of a process in another container, whose number means nothing here."""
    folder = left(parent)
    with (folder / OWNER).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_leftovers(parent)
        assert folder.is_dir()
    remove_leftovers(parent)
    assert not folder.exists()


def test_links_and_pipes_are_left_alone(parent, tmp_path):
    real = left(tmp_path)
    (parent / "isthmus-link").symlink_to(real)
    inner = left(parent, "isthmus-inner")
    (inner / OWNER).unlink()
    (inner / OWNER).symlink_to(real / OWNER)
    piped = left(parent, "isthmus-pipe")
    (piped / OWNER).unlink()
    os.mkfifo(piped / OWNER)
    # A link inside a leftover is removed, what it leads to is not.
    gone = left(parent, "isthmus-gone")
    (gone / "link").symlink_to(real, target_is_directory=True)
    remove_leftovers(parent)
    assert real.is_dir() and (real / "token").is_file() and (parent / "isthmus-link").is_symlink()
    assert inner.is_dir() and piped.is_dir() and not gone.exists()


def test_those_of_other_users_are_left_alone(parent, monkeypatch):
    folder = left(parent)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_leftovers(parent)
    assert folder.is_dir()


def test_without_locks_nothing_is_a_leftover(parent, monkeypatch):
    folder = left(parent)

    def refuse(handle):
        raise OSError("no locks here")

    monkeypatch.setattr(ray_folder, "_lock", refuse)
    with temporary_folder() as mine:
        assert folder.is_dir() and (Path(mine) / OWNER).is_file()
    assert folder.is_dir() and not Path(mine).exists()
    monkeypatch.setattr(ray_folder, "fcntl", None)
    remove_leftovers(parent)
    assert folder.is_dir()


def test_a_folder_that_cannot_be_looked_into_is_no_error(tmp_path):
    remove_leftovers(tmp_path / "absent")
