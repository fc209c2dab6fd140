"""Channels that a module does not need for any input: values are numbered along its graph, and equal ones merged.

Every channel of every tensor on the way is written as a·q + t, with q a numbered quantity: two channels with the same q
are the same function of the inputs up to a and t, whatever the inputs are, and a channel with a = 0 is constant. Bounds
are carried along too: a ReLU that sees nothing above zero is constant. What reads a channel that can go reads another
one instead, with its weights changed; what is unknown (reshapes, norms over channels, outputs) keeps its channels.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from isthmus.compression._calls import Call
from isthmus.compression._certificate import LayerChange
from isthmus.compression._everywhere import first_of_ray
from isthmus.compression._graphs import Region, blocked, hooked, overwritten, regions

#: Rows of norm 1 that differ by no more are multiples of one another; so are offsets, relative to their size.
SAME = 32 * torch.finfo(torch.float64).eps

_MAX_ROUNDS = 12

Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

#: Number of axes after the channels, by kind of module.
_SPATIAL = {
    **{kind: n for kinds in (Convolution, Transposed) for n, kind in enumerate(kinds, 1)},
    nn.BatchNorm1d: 1,
    nn.BatchNorm2d: 2,
    nn.BatchNorm3d: 3,
    **{
        getattr(nn, f"{name}{n}d"): n
        for name in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
        for n in (1, 2, 3)
    },
}

#: Modules and functions that act on each number alone, by the names of their kinds.
_POINTWISE = frozenset((
    "relu", "relu_", "relu6", "leakyrelu", "leaky_relu", "leaky_relu_", "silu", "gelu", "sigmoid", "sigmoid_", "tanh",
    "tanh_", "elu", "elu_", "selu", "celu", "hardtanh", "hardswish", "hardsigmoid", "softplus", "mish", "softsign",
    "tanhshrink", "logsigmoid", "softshrink", "hardshrink", "threshold", "abs", "square", "exp", "sin", "cos", "neg",
))  # fmt: skip

_NONDECREASING = frozenset((
    "relu", "relu_", "relu6", "sigmoid", "sigmoid_", "tanh", "tanh_", "hardtanh", "hardsigmoid", "softplus",
    "softsign", "logsigmoid", "exp",
))  # fmt: skip

#: Bounds of the values of functions that neither rise nor fall throughout.
_BELOW = {"silu": -0.3, "gelu": -0.2, "mish": -0.4, "hardswish": -0.4, "abs": 0.0, "square": 0.0}

_SAME_VALUE = frozenset((
    "identity", "dropout", "dropout1d", "dropout2d", "dropout3d", "alphadropout", "alpha_dropout",
    "featurealphadropout", "contiguous", "clone",
))  # fmt: skip

_POOLS = {
    **{f"{kind}_pool{n}d": n for kind in ("max", "avg", "adaptive_max", "adaptive_avg") for n in (1, 2, 3)},
}

#: Functions that dispatch on an option have another function's name.
_NAMES = {getattr(nn.functional, name): name for name in _POOLS if hasattr(nn.functional, name)}

#: Ways of resizing whose weights are not negative and add up to 1.
_AVERAGING = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area")

_RESHAPES = frozenset(["flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten"])


@dataclass(eq=False)
class Values:
    """The channels of a tensor: a·q + t.

    Attributes
    ----------
    axis : int
        Where they lie, from the end.
    repeat : int
        Numbers in a row that belong to one channel, once positions were flattened into the same axis.
    slots : Tensor (C,)
        Which channels these are: two that must go together share one.
    q : Tensor (C,)
        Number of a quantity.
    a, t, low, high : Tensor (C,)
    """

    axis: int
    repeat: int
    slots: Tensor
    q: Tensor
    a: Tensor
    t: Tensor
    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def constant(self) -> Tensor:
        """Which channels are."""
        return self.a == 0

    def settled(self) -> Values:
        """With channels whose bounds meet as constants, and the bounds of constants."""
        flat = (self.low == self.high) & ~self.constant
        a, t = torch.where(flat, 0.0, self.a), torch.where(flat, self.low, self.t)
        still = a == 0
        return replace(self, a=a, t=t, low=torch.where(still, t, self.low), high=torch.where(still, t, self.high))


@dataclass(eq=False)
class _Reader:
    """A layer that mixes the channels of its input; ``folds`` if constants can go into its bias."""

    name: str
    values: Values
    folds: bool


@dataclass(eq=False)
class Found:
    """What goes from one region: layer → places of its outputs, with reasons, and what its readers make up for."""

    rows: dict[str, Tensor] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(eq=False)
class Columns:
    """What happens to the inputs of a layer: ``moves`` are (from, to, factor), ``offsets`` (from, value)."""

    gone: Tensor
    repeat: int
    moves: list[tuple[int, int, float]] = field(default_factory=list)
    offsets: list[tuple[int, float]] = field(default_factory=list)
    ones: list[tuple[int, float]] = field(default_factory=list)


def without_channels(
    module: nn.Module, call: Call | None, *, pads: bool = True
) -> tuple[dict[str, nn.Module], list[LayerChange]]:
    """Layers to be put in the place of those of ``module`` (float64, evaluation mode, changed in place), by name.

    ``pads``: where a constant channel goes that the next convolution sees beside its zero padding, let that convolution
    append a constant channel by itself.
    """
    made: dict[str, nn.Module] = {}
    first: dict[str, int] = {}
    gone: dict[str, dict[str, int]] = {}

    def label(name: str) -> str:
        """What a layer was called before a padding was put before it."""
        return next((outer for outer in made if name.startswith(f"{outer}.")), name)

    for _ in range(_MAX_ROUNDS):
        found = _one_round(module, call, pads=pads)
        if not found.rows:
            break
        for name, counts in found.reasons.items():
            total = gone.setdefault(label(name), {})
            first.setdefault(label(name), outputs_of(module.get_submodule(name)))
            for why, count in counts.items():
                total[why] = total.get(why, 0) + count
        for name in [*found.rows, *(name for name in found.columns if name not in found.rows)]:
            layer = rewritten(module.get_submodule(name), found.rows.get(name), found.columns.get(name))
            module.set_submodule(name, layer)
            if label(name) == name:
                made[name] = layer
    changes = [
        LayerChange(name, first[name], outputs_of(_core(module.get_submodule(name))), 0, counts)
        for name, counts in gone.items()
    ]
    return made, changes


def outputs_of(layer: nn.Module) -> int:
    """Channels that a layer gives."""
    for name in ("out_features", "out_channels"):
        if hasattr(layer, name):
            return int(getattr(layer, name))
    return 0


def _core(layer: nn.Module) -> nn.Module:
    """The layer behind a padding that was put before it."""
    return layer[-1] if isinstance(layer, nn.Sequential) else layer


def _one_round(module: nn.Module, call: Call | None, *, pads: bool) -> Found:
    fixed = set(blocked(module))
    parts = regions(module, call)
    calls = Counter(
        f"{region.prefix}{node.target}" for region in parts for node in region.graph.nodes if node.op == "call_module"
    )
    fixed |= {name for name, count in calls.items() if count > 1}
    for region in parts:
        # A weight that the forward itself uses belongs to a layer that must stay.
        read = (str(node.target) for node in region.graph.nodes if node.op == "get_attr")
        fixed |= {f"{region.prefix}{name.rpartition('.')[0]}" for name in read}
    found = Found()
    for region in parts:
        if not overwritten(region):
            _Numbering(region, fixed).choose(found, pads=pads)
    return found


class _Numbering:
    """Values of every tensor in a region, who makes them and who reads them."""

    def __init__(self, region: Region, fixed: set[str]) -> None:
        self.region = region
        self.parents: list[int] = []
        self.locked: list[bool] = []
        self.numbers: dict[Hashable, list[tuple[tuple[float, ...], int]]] = {}
        self.count = 0
        self.values: dict[fx.Node, Values] = {}
        self.makers: list[tuple[str, Tensor]] = []
        self.readers: list[_Reader] = []
        self.fixed = fixed
        self.ones = self.number("one")
        with torch.no_grad():
            for node in region.graph.nodes:
                self._visit(node)

    # ---------------------------------------------------------------- slots and numbers

    def new_slots(self, count: int, *, locked: bool = False) -> Tensor:
        start = len(self.parents)
        self.parents += range(start, start + count)
        self.locked += [locked] * count
        return torch.arange(start, start + count)

    def top(self, slot: int) -> int:
        while self.parents[slot] != slot:
            self.parents[slot] = self.parents[self.parents[slot]]
            slot = self.parents[slot]
        return slot

    def join(self, one: Tensor, other: Tensor) -> None:
        for p, q in zip(one.tolist(), other.tolist()):
            p, q = self.top(p), self.top(q)
            if p != q:
                self.parents[q] = p
                self.locked[p] = self.locked[p] or self.locked[q]

    def lock(self, node: Any) -> None:
        """Nothing goes from what is read in a way that is not known."""
        values = self.values.get(node) if isinstance(node, fx.Node) else None
        if values is not None:
            for slot in values.slots.tolist():
                self.locked[self.top(slot)] = True

    def number(self, key: Hashable, *values: float) -> int:
        """The same for the same key and values, up to rounding of the values."""
        known = self.numbers.setdefault(key, [])
        for others, number in known:
            if all(abs(p - q) <= SAME * max(abs(p), abs(q)) for p, q in zip(values, others)):
                return number
        self.count += 1
        known.append((values, self.count))
        return self.count

    # ---------------------------------------------------------------- one node

    def _visit(self, node: fx.Node) -> None:
        made = None
        if node.op in ("call_module", "call_function", "call_method"):
            made = self._called(node)
        if made is not None:
            self.values[node] = made.settled()
            return
        if not self._only_asks(node):
            for other in node.all_input_nodes:
                self.lock(other)

    def _called(self, node: fx.Node) -> Values | None:
        first = node.args[0] if node.args else None
        values = self.values.get(first) if isinstance(first, fx.Node) else None
        if node.op == "call_module":
            module = self.region.owner.get_submodule(str(node.target))
            if len(node.args) != 1 or node.kwargs or hooked(module):
                return None
            return self._module(node, module, values)
        home = getattr(node.target, "__module__", None) or "torch"
        if node.op == "call_function" and home.partition(".")[0] not in ("torch", "_operator"):
            return None
        name = str(node.target) if node.op == "call_method" else _name_of(node.target)
        name = name.strip("_") if name in {"__add__", "__iadd__", "__mul__", "__imul__", "__sub__"} else name
        if name in ("cat", "concat"):
            return self._joined(node)
        if name.rstrip("_") in ("add", "iadd", "sub", "isub", "mul", "imul", "multiply") and len(node.args) == 2:
            return None if node.kwargs else self._arithmetic(node, name.rstrip("_").removeprefix("i"))
        if values is None:
            return None
        if any(isinstance(part, fx.Node) for part in (*node.args[1:], *node.kwargs.values())) and name not in _RESHAPES:
            return None
        if name in _SAME_VALUE:
            return None if name.endswith("dropout") and node.kwargs.get("training", True) is not False else values
        if name in _POINTWISE:
            return self._pointwise(values, name, _call_of(node), (name, str(node.args[1:]), str(dict(node.kwargs))))
        if name in _POOLS:
            if values.axis != -(_POOLS[name] + 1) or node.kwargs.get("return_indices"):
                return None
            says = {**dict(zip(_POOL_ARGUMENTS[name.startswith("adaptive")], node.args[1:])), **node.kwargs}
            return self._pooled(values, name, says)
        if name == "interpolate":
            shape = self.region.shapes.get(first) if isinstance(first, fx.Node) else None
            if shape is None or values.axis != 1 - len(shape) or node.args[1:]:
                return None
            return self._pooled(values, name, dict(node.kwargs))
        if name == "mean":
            return self._mean(node, values)
        return self._reshaped(node, values) if name in _RESHAPES else None

    def _module(self, node: fx.Node, module: nn.Module, values: Values | None) -> Values | None:
        kind = type(module)
        name = f"{self.region.prefix}{node.target}"
        if kind is nn.Linear or (kind in Convolution or kind in Transposed):
            return self._mixed(node, module, name, values)
        if values is None or (list(module.parameters(recurse=False)) and name in self.fixed):
            return None
        word = kind.__name__.lower()
        if kind in _SPATIAL and kind.__name__.startswith("BatchNorm"):
            return self._normed(node, module, name, values)
        if not kind.__module__.startswith("torch.nn"):
            return None
        if kind is nn.PReLU:
            single = module.weight.numel() == 1
            return self._pointwise(values, "prelu", module, ("prelu", float(module.weight[0]))) if single else None
        if word in _SAME_VALUE:
            return values
        if word in _POINTWISE:
            plain = copy.deepcopy(module)
            if hasattr(plain, "inplace"):
                plain.inplace = False
            return self._pointwise(values, word, plain, repr(plain))
        if kind in _SPATIAL:
            if values.axis != -(_SPATIAL[kind] + 1) or getattr(module, "return_indices", False):
                return None
            return self._pooled(values, word, {**vars(module)})
        if kind in (nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d):
            shape = self._shape(node.args[0])
            return (
                self._pooled(values, "interpolate", {**vars(module)})
                if shape and values.axis == 1 - len(shape)
                else None
            )
        if kind in (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d):
            return self._appended(module, values)
        return self._reshaped(node, values) if kind is nn.Flatten else None

    def _shape(self, node: Any) -> torch.Size | None:
        return self.region.shapes.get(node) if isinstance(node, fx.Node) else None

    def _only_asks(self, node: fx.Node) -> bool:
        """Whether a node reads only lengths of a tensor that no removal changes, or those that reshapes go on with."""
        if node.op == "call_method" and node.target == "dim":
            return True
        source = node.args[0] if node.args else None
        shape, values = self._shape(source), self.values.get(source) if isinstance(source, fx.Node) else None
        if shape is None or values is None:
            return False
        place = len(shape) + values.axis

        def harmless(user: fx.Node, axis: Any) -> bool:
            other = isinstance(axis, int) and axis % len(shape) != place
            return other or all(u.op == "call_method" and u.target in ("view", "reshape") for u in user.users)

        if node.op == "call_method" and node.target == "size" and len(node.args) == 2:
            return harmless(node, node.args[1])
        whole = node.op == "call_method" and node.target == "size" and len(node.args) == 1 and not node.kwargs
        if whole or (node.op == "call_function" and node.target is getattr and node.args[1] == "shape"):
            return all(
                getattr(user.target, "__name__", "") == "getitem" and harmless(user, user.args[1])
                for user in node.users
            )
        return node.op == "call_function" and node.target is getattr and node.args[1] in ("dtype", "device", "ndim")

    # ---------------------------------------------------------------- layers that mix channels

    def _mixed(self, node: fx.Node, layer: Any, name: str, values: Values | None) -> Values | None:
        if name in self.fixed:
            return None
        linear = type(layer) is nn.Linear
        groups = 1 if linear else layer.groups
        own = -1 if linear else -(_SPATIAL[type(layer)] + 1)
        inputs = layer.in_features if linear else layer.in_channels
        fits = values is not None and values.axis == own and len(values) * values.repeat == inputs
        if not fits or values is None or (not linear and values.repeat != 1):
            self.lock(node.args[0])
            values = None
        if groups > 1:
            alone = groups == layer.in_channels == layer.out_channels and type(layer) in Convolution
            if values is not None and alone:
                return self._by_channel(layer, name, values)
            self.lock(node.args[0])
            return self._opaque(layer.out_channels, own, name, locked=True)
        W = _matrix(layer, values)
        out = len(W)
        b = torch.zeros(out, dtype=torch.float64) if layer.bias is None else layer.bias.detach()
        slots = self.new_slots(out)
        infinite = torch.full((out,), math.inf, dtype=torch.float64)
        if values is None:
            rows, t, low, high = W.flatten(1), b, -infinite, infinite
        else:
            folds = folds_constants(layer)
            self.readers.append(_Reader(name, values, folds))
            rows, t = self._rows(W, b, values, folds)
            low, high = _bounds(W, b, values, folds)
        self.makers.append((name, slots))
        q, a = self._numbered(rows, (self.region.prefix, node.name))
        return Values(own, 1, slots, q, a, t, low, high)

    def _rows(self, W: Tensor, b: Tensor, values: Values, folds: bool) -> tuple[Tensor, Tensor]:
        """Weights (out, quantities × positions) on the quantities below, and what is constant."""
        moving = ~values.constant
        numbers, place = values.q[moving].unique(return_inverse=True)
        merged = torch.zeros(len(W), len(numbers), W.shape[2], dtype=torch.float64)
        merged.index_add_(1, place, W[:, moving] * values.a[moving, None])
        offsets = torch.einsum("oik,i->ok", W, values.t)
        if folds:
            return merged.flatten(1), b + offsets.sum(1)
        return torch.cat([merged.flatten(1), offsets], 1), b

    def _numbered(self, rows: Tensor, key: Hashable) -> tuple[Tensor, Tensor]:
        """Numbers of what the rows give, and their factors: rows on one line give the same."""
        sizes = rows.norm(dim=1)
        alive = torch.nonzero(sizes > 0)[:, 0]
        q, a = torch.full((len(rows),), self.ones), torch.zeros(len(rows), dtype=torch.float64)
        if not len(alive):
            return q, a
        units = rows[alive] / sizes[alive, None]
        signs = units.gather(1, units.abs().argmax(1, keepdim=True))[:, 0].sign()
        units = units * signs[:, None]
        first = first_of_ray(units, SAME)
        for k, j in enumerate(first.tolist()):
            place, other = int(alive[k]), int(alive[j])
            q[place] = self.number((key, j))
            same = k == j or torch.equal(rows[place], rows[other])
            a[place] = a[other] if same and k != j else signs[k] * sizes[place]
        return q, a

    def _opaque(self, count: int, axis: int, name: str, *, locked: bool = False) -> Values:
        """Channels of which nothing is known."""
        q = torch.tensor([self.number((name, i)) for i in range(count)])
        one = torch.ones(count, dtype=torch.float64)
        slots = self.new_slots(count, locked=locked)
        return Values(axis, 1, slots, q, one, 0 * one, -math.inf * one, math.inf * one)

    def _by_channel(self, layer: Any, name: str, values: Values) -> Values:
        """A convolution of each channel by itself."""
        folds = folds_constants(layer)
        rows = layer.weight.detach().flatten(1)
        b = torch.zeros(len(rows), dtype=torch.float64) if layer.bias is None else layer.bias.detach()
        made = replace(values, q=values.q.clone(), a=values.a.clone(), t=values.t.clone())
        kind = (type(layer).__name__, layer.stride, layer.padding, layer.dilation, layer.padding_mode)
        for i, row in enumerate(rows):
            lead = float(row[row.abs().argmax()]) or 1.0
            shape = (row / lead).tolist()
            total = float(row.sum())
            a, t = float(values.a[i]), float(values.t[i])
            if not bool(row.any()) or (a == 0 and (folds or t == 0)):
                made.a[i], made.t[i] = 0.0, total * t + b[i] if bool(row.any()) else b[i]
            elif t == 0 or folds:
                made.q[i] = self.number((kind, int(values.q[i])), *shape)
                made.a[i], made.t[i] = a * lead, total * t + b[i]
            else:
                made.q[i] = self.number((kind, int(values.q[i]), "with an offset"), a, t, *row.tolist())
                made.a[i], made.t[i] = 1.0, b[i]
        low, high = values.low, values.high
        if not folds:
            low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        up, down = rows.clamp_min(0).sum(1), rows.clamp_max(0).sum(1)
        made.low = _times(up, low) + _times(down, high) + b
        made.high = _times(up, high) + _times(down, low) + b
        self.makers.append((name, values.slots))
        return made

    def _normed(self, node: fx.Node, norm: Any, name: str, values: Values) -> Values | None:
        """A batch norm in evaluation mode: s·x + c."""
        shape = self._shape(node.args[0])
        axis = -(_SPATIAL[type(norm)] + 1)
        if type(norm) is nn.BatchNorm1d:
            # (N, C) or (N, C, length): which of them only the shape tells.
            if shape is None:
                return None
            axis = 1 - len(shape)
        if values.axis != axis or values.repeat != 1 or norm.num_features != len(values) or norm.running_mean is None:
            return None
        s = (norm.running_var.double() + norm.eps).rsqrt()
        s = s if norm.weight is None else s * norm.weight.detach()
        c = -s * norm.running_mean.double()
        c = c if norm.bias is None else c + norm.bias.detach()
        self.makers.append((name, values.slots))
        return _scaled(values, s, c)

    # ---------------------------------------------------------------- what keeps channels apart

    def _pointwise(self, values: Values, name: str, act: Any, key: Hashable) -> Values:
        """f(a·q + t). A ReLU, which is homogeneous, of λ times something is λ times that of it."""
        scales = name in ("relu", "relu_", "leakyrelu", "leaky_relu", "leaky_relu_", "prelu")
        q, a, t = values.q.clone(), torch.ones_like(values.a), torch.zeros_like(values.t)
        fixed = act(values.t.clone())
        for i, (number, factor, offset, still) in enumerate(
            zip(values.q.tolist(), values.a.tolist(), values.t.tolist(), values.constant.tolist())
        ):
            if still and math.isfinite(float(fixed[i])):
                a[i], t[i] = 0.0, fixed[i]
            elif scales and not still:
                a[i] = abs(factor)
                q[i] = self.number((key, number, factor > 0), offset / abs(factor))
            else:
                q[i] = self.number((key, number), factor, offset)
        low, high = torch.full_like(a, -math.inf), torch.full_like(a, math.inf)
        rising = name in _NONDECREASING or (scales and float(act(torch.tensor([-1.0], dtype=torch.float64))) <= 0)
        if rising:
            low, high = act(values.low.clone()), act(values.high.clone())
            low, high = low.nan_to_num(-math.inf, math.inf, -math.inf), high.nan_to_num(math.inf, math.inf, -math.inf)
        elif name in _BELOW:
            low = torch.full_like(a, _BELOW[name])
        return replace(values, q=q, a=a, t=t, low=low, high=high)

    def _pooled(self, values: Values, name: str, says: Mapping[str, Any]) -> Values | None:
        """Pooling or resizing: of equal channels equal, of a constant itself unless zeros are counted in."""
        keys = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")
        keys = (*keys, "output_size", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
        key = (name.replace("_", ""), *(str(says.get(one)) for one in keys))
        top = "max" in name
        padded = any(int(p) for p in _listed(says.get("padding", 0)))
        whole = not (name.startswith("avg") and (padded or says.get("ceil_mode") or says.get("divisor_override")))
        whole = whole and str(says.get("mode", "nearest")) in (
            "nearest",
            "nearest-exact",
            "bilinear",
            "linear",
            "area",
            "trilinear",
        )
        if values.repeat != 1:
            return None
        q, a, t = values.q.clone(), values.a.clone(), values.t.clone()
        for i, (number, factor, offset) in enumerate(zip(q.tolist(), a.tolist(), t.tolist())):
            if whole:
                if factor != 0:
                    q[i] = self.number((key, number, top and factor < 0))
                    a[i] = abs(factor) if top else factor
            elif factor != 0 or offset != 0:
                q[i], a[i], t[i] = self.number((key, number), factor, offset), 1.0, 0.0
        wide = torch.full_like(a, math.inf)
        low, high = (values.low, values.high) if whole else (-wide, wide)
        return replace(values, q=q, a=a, t=t, low=low, high=high)

    def _mean(self, node: fx.Node, values: Values) -> Values | None:
        """Over all positions."""
        shape = self._shape(node.args[0])
        says = {**dict(zip(("dim", "keepdim"), node.args[1:])), **node.kwargs}
        if shape is None or values.repeat != 1 or not set(says) <= {"dim", "keepdim"} or says.get("dim") is None:
            return None
        place = len(shape) + values.axis
        axes = {int(axis) % len(shape) for axis in _listed(says["dim"])}
        if axes != set(range(place + 1, len(shape))) or not axes:
            return None
        q = torch.tensor([self.number(("mean", number)) for number in values.q.tolist()])
        return replace(values, axis=values.axis if says.get("keepdim") else -1, q=q)

    def _reshaped(self, node: fx.Node, values: Values) -> Values | None:
        """Where the axes before the channels stay, and those after them stay behind them or join them."""
        before, after = self._shape(node.args[0]), self.region.shapes.get(node)
        if before is None or after is None:
            return None
        place = len(before) + values.axis
        C = len(values) * values.repeat
        if before[:place] != after[:place] or len(after) <= place or before[place] != C:
            return None
        behind = math.prod(before[place + 1 :])
        # What is written as a number would be another one with fewer channels.
        if node.op == "call_method" and node.target in ("view", "reshape"):
            given = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
            if len(given) <= place or (isinstance(given[place], int) and given[place] != -1):  # type: ignore[arg-type,operator]
                return None
        elif getattr(node.target, "__name__", "") == "reshape" or node.target == "unflatten":
            return None
        if after[place] == C and math.prod(after[place + 1 :]) == behind:
            return replace(values, axis=place - len(after))
        if len(after) == place + 1 and after[place] == C * behind:
            return replace(values, axis=-1, repeat=values.repeat * behind)
        return None

    def _appended(self, module: Any, values: Values) -> Values | None:
        """A padding along the channels alone, at their end: a constant channel more."""
        pads = list(module.padding)
        place = 2 * (-values.axis - 1)
        if values.repeat != 1 or len(pads) != place + 2 or any(pads[: place + 1]) or pads[-1] < 0:
            return None
        count = pads[-1]
        more = self._opaque(count, values.axis, "appended", locked=True)
        constant = torch.full((count,), float(module.value), dtype=torch.float64)
        more = replace(more, a=0 * constant, t=constant, low=constant, high=constant)
        return _chain([values, more])

    def _joined(self, node: fx.Node) -> Values | None:
        """Channels of several tensors one after the other."""
        parts = node.args[0]
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if not isinstance(parts, (tuple, list)) or not isinstance(axis, int):
            return None
        shapes = [self._shape(part) for part in parts]
        known = [self.values.get(part) for part in parts if isinstance(part, fx.Node)]
        some = next((one for one in known if one is not None), None)
        if some is None or len(known) != len(parts) or any(shape is None for shape in shapes):
            return None
        ndim = len(shapes[0] or ())
        if axis % ndim != ndim + some.axis:
            return None
        filled: list[Values] = []
        for part, shape, one in zip(parts, shapes, known):
            if one is None and shape is not None:
                one = self._opaque(shape[axis], some.axis, f"{self.region.prefix}{part} joined", locked=True)
            if one is None or one.axis != some.axis or one.repeat != 1:
                return None
            filled.append(one)
        return _chain(filled)

    def _arithmetic(self, node: fx.Node, name: str) -> Values | None:
        """X + y, x − y and x·y of channels, or with a number."""
        nodes = node.args
        one, other = (self.values.get(part) if isinstance(part, fx.Node) else None for part in nodes)
        number = next((part for part in nodes if isinstance(part, (int, float))), None)
        if number is not None:
            values, swapped = (one, False) if one is not None else (other, True)
            if values is None:
                return None
            c = torch.full_like(values.a, float(number))
            if name in ("mul", "multiply"):
                return _scaled(values, c, 0 * c)
            if name == "add":
                return _scaled(values, torch.ones_like(c), c)
            return _scaled(values, -torch.ones_like(c), c) if swapped else _scaled(values, torch.ones_like(c), -c)
        if one is None or other is None or one.axis != other.axis or len(one) != len(other):
            return None
        if one.repeat != other.repeat:
            return None
        self.join(one.slots, other.slots)
        if name in ("mul", "multiply"):
            return self._product(one, other)
        if name == "sub":
            other = _scaled(other, -torch.ones_like(other.a), torch.zeros_like(other.a))
        q, a = one.q.clone(), one.a.clone()
        for i in range(len(one)):
            p, r, f, g = int(one.q[i]), int(other.q[i]), float(one.a[i]), float(other.a[i])
            if f == 0:
                q[i], a[i] = r, g
            elif g != 0 and p == r:
                a[i] = f + g
            elif g != 0:
                (p, f), (r, g) = sorted([(p, f), (r, g)])
                q[i], a[i] = self.number(("add", p, r), g / f), f
        return replace(one, q=q, a=a, t=one.t + other.t, low=one.low + other.low, high=one.high + other.high)

    def _product(self, one: Values, other: Values) -> Values:
        q, a, t = one.q.clone(), torch.ones_like(one.a), torch.zeros_like(one.t)
        for i in range(len(one)):
            x, y = ((int(v.q[i]), float(v.a[i]), float(v.t[i])) for v in (one, other))
            if x[1] == 0 or y[1] == 0:
                (number, f, c), (_, _, s) = (y, x) if x[1] == 0 else (x, y)
                q[i], a[i], t[i] = number, f * s, c * s
            else:
                (p, *f), (r, *g) = sorted([x, y])
                q[i] = self.number(("mul", p, r), *f, *g)
        ends = torch.stack([_times(u, v) for u in (one.low, one.high) for v in (other.low, other.high)])
        return replace(one, q=q, a=a, t=t, low=ends.amin(0), high=ends.amax(0))

    # ---------------------------------------------------------------- what can go

    def choose(self, found: Found, *, pads: bool) -> None:
        """Add to ``found`` what can go from this region."""
        weights = [_matrix(self._layer(reader.name), reader.values) for reader in self.readers]
        unheard = [(W == 0).all(0).all(1) for W in weights]
        places: dict[int, list[tuple[int, int]]] = {}
        for r, reader in enumerate(self.readers):
            for p, slot in enumerate(reader.values.slots.tolist()):
                places.setdefault(self.top(slot), []).append((r, p))
        owned: dict[int, set[str]] = {}
        for name, slots in self.makers:
            for slot in slots.tolist():
                owned.setdefault(self.top(slot), set()).add(name)
        # Of every layer something must be left.
        left = {name: len({self.top(slot) for slot in slots.tolist()}) for name, slots in self.makers}
        gone: dict[int, tuple[str, int | None]] = {}
        stand: dict[Hashable, list[int]] = {}
        for slot, where in places.items():
            if self.locked[slot] or slot not in owned or any(left[name] <= 1 for name in owned[slot]):
                continue
            loose = [bool(self.readers[r].values.constant[p]) or bool(unheard[r][p]) for r, p in where]
            why, instead = "", None
            if all(loose):
                heard = [(r, p) for r, p in where if not bool(unheard[r][p])]
                dead = all(float(self.readers[r].values.t[p]) == 0 for r, p in heard)
                why = "without output" if not heard else "dead" if dead else "constant"
                if not pads and not all(self._can_fold(r, p) for r, p in heard):
                    why = ""
            else:
                key = tuple((r, free or int(self.readers[r].values.q[p])) for (r, p), free in zip(where, loose))
                others = stand.setdefault(key, [])
                instead = next((s for s in others if self._stands(places[s], where, loose)), None)
                why = "on one ray" if instead is not None else ""
                if instead is None:
                    others.append(slot)
            if why:
                gone[slot] = why, instead
                for name in owned[slot]:
                    left[name] -= 1
        if gone:
            self._note(found, gone, places, unheard)

    def _layer(self, name: str) -> Any:
        return self.region.owner.get_submodule(name.removeprefix(self.region.prefix))

    def _can_fold(self, r: int, p: int) -> bool:
        reader = self.readers[r]
        return reader.folds or float(reader.values.t[p]) == 0

    def _relation(self, r: int, p: int, other: int) -> tuple[float, float]:
        """(λ, τ) with channel p = λ·(channel other) + τ, as reader r sees them."""
        values = self.readers[r].values
        factor = float(values.a[p] / values.a[other])
        moved = factor * float(values.t[other])
        offset = float(values.t[p]) - moved
        return factor, 0.0 if abs(offset) <= SAME * (abs(moved) + abs(float(values.t[p]))) else offset

    def _stands(self, others: list[tuple[int, int]], where: list[tuple[int, int]], loose: list[bool]) -> bool:
        """Whether a channel can be read in the place of another wherever that is read."""
        for (r, p), (s, other), free in zip(where, others, loose):
            if r != s:
                return False
            if free:
                if not self._can_fold(r, p):
                    return False
            elif self._relation(r, p, other)[1] != 0 and not self.readers[r].folds:
                return False
        return True

    def _note(
        self,
        found: Found,
        gone: dict[int, tuple[str, int | None]],
        places: dict[int, list[tuple[int, int]]],
        unheard: list[Tensor],
    ) -> None:
        """Write down rows and columns of layers."""
        for name, slots in self.makers:
            tops = [self.top(slot) for slot in slots.tolist()]
            mask = torch.tensor([slot in gone for slot in tops])
            if not bool(mask.any()):
                continue
            found.rows[name] = mask
            if outputs_of(self._layer(name)):
                counts = found.reasons.setdefault(name, {})
                for slot in tops:
                    if slot in gone:
                        counts[gone[slot][0]] = counts.get(gone[slot][0], 0) + 1
        for r, reader in enumerate(self.readers):
            tops = [self.top(slot) for slot in reader.values.slots.tolist()]
            mask = torch.tensor([slot in gone for slot in tops])
            if not bool(mask.any()):
                continue
            columns = found.columns[reader.name] = Columns(mask, reader.values.repeat)
            for p in torch.nonzero(mask)[:, 0].tolist():
                if bool(unheard[r][p]):
                    continue
                if bool(reader.values.constant[p]):
                    factor, offset = 0.0, float(reader.values.t[p])
                else:
                    instead = gone[tops[p]][1]
                    here, there = places[tops[p]], places[instead] if instead is not None else []
                    other = next(q for (s, u), (_, q) in zip(here, there) if (s, u) == (r, p))
                    factor, offset = self._relation(r, p, other)
                    columns.moves.append((p, other, factor))
                if offset != 0:
                    (columns.offsets if reader.folds else columns.ones).append((p, offset))


_POOL_ARGUMENTS = (("kernel_size", "stride", "padding"), ("output_size",))


def _name_of(target: Any) -> str:
    return _NAMES.get(target) or getattr(target, "__name__", "")


def _call_of(node: fx.Node) -> Any:
    """A function of one tensor that does what the node does, without writing into it."""

    def call(value: Tensor) -> Tensor:
        value = value.clone()
        if node.op == "call_method":
            return getattr(value, str(node.target))(*node.args[1:], **node.kwargs)
        target: Any = node.target
        return target(value, *node.args[1:], **node.kwargs)

    return call


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _times(one: Tensor, other: Tensor) -> Tensor:
    """A product in which 0·∞ is 0."""
    return torch.where((one == 0) | (other == 0), 0.0, one * other)


def _scaled(values: Values, s: Tensor, c: Tensor) -> Values:
    """s·x + c."""
    one, other = _times(s, values.low) + c, _times(s, values.high) + c
    ends = torch.minimum(one, other), torch.maximum(one, other)
    return replace(values, a=values.a * s, t=values.t * s + c, low=ends[0], high=ends[1])


def _chain(parts: Sequence[Values]) -> Values:
    columns = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("slots", "q", "a", "t", "low", "high")
    }
    return replace(parts[0], **columns)


def folds_constants(layer: Any) -> bool:
    """Whether a constant input gives a constant output: no zeros are put around it."""
    if type(layer) is nn.Linear:
        return True
    if type(layer) in Transposed:
        return False
    if layer.padding == "valid" or layer.padding_mode != "zeros":
        return True
    if layer.padding == "same":
        return all(size == 1 for size in layer.kernel_size)
    return not any(layer.padding)


def _matrix(layer: Any, values: Values | None) -> Tensor:
    """Weights as (outputs, channels, positions)."""
    W = layer.weight.detach()
    if type(layer) is nn.Linear:
        return W.reshape(len(W), -1, 1 if values is None else values.repeat)
    W = W.transpose(0, 1) if type(layer) in Transposed else W
    return W.flatten(2)


def _bounds(W: Tensor, b: Tensor, values: Values, folds: bool) -> tuple[Tensor, Tensor]:
    """Least and largest output, each input taken by itself; rounded outwards."""
    low, high = values.low, values.high
    if not folds:
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    up, down = W.clamp_min(0).sum(2), W.clamp_max(0).sum(2)
    least = _times(up, low[None]) + _times(down, high[None])
    most = _times(up, high[None]) + _times(down, low[None])
    slack = 1e-13 * (least.abs() + most.abs()).nan_to_num(posinf=0.0).sum(1)
    return least.sum(1) + b - slack, most.sum(1) + b + slack


# ---- Layers with fewer channels


def rewritten(layer: Any, gone: Tensor | None, columns: Columns | None) -> nn.Module:
    """A copy without these outputs (or features of a norm), and with these inputs made up for."""
    made: Any = copy.deepcopy(layer)
    kind = type(layer)
    if kind is nn.Linear or kind in Convolution or kind in Transposed:
        flipped = kind in Transposed
        W = layer.weight.detach()
        W = W.transpose(0, 1) if flipped else W
        b = None if layer.bias is None else layer.bias.detach()
        extra = False
        alone = kind is not nn.Linear and layer.groups > 1
        if columns is not None:
            W, b, extra = _read(W, b, columns)
        if gone is not None:
            W, b = W[~gone], None if b is None else b[~gone]
        W = W.transpose(0, 1) if flipped else W
        _set(made, "weight", W, layer.weight.requires_grad)
        if b is not None:
            _set(made, "bias", b, layer.weight.requires_grad if layer.bias is None else layer.bias.requires_grad)
        if kind is nn.Linear:
            made.out_features, made.in_features = W.shape
        else:
            out, into = (W.shape[1], W.shape[0]) if flipped else (W.shape[0], W.shape[1])
            made.out_channels, made.in_channels = out, out if alone else into
            made.groups = out if alone else layer.groups
        if extra:
            pads = (0, 0) * _SPATIAL[kind] + (0, 1)
            return nn.Sequential(nn.ConstantPad3d(pads, 1.0), made).train(layer.training)
        return made
    assert gone is not None
    for name in ("weight", "bias"):
        own = getattr(layer, name)
        if own is not None:
            _set(made, name, own.detach()[~gone], own.requires_grad)
    for name in ("running_mean", "running_var"):
        made.register_buffer(name, getattr(layer, name)[~gone].clone())
    made.num_features = int((~gone).sum())
    return made


def _read(W: Tensor, b: Tensor | None, columns: Columns) -> tuple[Tensor, Tensor | None, bool]:
    """Weights (out, in, …) without the inputs that go, the bias, and whether a channel of ones must be appended."""
    shape = W.shape
    W = W.reshape(len(W), len(columns.gone), columns.repeat, -1).clone()
    first = W.clone()
    for here, there, factor in columns.moves:
        W[:, there] += factor * first[:, here]
    for here, value in columns.offsets:
        b = W.new_zeros(len(W)) if b is None else b
        b = b + value * first[:, here].flatten(1).sum(1)
    kept = W[:, ~columns.gone]
    if columns.ones:
        ones = sum(value * first[:, here] for here, value in columns.ones)
        assert isinstance(ones, Tensor)
        kept = torch.cat([kept, ones[:, None]], 1)
    return kept.reshape(shape[0], -1, *shape[2:]), b, bool(columns.ones)


def _set(layer: nn.Module, name: str, value: Tensor, trained: bool) -> None:
    setattr(layer, name, nn.Parameter(value.detach().clone().contiguous(), requires_grad=trained))
