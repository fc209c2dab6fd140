"""M-fc: fully connected networks α_ℓ = σ_a(W_ℓ α_{ℓ-1} + β b_ℓ), and their linear special case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.files import register
from isthmus.networks.layers import linear_module
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
