"""One codec for all results: frozen dataclasses to plain data for JSON, and back, by the types of their fields.

What is read may be a stranger's: every field must be there, of exactly its type and in its range.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from isthmus._checks import fail
from isthmus._errors import FileFormatError

#: Integers beyond are not exact as numbers of JSON.
LARGEST = 2**53


@dataclass(frozen=True)
class Within:
    """The range of a number, or of the entries of a tensor, in the annotation of a field.

    Attributes
    ----------
    low, high : float
    most : int
        Entries of a tensor or a list.
    null : float
        What null stands for, of a number that was not finite.
    words : tuple of str
        ``"nan"`` or ``"inf"``, where the field may be that: such numbers stand in JSON as these words, not as null.
    """

    low: float = -math.inf
    high: float = math.inf
    most: int = 10**9
    null: float = math.nan
    words: tuple[str, ...] = ()


#: What is not negative.
Size = Annotated[float, Within(0.0)]
Count = Annotated[int, Within(0)]


class _Field(NamedTuple):
    name: str
    key: str
    hint: Any
    optional: bool


class Plain:
    """A frozen dataclass that is written as plain data, and read from untrusted plain data."""

    #: ``(format, version, "a what")`` of a document that stands by itself; it also gets the ``sentence``.
    document: ClassVar[tuple[str, int, str] | None] = None
    #: Fields whose keys are other words.
    keys: ClassVar[Mapping[str, str]] = {}
    #: Properties that are written for whoever reads the JSON; they are computed again.
    derived: ClassVar[tuple[str, ...]] = ()
    #: Fields that files of earlier releases do not have: their defaults are taken.
    later: ClassVar[tuple[str, ...]] = ()
    #: Whether any further key is refused.
    closed: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data for JSON; of lists that are long a part."""
        head = {}
        if self.document is not None:
            head = {"format": self.document[0], "version": self.document[1], "sentence": getattr(self, "sentence", "")}
        made = {one.key: _written(one.hint, getattr(self, one.name)) for one in _schema(type(self))}
        return {**head, **made, **{name: _written(Any, getattr(self, name)) for name in self.derived}}

    def to_json(self) -> str:
        """:meth:`to_dict` as text; no number in it is NaN or infinite (those are null)."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Inverse of :meth:`to_dict`, for untrusted content; what follows from the rest is computed again."""
        if cls.document is None:
            return cls._read(content)
        who, do = f"{cls.__name__}.from_dict", f"Pass what `{cls.__name__}.to_dict` or `to_json` gave."
        found = (content.get("format"), content.get("version")) if isinstance(content, Mapping) else type(content)
        if found != cls.document[:2]:
            must = f"`content` must be {cls.document[2]} of version {cls.document[1]}"
            fail(who, must, found, do, error=FileFormatError)
        try:
            return cls._read(content)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            got = f"{type(error).__name__}: {error}"
            return fail(who, "every field must be there and of its type", got, do, error=FileFormatError)

    @classmethod
    def _read(cls, content: Any) -> Self:
        if cls.closed:
            head = () if cls.document is None else ("format", "version", "sentence")
            _only(content, {*(one.key for one in _schema(cls)), *cls.derived, *head}, cls.later)
        made = cls(**_fields(cls, content))
        made._check(content)
        return made

    def _check(self, content: Mapping[str, Any]) -> None:
        """Raise a ValueError unless the fields, each of its type, fit together, and fit the rest of ``content``."""


@functools.cache
def _schema(kind: type) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    keys, later = getattr(kind, "keys", {}), getattr(kind, "later", ())
    if dataclasses.is_dataclass(kind):
        names = [one.name for one in dataclasses.fields(kind) if one.init]
    else:
        names, keys = list(getattr(kind, "_fields", ())), {}
    return tuple(_Field(name, keys.get(name, name), hints[name], name in later) for name in names)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"))


def _only(content: Any, wanted: set[str], later: Collection[str] = ()) -> None:
    wrong = (set(content) ^ wanted) - (set(later) - set(content)) if isinstance(content, Mapping) else {"a mapping"}
    if wrong:
        raise ValueError(f"missing or unknown fields: {sorted(map(str, wrong))[:5]!r:.200}")


def _written(hint: Any, value: Any) -> Any:
    if isinstance(value, Plain):
        return value.to_dict()
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if _is_record(type(value)):
        return {one.key: _written(one.hint, getattr(value, one.name)) for one in _schema(type(value))}
    if isinstance(value, (list, tuple)):
        return [_written(Any, one) for one in value]
    if isinstance(value, Mapping):
        # What is of any type is plain data already.
        inner = get_args(hint)[1:] or (Any,)
        return {key: one if inner[0] is Any else _written(inner[0], one) for key, one in value.items()}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        words = any(one.words for one in _ranges(hint))
        return float(value) if words or math.isfinite(value) else None
    raise TypeError(f"a {type(value).__name__} is no plain data")


def _ranges(hint: Any) -> list[Within]:
    """What is said of the range of a type, or of that type or None."""
    if get_origin(hint) in (Union, types.UnionType):
        return [found for one in get_args(hint) for found in _ranges(one)]
    return [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Within)]


def _fields(kind: type, content: Any) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise TypeError(f"a mapping is needed for {kind.__name__}, not a {type(content).__name__}")
    known = [one for one in _schema(kind) if one.key in content or not one.optional]
    return {one.name: _value(one.key, one.hint, content[one.key]) for one in known}


def _value(key: str, hint: Any, value: Any, within: Within = Within()) -> Any:  # noqa: B008
    """``value`` as the type ``hint`` says, or a ValueError or TypeError that names ``key``."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _value(key, inner[0], value, *_ranges(hint))
    if origin in (Union, types.UnionType):
        # The only unions are those with None.
        return None if value is None else _value(key, next(one for one in inner if one is not types.NoneType), value)
    if hint is float:
        return _number(key, value, within)
    if hint is int:
        low, high = max(within.low, -LARGEST), min(within.high, LARGEST)
        if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
            raise ValueError(f"{key:.40}: {value!r:.60} is not an integer in [{low:g}, {high:g}]")
        return int(value)
    if hint in (str, bool):
        return _of_type(key, value, hint)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{key:.40}: {value!r:.60} is not one of {', '.join(map(repr, inner))}")
        return value
    if hint is Tensor or origin in (tuple, Sequence):
        entries = _of_type(key, value, list)
        if len(entries) > within.most:
            raise ValueError(f"{key:.40}: {len(entries)} entries, and at most {within.most} are allowed")
        if hint is Tensor:
            null = dataclasses.replace(within, null=math.inf)
            return torch.tensor([_finite(key, _number(key, one, null)) for one in entries], dtype=torch.float64)
        return tuple(_value(key, inner[0], one) for one in entries)
    if origin in (Mapping, dict):
        _of_type(key, value, Mapping)
        return {_of_type(key, name, str): _value(key, inner[1], one) for name, one in value.items()}
    if _is_record(hint):
        if issubclass(hint, Plain):
            return hint.from_dict(value)
        if not dataclasses.is_dataclass(hint):
            _only(value, {one.key for one in _schema(hint)})
        record: Any = hint
        return record(**_fields(record, value))
    return value


def _number(key: str, value: Any, within: Within) -> float:
    if value is None and not within.words:
        return within.null
    if isinstance(value, str) and value in within.words:
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{key:.40}: {value!r:.60} is no number")
    number = float(value)
    if math.isnan(number) and "nan" in within.words:
        return number
    if not within.low <= number <= within.high or (math.isinf(number) and "inf" not in within.words):
        raise ValueError(f"{key:.40}: {value!r:.60} is not a finite number in [{within.low:g}, {within.high:g}]")
    return number


def _finite(key: str, number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{key:.40}: a number is missing")
    return number


def _of_type(key: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{key:.40}: a {kind.__name__} is needed, not a {type(value).__name__}")
    return value
