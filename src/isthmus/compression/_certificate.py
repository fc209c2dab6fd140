"""What compression has shown: where the two networks are equal, how nearly, and what it cost and saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from torch import nn

from isthmus import _html
from isthmus._codec import Plain, Within
from isthmus._strict_json import dumps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isthmus._result import Table

EVERYWHERE, ON_DATA, WITHIN, UNCHANGED = "everywhere", "the data", "within a tolerance on the data", "unchanged"

DOMAINS = (EVERYWHERE, ON_DATA, WITHIN, UNCHANGED)

#: Raised when a field of the JSON changes its meaning or goes.
SCHEMA_VERSION = 1


#: More than any network has: neither counts nor lists of a file may be without end.
_MOST, _MOST_ENTRIES = 10**15, 10**5
Number = Annotated[int, Within(0, _MOST)]
#: What is infinite where the other network has nothing, and what may also be unknown.
Share = Annotated[float, Within(0.0, words=("inf",))]
Measured = Annotated[float, Within(0.0, words=("nan", "inf"))]


@dataclass(frozen=True)
class LayerChange(Plain):
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

    closed: ClassVar = True

    layer: str
    before: Number
    after: Number
    linear: Number = 0
    removed: Mapping[str, Number] = field(default_factory=dict)

    def _check(self, content: Mapping[str, Any]) -> None:  # noqa: ARG002
        if self.linear > self.after:
            raise ValueError("more linear neurons than neurons")


class Untouched(NamedTuple):
    """A part that was left alone, and why."""

    part: str
    reason: str


@dataclass(frozen=True, eq=False)
class Certificate(Plain):
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

    document: ClassVar = ("isthmus.compression", SCHEMA_VERSION, "a certificate of isthmus.compression")
    derived: ClassVar = ("neurons_before", "neurons_after")
    later: ClassVar = ("operations_before", "operations_after")
    closed: ClassVar = True

    domain: str
    deviation: Share
    before_rounding: Share
    tolerance: Share
    points: Number
    elsewhere: Share | None
    norm_before: Share
    norm_after: Share
    parameters_before: Number
    parameters_after: Number
    bytes_before: Number
    bytes_after: Number
    latency_before: Measured
    latency_after: Measured
    batch: Number
    layers: Annotated[tuple[LayerChange, ...], Within(most=_MOST_ENTRIES)]
    operations_before: Measured = math.nan
    operations_after: Measured = math.nan
    untouched: Annotated[tuple[Untouched, ...], Within(most=_MOST_ENTRIES)] = ()
    notes: Annotated[tuple[str, ...], Within(most=_MOST_ENTRIES)] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "untouched", tuple(Untouched(*one) for one in self.untouched))

    def _check(self, content: Mapping[str, Any]) -> None:
        if self.domain not in DOMAINS:
            raise ValueError(f"the domain {self.domain!r:.40}")
        if (self.neurons_before, self.neurons_after) != (content["neurons_before"], content["neurons_after"]):
            raise ValueError("neurons that are not the sum of the layers")

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

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON; numbers that are not finite as their names."""
        return dumps("Certificate.to_json", self.to_dict())

    def plot(self, figure: Figure | None = None) -> Figure:
        """Widths before and after by layer, why neurons went, and what is left of each cost, as a matplotlib figure."""
        from isthmus.plotting.compression import plot

        return plot(self.to_dict(), figure)


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
