"""The agreement panel: other ways of counting dimensions, what each measures and why it may differ."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.measures import Reading, participation_ratio, read_spectrum, stable_rank, two_nn
from isthmus.measures.dimension import FEWEST_POINTS

#: Share of the trace that linear methods are asked to explain.
EXPLAINED = 0.99


@dataclass(frozen=True)
class Evidence:
    """One way of counting.

    Attributes
    ----------
    name : str
    value : float
        What was measured; NaN if nothing could be.
    rank : int or None
        The count it amounts to, where it amounts to one.
    meaning : str
        What it counts, and when it differs from the rank.
    """

    name: str
    value: float
    rank: int | None
    meaning: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        content = asdict(self)
        return {**content, "value": self.value if math.isfinite(self.value) else None}

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Evidence:
        """Inverse of :meth:`to_dict`."""
        value = math.nan if content["value"] is None else float(content["value"])
        rank = None if content["rank"] is None else int(content["rank"])
        return Evidence(str(content["name"]), value, rank, str(content["meaning"]))


def explaining(values: NDArray[np.float64] | Tensor, share: float = EXPLAINED) -> int:
    """How many of the decreasing ``values`` make up this share of their sum; 0 for zeros."""
    array = np.asarray(values, dtype=np.float64)
    total = array.sum()
    return int(np.searchsorted(np.cumsum(array), share * total) + 1) if total > 0 else 0


def rounded(dimension: float) -> int | None:
    """The nearest count, None for NaN."""
    return round(dimension) if math.isfinite(dimension) else None


def agreement(
    *,
    rank: int | None,
    narrowest: str,
    points: Tensor | None,
    spectrum: Tensor | None,
    weights: list[Tensor],
    jacobian: Reading | None,
    agop: Tensor | None,
    outputs: Tensor | None,
) -> tuple[Evidence, ...]:
    """The panel.

    Parameters
    ----------
    rank : int or None
        Ours.
    narrowest : str
        Name of the layer that TwoNN and the participation ratio look at.
    points, spectrum : Tensor, optional
        Its representation: some samples (N, n), and singular values over all samples.
    weights : list of Tensor
        Singular values of every weight matrix.
    jacobian : Reading or None
        Of the whole network, at the median sample.
    agop : Tensor (d_in, d_in), optional
    outputs : Tensor, optional
        Singular values of the centred outputs.
    """
    at = f"at {narrowest!r}" if narrowest else "at the outputs"
    panel = [
        Evidence(
            "bottleneck rank",
            math.nan if rank is None else float(rank),
            rank,
            "ours: dimensions of the narrowest representation that everything passes through",
        ),
        Evidence(
            "Jacobian rank",
            math.nan if jacobian is None else float(jacobian.count),
            jacobian.count if jacobian is not None and jacobian.status != "unclear" else None,
            "directions that matter near one x; fewer than the rank where the surface closes up (a circle: 1, not 2)",
        ),
        _neighbours(points, at),
        Evidence(
            "participation ratio",
            math.nan if spectrum is None else float(participation_ratio(spectrum)),
            None,
            f"(Σs²)²/Σs⁴ {at}: how many directions carry the variance; below the rank when they carry it unequally",
        ),
        Evidence(
            "stable rank",
            min((float(stable_rank(s)) for s in weights), default=math.nan),
            None,
            "‖W‖²_F/‖W‖²_op, smallest over the layers: a soft count of directions, below the rank unless all are equal",
        ),
        _gradients(agop),
    ]
    linear = None if outputs is None else explaining(outputs.square())
    panel.append(
        Evidence(
            "PCA of the outputs",
            math.nan if linear is None else float(linear),
            linear,
            f"linear directions of the outputs with {EXPLAINED:.0%} of the variance; more than the rank if h is curved",
        )
    )
    return tuple(panel)


def _neighbours(points: Tensor | None, at: str) -> Evidence:
    dimension = math.nan
    if points is not None and len(points) >= FEWEST_POINTS:
        dimension = two_nn(points).dimension
    meaning = f"dimension of the cloud {at}; fewer than the rank if it is a curved surface, more if it is noisy"
    return Evidence("TwoNN", dimension, rounded(dimension), meaning)


def _gradients(agop: Tensor | None) -> Evidence:
    meaning = "linear directions of x that gradients live in, up to a drop; more than the rank if g is curved"
    if agop is None:
        return Evidence("AGOP gap", math.nan, None, meaning)
    values = torch.linalg.eigvalsh(agop).flip(0).clamp_min(0)
    reading = read_spectrum(values.sqrt(), eps=1e-8)
    return Evidence("AGOP gap", float(reading.count), reading.count if reading.status != "unclear" else None, meaning)
