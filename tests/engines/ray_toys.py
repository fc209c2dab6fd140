"""An experiment whose runs do what a test tells them: compute, fail, die, sleep. Workers import it by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from isthmus.engines.base import Task
from isthmus.experiments._experiment import Experiment, parameter


@dataclass(frozen=True, kw_only=True)
class Toy(Experiment):
    id: ClassVar[str] = "T-toy"
    title: ClassVar[str] = "a toy"
    paper: ClassVar[str] = "rank2023"
    where: ClassVar[str] = "nowhere"
    convention: ClassVar[str] = "none"
    quick_seconds: ClassVar[float] = 0.1
    full_seconds: ClassVar[float] = 0.1

    what: str = parameter("compute", "what to do")
    folder: str = parameter("", "where to leave marks; empty: nowhere")
    size: int = parameter(10, "side of the matrix")
    seconds: float = parameter(0.0, "how long to sleep before")

    @classmethod
    def quick(cls) -> Self:
        return cls()

    def compute(self, progress):
        if self.folder:
            # A file for each execution, named by the process that made it and the node it belongs to.
            mark = Path(self.folder) / f"{self.key}.{os.getpid()}.{node()}"
            before = list(Path(self.folder).glob(f"{self.key}.*"))
            mark.touch()
            if self.what == "die" or (self.what == "die once" and not before):
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        if self.what == "fail":
            raise ArithmeticError("told to fail")
        A = np.random.default_rng(self.seed).normal(size=(self.size, self.size))
        threads = [torch.get_num_threads(), int(os.environ.get("OMP_NUM_THREADS", "0"))]
        if self.folder:
            (Path(self.folder) / f"done.{mark.name}").touch()
        # Of a small block: the last bits of a large one depend on the number of threads.
        values = np.linalg.svd(A[:8, :8], compute_uv=False)
        return {"A": A, "values": values, "threads": np.array(threads)}

    def outcomes(self, arrays):
        return []

    def plot(self, arrays, figure):
        pass

    def batch_shape(self):
        return (self.size,)


def node() -> str:
    """Id of the node of a Ray worker."""
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else "none"


def toy_task(*toys: Toy, **options) -> Task:
    keys = tuple(toy.key for toy in toys)
    return Task(Toy.id, tuple(toy.parameters for toy in toys), keys, home="ray_toys:Toy", **options)
