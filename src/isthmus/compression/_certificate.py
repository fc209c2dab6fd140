"""What compression has shown: where the two networks are equal, how nearly, and what it cost and saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from isthmus import _html
from isthmus._checks import fail
from isthmus._errors import FileFormatError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isthmus._result import Table

EVERYWHERE, ON_DATA, WITHIN, UNCHANGED = "everywhere", "the data", "within a tolerance on the data", "unchanged"

DOMAINS = (EVERYWHERE, ON_DATA, WITHIN, UNCHANGED)

#: Raised when a field of the JSON changes its meaning or goes.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class LayerChange:
    """What happened to one hidden layer.

    Attributes
    ----------
    layer : str
    before, after : int
        Neurons; 0 after where the layer was joined with the next.
    linear : int
        How many of those left have no activation.
    removed : mapping
        What was done → how many neurons went.
    """

    layer: str
    before: int
    after: int
    linear: int = 0
    removed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Certificate:
    """Equality of a network and its smaller version, measured on the result itself.

    Attributes
    ----------
    domain : {"everywhere", "the data", "within a tolerance on the data", "unchanged"}
        Where the outputs are equal: up to rounding, or within ``tolerance``.
    deviation : float
        Largest difference of outputs relative to the largest output, in float64, of the network that is returned.
    before_rounding : float
        The same in float64 before the result was cast to the dtype of the network.
    tolerance : float
        What was allowed.
    points : int
        At how many points it was measured: random ones for ``"everywhere"``, the data otherwise.
    elsewhere : float or None
        The deviation on ``check``, samples that nothing was fitted to.
    norm_before, norm_after : float
        ‖θ‖².
    parameters_before, parameters_after, bytes_before, bytes_after : int
    latency_before, latency_after : float
        Median milliseconds of one forward pass of ``batch`` rows, runs of the two in turn.
    batch : int
    operations_before, operations_after : float
        Floating-point operations of that pass, two for a product, as PyTorch counts them; NaN where it was not run.
    layers : tuple of LayerChange
    untouched : tuple of (str, str)
        Parts that were left alone, and why.
    notes : tuple of str
        What was tried and taken back, and other things to know.
    """

    domain: str
    deviation: float
    before_rounding: float
    tolerance: float
    points: int
    elsewhere: float | None
    norm_before: float
    norm_after: float
    parameters_before: int
    parameters_after: int
    bytes_before: int
    bytes_after: int
    latency_before: float
    latency_after: float
    batch: int
    layers: tuple[LayerChange, ...]
    operations_before: float = math.nan
    operations_after: float = math.nan
    untouched: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def neurons_before(self) -> int:
        """Hidden neurons of the parts that were looked at."""
        return sum(layer.before for layer in self.layers)

    @property
    def neurons_after(self) -> int:
        """Hidden neurons that are left of them."""
        return sum(layer.after for layer in self.layers)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.domain == UNCHANGED:
            return "Nothing was found that could go: the network is returned as it was."
        if self.parameters_after == self.parameters_before and self.neurons_after == self.neurons_before:
            kept = "the same function" if self.domain == EVERYWHERE else "the same outputs on the data"
            return (
                f"No neuron could go; ‖θ‖² fell from {self.norm_before:.4g} to {self.norm_after:.4g} at {kept} "
                f"(largest deviation {self.deviation:.1e} of the largest output)."
            )
        fewer = self.parameters_before / max(self.parameters_after, 1)
        # A layer that is factored gains neurons without an activation.
        some = 0 < self.neurons_before >= self.neurons_after
        neurons = f"{self.neurons_before} → {self.neurons_after} neurons, " if some else ""
        size = f"{neurons}{self.parameters_before:,} → {self.parameters_after:,} parameters ({fewer:.3g} times fewer)"
        where = {
            EVERYWHERE: "the same function everywhere",
            ON_DATA: "the same outputs on the data",
            WITHIN: f"outputs on the data within {self.tolerance:g} of the largest",
        }[self.domain]
        return f"{size}; {where} (largest deviation {self.deviation:.1e} of the largest output)."

    @property
    def verdict(self) -> str:
        """Where the two are equal."""
        return self.domain

    @property
    def reasons(self) -> tuple[str, ...]:
        """None: what was done is in the tables."""
        return ()

    def tables(self) -> list[Table]:
        """Layers, costs before and after, evidence, reasons, and what was left alone."""
        from isthmus.compression._tables import tables_of

        return tables_of(self)

    def plot(self, figure: Figure | None = None) -> Figure:
        """Widths before and after by layer, why neurons went, and what is left of each cost, as a matplotlib figure."""
        from isthmus.plotting.compression import plot

        return plot(self.to_dict(), figure)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in ("layers", "untouched", "notes")}
        return {
            "format": "isthmus.compression",
            "version": SCHEMA_VERSION,
            "sentence": self.sentence,
            **plain,
            "neurons_before": self.neurons_before,
            "neurons_after": self.neurons_after,
            "layers": [{**vars(layer), "removed": dict(layer.removed)} for layer in self.layers],
            "untouched": [{"part": part, "reason": reason} for part, reason in self.untouched],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, content: Any) -> Certificate:
        """The certificate that :meth:`to_dict` describes, of a file that may be a stranger's.

        Every field must be there, of its type and in its range, and no other; what follows from others is computed
        again.
        """
        who, do = "Certificate.from_dict", "Pass what `Compressed.to_dict` or `isthmus compress --json` gave."
        found = (content.get("format"), content.get("version")) if isinstance(content, Mapping) else type(content)
        if found != ("isthmus.compression", SCHEMA_VERSION):
            fail(
                who,
                f"`content` must be of the format isthmus.compression, version {SCHEMA_VERSION}",
                found,
                do,
                error=FileFormatError,
            )
        try:
            made = cls(**_fields(content))
            if (made.neurons_before, made.neurons_after) != (content["neurons_before"], content["neurons_after"]):
                raise ValueError("neurons that are not the sum of the layers")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            got = f"{type(error).__name__}: {error}"
            fail(who, "every field must be there and of its type, and no other", got, do, error=FileFormatError)
        return made


@dataclass(frozen=True, eq=False, repr=False)
class Compressed:
    """A smaller network and what is certain about it.

    Attributes
    ----------
    network : nn.Module
        Of PyTorch's own layers, in modules of the classes that were given: in the same dtype and mode, on the same
        device.
    certificate : Certificate
    """

    network: nn.Module
    certificate: Certificate

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return self.certificate.sentence

    @property
    def verdict(self) -> str:
        """Where the two are equal."""
        return self.certificate.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of the certificate."""
        return self.certificate.reasons

    def tables(self) -> list[Table]:
        """Of the certificate."""
        return self.certificate.tables()

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain data."""
        return self.certificate.to_dict()

    def plot(self, figure: Figure | None = None) -> Figure:
        """Widths before and after by layer, why neurons went, and what is left of each cost, as a matplotlib figure."""
        return self.certificate.plot(figure)

    def __repr__(self) -> str:
        found = self.certificate
        return (
            f"Compressed(domain={found.domain!r}, parameters={found.parameters_before}→{found.parameters_after}, "
            f"deviation={found.deviation:.1e})"
        )

    def _repr_html_(self) -> str:
        return _html.result(self, _html.items(self.certificate.notes))


#: Fields of a Certificate by their types.
_COUNTS = ("points", "parameters_before", "parameters_after", "bytes_before", "bytes_after", "batch")

_NUMBERS = ("deviation", "before_rounding", "tolerance", "norm_before", "norm_after")

_TIMES = ("latency_before", "latency_after", "operations_before", "operations_after")

_DERIVED = {"format", "version", "sentence", "neurons_before", "neurons_after"}

#: More than any network has: neither counts nor layers of a file may be without end.
_MOST, _MOST_LAYERS = 10**15, 10**5


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a Certificate from plain data, each checked."""
    # Certificates were written without these.
    content = {"operations_before": math.nan, "operations_after": math.nan, **content}
    _keys("the certificate", content, {*Certificate.__dataclass_fields__, *_DERIVED})
    if content["domain"] not in DOMAINS:
        raise ValueError(f"the domain {content['domain']!r:.40}")
    if not all(isinstance(content[name], list) for name in ("layers", "untouched", "notes")):
        raise TypeError("layers, untouched and notes must be lists")
    if max(len(content[name]) for name in ("layers", "untouched", "notes")) > _MOST_LAYERS:
        raise ValueError(f"more than {_MOST_LAYERS} layers, parts or notes")
    untouched = []
    for part in content["untouched"]:
        _keys("an untouched part", part, {"part", "reason"})
        untouched.append((_text(part["part"]), _text(part["reason"])))
    return {
        "domain": content["domain"],
        **{name: _count(name, content[name]) for name in _COUNTS},
        **{name: _number(name, content[name]) for name in _NUMBERS},
        **{name: _number(name, content[name], missing=True) for name in _TIMES},
        "elsewhere": None if content["elsewhere"] is None else _number("elsewhere", content["elsewhere"]),
        "layers": tuple(_layer(layer) for layer in content["layers"]),
        "untouched": tuple(untouched),
        "notes": tuple(_text(note) for note in content["notes"]),
    }


def _layer(content: Any) -> LayerChange:
    _keys("a layer", content, {"layer", "before", "after", "linear", "removed"})
    removed = content["removed"]
    if not isinstance(removed, Mapping):
        raise TypeError("what was removed must be a mapping")
    counts = {name: _count(name, content[name]) for name in ("before", "after", "linear")}
    if counts["linear"] > counts["after"]:
        raise ValueError("more linear neurons than neurons")
    gone = {_text(why): _count("removed", count) for why, count in removed.items()}
    return LayerChange(_text(content["layer"]), **counts, removed=gone)


def _keys(what: str, content: Any, wanted: set[str]) -> None:
    if not isinstance(content, Mapping) or set(content) != wanted:
        got = sorted(map(str, set(content) ^ wanted))[:5] if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(f"{what} with missing or unknown fields: {got!r:.200}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} in the place of a text")
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{name:.40} = {value!r:.40}")
    return value


def _number(name: str, value: Any, *, missing: bool = False) -> float:
    """A number ≥ 0, which JSON writes as a word where it is not finite; NaN only where it may be missing."""
    number = float(value) if value in ("nan", "inf") else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name} = {value!r:.40}")
    number = float(number)
    if not number >= 0 and not (missing and math.isnan(number)):
        raise ValueError(f"{name} = {value!r:.40}")
    return number
