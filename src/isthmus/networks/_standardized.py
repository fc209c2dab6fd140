"""A network behind the scaling of its inputs, which is kept apart from its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus._checks import as_matrix, fail
from isthmus.files import register
from isthmus.networks._fully_connected import FullyConnected
from isthmus.networks._network import Network, from_parts
from isthmus.networks._smooth import SmoothNetwork

#: Families that are a chain of layers, by name: what can stand behind a scaling.
FAMILIES: dict[str, type[FullyConnected]] = {"FullyConnected": FullyConnected, "SmoothNetwork": SmoothNetwork}


class Standardized(Network):
    """x ↦ network((x − shift)/scale): inputs in their original units.

    Folded into the weights, columns far from 0 (years, sums of money) would lose digits.

    Parameters
    ----------
    network : FullyConnected, or what its ``config()`` gives
    family : str
        Which one it is of, where it is given so: FullyConnected or SmoothNetwork.
    shift, scale : Tensor (d_in,), optional
        Copied; 0 and 1 by default.
    dtype, device : optional
        Of a network that is built here.
    """

    kind: ClassVar[str] = "a network behind a scaling of its inputs"
    d_in: int
    d_out: int
    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        network: FullyConnected | Mapping[str, Any],
        shift: Tensor | None = None,
        scale: Tensor | None = None,
        *,
        family: str = "FullyConnected",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        who = "Standardized"
        if isinstance(network, Mapping):
            if family not in FAMILIES:
                fail(who, f"`family` must be one of {', '.join(FAMILIES)}", repr(family), "Pass one of these.")
            try:
                network = FAMILIES[family](**network, init_scale=0.0, dtype=dtype, device=device)
            except TypeError as problem:
                fail(who, "`network` must be the configuration of a FullyConnected", str(problem), "Pass its config().")
        if not isinstance(network, FullyConnected):
            fail(who, "`network` must be a FullyConnected", type(network).__name__, "Convert it with from_torch.")
        self.network, self.d_in, self.d_out = network, network.d_in, network.d_out
        for name, given, default in (("shift", shift, 0.0), ("scale", scale, 1.0)):
            own = network.weights[0]
            value = own.new_full((network.d_in,), default) if given is None else given.detach().clone()
            if tuple(value.shape) != (network.d_in,):
                must = f"`{name}` must have shape ({network.d_in},)"
                fail(who, must, tuple(value.shape), "Pass one number for each input.")
            self.register_buffer(name, value)

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., d_out) from (..., d_in)."""
        return self.network((X - self.shift) / self.scale)

    @torch.no_grad()
    def trace(self, X: Any, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """That of the network, on the scaled inputs."""
        kind = self.shift.dtype if dtype is None else dtype
        inputs = as_matrix("trace", "X", X, columns=self.d_in, dtype=kind, device=self.shift.device)
        return self.network.trace((inputs - self.shift.to(kind)) / self.scale.to(kind), dtype=dtype)

    def to_torch(self) -> nn.Sequential:
        """The same as an ``nn.Sequential`` of plain layers; the scaling is a ``BatchNorm1d`` in evaluation mode."""
        own = {"dtype": self.shift.dtype, "device": self.shift.device}
        norm = nn.BatchNorm1d(self.d_in, eps=0.0, affine=False, **own)  # type: ignore[arg-type]
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.copy_(self.shift)
        norm.running_var.copy_(self.scale**2)
        return nn.Sequential(norm, *self.network.to_torch()).eval()

    def config(self) -> dict[str, Any]:
        """The configuration of the inner network, and its family; the scaling is in the ``state_dict``."""
        family = type(self.network).__name__
        return {"network": self.network.config(), **({} if family == "FullyConnected" else {"family": family})}

    def plain_layers(self) -> FullyConnected | None:
        """The plain layers of the inner network."""
        return self.network.plain_layers() if type(self) is Standardized else None

    def with_plain_layers(self, layers: FullyConnected) -> Standardized:
        """Other plain layers behind the same scaling."""
        return Standardized(layers, self.shift, self.scale).train(self.training)

    @classmethod
    def fewest_tensors(cls, config: Mapping[str, Any]) -> int:
        """The scaling, and those of the network."""
        inner = config["network"]
        if not isinstance(inner, dict) or "dims" not in inner:
            fail("load", "`network` must be a configuration with `dims`", ascii(inner), "The file is damaged.")
        return 2 + FullyConnected.fewest_tensors(inner)

    def extra_repr(self) -> str:
        """Shown by ``print(net)``."""
        return f"inputs={self.d_in}"


def _from_compact(config: Any, tensors: dict[str, Tensor]) -> Network:
    """Read a compressed network of earlier versions: slopes and linear neurons by layer, perhaps a scaling."""
    keys, do = {"dtype", "depth", "slopes", "linear", "bias", "biased", "scaled"}, "Write the file again."
    if not isinstance(config, dict) or set(config) != keys:
        fail("load", f"the configuration must have the keys {', '.join(sorted(keys))}", ascii(config), do)
    Ws = [tensors[name] for i in range(len(tensors)) if (name := f"weights.{i}") in tensors]
    if any(W.ndim != 2 for W in Ws):
        fail("load", "weights must be matrices", [tuple(W.shape) for W in Ws], do)
    if config["depth"] != len(Ws) or not all(isinstance(config[name], list) for name in ("slopes", "linear", "biased")):
        fail("load", f"`depth` must be {len(Ws)}, and what layers have must be in lists", ascii(config), do)
    dims = [Ws[0].shape[1], *(len(W) for W in Ws)] if Ws else []
    own = {"dims": dims, "slope": config["slopes"], **{name: config[name] for name in ("bias", "linear", "biased")}}
    own = FullyConnected(**own, init_scale=0.0, device="meta").config()
    if config["scaled"] is True:
        renamed = {name if name in ("shift", "scale") else f"network.{name}": T for name, T in tensors.items()}
        return from_parts(Standardized, {"network": own, "dtype": config["dtype"]}, renamed)
    return from_parts(FullyConnected, {**own, "dtype": config["dtype"]}, tensors)


class CompactNetwork:
    """The name of compressed networks in files of earlier versions, kept for reading them."""


register("CompactNetwork", CompactNetwork, lambda _: ({}, {}), _from_compact)
