"""Singular values by frequency and channel: one of each conjugate pair, and which of them stand out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from isthmus._checks import check_integer, fail
from isthmus._cite import cites
from isthmus._codec import Plain
from isthmus._errors import FileFormatError
from isthmus.linalg import chunk_rows
from isthmus.measures._gaps import Reading, read_spectrum

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
        reason = inside if len(self.frequency) == 1 else f"({inside})"
        return f"{'±' if self.paired else ''}{reason}" + (f" ×{self.channels}" if self.channels > 1 else "")


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
class FrequencySpectrum(Plain):
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

    def read(self, *, eps: float = 2.2e-16, floor: float = 0.0) -> FrequencyReading:
        """How many values stand out, all frequencies together, and at which frequencies they are.

        Parameters
        ----------
        eps, floor
            As in :func:`~isthmus.measures.read_spectrum`.
        """
        reading = read_spectrum(self.union(), eps=eps, floor=floor)
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

    @classmethod
    def from_dict(cls, content: Any) -> FrequencySpectrum:
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


# ---- Q-spectra by frequency: exact singular values of circular convolutions, and of what passes through them


@cites("talk2023", "Slides 'Convolutional Networks'", ids=("Q-spectra",))
@torch.no_grad()
def filter_spectra(
    W: Tensor, size: int | Sequence[int], *, dilation: int | Sequence[int] = 1, groups: int = 1
) -> FrequencySpectrum:
    """Singular values s_{ω,i} of Ŵ(ω) = Σ_δ W[:, :, δ] e^{−iω·dδ} for every frequency ω of the grid.

    Parameters
    ----------
    W : Tensor (c_out, c_in/groups, k_1, …, k_dims)
        Filter of a convolution with stride 1 whose input is wrapped around and keeps its size. It may be larger than
        the grid.
    size : int or sequence of int
        Positions along each axis; one number for all of them.
    dilation : int or sequence of int, default 1
        d, the distance of neighbouring taps.
    groups : int, default 1

    Notes
    -----
    The circulant matrix of the convolution is block diagonal in frequency: together these are its singular values.
    Shifting a filter multiplies Ŵ(ω) by a phase, so that neither the side of the padding nor the sign of ω matters.
    Σ_{ω,i} s² = (number of positions) · ‖W‖² when the filter fits the grid. Float64, in chunks of frequencies.

    Examples
    --------
    >>> W = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)  # the mean of two neighbours: |cos(ω/2)|
    >>> found = filter_spectra(W, (4,))
    >>> [(tuple(k), round(s, 4)) for k, s in zip(found.signed.tolist(), found.values[:, 0].tolist())]
    [((0,), 1.0), ((1,), 0.7071), ((2,), 0.0)]
    """
    who, dims = "filter_spectra", W.ndim - 2
    if dims < 1 or not W.is_floating_point():
        fail(who, "`W` must be real, (c_out, c_in/groups, k…)", f"{tuple(W.shape)}, {W.dtype}", "Reshape it.")
    sizes = _each(who, "size", size, dims)
    steps = _each(who, "dilation", dilation, dims)
    if groups < 1 or W.shape[0] % groups:
        fail(who, f"`groups` must divide {W.shape[0]}", groups, "Pass the groups of the convolution.")
    indices, multiplicity = half_of_frequencies(sizes)
    grid = torch.tensor(sizes)
    taps = torch.cartesian_prod(*[torch.arange(k) * d for k, d in zip(W.shape[2:], steps)]).reshape(-1, dims)
    filters = W.detach().to("cpu", torch.float64)
    blocks = filters.reshape(groups, W.shape[0] // groups, W.shape[1], -1).to(torch.complex128)
    values = []
    # A chunk holds the transfer matrices and the copy that LAPACK overwrites.
    for chunk in indices.split(chunk_rows(len(indices), 32.0 * W.shape[0] * W.shape[1])):
        # Whole turns are taken out in integers: the phase is exact however far the tap.
        turns = (chunk[:, None, :] * taps % grid).double() / grid
        phase = torch.polar(torch.ones(len(chunk), len(taps), dtype=torch.float64), -2 * math.pi * turns.sum(-1))
        transfer = torch.einsum("goit,ft->fgoi", blocks, phase)
        values.append(torch.linalg.svdvals(transfer).flatten(1).sort(dim=1, descending=True).values)
    s = torch.cat(values)
    return FrequencySpectrum(s, indices, multiplicity, tuple(sizes), _norms(s), float(_norms(filters.reshape(1, -1))))


@cites("talk2023", "Slides 'Convolutional Networks'", ids=("Q-spectra",))
@torch.no_grad()
def signal_spectra(A: Tensor, *, centered: bool = True) -> FrequencySpectrum:
    """Singular values of the DFT coefficients Â(ω)/√(N·positions), one matrix (N, c) for each frequency ω.

    Parameters
    ----------
    A : Tensor (N, c, n_1, …)
        Images or signals of N samples.
    centered : bool, default True
        Take the mean over samples off first, position by position.

    Notes
    -----
    Together they are the singular values of the representation (divided by √N) of all translations of the samples:
    averaging over translations removes the correlations between frequencies. Σ_{ω,i} s² = ‖A‖²/N.
    """
    who = "signal_spectra"
    if A.ndim < 3 or not A.is_floating_point() or 0 in A.shape:
        fail(who, "`A` must be real, (N, c, n…)", f"{tuple(A.shape)}, {A.dtype}", "Pass images, samples first.")
    images = A.detach().to("cpu", torch.float64)
    images = images - images.mean(0) if centered else images
    sizes, axes = tuple(A.shape[2:]), tuple(range(2, A.ndim))
    indices, multiplicity = half_of_frequencies(sizes)
    spectrum = torch.fft.fftn(images, dim=axes, norm="ortho").flatten(2)
    flat = (indices * torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))])).sum(1)
    blocks = spectrum[:, :, flat].permute(2, 0, 1) / math.sqrt(len(A))
    s = torch.linalg.svdvals(blocks)
    return FrequencySpectrum(s, indices, multiplicity, sizes, _norms(s))


def _norms(rows: Tensor) -> Tensor:
    """Norms of rows without overflow of the squares."""
    top = rows.abs().amax(1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return (rows / top).norm(dim=1) * top[:, 0]


def _each(who: str, name: str, given: int | Sequence[int], dims: int) -> list[int]:
    """One integer for each axis."""
    numbers = list(given) if isinstance(given, Sequence) else [given] * dims
    if len(numbers) != dims:
        fail(who, f"`{name}` must have {dims} entries", numbers, "Give one a dimension.")
    return [check_integer(who, name, number, low=1) for number in numbers]


# ---- Which frequencies a convolutional network keeps in its middle, with a verdict


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
        reason: dict[str, Any] = {"layer": self.ell}
        for name, found in (("weights", self.weights), ("signals", self.signals)):
            reason[name] = {"status": found.reading.status, "kept": [one.name for one in found.kept]}
        return reason | {"filter_norm": self.filter_norm, "operator_norm": self.operator_norm}


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
def kept_frequencies(trace: Convolved) -> KeptFrequencies:
    """Which s_{ω,i} stand out in the layers where fewest do: "in the bottleneck, only a few are close to 1".

    Parameters
    ----------
    trace : ConvolutionalTrace
        Of the network on samples; the filters alone cannot tell a constant at ω = 0, which biases make, from signal.

    Notes
    -----
    Determined if in the layers whose waves (ω ≠ 0) have the fewest dimensions filters and centred pre-activations drop
    clearly (or not at all) and keep the same waves, and all these layers name the same ones. None if no layer has fewer
    dimensions than inputs and outputs. Undetermined otherwise, also where a layer may have fewer but does not drop
    clearly. The mean, ω = 0, is reported separately: see :class:`KeptFrequencies`. A layer that is constant over
    samples keeps nothing: no frequencies, 0 dimensions. Measured in ``docs/notes/convolutions.md``.
    """
    eps = trace.source_eps
    table = []
    for ell, (W, Z) in enumerate(zip(trace.filters, trace.preactivations), start=1):
        weights, signals = filter_spectra(W, trace.size), signal_spectra(Z)
        # Centring leaves rounding of the size of the mean.
        floor = eps * signal_spectra(Z, centered=False).norm
        table.append(
            LayerFrequencies(
                ell, weights.read(eps=eps), signals.read(eps=eps, floor=floor), weights.filter_norm, weights.norm
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
        reason = f"filter {still[0].ell} gives the same for all samples: nothing of the inputs passes"
        return answer("determined", reason, still)
    clear = [one for one in table if one.clear]
    if not clear:
        return answer("undetermined", "no filter drops clearly at the same frequencies as its signals")
    fewest = min(one.dimensions for one in clear)
    doubtful = [str(one.ell) for one in table if not one.clear and one.dimensions < fewest]
    if doubtful:
        reason = ", ".join(doubtful)
        return answer("undetermined", f"filters {reason} may pass fewer dimensions, but do not drop clearly")
    if min(one.signals.reading.count for one in clear) >= most:
        return answer("none", f"no filter passes fewer than {most} dimensions, those of inputs or outputs")
    narrow = [one for one in clear if one.dimensions == fewest]
    if len({frozenset((wave.frequency, wave.channels) for wave in one.signals.waves) for one in narrow}) > 1:
        reason = "; ".join(f"filter {one.ell}: {_named(one.signals)}" for one in narrow)
        return answer("undetermined", f"filters of {fewest} dimensions keep different frequencies ({reason})")
    reason = f"filters {', '.join(str(one.ell) for one in narrow)} keep {_named(narrow[0].signals)} alone"
    found = answer("determined", "", narrow)
    mean = {"varies": ", besides a mean that varies", "constant": ", besides a constant mean"}.get(found.mean, "")
    return replace(found, reasons=(f"{reason}: {fewest} dimensions{mean}",))


def _named(found: FrequencyReading) -> str:
    return ", ".join(one.name for one in sorted(found.waves, key=lambda one: one.frequency)) or "no wave"
