"""How strong the ridge of a classification must be: labels are often wrong by chance, and networks learn by heart."""

from __future__ import annotations

import dataclasses

import numpy as np

from isthmus._progress import Progress
from isthmus.discovery.stages import Stages
from isthmus.discovery.walk import WIDE, Data, Effort, polish, wide_level

#: λ that are tried, falling; the last is that of a regression.
STRENGTHS = (0.1, 0.03, 0.01)


def choose_strength(data: Data, effort: Effort, *, seed: int, stages: Stages, bar: Progress) -> tuple[float, str]:
    """The largest λ at which a wide network predicts held-out rows about as well as at any, and the errors in words.

    A squared error with a small ridge averages noise; a log loss with a small ridge is driven to 0 on every training
    row, wrong labels included. The network is trained at the largest λ and then on at each smaller one.
    """
    errors: list[float] = []
    level = None
    for strength in STRENGTHS:
        trial = dataclasses.replace(effort, strength=strength)
        if level is None:
            level = wide_level(data, trial, WIDE, seed=seed, name="strength", stages=stages, bar=bar)
        else:
            level = polish(data, trial, level, seed=seed, name=f"strength-{strength:g}", stages=stages, bar=bar)
        errors.append(level.error)
    finite = np.where(np.isfinite(errors), errors, np.inf)
    least = float(finite.min())
    allowed = least + dataclasses.replace(effort, strength=STRENGTHS[-1]).slack(least)
    chosen = STRENGTHS[int(np.argmax(finite <= allowed))]
    listed = ", ".join(f"{error:.3g} at λ = {strength:g}" for strength, error in zip(STRENGTHS, errors))
    return chosen, f"λ = {chosen:g} was taken for a wide network's error on the rows held out: {listed}"
