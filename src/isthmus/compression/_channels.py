"""Channels that a module does not need for any input, and the layers without them.

What reads a channel that can go reads another one instead, with its weights changed; what is unknown (reshapes, norms
over channels, outputs) keeps its channels.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.compression._calls import Call
from isthmus.compression._certificate import LayerChange
from isthmus.compression._graphs import blocked, overwritten, regions
from isthmus.compression._values import SAME, SPATIAL, Convolution, Numbering, Transposed, matrix_of
from isthmus.networks._reading import set_submodule

_MAX_ROUNDS = 12


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
            set_submodule(module, name, layer)
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
            _Choice(region, fixed).choose(found, pads=pads)
    return found


class _Choice(Numbering):
    """What can go, of the channels that were numbered."""

    def choose(self, found: Found, *, pads: bool) -> None:
        """Add to ``found`` what can go from this region."""
        weights = [matrix_of(self._layer(reader.name), reader.values) for reader in self.readers]
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
            pads: Any = (0, 0) * SPATIAL[kind] + (0, 1)
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
