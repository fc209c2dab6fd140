"""M-conv: networks of circular multi-channel convolutions, translation equivariant up to their head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus._checks import as_tensor, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.measures import kept_frequencies
from isthmus.networks._fully_connected import (
    MAX_DEPTH,
    MAX_WIDTH,
    FullyConnected,
    activation_module,
    linear_module,
)
from isthmus.networks._network import Network
from isthmus.trace import activate

#: What may follow the convolutions.
HEADS = (None, "mean", "flatten")

#: Entries of the largest matrix that :meth:`ConvolutionalNet.unrolled` writes out.
MAX_UNROLLED = 2**26


@cites("talk2023", "Slides 'Convolutional Networks'", ids=("M-conv",))
class ConvolutionalNet(Network):
    """Circular convolutions α̃_ℓ = W_ℓ ⋆ α_{ℓ-1} + β b_ℓ, α_ℓ = σ_a(α̃_ℓ), on periodic images or signals.

    Without a head f = α̃_L is an image again, and moving the input moves the output: f(T_p x) = T_p f(x). With one,
    f = W_head m(α_L) + β b_head, where m is the mean over positions (f is then invariant) or all of them in one row.

    Parameters
    ----------
    channels : sequence of int
        c_0 (of the inputs), c_1, …, c_L: L filters.
    size : int, (int,) or (int, int)
        n for images of n × n, (n,) for signals of length n, (n, m) for images of n × m; the same in every layer.
    filter_size : int, or one for each layer, or None
        Taps along each axis, up to n. None, also for single layers, is the full size: any equivariant linear map.
    slope : float, default 0.0
        a ∈ [−1, 1] of σ_a: 0 is ReLU, 1 a linear network.
    bias : float, default 1.0
        Amount of bias β: one bias for each channel; 0 for none.
    head : {None, "mean", "flatten"}
        None: image to image. Otherwise σ_a follows the last filter too, then the mean over positions or a flattening,
        then a linear layer.
    outputs : int, optional
        Of the head; required with one.
    init_scale : float, default 1.0
        Multiplies the initial weights, Gaussian of variance 2/((1 + a²)·c_{ℓ-1}·taps); biases start at 0.
    dtype, device, generator : optional
        As in :class:`~isthmus.FullyConnected`.

    Notes
    -----
    **Inputs** are rows (N, c_0·n·n), channels outermost, or images (N, c_0, n, n); outputs without a head come in the
    same form. Rows are what ``train`` and tables take.

    **Norm.** ``train`` regularises the parameters, ‖filter‖². The singular values s_{ω,i} of the operator satisfy
    Σ_{ω,i} s² = n²‖filter‖² (n for signals): one dimension carried at s = 1 costs 1/n² of parameter norm for each
    layer, a pair of frequencies ±ω twice that. Weight decay on a circulant matrix would be n² times stronger.

    ``state_dict`` has the keys ``filters.0 …``, ``biases.0 …``, ``head_weight`` and ``head_bias``.

    Examples
    --------
    >>> import torch, isthmus
    >>> net = isthmus.ConvolutionalNet([1, 4, 1], 6, generator=torch.Generator().manual_seed(0))
    >>> X = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    >>> torch.allclose(net(X.roll(2, -1)), net(X).roll(2, -1), atol=1e-5)
    True
    >>> net.frequency_blocks(2).shape
    torch.Size([6, 4, 1, 4])
    """

    kind: ClassVar[str] = "a convolutional network"
    d_in: int
    d_out: int

    def __init__(
        self,
        channels: Sequence[int],
        size: int | Sequence[int],
        filter_size: int | Sequence[int | None] | None = None,
        slope: float = 0.0,
        bias: float = 1.0,
        *,
        head: str | None = None,
        outputs: int | None = None,
        init_scale: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        who = "ConvolutionalNet"
        self.channels, self.size, self.filter_sizes = _checked_sizes(who, channels, size, filter_size)
        self.slope = check_number(who, "slope", slope, low=-1.0, high=1.0)
        self.bias = check_number(who, "bias", bias)
        check_choice(who, "head", head, HEADS)
        self.head = head
        if (head is None) != (outputs is None):
            fail(who, "`outputs` must be given with a head, and only then", outputs, "Pass both or neither.")
        self.outputs = None if outputs is None else check_integer(who, "outputs", outputs, low=1, high=MAX_WIDTH)
        self.d_in = self.channels[0] * self.positions
        self.d_out = self.channels[-1] * self.positions if self.outputs is None else self.outputs
        check_number(who, "init_scale", init_scale, low=0.0)
        if dtype is not None and not dtype.is_floating_point:
            fail(who, "`dtype` must be a real floating dtype", dtype, "Use torch.float32 or torch.float64.")
        gain = init_scale * math.sqrt(2.0 / (1.0 + self.slope**2))

        def drawn(*shape: int) -> nn.Parameter:
            W = torch.zeros(shape, dtype=dtype, device=device)
            if gain > 0.0:
                W.normal_(0.0, gain / math.sqrt(math.prod(shape[1:])), generator=generator)
            return nn.Parameter(W)

        def zeros(n: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(n, dtype=dtype, device=device))

        self.filters = nn.ParameterList(
            drawn(n, m, *taps) for m, n, taps in zip(self.channels, self.channels[1:], self.filter_sizes)
        )
        self.biases = nn.ParameterList([zeros(n) for n in self.channels[1:]] if self.bias != 0.0 else [])
        self.head_weight = drawn(self.outputs, self.head_inputs) if self.outputs is not None else None
        self.head_bias = zeros(self.outputs) if self.outputs is not None and self.bias != 0.0 else None

    @property
    def depth(self) -> int:
        """Number of layers with weights: L filters, and the head if there is one."""
        return len(self.filters) + (self.head is not None)

    @property
    def positions(self) -> int:
        """n², or n for signals: positions of one channel."""
        return math.prod(self.size)

    @property
    def head_inputs(self) -> int:
        """Numbers that the head sees: c_L after the mean, c_L·positions after flattening."""
        return self.channels[-1] * (1 if self.head == "mean" else self.positions)

    def images(self, X: Tensor) -> Tensor:
        """Rows or images as images (N, c_0, n, …); anything else is refused."""
        shape = (self.channels[0], *self.size)
        if X.ndim == 2 and X.shape[1] == self.d_in:
            return X.reshape(len(X), *shape)
        if X.ndim == len(shape) + 1 and tuple(X.shape[1:]) == shape:
            return X
        must = f"inputs must be rows (N, {self.d_in}) or images (N, {', '.join(map(str, shape))})"
        return fail("ConvolutionalNet", must, f"shape {tuple(X.shape)}", "Channels come first, then positions.")

    def forward(self, X: Tensor) -> Tensor:
        """f(X): (N, d_out) from rows; from images without a head (N, c_L, n, …)."""
        A = self.images(X)
        for index in range(len(self.filters)):
            A = self._layer(A, self.filters[index], self.biases[index] if self.bias != 0.0 else None)
            if index + 1 < self.depth:
                A = activate(A, self.slope)
        if self.head_weight is None:
            return A.flatten(1) if X.ndim == 2 else A
        out = self._pooled(A) @ self.head_weight.mT
        return out if self.head_bias is None else out + self.bias * self.head_bias

    def _layer(self, A: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        Z = convolve(A, W)
        return Z if b is None else Z + (self.bias * b).reshape(-1, *[1] * len(self.size))

    def _pooled(self, A: Tensor) -> Tensor:
        return A.flatten(2).mean(-1) if self.head == "mean" else A.flatten(1)

    @torch.no_grad()
    def trace(self, X: Any, *, dtype: torch.dtype | None = torch.float64) -> ConvolutionalTrace:
        """Filters and representations on ``X`` as channels × positions, in float64 by default (None: the module's)."""
        own = self.filters[0]
        kind = own.dtype if dtype is None else dtype
        A = self.images(as_tensor("trace", "X", X, dtype=kind, device=own.device)).clone()

        def kept(p: Tensor | None) -> Tensor | None:
            return None if p is None else p.detach().to(kind, copy=True)

        filters, biases = ([cast(Tensor, kept(p)) for p in group] for group in (self.filters, self.biases))
        activations, preactivations = [A], []
        for index, W in enumerate(filters):
            preactivations.append(self._layer(activations[-1], W, biases[index] if biases else None))
            if not bool(torch.isfinite(preactivations[-1]).all()):
                got = f"NaN or infinite values at layer {index + 1}"
                do = f"Check the filters up to layer {index + 1}, or scale X."
                fail("trace", "pre-activations must be finite", got, do, error=DataError)
            if index + 1 < self.depth:
                activations.append(activate(preactivations[-1], self.slope))
        W, b = kept(self.head_weight), kept(self.head_bias)
        outputs = preactivations[-1].flatten(1)
        if W is not None:
            outputs = self._pooled(activations[-1]) @ W.mT + (0.0 if b is None else self.bias * b)
        return ConvolutionalTrace(
            filters=tuple(filters),
            bs=tuple(biases),
            preactivations=tuple(preactivations),
            activations=tuple(activations),
            outputs=outputs,
            size=self.size,
            slope=self.slope,
            bias=self.bias,
            head=self.head,
            head_weight=W,
            head_bias=b,
            source_eps=torch.finfo(own.dtype).eps,
        )

    def frequency_blocks(self, ell: int) -> Tensor:
        """Ŵ_ℓ(ω), the c_ℓ × c_{ℓ-1} matrix by which layer ℓ multiplies the DFT of its input at ω.

        Returns
        -------
        Tensor (n, n // 2 + 1, c_ℓ, c_{ℓ-1}), complex; (n // 2 + 1, c_ℓ, c_{ℓ-1}) for signals
            Half the frequencies, as :func:`torch.fft.rfftn` orders them: Ŵ(−ω) is the conjugate of Ŵ(ω).
        """
        check_integer("frequency_blocks", "ell", ell, low=1, high=len(self.filters))
        return transfer_blocks(self.filters[ell - 1], self.size)

    def to_torch(self) -> nn.Sequential:
        """The same as PyTorch's own layers: ``Conv2d(padding="same", padding_mode="circular")`` and so on, β folded in.

        Takes rows or images, gives rows.
        """
        made = nn.Conv1d if len(self.size) == 1 else nn.Conv2d
        layers: list[nn.Module] = [nn.Flatten(), nn.Unflatten(1, (self.channels[0], *self.size))]
        own = self.filters[0]
        # New layers draw their first weights from the global generator.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for index, W in enumerate(self.filters):
                settings = {"padding": "same", "padding_mode": "circular", "bias": self.bias != 0.0}
                conv = made(W.shape[1], W.shape[0], self.filter_sizes[index], **settings).to(own)  # type: ignore[arg-type]
                conv.weight.copy_(W)
                if conv.bias is not None:
                    conv.bias.copy_(self.bias * self.biases[index])
                layers.append(conv.requires_grad_(W.requires_grad))
                if index + 1 < self.depth:
                    layers += [activation_module(self.slope)] if self.slope != 1.0 else []
            if self.head == "mean":
                layers.append(nn.AdaptiveAvgPool1d(1) if len(self.size) == 1 else nn.AdaptiveAvgPool2d(1))
            layers.append(nn.Flatten())
            if self.head_weight is not None:
                layers.append(linear_module(self.head_weight, self.head_bias, self.bias))
        return nn.Sequential(*layers).train(self.training)

    def config(self) -> dict[str, Any]:
        """What the constructor takes; None for a filter of the full size."""
        taps = [None if one == self.size else one[0] for one in self.filter_sizes]
        names = ("slope", "bias", "head", "outputs")
        own = {name: getattr(self, name) for name in names}
        return {"channels": list(self.channels), "size": list(self.size), "filter_size": taps, **own}

    @classmethod
    def upgrade(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Files once had the taps of a filter along every axis."""
        if "filter_sizes" not in config:
            return config, tensors
        new = dict(config)
        sizes, size = new.pop("filter_sizes"), config.get("size")
        fix = "The file was not written by isthmus.save, or the network was altered by hand."
        if not isinstance(sizes, list):
            fail("load", "`filter_sizes` must be a list", ascii(sizes), fix)
        for one in sizes:
            if one != size and (not isinstance(one, list) or len(one) == 0 or any(k != one[0] for k in one)):
                fail("load", "`filter_sizes` must be those of the images, or equal", ascii(one), fix)
        new["filter_size"] = [None if one == size else one[0] for one in sizes]
        return new, tensors

    @classmethod
    def fewest_tensors(cls, config: Mapping[str, Any]) -> int:
        """One for each filter."""
        channels = config["channels"]
        return len(channels) - 1 if isinstance(channels, list) else 0

    def numbers(self, X: Tensor) -> dict[str, Any]:
        """Which singular values stand out, by frequency."""
        return {"kept_frequencies": kept_frequencies(self.trace(X)).to_dict()}

    def carrying_norm(self) -> float:
        """L/n²: filters act at all positions."""
        return self.depth / self.positions

    @torch.no_grad()
    def unrolled(self) -> FullyConnected:
        """The same function of rows as a fully connected network of circulant matrices, for small sizes.

        Its norm is another: n²‖filter‖² for each layer.
        """
        widths = [c * self.positions for c in self.channels]
        most = max(m * n for m, n in zip(widths, widths[1:]))
        if most > MAX_UNROLLED:
            do = "Take smaller images; `to_torch` and `frequency_blocks` have no such limit."
            fail("unrolled", f"matrices must have at most {MAX_UNROLLED} entries", most, do)
        Ws = [circulant(W, self.size) for W in self.filters]
        bs = [b.repeat_interleave(self.positions) for b in self.biases]
        if self.head_weight is not None:
            spread = self.head_weight
            if self.head == "mean":
                spread = spread.repeat_interleave(self.positions, dim=1) / self.positions
            Ws.append(spread)
            bs += [] if self.head_bias is None else [self.head_bias]
        return FullyConnected.from_weights(Ws, bs or None, slope=self.slope, bias=self.bias)

    def extra_repr(self) -> str:
        """Shown by ``print(net)``."""
        taps = ", ".join("×".join(map(str, one)) for one in self.filter_sizes)
        head = "" if self.head is None else f", head={self.head!r}, outputs={self.outputs}"
        shown = f"channels={list(self.channels)}, size={'×'.join(map(str, self.size))}, filters={taps}"
        return f"{shown}, slope={self.slope:g}, bias={self.bias:g}{head}"


def _checked_sizes(
    who: str, channels: Any, size: Any, filter_size: Any
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Channels, size and taps of each layer, checked against each other."""
    if not isinstance(channels, Sequence) or not 2 <= len(channels) <= MAX_DEPTH + 1:
        fail(who, "`channels` must be a sequence of 2 integers or more", repr(channels), "Pass e.g. [1, 8, 8, 1].")
    counts = tuple(check_integer(who, f"channels[{i}]", c, low=1, high=MAX_WIDTH) for i, c in enumerate(channels))
    sizes = list(size) if isinstance(size, Sequence) else [size, size]
    if not 1 <= len(sizes) <= 2:
        fail(who, "`size` must be n, (n,) or (n, m)", repr(size), "Pass n for images of n × n, (n,) for signals.")
    whole = tuple(check_integer(who, "size", n, low=1, high=MAX_WIDTH) for n in sizes)
    layers = len(counts) - 1
    given = list(filter_size) if isinstance(filter_size, Sequence) else [filter_size] * layers
    if len(given) != layers:
        fail(who, f"`filter_size` must be one number, or {layers}", repr(filter_size), "Give one for each layer.")
    taps = tuple(
        whole if k is None else (check_integer(who, f"filter_size[{i}]", k, low=1, high=min(whole)),) * len(whole)
        for i, k in enumerate(given)
    )
    return counts, whole, taps


# ---- The trace of a convolutional network: representations as channels × positions, and as the papers' columns


@dataclass(frozen=True, eq=False)
class ConvolutionalTrace:
    """Filters and representations of a :class:`~isthmus.ConvolutionalNet` on N samples.

    A representation is an image with c_ℓ channels: (N, c_ℓ, n, …), samples first. There are two ways to read it as a
    matrix. :meth:`Z` has one column for each sample, its rows channels × positions: what a fully connected network
    would have. :meth:`pixels` has one column for each sample and position, its rows channels.

    Attributes
    ----------
    filters : tuple of Tensor (c_ℓ, c_{ℓ-1}, k, …)
        ``filters[ell - 1]`` is W_ℓ.
    bs : tuple of Tensor (c_ℓ,)
        Empty when ``bias == 0``.
    preactivations : tuple of Tensor (N, c_ℓ, n, …)
        ``preactivations[ell - 1]`` is α̃_ℓ, ℓ = 1 … L.
    activations : tuple of Tensor (N, c_ℓ, n, …)
        ``activations[ell]`` is α_ℓ; ``activations[0]`` are the inputs. α_L is there when a head follows.
    outputs : Tensor (N, d_out)
        As rows.
    size : tuple of int
        n, … of the images.
    slope, bias : float
    head, head_weight, head_bias
        Of the network; None without a head.
    source_eps : float
        Unit round-off of the dtype the network was stored in.
    """

    filters: tuple[Tensor, ...]
    bs: tuple[Tensor, ...]
    preactivations: tuple[Tensor, ...]
    activations: tuple[Tensor, ...]
    outputs: Tensor
    size: tuple[int, ...]
    slope: float
    bias: float
    head: str | None = None
    head_weight: Tensor | None = None
    head_bias: Tensor | None = None
    source_eps: float = torch.finfo(torch.float64).eps

    @property
    def depth(self) -> int:
        """Number of layers with weights: L filters, and the head if there is one."""
        return len(self.filters) + (self.head is not None)

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return len(self.activations[0])

    def Z(self, ell: int) -> Tensor:
        """Z_ℓ = α̃_ℓ(X) as the papers write it: (c_ℓ·positions, N), samples as columns; Z_0 is the input."""
        return self._image("Z", ell).flatten(1).mT

    def pixels(self, ell: int) -> Tensor:
        """The same with positions counting as samples: (c_ℓ, N·positions)."""
        return self._image("pixels", ell).transpose(0, 1).flatten(1)

    def _image(self, name: str, ell: int) -> Tensor:
        check_integer(f"ConvolutionalTrace.{name}", "ell", ell, low=0, high=len(self.filters))
        return self.activations[0] if ell == 0 else self.preactivations[ell - 1]


# ---- Circular convolutions of signals and images: applied, and as one matrix for each frequency


#: From this many taps on the convolution goes through the Fourier transform: it then costs as much as one tap or so.
TAPS = 12

#: What the Fourier transform knows; coarser dtypes are convolved tap by tap.
_TRANSFORMED = (torch.float32, torch.float64)


def before(taps: int) -> int:
    """How many of the taps of one axis come before the centre: ⌊(k − 1)/2⌋, as in PyTorch's ``padding="same"``."""
    return (taps - 1) // 2


def transfer_blocks(W: Tensor, size: Sequence[int]) -> Tensor:
    """Ŵ(ω) = Σ_δ W[:, :, δ] e^{iω·(δ − c)}, c the centre: the DFT of W ⋆ x at ω is Ŵ(ω) times that of x.

    Parameters
    ----------
    W : Tensor (c_out, c_in, k_1, …), k ≤ n
    size : sequence of int
        n_1, …: positions along each axis.

    Returns
    -------
    Tensor (n_1, …, n_last // 2 + 1, c_out, c_in), complex
        Half the frequencies: Ŵ(−ω) is the conjugate of Ŵ(ω). Differentiable.
    """
    taps, axes = W.shape[2:], tuple(range(2, W.ndim))
    spare = [pad for n, k in zip(reversed(size), reversed(taps)) for pad in (0, n - k)]
    kernel = functional.pad(W, spare).roll([-before(k) for k in taps], axes)
    return torch.fft.rfftn(kernel, dim=axes).conj().movedim((0, 1), (-2, -1))


def convolve(X: Tensor, W: Tensor) -> Tensor:
    """y[p] = Σ_δ W[:, :, δ] x[p + δ − c], positions modulo the size: what PyTorch calls a circular convolution.

    Parameters
    ----------
    X : Tensor (N, c_in, n_1, …)
    W : Tensor (c_out, c_in, k_1, …), k ≤ n
        Large filters act in frequency, small ones tap by tap: the same numbers up to rounding.
    """
    taps, size = W.shape[2:], X.shape[2:]
    if math.prod(taps) >= TAPS and X.dtype in _TRANSFORMED:
        return convolve_in_frequency(X, W)
    pads = [pad for k in reversed(taps) for pad in (before(k), k - 1 - before(k))]
    wide = functional.pad(X, pads, mode="circular") if any(pads) else X
    return (functional.conv1d if len(size) == 1 else functional.conv2d)(wide, W)


def convolve_in_frequency(X: Tensor, W: Tensor) -> Tensor:
    """The same as :func:`convolve` by the Fourier transform, whatever the number of taps."""
    size = X.shape[2:]
    axes = tuple(range(2, X.ndim))
    blocks = transfer_blocks(W, size).flatten(0, -3)
    spectrum = torch.fft.rfftn(X, dim=axes)
    product = spectrum.flatten(2).permute(2, 0, 1) @ blocks.mT
    half = product.permute(1, 2, 0).reshape(len(X), len(W), *spectrum.shape[2:])
    return torch.fft.irfftn(half, s=tuple(size), dim=axes)


def circulant(W: Tensor, size: Sequence[int]) -> Tensor:
    """The convolution as one matrix, (c_out·positions, c_in·positions), channels outermost."""
    columns = W.shape[1] * math.prod(size)
    unit = torch.eye(columns, dtype=W.dtype, device=W.device).reshape(columns, W.shape[1], *size)
    return convolve(unit, W).reshape(columns, -1).mT
