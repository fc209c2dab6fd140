"""Spectra of representations that are seen batch by batch and never kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, check_seed, fail
from isthmus._progress import Progress
from isthmus.diagnosis._calls import Call, first_tensor
from isthmus.diagnosis._capture import OutputPlace, run_hooked
from isthmus.linalg import chunk_rows

#: Bytes of the rows converted to float64 at a time. A quarter of the library's usual chunk: the embedding and the
#: check for non-finite values make temporaries of the same size.
_CHUNK_BYTES = 2**26


#: Coordinates of the sketch that each unit goes to.
_SPREAD = 8

#: Units that a sketch is made of at most: of more, this many are drawn at random. The embedding takes 130 bytes a unit.
COORDINATES = 2**17

#: Rows in which positions count as samples, at most: of more, this many are drawn at random.
MOST_ROWS = 4096


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
    coarse : bool, default False
        The rows carry no more than single precision: many rows are folded into the Gram matrix, five times as fast.
    expected : int, default 0
        Rows that will come, as far as is known: whether they are many.

    Attributes
    ----------
    rows : int
        Finite rows seen.
    nonfinite : int
        Rows left out because they hold NaN or infinite values.
    mean : Tensor (columns,)
        Mean of the finite rows, sketched if the layer is.
    method : {"exact", "sketched"}
    kept : Tensor (min(keep, rows), columns)
        The first rows in float64, sketched if the layer is; ``columns`` is the width or m.

    Notes
    -----
    The state is the R factor of a QR, updated block by block: R ← R of [R; block]. Not the covariance, whose square
    roots put a floor of √eps ≈ 1e-8 on small singular values; except of ``coarse`` rows, whose rounding is above it.
    Memory is about 5 · columns² numbers and 64 MB, whatever the number of rows. Rows are brought to the CPU.
    """

    def __init__(
        self,
        width: int,
        *,
        sketch: int = 1024,
        exact_up_to: int = 2048,
        seed: int = 0,
        keep: int = 0,
        coarse: bool = False,
        expected: int = 0,
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
        self._chosen = None if exact else _chosen_units(width, seed)
        units = width if self._chosen is None else len(self._chosen)
        self._embedding = None if exact else sparse_signs(units, sketch, seed)
        self.rows = 0
        self.nonfinite = 0
        self.mean = torch.zeros(self.columns, dtype=torch.float64)
        self.kept = torch.zeros(0, self.columns, dtype=torch.float64)
        self._gram = coarse and expected > self.columns >= GRAM_FROM
        self._block = GRAM_BLOCK if self._gram else max(2 * self.columns, 1024)
        self._pending: list[Tensor] = []
        self._pending_rows = 0
        self._shift = torch.zeros(self.columns, dtype=torch.float64)
        #: R, or RᵀR, of [1, A − shift].
        self._R = torch.zeros(0, self.columns + 1, dtype=torch.float64)
        self._values: Tensor | None = None

    @property
    def error(self) -> Tensor:
        """Relative error to expect of each value of the centred spectrum: 0 if exact, (√r_k + 1)/√m if sketched.

        r_k is the larger of k and Σ_(j ≥ k) s_j²/s_k²: a Gaussian embedding has s_k·(1 − √(k/m)) at least, and at most
        s_k + (Σ_(j ≥ k) s_j²/m)^½ (Gordon, Chevet).
        """
        s = self.spectrum()
        if self.method == "exact" or not len(s):
            return torch.zeros_like(s)
        squares = s.square()
        rest = squares.flip(0).cumsum(0).flip(0) / squares.clamp_min(1e-300)
        k = torch.arange(1, len(s) + 1, dtype=torch.float64)
        return (torch.maximum(k, rest.clamp_max(len(s))).sqrt() + 1) / self.columns**0.5

    @property
    def explanation(self) -> str:
        """How the values were obtained and how far they can be trusted, in a sentence or two."""
        if self.method == "exact":
            return "exact: R factor of a QR of all rows, in float64"
        # Davidson and Szarek: a Gaussian embedding of k dimensions into m has singular values in
        # 1 ± (√k + t)/√m up to a probability of exp(-t²/2) on either side.
        drawn = "" if self._chosen is None else f", {len(self._chosen)} of them drawn at random and"
        return (
            f"sketched: {self.width} units{drawn} embedded into m = {self.columns} coordinates; the k-th value has a "
            f"relative error of about (√r + 1)/√m with r = max(k, Σ_(j ≥ k) s_j²/s_k²), an exact rank below m stays as "
            f"it is, and a flat tail of r values s shows as s·√(r/m) when r > m"
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
        self._values = None
        if self._chosen is not None:
            finite = torch.isfinite(A).all(1)
            self.nonfinite += int((~finite).sum())
            A = A.detach()[finite][:, self._chosen.to(A.device)] * (self.width / len(self._chosen)) ** 0.5
        step = min(self._block, chunk_rows(max(len(A), 1), 8.0 * A.shape[1], _CHUNK_BYTES))
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
        if self._embedding is not None:
            # Contiguous: the product reads whole rows of its right side, five times faster when they lie together.
            block = torch.sparse.mm(self._embedding, block.mT.contiguous()).mT
        self.mean += (block.mean(0) - self.mean) * (len(block) / self.rows)
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
        if self._gram:
            self._R = block.mT @ block if not len(self._R) else self._R.addmm_(block.mT, block)
        else:
            self._R = torch.linalg.qr(torch.cat([self._R, block]), mode="r").R

    @property
    @torch.no_grad()
    def size(self) -> float:
        """‖A‖_F/√N of the rows as they came, not centred."""
        self._flush()
        if not self.rows:
            return 0.0
        return math.sqrt(float(self.spectrum().square().sum()) + float(self.mean.square().sum()))

    @torch.no_grad()
    def spectrum(self, *, centered: bool = True) -> Tensor:
        """Singular values of (A − 1μᵀ)/√N, or of A/√N, decreasing.

        Returns
        -------
        Tensor (min(rows − 1, columns),), or (min(rows, columns),) if not centred; empty when there is nothing.
        """
        self._flush()
        if centered and self._values is not None:
            return self._values
        values = self._by_gram(centered=centered) if self._gram else self._by_factor(centered=centered)
        if centered:
            self._values = values
        return values

    def _by_factor(self, *, centered: bool) -> Tensor:
        # Q R = [1, A]: the first column of Q is 1/√N, so the first row of R is √N [1, μᵀ], and Q's other columns Q_c
        # are orthogonal to 1. Hence A = 1μᵀ + Q_c R_c with R_c the trailing block: A − 1μᵀ has the values of R_c.
        # Adding 1cᵀ to the rows, to undo the shift c, adds (first column of R) cᵀ.
        R = self._R[1:, 1:] if centered else self._R[:, 1:] + self._R[:, :1] * self._shift
        if not len(R):
            return torch.zeros(0, dtype=torch.float64)
        return torch.linalg.svdvals(R) / self.rows**0.5

    def _by_gram(self, *, centered: bool) -> Tensor:
        if not self.rows:
            return torch.zeros(0, dtype=torch.float64)
        # With the mean m of the shifted rows Σ(a − m)(a − m)ᵀ = Σaaᵀ − N·mmᵀ; with the shift c, N·(m + c)(m + c)ᵀ more.
        m = self._R[0, 1:] / self.rows
        G = self._R[1:, 1:] - self.rows * torch.outer(m, m)
        if not centered:
            G += self.rows * torch.outer(m + self._shift, m + self._shift)
        values = torch.linalg.eigvalsh(G).flip(0).clamp_min(0).sqrt() / self.rows**0.5
        return values[: self.rows - centered]


#: Width and rows of a block from which a Gram matrix is quicker than a QR.
GRAM_FROM, GRAM_BLOCK = 128, 512


def _chosen_units(width: int, seed: int) -> Tensor | None:
    """Which units of a very wide layer are looked at; None for all."""
    if width <= COORDINATES:
        return None
    drawn = torch.randint(width, (COORDINATES,), generator=torch.Generator().manual_seed(seed))
    return drawn.unique()


@lru_cache(maxsize=8)
def sparse_signs(width: int, sketch: int, seed: int) -> Tensor:
    """Sparse sign embedding (sketch, width): in each of 8 bands of its rows, one ±1/√8 in every column."""
    source = torch.Generator().manual_seed(seed)
    band = sketch // _SPREAD
    coordinates = torch.randint(band, (_SPREAD, width), generator=source) + band * torch.arange(_SPREAD)[:, None]
    signs = torch.randint(2, (_SPREAD, width), generator=source, dtype=torch.float64) * 2 - 1
    places = torch.stack([coordinates.flatten(), torch.arange(width).repeat(_SPREAD)])
    values = signs.flatten() / _SPREAD**0.5
    return torch.sparse_coo_tensor(places, values, (sketch, width), check_invariants=True).coalesce()


TOKENS = "(N, ..., units): every token is a sample"


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
    return output.flatten(0, -2), TOKENS


# ---- One pass over the data: the spectra of every layer's representation, streamed


#: Samples of a layer that are kept for measures of neighbours.
KEPT = 500


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


@dataclass(frozen=True, eq=False)
class Streaming:
    """How representations are streamed.

    Attributes
    ----------
    sketch, exact_up_to, seed
        As in :class:`StreamedSpectrum`.
    coarse : bool
        The module carries no more than single precision.
    expected : int
        Samples that will come; 0 if it is not known.
    by_position : bool
        Positions are samples and nothing else: those of one sample are not joined into one row too.
    """

    sketch: int
    exact_up_to: int
    seed: int
    coarse: bool
    expected: int
    by_position: bool = False

    def of(self, width: int, rows: int, keep: int = 0) -> StreamedSpectrum:
        """A stream for this many units and rows."""
        options = {"sketch": self.sketch, "exact_up_to": self.exact_up_to, "seed": self.seed}
        return StreamedSpectrum(width, **options, keep=keep, coarse=self.coarse, expected=rows)


def observe(
    module: nn.Module,
    batches: Iterable[Call],
    places: Mapping[str, OutputPlace],
    layouts: Mapping[str, str],
    *,
    how: Streaming,
    bar: Progress,
) -> Observation:
    """Run every batch and stream what each layer among ``places`` gives; nothing of the size of the data is kept.

    Where positions of images and tokens count as samples, at most ``MOST_ROWS`` of them are taken, drawn at random.
    Tokens that an ``attention_mask`` of zeros marks as padding are no samples.
    """
    layers: dict[str, Seen] = {}
    inputs: StreamedSpectrum | None = None
    samples = 0
    present: Tensor | None = None
    drawn = torch.Generator().manual_seed(how.seed)

    def visit(name: str, output: Tensor, number: int) -> None:
        place = places[name]
        rows, note = as_rows(output, layouts.get(name, "last"))
        if present is not None and note == TOKENS and output.shape[:2] == present.shape and output.ndim == 3:
            rows, note = rows[present.flatten().to(rows.device)], f"{note}, but padding"
        separate = place.batch_axis is not None and (len(place.shape) > 1 or place.per_sample > 1)
        every = max(how.expected * place.calls * max(1, place.size // max(rows.shape[1], 1)), len(rows))
        # Where positions count the dimensions, there must be more of them than units.
        most = max(MOST_ROWS, 4 * rows.shape[1]) if how.by_position else MOST_ROWS
        if name not in layers:
            whole = how.of(place.size, how.expected, KEPT) if separate and not how.by_position else None
            if separate and every > most:
                note += f"; about {most} of {every}, drawn at random"
            stream = how.of(rows.shape[1], min(every, most) if separate else how.expected, KEPT)
            layers[name] = Seen(stream, whole, note)
        seen = layers[name]
        if output.is_floating_point():
            seen.count_signs(output)
        if separate and every > most:
            few = max(1, math.ceil(len(rows) * most / every))
            rows = rows[torch.randperm(len(rows), generator=drawn)[:few].sort().values.to(rows.device)]
        seen.rows.update(rows)
        if seen.whole is not None and number == place.calls - 1:
            # Of a layer that is called several times, the last call.
            seen.whole.update(place.by_sample(output))

    def counted() -> Iterator[Call]:
        nonlocal inputs, samples, present
        for args, kwargs in batches:
            first = first_tensor([*args, *kwargs.values()])
            if first is None:
                fail("diagnose", "`X` must hold a tensor", "none in a batch", "Pass arrays.")
            if first.is_floating_point():
                flat = first.reshape(len(first), -1)
                inputs = how.of(flat.shape[1], how.expected) if inputs is None else inputs
                inputs.update(flat)
            present = tokens_present(kwargs)
            yield args, kwargs
            samples += len(first)
            bar.advance(len(first))

    with torch.no_grad():
        run_hooked(module, counted(), list(places), visit)
    return Observation(layers, inputs, samples)


def tokens_present(kwargs: Mapping[str, Any]) -> Tensor | None:
    """Which tokens (N, T) are no padding, where the arguments say so by the usual name."""
    mask = kwargs.get("attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None
