"""JSON without its loopholes: no NaN literals, duplicate keys, unbounded nesting, overflowing numbers."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any

import numpy as np
from torch import Tensor

from isthmus._atomic import open_checked, shown, write_atomic
from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError

MAX_JSON_BYTES = 2**24
MAX_NESTING = 64
MAX_VALUES = 2**20
_MAX_DIGITS = 40

# Strings are matched whole, so that brackets inside them do not count. Possessive, and with an optional
# closing quote: an unclosed string is then one match to the end, and the scan is linear on hostile text too.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def dumps(who: str, value: object, *, indent: int | None = None) -> str:
    """Strict JSON text (ASCII, keys in their given order) of plain data, NumPy and torch values.

    Numbers, strings, booleans, None, lists, tuples and dicts with string keys; NumPy and torch scalars become
    numbers, arrays nested lists. JSON has no NaN or infinity: they are written as the *strings* ``"nan"``,
    ``"inf"`` and ``"-inf"``, which ``float`` reads back. Anything else fails, with its place named.
    """
    return json.dumps(
        _plain(who, value, "", 0), indent=indent, allow_nan=False, separators=None if indent else (",", ":")
    )


def _plain(who: str, value: Any, place: str, depth: int) -> Any:
    where = f"the value at {shown(place)}" if place else "the value"
    if depth > MAX_NESTING:
        fail(who, f"JSON must nest at most {MAX_NESTING} deep", f"more, near {shown(place)}", "Flatten it.")
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if abs(value) >= 10 ** (_MAX_DIGITS - 1):
            fail(
                who,
                f"{where} must have fewer than {_MAX_DIGITS} digits",
                "a larger integer",
                "Store it as text.",
            )
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (list, tuple)):
        return [_plain(who, entry, f"{place}[{i}]", depth + 1) for i, entry in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                fail(who, f"keys of {where} must be strings", shown(key), "Convert the keys with str().")
        return {str(k): _plain(who, entry, f"{place}.{k}", depth + 1) for k, entry in value.items()}
    return fail(
        who,
        f"{where} must be plain data",
        f"a {shown(type(value).__name__)}",
        "Convert it to numbers, text or lists.",
    )


def loads(who: str, text: bytes, label: str, *, max_values: int = MAX_VALUES) -> Any:
    """Parse strict JSON; whatever is wrong is a ``FileFormatError`` that calls the text ``label``."""
    must, do = f"{label} must be strict JSON", "The file is damaged or not of this kind."
    # Judged before parsing: short text can stand for very many objects, and deep text for deep recursion.
    # Every value follows a comma or a bracket; those inside strings count too, an error on the safe side.
    if sum(map(text.count, (b",", b"[", b"{"))) > max_values:
        fail(who, must, f"more than {max_values} values", do, error=FileFormatError)
    depth = 0
    for match in _TOKENS.finditer(text):
        token = text[match.start()]
        depth += (token in b"[{") - (token in b"]}")
        if depth > MAX_NESTING:
            fail(who, must, f"nesting more than {MAX_NESTING} deep", do, error=FileFormatError)
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_int=_integer,
            parse_float=_finite,
        )
    except IsthmusError:
        raise
    except (ValueError, RecursionError) as problem:
        # The problem's own text may quote the file at length.
        return fail(who, must, shown(str(problem)), do, error=FileFormatError)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        key = next(k for k, _ in pairs if k in seen or seen.add(k))
        raise ValueError(f"duplicate key {shown(key, 60)}")
    return found


def _refuse(literal: str) -> None:
    raise ValueError(f"the literal {literal}")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {shown(digits, 40)}, which overflows")
    return number


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write ``value`` atomically as strict, indented JSON.

    NumPy and torch scalars become numbers and arrays nested lists; NaN and infinities become the strings
    ``"nan"``, ``"inf"``, ``"-inf"`` (strict JSON cannot hold them; ``float`` reads them back).
    """
    write_atomic(path, (dumps("write_json", value, indent=2) + "\n").encode())


def read_json(path: str | os.PathLike[str], *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read strict JSON: NaN literals, duplicate keys, overflowing numbers and deep nesting are refused."""
    who = "read_json"
    with open_checked(who, path, max_bytes) as (handle, size):
        return loads(who, handle.read(size), shown(path))
