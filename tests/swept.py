"""Shared by the tests of a sweep's pictures: results written down by hand, so that every rank and slope is known."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from isthmus.sweeps.result import SweepResult

DEPTHS, RIDGES, SEEDS = (4, 6, 8, 10, 12, 14, 16, 18), (1e-4, 1e-3, 1e-2), 3


def rank_at(depth, ridge, seed):
    """Falls with depth and ridge; at the border the third seed has one more; at 0.01 nothing is left beyond L = 14."""
    if ridge == 1e-2 and depth > 14:
        return 0
    rank = 3 if depth <= 6 else 2 if ridge < 1e-2 or depth <= 8 else 1
    return rank + (seed == 2 and depth in (8, 10))


def norm_at(depth, rank):
    """‖θ‖² = L·k + 5k + 2/L: R0 = k, R1 = 5k, R2 = 2 exactly."""
    return rank * depth + 5.0 * rank + 2.0 / depth if rank else 1e-3


def spectrum_at(depth, rank, seed):
    """(layers, 6): ``rank`` values near one, the others far below."""
    values = np.where(np.arange(6) < rank, 1.2 + 0.01 * seed, 1e-3 / (1 + np.arange(6)))
    return np.tile(values, (depth, 1)) * (1 + 0.01 * np.arange(depth)[:, None])


def key_of(*what):
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def row_of(depth, ridge, seed, **more):
    """A finished run."""
    rank = rank_at(depth, ridge, seed)
    loss = 0.01 + ridge * norm_at(depth, rank) + 0.001 * seed
    measured = {"rank": rank, "norm": norm_at(depth, rank), "loss": loss, "converged": seed != 1}
    row = {"state": "done", "depth": depth, "ridge": ridge, "seed": seed, **measured, "training": "converged"}
    return {**row, "seconds": 1.5, "error": "", **more}


def unfinished(row, state, error=""):
    """The same configuration without its measures."""
    empty = dict.fromkeys(("rank", "norm", "loss", "converged"), np.nan)
    return {**row, **empty, "training": "", "state": state, "error": error}


def result_of(rows, names=("depth", "ridge"), problems=(), **more):
    """A SweepResult of rows; spectra for those that are done."""
    keys = [key_of(*[row[name] for name in names], row["seed"]) for row in rows]
    frame = pd.DataFrame(rows, index=pd.Index(keys, name="key"))
    spectra = {
        key: spectrum_at(int(row.get("depth", 5)), int(row["rank"]), row["seed"])
        for key, row in zip(keys, rows)
        if row["state"] == "done" and "rank" in row
    }
    content = {"experiment": "F-bn-1", "title": "Parameter norm against depth", "spectra": spectra, **more}
    return SweepResult(names=tuple(names), frame=frame, problems=tuple(problems), **content)


def sweep_result(**more):
    """Depth × ridge × three seeds: one failed run, one diverged, one setting of which nothing was computed."""
    rows = [row_of(depth, ridge, seed) for depth in DEPTHS for ridge in RIDGES for seed in range(SEEDS)]
    for index, row in enumerate(rows):
        place = row["depth"], row["ridge"], row["seed"]
        if place == (10, 1e-4, 0):
            rows[index] = unfinished(row, "failed", "DataError: samples must be finite. Got NaN.")
        elif place == (12, 1e-3, 1):
            rows[index] = unfinished(row, "diverged", "‖θ‖² left every bound at step 12")
        elif place[:2] == (18, 1e-4):
            rows[index] = unfinished(row, "waiting")
    return result_of(rows, problems=("1 failed", "1 diverged"), **more)
