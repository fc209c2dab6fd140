"""Values of a column that are no measurements: marks such as −9999 for what is missing, and gross outliers.

Columns come as float64 arrays (N,); what is not finite is passed over.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: What storage formats put where nothing was measured: ends of integer types and of float32 and float64, netCDF's own.
_FILLS = (32767.0, 32768.0, 65535.0, 2147483647.0, 2147483648.0, 4294967295.0, 2.0**63)
_FLOAT_FILLS = (9.969209968386869e36, 3.4028234663852886e38, 1.7976931348623157e308)
#: From here on powers of ten are taken for marks.
_LARGE = 1e10
#: Marks that one column may have.
_MOST = 4
#: Different values that the rest must have for marks of a known form, and for any others.
_FEW, _MANY = 5, 20
#: Gap to the rest, in ranges of the rest, from which one value of a known form is enough, or a repeated one of any.
_GAP = 10.0
#: How often a value of no known form must be there, and its largest share: what is frequent may be a state.
_REPEATED, _SHARE = 3, 0.1

#: Robust deviations from the median beyond which a value may be an outlier.
FAR = 10.0
#: Outliers are at most this share of a column, …
RARE = 0.01
#: … without which its standard deviation is at least this many times smaller.
INFLATED = 3.0

#: Share of the variance that the outermost hundredth of a column carries where its tails are heavy.
HEAVY = 0.5

#: Rows below which numbers may be in order by chance.
FEWEST_NUMBERED = 10

#: The largest number that can be centred and scaled in float64.
LARGEST = 1e300


def known_mark(value: float) -> bool:
    """Whether a number is written as marks for missing values are: nines, 777, 888, 1e30, the end of a number type."""
    size = abs(value)
    if size in _FILLS or any(math.isclose(size, fill, rel_tol=1e-6) for fill in _FLOAT_FILLS):
        return True
    if size >= _LARGE and math.isclose(math.log10(size), round(math.log10(size)), abs_tol=1e-9):
        return True
    digits = f"{size:.7g}".replace(".", "")
    return (set(digits) == {"9"} and len(digits) >= 2) or (set(digits) in ({"7"}, {"8"}) and len(digits) >= 3)


def marks_of(column: Array) -> tuple[float, ...]:
    """Values that stand for "missing": exact extreme values far outside the rest of the column, the smallest first.

    A value of a known form (:func:`known_mark`) is one if it is repeated and farther from the rest than the rest is
    wide, if it stands alone and is ten times as far, or if it is negative where the rest is not. Any other value must
    be there three times, ten widths away. Marks are at most half of the column.
    """
    values, counts = np.unique(column[np.isfinite(column)], return_counts=True)
    low, high = 0, len(values)
    known: list[int] = []
    while low < high and len(known) < _MOST:
        if known_mark(float(values[low])):
            known.append(low)
            low += 1
        elif known_mark(float(values[high - 1])):
            high -= 1
            known.append(high)
        else:
            break
    # Nearest to the rest first: one that belongs to it makes the rest wider for the others.
    for index in reversed(known):
        rest = values[low:high]
        if len(rest) >= _FEW and not _far(values[index], int(counts[index]), rest):
            low, high = min(low, index), max(high, index + 1)
    found = [] if high - low < _FEW else [index for index in known if not low <= index < high]
    if high - low > _MANY and not found:
        for index, rest in ((low, values[low + 1 : high]), (high - 1, values[low : high - 1])):
            if _REPEATED <= counts[index] <= _SHARE * counts.sum() and _gap(values[index], rest) > _GAP * np.ptp(rest):
                found.append(index)
    if 2 * int(counts[found].sum()) > int(counts.sum()):
        return ()
    return tuple(float(values[index]) for index in sorted(found))


def _far(value: float, count: int, rest: Array) -> bool:
    """Whether a value of a known form is far outside of ``rest``, which is sorted."""
    gap, width = _gap(value, rest), float(rest[-1] - rest[0])
    return gap > _GAP * width or (count >= 2 and (gap > width or (value < 0.0 <= rest[0])))


def _gap(value: float, rest: Array) -> float:
    with np.errstate(over="ignore"):
        return float(max(rest[0] - value, value - rest[-1]))


def limits_of(column: Array) -> tuple[float, float] | None:
    """The range of a column without its gross outliers, or None if it has none.

    Outliers are values more than ten robust deviations (interquartile range/1.349) from the median, at most a hundredth
    of all, without which the standard deviation is less than a third. Heavy tails by themselves are none: there many
    values are far out, or they do not carry the variance.
    """
    values = column[np.isfinite(column)]
    if len(values) < 2 * _MANY:
        return None
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    spread = (high - low) / 1.349
    if not spread > 0:
        return None
    rest = values[np.abs(values - middle) <= FAR * spread]
    if len(rest) == len(values) or len(values) - len(rest) > RARE * len(values):
        return None
    # Divided first: squares of huge values leave the range of float64.
    with np.errstate(over="ignore"):
        whole = float(((values - middle) / spread).std())
    if not whole > INFLATED * float(((rest - middle) / spread).std()):
        return None
    return float(rest.min()), float(rest.max())


def has_heavy_tails(column: Array) -> bool:
    """Whether the outermost hundredth of a column of many values carries more than half of its variance.

    Of a normal column it carries 8 %, of an exponential one 20 %.
    """
    if not np.ptp(column) > 0 or not np.ptp(np.quantile(column, [0.25, 0.75])) > 0:
        return False
    squares = np.sort(((column - np.median(column)) / np.abs(column).max()) ** 2)
    last = squares[-max(1, round(RARE * len(squares))) :]
    many = len(column) >= 10 * _MANY and len(np.unique(last)) >= min(_FEW, len(last))
    return bool(many and last.sum() > HEAVY * squares.sum())


def numbers_rows(column: Array) -> bool:
    """Whether a column only numbers the rows: whole numbers, all different, sorted or without a gap."""
    if len(column) < FEWEST_NUMBERED or not np.isfinite(column).all() or (column != np.round(column)).any():
        return False
    steps = np.diff(column)
    gapless = np.ptp(column) == len(column) - 1 and len(np.unique(column)) == len(column)
    return bool((steps > 0).all() or (steps < 0).all() or gapless)


def is_key(column: Array, outputs: Array) -> bool:
    """Whether a column of different whole numbers in no order says nothing about the outputs (N, d), as a key would.

    Its ranks correlate with no output, nor do the outputs' means over ten classes of it differ, beyond chance.
    """
    n = len(column)
    if n < 10 * _FEW or (column != np.round(column)).any() or len(np.unique(column)) < n:
        return False
    order = np.argsort(column)
    Y = outputs[order] - outputs.mean(axis=0)
    size = Y.std(axis=0)
    Y = Y[:, size > 0] / size[size > 0]
    if not Y.shape[1]:
        return False
    position = np.linspace(-math.sqrt(3), math.sqrt(3), n)
    # Of as many normal numbers as there are outputs, the largest stays below this with some certainty.
    bound = math.sqrt(2 * math.log(100 * Y.shape[1]))
    if np.abs(position @ Y).max() > bound * math.sqrt(n):
        return False
    classes = np.array_split(Y, 10)
    between = sum(len(part) * part.mean(axis=0) ** 2 for part in classes)
    # χ² with nine degrees of freedom, by Wilson and Hilferty.
    z = ((between / 9) ** (1 / 3) - (1 - 2 / 81)) / math.sqrt(2 / 81)
    return bool(z.max() < bound)


def copies(inputs: Array, outputs: Array) -> list[tuple[int, int]]:
    """Pairs of an input and an output of the same order of rows, up or down: one is a function of the other.

    Only columns with at least twenty different values are looked at.
    """
    pairs = []
    ranks = [_ranks(A) for A in (inputs, outputs)]
    if ranks[0].size and ranks[1].size:
        alike = np.abs(ranks[0].T @ ranks[1]) > 1.0 - 1e-9
        pairs = [(int(i), int(j)) for i, j in np.argwhere(alike)]
    return pairs


def _ranks(A: Array) -> Array:
    """Ranks of each column, centred, of norm 1; 0 for columns of few values."""
    R = np.zeros(A.shape)
    for j, column in enumerate(A.T):
        values, index, counts = np.unique(column, return_inverse=True, return_counts=True)
        if len(values) >= _MANY:
            rank = (np.cumsum(counts) - (counts - 1) / 2)[index]
            rank = rank - rank.mean()
            R[:, j] = rank / np.linalg.norm(rank)
    return R
