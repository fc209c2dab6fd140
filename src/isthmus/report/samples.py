"""What is known of some samples beside their coordinates: the columns that a cloud can be coloured by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus._checks import as_matrix, fail
from isthmus._errors import DataError
from isthmus.discovery import Discovery
from isthmus.plotting.discovery import COLUMNS, strongest_outputs
from isthmus.plotting.figure import thinned

Array = NDArray[np.float64]

#: How the name of a column begins, and what it means to a reader.
ROLES = {"x:": "input", "y:": "output", "h:": "predicted", "true:": "true", "recovered:": "recovered"}


def samples_of(found: Discovery, X: Any = None, Y: Any = None) -> dict[str, Array]:
    """The strongest inputs and outputs of at most 2,000 samples, evenly thinned, as ``{"x:NAME": column, …}``.

    Parameters
    ----------
    found : Discovery
    X, Y : array (N, d_in), (N, d_out), optional
        The data it was made from, in the order of its coordinates. Without Y, outputs are the maps' own: ``"h:NAME"``.
    """
    N, rows = len(found.coordinates), thinned(len(found.coordinates))
    columns: dict[str, Array] = {}
    if found.rank == 0:
        return columns
    U = found.coordinates[rows]
    measured = None if Y is None else _rows("Y", Y, N, len(found.target_names))[rows]
    values, role = (found.decode(U), "h:") if measured is None else (measured, "y:")
    for i in strongest_outputs(U, values):
        columns[f"{role}{found.target_names[i]}"] = values[:, i]
    if X is not None and found.sensitivity is not None:
        inputs = _rows("X", X, N, len(found.feature_names))[rows]
        order = np.argsort(-found.sensitivity.value.max(axis=0), kind="stable")[:COLUMNS]
        columns |= {f"x:{found.feature_names[i]}": inputs[:, i] for i in order}
    return columns


def check_samples(columns: Mapping[str, Any], count: int) -> dict[str, Array]:
    """Columns of a file as arrays, if they belong to ``count`` samples; fails otherwise."""
    length = len(range(count)[thinned(count)])
    checked: dict[str, Array] = {}
    for name, values in columns.items():
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            must = "the columns beside the samples must be numbers"
            fail("report", must, ascii(name)[:80], "Write the folder again.", error=DataError)
        if array.shape != (length,):
            must = f"the columns beside {count} samples must have {length} values"
            fail("report", must, f"shape {array.shape}", "Write the folder again.", error=DataError)
        if any(name.startswith(start) for start in ROLES):
            checked[name] = array
    return checked


def title(name: str) -> str:
    """``"x:speed"`` in words: the role, then the name."""
    for start, role in ROLES.items():
        if name.startswith(start):
            return f"{role} {name.removeprefix(start)}"
    return name


def _rows(name: str, value: Any, rows: int, columns: int) -> Array:
    array = as_matrix("save_report", name, value, columns=columns).numpy()
    if len(array) != rows:
        do = "Pass the data the Discovery was made from."
        fail("save_report", f"`{name}` must have {rows} rows, one for each sample", len(array), do)
    return array
