"""One codec for results: what is written comes back, and what is not of its type or range is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus import IsthmusError
from isthmus._codec import LARGEST, Count, Plain, Size, Within
from isthmus._errors import FileFormatError


class Pair(NamedTuple):
    what: str
    why: str


@dataclass(frozen=True)
class Inner:
    name: str
    share: float


@dataclass(frozen=True, eq=False)
class Whole(Plain):
    document: ClassVar = ("a format", 2, "a whole")
    keys: ClassVar = {"kind_of_it": "kind"}
    derived: ClassVar = ("twice",)
    later: ClassVar = ("limit",)

    kind_of_it: Literal["good", "bad"]
    count: Count
    size: Size
    sure: bool
    rank: int | None
    inner: tuple[Inner, ...]
    values: Annotated[Tensor, Within(0.0, most=3)]
    numbers: Mapping[str, Sequence[float]]
    pairs: tuple[Pair, ...] = ()
    limit: Annotated[float, Within(0.0, null=math.inf)] = 1.0
    bare: Annotated[float, Within(words=("inf",))] = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        return "A whole."

    @property
    def twice(self) -> int:
        return 2 * self.count

    def _check(self, content: Mapping[str, Any]) -> None:
        if self.count and content["twice"] != self.twice:
            raise ValueError("twice must be twice")


def whole(**changes: Any) -> Whole:
    content = {"kind_of_it": "good", "count": np.int64(3), "size": 0.5, "sure": np.bool_(True), "rank": None}
    content |= {"inner": (Inner("a", math.nan), Inner("b", 1)), "values": torch.tensor([2.0, 0.0]), "bare": math.inf}
    content |= {"numbers": {"x": [1.0, math.inf]}, "pairs": (Pair("this", "that"),), "about": {"any": [1, "two"]}}
    return Whole(**{**content, **changes})


def test_what_is_written_comes_back():
    found = whole(limit=math.inf)
    content = found.to_dict()
    assert content["format"] == "a format" and content["version"] == 2 and content["sentence"] == "A whole."
    assert content["kind"] == "good" and content["twice"] == 6 and content["inner"][0] == {"name": "a", "share": None}
    assert content["limit"] is None and content["bare"] == math.inf and content["numbers"] == {"x": [1.0, None]}
    text = json.dumps({**content, "bare": "inf"}, allow_nan=False)
    for again in (Whole.from_dict(content), Whole.from_dict(json.loads(text))):
        assert again.to_dict() == content
        assert torch.equal(again.values, found.values) and again.values.dtype == torch.float64
        assert math.isnan(again.inner[0].share) and again.limit == math.inf and again.pairs == found.pairs
        assert type(again.count) is int and again.sure is True


def test_fields_of_earlier_releases_have_their_defaults():
    content = whole().to_dict()
    del content["limit"]
    assert Whole.from_dict(content).limit == 1.0
    # Whatever more a file holds is passed over, unless the class is closed.
    assert Whole.from_dict({**content, "more": 1}).count == 3


@dataclass(frozen=True)
class Closed(Plain):
    closed: ClassVar = True
    later: ClassVar = ("second",)

    first: int
    second: int = 0


def test_a_closed_class_takes_no_more():
    assert Closed.from_dict({"first": 1}) == Closed(1)
    assert Closed.from_dict({"first": 1, "second": 2}) == Closed(1, 2)
    for content in ({"second": 1}, {"first": 1, "third": 1}, [], None):
        with pytest.raises(ValueError, match="missing or unknown fields"):
            Closed.from_dict(content)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("format", ["another", None]),
        ("version", [1, "2"]),
        ("kind", ["ugly", None, ["good"]]),
        ("count", [-1, True, 1.0, "1", None, LARGEST + 1]),
        ("size", [-0.5, "nan", "inf", True, math.inf, 10**400]),
        ("sure", [1, "true", None]),
        ("rank", [0.5, False, "none"]),
        ("inner", [{}, "ab", [None], [{"name": "a"}], [{"name": 1, "share": 1.0}]]),
        ("values", [[1.0, None], [-1.0], [1.0] * 4, ["1"], [[1.0]], [True], 1.0]),
        ("numbers", [[], {"x": 1.0}, {1: [1.0]}]),
        ("pairs", [[["this", "that"]], [{"what": "this"}], [{"what": "this", "why": "that", "more": ""}]]),
        ("limit", [-1.0, "inf"]),
        ("bare", ["nan", None, math.nan]),
        ("about", [[], None]),
        ("twice", [5]),
    ],
)
def test_what_is_not_as_it_must_be_is_refused(key, values):
    content = whole().to_dict()
    without = {name: value for name, value in content.items() if name != key}
    for changed in ([without] if key != "limit" else []) + [{**content, key: value} for value in values]:
        with pytest.raises(FileFormatError, match=r"^Whole\.from_dict: "):
            Whole.from_dict(changed)


def test_no_mapping_is_no_document():
    for content in (None, [], "a format", 2):
        with pytest.raises(IsthmusError, match="must be a whole of version 2"):
            Whole.from_dict(content)


def test_only_plain_data_are_written():
    with pytest.raises(TypeError, match="a set is no plain data"):
        whole(pairs=({"a"},)).to_dict()
