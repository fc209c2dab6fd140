"""PyTorch's forward mode, made ready."""

from __future__ import annotations

import functools
import warnings

import torch
from torch.func import jvp


@functools.cache
def load_forward_mode() -> None:
    """Load PyTorch's forward mode, whose first use warns about PyTorch's own ``torch.jit.script``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.square, (torch.ones(1),), (torch.ones(1),))
