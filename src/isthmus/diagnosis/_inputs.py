"""What a module is run on: arrays, tuples and dicts of arrays, or a loader, as batches of arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from isthmus._checks import check_integer, check_size, fail
from isthmus._errors import DataError
from isthmus.diagnosis._calls import Call, count_samples, first_tensor, is_record, map_tensors, take, tensors_in


class Batches(ABC):
    """Batches of arguments for a module, (args, kwargs), on its device; may be iterated again. See :func:`batches`.

    Attributes
    ----------
    samples : int or None
        How many there are; None for a loader until it was iterated once.
    together : bool
        Whether rows belong together, as the nodes of a graph do: they are neither divided nor joined.
    notes : list of str
        What was decided about the inputs: casts, targets left out, a column made of a vector.
    """

    samples: int | None
    together: bool = False

    def __init__(self, who: str, module: nn.Module, dtype: torch.dtype | None) -> None:
        self.notes: list[str] = []
        self._who = who
        tensors = [*module.parameters(), *module.buffers()]
        # The first tensor stands for all: a module spread over devices or dtypes must move its inputs itself.
        own = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
        self._dtype = own if dtype is None else dtype
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self._embeds = any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in module.modules())

    @abstractmethod
    def __iter__(self) -> Iterator[Call]: ...

    @abstractmethod
    def first(self, n: int) -> Call:
        """At most ``n`` samples as one batch: evenly spaced ones of arrays, the leading ones of a loader."""

    def pieces(
        self, each: int, *, most: int | None = None, goes_on: Callable[[], bool] = lambda: True
    ) -> Iterator[Call]:
        """Batches of at most ``each`` samples, until ``most`` of them were given or it does not go on."""
        given = 0
        for call in self:
            count = count_samples(call)
            parts = (
                [call] if self.together or count <= each else map(partial(take, call), torch.arange(count).split(each))
            )
            for part in parts:
                yield part
                given += count_samples(part)
                if not goes_on() or (most is not None and given >= most):
                    return

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _cast(self, name: str, value: Tensor, *, alone: bool) -> Tensor:
        """``value`` in the dtype the module takes, on its device, and finite."""
        if value.is_complex():
            fail(self._who, "`X` must be real", f"{name} of {_short(value.dtype)}", "Pass real and imaginary parts.")
        if value.dtype == torch.bool and (self._embeds or not alone):
            return value.to(self._device)
        if not value.is_floating_point():
            if self._embeds or self.together:
                return value.to(self._device, torch.int64)
            self._note(f"integers of `X` are cast to {_short(self._dtype)}: the module has no embedding")
        cast = value.to(self._device, self._dtype)
        bad = int((~torch.isfinite(cast)).sum())
        if bad:
            got = f"{bad} NaN or infinite of {cast.numel()} values in {name}, as {_short(self._dtype)}"
            fail(self._who, "`X` must be finite", got, "Impute, clip, rescale or drop them.", error=DataError)
        check_size(self._who, "X", cast)
        return cast


class _ArrayBatches(Batches):
    """Rows of arrays, however nested in the arguments; or all of them as one, where they belong together."""

    def __init__(
        self, who: str, module: nn.Module, dtype: torch.dtype | None, call: Call, size: int, together: bool | None
    ) -> None:
        super().__init__(who, module, dtype)
        self._size = size
        leaves = [pair for at, value in enumerate(call[0]) for pair in _leaves(f"X[{at}]", value)]
        leaves += [pair for key, value in call[1].items() for pair in _leaves(f"X[{key!r}]", value)]
        if len(leaves) == 1:
            leaves = [("X" if len(call[0]) == 1 else leaves[0][0], leaves[0][1])]
        self._names = [f"`{name}`" for name, _ in leaves]
        arrays = [array for _, array in leaves]
        if not arrays:
            do = "Pass at least one array."
            kind = "dict" if call[1] or not call[0] else "tuple"
            fail(who, "`X` must not be empty", f"a {kind} without arrays", do, error=DataError)
        lengths = {len(array) for array in arrays if array.ndim}
        self.together = _edges(arrays) if together is None else together
        if len(lengths) != 1 and not self.together:
            got = ", ".join(f"{name} {tuple(array.shape)}" for name, array in zip(self._names, arrays))
            do = "Align their first axes. If all of `X` is one graph or one set, pass together=True."
            fail(who, "the arrays of `X` must have as many samples", got, do, error=DataError)
        first = first_tensor(arrays)
        assert first is not None
        self.samples = len(first)
        for name, array in zip(self._names, arrays):
            # All at once, so that the message counts them all and nothing is run on half of the data.
            if array.is_floating_point() and (bad := int((~torch.isfinite(array)).sum())):
                got = f"{bad} NaN or infinite of {array.numel()} values in {name}"
                fail(who, "`X` must be finite", got, "Impute, clip or drop them.", error=DataError)
        self._call = call
        only = call[0][0] if len(call[0]) == 1 and not call[1] else None
        if isinstance(only, Tensor) and only.ndim == 1 and (only.is_floating_point() or not self._embeds):
            self._call = (only[:, None],), {}
            self._note("`X` has one axis and is passed as one column, (N, 1)")
        if self.together:
            self._note("`X` is run as one: its rows (nodes of a graph) belong together and count as samples")

    def _pick(self, rows: slice | Tensor | None) -> Call:
        alone, names = len(self._names) == 1, iter(self._names)

        def cast(tensor: Tensor) -> Tensor:
            whole = rows is None or not tensor.ndim
            return self._cast(next(names), tensor if whole else tensor[rows], alone=alone)

        args, kwargs = (map_tensors(cast, part) for part in self._call)
        return args, kwargs

    def __iter__(self) -> Iterator[Call]:
        assert self.samples is not None
        if self.together:
            yield self._pick(None)
            return
        for start in range(0, self.samples, self._size):
            yield self._pick(slice(start, start + self._size))

    def pieces(
        self, each: int, *, most: int | None = None, goes_on: Callable[[], bool] = lambda: True
    ) -> Iterator[Call]:
        """Evenly spaced ones where not all are taken."""
        if most is None or self.together:
            yield from super().pieces(each, goes_on=goes_on)
            return
        assert self.samples is not None
        for rows in (torch.arange(most) * self.samples // most).split(min(each, self._size)):
            yield self._pick(rows)
            if not goes_on():
                return

    def first(self, n: int) -> Call:
        assert self.samples is not None
        n = min(check_integer(self._who, "n", n, low=1), self.samples)
        return self._pick(None if self.together else torch.arange(n) * self.samples // n)


class _LoadedBatches(Batches):
    """Batches of a DataLoader that the user passed."""

    def __init__(
        self,
        who: str,
        module: nn.Module,
        dtype: torch.dtype | None,
        source: Iterable[Any],
        unpack: Callable[[Any], Any] | None,
        together: bool | None,
    ) -> None:
        super().__init__(who, module, dtype)
        self.samples = None
        self.together = bool(together)
        self._source = source
        self._unpack = unpack

    def __iter__(self) -> Iterator[Call]:
        seen = 0
        with _same_order(self._source):
            for index, batch in enumerate(self._source):
                args, kwargs = self._arguments(f"batch {index}", batch)
                seen += _length(args, kwargs)
                yield args, kwargs
        if not seen:
            do = "Pass samples, and a loader that can be iterated more than once."
            fail(self._who, "`X` must not be empty", "no batch with a sample in it", do, error=DataError)
        if self.samples not in (None, seen):
            self._note(f"`X` gave {self.samples} samples on one pass and {seen} on another")
        self.samples = seen

    def first(self, n: int) -> Call:
        check_integer(self._who, "n", n, low=1)
        taken: list[Call] = []
        count = 0
        for args, kwargs in self:
            if self.together:
                return args, kwargs
            if taken and _shapes(args, kwargs) != _shapes(*taken[0]):
                self._note("the first samples end where the shape of the loader's batches changes")
                break
            taken.append((args, kwargs))
            count += _length(args, kwargs)
            if count >= n:
                break
        lengths = [_length(*arguments) for arguments in taken]
        columns = iter(list(zip(*(tensors_in(arguments) for arguments in taken))))
        args, kwargs = (map_tensors(lambda _: _joined(next(columns), lengths, n), part) for part in taken[0])
        return args, kwargs

    def _arguments(self, name: str, batch: Any) -> Call:
        if self._unpack is not None:
            return self._as_unpacked(self._unpack(batch))
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            self._note("a batch of two is (inputs, targets): the targets are not used")
            batch = batch[0]
        elif isinstance(batch, (tuple, list)) and len(batch) == 1:
            batch = batch[0]
        elif isinstance(batch, (tuple, list)):
            got = f"a {type(batch).__name__} of {len(batch)}"
            fail(self._who, "a batch must be inputs or (inputs, targets)", got, _UNPACK)
        alone = len(tensors_in(batch)) == 1
        if isinstance(batch, Mapping):
            return (), {str(key): self._member(f"{name}[{key!r}]", v, alone=alone) for key, v in batch.items()}
        if isinstance(batch, (tuple, list)):
            return tuple(self._member(f"{name}[{i}]", v, alone=alone) for i, v in enumerate(batch)), {}
        return (self._member(name, batch, alone=True),), {}

    def _member(self, name: str, value: Any, *, alone: bool) -> Any:
        if isinstance(value, np.ndarray):
            value = _array(self._who, name, value)
        if isinstance(value, Tensor):
            return self._cast(name, value, alone=alone)
        if value is not None and not isinstance(value, (bool, int, float)) and not tensors_in(value):
            fail(self._who, "a batch must hold tensors", f"{type(value).__name__} in {name}", _UNPACK)
        return map_tensors(lambda tensor: self._cast(name, tensor, alone=False), value)

    def _as_unpacked(self, result: Any) -> Call:
        """What the user's function made: floats in the module's dtype, all else as it is."""
        if isinstance(result, Tensor):
            result = ((result,), {})
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            fail(self._who, "`unpack` must return (args, kwargs) or a tensor", type(result).__name__, _UNPACK)

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)

        args, kwargs = map_tensors(moved, result[0]), map_tensors(moved, result[1])
        return args, {str(key): value for key, value in kwargs.items()}


_UNPACK = "Pass `unpack`, a function from a batch to (args, kwargs) or to a tensor."


def batches(
    who: str,
    X: Any,
    module: nn.Module,
    *,
    batch_size: int = 256,
    dtype: torch.dtype | None = None,
    unpack: Callable[[Any], Any] | None = None,
    together: bool | None = None,
    whole: bool = False,
) -> Batches:
    """Batches of arguments for ``module`` made from ``X``.

    Parameters
    ----------
    who : str
        The public function that errors name.
    X : array (N, ...), tuple or dict of arrays, or loader
        An array (NumPy, torch, pandas, nested list) is one positional argument, a tuple of arrays several, a dict of
        arrays keyword arguments. Anything else that can be iterated more than once (a ``DataLoader``, a list of
        tensors) gives batches: a tensor is the input, a dict keyword arguments, two items are (inputs, targets).
    module : nn.Module
        Whose device and floating dtype are used, and whose embeddings say that integers are indices.
    batch_size : int, default 256
        For arrays; a loader has its own.
    dtype : torch.dtype, optional
        Instead of the module's.
    unpack : function, optional
        From a batch of the loader to (args, kwargs) or to one tensor. Its floats are cast, all else is passed as it
        is.
    together : bool, optional
        Whether rows belong together and are run as one. By default where a tensor of integers (2, E) beside others is
        a graph's edges, or X an object like PyTorch Geometric's ``Data``.
    whole : bool, default False
        Pass a tuple or a dict as it is, as one argument.

    Notes
    -----
    Floats are cast to the floating dtype. Integers become int64 if the module has an ``nn.Embedding``, else floats.
    Booleans stay as they are beside other arguments (they are masks) and beside embeddings. Every pass over a
    shuffling loader has the same order, and leaves the generators as they were.
    """
    check_integer(who, "batch_size", batch_size, low=1)
    if isinstance(X, Tensor) or hasattr(X, "__array__") or (isinstance(X, list) and not _of_batches(X)):
        call: Call = (_array(who, "X", X),), {}
    elif isinstance(X, (Mapping, tuple)):
        inside = _nested(who, "X", X)
        call = ((inside,), {}) if whole else ((), inside) if isinstance(X, Mapping) else (tuple(inside), {})
    elif is_record(X):
        call, together = ((X,), {}), together is not False
    else:
        _check_loader(who, X)
        loaded = _LoadedBatches(who, module, dtype, X, unpack, together)
        if isinstance(X, list):
            loaded._note("`X` is a list of arrays: each is a batch")
            loaded.together = together is not False and any(map(is_record, X))
        return loaded
    if unpack is not None:
        fail(who, "`unpack` is for batches of a loader", f"`X` as {type(X).__name__}", "Leave `unpack` out.")
    return _ArrayBatches(who, module, dtype, call, batch_size, together)


def _nested(who: str, name: str, value: Any) -> Any:
    """Arrays as tensors in dicts, tuples and lists, however nested; numbers, words and None as they are."""
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        # A number for all samples is an argument too.
        return value if isinstance(value, Tensor) and not value.ndim else _array(who, name, value)
    if isinstance(value, Mapping):
        return {str(key): _nested(who, f"{name}[{key!r}]", part) for key, part in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and _of_batches(value)):
        parts = [_nested(who, f"{name}[{at}]", part) for at, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if value is None or isinstance(value, (bool, int, float, str)) or tensors_in(value):
        return value
    return _array(who, name, value)


def _leaves(name: str, value: Any) -> list[tuple[str, Tensor]]:
    """Every tensor in an argument, with a name for messages."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() for pair in _leaves(f"{name}[{key!r}]", part)]
    return [(f"{name}, tensor {at}", tensor) for at, tensor in enumerate(tensors_in(value))]


def _edges(arrays: list[Tensor]) -> bool:
    """Whether there are edges of a graph: integers (2, E) beside arrays of another length."""
    return any(a.ndim == 2 and len(a) == 2 and not a.is_floating_point() for a in arrays) and any(
        len(a) != 2 for a in arrays if a.ndim
    )


def _of_batches(items: Iterable[Any]) -> bool:
    """Whether a list holds batches and not numbers: its first item is an array or a dict, or holds one."""
    first = next(iter(items), None)
    if isinstance(first, (tuple, list)):
        return any(_of_batches([member]) for member in first)
    return isinstance(first, (Tensor, np.ndarray, Mapping)) or is_record(first)


def _check_loader(who: str, X: Any) -> None:
    kind = type(X).__name__
    if isinstance(X, Dataset):
        do = "Wrap it: torch.utils.data.DataLoader(dataset, batch_size=256)."
        fail(who, "`X` must give batches", f"{kind}, which gives single samples", do)
    if isinstance(X, (str, bytes)) or not isinstance(X, Iterable):
        fail(who, "`X` must be an array, a tuple or dict of arrays, or a loader", kind, "Pass one of these.")
    if isinstance(X, Iterator):
        do = "Pass a list of the batches, or a DataLoader."
        fail(who, "`X` must be iterable more than once", f"{kind}, which is used up after one pass", do)


def _array(who: str, name: str, value: Any) -> Tensor:
    """``value`` as a dense tensor of its own kind (float, integer or boolean) with at least one sample."""
    if isinstance(value, Tensor):
        tensor = value.detach()
        if tensor.layout is not torch.strided or tensor.is_nested:
            fail(who, f"`{name}` must be dense", "a sparse or nested tensor", "Call to_dense() or pad it.")
    else:
        tensor = _from_numpy(who, name, value)
    if tensor.ndim == 0 or tensor.numel() == 0:
        got = f"shape {tuple(tensor.shape)}"
        fail(who, f"`{name}` must have samples", got, "Pass samples along the first axis.", error=DataError)
    return tensor


def _from_numpy(who: str, name: str, value: Any) -> Tensor:
    try:
        array = np.asarray(value)
    except ValueError:
        got = "rows of unequal length"
        fail(who, f"`{name}` must be an array", got, "Make it rectangular, or pass a loader.", error=DataError)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            got = f"dtype {array.dtype}"
            fail(who, f"`{name}` must be numeric", got, "Encode text as numbers or drop it.", error=DataError)
    if array.dtype.kind not in "fiub":
        got = f"dtype {array.dtype}"
        fail(who, f"`{name}` must be real numbers", got, "Convert it to float or integer.", error=DataError)
    as_they_are = (np.float16, np.float32, np.float64, np.uint8, np.int64, np.bool_)
    if array.dtype not in as_they_are:
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    # Read-only and negatively strided arrays are legal NumPy and not legal torch: those are copied.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


@contextmanager
def _same_order(source: Any) -> Iterator[None]:
    """Leave the generators that a loader draws its order from as they were, so that every pass is the same."""
    own = [getattr(source, "generator", None), getattr(getattr(source, "sampler", None), "generator", None)]
    generators = [g for g in own if isinstance(g, torch.Generator)] + [torch.default_generator]
    states = [g.get_state() for g in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states):
            generator.set_state(state)


def _length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return count_samples((args, kwargs))


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Size]:
    return [tensor.shape[1:] for tensor in tensors_in((args, kwargs)) if tensor.ndim]


def _joined(values: Sequence[Tensor], lengths: list[int], n: int) -> Tensor:
    """One tensor over several batches; what has no axis of samples is that of the first batch."""
    if not all(value.ndim and len(value) == length for value, length in zip(values, lengths)):
        return values[0]
    return torch.cat(list(values))[:n]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
