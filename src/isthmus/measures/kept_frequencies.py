"""Which frequencies a convolutional network keeps in its middle, with a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from isthmus._cite import cites
from isthmus.measures.filter_spectra import filter_spectra, signal_spectra
from isthmus.measures.frequency_spectrum import FrequencyReading
from isthmus.measures.gaps import GapRule


class Convolved(Protocol):
    """The trace of a convolutional network, as far as it is needed here."""

    @property
    def filters(self) -> tuple[Tensor, ...]:
        """W_1 … W_L, (c_ℓ, c_{ℓ-1}, k…)."""
        ...

    @property
    def preactivations(self) -> tuple[Tensor, ...]:
        """α̃_1 … α̃_L, (N, c_ℓ, n…)."""
        ...

    @property
    def size(self) -> tuple[int, ...]:
        """n, …."""
        ...

    @property
    def source_eps(self) -> float:
        """Unit round-off of the stored weights."""
        ...


@dataclass(frozen=True)
class LayerFrequencies:
    """One layer: what its filter lets through, and what its pre-activations carry of the samples' differences.

    Attributes
    ----------
    ell : int
        The layer, from 1.
    weights, signals : FrequencyReading
    filter_norm, operator_norm : float
        ‖W‖, which is regularised, and (Σ_{ω,i} s²)^½ = √positions·‖W‖.
    """

    ell: int
    weights: FrequencyReading
    signals: FrequencyReading
    filter_norm: float
    operator_norm: float

    @property
    def clear(self) -> bool:
        """Whether both spectra drop clearly, or not at all, and keep the same waves; about ω = 0 they may differ."""
        both = (self.weights, self.signals)
        sets = [{one.frequency for one in found.waves} for found in both]
        return all(one.reading.status in ("clear", "full") for one in both) and sets[0] == sets[1]

    @property
    def dimensions(self) -> int:
        """Dimensions of the waves that the signals keep."""
        return sum(one.dimensions for one in self.signals.waves)

    @property
    def mean(self) -> str:
        """``"varies"``, ``"constant"`` or ``"absent"``: what happens at ω = 0."""
        if self.signals.passes_the_mean:
            return "varies"
        return "constant" if self.weights.passes_the_mean else "absent"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        told: dict[str, Any] = {"layer": self.ell}
        for name, found in (("weights", self.weights), ("signals", self.signals)):
            told[name] = {"status": found.reading.status, "kept": [one.name for one in found.kept]}
        return told | {"filter_norm": self.filter_norm, "operator_norm": self.operator_norm}


@dataclass(frozen=True)
class KeptFrequencies:
    """The frequencies that everything passes through.

    Attributes
    ----------
    verdict : {"determined", "none", "undetermined"}
    frequencies : frozenset of tuple of int
        The waves ω ≠ 0, one of each pair ±ω, in turns; empty unless determined.
    dimensions : int or None
        Dimensions that these frequencies and their channels span, pairs counting twice; None unless determined.
    mean : {"absent", "constant", "varies", ""}
        What these layers have at ω = 0 besides: nothing, the same mean for all samples, or one that varies. A mean
        lifts waves above the kink of a ReLU, and a large wave needs a larger one: there "varies" need not be signal.
    layers : tuple of int
        Where they are the only ones, from 1.
    through_depth : tuple of LayerFrequencies
    reasons : tuple of str
    """

    verdict: str
    frequencies: frozenset[tuple[int, ...]]
    dimensions: int | None
    mean: str
    layers: tuple[int, ...]
    through_depth: tuple[LayerFrequencies, ...]
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "verdict": self.verdict,
            "frequencies": sorted(map(list, self.frequencies)),
            "dimensions": self.dimensions,
            "mean": self.mean,
            "layers": list(self.layers),
            "reasons": list(self.reasons),
            "through_depth": [one.to_dict() for one in self.through_depth],
        }


@cites("talk2023", "Slides 'Convolutional Networks' and 'Learning Newtonian Mechanics'", ids=("Q-spectra",))
def kept_frequencies(
    trace: Convolved,
    *,
    rule: GapRule = GapRule(),  # noqa: B008
) -> KeptFrequencies:
    """Which s_{ω,i} stand out in the layers where fewest do: "in the bottleneck, only a few are close to 1".

    Parameters
    ----------
    trace : ConvolutionalTrace
        Of the network on samples; the filters alone cannot tell a constant at ω = 0, which biases make, from signal.
    rule : GapRule
        When a drop counts.

    Notes
    -----
    Determined if in the layers whose waves (ω ≠ 0) have the fewest dimensions filters and centred pre-activations drop
    clearly (or not at all) and keep the same waves, and all these layers name the same ones. None if no layer has fewer
    dimensions than inputs and outputs. Undetermined otherwise, also where a layer may have fewer but does not drop
    clearly. The mean, ω = 0, is told apart: see :class:`KeptFrequencies`. A layer that is constant over samples keeps
    nothing: no frequencies, 0 dimensions. Measured in ``docs/notes/convolutions.md``.
    """
    eps = trace.source_eps
    table = []
    for ell, (W, Z) in enumerate(zip(trace.filters, trace.preactivations), start=1):
        weights, signals = filter_spectra(W, trace.size), signal_spectra(Z)
        # Centring leaves rounding of the size of the mean.
        floor = eps * signal_spectra(Z, centered=False).norm
        table.append(
            LayerFrequencies(
                ell,
                weights.read(rule=rule, eps=eps),
                signals.read(rule=rule, eps=eps, floor=floor),
                weights.filter_norm,
                weights.norm,
            )
        )
    ends = (trace.filters[0].shape[1], trace.filters[-1].shape[0])
    return judged(table, min(ends) * math.prod(trace.size))


def judged(table: Sequence[LayerFrequencies], most: int) -> KeptFrequencies:
    """The verdict from the layers; ``most`` dimensions are no bottleneck."""

    def answer(verdict: str, why: str, narrow: Sequence[LayerFrequencies] = ()) -> KeptFrequencies:
        found = frozenset(one.frequency for one in narrow[0].signals.waves) if narrow else frozenset[tuple[int, ...]]()
        means = {one.mean for one in narrow}
        return KeptFrequencies(
            verdict=verdict,
            frequencies=found,
            dimensions=narrow[0].dimensions if narrow else None,
            mean=next((word for word in ("varies", "constant", "absent") if word in means), ""),
            layers=tuple(one.ell for one in narrow),
            through_depth=tuple(table),
            reasons=(why,),
        )

    still = [one for one in table if one.signals.reading.status == "zero"]
    if still:
        told = f"filter {still[0].ell} gives the same for all samples: nothing of the inputs passes"
        return answer("determined", told, still)
    clear = [one for one in table if one.clear]
    if not clear:
        return answer("undetermined", "no filter drops clearly at the same frequencies as its signals")
    fewest = min(one.dimensions for one in clear)
    doubtful = [str(one.ell) for one in table if not one.clear and one.dimensions < fewest]
    if doubtful:
        told = ", ".join(doubtful)
        return answer("undetermined", f"filters {told} may pass fewer dimensions, but do not drop clearly")
    if min(one.signals.reading.count for one in clear) >= most:
        return answer("none", f"no filter passes fewer than {most} dimensions, those of inputs or outputs")
    narrow = [one for one in clear if one.dimensions == fewest]
    if len({frozenset((wave.frequency, wave.channels) for wave in one.signals.waves) for one in narrow}) > 1:
        told = "; ".join(f"filter {one.ell}: {_named(one.signals)}" for one in narrow)
        return answer("undetermined", f"filters of {fewest} dimensions keep different frequencies ({told})")
    told = f"filters {', '.join(str(one.ell) for one in narrow)} keep {_named(narrow[0].signals)} alone"
    found = answer("determined", "", narrow)
    mean = {"varies": ", besides a mean that varies", "constant": ", besides a constant mean"}.get(found.mean, "")
    return replace(found, reasons=(f"{told}: {fewest} dimensions{mean}",))


def _named(found: FrequencyReading) -> str:
    return ", ".join(one.name for one in sorted(found.waves, key=lambda one: one.frequency)) or "no wave"
