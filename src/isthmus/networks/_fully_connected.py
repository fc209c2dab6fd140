"""M-fc: fully connected networks α_ℓ = σ_a(W_ℓ α_{ℓ-1} + β b_ℓ), their linear special case, and hourglasses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from isthmus._activations import Rounding
from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.measures import balance, parameter_norms, read_spectrum
from isthmus.networks._direct import Direct, Shares, activate_, add_product, multiply, multiply_add, pull_back_
from isthmus.networks._metric import KroneckerMetric, Slot
from isthmus.networks._network import Network
from isthmus.networks._rescaling import least_norm
from isthmus.trace import Trace, activate, activation_derivative

Parts = tuple[Tensor, ...]

#: A limit against typing errors and hostile files, far above any fully connected network.
MAX_WIDTH = 2**24

MAX_DEPTH = 100_000

#: Samples on which representations are looked at to narrow a layer.
SAMPLES = 2000


def propagate(
    Ws: Sequence[Tensor],
    bs: Sequence[Tensor],
    X: Tensor,
    *,
    slopes: Sequence[float],
    bias: float,
    linear: Sequence[int] = (),
) -> tuple[list[Tensor], list[Tensor]]:
    """Pre-activations α̃_1 … α̃_L and activations α_0 … α_{L-1}; ``slopes`` are those of layers 1 … L−1.

    Leading axes broadcast: weights of shape (S, n_ℓ, n_{ℓ-1}) are a stack of S networks run in one
    computation.
    """
    activations, preactivations = [X], []
    for index, W in enumerate(Ws):
        Z = activations[-1] @ W.mT
        if bias != 0.0:
            Z = Z + bias * bs[index].unsqueeze(-2)
        preactivations.append(Z)
        if index + 1 < len(Ws):
            activations.append(activate(Z, slopes[index], linear[index] if linear else 0))
    return preactivations, activations


@cites("rank2023", "§2", ids=("M-fc",))
@cites("bottleneck2023", "§2", ids=("M-fc",))
class FullyConnected(Network):
    """Fully connected network f = α̃_L with α̃_ℓ = W_ℓ α_{ℓ-1} + β b_ℓ and α_ℓ = σ_a(α̃_ℓ).

    Parameters
    ----------
    dims : sequence of int
        n_0 (inputs), n_1, …, n_L (outputs); L = ``len(dims) - 1`` weight matrices.
    slope : float, or one for each of the layers 1 … L−1, default 0.0
        a ∈ [−1, 1] in σ_a(x) = x for x ≥ 0, a·x below: 0 is ReLU, 1 a linear network, −1 the absolute value.
    bias : float, default 1.0
        Amount of bias β: 1 as usual, 0 for none (no bias parameters then).
    linear : sequence of int, optional
        For each of the layers 1 … L−1, how many of its first neurons have no activation; none by default.
    biased : sequence of bool, optional
        For each of the layers 1 … L, whether it has a bias; all by default, where β ≠ 0.
    init_scale : float, default 1.0
        Multiplies the initial weights, which are Gaussian of variance 2/((1 + a²) n_{ℓ-1}); biases start at
        0.
    dtype, device : optional
    generator : torch.Generator, optional
        Source of the initial weights; PyTorch's default generator otherwise, as in any module.

    Notes
    -----
    ``state_dict`` has the keys ``weights.0 … weights.{L-1}`` and ``biases.0 …``; parameters are ordered
    W_1 … W_L, b_1 … b_L, which is the layout of one flat buffer (``parameters_to_vector``) and of stacks of
    equal networks (:func:`propagate` broadcasts over leading axes).

    Examples
    --------
    >>> import torch, isthmus
    >>> net = isthmus.FullyConnected([4, 16, 16, 2], generator=torch.Generator().manual_seed(0))
    >>> net(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """

    kind: ClassVar[str] = "a fully connected network"
    d_in: int
    d_out: int

    def __init__(
        self,
        dims: Sequence[int],
        slope: float | Sequence[float] = 0.0,
        bias: float = 1.0,
        *,
        linear: Sequence[int] | None = None,
        biased: Sequence[bool] | None = None,
        init_scale: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        who = "FullyConnected"
        self.dims = _checked_dims(who, dims)
        self.d_in, self.d_out = self.dims[0], self.dims[-1]
        self._slope, self.slopes = _checked_slopes(who, slope, len(self.dims) - 2)
        self.bias = check_number(who, "bias", bias)
        self.linear = _checked_linear(who, linear, self.dims)
        self._check_activation()
        flags = [self.bias != 0.0] * self.depth if biased is None else _checked_flags(who, biased, self.depth)
        check_number(who, "init_scale", init_scale, low=0.0)
        if dtype is not None and not dtype.is_floating_point:
            fail(who, "`dtype` must be a real floating dtype", dtype, "Use torch.float32 or torch.float64.")
        self.weights = nn.ParameterList()
        #: One entry for each layer, None where it has no bias; empty when ``bias == 0``.
        self.biases = nn.ParameterList()
        slopes = [*self.slopes, self.slopes[-1] if self.slopes else (self._slope or 0.0)]
        for fan_in, fan_out, a, own in zip(self.dims, self.dims[1:], slopes, flags):
            gain = init_scale * math.sqrt(2.0 / (1.0 + a**2))
            W = torch.zeros(fan_out, fan_in, dtype=dtype, device=device)
            if gain > 0.0:  # without weights to draw, no generator advances
                W.normal_(0.0, gain / math.sqrt(fan_in), generator=generator)
            self.weights.append(nn.Parameter(W))
            if self.bias != 0.0:
                zeros = torch.zeros(fan_out, dtype=dtype, device=device)
                self.biases.append(nn.Parameter(zeros) if own else None)

    def _check_activation(self) -> None:
        """Fail unless the activation can have these slopes and linear neurons."""

    @classmethod
    def from_weights(
        cls,
        Ws: Sequence[Any],
        bs: Sequence[Any] | None = None,
        *,
        slope: float | Sequence[float] = 0.0,
        bias: float | None = None,
        linear: Sequence[int] | None = None,
    ) -> Self:
        """A network with copies of the given weights (and biases); dtype and device are those of ``Ws[0]``.

        ``bias`` defaults to 1 when ``bs`` is given and to 0 when it is not; a layer whose bias is None has none.
        """
        who = "FullyConnected.from_weights"
        tensors = [torch.as_tensor(W) for W in Ws]
        if not tensors:
            fail(who, "`Ws` must not be empty", "no weight", "Pass W_1 … W_L.")
        for index, W in enumerate(tensors):
            if W.ndim != 2:
                fail(who, f"`Ws[{index}]` must be a matrix", f"shape {tuple(W.shape)}", "Pass (n_out, n_in).")
            if index and W.shape[1] != tensors[index - 1].shape[0]:
                fail(
                    who,
                    f"`Ws[{index}]` must have {len(tensors[index - 1])} columns, one for each row before it",
                    f"shape {tuple(W.shape)}",
                    "Order the weights from input to output.",
                )
        amount = (0.0 if bs is None else 1.0) if bias is None else bias
        if amount != 0.0 and (bs is None or len(bs) != len(tensors)):
            fail(
                who,
                f"`bs` must have {len(tensors)} vectors when the amount of bias is {amount:g}",
                "none" if bs is None else len(bs),
                "Pass one bias for each weight.",
            )
        vectors = [None if b is None else torch.as_tensor(b) for b in bs or ()] if amount != 0.0 else []
        dims = [tensors[0].shape[1], *(W.shape[0] for W in tensors)]
        dtype = tensors[0].dtype if tensors[0].dtype.is_floating_point else torch.get_default_dtype()
        flags = [b is not None for b in vectors] or None
        options: dict[str, Any] = {"init_scale": 0.0, "dtype": dtype, "device": tensors[0].device}
        net = cls(dims, slope, amount, linear=linear, biased=flags, **options)
        with torch.no_grad():
            for parameter, W in zip(net.weights, tensors):
                parameter.copy_(W)
            for index, (parameter, b) in enumerate(zip(net.biases, vectors)):
                if b is None:
                    continue
                if b.shape != parameter.shape:
                    fail(
                        who,
                        f"`bs[{index}]` must have shape {tuple(parameter.shape)}",
                        tuple(b.shape),
                        "Pass one entry for each neuron.",
                    )
                parameter.copy_(b)
        return net

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.dims) - 1

    @property
    def slope(self) -> float:
        """The slope below zero of all layers; fails where they differ, or where some neurons have no activation."""
        if self._slope is None or any(self.linear):
            got = f"slopes {list(self.slopes)}, linear neurons {list(self.linear)}"
            fail("FullyConnected.slope", "all layers must have one slope", got, "Read `slopes` and `linear`.")
        return self._slope

    @property
    def uniform(self) -> bool:
        """Whether all neurons have one slope and all layers biases, or none: the networks of the papers."""
        return self._slope is not None and not any(self.linear) and self._evenly_biased

    @property
    def _evenly_biased(self) -> bool:
        return all(b is not None for b in self.biases)

    @property
    def Ws(self) -> tuple[Tensor, ...]:
        """W_1 … W_L: the live parameters, ``Ws[ell - 1]`` of shape (n_ℓ, n_{ℓ-1})."""
        return tuple(self.weights)

    @property
    def bs(self) -> tuple[Tensor, ...]:
        """b_1 … b_L: the live parameters, zeros where a layer has none; empty when ``bias == 0``."""
        return tuple(W.new_zeros(len(W)) if b is None else b for W, b in zip(self.weights, self.biases))

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., n_L) from (..., n_0)."""
        last = len(self.weights) - 1
        for index, W in enumerate(self.weights):
            X = X @ W.mT
            if self.bias != 0.0:
                b = self.biases[index]
                if b is not None:
                    X = X + (b if self.bias == 1.0 else self.bias * b)
            if index < last:
                X = activate(X, self.slopes[index], self.linear[index])
        return X

    @torch.no_grad()
    def trace(self, X: Any, *, dtype: torch.dtype | None = torch.float64) -> Trace:
        """Weights and representations on ``X``, in float64 by default (``dtype=None`` keeps the module's).

        Parameters
        ----------
        X : array (N, n_0)
            NumPy, pandas, torch or nested lists.
        dtype : torch.dtype or None
            What to compute in.
        """
        own = self.weights[0]
        kind = own.dtype if dtype is None else dtype
        inputs = as_matrix("trace", "X", X, columns=self.dims[0], dtype=kind, device=own.device)
        if isinstance(X, Tensor) and inputs.data_ptr() == X.data_ptr():
            inputs = inputs.clone()  # a trace is frozen: later changes of X must not reach it
        Ws = tuple(W.detach().to(kind, copy=True) for W in self.weights)
        bs = tuple(b.detach().to(kind, copy=True) for b in self.bs)
        preactivations, activations = self._propagated(Ws, bs, inputs)
        for ell, Z in enumerate(preactivations, start=1):
            if not bool(torch.isfinite(Z).all()):
                fail(
                    "trace",
                    "pre-activations must be finite",
                    f"NaN or infinite values at layer {ell}",
                    f"Check the weights up to layer {ell}, or scale X.",
                    error=DataError,
                )
        return self._trace_of(Ws, bs, tuple(preactivations), tuple(activations), eps=torch.finfo(own.dtype).eps)

    def _propagated(self, Ws: Sequence[Tensor], bs: Sequence[Tensor], X: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return propagate(Ws, bs, X, slopes=self.slopes, bias=self.bias, linear=self.linear)

    def _trace_of(self, Ws: Parts, bs: Parts, preactivations: Parts, activations: Parts, eps: float) -> Trace:
        slope = self._slope if self._slope is not None and not any(self.linear) else self.slopes
        linear = self.linear if any(self.linear) else ()
        return Trace(Ws, bs, preactivations, activations, slope, self.bias, eps, linear)

    def to_torch(self) -> nn.Sequential:
        """An ``nn.Sequential`` of Linear and PyTorch's own activations computing the same function (β folded in).

        Where some neurons of a layer are linear, the activation is a frozen ``PReLU`` with a slope for each.
        """
        layers: list[nn.Module] = []
        for index, W in enumerate(self.weights):
            layers.append(linear_module(W, self.biases[index] if self.bias != 0.0 else None, self.bias))
            if index + 1 < len(self.weights):
                layers.append(self._activation_module(index))
        return nn.Sequential(*layers).train(self.training)

    def _activation_module(self, index: int) -> nn.Module:
        return activation_module(self.slopes[index], self.linear[index], self.weights[index])

    def config(self) -> dict[str, Any]:
        """``dims``, ``slope``, ``bias``; ``linear`` and ``biased`` only where they say something."""
        slope = list(self.slopes) if self._slope is None else self._slope
        found: dict[str, Any] = {"dims": list(self.dims), "slope": slope, "bias": self.bias}
        if any(self.linear):
            found["linear"] = list(self.linear)
        if not self._evenly_biased:
            found["biased"] = [b is not None for b in self.biases]
        return found

    def about(self) -> str:
        """Its depth, in words."""
        return f"a network of depth {self.depth}"

    def simplified(self) -> FullyConnected:
        """Without the linear layer of an hourglass."""
        linear = [a == 1.0 for a in self.slopes]
        return self.merged() if any(linear) and not all(linear) else self

    def representations(self, X: Tensor) -> dict[int, Tensor]:
        """α_1 … α_{L-1}."""
        return dict(enumerate(self.trace(X).activations[1:], start=1))

    def plain_layers(self) -> FullyConnected | None:
        """Itself; a subclass may have a forward of its own."""
        return self if type(self) is FullyConnected else None

    @classmethod
    def fewest_tensors(cls, config: Mapping[str, Any]) -> int:
        """One for each layer."""
        dims = config["dims"]
        return len(dims) - 1 if isinstance(dims, list) else 0

    def extra_repr(self) -> str:
        """Shown by ``print(net)``."""
        slope = list(self.slopes) if self._slope is None else f"{self._slope:g}"
        linear = f", linear={list(self.linear)}" if any(self.linear) else ""
        return f"dims={list(self.dims)}, slope={slope}{linear}, bias={self.bias:g}"

    # ---------------------------------------------------------------- hourglasses: f = h∘g through k coordinates

    @classmethod
    def hourglass(
        cls,
        dims_in: Sequence[int],
        dims_out: Sequence[int],
        *,
        slope: float = 0.0,
        bias: float = 1.0,
        init_scale: float = 1.0,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> Self:
        """F = h∘g through a linear layer of k neurons; ``dims_in`` of g ends and ``dims_out`` of h begins with k.

        Nothing but the number of coordinates limits what passes; whatever the weights, the bottleneck rank of f is at
        most k.
        """
        options: dict[str, Any] = {"init_scale": init_scale, "dtype": dtype, "generator": generator}
        return cls.joined(*(cls(dims, slope, bias, **options) for dims in (dims_in, dims_out)))

    @classmethod
    def joined(cls, encoder: FullyConnected, decoder: FullyConnected) -> Self:
        """h∘g with a linear layer between them: copies of both, of one dtype.

        The amount of bias is that of ``encoder``, if it has biases; what is added to each neuron stays.
        """
        who = "FullyConnected.joined"
        if encoder.d_out != decoder.d_in:
            must = f"`decoder` must have {encoder.d_out} inputs, one for each output of `encoder`"
            fail(who, must, decoder.d_in, "Give both the same waist.")
        dtypes = [net.weights[0].dtype for net in (encoder, decoder)]
        if dtypes[0] != dtypes[1]:
            fail(who, "`encoder` and `decoder` must have one dtype", dtypes, "Convert one of them.")
        linear = [*encoder.linear, 0, *decoder.linear]
        slopes = [*encoder.slopes, 1.0, *decoder.slopes]
        amount, bs = encoder.bias or decoder.bias, []
        for net in (encoder, decoder):
            bs += [b if b is None else b * (net.bias / amount) for b in net.biases] or [None] * net.depth
        Ws = [*encoder.weights, *decoder.weights]
        return cls.from_weights(Ws, bs if amount else None, slope=slopes, bias=amount, linear=linear)

    @property
    def waist(self) -> int:
        """ℓ of the narrowest linear hidden layer, the first of them: where an hourglass is narrow."""
        free = [
            ell for ell in range(1, self.depth) if self.slopes[ell - 1] == 1.0 or self.linear[ell - 1] == self.dims[ell]
        ]
        if not free:
            fail(
                "FullyConnected.waist",
                "a hidden layer must be linear",
                f"slopes {list(self.slopes)}",
                "Join two networks.",
            )
        return min(free, key=lambda ell: self.dims[ell])

    def encoder(self) -> Self:
        """g, a copy of the layers before the waist."""
        return self.part(0, self.waist)

    def decoder(self) -> Self:
        """h, a copy of what follows the waist."""
        return self.part(self.waist, self.depth)

    def part(self, start: int, stop: int) -> Self:
        """Layers ``start`` + 1 … ``stop``, a copy."""
        slopes, linear = self.slopes[start : stop - 1], self.linear[start : stop - 1]
        # Between networks of one slope there is one, also where no layer is left to have it.
        beside = {a for a in self.slopes if a != 1.0} or {1.0}
        slope = slopes if len(set(slopes)) > 1 or len(beside) > 1 else (slopes[0] if slopes else beside.pop())
        bs = list(self.biases)[start:stop] or None
        return type(self).from_weights(self.Ws[start:stop], bs, slope=slope, bias=self.bias, linear=linear)

    @torch.no_grad()
    def merged(self) -> Self:
        """The same function with one layer less: the weights at the waist multiplied."""
        m = self.waist
        Ws, bs = [W.detach() for W in self.weights], [b.detach() for b in self.bs]
        joint = Ws[m] @ Ws[m - 1]
        if self.bias != 0.0:
            bs = [*bs[: m - 1], Ws[m] @ bs[m - 1] + bs[m], *bs[m + 1 :]]
        weights = [*Ws[: m - 1], joint, *Ws[m + 1 :]]
        slopes, linear = self.slopes[: m - 1] + self.slopes[m:], self.linear[: m - 1] + self.linear[m:]
        slope = slopes if slopes else (self._slope or 0.0)
        return type(self).from_weights(weights, bs or None, slope=slope, bias=self.bias, linear=linear)

    # ---------------------------------------------------------------- hooks

    @property
    def _plain(self) -> bool:
        """Whether the forward pass is that of this class: a subclass may have another one."""
        own = type(self).forward is FullyConnected.forward
        return own and self._evenly_biased and all(p.requires_grad for p in self.parameters())

    def direct(self, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> DirectChain | None:
        """Training steps without autograd, if every layer has one slope in [0, 1]."""
        possible = self._plain and not any(self.linear) and all(0.0 <= a <= 1.0 for a in self.slopes)
        return DirectChain(self, loss, values, gradients, rows) if possible else None

    def metric(self, loss: str) -> ChainMetric | None:
        """A metric of all layers; None where some neurons of a layer are linear."""
        return ChainMetric(self, loss) if self._plain and not any(self.linear) else None

    def imbalance(self) -> tuple[float, float]:
        """max_ℓ |‖W_ℓ‖² + ‖b_ℓ‖² − ‖W_{ℓ+1}‖²| relative to the mean ‖W_ℓ‖², and the sum of these."""
        if not all(p.requires_grad for p in self.parameters()):
            return math.nan, math.nan
        measured = balance(self)
        return measured.layer_residual, measured.scale * self.depth

    @torch.no_grad()
    def rebalance_(self) -> bool:
        """Minimise ‖θ‖² over rescalings of neurons; at a linear layer over all invertible maps."""
        if not (self._plain and self.uniform):
            return False
        found = least_norm(self.Ws, self.bs, by="neuron", tolerance=1e-6)
        own = self.weights[0].dtype
        if sum(T.square().sum() for T in (*found.Ws, *found.bs)) >= (1.0 - 1e-6) * parameter_norms(self).total:
            return False
        for parameter, new in zip(self.parameters(), (*found.Ws, *found.bs)):
            parameter.copy_(new.to(own))
        return True

    def can_narrow(self) -> bool:
        """Where no parameter is frozen that a pinch would change."""
        return self.uniform and all(p.requires_grad for p in self.parameters())

    @torch.no_grad()
    def narrowest_layer(self, X: Tensor) -> tuple[int, int] | None:
        """(Rank, layer) of the smallest clear rank of centred representations, at the middle layer that shows it."""
        if self.depth < 3:
            return None
        trace = self.trace(X[:SAMPLES], dtype=None)
        found: dict[int, list[int]] = {}
        for ell in range(1, self.depth):
            A = trace.preactivations[ell - 1].double()
            reading = read_spectrum(torch.linalg.svdvals(A - A.mean(0)), eps=trace.source_eps)
            if reading.status == "clear":
                found.setdefault(reading.count, []).append(ell)
        if not found:
            return None
        rank = min(found)
        return rank, found[rank][len(found[rank]) // 2]

    @torch.no_grad()
    def pinch_(self, X: Tensor, ell: int, rank: int) -> None:
        """Project layer ``ell`` on its leading centred directions, keep its mean.

        With α̃' = Pα̃ + (1 − P)·mean: W' = PW, βb' = Pβb + (1 − P)·mean. What was projected out becomes constant over
        the data. Without biases the projection is on the leading uncentred directions.
        """
        trace = self.trace(X[:SAMPLES], dtype=None)
        A = trace.preactivations[ell - 1].double()
        mean = A.mean(0) if self.bias else torch.zeros_like(A[0])
        V = torch.linalg.svd(A - mean, full_matrices=False).Vh[:rank]
        P = V.mT @ V
        W, own = self.weights[ell - 1], self.weights[ell - 1].dtype
        W.copy_((P @ W.double()).to(own))
        if self.bias:
            b = self.biases[ell - 1]
            b.copy_((P @ b.double() + (mean - P @ mean) / self.bias).to(own))

    def norm_per_depth(self) -> float:
        """‖θ‖²/L over all weights and biases."""
        return parameter_norms(self).per_depth

    @torch.no_grad()
    def glance(self, norm: float) -> dict[str, float]:
        """‖θ‖²/L and a quick look at the rank: singular values of the middle weight above half its largest."""
        s = torch.linalg.svdvals(self.weights[self.depth // 2].detach().double())
        return {"‖θ‖²/L": norm / self.depth, "rank": int((s > 0.5 * s[0]).sum())}


# ---- Arguments of the constructor, which may come from a file


def _checked_dims(who: str, dims: Any) -> tuple[int, ...]:
    try:
        sizes = list(dims)
    except TypeError:
        fail(who, "`dims` must be a sequence of integers", repr(dims), "Pass e.g. [50, 100, 100, 50].")
    if not 2 <= len(sizes) <= MAX_DEPTH + 1:
        must = f"`dims` must have 2 to {MAX_DEPTH + 1} entries"
        fail(who, must, len(sizes), "Pass inputs, widths, outputs.")
    return tuple(check_integer(who, f"dims[{i}]", n, low=1, high=MAX_WIDTH) for i, n in enumerate(sizes))


def _checked_slopes(who: str, slope: Any, hidden: int) -> tuple[float | None, tuple[float, ...]]:
    """The common slope of all layers, if there is one, and the slope of each."""
    if not isinstance(slope, (list, tuple)):
        common = check_number(who, "slope", slope, low=-1.0, high=1.0)
        return common, (common,) * hidden
    if len(slope) != hidden:
        fail(who, f"`slope` must be one number, or {hidden}", f"{len(slope)} of them", "One for each hidden layer.")
    slopes = tuple(check_number(who, f"slope[{i}]", a, low=-1.0, high=1.0) for i, a in enumerate(slope))
    return (slopes[0] if len(set(slopes)) == 1 else None if slopes else 0.0), slopes


def _checked_linear(who: str, linear: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    counts = (0,) * (len(dims) - 2) if linear is None else linear
    if not isinstance(counts, (list, tuple)) or len(counts) != len(dims) - 2:
        fail(who, f"`linear` must be {len(dims) - 2} numbers", repr(linear), "One for each hidden layer.")
    return tuple(
        check_integer(who, f"linear[{i}]", k, low=0, high=n) for i, (k, n) in enumerate(zip(counts, dims[1:-1]))
    )


def _checked_flags(who: str, biased: Any, depth: int) -> list[bool]:
    if not isinstance(biased, (list, tuple)) or len(biased) != depth or not all(isinstance(f, bool) for f in biased):
        fail(who, f"`biased` must be {depth} times true or false", repr(biased), "One for each layer.")
    return list(biased)


# ---- Single layers as PyTorch modules: copies of weights, and activations of which some neurons are free


def linear_module(W: Tensor, b: Tensor | None, bias: float = 1.0) -> nn.Linear:
    """``nn.Linear`` with copies of W and βb."""
    made = nn.Linear(W.shape[1], W.shape[0], bias=b is not None, dtype=W.dtype, device=W.device)
    with torch.no_grad():
        made.weight.copy_(W)
        if b is not None:
            made.bias.copy_(bias * b)
    return made.requires_grad_(W.requires_grad)


def activation_module(slope: float, linear: int = 0, like: Tensor | None = None) -> nn.Module:
    """PyTorch's own activation; where the first ``linear`` of the neurons (rows of ``like``) have none, a PReLU."""
    if slope == 1.0 or (like is not None and linear >= len(like)):
        return nn.Identity()
    if linear and like is not None:
        made = nn.PReLU(len(like), init=slope, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            made.weight[:linear] = 1.0
        return made.requires_grad_(False)
    return nn.ReLU() if slope == 0.0 else nn.LeakyReLU(slope)


# ---- Cost and gradient without a graph, and the metric


class DirectChain(Direct):
    """A chain of fully connected layers, parameters laid out W_1 … W_L, b_1 … b_L."""

    def __init__(
        self, net: FullyConnected, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
    ) -> None:
        self.dims, self.slopes, self.bias = net.dims, net.slopes, net.bias
        super().__init__(loss, values, rows, self.dims[-1], len(values[0]) if values[0].ndim > 2 else 1)
        self.memories = [self.take_memory(n) for n in self.dims[1:-1]]
        # Two are enough on the way back; so they stay in the cache.
        widest = max(self.dims[1:-1], default=0)
        self.cotangents = [self.take_memory(widest) for _ in range(2)]
        self.set_rounding(())
        self.bind(values, gradients)

    def set_rounding(self, rounded: Sequence[Rounding]) -> None:
        """Replace kinks by parabolas: one Rounding for each hidden layer that is not linear."""
        self.round_off(self.slopes, rounded)

    def bind(self, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """W_1 … W_L, b_1 … b_L."""
        depth = len(self.dims) - 1
        self.shares = Shares([gradients[:depth], gradients[depth:]], self.blocks)
        self.weight_gradients, biases = self.shares.kinds
        self.bias_gradients = [g[..., None, :] for g in biases]
        self.biases = [b[:, None] if self.networks > 1 else b for b in values[depth:]]
        self.Ws = [self.rows.repeat(W) for W in values[:depth]]
        self.transposed = [W.mT for W in self.Ws]
        # For the rows of a call: what products read and write, divided; activations whole; cotangents whole, divided,
        # and these transposed.
        self.inputs: list[Tensor] = []
        self.results: list[Tensor] = []
        self.activations: list[Tensor] = []
        self.pulled: list[tuple[Tensor, Tensor, Tensor]] = []

    def shape(self) -> None:
        """In small networks making views takes as long as using them."""
        total, divide, hidden_dims = self.rows.total, self.rows.divide, self.dims[1:-1]
        self.activations = [self.part(memory, n, total) for memory, n in zip(self.memories, hidden_dims)]
        hidden = [divide(A) for A in self.activations]
        self.inputs, self.results = [self.like, *hidden], [*hidden, self.divided]
        cotangents = [self.part(self.cotangents[i % 2], n, total) for i, n in enumerate(hidden_dims)]
        self.pulled = [(G, divide(G), divide(G).mT) for G in cotangents]

    def take(self, X: Tensor) -> None:
        """Copy X (count, c) into blocks of rows; one X (B, count, c) for each network is taken as it is."""
        self.inputs[0] = self.rows.fill(X) if self.networks == 1 else X.expand(self.networks, -1, -1)

    def forward(self) -> None:
        """From the first layer to the last."""
        for index, (A, W, Z) in enumerate(zip(self.inputs, self.transposed, self.results)):
            if self.biases:
                multiply_add(self.biases[index], A, W, Z, beta=self.bias)
            else:
                multiply(A, W, Z)
            if index < len(self.slopes):
                self._activate(index)

    def _activate(self, index: int) -> None:
        activate_(self.activations[index], self.slopes[index], self.rounded[index])

    def _add_bias_gradient(self, into: Tensor, G: Tensor, beta: float) -> None:
        """Sums over rows: as a product, which for many networks of some size is slower."""
        if self.networks == 1 or self.small or beta != 0.0:
            add_product(into, self.ones, G, beta=beta, alpha=self.bias)
            return
        torch.sum(G, -2, keepdim=True, out=into)
        if self.bias != 1.0:
            into.mul_(self.bias)

    def backward(self, G: Tensor, *, beta: float) -> None:
        """From the last layer to the first."""
        across = G.mT
        for index in range(len(self.Ws) - 1, -1, -1):
            add_product(self.weight_gradients[index], across, self.inputs[index], beta=beta)
            if self.bias_gradients:
                self._add_bias_gradient(self.bias_gradients[index], G, beta)
            if index:
                whole, divided, across = self.pulled[index - 1]
                G = multiply(G, self.Ws[index], divided)
                self._pull_back(index - 1, whole)

    def _pull_back(self, index: int, G: Tensor) -> None:
        pull_back_(G, self.activations[index], self.slopes[index], self.rounded[index])


class ChainMetric(KroneckerMetric):
    """The metric of fully connected layers, parameters laid out W_1 … W_L, b_1 … b_L."""

    several: ClassVar[bool] = True

    def __init__(self, net: FullyConnected, loss: str) -> None:
        super().__init__(loss)
        self.dims, self.slopes, self.bias = net.dims, net.slopes, net.bias

    def layout(self) -> list[Slot]:
        """W_1 … W_L, b_1 … b_L."""
        found, weights = [], 0
        biases = sum(n * m for n, m in zip(self.dims[1:], self.dims[:-1]))
        for n, m in zip(self.dims[1:], self.dims[:-1]):
            found.append(Slot(n, m, weights, biases if self.bias else None))
            weights, biases = weights + n * m, biases + n
        return found

    def kinked(self) -> list[int]:
        """All but the last and those before linear layers."""
        return [index for index, slope in enumerate(self.slopes, 1) if slope != 1.0]

    def factors(
        self, theta: Tensor, X: Tensor, generators: Sequence[torch.Generator]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """From the last layer to the first."""
        matrices = self.matrices(theta)
        Ws = [M[..., :n] for n, M in zip(self.dims, matrices)]
        bs = [M[..., -1] for M in matrices] if self.bias else []
        preactivations, activations = propagate(Ws, bs, X, slopes=self.slopes, bias=self.bias)
        g = self.cotangents(preactivations[-1], generators)
        for ell in range(len(Ws), 0, -1):
            a = activations[ell - 1]
            if self.bias:
                a = torch.cat([a, torch.full_like(a[..., :1], self.bias)], -1)
            yield ell, a, g
            if ell > 1:
                g = (g @ Ws[ell - 1]).mul_(activation_derivative(preactivations[ell - 2], self.slopes[ell - 2]))
