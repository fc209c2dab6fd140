"""A sweep whose file system fails at every call in turn, or that dies there."""

from __future__ import annotations

import pytest
from inline import Inline, contents
from tiny import Tiny

from faults import Work, every_point, one_of_each, quick
from isthmus.sweeps import read, sweep

__all__ = ["quick"]


class Sweep(Work):
    replaces = True

    def before(self):
        sweep(Tiny, {"depth": [4]}, out=self.folder / "o", engine=Inline())

    def do(self):
        self.found = sweep(Tiny, {"depth": [4, 5]}, out=self.folder / "o", engine=Inline())

    def read(self):
        # What is finished is whole; one more may be.
        found = contents(self.folder / "o")
        assert read(self.folder / "o").counts["done"] == len(found)
        return found


@pytest.mark.usefixtures("quick")
def test_one_call_of_each_sort(tmp_path, capsys):
    one_of_each(Sweep, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("quick")
def test_every_call(tmp_path, capsys):
    every_point(Sweep, tmp_path, capsys)
