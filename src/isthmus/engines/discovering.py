"""One configuration of a sweep over discover: the arguments as plain data, the answer as a Run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from isthmus._checks import fail
from isthmus._errors import DataError
from isthmus._settings import KINDS
from isthmus.discovery import Discovery, discover
from isthmus.experiments._experiment import plain_scalars
from isthmus.runs import Outcome, Run, provenance

#: The arrays that a task of discover may have.
ROLES = ("X", "Y", "groups", "time", "na_values")


def digest(data: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the arrays of a table: their names, types, shapes and contents."""
    found = hashlib.sha256()
    for name in sorted(data):
        array = np.ascontiguousarray(data[name])
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def discover_run(parameters: Mapping[str, Any], data: Mapping[str, np.ndarray]) -> Run:
    """Discover with these arguments on these arrays.

    Parameters
    ----------
    parameters : mapping
        Every setting of discover, and ``data``, the :func:`digest` of the arrays.
    data : mapping of str to ndarray
        ``X``, ``Y`` (the same array as X asks for an autoencoder), and ``groups``, ``time`` and ``na_values`` if any.
    """
    if parameters.get("data") != digest(data):
        do = "Send the arrays that the configuration was made for."
        fail("sweep", "the data must have the SHA-256 of the configuration", digest(data), do, error=DataError)
    began, clock = time.time(), time.perf_counter()
    X, Y = data["X"], data["Y"]
    # What tells discover an autoencoder is identity, which is lost between processes.
    same = X if X.shape == Y.shape and X.dtype == Y.dtype and np.array_equal(X, Y, equal_nan=True) else Y
    options = {name: parameters[name] for name in KINDS}
    more = {name: data[name] for name in ROLES[2:] if name in data}
    found = discover(X, same, **more, **options)
    source = provenance(
        seed=parameters["seed"], dtype="float32", started=began, seconds=round(time.perf_counter() - clock, 3)
    )
    extra = {"measured": _measured(found), "sentence": found.sentence, "reasons": list(found.reasons)}
    return Run("discover", dict(parameters), _arrays(found), _outcomes(found), {**source, **extra})


def _measured(found: Discovery) -> dict[str, Any]:
    """Scalars for tables; what the network of the chosen rank has, where a profile was made."""
    scalars: dict[str, Any] = {"rank": found.rank, "verdict": found.verdict, "held_out": float(found.error)}
    profile = found.profile
    if profile is not None and found.rank in profile.ranks:
        at = int(np.flatnonzero(profile.ranks == found.rank)[0])
        scalars |= {name: float(getattr(profile, name)[at]) for name in ("norm", "loss", "cost")}
        state = profile.states[at]
        scalars["training"] = {"at rest": "flat", "falling": "budget"}.get(state, state)
        scalars["converged"] = state == "at rest"
    return plain_scalars(scalars)


def _arrays(found: Discovery) -> dict[str, np.ndarray]:
    arrays = {"rank": np.array(found.rank), "held_out": np.array(found.error), "coordinates": found.coordinates}
    if found.profile is not None:
        for name in ("ranks", "cost", "loss", "error", "standard_error", "norm", "regularity", "shares"):
            arrays[f"profile_{name}"] = getattr(found.profile, name)
    return arrays


def _outcomes(found: Discovery) -> list[Outcome]:
    known = found.verdict != "undetermined"
    reason = "" if known else (found.reasons[0] if found.reasons else "undetermined")
    return [
        Outcome("the rank is determined", "agrees" if known else "undetermined", found.verdict, "determined", reason)
    ]
