"""Another network asked about the same data: what its isthmus says stands among the evidence."""

from __future__ import annotations

import copy
import math
import warnings

import torch
from torch import nn

from isthmus._checks import fail
from isthmus._errors import ConvergenceWarning, IsthmusError
from isthmus.diagnosis import diagnose
from isthmus.diagnosis.agreement import Evidence
from isthmus.discovery.walk import Data
from isthmus.objective import constant_cost
from isthmus.training import train
from isthmus.training.plans import carrying_norm

#: Rows that its representations are looked at on.
ROWS = 1000


def check_witness(network: object, d_in: int, d_out: int) -> None:
    """Fail unless ``network`` is a module from the inputs to the outputs."""
    who, fix = "discover", "Pass e.g. isthmus.LeakyResNet(d_in, d_out), or leave `network` out."
    if not isinstance(network, nn.Module):
        fail(who, "`network` must be a torch.nn.Module", type(network).__name__, fix)
    parameter = next(network.parameters(), None)
    if parameter is None:
        fail(who, "`network` must have parameters", type(network).__name__, fix)
    try:
        with torch.no_grad():
            shape = tuple(network(torch.zeros(2, d_in, dtype=parameter.dtype)).shape)
    except (RuntimeError, TypeError, AttributeError) as error:
        fail(who, f"`network` must map (N, {d_in}) to (N, {d_out})", f"{type(error).__name__}: {error}", fix)
    if shape != (2, d_out):
        fail(who, f"`network` must map (N, {d_in}) to (N, {d_out})", f"outputs of shape {shape} for 2 rows", fix)


def testify(network: nn.Module, data: Data, strength: float, seed: int) -> tuple[tuple[Evidence, ...], str]:
    """Train a copy on the scaled rows, each dimension at the same price as in the discovery, and diagnose it.

    Returns
    -------
    tuple of Evidence, str
        What it counts, and how its training ended.
    """
    kind = type(network).__name__
    net = copy.deepcopy(network).to(data.X.dtype)
    alone = constant_cost(data.Y, data.loss)
    ridge = strength * alone / carrying_norm(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the state is told in the note
        result = train(net, data.X, data.Y, ridge=ridge, loss=data.loss, seed=seed)
    if result.state == "interrupted":
        raise KeyboardInterrupt
    note = (
        f"the given {kind}: training {result.state} ({result.reason}), cost {result.cost / alone:.3g} of a constant's"
    )
    rows = slice(None, None, max(1, -(-len(data.X) // ROWS)))
    try:
        found = diagnose(net, data.X[rows], data.Y[rows], ridge=ridge, loss=data.loss)
    except IsthmusError as error:
        return (), f"{note}; not diagnosed: {error}"
    rank = found.rank if found.verdict == "determined" else None
    meaning = "narrowest place of the network that was given, trained on the same rows"
    clues = [Evidence(f"given {kind}", math.nan if rank is None else float(rank), rank, meaning)]
    if found.mechanics is not None and found.mechanics.arrays is not None:
        clues.append(
            Evidence(
                f"given {kind}: −(2/L̃)𝓗",
                found.mechanics.rank_estimate,
                None,
                f"approaches the rank from below with L̃ at critical points; here: {found.mechanics.state}",
            )
        )
    return tuple(clues), note
