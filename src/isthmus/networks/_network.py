"""The Network: an abstract module that can be traced, written with PyTorch's own layers, and rebuilt from plain data.

Whatever a family can do better than the general way is a hook with a default; nothing outside this folder asks which
family a network is of.
"""

from __future__ import annotations

import inspect
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.files import register

if TYPE_CHECKING:
    from isthmus.measures import Mechanics
    from isthmus.networks._direct import Direct
    from isthmus.networks._fully_connected import FullyConnected
    from isthmus.networks._metric import KroneckerMetric

#: Dtypes a file may name.
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
#: Arguments of a constructor that say how it makes initial weights, and not which network it makes.
_NOT_IN_FILES = {"dtype", "device", "generator", "init", "init_scale"}
_ALTERED = "The file was not written by isthmus.save, or the network was altered by hand."


class Hooks:
    """What training asks of a network, with answers that hold for any module."""

    @abstractmethod
    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the module."""
        ...

    def direct(self, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Direct | None:  # noqa: ARG002
        """Cost and gradient without a graph, or None: autograd then serves.

        ``values`` and ``gradients`` are the trainable parameters and where their gradients go, in their order, each
        with a leading axis where they are those of several networks.
        """
        return None

    def metric(self, loss: str) -> KroneckerMetric | None:  # noqa: ARG002
        """The Kronecker-factored metric that quasi-Newton steps start from, or None: they start from the identity."""
        return None

    def carrying_norm(self) -> float:
        """‖θ‖² that one dimension carried through the whole network takes: L, the number of its weights."""
        return max(1.0, float(sum(p.ndim >= 2 for p in self.parameters())))

    def imbalance(self) -> tuple[float, float]:
        """(Residual of the law that norms obey at every minimum, the norm it is relative to); NaN without a law."""
        return math.nan, math.nan

    def rebalance_(self) -> bool:
        """Lower ‖θ‖² at the same function, in place; whether anything changed."""
        return False

    def adapt_interval(self) -> int:
        """Training steps between two calls of :meth:`adapt`; 0 for never."""
        return 0

    def adapt(self, X: Tensor) -> dict[nn.Parameter, float]:  # noqa: ARG002
        """Adapt what is not a parameter, such as step lengths; gives the factor by which each parameter changed."""
        return {}

    def narrowest_layer(self, X: Tensor) -> tuple[int, int] | None:  # noqa: ARG002
        """(Rank, layer) of the smallest clear rank of a hidden representation, or None: it cannot be narrowed."""
        return None

    def can_narrow(self) -> bool:
        """Whether :meth:`narrowest_layer` and :meth:`pinch_` mean anything."""
        return False

    def pinch_(self, X: Tensor, ell: int, rank: int) -> None:
        """Give layer ``ell`` at most this rank on ``X``, in place."""

    def norm_per_depth(self) -> float:
        """‖θ‖²/L; NaN where there is no depth to divide by."""
        return math.nan

    def glance(self, norm: float) -> dict[str, float]:  # noqa: ARG002
        """A few numbers to show during training, given ‖θ‖²."""
        return {}


class Network(nn.Module, Hooks, ABC):
    """A module with one contract: :meth:`trace`, :meth:`to_torch`, :meth:`config`; all else are optional hooks.

    A family is a class of its own; it is trained, traced, saved, loaded, diagnosed and compressed as far as its hooks
    allow as soon as it is defined. Its constructor takes what :meth:`config` gives, and ``dtype`` and ``device``.

    Attributes
    ----------
    kind : str
        What claims call such networks; of another kind they are not applicable.
    d_in, d_out : int
        Numbers of inputs and outputs, of families where they are fixed.
    """

    kind: ClassVar[str] = "a network"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Files know a family by its name as soon as it is defined; the names of our own are kept for them.
        register(cls.__name__, cls, to_parts, lambda config, tensors: from_parts(cls, config, tensors))

    @abstractmethod
    def trace(self, X: Any, *, dtype: torch.dtype | None = torch.float64) -> Any:
        """Weights and representations on ``X``, frozen; in float64 by default (``dtype=None`` keeps the module's)."""

    @abstractmethod
    def to_torch(self) -> nn.Module:
        """The same function made of PyTorch's own layers."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The constructor's arguments as plain data: together with the ``state_dict`` they are the network."""

    def about(self) -> str:
        """The network in a few words, for reports."""
        return self.kind

    def columns(self) -> int | None:
        """Number of inputs, where it is fixed."""
        return getattr(self, "d_in", None)

    # ---------------------------------------------------------------- what compression and diagnosis ask

    def plain_layers(self) -> FullyConnected | None:
        """The fully connected layers that are all of it but a scaling of inputs, or None: it cannot be compressed."""
        return None

    def with_plain_layers(self, layers: FullyConnected) -> Network:
        """The same network with other layers in their place."""
        return layers

    def simplified(self) -> Network:
        """The same function with as few layers as possible, which are the ones that are diagnosed."""
        return self

    def representations(self, X: Tensor) -> dict[int, Tensor] | None:  # noqa: ARG002
        """Of hidden layers by their number, in float64, or None: the layers of :meth:`to_torch` are watched."""
        return None

    def numbers(self, X: Tensor) -> dict[str, Any]:  # noqa: ARG002
        """Further numbers of this family on ``X``, as plain data."""
        return {}

    def mechanics(self, X: Tensor, Y: Tensor, *, ridge: float, loss: str) -> Mechanics | None:  # noqa: ARG002
        """Mechanics of the path of representations, for families that have one; None otherwise."""
        return None

    # ---------------------------------------------------------------- files

    @classmethod
    def upgrade(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Configuration and tensors of a file of an earlier version, as this version writes them."""
        return config, tensors

    @classmethod
    def fewest_tensors(cls, config: Mapping[str, Any]) -> int:  # noqa: ARG003
        """How many tensors there must be at least: asked before a skeleton is built from an untrusted file."""
        return 0

    def check_state(self, who: str) -> None:
        """Fail unless the values in a file are possible; shapes have been checked before."""


class Layer(nn.Module):
    """A layer that PyTorch does not have: its name in a diagnosis, and its parameters as shown there.

    Attributes
    ----------
    kind : str
        What it is, in the tables of layers.
    reading : str
        How the matrices that are shown come from its parameters.
    """

    kind: ClassVar[str] = "parameters"
    reading: ClassVar[str] = "as it is"

    def as_printed(self, name: str) -> Tensor:
        """The parameter ``name`` as it is shown and measured."""
        return self.get_parameter(name)


class _Module(Hooks):
    """Any module, with the hooks of none."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = module.parameters


def hooks_of(module: nn.Module) -> Hooks:
    """The network itself, or the default hooks for any other module."""
    return module if isinstance(module, Network) else _Module(module)


# ---------------------------------------------------------------- files: one codec for all families

Family = TypeVar("Family", bound=Network)


def to_parts(net: Network) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration as plain data and tensors by name, bit for bit; checked as a file is on loading."""
    own = next((p for p in net.parameters()), None)
    if own is None:
        fail("save", "`net` must have parameters", "none", "Save a network with weights.")
    config = {**net.config(), "dtype": str(own.dtype).removeprefix("torch.")}
    tensors = {name: T.detach() for name, T in net.state_dict().items()}
    _skeleton("save", type(net), config, tensors)
    net.check_state("save")
    return config, tensors


def from_parts(cls: type[Family], config: Any, tensors: dict[str, Tensor]) -> Family:
    """The network of a file. Nothing is allocated before the shapes that the configuration implies are there."""
    if not isinstance(config, dict):
        fail("load", "the configuration must be an object", ascii(config), _ALTERED)
    config, tensors = cls.upgrade(config, tensors)
    net = _skeleton("load", cls, config, tensors)
    net.load_state_dict(tensors, assign=True)
    net.check_state("load")
    return net


def _skeleton(who: str, cls: type[Family], config: Any, tensors: Mapping[str, Tensor]) -> Family:
    """The network of this configuration on the meta device; fails unless the tensors are exactly its own."""
    allowed = inspect.signature(cls).parameters
    keys = {name for name in config if isinstance(name, str)} - {"dtype"}
    required = {
        name for name, p in allowed.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    } - _NOT_IN_FILES
    if not required <= keys <= set(allowed) - _NOT_IN_FILES or len(keys) + 1 != len(config) or "dtype" not in config:
        known = ", ".join(sorted(set(allowed) - _NOT_IN_FILES | {"dtype"}))
        fail(who, f"the configuration must have the keys among {known}", ascii(config), _ALTERED)
    if not isinstance(config["dtype"], str) or config["dtype"] not in DTYPES:
        fail(who, f"`dtype` must be one of {', '.join(DTYPES)}", ascii(config["dtype"]), _ALTERED)
    fewest = cls.fewest_tensors(config)
    if fewest > len(tensors):
        fail(who, f"there must be at least {fewest} tensors", len(tensors), _ALTERED)
    arguments = {name: config[name] for name in keys}
    net = cls(**arguments, dtype=DTYPES[config["dtype"]], device="meta")
    # Neither a default in the place of what was lost, nor a second spelling of anything.
    says, given = (json.dumps(one, sort_keys=True, default=repr) for one in (net.config(), arguments))
    if says != given:
        fail(who, f"the configuration must have the keys and values {says}", given, _ALTERED)
    wanted = net.state_dict()
    if wanted.keys() != tensors.keys():
        odd = sorted(wanted.keys() ^ tensors.keys())[0]
        got = f"{ascii(odd)} {'missing' if odd in wanted else 'too many'}, {len(tensors)} tensors in all"
        fail(who, f"the tensors must be the {len(wanted)} that the configuration implies", got, _ALTERED)
    for name, like in wanted.items():
        T = tensors[name]
        if T.shape != like.shape or T.dtype != like.dtype:
            must = f"tensor {name!r} must have shape {tuple(like.shape)} and dtype {like.dtype}"
            fail(who, must, f"shape {tuple(T.shape)}, {T.dtype}", _ALTERED)
    return net
