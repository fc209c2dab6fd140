"""Singular values by frequency and channel: one of each conjugate pair, and which of them stand out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_integer, fail
from isthmus._errors import FileFormatError
from isthmus.measures.gaps import GapRule, Reading, read_spectrum

#: Singular values of one filter that are written to JSON.
MOST_VALUES = 8192


@dataclass(frozen=True)
class KeptFrequency:
    """A frequency that stands out.

    Attributes
    ----------
    frequency : tuple of int
        In turns over the image, −n/2 < k ≤ n/2; the first that is not 0 is positive.
    paired : bool
        It comes with −ω, its conjugate: a wave and its shift. False where −ω = ω.
    channels : int
        Singular values that stand out there.
    largest, smallest : float
        Of these.
    """

    frequency: tuple[int, ...]
    paired: bool
    channels: int
    largest: float
    smallest: float

    @property
    def dimensions(self) -> int:
        """Dimensions of the operator's image: ±ω count twice."""
        return self.channels * (2 if self.paired else 1)

    @property
    def name(self) -> str:
        """``±(1, 0)``, ``±1`` for signals, ``(0, 0)`` without a partner; with the channels where there are several."""
        inside = ", ".join(map(str, self.frequency))
        told = inside if len(self.frequency) == 1 else f"({inside})"
        return f"{'±' if self.paired else ''}{told}" + (f" ×{self.channels}" if self.channels > 1 else "")


@dataclass(frozen=True)
class FrequencyReading:
    """Which frequencies carry signal: the :class:`Reading` of all values together, and where they are."""

    reading: Reading
    kept: tuple[KeptFrequency, ...]

    @property
    def frequencies(self) -> frozenset[tuple[int, ...]]:
        """The frequencies alone, one of each pair."""
        return frozenset(one.frequency for one in self.kept)

    @property
    def waves(self) -> tuple[KeptFrequency, ...]:
        """Those that are not ω = 0, the mean over positions."""
        return tuple(one for one in self.kept if any(one.frequency))

    @property
    def passes_the_mean(self) -> bool:
        """Whether ω = 0 is among them."""
        return len(self.waves) < len(self.kept)


@dataclass(frozen=True, eq=False)
class FrequencySpectrum:
    """Singular values by frequency ω and channel i.

    Attributes
    ----------
    values : Tensor (F, r)
        s_{ω,i}, decreasing at each frequency.
    indices : Tensor (F, dims) of int64
        ω in turns over the image, 0 … n−1; one of each conjugate pair ±ω, whose values are equal.
    multiplicity : Tensor (F,) of int64
        2 for a pair, 1 where −ω = ω.
    size : tuple of int
        n_1, …: positions along each axis.
    norms : Tensor (F,)
        Norm by frequency, (Σ_i s²_{ω,i})^½ at ω alone.
    filter_norm : float
        ‖W‖ of the filter, which weight decay sees; NaN for signals.
    """

    values: Tensor
    indices: Tensor
    multiplicity: Tensor
    size: tuple[int, ...]
    norms: Tensor
    filter_norm: float = math.nan

    @property
    def frequencies(self) -> Tensor:
        """ω in radians, [0, 2π), (F, dims)."""
        return 2 * math.pi * self.indices.double() / torch.tensor(self.size)

    @property
    def conjugates(self) -> Tensor:
        """−ω in turns, 0 … n−1, (F, dims): where the same values occur again."""
        return -self.indices % torch.tensor(self.size)

    @property
    def signed(self) -> Tensor:
        """ω in turns, −n/2 < k ≤ n/2, (F, dims)."""
        n = torch.tensor(self.size)
        return torch.where(2 * self.indices > n, self.indices - n, self.indices)

    @property
    def norm(self) -> float:
        """(Σ_{ω,i} s²)^½ over all frequencies: √positions · ``filter_norm`` when the filter fits the grid."""
        top = float(self.norms.max()) or 1.0
        return top * math.sqrt(float(((self.norms / top).square() * self.multiplicity).sum()))

    def union(self) -> Tensor:
        """All singular values of the operator, decreasing, each as often as it occurs."""
        return self.values.repeat_interleave(self.multiplicity, dim=0).flatten().sort(descending=True).values

    def read(
        self,
        *,
        rule: GapRule = GapRule(),  # noqa: B008
        eps: float = 2.2e-16,
        floor: float = 0.0,
    ) -> FrequencyReading:
        """How many values stand out, all frequencies together, and at which frequencies they are.

        Parameters
        ----------
        rule, eps, floor
            As in :func:`~isthmus.measures.read_spectrum`.
        """
        reading = read_spectrum(self.union(), rule=rule, eps=eps, floor=floor)
        return FrequencyReading(reading, self.largest(reading.count))

    def largest(self, count: int) -> tuple[KeptFrequency, ...]:
        """The frequencies of the ``count`` largest values, strongest first; a value equal to the last comes along."""
        if count == 0:
            return ()
        union = self.union()
        above = self.values >= union[min(count, len(union)) - 1]
        signed, kept = self.signed, []
        for index in torch.nonzero(above.any(1)).flatten().tolist():
            channels = int(above[index].sum())
            s = self.values[index, :channels]
            paired = int(self.multiplicity[index]) == 2
            frequency = tuple(int(k) for k in signed[index])
            kept.append(KeptFrequency(frequency, paired, channels, float(s[0]), float(s[-1])))
        return tuple(sorted(kept, key=lambda one: -one.largest))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; of many channels the largest values, at most MOST_VALUES in all."""
        shown = max(1, MOST_VALUES // max(len(self.values), 1))
        return {
            "size": list(self.size),
            "values": self.values[:, :shown].tolist(),
            "norms": self.norms.tolist(),
            "norm": self.norm,
            "filter_norm": self.filter_norm if math.isfinite(self.filter_norm) else None,
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> FrequencySpectrum:
        """Inverse of :meth:`to_dict`, up to the values that it left out."""
        size = [check_integer("FrequencySpectrum.from_dict", "size", n, low=1) for n in content["size"]]
        values = torch.tensor(content["values"], dtype=torch.float64)
        norms = torch.tensor(content["norms"], dtype=torch.float64)
        # Compared before frequencies are listed: a hostile size must not make a long list.
        count = paired_frequencies(size)
        if not size or values.ndim != 2 or len(values) != count or tuple(norms.shape) != (count,):
            got = f"{tuple(values.shape)} and {tuple(norms.shape)}"
            must = f"`values` and `norms` must have {count} rows"
            fail("FrequencySpectrum.from_dict", must, got, "Pass what `to_dict` gave.", error=FileFormatError)
        known = content["filter_norm"]
        return FrequencySpectrum(
            values, *half_of_frequencies(size), tuple(size), norms, math.nan if known is None else float(known)
        )


def paired_frequencies(size: Sequence[int]) -> int:
    """How many frequencies a grid has when ±ω count once."""
    fixed = math.prod(2 if n % 2 == 0 else 1 for n in size)
    return (math.prod(size) + fixed) // 2


def half_of_frequencies(sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One of each pair ±ω in turns, (F, dims), and its multiplicity, (F,)."""
    dims, grid = len(sizes), torch.tensor(sizes)
    indices = torch.cartesian_prod(*[torch.arange(n) for n in sizes]).reshape(-1, dims)
    strides = torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(dims)])
    flat = torch.arange(len(indices))
    negative = ((-indices % grid) * strides).sum(1)
    kept = flat <= negative
    return indices[kept], torch.where(flat == negative, 1, 2)[kept]
