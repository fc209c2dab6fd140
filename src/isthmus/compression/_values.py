"""Values of every channel along a module's graph: which are the same function of the inputs, which are constant.

Every channel of every tensor on the way is written as a·q + t, with q a numbered quantity: two channels with the same q
are the same function of the inputs up to a and t, whatever the inputs are, and a channel with a = 0 is constant. Bounds
are carried along too: a ReLU that sees nothing above zero is constant.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from isthmus.compression._everywhere import first_of_ray
from isthmus.compression._graphs import Region, hooked

#: Rows of norm 1 that differ by no more are multiples of one another; so are offsets, relative to their size.
SAME = 32 * torch.finfo(torch.float64).eps

Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

#: Number of axes after the channels, by kind of module.
SPATIAL = {
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
        """Whether each channel is constant over all inputs."""
        return self.a == 0

    def settled(self) -> Values:
        """With channels whose bounds meet as constants, and the bounds of constants."""
        flat = (self.low == self.high) & ~self.constant
        a, t = torch.where(flat, 0.0, self.a), torch.where(flat, self.low, self.t)
        still = a == 0
        return replace(self, a=a, t=t, low=torch.where(still, t, self.low), high=torch.where(still, t, self.high))


@dataclass(eq=False)
class Reader:
    """A layer that mixes the channels of its input; ``folds`` if constants can go into its bias."""

    name: str
    values: Values
    folds: bool


class Numbering:
    """Values of every tensor in a region, who makes them and who reads them."""

    def __init__(self, region: Region, fixed: set[str]) -> None:
        self.region = region
        self.parents: list[int] = []
        self.locked: list[bool] = []
        self.numbers: dict[Hashable, list[tuple[tuple[float, ...], int]]] = {}
        self.count = 0
        self.values: dict[fx.Node, Values] = {}
        self.makers: list[tuple[str, Tensor]] = []
        self.readers: list[Reader] = []
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
            if values.axis != -(_POOLS[name] + 1):
                return None
            says = {**dict(zip(_POOL_ARGUMENTS[name.partition("_")[0]], node.args[1:])), **node.kwargs}
            return None if says.get("return_indices") else self._pooled(values, name, says)
        if name == "interpolate":
            shape = self.region.shapes.get(first) if isinstance(first, fx.Node) else None
            if shape is None or values.axis != 1 - len(shape) or node.args[1:]:
                return None
            return self._pooled(values, name, dict(node.kwargs))
        if name == "mean":
            return self._mean(node, values)
        return self._reshaped(node, values) if name in _RESHAPES else None

    def _module(self, node: fx.Node, module: Any, values: Values | None) -> Values | None:
        kind = type(module)
        name = f"{self.region.prefix}{node.target}"
        if kind is nn.Linear or (kind in Convolution or kind in Transposed):
            return self._mixed(node, module, name, values)
        if values is None or (list(module.parameters(recurse=False)) and name in self.fixed):
            return None
        word = kind.__name__.lower()
        if kind in SPATIAL and kind.__name__.startswith("BatchNorm"):
            return self._normed(node, module, name, values)
        if not kind.__module__.startswith("torch.nn"):
            return None
        if kind is nn.PReLU:
            single = module.weight.numel() == 1
            return self._pointwise(values, "prelu", module, ("prelu", float(module.weight[0]))) if single else None
        if word in _SAME_VALUE:
            return values
        if word in _POINTWISE:
            plain: Any = copy.deepcopy(module)
            if hasattr(plain, "inplace"):
                plain.inplace = False
            return self._pointwise(values, word, plain, repr(plain))
        if kind in SPATIAL:
            if values.axis != -(SPATIAL[kind] + 1) or getattr(module, "return_indices", False):
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
            return harmless(node, list(node.args)[1])
        whole = node.op == "call_method" and node.target == "size" and len(node.args) == 1 and not node.kwargs
        asked = list(node.args)[-1] if node.op == "call_function" and node.target is getattr else None
        if whole or asked == "shape":
            return all(
                getattr(user.target, "__name__", "") == "getitem" and harmless(user, list(user.args)[1])
                for user in node.users
            )
        return isinstance(asked, str) and asked in ("dtype", "device", "ndim")

    # ---------------------------------------------------------------- layers that mix channels

    def _mixed(self, node: fx.Node, layer: Any, name: str, values: Values | None) -> Values | None:
        if name in self.fixed:
            return None
        linear = type(layer) is nn.Linear
        groups = 1 if linear else layer.groups
        own = -1 if linear else -(SPATIAL[type(layer)] + 1)
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
        W = matrix_of(layer, values)
        out = len(W)
        b = torch.zeros(out, dtype=torch.float64) if layer.bias is None else layer.bias.detach()
        slots = self.new_slots(out)
        infinite = torch.full((out,), math.inf, dtype=torch.float64)
        if values is None:
            rows, t, low, high = W.flatten(1), b, -infinite, infinite
        else:
            folds = folds_constants(layer)
            self.readers.append(Reader(name, values, folds))
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
        axis = -(SPATIAL[type(norm)] + 1)
        if type(norm) is nn.BatchNorm1d:
            # (N, C) or (N, C, length): which of them only the shape tells.
            if shape is None:
                return None
            axis = 1 - len(shape)
        if values.axis != axis or values.repeat != 1 or norm.num_features != len(values) or norm.running_mean is None:
            return None
        variance: Any = norm.running_var
        s: Tensor = (variance.double() + norm.eps).rsqrt()
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
        whole = whole and str(says.get("mode", "nearest")) in _AVERAGING
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
        """Mean over all positions of each channel."""
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


_POOL_ARGUMENTS = {
    "adaptive": ("output_size", "return_indices"),
    "avg": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "max": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
}


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
    """s·x + c for each channel."""
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


def matrix_of(layer: Any, values: Values | None) -> Tensor:
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
