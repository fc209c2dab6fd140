"""M-fc: fully connected networks α_ℓ = σ_a(W_ℓ α_{ℓ-1} + β b_ℓ), and their linear special case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.files import register
from isthmus.trace import Trace, activate

#: A limit against typing errors and hostile files, far above any fully connected network.
MAX_WIDTH = 2**24

MAX_DEPTH = 100_000


def propagate(
    Ws: Sequence[Tensor], bs: Sequence[Tensor], X: Tensor, *, slopes: Sequence[float], bias: float
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
            activations.append(activate(Z, slopes[index]))
    return preactivations, activations


@cites("rank2023", "§2", ids=("M-fc",))
@cites("bottleneck2023", "§2", ids=("M-fc",))
class FullyConnected(nn.Module):
    """Fully connected network f = α̃_L with α̃_ℓ = W_ℓ α_{ℓ-1} + β b_ℓ and α_ℓ = σ_a(α̃_ℓ).

    Parameters
    ----------
    dims : sequence of int
        n_0 (inputs), n_1, …, n_L (outputs); L = ``len(dims) - 1`` weight matrices.
    slope : float, default 0.0
        a ∈ [−1, 1] in σ_a(x) = x for x ≥ 0, a·x below: 0 is ReLU, 1 a linear network, −1 the absolute value.
    bias : float, default 1.0
        Amount of bias β: 1 as usual, 0 for none (no bias parameters then).
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

    def __init__(
        self,
        dims: Sequence[int],
        slope: float = 0.0,
        bias: float = 1.0,
        *,
        init_scale: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        who = "FullyConnected"
        try:
            sizes = list(dims)
        except TypeError:
            fail(who, "`dims` must be a sequence of integers", repr(dims), "Pass e.g. [50, 100, 100, 50].")
        if not 2 <= len(sizes) <= MAX_DEPTH + 1:
            fail(
                who,
                f"`dims` must have 2 to {MAX_DEPTH + 1} entries",
                len(sizes),
                "Pass inputs, widths, outputs.",
            )
        self.dims = tuple(check_integer(who, f"dims[{i}]", n, low=1, high=MAX_WIDTH) for i, n in enumerate(sizes))
        self.slope = check_number(who, "slope", slope, low=-1.0, high=1.0)
        self.bias = check_number(who, "bias", bias)
        check_number(who, "init_scale", init_scale, low=0.0)
        if dtype is not None and not dtype.is_floating_point:
            fail(who, "`dtype` must be a real floating dtype", dtype, "Use torch.float32 or torch.float64.")
        gain = init_scale * math.sqrt(2.0 / (1.0 + self.slope**2))
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in zip(self.dims[:-1], self.dims[1:]):
            W = torch.zeros(fan_out, fan_in, dtype=dtype, device=device)
            if gain > 0.0:  # without weights to draw, no generator advances
                W.normal_(0.0, gain / math.sqrt(fan_in), generator=generator)
            self.weights.append(nn.Parameter(W))
            if self.bias != 0.0:
                self.biases.append(nn.Parameter(torch.zeros(fan_out, dtype=dtype, device=device)))

    @classmethod
    def from_weights(
        cls,
        Ws: Sequence[Any],
        bs: Sequence[Any] | None = None,
        *,
        slope: float = 0.0,
        bias: float | None = None,
    ) -> Self:
        """A network with copies of the given weights (and biases); dtype and device are those of ``Ws[0]``.

        ``bias`` defaults to 1 when ``bs`` is given and to 0 when it is not.
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
        dims = [tensors[0].shape[1], *(W.shape[0] for W in tensors)]
        dtype = tensors[0].dtype if tensors[0].dtype.is_floating_point else torch.get_default_dtype()
        net = cls(dims, slope, amount, init_scale=0.0, dtype=dtype, device=tensors[0].device)
        with torch.no_grad():
            for parameter, W in zip(net.weights, tensors):
                parameter.copy_(W)
            for index, (parameter, b) in enumerate(zip(net.biases, bs or ())):
                vector = torch.as_tensor(b)
                if vector.shape != parameter.shape:
                    fail(
                        who,
                        f"`bs[{index}]` must have shape {tuple(parameter.shape)}",
                        tuple(vector.shape),
                        "Pass one entry for each neuron.",
                    )
                parameter.copy_(vector)
        return net

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.dims) - 1

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope below zero at each of the layers 1 … L−1."""
        return (self.slope,) * (self.depth - 1)

    @property
    def Ws(self) -> tuple[Tensor, ...]:
        """W_1 … W_L: the live parameters, ``Ws[ell - 1]`` of shape (n_ℓ, n_{ℓ-1})."""
        return tuple(self.weights)

    @property
    def bs(self) -> tuple[Tensor, ...]:
        """b_1 … b_L: the live parameters; empty when ``bias == 0``."""
        return tuple(self.biases)

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., n_L) from (..., n_0)."""
        for index, W in enumerate(self.weights):
            X = X @ W.mT
            if self.bias != 0.0:
                b = self.biases[index]
                X = X + (b if self.bias == 1.0 else self.bias * b)
            if index + 1 < len(self.weights):
                X = activate(X, self.slope)
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
        bs = tuple(b.detach().to(kind, copy=True) for b in self.biases)
        preactivations, activations = propagate(Ws, bs, inputs, slopes=self.slopes, bias=self.bias)
        for ell, Z in enumerate(preactivations, start=1):
            if not bool(torch.isfinite(Z).all()):
                fail(
                    "trace",
                    "pre-activations must be finite",
                    f"NaN or infinite values at layer {ell}",
                    f"Check the weights up to layer {ell}, or scale X.",
                    error=DataError,
                )
        return Trace(
            Ws,
            bs,
            tuple(preactivations),
            tuple(activations),
            self.slope,
            self.bias,
            torch.finfo(own.dtype).eps,
        )

    def to_torch(self) -> nn.Sequential:
        """An ``nn.Sequential`` of Linear and ReLU/LeakyReLU/Identity computing the same function (β folded
        in).
        """
        layers: list[nn.Module] = []
        for index, W in enumerate(self.weights):
            layers.append(linear_module(W, self.biases[index] if self.bias != 0.0 else None, self.bias))
            if index + 1 < len(self.weights):
                layers.append(_activation_module(self.slope))
        return nn.Sequential(*layers).train(self.training)

    def extra_repr(self) -> str:
        """Shown by ``print(net)``."""
        return f"dims={list(self.dims)}, slope={self.slope:g}, bias={self.bias:g}"


def _activation_module(slope: float) -> nn.Module:
    if slope == 0.0:
        return nn.ReLU()
    return nn.Identity() if slope == 1.0 else nn.LeakyReLU(slope)


#: Dtypes a file may name.
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def _check_parts(who: str, config: Any, tensors: Mapping[str, Tensor]) -> tuple[list[int], float, float]:
    """Fail unless the configuration and the tensors are those of one network; gives dims, slope, bias.

    Nothing is allocated: declared sizes are only compared with the tensors that are there.
    """
    fix = "The file was not written by isthmus.save, or the network was altered by hand."
    keys = ("dims", "slope", "bias", "dtype")
    if not isinstance(config, dict) or set(config) != set(keys):
        fail(who, f"the configuration must have the keys {', '.join(keys)}", ascii(config), fix)
    dims = config["dims"]
    if not isinstance(dims, list) or not 2 <= len(dims) <= MAX_DEPTH + 1:
        fail(who, f"`dims` must be a list of 2 to {MAX_DEPTH + 1} integers", ascii(dims), fix)
    for index, n in enumerate(dims):
        check_integer(who, f"dims[{index}]", n, low=1, high=MAX_WIDTH)
    slope = check_number(who, "slope", config["slope"], low=-1.0, high=1.0)
    bias = check_number(who, "bias", config["bias"])
    if not isinstance(config["dtype"], str) or config["dtype"] not in DTYPES:
        fail(who, f"`dtype` must be one of {', '.join(DTYPES)}", ascii(config["dtype"]), fix)
    shapes = {f"weights.{i}": (m, n) for i, (n, m) in enumerate(zip(dims, dims[1:]))}
    if bias != 0.0:
        shapes |= {f"biases.{i}": (m,) for i, m in enumerate(dims[1:])}
    if shapes.keys() != tensors.keys():
        odd = sorted(shapes.keys() ^ tensors.keys())[0]
        got = f"{ascii(odd)} {'missing' if odd in shapes else 'too many'}, {len(tensors)} tensors in all"
        fail(who, f"the tensors must be the {len(shapes)} that `dims` and `bias` imply", got, fix)
    for name, shape in shapes.items():
        T = tensors[name]
        if tuple(T.shape) != shape or T.dtype != DTYPES[config["dtype"]]:
            must = f"tensor {name!r} must have shape {shape} and dtype {config['dtype']}"
            fail(who, must, f"shape {tuple(T.shape)}, {T.dtype}", fix)
    return dims, slope, bias


def _to_parts(net: FullyConnected) -> tuple[dict[str, Any], dict[str, Tensor]]:
    dtype = str(net.weights[0].dtype).removeprefix("torch.")
    config = {"dims": list(net.dims), "slope": net.slope, "bias": net.bias, "dtype": dtype}
    tensors = {name: parameter.detach() for name, parameter in net.named_parameters(remove_duplicate=False)}
    _check_parts("save", config, tensors)
    return config, tensors


def _from_parts(config: Any, tensors: dict[str, Tensor]) -> FullyConnected:
    dims, slope, bias = _check_parts("load", config, tensors)
    Ws = [tensors[f"weights.{i}"] for i in range(len(dims) - 1)]
    bs = [tensors[f"biases.{i}"] for i in range(len(dims) - 1)] if bias != 0.0 else None
    # The constructor draws initial weights, to be overwritten: loading must not advance the user's generator.
    with torch.random.fork_rng(devices=[]):
        return FullyConnected.from_weights(Ws, bs, slope=slope, bias=bias)


register("FullyConnected", FullyConnected, _to_parts, _from_parts)


# ---- Single layers as PyTorch modules: copies of weights, and activations of which some neurons are free


def partly_linear(X: Tensor, linear: int, slope: float) -> Tensor:
    """σ_a on all of the last axis but the first ``linear`` entries."""
    if linear == 0:
        return activate(X, slope)
    if linear >= X.shape[-1]:
        return X
    return torch.cat([X[..., :linear], activate(X[..., linear:], slope)], -1)


class PartlyLinear(nn.Module):
    """σ_a on all features but the first ``linear``, which pass unchanged.

    Parameters
    ----------
    linear : int
        Number of leading features without activation.
    slope : float, default 0.0
        a of σ_a.
    """

    def __init__(self, linear: int, slope: float = 0.0) -> None:
        super().__init__()
        self.linear = check_integer("PartlyLinear", "linear", linear, low=0)
        self.slope = check_number("PartlyLinear", "slope", slope, low=-1.0, high=1.0)

    def forward(self, X: Tensor) -> Tensor:
        """The same shape, (..., n)."""
        return partly_linear(X, self.linear, self.slope)

    def extra_repr(self) -> str:
        """Shown by ``print``."""
        return f"linear={self.linear}, slope={self.slope:g}"


def linear_module(W: Tensor, b: Tensor | None, bias: float = 1.0) -> nn.Linear:
    """``nn.Linear`` with copies of W and βb."""
    made = nn.Linear(W.shape[1], W.shape[0], bias=b is not None, dtype=W.dtype, device=W.device)
    with torch.no_grad():
        made.weight.copy_(W)
        if b is not None:
            made.bias.copy_(bias * b)
    return made.requires_grad_(W.requires_grad)


def activation_modules(linear: int, slope: float, width: int) -> list[nn.Module]:
    """PyTorch's own activation where all neurons have it, ours where some do, none where none does."""
    if linear >= width or slope == 1.0:
        return []
    if linear:
        return [PartlyLinear(linear, slope)]
    return [nn.ReLU() if slope == 0.0 else nn.LeakyReLU(slope)]


# ---- A network with a narrow linear layer in the middle: encoder g, waist of k coordinates, decoder h


class Hourglass(nn.Module):
    """f = h∘g through R^k: two fully connected networks, g: R^{d_in} → R^k and h: R^k → R^{d_out}.

    The waist z = g(x) is linear (no activation), so nothing but the number of coordinates limits what passes. Whatever
    its weights, the bottleneck rank of f is at most k.

    Parameters
    ----------
    encoder, decoder : FullyConnected
        Copied. Of one slope, amount of bias and dtype; ``encoder`` ends where ``decoder`` begins.

    Notes
    -----
    Parameters are laid out as in :class:`FullyConnected`: W_1 … W_L, b_1 … b_L.
    """

    def __init__(self, encoder: FullyConnected, decoder: FullyConnected) -> None:
        super().__init__()
        who = "Hourglass"
        if encoder.dims[-1] != decoder.dims[0]:
            must = f"`decoder` must have {encoder.dims[-1]} inputs, one for each output of `encoder`"
            fail(who, must, decoder.dims[0], "Give both the same waist.")
        kinds = [(net.slope, net.bias, net.weights[0].dtype) for net in (encoder, decoder)]
        if kinds[0] != kinds[1]:
            fail(who, "`encoder` and `decoder` must have one slope, bias and dtype", kinds, "Make them alike.")
        self.dims = (*encoder.dims, *decoder.dims[1:])
        self.slope, self.bias, self.waist = encoder.slope, encoder.bias, encoder.depth
        self.weights = nn.ParameterList(nn.Parameter(W.detach().clone()) for W in (*encoder.Ws, *decoder.Ws))
        self.biases = nn.ParameterList(nn.Parameter(b.detach().clone()) for b in (*encoder.bs, *decoder.bs))

    @classmethod
    def fresh(
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
        """Random initial weights; ``dims_in`` ends and ``dims_out`` begins with k."""
        options: dict[str, Any] = {"init_scale": init_scale, "dtype": dtype, "generator": generator}
        return cls(*(FullyConnected(dims, slope, bias, **options) for dims in (dims_in, dims_out)))

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.dims) - 1

    @property
    def rank(self) -> int:
        """k, the width of the waist."""
        return self.dims[self.waist]

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope below zero at each of the layers 1 … L−1: 1 at the waist."""
        return tuple(1.0 if ell == self.waist else self.slope for ell in range(1, self.depth))

    @property
    def Ws(self) -> tuple[Tensor, ...]:
        """W_1 … W_L: the live parameters."""
        return tuple(self.weights)

    @property
    def bs(self) -> tuple[Tensor, ...]:
        """b_1 … b_L: the live parameters; empty when ``bias == 0``."""
        return tuple(self.biases)

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., d_out) from (..., d_in)."""
        for index, (W, slope) in enumerate(zip(self.weights, (*self.slopes, 1.0))):
            X = X @ W.mT
            if self.bias != 0.0:
                b = self.biases[index]
                X = X + (b if self.bias == 1.0 else self.bias * b)
            X = activate(X, slope)
        return X

    def encoder(self) -> FullyConnected:
        """g, a copy."""
        return self._part(slice(0, self.waist))

    def decoder(self) -> FullyConnected:
        """h, a copy."""
        return self._part(slice(self.waist, self.depth))

    def _part(self, part: slice) -> FullyConnected:
        bs = self.bs[part] if self.bias != 0.0 else None
        return FullyConnected.from_weights(self.Ws[part], bs, slope=self.slope, bias=self.bias)

    @torch.no_grad()
    def merged(self) -> FullyConnected:
        """The same function as a FullyConnected with one layer less: the weights at the waist multiplied."""
        m = self.waist
        Ws, bs = [W.detach() for W in self.Ws], [b.detach() for b in self.bs]
        joint = Ws[m] @ Ws[m - 1]
        if self.bias != 0.0:
            bs = [*bs[: m - 1], Ws[m] @ bs[m - 1] + bs[m], *bs[m + 1 :]]
        weights = [*Ws[: m - 1], joint, *Ws[m + 1 :]]
        return FullyConnected.from_weights(weights, bs or None, slope=self.slope, bias=self.bias)


# ---- A fully connected network in which some neurons are linear: what compression leaves where σ did nothing


class CompactNetwork(nn.Module):
    """f = α̃_L with α̃_ℓ = W_ℓα_{ℓ-1} + β b_ℓ, where the first ``linear[ℓ-1]`` neurons of layer ℓ have no activation.

    Parameters
    ----------
    Ws : sequence of Tensor (n_ℓ, n_{ℓ-1})
        Copied, as are the others.
    bs : sequence of Tensor (n_ℓ,) or None
        A layer may have none.
    slopes : sequence of float
        a below zero at each of the layers 1 … L−1.
    linear : sequence of int
        How many neurons of each of these layers are linear; they come first.
    bias : float, default 1.0
        Amount of bias β.
    shift, scale : Tensor (n_0,), optional
        Inputs are centred and divided first: x ↦ (x − shift)/scale.
    """

    def __init__(
        self,
        Ws: Sequence[Tensor],
        bs: Sequence[Tensor | None],
        *,
        slopes: Sequence[float],
        linear: Sequence[int],
        bias: float = 1.0,
        shift: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        dims, self.slopes, self.linear = _compact_checked("CompactNetwork", [*Ws], [*bs], slopes, linear, shift, scale)
        self.dims = tuple(dims)
        self.bias = check_number("CompactNetwork", "bias", bias)
        self.weights = nn.ParameterList(nn.Parameter(W.detach().clone()) for W in Ws)
        self.biases = nn.ParameterDict(
            {str(i): nn.Parameter(b.detach().clone()) for i, b in enumerate(bs) if b is not None}
        )
        self.shift: Tensor | None
        self.scale: Tensor | None
        self.register_buffer("shift", None if shift is None else shift.detach().clone())
        self.register_buffer("scale", None if scale is None else scale.detach().clone())

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.weights)

    def b(self, ell: int) -> Tensor | None:
        """b_ℓ, ℓ = 1 … L, or None."""
        return self.biases.get(str(ell - 1), None)

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., n_L) from (..., n_0)."""
        if self.shift is not None and self.scale is not None:
            X = (X - self.shift) / self.scale
        for index, W in enumerate(self.weights):
            X = X @ W.mT
            b = self.b(index + 1)
            if b is not None:
                X = X + (b if self.bias == 1.0 else self.bias * b)
            if index + 1 < self.depth:
                X = partly_linear(X, self.linear[index], self.slopes[index])
        return X

    def to_torch(self) -> nn.Sequential:
        """The same as an ``nn.Sequential`` of plain layers; scaling is a ``BatchNorm1d`` in evaluation mode."""
        layers: list[nn.Module] = []
        if self.shift is not None and self.scale is not None:
            norm = nn.BatchNorm1d(self.dims[0], eps=0.0, affine=False, dtype=self.shift.dtype, device=self.shift.device)
            assert norm.running_mean is not None and norm.running_var is not None
            norm.running_mean.copy_(self.shift)
            norm.running_var.copy_(self.scale**2)
            layers.append(norm.eval())
        for index, W in enumerate(self.weights):
            layers.append(linear_module(W, self.b(index + 1), self.bias))
            if index + 1 < self.depth:
                layers += activation_modules(self.linear[index], self.slopes[index], self.dims[index + 1])
        made = nn.Sequential(*layers)
        return made if layers and isinstance(layers[0], nn.BatchNorm1d) else made.train(self.training)

    def extra_repr(self) -> str:
        """Shown by ``print(net)``."""
        return f"dims={list(self.dims)}, slopes={list(self.slopes)}, linear={list(self.linear)}, bias={self.bias:g}"


def _compact_checked(
    who: str,
    Ws: list[Tensor],
    bs: list[Tensor | None],
    slopes: Sequence[float],
    linear: Sequence[int],
    shift: Tensor | None,
    scale: Tensor | None,
) -> tuple[list[int], tuple[float, ...], tuple[int, ...]]:
    fix = "Order the layers from input to output."
    if not 1 <= len(Ws) <= MAX_DEPTH or len(bs) != len(Ws):
        fail(who, "`Ws` and `bs` must have one entry for each layer", f"{len(Ws)} and {len(bs)}", fix)
    for index, (W, b) in enumerate(zip(Ws, bs)):
        before = Ws[index - 1].shape[0] if index else None
        if W.ndim != 2 or 0 in W.shape or max(W.shape) > MAX_WIDTH or (before is not None and W.shape[1] != before):
            fail(who, f"`Ws[{index}]` must be a matrix that takes the outputs before it", tuple(W.shape), fix)
        if b is not None and tuple(b.shape) != (W.shape[0],):
            fail(who, f"`bs[{index}]` must have shape ({W.shape[0]},)", tuple(b.shape), fix)
    dims = [Ws[0].shape[1], *(W.shape[0] for W in Ws)]
    if len(slopes) != len(Ws) - 1 or len(linear) != len(Ws) - 1:
        fail(who, f"`slopes` and `linear` must have {len(Ws) - 1} entries", f"{len(slopes)} and {len(linear)}", fix)
    counts = tuple(check_integer(who, "linear", k, low=0, high=n) for k, n in zip(linear, dims[1:-1]))
    for name, value in (("shift", shift), ("scale", scale)):
        if value is not None and tuple(value.shape) != (dims[0],):
            fail(who, f"`{name}` must have shape ({dims[0]},)", tuple(value.shape), "Pass one number for each input.")
    if (shift is None) != (scale is None):
        fail(who, "`shift` and `scale` must be given together", "one of them", "Pass both or none.")
    return dims, tuple(check_number(who, "slopes", a, low=-1.0, high=1.0) for a in slopes), counts


def _compact_to_parts(net: CompactNetwork) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = {
        "dtype": str(net.weights[0].dtype).removeprefix("torch."),
        "depth": net.depth,
        "slopes": list(net.slopes),
        "linear": list(net.linear),
        "bias": net.bias,
        "biased": [net.b(ell) is not None for ell in range(1, net.depth + 1)],
        "scaled": net.shift is not None,
    }
    tensors = {name: T.detach() for name, T in net.state_dict().items()}
    return config, tensors


def _compact_from_parts(config: Any, tensors: Mapping[str, Tensor]) -> CompactNetwork:
    who, fix = "load", "The file was not written by isthmus.save."
    keys = {"dtype", "depth", "slopes", "linear", "bias", "biased", "scaled"}
    if not isinstance(config, dict) or set(config) != keys:
        fail(who, f"the configuration must have the keys {', '.join(sorted(keys))}", ascii(config), fix)
    depth = check_integer(who, "depth", config["depth"], low=1, high=MAX_DEPTH)
    lists = {"slopes": depth - 1, "linear": depth - 1, "biased": depth}
    for name, length in lists.items():
        if not isinstance(config[name], list) or len(config[name]) != length:
            fail(who, f"`{name}` must be a list of {length} entries", ascii(config[name]), fix)
    if not all(isinstance(flag, bool) for flag in [*config["biased"], config["scaled"]]):
        fail(who, "`biased` and `scaled` must be true or false", ascii(config["biased"]), fix)
    if not isinstance(config["dtype"], str) or config["dtype"] not in DTYPES:
        fail(who, f"`dtype` must be one of {', '.join(DTYPES)}", ascii(config["dtype"]), fix)
    names = {f"weights.{i}" for i in range(depth)} | {f"biases.{i}" for i in range(depth) if config["biased"][i]}
    names |= {"shift", "scale"} if config["scaled"] else set()
    if names != set(tensors):
        fail(who, f"the tensors must be the {len(names)} that the configuration implies", ascii(sorted(tensors)), fix)
    for name, T in tensors.items():
        if T.dtype != DTYPES[config["dtype"]]:
            fail(who, f"tensor {name!r} must have dtype {config['dtype']}", T.dtype, fix)
    return CompactNetwork(
        [tensors[f"weights.{i}"] for i in range(depth)],
        [tensors.get(f"biases.{i}") for i in range(depth)],
        slopes=config["slopes"],
        linear=config["linear"],
        bias=check_number(who, "bias", config["bias"]),
        shift=tensors.get("shift"),
        scale=tensors.get("scale"),
    )


register("CompactNetwork", CompactNetwork, _compact_to_parts, _compact_from_parts)
