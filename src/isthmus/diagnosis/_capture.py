"""Looking inside a module without changing it: its state is put back, its layers' outputs are seen as they come."""

from __future__ import annotations

import copy
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from isthmus._checks import fail
from isthmus._errors import IsthmusError
from isthmus.diagnosis._calls import Call, first_tensor, take, tensors_in

#: (name of the layer, its output, how many times it was called before in this forward pass)
Visit = Callable[[str, Tensor, int], None]


@contextmanager
def untouched(module: nn.Module, *, eval: bool = True) -> Iterator[None]:  # noqa: A002
    """Leave ``module`` and the global generators bit for bit as they were, also when the body raises.

    Put back are the training flags, hooks, gradients, ``requires_grad`` flags, buffers, every attribute of every
    submodule (a counter, a cached tensor, a list that was appended to), and the generators of torch, NumPy and
    ``random``. Not the values of parameters, which no forward or backward pass writes. Gradients are not switched off.

    Parameters
    ----------
    module : nn.Module
    eval : bool, default True
        Put the module into evaluation mode inside.

    Notes
    -----
    Inside, PyTorch's fused path of attention is off: it skips submodules that have no hooks, so that what is computed
    would depend on where we look, and it hands padded sequences from layer to layer as nested tensors.
    """
    restorers = [_generators(), _attributes(module), _gradients(module)]
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        if eval:
            module.eval()
        for part in module.modules():
            # A part compiled in place would run its compiled call, where new hooks are not seen.
            if part._compiled_call_impl is not None:
                part._compiled_call_impl = None
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for restore in restorers:
            restore()


def _generators() -> Callable[[], None]:
    cpu, own = torch.get_rng_state(), random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002  the global generator is what a module may draw from
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore() -> None:
        torch.set_rng_state(cpu)
        random.setstate(own)
        np.random.set_state(numpy)  # noqa: NPY002
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return restore


def _attributes(module: nn.Module) -> Callable[[], None]:
    """Every attribute of every part; containers (hooks, buffers, lists) and tensors with their contents."""
    modules = [*module.modules(), *(part.called for part in module.modules() if isinstance(part, Called))]
    parts = [(part, part.training, dict(part.__dict__)) for part in modules]
    values = [value for _, _, attributes in parts for value in attributes.values()]
    containers = [(value, copy.copy(value)) for value in values if type(value) in (dict, OrderedDict, list, set)]
    buffers = [buffer for part, _, _ in parts for buffer in part._buffers.values()]
    tensors = {id(v): v for v in (*buffers, *values) if isinstance(v, Tensor) and v.layout is torch.strided}
    contents = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]

    @torch.no_grad()
    def restore() -> None:
        for part, training, attributes in parts:
            _put_back(part.__dict__, attributes)
            if part.training != training:  # a ScriptModule does not keep its flag in __dict__
                part.training = training
        for container, saved in containers:
            _put_back(container, saved)
        for tensor, saved in contents:
            # Only if it changed: writing would bump the version that a graph of the user's may rely on.
            if not torch.equal(tensor, saved):
                tensor.detach().copy_(saved)

    return restore


def _put_back(current: Any, saved: Any) -> None:
    """Give a container its saved contents; by identity, as tensors cannot be compared, and only if they differ."""
    if isinstance(current, list):
        current[:] = saved
        return
    same = [*map(id, current)] == [*map(id, saved)]
    if not same or (isinstance(current, dict) and any(current[key] is not saved[key] for key in saved)):
        current.clear()
        current.update(saved)


def _gradients(module: nn.Module) -> Callable[[], None]:
    saved = [
        (p, p.requires_grad, p.grad, None if p.grad is None else p.grad.detach().clone()) for p in module.parameters()
    ]

    @torch.no_grad()
    def restore() -> None:
        for parameter, flag, grad, content in saved:
            parameter.requires_grad_(flag)
            parameter.grad = grad
            if grad is not None and content is not None and not torch.equal(grad, content):
                grad.detach().copy_(content)

    return restore


def unwrap(module: Any, *, who: str = "diagnose") -> tuple[nn.Module, list[str]]:
    """The plain module inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``, and notes.

    Refused are TorchScript, parameters that have no values yet (lazy or on the meta device), and anything that is not
    an ``nn.Module``.
    """
    notes: list[str] = []
    if not isinstance(module, nn.Module):
        fail(who, "`net` must be a torch.nn.Module", type(module).__name__, "Pass the model itself.")
    while True:
        if "_orig_mod" in module._modules and type(module).__name__ == "OptimizedModule":
            inner = module._modules["_orig_mod"]
        elif isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = module.module
        else:
            break
        assert isinstance(inner, nn.Module)
        notes.append(f"{type(module).__name__} was taken off: its {type(inner).__name__} is run as it is")
        module = inner
    if isinstance(module, torch.jit.ScriptModule):
        do = "Pass the module it was scripted or traced from: TorchScript does not show its layers."
        fail(who, "`net` must be a Python module", f"TorchScript {type(module).__name__}", do)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            do = "Call the module once on a batch."
            fail(who, "parameters must be initialised", f"{name!r}, which waits for its shape", do)
        if tensor.is_meta:
            do = "Load the weights first."
            fail(who, "parameters must have values", f"{name!r} on the meta device", do)
    return module, notes


def in_float64(module: nn.Module, *, max_bytes: int = 2**32) -> tuple[nn.Module, str]:
    """A copy of ``module`` in float64 and evaluation mode, and "float64 copy"; or ``module`` and why it is not one.

    It cannot be copied if its tensors would take more than ``max_bytes``, if ``deepcopy`` fails (old-style
    ``weight_norm`` after a forward pass, handles to files), or if the device has no float64.
    """
    tensors = [*module.parameters(), *module.buffers()]
    needed = sum(t.numel() * (8 if t.is_floating_point() else t.element_size()) for t in tensors)
    if needed > max_bytes:
        return module, f"own dtype: a float64 copy needs {needed / 2**30:.2g} GiB, more than {max_bytes / 2**30:.2g}"
    try:
        return copy.deepcopy(module).double().eval(), "float64 copy"
    except Exception as error:  # whatever a user's __deepcopy__ raises
        reason = str(error).split("\n")[0][:250]
        return module, f"own dtype: the module cannot be copied to float64 ({type(error).__name__}: {reason})"


class Capture:
    """What a :func:`capture` has met besides tensors.

    Attributes
    ----------
    skipped : dict of str to str
        Why a layer has not been visited, by name.
    failure : Exception or None
        What ``visit`` raised, if it did.
    """

    def __init__(self, visit: Visit) -> None:
        self.skipped: dict[str, str] = {}
        self.failure: Exception | None = None
        self._visit = visit
        self._calls: Counter[str] = Counter()
        self._visited: set[str] = set()

    def _see(self, name: str, output: Any) -> None:
        call = self._calls[name]
        self._calls[name] += 1
        tensor = first_tensor(output)
        if tensor is None:
            self.skipped.setdefault(name, f"its output, {type(output).__name__}, holds no tensor")
        elif tensor.layout is not torch.strided or tensor.is_nested:
            self.skipped.setdefault(name, "its output is a sparse or nested tensor")
        else:
            self._visited.add(name)
            try:
                self._visit(name, tensor, call)
            except Exception as error:
                self.failure = error
                raise


@contextmanager
def capture(module: nn.Module, names: Iterable[str], visit: Visit) -> Iterator[Capture]:
    """Call ``visit(name, output, call)`` right after each forward of the named submodules.

    ``output`` is the first tensor in what the submodule returned. It must be used or copied at once: a later layer may
    overwrite it in place. ``call`` counts the calls of that submodule in the current forward pass of ``module``, from
    0; a submodule used twice is visited twice.

    Parameters
    ----------
    module : nn.Module
    names : iterable of str
        As in ``named_modules()``; "" is the module itself.
    visit : function (str, Tensor, int) → None

    Yields
    ------
    Capture
        With ``skipped``: the layers without a tensor, and at the end those that were not called.
    """
    names = list(names)
    parts = dict(module.named_modules(remove_duplicate=False))
    unknown = [name for name in names if name not in parts]
    if unknown:
        fail("capture", "`names` must be submodules", unknown, f"Choose from {', '.join(map(repr, parts))[:500]}.")
    seen = Capture(visit)
    hooks = [module.register_forward_pre_hook(lambda *_: seen._calls.clear())]
    taken: dict[nn.Module, str] = {}
    try:
        for name in names:
            if parts[name] in taken:
                if taken[parts[name]] != name:
                    seen.skipped[name] = f"the same module as {taken[parts[name]]!r}"
                continue
            if isinstance(parts[name], torch.jit.ScriptModule):
                seen.skipped[name] = "TorchScript does not show its outputs"
                continue
            taken[parts[name]] = name
            # Hooks run in the order of registration: after the user's own, so that we see what the next layer gets.
            hooks.append(parts[name].register_forward_hook(lambda _, __, output, name=name: seen._see(name, output)))
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
        for name in taken.values():
            if name not in seen._visited:
                seen.skipped.setdefault(name, "not called in the forward pass")


@torch.no_grad()
def run_hooked(
    module: nn.Module, batches: Iterable[Call], names: Iterable[str], visit: Visit, *, who: str = "diagnose"
) -> dict[str, str]:
    """Run ``module`` on every batch in evaluation mode, visiting the named submodules, and leave it as it was.

    Returns
    -------
    dict of str to str
        Why a layer has not been visited, by name.
    """
    with untouched(module), capture(module, names, visit) as seen:
        for args, kwargs in batches:
            try:
                module(*args, **kwargs)
            except Exception as error:
                if error is seen.failure:
                    raise
                _blame(who, args, kwargs, error)
    return seen.skipped


def _blame(who: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
    """Raise ``error`` again, saying what the module was given."""
    given = [_described(v) for v in args] + [f"{key}={_described(v)}" for key, v in kwargs.items()]
    do = (
        "Pass `X` as the module's forward takes it, samples first: a tuple for several arguments, a dict for keywords. "
        "For any other call pass forward=lambda net, x: …; where samples belong together (a graph), together=True."
    )
    if isinstance(error, torch.OutOfMemoryError):
        do = "Lower `batch_size`."
    try:
        fail(who, "`net` must run on `X`", f"({', '.join(given)}) → {type(error).__name__}: {error}", do)
    except IsthmusError as named:
        raise named from error


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    inside = tensors_in(value)
    if inside:
        return f"{type(value).__name__} of {', '.join(map(_described, inside[:6]))}{', …' * (len(inside) > 6)}"
    return type(value).__name__


class Called(nn.Module):
    """A module that is called by somebody's function ``forward(module, x)``; its layers have the names they had.

    Both share the dicts of their parts: what is hooked, moved or converted in one is so in the other.
    """

    called: nn.Module
    call: Callable[..., Any]

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self._parameters, self._buffers = module._parameters, module._buffers
        self._modules, self.training = module._modules, module.training
        # Not as a part: every layer would then have a second name.
        self.__dict__["called"], self.__dict__["call"] = module, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function makes of it."""
        return self.call(self.called, *args, **kwargs)

    def train(self, mode: bool = True) -> Called:
        """Both: a module's own forward asks its own flag."""
        super().train(mode)
        self.called.training = mode
        return self


# ---- Where each layer stands: when and how often it is called, and which axis of its output counts samples


@dataclass(frozen=True)
class OutputPlace:
    """One layer as a forward meets it.

    Attributes
    ----------
    name : str
    order : int
        Position among the layers, by first call.
    calls : int
        Calls in one forward.
    shape : tuple of int
        Of the output for one sample.
    batch_axis : int or None
        The axis of the output that counts samples; None if none does.
    per_sample : int
        Entries along that axis for each sample: 1, or the tokens of a sequence that was folded into it.
    same_as : str or None
        The layer that gave this very tensor before: a container hands on the output of its last layer.
    """

    name: str
    order: int
    calls: int
    shape: tuple[int, ...]
    batch_axis: int | None
    per_sample: int
    same_as: str | None = None

    @property
    def size(self) -> int:
        """Numbers in the output for one sample."""
        return int(torch.Size(self.shape).numel())

    def by_sample(self, output: Tensor) -> Tensor:
        """The output as rows (samples, size)."""
        assert self.batch_axis is not None
        rows = output.movedim(self.batch_axis, 0)
        return rows.reshape(len(rows) // self.per_sample, -1)


@torch.no_grad()
def survey(module: nn.Module, call: Call, names: Iterable[str], *, together: bool = False) -> dict[str, OutputPlace]:
    """The place of every layer among ``names`` that the forward calls.

    Two forwards, of two and of three copies of one sample: the axis that grows from one to the other is the one that
    counts samples. Where samples belong ``together`` there is one forward, and the first axis counts.
    """
    names = list(names)
    seen: list[dict[str, list[Tensor]]] = []
    for copies in (0,) if together else (2, 3):
        outputs: dict[str, list[Tensor]] = {}

        def visit(name: str, output: Tensor, number: int, outputs: dict[str, list[Tensor]] = outputs) -> None:
            # The tensors themselves, not their contents: they tell who hands on whose.
            outputs.setdefault(name, []).append(output)

        one = call if together else take(call, torch.zeros(copies, dtype=torch.long))
        run_hooked(module, [one], names, visit)
        seen.append(outputs)
    if together:
        return _places_together(seen[0])
    two, three = seen
    for name, tensors in two.items():
        _check_output(name, tensors[0])
    places, givers = {}, dict[int, str]()
    for order, (name, tensors) in enumerate(two.items()):
        small, large = tensors[0].shape, three[name][0].shape
        giver = givers.setdefault(id(tensors[-1]), name)
        same_as = None if giver == name else giver
        places[name] = _place(name, order, len(tensors), tuple(small), tuple(large), same_as)
    return places


def _places_together(seen: Mapping[str, list[Tensor]]) -> dict[str, OutputPlace]:
    """Places where all samples are run as one: rows are the nodes, edges or graphs of the first axis."""
    places, givers = {}, dict[int, str]()
    for order, (name, tensors) in enumerate(seen.items()):
        _check_output(name, tensors[0])
        shape = tuple(tensors[0].shape)
        giver = givers.setdefault(id(tensors[-1]), name)
        axis = 0 if len(shape) > 1 else None
        same_as = None if giver == name else giver
        places[name] = OutputPlace(name, order, len(tensors), shape[axis == 0 :], axis, 1, same_as)
    return places


def _check_output(name: str, output: Tensor) -> None:
    who, which = "diagnose", f"outputs of layer {name!r}" if name else "outputs"
    if output.is_complex():
        do = "Wrap the module so that it gives real and imaginary parts side by side, as torch.view_as_real does."
        fail(who, f"{which} must be real", str(output.dtype).removeprefix("torch."), do)
    if not name and not output.ndim:
        fail(who, "outputs must have an axis of samples", "one number for all", "Return one row for each sample.")


def _place(
    name: str, order: int, calls: int, small: tuple[int, ...], large: tuple[int, ...], same_as: str | None
) -> OutputPlace:
    grown = [axis for axis, (a, b) in enumerate(zip(small, large)) if a != b]
    if len(small) != len(large) or len(grown) != 1 or 3 * small[grown[0]] != 2 * large[grown[0]]:
        return OutputPlace(name, order, calls, small, None, 1, same_as)
    axis = grown[0]
    each = small[axis] // 2
    rest = (*small[:axis], *small[axis + 1 :])
    return OutputPlace(name, order, calls, rest if each == 1 else (each, *rest), axis, each, same_as)
