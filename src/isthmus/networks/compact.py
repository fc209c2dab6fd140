"""A fully connected network in which some neurons are linear: what compression leaves where σ did nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from isthmus._checks import check_integer, check_number, fail
from isthmus.files import register
from isthmus.networks.fully_connected import DTYPES, MAX_DEPTH, MAX_WIDTH
from isthmus.networks.layers import activation_modules, linear_module, partly_linear


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
        dims, self.slopes, self.linear = _checked("CompactNetwork", [*Ws], [*bs], slopes, linear, shift, scale)
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


def _checked(
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


def _to_parts(net: CompactNetwork) -> tuple[dict[str, Any], dict[str, Tensor]]:
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


def _from_parts(config: Any, tensors: Mapping[str, Tensor]) -> CompactNetwork:
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


register("CompactNetwork", CompactNetwork, _to_parts, _from_parts)
