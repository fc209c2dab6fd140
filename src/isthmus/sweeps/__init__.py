"""Sweeps: many configurations of one experiment, in a folder that can be continued anywhere."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.sweeps.driver import sweep
    from isthmus.sweeps.places import FINISHED, STATES
    from isthmus.sweeps.reading import read
    from isthmus.sweeps.result import SweepResult

# On first use: `isthmus runs` reads the index of a folder and must not wait for PyTorch.
_NAMES = {
    "FINISHED": "isthmus.sweeps.places",
    "STATES": "isthmus.sweeps.places",
    "SweepResult": "isthmus.sweeps.result",
    "read": "isthmus.sweeps.reading",
    "sweep": "isthmus.sweeps.driver",
}

__all__ = ["FINISHED", "STATES", "SweepResult", "read", "sweep"]


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'isthmus.sweeps' has no attribute {name!r}")
