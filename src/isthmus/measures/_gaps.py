"""Reading a rank off a spectrum: where it drops, how far, and whether that is clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus._checks import as_tensor, fail


@dataclass(frozen=True)
class GapRule:
    """When a drop s_k → s_{k+1} counts.

    Attributes
    ----------
    clear : float
        A gap s_k/s_{k+1} of at least this is clear …
    tail : float
        … if what remains is small, s_{k+1} ≤ tail · s₁ …
    level : float
        … and what is kept is not: s_k ≥ level · s₁, unless the gap is at least ``certain``.
    certain : float
        A gap so large that small kept values count too (exact zeros beyond an ill-conditioned map).
    at_edge : float
        The gap that a drop past ``edge`` needs: P(s_{n-1}/s_n > t) ≈ 1/t for a random square matrix, so that
        100 would be met by chance in one of ten random networks of a dozen layers.
    unclear : float
        Gaps between ``unclear`` and ``clear`` are neither a rank nor its absence.
    faint : float
        After a clear drop to faint · s₁ or less, how the rest ends does not matter: it carries less than a
        thousandth of the variance of the first direction. Between faint and tail it leaves the rank open.
    noise : float
        Drops that start below noise · s₁ are ignored.
    edge : float
        Drops after more than this share of the values are ignored unless they reach ``at_edge``.
    """

    clear: float = 5.0
    tail: float = 0.1
    level: float = 0.05
    certain: float = 100.0
    at_edge: float = 1000.0
    unclear: float = 2.0
    faint: float = 0.02
    noise: float = 1e-3
    edge: float = 0.75


@dataclass(frozen=True)
class Reading:
    """What a spectrum says.

    Attributes
    ----------
    status : str
        ``"clear"``: ``count`` values stand out. ``"full"``: no drop; ``count`` is the number of values.
        ``"unclear"``: a drop after ``count`` values that is too small, too high up, or one of several.
        ``"zero"``: every value vanishes; ``count`` is 0.
    count : int
    gap : float
        s_count/s_{count+1}, limited by rounding; 1 when there is none.
    kept, next : float
        s_count/s₁ and s_{count+1}/s₁.
    exact : bool
        What remains is zero up to rounding, or nothing remains: no accident of a random matrix.
    """

    status: str
    count: int
    gap: float
    kept: float
    next: float
    exact: bool = False


def read_spectrum(
    s: Any,
    *,
    rule: GapRule = GapRule(),  # noqa: B008
    eps: float = 2.2e-16,
    floor: float = 0.0,
) -> Reading:
    """Read the number of outstanding values off a decreasing spectrum.

    Parameters
    ----------
    s : array (r,), decreasing, ≥ 0
        Singular values.
    rule : GapRule
        When a drop counts.
    eps : float
        Unit round-off of the data behind the spectrum: values below r·eps·s₁ are taken to be at that floor.
    floor : float
        An absolute floor beside it, for spectra of differences: centring leaves rounding of the size of the
        mean.

    Examples
    --------
    >>> read_spectrum([1.3, 1.2, 1.1, 0.01, 0.005]).count
    3
    >>> read_spectrum([1.0, 0.9, 0.8, 0.7]).status
    'full'
    >>> read_spectrum([1.0, 0.9, 0.3, 0.2]).status  # 0.9 to 0.3: neither a rank nor its absence
    'unclear'
    """
    # Short vectors: NumPy takes a fifth of the time that tensors take.
    values = as_tensor("read_spectrum", "s", s).cpu().numpy()
    if values.ndim != 1 or len(values) == 0 or (values < 0).any() or (np.diff(values) > 0).any():
        fail(
            "read_spectrum",
            "`s` must be a non-empty decreasing vector of values ≥ 0",
            f"shape {tuple(values.shape)}",
            "Pass singular values.",
        )
    top = float(values[0])
    if top <= floor:  # covers the zero spectrum: floor ≥ 0
        return Reading("zero", 0, 1.0, 0.0, 0.0, True)
    relative = values / top
    if len(values) == 1:
        return Reading("full", 1, 1.0, 1.0, 0.0, True)
    bottom = max(len(values) * eps, floor / top, np.finfo(np.float64).tiny)
    above, below = relative[:-1], relative[1:]
    gaps = above / np.maximum(below, bottom)
    inside = np.arange(1, len(values)) <= rule.edge * len(values)
    loud = above >= rule.level
    # Towards the floor a gap is cut short (in float32 at 10⁵ or less): there `certain` suffices at the edge
    # too.
    grounded = below <= bottom
    heard = np.where(
        inside,
        loud | (gaps >= rule.certain),
        (gaps >= rule.at_edge) | (grounded & (gaps >= rule.certain)),
    )
    heard &= above >= rule.noise
    clear = heard & (gaps >= rule.clear) & (below <= rule.tail)

    def reading(status: str, index: int) -> Reading:
        return Reading(
            status,
            index + 1,
            float(gaps[index]),
            float(above[index]),
            float(below[index]),
            bool(grounded[index]),
        )

    if (clear & loud).any() and (clear & ~loud).any():
        # A clear drop, and further down the end of what is left: an ill-conditioned map, or a bottleneck with
        # dead neurons beyond it. The spectrum cannot tell which, unless what is left is faint.
        index = int(np.where(clear & loud, gaps, 0.0).argmax())
        return reading("clear" if below[index] <= rule.faint else "unclear", index)
    if clear.any():
        ranked = np.where(clear, gaps, 1.0)
        index = int(ranked.argmax())
        # Two drops of comparable size leave the rank open; a much larger one settles it.
        others = np.log(np.delete(ranked, index))
        settled = float(np.log(ranked[index])) > 2.5 * float(others.max()) if len(others) else True
        return reading("clear" if settled else "unclear", index)
    doubtful = heard & (gaps >= rule.unclear)
    if doubtful.any():
        return reading("unclear", int(np.where(doubtful, gaps, 0.0).argmax()))
    return Reading("full", len(values), 1.0, float(relative[-1]), 0.0, True)
