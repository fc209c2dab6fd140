"""Spectra of representations that are seen batch by batch and never kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, check_seed, fail
from isthmus._progress import Progress
from isthmus.diagnosis._capture import Call, OutputPlace, first_tensor, run_hooked
from isthmus.diagnosis._inputs import Batches
from isthmus.linalg import chunk_rows

#: Bytes of the rows converted to float64 at a time. A quarter of the library's usual chunk: the embedding and the
#: check for non-finite values make temporaries of the same size.
_CHUNK_BYTES = 2**26


#: Coordinates of the sketch that each unit goes to.
_SPREAD = 8


class StreamedSpectrum:
    """Singular values of all rows seen so far, divided by √rows, without keeping the rows.

    A layer of at most ``exact_up_to`` units is streamed as it is. A wider one is first projected to ``sketch``
    coordinates by a sparse sign embedding (each unit goes to 8 of them, with random signs, divided by √8).

    Parameters
    ----------
    width : int
        Units of the layer.
    sketch : int, default 1024
        Coordinates m of the embedding, a multiple of 8.
    exact_up_to : int, default 2048
        Largest width that is not sketched.
    seed : int, default 0
        Of the embedding.
    keep : int, default 0
        Also keep this many of the first rows, in ``kept``.

    Attributes
    ----------
    rows : int
        Finite rows seen.
    nonfinite : int
        Rows left out because they hold NaN or infinite values.
    mean : Tensor (width,)
        Mean of the finite rows.
    method : {"exact", "sketched"}
    kept : Tensor (min(keep, rows), columns)
        The first rows in float64, sketched if the layer is; ``columns`` is the width or m.

    Notes
    -----
    The state is the R factor of a QR, updated block by block: R ← R of [R; block]. Never the covariance, whose
    square roots would put a floor at √eps on small singular values. Memory is about 5 · columns² numbers and 64 MB,
    whatever the number of rows. Rows are brought to the CPU.
    """

    def __init__(
        self, width: int, *, sketch: int = 1024, exact_up_to: int = 2048, seed: int = 0, keep: int = 0
    ) -> None:
        who = "StreamedSpectrum"
        self.width = check_integer(who, "width", width, low=1)
        self._seed = check_seed(who, seed)
        self._keep = check_integer(who, "keep", keep, low=0)
        check_integer(who, "sketch", sketch, low=_SPREAD)
        if sketch % _SPREAD:
            fail(who, f"`sketch` must be a multiple of {_SPREAD}", sketch, "Round it.")
        exact = width <= check_integer(who, "exact_up_to", exact_up_to, low=0)
        self.method = "exact" if exact else "sketched"
        self.columns = width if exact else sketch
        self._embedding = None if exact else _sparse_signs(width, sketch, seed)
        self.rows = 0
        self.nonfinite = 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.kept = torch.zeros(0, self.columns, dtype=torch.float64)
        self._block = max(2 * self.columns, 1024)
        self._pending: list[Tensor] = []
        self._pending_rows = 0
        self._shift = torch.zeros(self.columns, dtype=torch.float64)
        self._R = torch.zeros(0, self.columns + 1, dtype=torch.float64)

    @property
    def error(self) -> Tensor:
        """Relative error to expect of each value, (columns,): 0 if exact, (√k + 1)/√m for the k-th if sketched."""
        k = torch.arange(1, self.columns + 1, dtype=torch.float64)
        return torch.zeros_like(k) if self.method == "exact" else (k.sqrt() + 1) / self.columns**0.5

    @property
    def explanation(self) -> str:
        """How the values were obtained and how far they can be trusted, in a sentence or two."""
        if self.method == "exact":
            return "exact: R factor of a QR of all rows, in float64"
        # Davidson and Szarek: a Gaussian embedding of k dimensions into m has singular values in
        # 1 ± (√k + t)/√m up to a probability of exp(-t²/2) on either side.
        return (
            f"sketched: {self.width} units embedded into m = {self.columns} coordinates; the k-th value has a relative "
            f"error of about (√k + 1)/√m, an exact rank below m stays as it is, and a flat tail of r values s shows "
            f"as s·√(r/m) when r > m"
        )

    @torch.no_grad()
    def update(self, A: Tensor) -> None:
        """Take in the rows of ``A``; they are consumed before this returns.

        Parameters
        ----------
        A : Tensor (rows, width)
            Of any real dtype, on any device.
        """
        if A.ndim != 2 or A.shape[1] != self.width or A.is_complex():
            got = f"shape {tuple(A.shape)}, {A.dtype}"
            fail("StreamedSpectrum.update", f"`A` must be real, (rows, {self.width})", got, "Use as_rows.")
        step = min(self._block, chunk_rows(max(len(A), 1), 8.0 * self.width, _CHUNK_BYTES))
        for rows in A.detach().split(step):
            # A copy, also of float64 rows on the CPU: a later layer may overwrite them in place while they wait.
            block = rows.to(device="cpu", dtype=torch.float64, copy=True)
            finite = torch.isfinite(block).all(1)
            if not bool(finite.all()):
                self.nonfinite += int((~finite).sum())
                block = block[finite]
            if len(block):
                self._take(block)

    def _take(self, block: Tensor) -> None:
        self.rows += len(block)
        self.mean += (block.mean(0) - self.mean) * (len(block) / self.rows)
        if self._embedding is not None:
            # Contiguous: the product reads whole rows of its right side, five times faster when they lie together.
            block = torch.sparse.mm(self._embedding, block.mT.contiguous()).mT
        if len(self.kept) < self._keep:
            self.kept = torch.cat([self.kept, block[: self._keep - len(self.kept)]])
        self._pending.append(block)
        self._pending_rows += len(block)
        if self._pending_rows >= self._block:
            self._flush()

    def _flush(self) -> None:
        """Fold the waiting rows into R."""
        if not self._pending:
            return
        block = torch.cat(self._pending)
        self._pending, self._pending_rows = [], 0
        if not len(self._R):
            # Rows are held relative to the mean of the first block: a mean far above the spread would otherwise
            # cost the spread its digits in the QR.
            self._shift = block.mean(0)
        self._fold(torch.cat([torch.ones(len(block), 1, dtype=block.dtype), block - self._shift], 1))

    def _fold(self, block: Tensor) -> None:
        self._R = torch.linalg.qr(torch.cat([self._R, block]), mode="r").R

    @torch.no_grad()
    def spectrum(self, *, centered: bool = True) -> Tensor:
        """Singular values of (A − 1μᵀ)/√N, or of A/√N, decreasing.

        Returns
        -------
        Tensor (min(rows − 1, columns),), or (min(rows, columns),) if not centred; empty when there is nothing.
        """
        self._flush()
        # Q R = [1, A]: the first column of Q is 1/√N, so the first row of R is √N [1, μᵀ], and Q's other columns Q_c
        # are orthogonal to 1. Hence A = 1μᵀ + Q_c R_c with R_c the trailing block: A − 1μᵀ has the values of R_c.
        # Adding 1cᵀ to the rows, to undo the shift c, adds (first column of R) cᵀ.
        R = self._R[1:, 1:] if centered else self._R[:, 1:] + self._R[:, :1] * self._shift
        if not len(R):
            return torch.zeros(0, dtype=torch.float64)
        return torch.linalg.svdvals(R) / self.rows**0.5

    @torch.no_grad()
    def merge(self, other: StreamedSpectrum) -> None:
        """Take in all that ``other`` has seen, as if its rows had followed here."""
        if self._plan() != other._plan():
            got = f"(width, columns, seed) {self._plan()} and {other._plan()}"
            fail("StreamedSpectrum.merge", "both streams must be made alike", got, "Pass the same arguments to both.")
        self.nonfinite += other.nonfinite
        if not other.rows:
            return
        self._flush()
        other._flush()
        if not self.rows:
            self._shift = other._shift.clone()
        R = other._R.clone()
        R[:, 1:] += R[:, :1] * (other._shift - self._shift)
        self._fold(R)
        self.rows += other.rows
        self.mean += (other.mean - self.mean) * (other.rows / self.rows)
        self.kept = torch.cat([self.kept, other.kept])[: self._keep]

    def _plan(self) -> tuple[int, int, int]:
        return self.width, self.columns, self._seed if self.method == "sketched" else 0


def _sparse_signs(width: int, sketch: int, seed: int) -> Tensor:
    """Sparse sign embedding (sketch, width): in each of 8 bands of its rows, one ±1/√8 in every column."""
    source = torch.Generator().manual_seed(seed)
    band = sketch // _SPREAD
    coordinates = torch.randint(band, (_SPREAD, width), generator=source) + band * torch.arange(_SPREAD)[:, None]
    signs = torch.randint(2, (_SPREAD, width), generator=source, dtype=torch.float64) * 2 - 1
    places = torch.stack([coordinates.flatten(), torch.arange(width).repeat(_SPREAD)])
    values = signs.flatten() / _SPREAD**0.5
    return torch.sparse_coo_tensor(places, values, (sketch, width), check_invariants=True).coalesce()


def as_rows(output: Tensor, layout: str) -> tuple[Tensor, str]:
    """The output of a layer as rows of units, and a note on what counts as a sample.

    Parameters
    ----------
    output : Tensor (N, ...)
    layout : {"channels-first", "last"}
        Which axis holds the units: the second (convolutions, batch and group norm) or the last (linear layers,
        attention, recurrent layers, embeddings).

    Returns
    -------
    rows : Tensor (R, units)
    note : str
    """
    check_choice("as_rows", "layout", layout, ("channels-first", "last"))
    if output.ndim == 0:
        return output.reshape(1, 1), "a scalar: one sample of one unit"
    if output.ndim == 1:
        return output[:, None], "(N,): one unit"
    if output.ndim == 2:
        return output, "(N, units)"
    if layout == "channels-first":
        return output.movedim(1, -1).flatten(0, -2), "(N, units, ...): every position is a sample"
    return output.flatten(0, -2), "(N, ..., units): every token is a sample"


# ---- One pass over the data: the spectra of every layer's representation, streamed


#: Samples of the narrowest layer that are kept for measures of neighbours.
KEPT = 1000


@dataclass(eq=False)
class Seen:
    """What one layer gave: ``rows`` with positions as samples, ``whole`` with one row for each sample (or None)."""

    rows: StreamedSpectrum
    whole: StreamedSpectrum | None
    note: str
    entries: int = 0
    negative: int = 0
    squares: float = 0.0
    negative_squares: float = 0.0

    def count_signs(self, output: Tensor) -> None:
        """Add the signs of a batch: how many entries are negative, and how large they are."""
        below = output.clamp_max(0)
        self.entries += output.numel()
        self.negative += int((output < 0).sum())
        self.squares += float(torch.linalg.vector_norm(output, dtype=torch.float64)) ** 2
        self.negative_squares += float(torch.linalg.vector_norm(below, dtype=torch.float64)) ** 2

    @property
    def signs(self) -> tuple[float, float]:
        """Share of the entries that are negative, and their size ‖[Z]₋‖²/‖Z‖²; NaN where nothing was seen."""
        if not self.entries or not math.isfinite(self.squares):
            return math.nan, math.nan
        return self.negative / self.entries, self.negative_squares / self.squares if self.squares > 0 else 0.0

    @property
    def dimensions(self) -> StreamedSpectrum:
        """The stream whose spectrum counts the dimensions of the map."""
        return self.whole if self.whole is not None else self.rows


@dataclass(frozen=True, eq=False)
class Observation:
    """All layers, the inputs (None unless they are numbers), and how many samples there were."""

    layers: Mapping[str, Seen]
    inputs: StreamedSpectrum | None
    samples: int


def observe(
    module: nn.Module,
    batches: Batches,
    places: Mapping[str, OutputPlace],
    layouts: Mapping[str, str],
    *,
    sketch: int,
    exact_up_to: int,
    seed: int,
    bar: Progress,
) -> Observation:
    """Run every batch and stream what each layer among ``places`` gives; nothing of the size of the data is kept."""
    layers: dict[str, Seen] = {}
    inputs: StreamedSpectrum | None = None
    samples = 0

    def stream(width: int, keep: int = 0) -> StreamedSpectrum:
        return StreamedSpectrum(width, sketch=sketch, exact_up_to=exact_up_to, seed=seed, keep=keep)

    def visit(name: str, output: Tensor, number: int) -> None:
        place = places[name]
        rows, note = as_rows(output, layouts.get(name, "last"))
        if name not in layers:
            separate = place.batch_axis is not None and (len(place.shape) > 1 or place.per_sample > 1)
            whole = stream(place.size, KEPT) if separate else None
            layers[name] = Seen(stream(rows.shape[1], 0 if separate else KEPT), whole, note)
        seen = layers[name]
        seen.rows.update(rows)
        if output.is_floating_point():
            seen.count_signs(output)
        if seen.whole is not None and number == place.calls - 1:
            # Of a layer that is called several times, the last call.
            seen.whole.update(place.by_sample(output))

    def counted() -> Iterator[Call]:
        nonlocal inputs, samples
        for args, kwargs in batches:
            first = first_tensor([*args, *kwargs.values()])
            if first is None:
                fail("diagnose", "`X` must hold a tensor", "none in a batch", "Pass arrays.")
            if first.is_floating_point():
                flat = first.reshape(len(first), -1)
                inputs = stream(flat.shape[1]) if inputs is None else inputs
                inputs.update(flat)
            yield args, kwargs
            samples += len(first)
            bar.advance(len(first))

    with torch.no_grad():
        run_hooked(module, counted(), list(places), visit)
    return Observation(layers, inputs, samples)
