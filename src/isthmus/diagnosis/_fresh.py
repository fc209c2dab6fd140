"""A freshly initialised copy of any module: what its numbers are compared with, so that they have a scale."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isthmus.diagnosis._calls import Call
from isthmus.diagnosis._capture import Called

#: Marks of a HuggingFace model that keep it from being initialised again.
_MARKS = ("_is_hf_initialized",)


def fresh_copy(module: nn.Module, call: Call, seed: int) -> tuple[nn.Module, str]:
    """A copy with weights as they were before training, in evaluation mode, and how they were made.

    ``reset_parameters`` of every part that has it, then the model's own ``_init_weights`` where there is one. What
    neither changes keeps its entries in random order. Statistics of batch norm are those of ``call``.

    Raises
    ------
    Exception
        Whatever a module's ``__deepcopy__`` raises.
    """
    fresh = copy.deepcopy(module)
    before = {name: parameter.detach().clone() for name, parameter in fresh.named_parameters()}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        torch.manual_seed(seed)
        # A module that somebody's function calls is around its parts, and no part itself.
        parts = [*(one.called for one in fresh.modules() if isinstance(one, Called)), *fresh.modules()]
        for part in reversed(parts):  # what is around others has the last word
            _try(getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None))
        whole = next((part for part in parts if callable(getattr(part, "_init_weights", None))), None)
        if whole is not None:
            for holder in (*parts, *fresh.parameters()):
                for mark in _MARKS:
                    if mark in getattr(holder, "__dict__", {}):
                        delattr(holder, mark)
            for part in reversed(parts):
                _try(whole._init_weights, part)
        shuffled = [name for name, parameter in fresh.named_parameters() if _shuffle(parameter, before[name])]
        _statistics(fresh, call)
    how = "its layers' reset_parameters" + ("" if whole is None else " and its own _init_weights")
    if shuffled:
        more = f" and {len(shuffled) - 3} more" if len(shuffled) > 3 else ""
        how += f"; {', '.join(map(repr, shuffled[:3]))}{more}, which neither sets, with its entries in random order"
    return fresh.eval(), how


def _try(function: Any, *arguments: object) -> None:
    """Call it; what cannot be initialised so is noticed by its weights."""
    if callable(function):
        with contextlib.suppress(Exception):  # whatever a user's initialisation raises
            function(*arguments)


def _shuffle(parameter: Tensor, before: Tensor) -> bool:
    """Put the entries in random order if they are what they were and not all the same."""
    if not torch.equal(parameter, before) or not bool((before != before.flatten()[:1]).any()):
        return False
    parameter.copy_(before.flatten()[torch.randperm(before.numel())].reshape(before.shape))
    return True


def _statistics(fresh: nn.Module, call: Call) -> None:
    """Set the running statistics of batch norm to those of these samples."""
    norms = [part for part in fresh.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    if not norms:
        return
    fresh.eval()
    for part in norms:
        part.reset_running_stats()
        part.momentum = None
        part.train()
    fresh(*call[0], **call[1])
