"""The column of classes of a table: labels as they stand there, beside the features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

if TYPE_CHECKING:
    import pandas as pd

    from isthmus.tables import Columns


def choose_labelled(
    frame: pd.DataFrame, classes: str, roles: Mapping[str, Any], missing: str, text: str
) -> tuple[Columns, np.ndarray]:
    """Features and the rest of their roles, and the label of each row that is used.

    Parameters
    ----------
    frame : DataFrame
    classes : str
        Name of the column of labels: numbers, truth values or texts.
    roles, missing, text
        As :func:`isthmus.tables.choose_columns` takes them; rows without a label go unless ``missing`` is "error".
    """
    from isthmus._atomic import shown
    from isthmus._checks import fail
    from isthmus._errors import DataError
    from isthmus.tables import choose_columns

    names = [str(name) for name in frame.columns]
    wanted = classes.strip()
    if wanted not in names:
        listed = ", ".join(repr(name) for name in names[:20]) + (f" and {len(names) - 20} more" * (len(names) > 20))
        raise typer.BadParameter(f"--classes must name a column, and {wanted!r} is none. Columns: {listed}")
    column = frame.iloc[:, names.index(wanted)]
    kept = np.arange(len(frame)) if missing == "error" else np.flatnonzero(column.notna().to_numpy())
    others = frame.drop(columns=frame.columns[names.index(wanted)]).iloc[kept].reset_index(drop=True)
    others.attrs = dict(frame.attrs)
    chosen = choose_columns(others, **roles, missing=missing, text=text, need_targets=False)
    rows = kept[chosen.rows]
    notes = chosen.notes
    if len(kept) < len(frame):
        notes = (*notes, f"dropped {len(frame) - len(kept)} rows without a class")
    labels = column.to_numpy()[rows]
    if labels.dtype.kind == "f" and np.isfinite(labels).all():
        if not np.array_equal(labels, np.round(labels)):
            do = "Use --target for numbers, or cut them into classes."
            must, got = "--classes must name a column of labels", f"continuous numbers in {shown(wanted, 60)}"
            fail("discover", must, got, do, error=DataError)
        # Whole numbers that a gap elsewhere in the column has turned into 1.0, 2.0, …
        labels = labels.astype(np.int64)
    return dataclasses.replace(chosen, rows=rows, notes=notes), labels


def indicators(labels: np.ndarray) -> np.ndarray:
    """Rows of 0 and 1, classes in their order."""
    classes, index = np.unique(labels, return_inverse=True)
    return np.eye(len(classes))[index.reshape(-1)]
