"""Every call of the file system fails in turn, or the process dies there: what was there is whole, or what comes is.

Afterwards the folder can be read, the same command again gives the same answer, and nothing else is left behind.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pandas as pd
import pytest
import torch

from faults import Work, every_point, one_of_each, quick
from isthmus import FullyConnected, IsthmusError, Run, cli, files
from isthmus.runs import Outcome
from isthmus.training import Phase
from isthmus.training._train import minimise

__all__ = ["quick"]


class Save(Work):
    replaces, clears = True, False
    path = property(lambda self: self.folder / "net.safetensors")

    def _net(self, seed):
        return FullyConnected([3, 4, 2], generator=torch.Generator().manual_seed(seed))

    def before(self):
        files.save(self._net(0), self.path)

    def do(self):
        files.save(self._net(1), self.path)

    def read(self):
        return {name: T.tolist() for name, T in files.load(self.path).state_dict().items()}


class Reproduce(Work):
    replaces = True
    path = property(lambda self: self.folder / "run")

    def _write(self, value):
        arrays = {"a": np.full(300, value)}
        Run("E-none", {"value": value}, arrays, [Outcome("it is", "agrees", value, value)]).write(self.path)

    def before(self):
        self._write(1.0)

    def do(self):
        self._write(2.0)

    def read(self):
        return Run.read(self.path).arrays["a"].tolist()


class ReproduceByCommand(Work):
    """The command, with its record beside the folder and its report in it."""

    def do(self):
        command = ["reproduce", "E-linear", "--quick", "--set", "depths=2,3,4,5,6", "--out", str(self.folder / "run")]
        if cli.main(command) not in (0, 1):
            raise IsthmusError("refused")

    def read(self):
        with contextlib.suppress(FileNotFoundError):
            if list((self.folder / "run").iterdir()):
                return {name: A.tolist() for name, A in Run.read(self.folder / "run").arrays.items()}
        return None


class Train(Work):
    lasting = False

    def do(self):
        net = FullyConnected([3, 4, 1], generator=torch.Generator().manual_seed(1))
        X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        phases = [Phase("adam", 3, 1e-2), Phase("lbfgs", 3)]
        minimise(net, X, X[:, :1], ridge=1e-2, phases=phases, checkpoint=self.folder / "kept", checkpoint_seconds=0)
        self.answer = [p.tolist() for p in net.parameters()]

    def read(self):
        return getattr(self, "answer", None)


class Discover(Work):
    path = property(lambda self: self.folder / "found")

    def before(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(60, 2))
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] - x[:, 1]})
        frame.to_csv(self.folder / "data.csv", index=False)

    def do(self):
        command = ["discover", str(self.folder / "data.csv"), "--target", "y", "--width", "4", "--depth", "4"]
        command += ["--replicas", "0", "--max-rank", "1", "--out", str(self.path)]
        if cli.main(command) not in (0, 1):
            raise IsthmusError("refused")

    def read(self):
        if not (self.path / "discovery.json").exists():
            return None
        found = files.load(self.path / "model.safetensors")
        content = files.read_json(self.path / "discovery.json")
        return content["rank"], found.coordinates.tolist(), (self.path / "coordinates.csv").read_text()


class Compress(Work):
    replaces, clears = True, False
    path = property(lambda self: self.folder / "small.safetensors")

    def before(self):
        net = FullyConnected([3, 6, 6, 2], generator=torch.Generator().manual_seed(0))
        files.save(net, self.folder / "net.safetensors")
        files.save(FullyConnected([3, 4, 2], generator=torch.Generator().manual_seed(1)), self.path)

    def do(self):
        if cli.main(["compress", str(self.folder / "net.safetensors"), "--out", str(self.path)]) not in (0, 1):
            raise IsthmusError("refused")

    def read(self):
        return {name: T.tolist() for name, T in files.load(self.path).state_dict().items()}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", [Save, Reproduce, Train])
def test_one_call_of_each_sort(kind, tmp_path, capsys):
    one_of_each(kind, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", Work.__subclasses__())
def test_every_call(kind, tmp_path, capsys):
    every_point(kind, tmp_path, capsys)
