"""`isthmus transform` and `isthmus predict`: the maps of a discovery on new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.base import AsJson
from isthmus.cli.given import Decimal, DecimalMark, NaValues, Reading, check_paths, features_of, file_of, table_of
from isthmus.cli.screen import console, print_notes, text

if TYPE_CHECKING:
    import numpy as np

    from isthmus.discovery import Discovery

_Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder of a discovery, or a file of isthmus.save: its maps.")
]
_Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="New rows, with the input columns of the model by name; any order.")
]
_Out = Annotated[
    Path | None, typer.Option(metavar="FILE.csv", help="Write there instead of on stdout.", show_default=False)
]


def transform(
    model: _Model,
    data: _Data,
    out: _Out = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    as_json: AsJson = False,
) -> None:
    """Coordinates of new rows, as CSV: coordinate0, coordinate1, …, one line per row."""
    check_paths({"MODEL": file_of(model), "DATA": data}, {"--out": out})
    found = _load(model)
    X, notes = features_of(found, table_of(data, Reading(decimal, na_values=na_values)))
    names = [f"coordinate{j}" for j in range(found.rank)]
    if not names:
        notes = (*notes, "there are no coordinates: the discovery has rank 0, its outputs are constant")
    _give(names, found.transform(X), notes, out, as_json=as_json)


def predict(
    model: _Model,
    data: _Data,
    out: _Out = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    as_json: AsJson = False,
) -> None:
    """Outputs predicted for new rows, as CSV: one column per target, one line per row.

    Of a discovery of classes: the class of each row, then the probability of every class.
    """
    import numpy as np

    check_paths({"MODEL": file_of(model), "DATA": data}, {"--out": out})
    found = _load(model)
    X, notes = features_of(found, table_of(data, Reading(decimal, na_values=na_values)))
    if found.loss == "cross_entropy":
        P = found.probabilities(X)
        likely = np.array(found.target_names, dtype=object)[P.argmax(axis=1)]
        names = ["class", *(f"probability:{name}" for name in found.target_names)]
        _give(names, np.column_stack([likely, P.astype(object)]), notes, out, as_json=as_json)
        return
    _give(list(found.target_names), found.predict(X), notes, out, as_json=as_json)


def _load(model: Path) -> Discovery:
    from isthmus._atomic import shown
    from isthmus._checks import fail
    from isthmus._errors import DataError
    from isthmus.cli.discovery_folder import MODEL
    from isthmus.discovery import Discovery
    from isthmus.files import load

    path = model / MODEL if model.is_dir() else model
    found: Any = load(path)
    found = getattr(found, "discovery_", found)
    if not isinstance(found, Discovery):
        must = f"{shown(path)} must hold a Discovery or a fitted estimator"
        do = "`isthmus discover` writes one, and isthmus.save."
        fail("load", must, f"a {type(found).__name__}", do, error=DataError)
    return found


def _give(
    names: list[str],
    values: np.ndarray,
    notes: tuple[str, ...],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    import pandas as pd

    from isthmus._folders import csv_bytes
    from isthmus._strict_json import dumps
    from isthmus.files import write_atomic

    print_notes(notes)
    content = csv_bytes(pd.DataFrame(values, columns=pd.Index(names, dtype=object)).infer_objects())
    if values.dtype == object:
        values = values.tolist()
    if out is not None:
        write_atomic(out, content)
    if as_json:
        document = {"columns": names, "rows": len(values), "notes": list(notes)}
        print(dumps("print", document | ({"values": values} if out is None else {"file": str(out)}), indent=2))
    elif out is None:
        sys.stdout.write(content.decode() if names else "")
    else:
        shown = ", ".join(names[:5]) or "nothing"
        console().print(text(f"wrote {out}: {len(values)} rows of {shown}{', …' * (len(names) > 5)}"))
