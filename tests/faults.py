"""A file system that fails: the n-th call that opens for writing, writes, syncs, renames or makes a folder."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus import IsthmusError, _folders, _inside, _live
from isthmus._inside import is_remains
from isthmus.sweeps import places as lock

#: What the system may say, in turn.
CODES = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR)
#: How a process ends that dies at a call: nothing is flushed, no handler runs.
DEAD = 9


class Faults:
    """Counts the calls; ``fail_at`` the n-th from 1 on, with ``code``, or the process dies there (``code`` None)."""

    def __init__(self, fail_at: int = 0, code: int | None = None) -> None:
        self.fail_at, self.code = fail_at, code
        self.calls: list[str] = []

    def tick(self, what: str, before: Callable[[], object] = lambda: None) -> None:
        self.calls.append(what)
        if len(self.calls) == self.fail_at:
            before()
            if self.code is None:
                os._exit(DEAD)
            raise OSError(self.code, os.strerror(self.code))

    @contextlib.contextmanager
    def installed(self) -> Iterator[Faults]:
        with pytest.MonkeyPatch.context() as patch:
            for module in (_inside, _folders, _live, lock):
                patch.setattr(module, "os", _System(self))
            made = os.mkdir
            patch.setattr(os, "mkdir", lambda *a, **k: (self.tick("mkdir"), made(*a, **k))[1])
            exchanged = _folders.exchange
            patch.setattr(_folders, "exchange", lambda *a: (self.tick("exchange"), exchanged(*a))[1])
            yield self


class _System:
    """``os`` with some of its calls counted."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, *rest: Any, **where: Any) -> int:
        self._faults.tick("create" if flags & os.O_CREAT else "open")
        return os.open(path, flags, *rest, **where)

    def fsync(self, descriptor: int) -> None:
        self._faults.tick("fsync")
        os.fsync(descriptor)

    def replace(self, *names: Any, **where: Any) -> None:
        self._faults.tick("rename")
        os.replace(*names, **where)  # noqa: PTH105

    def write(self, descriptor: int, data: bytes) -> int:
        # Half of it is written first.
        self._faults.tick("write", lambda: os.write(descriptor, data[: len(data) // 2]))
        return os.write(descriptor, data)

    def fdopen(self, descriptor: int, mode: str) -> Any:
        file = os.fdopen(descriptor, mode)
        return _File(file, self._faults) if mode == "wb" else file


class _File:
    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def writelines(self, pieces: Any) -> None:
        data = b"".join(bytes(piece) for piece in pieces)

        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._faults.tick("write", half)
        self._file.write(data)


def fails(work: Callable[[], object], fail_at: int, code: int) -> BaseException | None:
    """Do the work with a failure at one call; what was raised."""
    with Faults(fail_at, code).installed():
        try:
            work()
        except Exception as error:  # the caller judges it
            return error
    return None


def dies(work: Callable[[], object], fail_at: int) -> None:
    """Do the work in a process that dies at one call."""
    child = os.fork()
    if not child:
        status = 1
        try:
            with Faults(fail_at, None).installed(), Path(os.devnull).open("w") as quiet:
                os.dup2(quiet.fileno(), 1)
                os.dup2(quiet.fileno(), 2)
                work()
            status = 0
        except BaseException:
            status = 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == DEAD, "it did not get so far, or ended otherwise"


def counted(work: Callable[[], object]) -> list[str]:
    """The calls of the work, in order."""
    with Faults().installed() as faults:
        work()
    return faults.calls


class Work:
    """One verb in a folder: ``before`` once, then ``do``, again and again; ``read`` is the whole of what it keeps."""

    #: Whether ``before`` leaves what ``do`` replaces; whether a success of ``do`` can be read off the folder.
    replaces, lasting = False, True
    #: Whether the next command clears up what a killed one left.
    clears = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self) -> None:
        """What is there already."""

    def do(self) -> object:
        raise NotImplementedError

    def read(self) -> Any:
        raise NotImplementedError


def left(folder: Path) -> list[str]:
    """What no command should leave when it was not killed."""
    names = [path.name for path in folder.rglob("*")]
    return [name for name in names if is_remains(name) or (name.startswith(".") and name.endswith(".tmp"))]


def campaign(kind: type[Work], tmp_path: Path, capsys: Any, points: Callable[[list[str]], Iterator[int]]) -> int:
    """Fail and die at the points; how many calls there were."""
    start = tmp_path / "start"
    start.mkdir()
    kind(start).before()

    def copy(where: str) -> Any:
        shutil.rmtree(tmp_path / where, ignore_errors=True)
        shutil.copytree(start, tmp_path / where)
        return kind(tmp_path / where)

    whole = copy("whole")
    old = whole.read() if kind.replaces else None
    whole.do()
    new = whole.read()
    assert new is not None
    assert new != old
    calls = counted(copy("counted").do)
    for n in points(calls):
        for how in (CODES[n % len(CODES)], None):
            work = copy("work")
            if how is None:
                dies(work.do, n)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    error = fails(work.do, n, how)
                assert error is None or isinstance(error, (IsthmusError, OSError)), (n, calls[n - 1], error)
                assert left(work.folder) == [], (n, calls[n - 1])
                if error is None and kind.lasting:
                    assert work.read() == new, (n, calls[n - 1])
            assert work.read() in (old, new), (n, calls[n - 1], how)
            again = kind(work.folder)
            again.do()
            assert again.read() == new, (n, calls[n - 1], how)
            if kind.clears:
                assert left(work.folder) == [], (n, calls[n - 1], how)
            capsys.readouterr()
    return len(calls)


@pytest.fixture
def quick(monkeypatch):
    """Without pictures: they are not what is tested, and take longest."""
    monkeypatch.setattr("isthmus.plotting.style.render", lambda _: b"\x89PNG")
    monkeypatch.setattr("isthmus.report.save.render", lambda _: "<!doctype html>")
    monkeypatch.setattr("isthmus._provenance._commit", lambda: (None, None))
    monkeypatch.setattr("isthmus._live.BEAT", 1e6)


def every_point(kind: type[Work], tmp_path: Path, capsys: Any) -> None:
    """The campaign over all calls, and what it came to."""
    counts = collections.Counter[str]()

    def points(calls: list[str]) -> Iterator[int]:
        counts.update(calls)
        yield from range(1, len(calls) + 1)

    number = campaign(kind, tmp_path, capsys, points)
    with capsys.disabled():
        print(f"\n{kind.__name__}: failed and died at each of {number} calls: {dict(counts)}")


def one_of_each(kind: type[Work], tmp_path: Path, capsys: Any) -> None:
    """The campaign over the first call of every sort."""

    def points(calls: list[str]) -> Iterator[int]:
        yield from sorted(calls.index(what) + 1 for what in set(calls))

    assert campaign(kind, tmp_path, capsys, points) > 3
