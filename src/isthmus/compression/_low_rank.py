"""Low rank in any module: weights of linear layers, convolutions and attention as two factors, within a tolerance."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from isthmus.compression._calls import Call
from isthmus.compression._graphs import FEED_FORWARD, blocked, hooked
from isthmus.compression._values import Convolution, Transposed
from isthmus.linalg import thin_svd
from isthmus.networks._reading import set_submodule

#: Rows of a triangular factor are gathered from at most so many samples for each of its columns.
ROWS = 4


@dataclass(eq=False)
class Weight:
    """A weight W, m × n, that can be two factors.

    What goes in or comes out of it on the data, whichever is narrower, is kept as a triangular factor R of [1, S].

    Attributes
    ----------
    name : str
        Of the layer.
    part : str
        Which of the layer's weights: "" for the only one.
    W : Tensor (m, n)
    b : Tensor (m,) or None
        A bias that may be changed.
    by_inputs : bool
        Whether S is what goes in.
    R : Tensor or None
        None where nothing was seen.
    """

    name: str
    part: str
    W: Tensor
    b: Tensor | None
    by_inputs: bool = False
    R: Tensor | None = None
    found: tuple[Tensor, Tensor, Tensor] | None = None

    def see(self, S: Tensor) -> None:
        """Inputs or outputs of a layer, as rows; outputs contain the bias b."""
        step = max(1, len(S) // (ROWS * S.shape[1]))
        S = S.detach()[::step].double()
        rows = torch.cat([torch.ones(len(S), 1, dtype=torch.float64, device=S.device), S], 1)
        rows = rows if self.R is None else torch.cat([self.R, rows])
        self.R = torch.linalg.qr(rows, mode="r").R

    def directions(self) -> tuple[Tensor, Tensor, Tensor]:
        """U (m, k) of W·S, the relative errors of its first r = 0 … k columns alone, and the mean of W·S (m,).

        Without a bias to change, the mean is part of what must be kept, and is given as 0.
        """
        assert self.R is not None
        if self.found is None:
            mean, rest = self.R[0, 1:] / self.R[0, 0], self.R[1:, 1:].mT
            if self.by_inputs:
                mean, rest = self.W @ mean, self.W @ rest
            elif self.b is not None:
                mean = mean - self.b
            if self.b is None:
                rest = torch.cat([rest, mean[:, None] * self.R[0, 0].abs()], 1)
                mean = 0 * mean
            U, s, _ = thin_svd(rest)
            tails = torch.cat([s.square().flip(0).cumsum(0).flip(0), s.new_zeros(1)]).sqrt()
            self.found = U, tails / tails[0] if float(tails[0]) > 0 else tails, mean
        return self.found

    def rank(self, error: float) -> int | None:
        """The least within the error where two factors are smaller; None where they are not."""
        if self.R is None:
            return None
        r = max(1, int((self.directions()[1] > error).sum()))
        return r if r * sum(self.W.shape) < self.W.numel() else None

    def factors(self, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """A (m, r), B (r, n) with AB = U_rU_rᵀW, balanced, and the bias with the mean of what is left out."""
        U, _, mean = self.directions()
        U = U[:, :rank]
        P, s, Q = thin_svd(U.mT @ self.W)
        root = s.sqrt()
        b = torch.zeros_like(mean) if self.b is None else self.b
        return (U @ P) * root, root[:, None] * Q, b + mean - U @ (U.mT @ mean)


def weights_of(module: nn.Module, call: Call) -> list[Weight]:
    """Every weight that could be factored, with what goes in or comes out of it when the module is called."""
    found: list[Weight] = []
    left = blocked(module)
    handles = []
    layer: Any
    for name, layer in module.named_modules():
        kind, inside = type(layer), name.rpartition(".")[0]
        owner = module.get_submodule(inside) if name else module
        if name in left or not name or hooked(layer) or isinstance(owner, nn.MultiheadAttention):
            continue
        if kind is nn.Linear or (kind in (*Convolution, *Transposed) and layer.groups == 1):
            W: Any = layer.weight.detach()
            rows = (W.transpose(0, 1) if kind in Transposed else W).flatten(1)
            # Of a convolution what comes out is narrower than the patches that go in.
            inwards = kind is nn.Linear and _wide(rows)
            one = Weight(name, "", rows, None if layer.bias is None else layer.bias.detach(), inwards)
            axis = -1 if kind is nn.Linear else 1 - W.ndim
            found.append(one)

            def see(_: Any, given: Any, Z: Tensor, one: Weight = one, axis: int = axis) -> None:
                one.see((given[0] if one.by_inputs else Z).movedim(axis, -1).flatten(0, -2))

            handles.append(layer.register_forward_hook(see))
        elif _is_conv1d(layer):
            rows = layer.weight.detach().mT
            one = Weight(name, "", rows, layer.bias.detach(), _wide(rows))
            found.append(one)

            def tell(_: Any, given: Any, Z: Tensor, one: Weight = one) -> None:
                one.see((given[0] if one.by_inputs else Z).flatten(0, -2))

            handles.append(layer.register_forward_hook(tell))
        elif kind is nn.MultiheadAttention and not left.keys() & {f"{name}.out_proj"}:
            parts = _attention(name, layer)
            found += parts

            def watch(a: Any, args: Any, kwargs: Any, out: Any, parts: list[Weight] = parts) -> None:
                given = [*args, *(kwargs[key] for key in ("query", "key", "value") if key in kwargs)][:3]
                for one, X in zip(parts, given):
                    one.see((X if one.by_inputs else X @ one.W.mT).flatten(0, -2))
                parts[3].see(out[0].flatten(0, -2))

            handles.append(layer.register_forward_hook(watch, with_kwargs=True))
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        # The fast way calls no layer.
        torch.backends.mha.set_fastpath_enabled(False)
        call.run(module)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
    return found


def _wide(W: Tensor) -> bool:
    """Whether more comes out than goes in."""
    return W.shape[1] < len(W)


def _is_conv1d(layer: Any) -> bool:
    """The linear layer of GPT-2 in the library transformers, whose weight is (inputs, outputs)."""
    home = type(layer).__module__
    return type(layer).__name__ == "Conv1D" and home.startswith("transformers.") and layer.weight.ndim == 2


def _attention(name: str, a: nn.MultiheadAttention) -> list[Weight]:
    # The bias of the projections, one vector for all three, is not changed.
    found = [Weight(name, part, W.detach(), None, _wide(W)) for part, W in zip("qkv", _projections(a))]
    bias = a.out_proj.bias
    return [*found, Weight(name, "out", a.out_proj.weight.detach(), None if bias is None else bias.detach())]


def _projections(a: nn.MultiheadAttention) -> list[Tensor]:
    if a.in_proj_weight is not None:
        return list(a.in_proj_weight.chunk(3))
    return [a.q_proj_weight, a.k_proj_weight, a.v_proj_weight]


def factored(module: nn.Module, weights: list[Weight], error: float) -> dict[str, tuple[nn.Module, list[str], int]]:
    """Layer → what stands for it within the error, what was done, and the ranks together."""
    made: dict[str, tuple[nn.Module, list[str], int]] = {}
    by_layer: dict[str, list[Weight]] = {}
    for one in weights:
        by_layer.setdefault(one.name, []).append(one)
    for name, parts in by_layer.items():
        ranks = [one.rank(error) for one in parts]
        if all(rank is None for rank in ranks):
            continue
        layer = module.get_submodule(name)
        total = sum(rank or 0 for rank in ranks)
        words = [f"{one.part} of rank {rank}".strip() for one, rank in zip(parts, ranks) if rank is not None]
        if isinstance(layer, nn.MultiheadAttention):
            made[name] = _attended(layer, parts, ranks), words, total
        elif ranks[0] is not None:
            made[name] = _two(layer, parts[0], ranks[0]), words, total
    return made


def _two(layer: Any, one: Weight, rank: int) -> nn.Sequential:
    """A layer to r channels, and one from there."""
    W = layer.weight.detach()
    linear, own = type(layer) is nn.Linear, {"dtype": W.dtype, "device": W.device}
    flipped = type(layer) in Transposed or _is_conv1d(layer)
    rows = W.transpose(0, 1) if flipped else W
    A, B, b = one.factors(rank)
    m, n = one.W.shape
    if linear or _is_conv1d(layer):
        inner: Any = nn.utils.skip_init(nn.Linear, n, rank, bias=False, **own)
        outer: Any = nn.utils.skip_init(nn.Linear, rank, m, bias=layer.bias is not None, **own)
        inner.weight.data.copy_(B)
        outer.weight.data.copy_(A)
    else:
        settings: dict[str, Any] = {
            name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        }
        if flipped:
            settings["output_padding"] = layer.output_padding
        inner = nn.utils.skip_init(type(layer), layer.in_channels, rank, bias=False, **settings, **own)
        dims = W.ndim - 2
        outer = nn.utils.skip_init(Convolution[dims - 1], rank, m, 1, bias=layer.bias is not None, **own)
        core = B.reshape(rank, *rows.shape[1:])
        inner.weight.data.copy_(core.transpose(0, 1) if flipped else core)
        outer.weight.data.copy_(A.reshape(m, rank, *[1] * dims))
    if layer.bias is not None:
        outer.bias.data.copy_(b)
    return nn.Sequential(inner, outer).requires_grad_(layer.weight.requires_grad).train(layer.training)


# ---- Attention: PyTorch's own function, with weights that are products


def _attended(a: nn.MultiheadAttention, parts: list[Weight], ranks: list[int | None]) -> nn.Module:
    """The attention as a graph of PyTorch's functions: factors are multiplied where it is called.

    Its function takes whole weights only. So the module gets smaller, not faster.
    """
    root = nn.Module()
    graph = fx.Graph()
    names = ("query", "key", "value")
    inputs = [graph.placeholder(name) for name in names]
    defaults = {"key_padding_mask": None, "need_weights": True, "attn_mask": None}
    defaults |= {"average_attn_weights": True, "is_causal": False}
    options = {name: graph.placeholder(name, default_value=value) for name, value in defaults.items()}

    def parameter(name: str, value: Tensor | None) -> fx.Node | None:
        if value is None:
            return None
        root.register_parameter(name, nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format)))
        return graph.get_attr(name)

    bias_out = a.out_proj.bias
    whole: list[fx.Node | None] = []
    for one, rank, W in zip(parts, ranks, [*_projections(a), a.out_proj.weight]):
        if rank is None:
            whole.append(parameter(f"{one.part}_weight", W))
            continue
        A, B, b = one.factors(rank)
        bias_out = b if one.part == "out" and bias_out is not None else bias_out
        left, right = parameter(f"{one.part}_left", A), parameter(f"{one.part}_right", B)
        whole.append(graph.call_function(torch.matmul, (left, right)))
    turned = inputs
    if a.batch_first:
        # Of two axes, one sample, the first is the last but one: nothing is turned.
        turned = [graph.call_method("transpose", (one, 0, -2)) for one in inputs]
    q, k, v, out = whole
    made = graph.call_function(
        F.multi_head_attention_forward,
        (*turned, a.embed_dim, a.num_heads, None, parameter("in_proj_bias", a.in_proj_bias)),
        {
            "bias_k": parameter("bias_k", a.bias_k),
            "bias_v": parameter("bias_v", a.bias_v),
            "add_zero_attn": a.add_zero_attn,
            "dropout_p": 0.0,
            "out_proj_weight": out,
            "out_proj_bias": parameter("out_proj_bias", bias_out),
            "training": False,
            "use_separate_proj_weight": True,
            "q_proj_weight": q,
            "k_proj_weight": k,
            "v_proj_weight": v,
            **options,
        },
    )
    first = graph.call_function(operator.getitem, (made, 0))
    second = graph.call_function(operator.getitem, (made, 1))
    first = graph.call_method("transpose", (first, 0, -2)) if a.batch_first else first
    graph.output((first, second))
    found = fx.GraphModule(root, graph)
    # What layers of a Transformer ask of their attention; the last keeps them from their own kernel, which calls no
    # layer.
    asked: dict[str, Any] = {name: getattr(a, name) for name in ("batch_first", "embed_dim", "num_heads", "head_dim")}
    asked["_qkv_same_embed_dim"] = False
    for name, value in asked.items():
        setattr(found, name, value)
    # Copies of a graph's module keep of its attributes what stands here.
    found.meta["_user_preserved_attributes"] = asked
    return found.requires_grad_(a.out_proj.weight.requires_grad).train(a.training)


def put(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Set a layer in the place of another, and tell the Transformer's layers around it not to read its weight."""
    set_submodule(module, name, layer)
    parts = name.split(".")
    for end in range(len(parts)):
        outer: Any = module.get_submodule(".".join(parts[:end]))
        if type(outer) in FEED_FORWARD and hasattr(outer, "activation_relu_or_gelu"):
            outer.activation_relu_or_gelu = 0
        if isinstance(outer, nn.TransformerEncoder):
            outer.use_nested_tensor = outer.enable_nested_tensor = False


#: Errors of single weights that are tried, in units of the tolerance of the outputs.
ERRORS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)

#: Least error that a triangular factor in float64 tells from none.
FLOOR = 1e-14


def with_low_rank(
    module: nn.Module, call: Call, tolerance: float, deviation: Callable[[nn.Module], float]
) -> tuple[dict[str, tuple[nn.Module, list[str], int]], list[str]]:
    """Layers as factors with which the whole deviates by at most the tolerance, and what to say.

    ``module`` is in float64 and evaluation mode, and is not changed; ``deviation`` is ∞ where a module does not run.

    One error for all weights, the largest that serves; where some layer cannot be replaced (something asks for its
    weight) it is left out.
    """
    weights = weights_of(module, call)
    notes: list[str] = []
    refused: set[str] = set()

    def off(made: dict[str, tuple[nn.Module, list[str], int]]) -> float:
        trial = copy.deepcopy(module)
        for name, (layer, _, _) in made.items():
            put(trial, name, layer)
        return deviation(trial)

    for error in ERRORS:
        made = factored(module, [one for one in weights if one.name not in refused], max(error * tolerance, FLOOR))
        if not made:
            continue
        found = off(made)
        if math.isinf(found):
            # One that is read otherwise than by calling it, as some forwards do with a layer's weight.
            broken = {name for name, one in made.items() if math.isinf(off({name: one}))}
            refused |= broken
            notes += [f"{name} was left alone: something else than its call uses it" for name in sorted(broken)]
            made = {name: one for name, one in made.items() if name not in refused}
            found = off(made) if made else math.inf
        if found <= tolerance:
            return made, notes
    return {}, notes
