"""The graphs of any module, as far as it can be traced: which layer feeds which, and what lies in between."""

from __future__ import annotations

import copy
import inspect
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from isthmus.compression._calls import Call

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

#: Modules whose forward is a chain that tracing cannot enter, and that never leaves it.
FEED_FORWARD = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def hooked(module: nn.Module) -> bool:
    """Whether anything is called beside its forward."""
    return any(getattr(module, hooks, None) for hooks in _HOOKS)


def blocked(module: nn.Module) -> dict[str, str]:
    """Layers with parameters that must stay as they are, and why: hooks, shared or unusual weights."""
    places = Counter(id(child) for _, child in module.named_modules(remove_duplicate=False))
    owners = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    found: dict[str, str] = {}
    for name, layer in module.named_modules():
        own = list(layer.parameters(recurse=False))
        if not own and "parametrizations" not in layer._modules:
            continue
        if "parametrizations" in layer._modules:
            found[name] = "its weight is parametrized"
        elif hooked(layer):
            found[name] = "it has hooks"
        elif places[id(layer)] > 1:
            found[name] = "it is used in several places"
        elif any(owners[id(p)] > 1 for p in own):
            found[name] = "its parameters are shared"
        elif len({(p.dtype, p.device) for p in own}) > 1 or not all(p.is_floating_point() for p in own):
            found[name] = "its parameters differ in dtype or device, or are not real"
        elif not all(bool(torch.isfinite(p).all()) for p in own):
            found[name] = "it has weights that are not finite"
    return found


@dataclass(eq=False)
class Region:
    """A graph of a part of a module.

    Attributes
    ----------
    prefix : str
        Before the names in the graph; with its dot.
    graph : fx.Graph
    owner : nn.Module
        A copy of the part that shares its parameters, for running the graph.
    shapes : dict
        Node → shape of its tensor where it was run.
    """

    prefix: str
    graph: fx.Graph
    owner: nn.Module
    shapes: dict[fx.Node, torch.Size] = field(default_factory=dict)


#: Augmented assignments, which write into what stands on their left.
_AUGMENTED = (
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod),
    *(operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
)


class _Proxy(fx.Proxy):
    """As PyTorch's, which records ``y += x`` as y + x: a view of y would then seem to keep what it held."""


def _recorded(how: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], Any]:
    return lambda self, other: self.tracer.create_proxy("call_function", how, (self, other), {})


for _how in _AUGMENTED:
    setattr(_Proxy, f"__{_how.__name__}__", _recorded(_how))


class _Tracer(fx.Tracer):
    """As PyTorch's, but what has hooks is not entered, and what is written into is seen."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return hooked(m) or "parametrizations" in m._modules or super().is_leaf_module(m, module_qualified_name)


def regions(module: nn.Module, call: Call | None) -> list[Region]:
    """The whole module if it can be traced, else the largest parts that can, run on the call where there is one."""
    # Tracing runs the forward of a copy, which may keep what it saw.
    shared: dict[int, Any] = {id(T): T for T in (*module.parameters(), *module.buffers())}
    whole = copy.deepcopy(module, shared)
    found = list(_traced(whole, "", _left_out(whole, call)))
    seen = {} if call is None else _arguments(whole, [region.prefix for region in found], call)
    for region in found:
        if region.prefix in seen:
            args, kwargs = seen[region.prefix]
            _watch(region, args, kwargs)
    for name, layer in whole.named_modules():
        if type(layer) in FEED_FORWARD:
            found.append(Region(f"{name}." if name else "", _feed_forward(layer), layer))
    return found


def _left_out(module: nn.Module, call: Call | None) -> dict[str, Any]:
    """Arguments that the call leaves out and that are None then: tracing would take them for tensors."""
    if call is None:
        return {}
    names = list(inspect.signature(module.forward).parameters.values())
    rest = names[len(call.args) :]
    return {one.name: None for one in rest if one.default is None and one.name not in call.kwargs}


def _traced(part: nn.Module, prefix: str, left_out: dict[str, Any]) -> Iterator[Region]:
    if not part._modules or type(part) in FEED_FORWARD or not list(part.parameters()):
        return
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            graph = _Tracer().trace(part, left_out or None)
    except Exception:  # whatever a user's forward does with something that is no tensor
        for name, child in part.named_children():
            yield from _traced(child, f"{prefix}{name}.", {})
        return
    yield Region(prefix, graph, part)
    # PyTorch's own containers, such as a TransformerEncoder, are entered by nobody.


def _feed_forward(layer: nn.Module) -> fx.Graph:
    """linear2(dropout(activation(linear1(x)))) of a layer of a Transformer."""
    graph = fx.Graph()
    hidden = graph.call_module("linear1", (graph.placeholder("x"),))
    activation: Any = layer.activation
    if isinstance(activation, nn.Module):
        hidden = graph.call_module("activation", (hidden,))
    else:
        hidden = graph.call_function(activation, (hidden,))
    graph.output(graph.call_module("linear2", (graph.call_module("dropout", (hidden,)),)))
    return graph


def _arguments(whole: nn.Module, prefixes: list[str], call: Call) -> dict[str, tuple[Any, Any]]:
    """What each part is called with first when the whole is called."""
    seen: dict[str, tuple[Any, Any]] = {}
    handles = []
    for prefix in prefixes:

        def keep(_: nn.Module, args: Any, kwargs: Any, prefix: str = prefix) -> None:
            seen.setdefault(prefix, (args, kwargs))

        part = whole.get_submodule(prefix.rstrip("."))
        handles.append(part.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.run(whole)
    except Exception:  # the caller ran it before; what tracing left in the copy may not run
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _watch(region: Region, args: Any, kwargs: Any) -> None:
    """Run the graph and keep the shapes of its tensors."""
    shapes = region.shapes

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                shapes[n] = value.shape
            return value

    try:
        bound = _bound(region.graph, args, kwargs)
        with torch.no_grad():
            Watch(fx.GraphModule(region.owner, region.graph)).run(*bound)
    except Exception:  # a graph that cannot be run is only known less of
        shapes.clear()


def _bound(graph: fx.Graph, args: Any, kwargs: Any) -> list[Any]:
    """Values of the graph's inputs in their order; in-place operations must not reach the originals."""
    found = []
    rest = list(args)
    for node in graph.nodes:
        if node.op == "placeholder":
            default = node.args[0] if node.args else None
            value = rest.pop(0) if rest else kwargs.get(node.target, default)
            found.append(value.clone() if isinstance(value, Tensor) else value)
    return found


# ---- In-place operations: where a tensor is written into and used again, a graph does not say what it holds

_FRESH_FUNCTIONS = {"linear", "conv1d", "conv2d", "conv3d", "cat", "concat", "add", "sub", "mul", "mean", "matmul"}


def writes(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a node writes into its first argument, or may."""
    if node.op == "call_module":
        return bool(getattr(module, "inplace", False))
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        augmented = node.target in _AUGMENTED
        said = node.kwargs.get("inplace") is True or any(value is True for value in node.args[1:])
        return augmented or said or (name.endswith("_") and not name.endswith("__")) or "out" in node.kwargs
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name in {"__iadd__", "__isub__", "__imul__"}
    return False


def overwritten(region: Region) -> bool:
    """Whether a tensor is used after it, or what shares its memory, was written into."""
    order = {node: place for place, node in enumerate(region.graph.nodes)}
    group: dict[fx.Node, fx.Node] = {}

    def root(node: fx.Node) -> fx.Node:
        while node in group:
            node = group[node]
        return node

    members: dict[fx.Node, list[fx.Node]] = {}
    for node in order:
        module = _module(region, node)
        written = writes(node, module)
        if node.args and isinstance(node.args[0], fx.Node) and (written or not _makes_new(node, module)):
            top = root(node.args[0])
            group[node] = top
            members.setdefault(top, [top]).append(node)
        if written and isinstance(node.args[0], fx.Node):
            place = order[node]
            for other in members.get(root(node), []):
                if order[other] < place and any(order[user] > place for user in other.users if user is not node):
                    return True
    return False


def _module(region: Region, node: fx.Node) -> nn.Module | None:
    return region.owner.get_submodule(str(node.target)) if node.op == "call_module" else None


def _makes_new(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether the result surely has memory of its own."""
    if module is not None:
        plain = (nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.modules.pooling._MaxPoolNd)
        return isinstance(module, (*plain, nn.modules.pooling._AvgPoolNd))
    if node.op == "call_function":
        return getattr(node.target, "__name__", "") in _FRESH_FUNCTIONS
    return False
