"""Tables from text, Parquet, NumPy and Excel files; nothing in a file is believed before it is checked."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._atomic import open_checked, shown
from isthmus._checks import check_choice, check_integer, fail
from isthmus._errors import DataError, FileFormatError, IsthmusError

if TYPE_CHECKING:
    import pandas as pd

MAX_COLUMNS = 100_000
MAX_LINE = 2**24
#: Bytes of a file, and of what it unpacks to; and how many times the packed bytes that may be, from so many bytes on.
MAX_BYTES, MAX_RATIO, FREE_BYTES = 2**32, 100, 2**26
_BLOCK = 2**20  # bytes read at once
_BATCH = 2**14  # cells converted at once
_TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_KINDS = (*_TEXT, ".parquet", ".xlsx", ".npy", ".npz")
_AGAIN = "The file is damaged or not of this kind: write it again."
_RAISE = "If the table is meant to be that large, pass `max_bytes` (in Python), or save it unpacked."
_TURN = "Samples are rows and features are columns: is it transposed?"
#: What pandas takes for missing, from the empty cell on.
_MISSING = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"]
    + ["NULL", "NaN", "None", "n/a", "nan", "null"]
)
#: A point in a number with a decimal comma is a mark of thousands, or a mistake: no number either way.
_COMMA = str.maketrans({",": ".", ".": "?"})
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: No repetition inside a repetition, and possessive: hostile text must not make the match slow.
_NPY = rb"\{'descr': *+(.{1,200}?), *+'fortran_order': *+(True|False), *+'shape': *+\(([0-9L, ]*+)\),? *+\} *+\n?"


def _need(holds: object, must: str, got: object, do: str = _AGAIN) -> None:
    if not holds:
        fail("read_table", must, got, do, error=FileFormatError)


def _listed(names: Collection[object], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(shown(name, 40) for name in islice(names, limit)) + more


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def is_text(path: str | os.PathLike[str]) -> bool:
    """Whether :func:`read_table` reads a file of that name as text, in which numbers have a decimal mark."""
    return PurePath(path).name.lower().endswith(_TEXT)


def read_table(
    path: str | os.PathLike[str],
    *,
    decimal: str = ".",
    na_values: Sequence[str | float] = (),
    max_bytes: int | None = None,
) -> pd.DataFrame:
    """Read a table from a text, Parquet, NumPy or Excel file: every row as it stands there, or the file is refused.

    Parameters
    ----------
    path : path
        ``.csv``, ``.tsv`` or ``.txt``, also with ``.gz``: separator , ; | or tab, UTF-8 or Latin-1. A first line of
        numbers is data; columns are then "0", "1", …. ``.npy``: 1-D or 2-D numbers. ``.npz``: such arrays of equally
        many rows, as columns "name" (1-D) or "name0", "name1", … (2-D). ``.parquet``. ``.xlsx``: the first
        sheet, its values, as if it were a text file; needs openpyxl.
    decimal : {".", ","}
        Decimal mark of the numbers of a text file. With "," a point in a number makes it text, and the separator is a
        comma only where cells that hold one are quoted. It is never guessed.
    na_values : sequence of str or float
        What means missing beside the empty cell, NA and the like: numbers such as -9999 are compared as numbers.
    max_bytes : int, optional
        Neither the file nor what it unpacks to may be larger. By default 4 GiB, and what a packed file unpacks to may
        be at most 100 times as large as it is, or 64 MiB.

    Returns
    -------
    DataFrame
        ``attrs["isthmus_notes"]`` says what was decided; :func:`choose_columns` passes it on.
    """
    frame = _read(path, decimal, max_bytes)
    return _without(frame, na_values) if len(na_values) else frame


def _without(frame: pd.DataFrame, na_values: Sequence[str | float]) -> pd.DataFrame:
    """The table with nothing where a cell is one of ``na_values``, and a note that says how many were."""
    import pandas as pd

    mark = frame.attrs.get("isthmus_decimal", ".")
    texts = {str(value).strip() for value in ([na_values] if isinstance(na_values, str) else na_values)}
    numbers = {float(found[0]) for text in texts if (found := _floats([text], decimal=mark)) is not None}
    columns, gone = {}, 0
    for name, column in frame.items():
        kind = getattr(column.dtype, "kind", "O")
        if kind in "iuf":
            lost = column.isin(numbers).to_numpy()
        elif kind in "bmM":
            lost = np.zeros(len(column), bool)
        else:
            lost = np.array([_is_one(cell, texts, numbers, mark) for cell in column.astype(object)], bool)
        columns[name] = column.where(~lost) if lost.any() else column
        gone += int(lost.sum())
    found = pd.DataFrame(columns)
    remark = f"read {_counted(gone, 'cell')} as missing: {_listed(sorted(texts))}"
    found.attrs = {**frame.attrs, "isthmus_notes": (*frame.attrs.get("isthmus_notes", ()), remark)}
    return found


def _is_one(cell: object, texts: Collection[str], numbers: Collection[float], mark: str) -> bool:
    """Whether a cell of a column of text or of numbers of another kind is one of these texts or numbers."""
    text = str(cell).strip()
    found = _floats([text], decimal=mark)
    return text in texts or (found is not None and float(found[0]) in numbers)


def _read(path: str | os.PathLike[str], decimal: str, max_bytes: int | None) -> pd.DataFrame:
    who, label = "read_table", shown(path)
    limit = MAX_BYTES if max_bytes is None else check_integer(who, "max_bytes", max_bytes, low=1)
    check_choice(who, "decimal", decimal, (".", ","))
    try:
        with open_checked(who, path, limit) as (handle, size):
            name = PurePath(path).name.lower()
            kind = next((kind for kind in _KINDS if name.endswith(kind)), "")
            got = shown(PurePath(name).suffix or "no suffix", 40)
            _need(kind, f"the name of {label} must end in one of {', '.join(_KINDS)}", got, "Save it as one of these.")
            _need(size, f"{label} must hold a table", "an empty file")
            if decimal != "." and kind not in _TEXT:
                got, do = f"a {kind} file, {label}", "Leave --decimal out: its numbers are not written as text."
                fail(who, "`decimal` must belong to a text file", got, do, error=DataError)
            if max_bytes is None and kind.endswith((".gz", ".npz", ".parquet", ".xlsx")):
                # A bomb: few bytes that stand for very many.
                limit = min(limit, max(FREE_BYTES, MAX_RATIO * size))
            if kind == ".parquet":
                return _read_parquet(handle.read(size), label, limit)
            if kind == ".xlsx":
                return _read_workbook(handle, label, limit)
            if kind == ".npy":
                return _frame({"": _read_array(handle, size, label)}, label)
            if kind == ".npz":
                return _frame(_read_npz(handle, label, limit), label)
            return _read_text(_unpacked(handle, kind.endswith(".gz"), label, limit), label, decimal)
    except MemoryError:
        fail(who, f"{label} must fit into memory", "too much", "Read a part of it.", error=DataError)


def _names(who: str, label: str, raw: Sequence[object]) -> list[str]:
    if len(raw) > MAX_COLUMNS:
        fail(who, f"{label} must have at most {MAX_COLUMNS} columns", len(raw), _TURN, error=DataError)
    names = [str(name).strip() or f"column{j}" for j, name in enumerate(raw, 1)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        must, do = f"columns of {label} must have different names", "Rename them: columns are chosen by name."
        fail(who, must, f"more than one {_listed(twice)}", do, error=DataError)
    return names


def _unpacked(handle: Any, packed: bool, label: str, limit: int) -> bytes:
    """The bytes of a text file. By blocks, so that a bomb is met in its first one, or at the cap."""
    source = gzip.GzipFile(fileobj=handle) if packed else handle
    data, line = bytearray(), 0
    try:
        while block := source.read(_BLOCK):
            if bad := _CONTROL.search(block):
                where = data.count(b"\n") + block.count(b"\n", 0, bad.start()) + 1
                _need(False, f"{label} must be text", f"byte {shown(bad[0])} in line {where}", "Save it as UTF-8 text.")
            last = max(block.rfind(b"\n"), block.rfind(b"\r"))
            line = line + len(block) if last < 0 else len(block) - 1 - last
            _need(line <= MAX_LINE, f"lines of {label} must have at most {MAX_LINE} bytes", "a longer one", _TURN)
            data += block
            _need(len(data) <= limit, f"{label} must unpack to at most {limit} bytes", "more", _RAISE)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        _need(False, f"{label} must be a whole gzip file", shown(str(problem)))
    return bytes(data)


def _read_text(data: bytes, label: str, decimal: str, separator: str = "") -> pd.DataFrame:
    import pandas as pd

    encoding, notes = "utf-8-sig", []
    try:
        data.decode()
    except UnicodeDecodeError:
        encoding = "latin-1"
        notes.append("the text is not UTF-8 and was read as Latin-1")

    def lines(part: bytes = data) -> Iterator[str]:
        return io.TextIOWrapper(io.BytesIO(part), encoding, "replace", newline="")

    separator = separator or _separator(list(islice(lines(data[: 2 * MAX_LINE]), 100)), decimal)
    names, columns, late = _parse(_rows(lines(), separator, label), label, set(), notes, decimal)
    if late:  # a column of numbers turned to text after the first batch: it is wanted as written
        names, columns, _ = _parse(_rows(lines(), separator, label), label, late, [], decimal)
    frame = pd.DataFrame(dict(zip(names, columns)))
    frame.attrs["isthmus_notes"] = tuple(notes)
    if decimal != ".":
        frame.attrs["isthmus_decimal"] = decimal
    return frame


def _separator(sample: Sequence[str], decimal: str) -> str:
    """What cuts most of the first lines into the same number of cells, more than one."""
    separator, best = "," if decimal == "." else ";", 0
    for candidate in "\t;|,":  # the comma last: it may be a decimal mark
        try:
            rows = [row for row in csv.reader(sample, delimiter=candidate) if row]
        except csv.Error:
            continue
        if candidate == decimal and not any(candidate in cell for row in rows for cell in row):
            continue  # nothing is quoted: the commas are decimal marks
        width, count = max(Counter(map(len, rows)).items(), key=lambda item: item[1], default=(0, 0))
        if width > 1 and count > best:
            separator, best = candidate, count
    return separator


def _rows(lines: Iterable[str], separator: str, label: str) -> Iterator[list[str]]:
    """Rows of one width. Blank lines hold nothing; between the rows of a single column they are missing values."""
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    width, blank, start = 0, 0, 1
    row: list[str] | None = None
    while True:
        try:
            row = next(reader, None)
        except csv.Error as problem:
            must = f"cells of {label} must have closed quotes and at most {csv.field_size_limit()} characters"
            _need(False, must, f"{shown(str(problem))} from line {start} on", "Mend that line.")
        if row is None:
            return
        if row and (width == 1 or len(row) > 1 or row[0].strip()):
            if width and len(row) != width:
                must = f"all lines of {label} must have {width} cells separated by {separator!r}, as the first has"
                do = "Mend that line; quote cells that contain the separator."
                _need(False, must, f"{len(row)} in line {start}", do)
            if blank and width == 1:
                yield from ([""] for _ in range(blank))
            yield row
            width, blank = len(row), 0
        else:
            blank += 1
        start = reader.line_num + 1


def _parse(
    rows: Iterator[list[str]], label: str, known: set[int], notes: list[str], decimal: str
) -> tuple[list[str], list[np.ndarray], set[int]]:
    """Names, columns (numbers, or text if in ``known`` or found to be), and the text columns if found too late."""
    first = [cell.strip() for cell in next(rows, [])]
    _need(first, f"{label} must hold a table", "blank lines only")
    numeric = _floats(first, decimal=decimal)
    # pandas writes "0,1,2" above nameless columns, and ",0,1,2" if it writes row labels too. The first may also be
    # data, and either guess could add or lose a row; the second is no row of data.
    count = [str(j) for j in range(len(first))]
    must, do = f"the first line of {label} must be either names or data", "Put names above the columns."
    _need(len(first) == 1 or first != count, must, "0, 1, …, which may be both", do)
    if numeric is not None and not np.isnan(numeric).all() and first != ["", *count[:-1]]:
        rows, first = chain([first], rows), count
        notes.append('the first line holds numbers: it was read as data, and columns are named "0", "1", …')
    names = _names("read_table", label, first)
    parts: list[list[Any]] = [[] for _ in names]
    textual, late, batches = set(known), False, 0
    while batch := list(islice(rows, max(16, _BATCH // len(names)))):
        for j, cells in enumerate(zip(*batch)):
            if j not in textual and (numeric := _floats(cells, exact=True, decimal=decimal)) is not None:
                parts[j].append(numeric)
            else:
                late = late or (j not in textual and batches > 0)
                textual.add(j)
                parts[j] += [None if (cell := raw.strip()) in _MISSING else cell for raw in cells]
        batches += 1
    _need(batches, f"{label} must hold rows", "names and nothing below")
    if late:
        return names, [], textual
    return names, [np.array(p, object) if j in textual else np.concatenate(p) for j, p in enumerate(parts)], set()


def _floats(cells: Sequence[str], *, exact: bool = False, decimal: str = ".") -> np.ndarray | None:
    """Cells as numbers, NaN where missing; None if one is text or, if ``exact``, an integer beyond float64."""
    joined = "".join(cells)
    if not joined.isascii() or "_" in joined:  # float() takes "1_000" and the digits of any script
        return None
    if decimal == ",":
        cells = [cell if cell.strip() in _MISSING else cell.translate(_COMMA) for cell in cells]
    try:
        try:
            found = np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            found = np.array([math.nan if cell.strip() in _MISSING else float(cell) for cell in cells])
    except ValueError:
        return None
    # Such integers are names of things: rounded, two could become one.
    big = np.flatnonzero(np.abs(found) >= 2**53).tolist() if exact else ()
    return None if any(cells[i].strip().lstrip("+-").isdigit() for i in big) else found


def _read_array(stream: Any, size: int, label: str) -> np.ndarray:
    """The array of one .npy of ``size`` bytes; its header must account for all of them before any is read."""
    start = stream.read(8)  # magic and version
    width = 2 if start[6:7] == b"\1" else 4
    length = int.from_bytes(stream.read(width), "little")
    known = start[:6] == b"\x93NUMPY" and start[6:7] in (b"\1", b"\2", b"\3") and length <= 2**12
    _need(known, f"{label} must be a NumPy array file", shown(start))
    text = stream.read(length)
    header = re.fullmatch(_NPY, text)
    _need(header, f"{label} must have a plain .npy header", shown(text))
    code, order, sizes = header.groups() if header else (b"", b"", b"")
    real = re.fullmatch(rb"'[<>|=]?(b1|[iu][1248]|f[248])'", code)
    do = "Save them as float64, complex ones as two parts; arrays of objects are pickles, which are never loaded."
    _need(real, f"{label} must hold real numbers", f"dtype {shown(code.decode('latin-1'))}", do)
    dtype, counts = np.dtype(code[1:-1].decode()), [part.strip(b" ").removesuffix(b"L") for part in sizes.split(b",")]
    counts = counts if counts[-1] else counts[:-1]  # "(3,)" ends with a comma
    plain = len(counts) < 9 and all(part.isdigit() and len(part) < 19 for part in counts)
    _need(plain, f"{label} must have a plain .npy header", shown(text))
    shape = tuple(int(part) for part in counts)
    _need(len(shape) in (1, 2) and 0 not in shape, f"{label} must be 1-D or 2-D, not empty", f"shape {shape}", _TURN)
    needed, rest = math.prod(shape) * dtype.itemsize, size - 8 - width - length
    _need(needed == rest, f"{label}, of shape {shown(shape)}, must hold {needed} bytes of data", rest)
    data = stream.read(needed) + stream.read(1)  # past the end, where zipfile checks its checksum
    _need(len(data) == needed, f"{label} must hold all its bytes", len(data))
    _need(dtype.kind != "b" or max(data) <= 1, f"{label} must hold bytes 0 or 1 (bool)", "others")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        A = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
    return A.reshape(shape, order="F" if order == b"True" else "C")


def _read_npz(handle: Any, label: str, limit: int) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(handle) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
            _need(total <= limit, f"{label} must unpack to at most {limit} bytes", f"{total} declared", _RAISE)
            for entry in archive.infolist():
                key = entry.filename.removesuffix(".npy")
                unique = key != entry.filename and key not in arrays
                _need(unique, f"{label} must hold .npy arrays of different names", shown(entry.filename))
                known = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                _need(known, f"{label} must be packed as numpy.savez does", f"method {entry.compress_type}")
                with archive.open(entry) as stream:
                    arrays[key] = _read_array(stream, entry.file_size, f"{shown(key, 60)} of {label}")
    except (IsthmusError, MemoryError):
        raise
    except Exception as problem:  # zipfile raises ten kinds on damaged archives
        _need(False, f"{label} must be a whole .npz archive", f"{type(problem).__name__} {shown(str(problem))}")
    return arrays


def _read_workbook(handle: Any, label: str, limit: int) -> pd.DataFrame:
    """The first sheet, read like the text file that it could be saved as."""
    try:
        import openpyxl
    except ImportError:
        do = "Install it, pip install openpyxl, or save the sheet as CSV."
        fail("read_table", f"openpyxl must be there to read {label}", "none", do, error=DataError)
    rows: list[tuple[Any, ...]] = []
    width, titles = 0, [""]
    try:
        with zipfile.ZipFile(handle) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
        _need(total <= limit, f"{label} must unpack to at most {limit} bytes", f"{total} declared", _RAISE)
        book = openpyxl.load_workbook(handle, read_only=True, data_only=True, keep_links=False)
        sheet, titles = book.worksheets[0], [one.title for one in book.worksheets]
        sheet.reset_dimensions()  # what the file says of them may be wrong
        for row in sheet.iter_rows(values_only=True):
            # A cell far away stands for all that are empty before it.
            width = max(width, len(row))
            rows.append(row)
            room = 8 * width * len(rows)
            _need(room <= limit, f"{label} must unpack to at most {limit} bytes", f"{width} columns or more", _RAISE)
    except (IsthmusError, MemoryError):
        raise
    except Exception as problem:  # openpyxl raises whatever its parser of XML raises
        _need(False, f"{label} must be a whole .xlsx workbook", f"{type(problem).__name__} {shown(str(problem))}")
    while rows and not any(cell is not None for cell in rows[-1]):
        rows.pop()
    _need(rows, f"the first sheet of {label} must hold a table", "an empty one")
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC).writerows([*row, *[None] * (width - len(row))] for row in rows)
    frame = _read_text(text.getvalue().encode(), label, ".", separator=",")
    if len(titles) > 1:
        note = f"read the first sheet, {shown(titles[0], 40)}; {_counted(len(titles) - 1, 'other')} left out"
        frame.attrs["isthmus_notes"] = (*frame.attrs["isthmus_notes"], note)
    return frame


def _frame(arrays: dict[str, np.ndarray], label: str) -> pd.DataFrame:
    import pandas as pd

    rows, width = {len(A) for A in arrays.values()}, sum(A[0].size for A in arrays.values())
    _need(len(rows) == 1, f"{label} must hold arrays of equally many rows", _listed(sorted(rows)) or "no array")
    _need(width <= MAX_COLUMNS, f"{label} must have at most {MAX_COLUMNS} columns", width, _TURN)
    columns = [
        (key if key and A.ndim == 1 else f"{key}{j}", column)
        for key, A in arrays.items()
        for j, column in enumerate(A.reshape(len(A), -1).T)
    ]
    names = _names("read_table", label, [name for name, _ in columns])
    return pd.DataFrame({name: column for name, (_, column) in zip(names, columns)})


def _read_parquet(data: bytes, label: str, limit: int) -> pd.DataFrame:
    try:
        import pyarrow as pa
        from pyarrow import parquet, types
    except ImportError:
        do = "Install it: pip install 'isthmus[parquet]'."
        fail("read_table", f"pyarrow must be there to read {label}", "none", do, error=DataError)

    def is_text(t: Any) -> bool:
        return types.is_string(t) or types.is_large_string(t)

    def is_plain(t: Any) -> bool:
        numeric = types.is_integer(t) or types.is_floating(t) or types.is_decimal(t) or types.is_boolean(t)
        return numeric or is_text(t) or types.is_date(t) or types.is_timestamp(t) or types.is_null(t)

    def unpacked(dictionaries: list[str]) -> list[Any]:
        file = parquet.ParquetFile(pa.BufferReader(data), read_dictionary=dictionaries, page_checksum_verification=True)
        parts, total = [], 0
        for i in range(file.metadata.num_row_groups):
            parts.append(file.read_row_group(i, use_threads=False))
            parts[-1].validate(full=True)
            total += parts[-1].nbytes
            _need(total <= limit, f"{label} must unpack to at most {limit} bytes", "more than it declares", _RAISE)
        return parts

    notes = []
    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        meta, schema = file.metadata, file.schema_arrow
        names = _names("read_table", label, schema.names)
        kinds = [t.value_type if types.is_dictionary(t) else t for t in schema.types]
        odd = [name for name, t in zip(names, kinds) if not is_plain(t)]
        _need(not odd, f"columns of {label} must be numbers, text or dates", _listed(odd), "Convert or leave them out.")
        _need(meta.num_rows > 0 and names, f"{label} must hold rows and columns", f"{meta.num_rows} × {len(names)}")
        # Run lengths say much in few bytes, so what the rows will take counts too. Text stays a dictionary for that.
        # (Not the sizes by column: on damaged metadata pyarrow's `column` ends the process.)
        declared = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
        total = max(declared, 8 * meta.num_rows * len(names))
        _need(total <= limit, f"{label} must unpack to at most {limit} bytes", f"{total} declared bytes", _RAISE)
        text = [name for name, t in zip(schema.names, kinds) if is_text(t)]
        try:
            parts = unpacked(text)
        except OSError as problem:  # text stored as differences cannot be read into a dictionary
            if "Not yet implemented" not in str(problem):
                raise
            parts = unpacked([])
        table = pa.concat_tables(parts).unify_dictionaries()
        _need(table.num_rows == meta.num_rows, f"{label} must hold {meta.num_rows} rows", table.num_rows)
        frame = table.to_pandas(date_as_object=False, ignore_metadata=True, use_threads=False)
        frame.columns = names
    except (IsthmusError, MemoryError):
        raise
    except Exception as problem:  # pyarrow raises many kinds on damaged files
        got = f"{type(problem).__name__} {shown(str(problem))}"
        fail("read_table", f"{label} must be a whole Parquet file", got, _AGAIN, error=FileFormatError)
    labels = [name for name in names if name.startswith("__index_level_")]
    if 0 < len(labels) < len(names):
        frame = frame.drop(columns=labels)
        notes.append("left out the row labels that pandas had stored")
    frame.attrs["isthmus_notes"] = tuple(notes)
    return frame
