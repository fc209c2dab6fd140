"""A million samples through a wide layer, whole: bounded memory and the right spectrum."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from isthmus.diagnosis import diagnose

BATCH = 4096


class Stream:
    """Batches that are made as they are asked for, the same at every pass."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return math.ceil(self.samples / BATCH)

    def __iter__(self):
        source = torch.Generator().manual_seed(0)
        left = self.samples
        while left > 0:
            yield torch.randn(min(BATCH, left), 16, generator=source)
            left -= BATCH


def measured(samples: int) -> dict:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 8))
    found = diagnose(net, Stream(samples), jacobian_samples=0, budget=None)
    few = next(iter(Stream(samples)))[:1024]
    twin = net[0].double()(few.double()).detach()
    direct = torch.linalg.svdvals(twin - twin.mean(0)) / len(few) ** 0.5
    part = diagnose(net.float(), few, jacobian_samples=0)["0"].representation.values
    return {
        "samples": found.samples,
        "difference": float(((part[:16] - direct[:16]) / direct[0]).abs().max()),
        "whole": [float(v) for v in found["0"].representation.values[:17]],
        "rows": found["0"].rows,
        "weights": [float(v) for v in torch.linalg.svdvals(net[0].weight.detach().double())],
    }


def check(found: dict, samples: int) -> None:
    assert found["samples"] == found["rows"] == samples
    assert found["difference"] < 1e-6
    # Standard normal inputs: the spectrum of W x is that of W, up to the sample covariance; only 16 dimensions.
    assert found["whole"][16] < 1e-6 * found["whole"][0]
    for value, exact in zip(found["whole"][:16], found["weights"][:16], strict=True):
        assert abs(value / exact - 1) < 6 * (16 / samples) ** 0.5


def test_a_stream():
    check(measured(10_000), 10_000)


#: In a process of its own, whose peak of memory is that of the diagnosis and of nothing before it.
ALONE = """
import json, resource, sys, torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
from test_large import measured
found = measured(int(sys.argv[2]))
print(json.dumps({**found, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


@pytest.mark.slow
def test_a_million_samples():
    command = [sys.executable, "-c", ALONE, str(Path(__file__).parent), "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    check(found, 1_000_000)
    assert found["megabytes"] < 2000
