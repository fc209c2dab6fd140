"""What a module is run on: arrays, tuples and dicts of arrays, or a loader, as batches of arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from isthmus._checks import check_integer, check_size, fail
from isthmus._errors import DataError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Batches(ABC):
    """Batches of arguments for a module, (args, kwargs), on its device; may be iterated again. See :func:`batches`.

    Attributes
    ----------
    samples : int or None
        How many there are; None for a loader until it was iterated once.
    notes : list of str
        What was decided about the inputs: casts, targets left out, a column made of a vector.
    """

    samples: int | None

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
    def __iter__(self) -> Iterator[Arguments]: ...

    @abstractmethod
    def first(self, n: int) -> Arguments:
        """At most ``n`` samples as one batch: evenly spaced ones of arrays, the leading ones of a loader."""

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
            if self._embeds:
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
    """Rows of arrays: positional ones under the keys 0, 1, …, keyword arguments under their names."""

    def __init__(
        self, who: str, module: nn.Module, dtype: torch.dtype | None, arrays: dict[int | str, Tensor], size: int
    ) -> None:
        super().__init__(who, module, dtype)
        self._size = size
        self._arrays = arrays
        self._names = {key: "`X`" if len(arrays) == 1 and key == 0 else f"`X[{key!r}]`" for key in arrays}
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) > 1:
            got = ", ".join(f"{self._names[key]} {tuple(array.shape)}" for key, array in arrays.items())
            fail(who, "the arrays of `X` must have as many samples", got, "Align their first axes.", error=DataError)
        self.samples = lengths.pop()
        for key, array in arrays.items():
            # All at once, so that the message counts them all and nothing is run on half of the data.
            if array.is_floating_point() and (bad := int((~torch.isfinite(array)).sum())):
                got = f"{bad} NaN or infinite of {array.numel()} values in {self._names[key]}"
                fail(who, "`X` must be finite", got, "Impute, clip or drop them.", error=DataError)
        only = arrays.get(0)
        if len(arrays) == 1 and only is not None and only.ndim == 1 and (only.is_floating_point() or not self._embeds):
            self._arrays = {0: only[:, None]}
            self._note("`X` has one axis and is passed as one column, (N, 1)")

    def _pick(self, rows: slice | Tensor) -> Arguments:
        alone = len(self._arrays) == 1
        cast = {key: self._cast(self._names[key], array[rows], alone=alone) for key, array in self._arrays.items()}
        kwargs = {key: value for key, value in cast.items() if isinstance(key, str)}
        return tuple(value for key, value in cast.items() if not isinstance(key, str)), kwargs

    def __iter__(self) -> Iterator[Arguments]:
        assert self.samples is not None
        for start in range(0, self.samples, self._size):
            yield self._pick(slice(start, start + self._size))

    def first(self, n: int) -> Arguments:
        assert self.samples is not None
        n = min(check_integer(self._who, "n", n, low=1), self.samples)
        return self._pick(torch.arange(n) * self.samples // n)


class _LoadedBatches(Batches):
    """Batches that somebody else makes."""

    def __init__(
        self,
        who: str,
        module: nn.Module,
        dtype: torch.dtype | None,
        source: Iterable[Any],
        unpack: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(who, module, dtype)
        self.samples = None
        self._source = source
        self._unpack = unpack

    def __iter__(self) -> Iterator[Arguments]:
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

    def first(self, n: int) -> Arguments:
        check_integer(self._who, "n", n, low=1)
        taken: list[Arguments] = []
        count = 0
        for args, kwargs in self:
            if taken and _shapes(args, kwargs) != _shapes(*taken[0]):
                self._note("the first samples end where the shape of the loader's batches changes")
                break
            taken.append((args, kwargs))
            count += _length(args, kwargs)
            if count >= n:
                break
        args = tuple(_joined([a[i] for a, _ in taken], taken, n) for i in range(len(taken[0][0])))
        return args, {key: _joined([k[key] for _, k in taken], taken, n) for key in taken[0][1]}

    def _arguments(self, name: str, batch: Any) -> Arguments:
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
        if isinstance(batch, Mapping):
            alone = len(batch) == 1
            return (), {str(key): self._member(f"{name}[{key!r}]", v, alone=alone) for key, v in batch.items()}
        if isinstance(batch, (tuple, list)):
            alone = len(batch) == 1
            return tuple(self._member(f"{name}[{i}]", v, alone=alone) for i, v in enumerate(batch)), {}
        return (self._member(name, batch, alone=True),), {}

    def _member(self, name: str, value: Any, *, alone: bool) -> Tensor:
        if isinstance(value, np.ndarray):
            value = _array(self._who, name, value)
        if not isinstance(value, Tensor):
            fail(self._who, "a batch must hold tensors", f"{type(value).__name__} in {name}", _UNPACK)
        return self._cast(name, value, alone=alone)

    def _as_unpacked(self, result: Any) -> Arguments:
        """What the user's function made: floats in the module's dtype, all else as it is."""
        if isinstance(result, Tensor):
            result = ((result,), {})
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            fail(self._who, "`unpack` must return (args, kwargs) or a tensor", type(result).__name__, _UNPACK)

        def moved(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.to(self._device, self._dtype if value.is_floating_point() else value.dtype)

        return tuple(moved(v) for v in result[0]), {str(key): moved(v) for key, v in result[1].items()}


_UNPACK = "Pass `unpack`, a function from a batch to (args, kwargs) or to a tensor."


def batches(
    who: str,
    X: Any,
    module: nn.Module,
    *,
    batch_size: int = 256,
    dtype: torch.dtype | None = None,
    unpack: Callable[[Any], Any] | None = None,
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

    Notes
    -----
    Floats are cast to the floating dtype. Integers become int64 if the module has an ``nn.Embedding``, else floats.
    Booleans stay as they are beside other arguments (they are masks) and beside embeddings. Every pass over a
    shuffling loader has the same order, and leaves the generators as they were.
    """
    check_integer(who, "batch_size", batch_size, low=1)
    if isinstance(X, Mapping):
        arrays: dict[int | str, Tensor] = {str(key): _array(who, f"X[{key!r}]", v) for key, v in X.items()}
    elif isinstance(X, tuple):
        arrays = {i: _array(who, f"X[{i}]", v) for i, v in enumerate(X)}
    elif isinstance(X, Tensor) or hasattr(X, "__array__") or (isinstance(X, list) and not _of_batches(X)):
        arrays = {0: _array(who, "X", X)}
    else:
        _check_loader(who, X)
        loaded = _LoadedBatches(who, module, dtype, X, unpack)
        if isinstance(X, list):
            loaded._note("`X` is a list of arrays: each is a batch")
        return loaded
    if not arrays:
        fail(who, "`X` must not be empty", f"an empty {type(X).__name__}", "Pass at least one array.", error=DataError)
    if unpack is not None:
        fail(who, "`unpack` is for batches of a loader", f"`X` as {type(X).__name__}", "Leave `unpack` out.")
    return _ArrayBatches(who, module, dtype, arrays, batch_size)


def _of_batches(items: Iterable[Any]) -> bool:
    """Whether a list holds batches and not numbers: its first item is an array or a dict, or holds one."""
    first = next(iter(items), None)
    if isinstance(first, (tuple, list)):
        return any(_of_batches([member]) for member in first)
    return isinstance(first, (Tensor, np.ndarray, Mapping))


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


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]


def _length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return next((len(v) for v in _tensors(args, kwargs) if v.ndim), 0)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Size]:
    return [v.shape[1:] for v in _tensors(args, kwargs)]


def _joined(values: list[Any], taken: list[Arguments], n: int) -> Any:
    """One argument over several batches; what has no axis of samples is that of the first batch."""
    lengths = [_length(*arguments) for arguments in taken]
    if not all(isinstance(v, Tensor) and v.ndim and len(v) == length for v, length in zip(values, lengths)):
        return values[0]
    return torch.cat(values)[:n]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
