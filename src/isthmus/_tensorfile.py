"""Tensors in the safetensors format, with hashes; nothing in a file is believed before it is checked."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from torch import Tensor

from isthmus._atomic import open_checked, shown, write_atomic
from isthmus._checks import fail
from isthmus._errors import FileFormatError
from isthmus._strict_json import dumps, loads

MAX_FILE_BYTES = 2**34
MAX_HEADER_BYTES = 2**23
MAX_TENSORS = 2**16
MAX_METADATA = 256
MAX_AXES = 8
_MAX_NAME = 1024
#: Beyond the memory of any machine, and small enough that strides stay inside 64 bits.
_MAX_ENTRIES = 2**48

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}

#: Metadata entries that belong to the format: hash of the tensors, hash of all other metadata.
_TENSOR_HASH, _METADATA_HASH = "sha256", "sha256_metadata"


@dataclass(frozen=True)
class Entry:
    """One tensor as its header declares it."""

    name: str
    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A checked header: the entries are contiguous, in the order of their bytes, and fill the file."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor | np.ndarray],
    metadata: Mapping[str, str] | None = None,
    *,
    overwrite: bool = True,
) -> None:
    """Write tensors atomically as one safetensors file, with SHA-256 hashes in its metadata.

    Parameters
    ----------
    path : path
        In an existing folder.
    tensors : mapping of str to Tensor or NumPy array
        Real dense tensors of any strides, on any device; tensors that share memory are written separately.
    metadata : mapping of str to str, optional
        The keys ``sha256`` and ``sha256_metadata`` are taken.
    overwrite : bool, default True
        If false, an existing file is an error.

    Notes
    -----
    The same content gives the same bytes (the reference writer orders metadata at random). What
    :func:`read_tensors` would refuse is refused here.
    """
    who = "write_tensors"
    if len(tensors) > MAX_TENSORS:
        fail(who, f"a file must hold at most {MAX_TENSORS} tensors", len(tensors), "Stack them.")
    dense = {_name(who, name): _dense(who, name, value) for name, value in tensors.items()}
    notes = dict(metadata or {})
    for key, value in notes.items():
        if not isinstance(key, str) or not isinstance(value, str) or key in (_TENSOR_HASH, _METADATA_HASH):
            fail(
                who,
                f"`metadata` must map strings to strings, and not use {_TENSOR_HASH!r} or {_METADATA_HASH!r}",
                f"{shown(key)}: {shown(value)}",
                "Rename the key, or convert key and value with str().",
            )
    notes[_TENSOR_HASH] = fingerprint(dense)
    notes[_METADATA_HASH] = _metadata_hash(notes)
    header: dict[str, Any] = {"__metadata__": dict(sorted(notes.items()))}
    # Wide dtypes first, so that every tensor is aligned for readers that map the file into memory.
    order = sorted(dense, key=lambda name: (-dense[name].dtype.itemsize, name))
    end = 0
    for name in order:
        T = dense[name]
        begin, end = end, end + T.numel() * T.dtype.itemsize
        header[name] = {"dtype": _CODES[T.dtype], "shape": list(T.shape), "data_offsets": [begin, end]}
    text = dumps(who, header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        fail(
            who,
            f"names, shapes and metadata must take at most {MAX_HEADER_BYTES} bytes",
            len(text),
            "Store long texts elsewhere, or stack the tensors.",
        )
    parse_header(who, text, end, "the file to be written")
    pieces = [len(text).to_bytes(8, "little"), text, *(_bytes(dense[name]) for name in order)]
    write_atomic(path, pieces, overwrite=overwrite)


def read_tensors(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_FILE_BYTES
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file of :func:`write_tensors`: tensors (on the CPU) and metadata, or ``FileFormatError``.

    The header is checked before anything it declares is allocated, and the tensors can never take more memory
    than the file has bytes. Both hashes must be right: they guard against damage, not against a forger.
    """
    who = "read_tensors"
    with open_checked(who, path, max_bytes) as (handle, size):
        header = read_header(who, handle, size, shown(path))
        return read_body(who, handle, header, shown(path)), {
            key: value for key, value in header.metadata.items() if key not in (_TENSOR_HASH, _METADATA_HASH)
        }


def fingerprint(tensors: Mapping[str, Tensor | np.ndarray]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes, in the order of the names: the ``sha256`` of a file."""
    who = "fingerprint"
    dense = {name: _dense(who, name, tensors[name]) for name in sorted(tensors)}
    layout = [[name, _CODES[T.dtype], list(T.shape)] for name, T in dense.items()]
    digest = hashlib.sha256(dumps(who, layout).encode())
    for T in dense.values():
        digest.update(_bytes(T))
    return digest.hexdigest()


def _metadata_hash(metadata: Mapping[str, str]) -> str:
    kept = {key: metadata[key] for key in sorted(metadata) if key != _METADATA_HASH}
    return hashlib.sha256(dumps("metadata", kept).encode()).hexdigest()


def _name(who: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not _is_text(name) or name == "__metadata__":
        fail(
            who,
            f"names of tensors must be strings of 1 to {_MAX_NAME} characters, not '__metadata__'",
            shown(name),
            "Rename the tensor.",
        )
    return name


def _is_text(name: str) -> bool:
    # Lone surrogates can be written as JSON escapes, but neither printed nor read by other tools.
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _dense(who: str, name: str, value: Any) -> Tensor:
    """A contiguous tensor on the CPU with the same bits; not a copy where ``value`` already is one."""
    must, got = (
        f"tensor {shown(name)} must be a dense real tensor or array",
        f"a {shown(type(value).__name__)}",
    )
    do = "Convert it to float or integer, dense, on a real device."
    if np.ma.is_masked(value):
        fail(who, f"array {shown(name)} must have no masked values", "some", "Fill them in: A.filled(numpy.nan).")
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        try:
            # A copy: read-only, negatively strided and big-endian arrays are legal NumPy and not legal torch.
            value = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
        except TypeError:
            fail(who, must, f"dtype {shown(str(array.dtype))}", do)
    if not isinstance(value, Tensor):
        fail(who, must, got, do)
    if value.dtype not in _CODES or value.layout != torch.strided or value.is_meta:
        fail(who, must, f"{value.dtype}, {value.layout}, device {value.device}", do)
    return value.detach().cpu().resolve_neg().contiguous()


def _bytes(T: Tensor) -> memoryview:
    if not T.numel():
        # An empty array of NumPy may have the stride 0, which no other type can be seen through.
        return memoryview(b"")
    return T.reshape(-1).view(torch.uint8).numpy().data


def read_header(who: str, handle: BinaryIO, size: int, label: str) -> Header:
    """Read and check the header of an open safetensors file of ``size`` bytes."""
    length = int.from_bytes(handle.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        got = f"{size} bytes" if size < 8 else f"a declared header of {length} bytes in a file of {size}"
        _refuse(who, f"{label} must begin with a header of at most {MAX_HEADER_BYTES} bytes", got)
    text = handle.read(length)
    if len(text) != length:
        _refuse(who, f"{label} must hold its whole header", f"{len(text)} of {length} bytes")
    return parse_header(who, text, size - 8 - length, label)


def parse_header(who: str, text: bytes, data_bytes: int, label: str) -> Header:
    """Check that ``text`` lays out ``data_bytes`` bytes of tensors without gap, overlap or excess."""
    if not text.startswith(b"{"):
        _refuse(who, f"the header of {label} must be a JSON object", shown(text[:20]))
    raw = loads(who, text, f"the header of {label}")
    metadata = raw.pop("__metadata__", {})
    if (
        not isinstance(metadata, dict)
        or len(metadata) > MAX_METADATA
        or not all(isinstance(value, str) for value in metadata.values())
    ):
        _refuse(who, f"the metadata of {label} must be at most {MAX_METADATA} strings", shown(metadata))
    if len(raw) > MAX_TENSORS:
        _refuse(who, f"{label} must hold at most {MAX_TENSORS} tensors", f"{len(raw)} tensors")
    entries = sorted(
        (_entry(who, name, declared, label) for name, declared in raw.items()), key=lambda e: (e.begin, e.end)
    )
    end = 0
    for entry in entries:
        if entry.begin != end:
            _refuse(
                who,
                f"tensor {shown(entry.name)} of {label} must begin where the last one ends, at byte {end}",
                f"byte {entry.begin}",
            )
        end = entry.end
    if end != data_bytes:
        _refuse(who, f"the tensors of {label} must fill its {data_bytes} bytes of data", f"{end} declared bytes")
    return Header(tuple(entries), metadata)


def _entry(who: str, name: str, declared: Any, label: str) -> Entry:
    where = f"tensor {shown(name)} of {label}"
    if not 0 < len(name) <= _MAX_NAME or not _is_text(name):
        _refuse(who, f"names in {label} must be 1 to {_MAX_NAME} characters of text", shown(name))
    if not isinstance(declared, dict) or set(declared) != {"dtype", "shape", "data_offsets"}:
        _refuse(who, f"{where} must declare dtype, shape and data_offsets", shown(declared))
    code, shape, offsets = declared["dtype"], declared["shape"], declared["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        _refuse(who, f"the dtype of {where} must be one of {', '.join(DTYPES)}", shown(code))
    if (
        not _sizes(shape)
        or len(shape) > MAX_AXES
        # Counting empty axes as 1: the other strides of an empty tensor must not overflow either.
        or math.prod(max(n, 1) for n in shape) > _MAX_ENTRIES
    ):
        _refuse(who, f"the shape of {where} must be at most {MAX_AXES} sizes of sane product", shown(shape))
    if not _sizes(offsets) or len(offsets) != 2:
        _refuse(who, f"data_offsets of {where} must be two byte positions", shown(offsets))
    needed = math.prod(shape) * DTYPES[code].itemsize
    if offsets[1] - offsets[0] != needed:
        _refuse(
            who,
            f"{where}, {code} of shape {shown(shape)}, must have {needed} bytes",
            f"offsets {shown(offsets)}",
        )
    return Entry(name, code, tuple(shape), offsets[0], offsets[1])


def _sizes(value: Any) -> bool:
    # type(n) is int, not isinstance: True is an int to Python and is not a size.
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= _MAX_ENTRIES * 8 for n in value)


def read_body(who: str, handle: BinaryIO, header: Header, label: str) -> dict[str, Tensor]:
    """Read the tensors that follow a checked header, and check the hashes."""
    for key in (_TENSOR_HASH, _METADATA_HASH):
        if key not in header.metadata:
            _refuse(who, f"{label} must carry {key!r} in its metadata", "none")
    if _metadata_hash(header.metadata) != header.metadata[_METADATA_HASH]:
        _refuse(who, f"the metadata of {label} must have the SHA-256 it declares", "another one")
    tensors: dict[str, Tensor] = {}
    for entry in header.entries:
        try:
            T = torch.empty(entry.shape, dtype=DTYPES[entry.code])
        except (MemoryError, RuntimeError):
            fail(
                who,
                f"tensor {shown(entry.name)} of {label} must fit into memory",
                f"{entry.end - entry.begin} bytes",
                "Read it on a larger machine.",
                error=FileFormatError,
            )
        view = _bytes(T)
        if view.nbytes and handle.readinto(view) != view.nbytes:  # type: ignore[attr-defined]
            _refuse(who, f"{label} must hold all its bytes", "an earlier end")
        if entry.code == "BOOL" and T.view(torch.uint8).gt(1).any():
            _refuse(who, f"tensor {shown(entry.name)} of {label} must hold bytes 0 or 1 (bool)", "others")
        tensors[entry.name] = T
    if fingerprint(tensors) != header.metadata[_TENSOR_HASH]:
        _refuse(who, f"the tensors of {label} must have the SHA-256 it declares", "another one")
    return tensors


def _refuse(who: str, must: str, got: str) -> NoReturn:
    do = "The file is damaged or not of this kind: get it again or write it again."
    fail(who, must, got, do, error=FileFormatError)
