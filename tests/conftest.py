"""Settings for the whole suite."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

# Two test processes share two cores: more threads would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

# Deterministic: fewer examples are the first of many.
settings.register_profile(
    "isthmus",
    deadline=None,
    derandomize=True,
    max_examples=100 if os.environ.get("ISTHMUS_TEST_FULL") else 15,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("isthmus")
