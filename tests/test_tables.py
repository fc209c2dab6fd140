"""Tables: known answers for each rule, and mutated files that are read rightly or refused on one screen."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import math
import random
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from isthmus._errors import DataError, FileFormatError, IsthmusError
from isthmus._tablefile import _BATCH
from isthmus.tables import Columns, choose_columns, exclude_columns, match_columns, read_table

# --- reading


@pytest.fixture
def read(tmp_path):
    """Write content under a name and read it back."""

    def read(content, name="table.csv", **options):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_table(path, **options)

    return read


def plain(frame: pd.DataFrame) -> dict[str, list]:
    return {name: [None if pd.isna(v) else v for v in frame[name]] for name in frame}


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".CSV"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text_by_separator_suffix_and_line_end(read, separator, suffix, end):
    text = end.join(separator.join(row) for row in (["a", " b ", "c"], ["1", " 2.5", "x y"], ["-3e2", "", "z"]))
    wanted = {"a": [1.0, -300.0], "b": [2.5, None], "c": ["x y", "z"]}
    assert plain(read(text, "t" + suffix)) == wanted
    assert plain(read(text + end, "t" + suffix)) == wanted


def test_numbers_are_read_to_the_last_bit(read):
    values = np.random.default_rng(0).normal(size=2000) * 10.0 ** np.arange(-300, 300, 0.3)
    frame = read("x\n" + "\n".join(map(repr, values.tolist())))
    assert np.array_equal(frame["x"], values)


@pytest.mark.parametrize("token", ["", "NA", "nan", "NaN", "null", "NULL", "N/A", " ", "None", "<NA>"])
def test_missing_cells(read, token):
    assert plain(read(f"a,b\n1,{token}\n{token},x\n")) == {"a": [1.0, None], "b": [None, "x"]}


@pytest.mark.parametrize("cell", ["1_000", "１２", "1,5", "0x10", "1 000", "−1", "1.2.3", "5 kg", "1e"])
def test_what_is_no_number_stays_text(read, cell):
    assert plain(read(f'a;b\n"{cell}";1\n2;3\n'))["a"] == [cell, "2"]


def test_a_first_line_of_numbers_is_data(read):
    frame = read("1.5,2\n3,4\n")
    assert plain(frame) == {"0": [1.5, 3.0], "1": [2.0, 4.0]}
    assert "read as data" in frame.attrs["isthmus_notes"][0]
    assert plain(read("1.5,,2\n3,4,5\n"))["1"] == [None, 4.0]
    assert plain(read("5\n6\n")) == {"0": [5.0, 6.0]}
    assert plain(read("year,1990\n1,2\n")) == {"year": [1.0], "1990": [2.0]}


def test_a_first_line_that_counts_is_names_or_data(read):
    """What pandas writes above nameless columns could be a row; with row labels it could not."""
    with pytest.raises(FileFormatError, match="either names or data"):
        read("0,1,2\n5,6,7\n")
    assert plain(read(",0,1\n0,5,6\n1,7,8\n")) == {"column1": [0.0, 1.0], "0": [5.0, 7.0], "1": [6.0, 8.0]}


COMMAS = "id;a;b;when;y\n1;3,14;-2,5e1;31.12.2020;0,5\n2;4;NA;1.1.2021;,25\n3;0,001;1;2.1.2021;7,0\n"


def test_decimal_commas(read):
    for separator in ";\t|":
        table = read(COMMAS.replace(";", separator), decimal=",")
        assert plain(table)["a"] == [3.14, 4.0, 0.001]
        assert plain(table)["b"] == [-25.0, None, 1.0]
        assert plain(table)["y"] == [0.5, 0.25, 7.0]
        assert plain(table)["when"] == ["31.12.2020", "1.1.2021", "2.1.2021"]
        by_pandas = pd.read_csv(io.StringIO(COMMAS), sep=";", decimal=",")
        assert np.array_equal(table["a"], by_pandas["a"]) and np.array_equal(table["y"], by_pandas["y"])
    assert plain(read("3,5;1\n2,5;4\n", decimal=",")) == {"0": [3.5, 2.5], "1": [1.0, 4.0]}
    # A comma separates only where the cells that hold one are quoted.
    assert plain(read('a,b\n"3,5",1\n"2,5",4\n', decimal=",")) == {"a": [3.5, 2.5], "b": [1.0, 4.0]}
    assert plain(read("a\n3,5\n2,5\n", decimal=",")) == {"a": [3.5, 2.5]}
    assert plain(read("3,5\n2,5\n", decimal=",")) == {"0": [3.5, 2.5]}
    assert choose_columns(read(COMMAS, decimal=","), targets="y", features="a", time="when").time[0] == 1609372800


def test_decimal_commas_are_recognised_and_never_guessed(read):
    says = r"'a', 'b', 'y' hold numbers with commas: if these are decimal commas, add --decimal ,"
    with pytest.raises(
        DataError, match="'a', 'b' hold numbers with commas: .* add --decimal , .*decimal=','"
    ) as caught:
        choose_columns(read(COMMAS), targets="y", features=["a", "b"])
    assert one_screen(caught.value)
    with pytest.raises(DataError, match="'y' holds numbers with commas"):
        choose_columns(read(COMMAS), targets="y", features="id")
    # Asked to drop or encode text it does, and says what that text looks like.
    got = choose_columns(read(COMMAS), targets=None, time="when", text="drop", need_targets=False)
    assert got.feature_names == ("id",)
    assert any(note.startswith(says) for note in got.notes)
    got = choose_columns(read(COMMAS), targets=None, features="a", text="indicators", need_targets=False)
    assert any("'a' holds numbers with commas" in note for note in got.notes)
    with pytest.raises(DataError, match="'a' holds numbers with commas"):
        match_columns(read(COMMAS), ["a"])
    for words in (["1,2,3", "4,5"], ["1.234,5", "2,5"], ["a,b", "1,2"], ["x", "y"]):
        table = frame(a=words, y=[1.0, 2.0])
        with pytest.raises(DataError, match="numbers need a decimal point") as caught:
            choose_columns(table, targets="y")
        assert "--decimal" not in str(caught.value)


def test_a_point_in_a_number_with_a_decimal_comma_is_not_read(read):
    """Thousands, or a mistake: in either case 1.234 is not what it would be with a decimal point."""
    table = read("a;b;y\n1.234;1,5;1\n2.345;2,5;2\n", decimal=",")
    for some in (table, exclude_columns(table, "b")):
        with pytest.raises(DataError, match=r"text in 'a' .*such as '1.234'.* a decimal comma and no other mark"):
            choose_columns(some, targets="y")
    with pytest.raises(DataError, match="text in 'a'"):
        match_columns(table, ["a"])
    assert choose_columns(exclude_columns(table, "a"), targets="y").X.tolist() == [[1.5], [2.5]]
    assert plain(read("a;y\n1.#IND;1,5\n2;2\n", decimal=","))["a"] == [None, 2.0]


def test_decimal_marks_belong_to_text_files(read):
    with pytest.raises(IsthmusError, match="`decimal` must be one of"):
        read("a;b\n1;2\n", decimal=";")
    with pytest.raises(DataError, match=r"`decimal` must belong to a text file. Got a .npy file"):
        read(saved(np.zeros((2, 2))), "t.npy", decimal=",")


def test_names(read):
    assert list(read(" a ,,c,\n1,2,3,4\n")) == ["a", "column2", "c", "column4"]
    with pytest.raises(DataError, match="more than one 'a', 'b'"):
        read("a,b,a, b\n1,2,3,4\n")
    with pytest.raises(DataError, match="'column2'"):
        read("column2,\n1,2\n")


def test_encodings(read):
    text = "naïve,β\n1,é\n"
    assert list(read(text.encode("utf-8-sig"))) == ["naïve", "β"]
    frame = read("naïve,b\n1,é\n".encode("latin-1"))
    assert plain(frame) == {"naïve": [1.0], "b": ["é"]}
    assert "Latin-1" in frame.attrs["isthmus_notes"][0]
    with pytest.raises(FileFormatError, match=r"must be text. Got byte b'\\x00' in line 1. Save it as UTF-8"):
        read(text.encode("utf-16"))


def test_quotes(read):
    frame = read('a,"b, c"\n1,"x, ""y"""\n"2", "two\nlines"\n')
    assert plain(frame) == {"a": [1.0, 2.0], "b, c": ['x, "y"', "two\nlines"]}
    for bad, line in [('a,b\n1,"x\n2,y\n', 2), ('a,b\n1,x\n2,"y"z\n', 3)]:
        with pytest.raises(FileFormatError, match=f"closed quotes.* from line {line} on"):
            read(bad)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("a,b\n1,2\n3\n4,5\n", "1 in line 3"),
        ("a,b\n1,2\n\n3,4,5\n", "3 in line 4"),
        ('a,b\n"1\n\n",2\n3,4,\n', "3 in line 5"),
        ("a title\nx,y\n1,2\n3,4\n", "2 in line 2"),
        ("a,b,c\n1,2,3,\n", "4 in line 2"),
    ],
)
def test_a_ragged_line_is_named(read, text, got):
    with pytest.raises(FileFormatError, match=f"must have . cells separated by ',', as the first has. Got {got}"):
        read(text)


def test_blank_lines(read):
    assert plain(read("\n\na,b\n\n1,2\n  \n3,4\n\n")) == {"a": [1.0, 3.0], "b": [2.0, 4.0]}
    # In a single column an empty line is how a missing value is written; after the last value it is none.
    assert plain(read("a\n1\n\n3\n\n\n")) == {"a": [1.0, None, 3.0]}
    assert plain(read('a\n1\n""\n')) == {"a": [1.0, None]}


def test_a_column_that_turns_to_text_late_is_as_written(read):
    """In the second of the batches that are converted at once."""
    count = _BATCH // 3 + 50
    rows = [f"{i:05},{i},k{i}" for i in range(count)]
    rows[count - 10] = f"B7,{count - 10},k{count - 10}"
    frame = read("\n".join(["a,b,c", *rows]))
    assert plain(frame)["a"] == [row.split(",")[0] for row in rows]
    assert plain(frame)["b"] == [float(i) for i in range(count)]
    assert plain(frame)["c"] == [f"k{i}" for i in range(count)]


def test_long_integers_are_not_rounded(read):
    frame = read("id,x\n12345678901234567,1\n12345678901234568,2\n12345678901234567,3\n")
    assert frame["id"].nunique() == 2
    frame["f"] = 1.0
    assert choose_columns(frame, targets="x", group="id").groups.tolist() == [0, 1, 0]
    assert choose_columns(frame, targets="x", features="id").X.dtype == np.float64


def test_duplicate_rows_are_kept(read):
    assert len(read("a,b\n" + "1,2\n" * 7)) == 7


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"", "t.csv", "an empty file"),
        (b"", "t.npy", "an empty file"),
        (b"\n \n\n", "t.csv", "blank lines only"),
        (b"\xef\xbb\xbf", "t.csv", "blank lines only"),
        (b"a,b\n\n", "t.csv", "names and nothing below"),
        (b"a,b\n1,\0\n", "t.csv", r"byte b'\\x00' in line 2"),
        (b"a,b\n1,\x1b[2J\n", "t.csv", r"byte b'\\x1b' in line 2"),
        (b"a,b\n", "t.xls", r"must end in one of .csv, .tsv.*Got '.xls'"),
        (b"a,b\n", "table", "Got 'no suffix'"),
        (b"a,b\n", "t.npy.gz", "Got '.gz'"),
        (b"a,b\n1,2\n", "t.csv.gz", "whole gzip file"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-3], "t.csv.gz", "whole gzip file"),
        (b"a,b\n1," + b"x" * 200_000, "t.csv", "at most 131072 characters.* from line 2 on"),
        (b"a,b\n" + b"1," * 2**24, "t.csv", "lines of .* must have at most 16777216 bytes"),
        (b",".join(b"c%d" % i for i in range(100_001)) + b"\n", "t.csv", "at most 100000 columns. Got 100001"),
        (b"PAR1", "t.parquet", "whole Parquet file"),
        (b"PK\3\4", "t.npz", "whole .npz archive"),
        (b"\x93NUMPY", "t.npy", "NumPy array file|plain .npy header"),
    ],
)
def test_refused_files(read, content, name, words):
    with pytest.raises(DataError, match=words) as caught:
        read(content, name)
    assert one_screen(caught.value)


def test_paths(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(DataError, match="Got a folder"):
        read_table(tmp_path)
    (tmp_path / "\x1b[2J.csv").write_text("a\n")
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / "\x1b[2J.csv")
    assert one_screen(caught.value)
    with pytest.raises(IsthmusError, match="max_bytes"):
        read_table(tmp_path, max_bytes=0)


def test_gzip(read):
    assert plain(read(gzip.compress(b"a;b\n1;2\n"), "t.tsv.gz")) == {"a": [1.0], "b": [2.0]}


def saved(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def zipped(packed=True, **arrays) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize("code", ["<f8", ">f8", "<f4", "<f2", "<i8", ">i4", "<u8", "|i1", "|b1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(read, code, order):
    A = np.array([[1, 0, 1], [0, 1, 1]]).astype(code, order=order)
    frame = read(saved(A), "t.npy")
    assert list(frame) == ["0", "1", "2"]
    assert np.array_equal(frame.to_numpy(), A)
    assert list(read(saved(A[0]), "t.npy")) == ["0"]


def test_npz(read):
    X, y = np.arange(6.0).reshape(3, 2), np.array([7, 8, 9])
    for packed in (True, False):
        frame = read(zipped(packed, X=X, y=y, Z=X[:, :1]), "t.npz")
        assert plain(frame) == {"X0": [0, 2, 4], "X1": [1, 3, 5], "y": [7, 8, 9], "Z0": [0, 2, 4]}
    assert choose_columns(frame, targets="y", features="X*").X.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (saved(np.zeros((2, 2, 2))), "t.npy", "1-D or 2-D"),
        (saved(np.array(3.0)), "t.npy", "1-D or 2-D"),
        (saved(np.zeros((0, 2))), "t.npy", "not empty"),
        (saved(np.ones(2) * 1j), "t.npy", "real numbers.*<c16"),
        (saved(np.array(["a"])), "t.npy", "real numbers.*<U1"),
        (saved(np.array([{}])), "t.npy", "real numbers.*pickles, which are never loaded"),
        (saved(np.zeros(2, [("a", "f8")])), "t.npy", "real numbers"),
        (saved(np.zeros(3)) + b"\0", "t.npy", "must hold 24 bytes of data. Got 25"),
        (saved(np.zeros(3))[:-1], "t.npy", "must hold 24 bytes of data. Got 23"),
        (saved(np.zeros(3, bool))[:-1] + b"\2", "t.npy", "0 or 1"),
        (saved(np.zeros((1, 100_001))), "t.npy", "at most 100000 columns"),
        (zipped(a=np.zeros(2), b=np.zeros(3)), "t.npz", "equally many rows. Got 2, 3"),
        (zipped(a=np.zeros((2, 2)), a0=np.zeros(2)), "t.npz", "more than one 'a0'"),
        (zipped(a=np.array([{}])), "t.npz", "'a' of .* must hold real numbers"),
        (zipped(), "t.npz", "no array"),
        (zipped(a=np.zeros(9)).replace(b"a.npy", b"a.txt"), "t.npz", "must hold .npy arrays"),
    ],
)
def test_refused_arrays(read, content, name, words):
    with pytest.raises(DataError, match=words) as caught:
        read(content, name)
    assert one_screen(caught.value)


def parquet(frame: pd.DataFrame, **options) -> bytes:
    stream = io.BytesIO()
    frame.to_parquet(stream, **options)
    return stream.getvalue()


def test_parquet(read):
    frame = pd.DataFrame(
        {
            "x": [1.5, math.nan, 3.0],
            "n": [2**60, 2**60 + 1, 3],
            "b": [True, False, True],
            "s": ["u", None, "v"],
            "c": pd.Categorical(["p", "q", "p"]),
            "when": pd.to_datetime(["2020-01-01", "2020-01-02", None]),
            "day": [datetime.date(2020, 1, 1)] * 3,
            "price": [decimal.Decimal("1.25"), decimal.Decimal("2.50"), None],
        }
    )
    got = read(parquet(frame), "t.parquet")
    assert list(got) == list(frame)
    assert plain(got)["x"] == [1.5, None, 3.0]
    assert plain(got)["n"] == [2**60, 2**60 + 1, 3]
    assert plain(got)["s"] == ["u", None, "v"]
    assert plain(got)["c"] == ["p", "q", "p"]
    columns = choose_columns(got, targets="n", features=["b", "price", "c", "s"], text="indicators", missing="median")
    assert columns.feature_names == ("b", "price", "c=p", "c=q", "s=u", "s=v")
    assert columns.X.tolist() == [[1, 1.25, 1, 0, 1, 0], [0, 2.5, 0, 1, 0.5, 0.5], [1, 1.875, 1, 0, 0, 1]]
    times = choose_columns(got, targets="n", features="b", time="when", missing="drop").time
    assert times.tolist() == [1577836800, 1577923200]


def test_parquet_of_many_row_groups_and_row_labels(read):
    frame = pd.DataFrame({"x": np.arange(1000.0), "s": [f"v{i % 7}" for i in range(1000)]})
    got = read(parquet(frame[frame.x % 3 != 0], row_group_size=100), "t.parquet")
    assert list(got) == ["x", "s"]
    assert "row labels" in got.attrs["isthmus_notes"][0]
    assert got.x.tolist() == [i for i in range(1000) if i % 3]
    assert got.s.tolist() == [f"v{i % 7}" for i in range(1000) if i % 3]


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_parquet_encodings_of_text(read, encoding):
    table = pd.DataFrame({"s": ["north", None, "northern"], "x": [1.0, 2.0, 3.0]})
    data = parquet(table, use_dictionary=False, column_encoding={"s": encoding})
    assert plain(read(data, "t.parquet")) == plain(table)


def test_parquet_refused(read, monkeypatch):
    with pytest.raises(FileFormatError, match="numbers, text or dates. Got 'v'"):
        read(parquet(pd.DataFrame({"u": [1], "v": [[1, 2]]})), "t.parquet")
    with pytest.raises(FileFormatError, match="rows and columns. Got 0 × 1"):
        read(parquet(pd.DataFrame({"u": [1.0]})[:0]), "t.parquet")
    with pytest.raises(DataError, match="more than one 'u'"):
        read(parquet(pd.DataFrame({"u": [1.0], " u": [2.0]})), "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install .isthmus.parquet"):
        read(b"PAR1", "t.parquet")


def workbook(rows, *sheets: str) -> bytes:
    openpyxl = pytest.importorskip("openpyxl", reason="reads .xlsx: not installed")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in sheets:
        book.create_sheet(name)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def test_workbook(read):
    day = datetime.datetime(2020, 1, 1, 12)
    rows = [
        ["x", "n", "city; town", "when"],
        [1.5, 3, 'a "b", c', day],
        [None, 4, "NA", day],
        [0.1, -5, "d", day],
    ]
    got = read(workbook(rows, "other"), "t.xlsx")
    assert plain(got)["x"] == [1.5, None, 0.1] and plain(got)["n"] == [3, 4, -5]
    assert plain(got)["city; town"] == ['a "b", c', None, "d"]
    columns = choose_columns(got, targets="n", features=["x"], time="when", missing="median")
    assert columns.Y.ravel().tolist() == [3.0, 4.0, -5.0] and len(set(columns.time)) == 1
    assert "read the first sheet, 'Sheet'; 1 other left out" in columns.notes
    assert plain(read(workbook([[1, 2], [3, 4]]), "t.xlsx")) == {"0": [1.0, 3.0], "1": [2.0, 4.0]}


def test_workbook_refused(read, monkeypatch):
    with pytest.raises(DataError, match="more than one 'u'"):
        read(workbook([["u", "u"], [1, 2]]), "t.xlsx")
    with pytest.raises(FileFormatError, match="first sheet of .* must hold a table"):
        read(workbook([]), "t.xlsx")
    with pytest.raises(FileFormatError, match="whole .xlsx workbook"):
        read(b"PK no", "t.xlsx")
    # One cell a million rows down and sixteen thousand columns right stands for 17 billion.
    far = workbook([["u", "v"], [1, 2]])
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.load_workbook(io.BytesIO(far))
    book.active["XFD1000000"] = 1
    stream = io.BytesIO()
    book.save(stream)
    with pytest.raises(FileFormatError, match="must unpack to at most"):
        read(stream.getvalue(), "t.xlsx")


def test_workbook_without_a_reader(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match="pip install openpyxl, or save the sheet as CSV"):
        read(b"PK", "t.xlsx")


# --- caps


def small_peak(action, words: str) -> None:
    """The action is refused before it takes much memory (counted by Python: the process has had its peak)."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=words) as caught:
            action()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert one_screen(caught.value)
    assert peak < 30 * 2**20


def test_declared_sizes_are_never_allocated(read, tmp_path):
    def npy(shape: str, data: bytes = bytes(64)) -> bytes:
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + data

    assert len(read(npy("(8,)"), "t.npy")) == 8
    for shape in ("(1000000000000000,)", "(10000000, 100000000)", "(999999999999999999, 999999999999999999)", "(-1,)"):
        small_peak(lambda shape=shape: read(npy(shape), "t.npy"), "must hold|plain .npy header")
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", npy(shape))
        small_peak(lambda stream=stream: read(stream.getvalue(), "t.npz"), "must hold|plain .npy header")
    with (tmp_path / "sparse.npy").open("wb") as handle:
        handle.truncate(2**43)
    small_peak(lambda: read_table(tmp_path / "sparse.npy"), "max_bytes")


@pytest.mark.parametrize(
    ("shape", "words"),
    [("(" + "1" * 3000 + "x", "plain"), ("(" + "1 " * 1500 + ",)", "plain"), ("(" + "1," * 1500 + ")", "plain")]
    + [("(" + " " * 3000 + "x", "plain"), ("(3 4)", "plain"), ("(,3)", "plain"), ("(3L, 1L)", ""), ("(3, 1,)", "")],
)
def test_headers_are_judged_quickly(read, shape, words):
    """A first version of the header's pattern took exponential time on a damaged digit."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    data = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(24)
    begin = time.perf_counter()
    if words:
        with pytest.raises(FileFormatError, match=words):
            read(data, "t.npy")
    else:
        assert read(data, "t.npy").shape == (3, 1)
    assert time.perf_counter() - begin < 1


def forged(data: bytes, size: int) -> bytes:
    """A zip of one entry whose directory declares ``size`` bytes unpacked, in both places."""
    real = zipfile.ZipFile(io.BytesIO(data)).infolist()[0].file_size
    assert data.count(real.to_bytes(4, "little")) >= 2
    return data.replace(real.to_bytes(4, "little"), size.to_bytes(4, "little"))


def test_zip_bombs(read):
    bomb = zipped(a=np.zeros((2**22, 4)))  # 128 MiB in 130 kB
    assert len(bomb) < 2**18
    with pytest.raises(FileFormatError, match="must unpack to at most 100000000 bytes. Got 134217856 declared"):
        read(bomb, "t.npz", max_bytes=10**8)
    # Much more than was packed is refused as soon as it is declared.
    declared = "must unpack to at most 67108864 bytes. Got {} declared"
    small_peak(lambda: read(bomb, "t.npz"), declared.format(134217856))
    small_peak(lambda: read(forged(bomb, 2**31), "t.npz"), declared.format(2**31))
    # A directory that lies, either way: less than there is, or more.
    for size in (1000, 2**31):
        small_peak(
            lambda size=size: read(forged(bomb, size), "t.npz", max_bytes=2**32), "must hold 134217728 bytes|Bad CRC"
        )


def test_gzip_bombs(read):
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb") as packer:
        for _ in range(300):
            packer.write(bytes(2**20))
    small_peak(lambda: read(stream.getvalue(), "t.csv.gz"), "must be text")
    bomb = gzip.compress(b"a,b\n" + b"1,2\n" * 2**24)
    small_peak(lambda: read(bomb, "t.csv.gz", max_bytes=10**6), "must unpack to at most 1000000 bytes")


def test_parquet_bombs(read):
    """Run lengths: ten million equal values in a few kilobytes."""
    bomb = parquet(pd.DataFrame({"x": np.zeros(10**7), "s": pd.Categorical(["w" * 1000]).repeat(10**7)}))
    assert len(bomb) < 2 * 10**6
    small_peak(lambda: read(bomb, "t.parquet", max_bytes=10**7), "at most 10000000 bytes. Got 160000000 declared")


# --- choosing


def frame(**columns) -> pd.DataFrame:
    return pd.DataFrame(columns)


ABC = frame(a=[1.0, 2.0, 3.0], b=[4, 5, 6], y=[7.0, 8.0, 9.0], y2=[1.0, 0.0, 1.0])


def test_choose_by_name_and_glob():
    got = choose_columns(ABC, targets=["y*"])
    assert got.feature_names == ("a", "b")
    assert got.target_names == ("y", "y2")
    assert got.X.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert got.Y.tolist() == [[7, 1], [8, 0], [9, 1]]
    assert got.X.dtype == got.Y.dtype == np.float64
    assert (got.groups, got.time, got.notes, got.fill) == (None, None, (), {})
    assert choose_columns(ABC, targets="y", features=["b", "[ab]"]).feature_names == ("b", "a")
    assert choose_columns(ABC, targets=["y2", "y"]).target_names == ("y2", "y")
    assert isinstance(got, Columns)


def test_an_exact_name_comes_before_its_reading_as_a_glob():
    table = frame(**{"x[1]": [1.0, 2.0], "x1": [3.0, 4.0], "x*": [5.0, 6.0], "y": [0.0, 1.0]})
    assert choose_columns(table, targets="y", features="x[1]").feature_names == ("x[1]",)
    assert choose_columns(table, targets="y", features="x*").feature_names == ("x*",)
    assert choose_columns(table, targets="y", features="x?").feature_names == ("x1", "x*")


def test_an_unknown_name_lists_near_ones():
    table = frame(temperature=[1.0], humidity=[2.0], Y=[3.0])
    with pytest.raises(DataError, match=r"no match for 'temprature'. Did you mean 'temperature'\? The table has"):
        choose_columns(table, targets="Y", features=["temprature"])
    with pytest.raises(DataError, match=r"Did you mean 'Y'\?"):
        choose_columns(table, targets="y")
    with pytest.raises(DataError, match="no match for 'T.'"):  # case matters
        choose_columns(table, targets="T*")
    with pytest.raises(DataError, match="`group` must name columns .* no match for 'hum.'"):  # and no glob for a group
        choose_columns(table, targets="Y", group="hum*")
    wide = pd.DataFrame(np.zeros((1, 5000)), columns=[f"\x1b{i}" * 50 for i in range(5000)])
    with pytest.raises(DataError, match="and 4988 more") as caught:
        choose_columns(wide, targets="y" * 10_000)
    assert one_screen(caught.value)


def test_one_role_for_each_column():
    for roles in ({"features": ["a", "y"]}, {"group": "y"}, {"time": "y"}, {"group": "a", "time": "a"}):
        with pytest.raises(DataError, match="one role"):
            choose_columns(ABC, targets="y", **roles)
    got = choose_columns(ABC, targets="y", group="b", time="y2")
    assert got.feature_names == ("a",)


def test_exclude():
    rest = exclude_columns(ABC, ["a", "y2"])
    assert list(rest) == ["b", "y"]
    assert list(ABC) == ["a", "b", "y", "y2"] and "isthmus_notes" not in ABC.attrs
    got = choose_columns(rest, targets="y*")
    assert (got.feature_names, got.target_names) == (("b",), ("y",))
    assert got.notes == ("left out 2 columns as asked: 'a', 'y2'",)
    assert list(exclude_columns(ABC, "[ab]")) == ["y", "y2"]
    with pytest.raises(DataError, match=r"`exclude` must name columns of the table. Got no match for 'ids'"):
        exclude_columns(ABC, ["a", "ids"])


def test_targets_may_be_absent():
    with pytest.raises(DataError, match="`targets` must name a column"):
        choose_columns(ABC, targets=[])
    got = choose_columns(ABC, targets=["z"], need_targets=False)
    assert (got.Y, got.target_names) == (None, ())
    assert got.X.shape == (3, 4)
    assert choose_columns(ABC, targets=["y"], need_targets=False).X.shape == (3, 3)
    assert choose_columns(ABC, targets=None, need_targets=False).Y is None


def test_no_features_and_no_rows():
    with pytest.raises(DataError, match="must have features"):
        choose_columns(ABC, targets="*")
    with pytest.raises(DataError, match="must have features"):
        choose_columns(frame(y=[1.0], s=["u"]), targets="y", text="drop")
    with pytest.raises(DataError, match="rows and columns"):
        choose_columns(ABC[:0], targets="y")
    with pytest.raises(DataError, match="some rows must be left. Got none of 2"):
        choose_columns(frame(a=[1.0, None], y=[None, 1.0]), targets="y", missing="drop")
    with pytest.raises(IsthmusError, match="DataFrame"):
        choose_columns(np.zeros((2, 2)), targets="0")  # type: ignore[arg-type]


def test_numbers_and_booleans_in_disguise():
    table = frame(
        a=["1.5", " 2 ", None],
        b=[True, False, True],
        c=["true", "FALSE", "True"],
        d=[1, "2", decimal.Decimal("3.5")],
        e=pd.array([1, 2, 3], dtype="Int64"),
        f=pd.array([True, False, True], dtype="boolean"),
        g=pd.Categorical(["10", "20", "10"]),
        h=np.array([1, 2, 3], np.float32),
        y=[1.0, 2.0, 3.0],
    )
    got = choose_columns(table, targets="y", missing="median")
    wanted = [[1.5, 1, 1, 1, 1, 1, 10, 1], [2, 0, 0, 2, 2, 0, 20, 2], [1.75, 1, 1, 3.5, 3, 1, 10, 3]]
    assert got.X.tolist() == wanted
    assert got.fill == {"a": 1.75}


def test_text_columns():
    table = frame(city=["Paris", "Oslo ", "Paris", "Rome"], kind=["u", "v", "u", "u"], n=["1", "2", "x", "4"])
    table["y"] = [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(DataError, match=r"text in 'city' \(3 distinct values, such as 'Oslo'\), 'kind'") as caught:
        choose_columns(table, targets="y")
    assert "'n' (4 distinct values, such as 'x')" in str(caught.value)
    assert "--exclude" in str(caught.value) and "--text indicators" in str(caught.value)
    assert "numbers need a decimal point" in str(caught.value) and "--decimal" not in str(caught.value)
    got = choose_columns(table, targets="y", features=["city", "kind"], text="indicators")
    assert got.feature_names == ("city=Oslo", "city=Paris", "city=Rome", "kind=u", "kind=v")
    assert got.X.tolist() == [[0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 1, 0, 1, 0], [0, 0, 1, 1, 0]]
    assert got.notes[0] == "encoded text column 'city' as 3 indicator columns"
    table["a"] = 1.0
    got = choose_columns(table, targets="y", text="drop")
    assert got.feature_names == ("a",)
    assert got.notes[0] == "left out 3 text columns: 'city', 'kind', 'n'"


def test_text_targets():
    table = frame(a=[1.0, 2.0, 3.0], y=["u", "v", "u"])
    got = choose_columns(table, targets="y", text="indicators")
    assert got.target_names == ("y=u", "y=v")
    assert got.Y.tolist() == [[1, 0], [0, 1], [1, 0]]
    for text in ("error", "drop"):
        with pytest.raises(DataError, match=r"'y' \(2 distinct values"):
            choose_columns(table, targets="y", text=text)


def test_too_many_levels_and_names_that_clash():
    for count, fails in ((20, False), (21, True)):
        table = frame(s=[f"k{i:02}" for i in range(count)], y=np.arange(float(count)))
        if fails:
            with pytest.raises(DataError, match=r"at most 20 values. Got text in 's' \(21 distinct"):
                choose_columns(table, targets="y", text="indicators")
        else:
            assert choose_columns(table, targets="y", text="indicators").X.sum() == count
    with pytest.raises(DataError, match="two columns 's=u'"):
        choose_columns(frame(**{"s": ["u"], "s=u": [1.0], "y": [1.0]}), targets="y", text="indicators")


def test_dates():
    days = pd.to_datetime(["2020-01-01", "2020-01-02"])
    for column in (days, days.tz_localize("UTC"), [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]):
        table = frame(a=[1.0, 2.0], t=column, y=[1.0, 2.0])
        with pytest.raises(DataError, match=r"'t' must hold numbers. Got dates. Pass it as --time"):
            choose_columns(table, targets="y")
        assert choose_columns(table, targets="y", time="t").time.tolist() == [1577836800, 1577923200]


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["2020-01-01", "2020-01-01T00:00:01.5Z"], [1577836800, 1577836801.5]),
        (["2020-01-01 01:00+01:00", "2020-01-01 00:01"], [1577836800, 1577836860]),
        (["31/01/2020", "01/02/2020"], [1580428800, 1580515200]),
        (["01/31/2020", "02/01/2020"], [1580428800, 1580515200]),
        (["31.01.2020 00:00", "01.02.2020 00:00"], [1580428800, 1580515200]),
        (["1.5", " 2"], [1.5, 2]),
        (["02/02/2020", "03/03/2020"], [1580601600, 1583193600]),
    ],
)
def test_times(texts, wanted):
    got = choose_columns(frame(a=[1.0, 2.0], t=texts, y=[1.0, 2.0]), targets="y", time="t")
    assert got.time.tolist() == wanted


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["01/02/2020", "03/04/2020"], "day and month may be either"),
        (["soon", "later"], "text such as 'soon'"),
        (["2020-01-01", "2020-13-01"], "text such as"),
        (["31/01/2020", "01/31/2020"], "text such as"),
    ],
)
def test_times_that_cannot_be_read(texts, words):
    with pytest.raises(DataError, match=f"time column 't' must hold numbers or dates. Got .*{words}"):
        choose_columns(frame(a=[1.0, 2.0], t=texts, y=[1.0, 2.0]), targets="y", time="t")


def test_groups_in_order_of_appearance():
    for labels in (["v", "u", " v", "w"], [7, 3, 7, 9], [0.5, 0.1, 0.5, 2], pd.Categorical(["v", "u", "v", "w"])):
        got = choose_columns(frame(a=[1.0, 2, 3, 4], g=labels, y=[1.0, 2, 3, 4]), targets="y", group="g")
        assert got.groups.tolist() == [0, 1, 0, 2]
        assert got.groups.dtype == np.int64
    table = frame(a=[1.0, 2, 3, 4], g=["x", None, "NA", "z"], y=[None, 2, 3, 4])
    with pytest.raises(DataError, match="'g': 2 missing"):
        choose_columns(table[1:], targets="y", group="g")
    got = choose_columns(table, targets="y", group="g", missing="drop")
    assert got.groups.tolist() == [0]  # numbered again among the rows that are left
    assert got.notes[0] == "dropped 3 rows with a missing or infinite target or group"


GAPS = frame(a=[1.0, None, 3.0, 10.0, 5.0], b=[1.0, 2.0, math.inf, 4.0, math.nan], y=[1.0, 2.0, 3.0, None, 5.0])


def test_missing_error():
    with pytest.raises(DataError) as caught:
        choose_columns(GAPS, targets="y")
    text = str(caught.value)
    assert "4 rows of 5 with gaps ('b': 1 missing, 1 infinite; 'a': 1 missing; 'y': 1 missing)" in text
    assert "--missing drop" in text and "--missing median" in text
    many = pd.DataFrame(np.full((3, 50), np.nan), columns=[f"c{i}" for i in range(50)])
    with pytest.raises(DataError, match="'c4': 3 missing; and 46 more columns"):
        choose_columns(many, targets="c0")


def test_missing_drop():
    got = choose_columns(GAPS, targets="y", missing="drop")
    assert got.X.tolist() == [[1, 1]] and got.Y.tolist() == [[1]]
    assert got.notes == ("dropped 4 rows with a missing or infinite feature or target",)


def test_missing_median():
    got = choose_columns(GAPS, targets="y", missing="median")
    # Medians over the rows that are kept: a of 1, 3, 5; b of 1, 2.
    assert got.fill == {"a": 3.0, "b": 1.5}
    assert got.X.tolist() == [[1, 1], [3, 2], [3, 1.5], [5, 1.5]]
    assert got.Y.tolist() == [[1], [2], [3], [5]]
    assert got.notes == (
        "dropped 1 row with a missing or infinite target",
        "replaced 3 missing or infinite values by the median of 2 columns: 'a', 'b'",
    )
    with pytest.raises(DataError, match="'a' must have a median. Got no finite value"):
        choose_columns(frame(a=[None, None], y=[1.0, 2.0]), targets="y", missing="median")
    huge = choose_columns(frame(a=[1.5e308, 1.7e308, None], y=[1.0, 2.0, 3.0]), targets="y", missing="median")
    assert huge.fill == {"a": 1.6e308}


def test_what_float64_cannot_hold_is_infinite():
    for value in ("1e999", 10**400, np.longdouble("1e400"), "-inf"):
        with pytest.raises(DataError, match="'a': 1 infinite"):
            choose_columns(pd.DataFrame({"a": pd.Series([value], dtype=object), "y": [1.0]}), targets="y")


def test_na_values(read):
    text = "a,b,c\n1,-9999,x\n-9999.0,2,missing\n3,missing,y\n"
    table = read(text, na_values=["-9999", "missing"])
    chosen = choose_columns(table.drop(columns="c"), targets=None, need_targets=False, missing="median")
    assert chosen.X.tolist() == [[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]]
    assert plain(table)["c"] == ["x", None, "y"]
    assert "4 cells" in table.attrs["isthmus_notes"][-1]
    # As numbers, and by the decimal mark of the file.
    assert read("a;b\n1,5;2\n-9,90;3\n", decimal=",", na_values="-9,9")["a"].isna().tolist() == [False, True]
    assert not read(text, na_values=[-999]).isna().any().any()
    assert read(text).equals(read(text, na_values=()))


def test_na_values_of_arrays(read):
    content = io.BytesIO()
    np.save(content, np.array([[1, -9999], [2**53 + 1, 3]]))
    table = read(content.getvalue(), "x.npy", na_values=[-9999.0])
    assert table.isna().to_numpy().tolist() == [[False, True], [False, False]]
    # A column without one is left as it is: float64 would round it.
    assert int(table["0"][1]) == 2**53 + 1


def marked():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.random(60), "b": rng.random(60), "y": rng.random(60)})
    frame.loc[::20, "b"] = -9999.0
    return frame


def test_marks_are_found_refused_or_missing():
    frame = marked()
    with pytest.raises(DataError) as refused:
        choose_columns(frame, targets="y")
    for word in ("-9999", "3 times", "'b'", "--missing median", "--na-values ''"):
        assert word in str(refused.value)
    dropped = choose_columns(frame, targets="y", missing="drop")
    assert len(dropped.rows) == 57 and dropped.na_values == {"b": (-9999.0,)}
    filled = choose_columns(frame, targets="y", missing="median")
    assert filled.X[0, 1] == filled.fill["b"] == np.median(frame["b"].drop(range(0, 60, 20)))
    assert choose_columns(frame, targets="y", marks=False).X[0, 1] == -9999.0
    # In a target they cannot be filled in.
    target = choose_columns(frame, targets="b", missing="median")
    assert len(target.rows) == 57 and target.na_values == {}
    X, _ = match_columns(frame, filled.feature_names, fill=filled.fill, na_values=filled.na_values)
    assert np.array_equal(X, filled.X)


def test_what_is_no_mark_is_left():
    frame = marked()
    frame["b"] = frame["b"].replace(-9999.0, 1.2)
    assert choose_columns(frame, targets="y").na_values == {}


def test_signalling_nans_are_missing(read):
    bits = np.array([0x7F800001, 0], np.uint32)
    for code in ("<f4", ">f4"):
        A = bits.astype(code.replace("f", "u")).view(code)
        with pytest.raises(DataError, match="'0': 1 missing"):
            choose_columns(read(saved(np.stack([A, A], 1)), "t.npy"), targets="1")


def test_complex_numbers():
    for column in (np.array([1j, 2]), [1j, "x"], [np.complex64(1), None]):
        with pytest.raises(DataError, match="'a' must be real. Got complex numbers"):
            choose_columns(frame(a=column, y=[1.0, 2.0]), targets="y")


def test_notes_of_the_file_are_passed_on(read):
    assert "read as data" in choose_columns(read("1.5,2\n3,4\n"), targets="1").notes[0]


def test_choices_are_checked():
    for bad in ({"missing": "mean"}, {"text": "hash"}):
        with pytest.raises(IsthmusError, match="must be one of"):
            choose_columns(ABC, targets="y", **bad)
    odd = pd.DataFrame([[1.0, 2.0]], columns=["a", " a "])
    with pytest.raises(DataError, match="different names"):
        choose_columns(odd, targets="a")
    assert choose_columns(pd.DataFrame([[1.0, 2.0]]), targets="1").feature_names == ("0",)


# --- matching


def test_match_by_name():
    new = frame(z=["text"] * 2, b=[1, 2], a=["3", "4"])
    X, notes = match_columns(new, ("a", "b"))
    assert X.tolist() == [[3, 1], [4, 2]] and X.dtype == np.float64
    assert notes == ()
    with pytest.raises(DataError, match="2 features of the model. Got none for 'c'. .* the table has 'z', 'b', 'a'"):
        match_columns(new, ("a", "c"))
    with pytest.raises(DataError, match="must be numbers. Got text in 'z'"):
        match_columns(new, ("a", "z"))
    with pytest.raises(DataError, match="rows and columns"):
        match_columns(new[:0], ("a",))


def test_match_by_position():
    new = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]])
    X, notes = match_columns(new, ("a", "b"))
    assert X.tolist() == [[1, 2], [3, 4]]
    assert notes == ("the columns have no names: taken by position as 'a', 'b'",)
    for names in (("a",), ("a", "b", "c"), ("a", "1")):
        with pytest.raises(DataError, match="none for 'a'"):
            match_columns(new, names)
    assert match_columns(new, ("1", "0"))[0].tolist() == [[2, 1], [4, 3]]  # by name, where there is one


def test_match_indicators():
    table = frame(city=["Paris", "Oslo", "Paris"], a=[1.0, 2.0, 3.0], y=[1.0, 2.0, 3.0])
    fitted = choose_columns(table, targets="y", text="indicators")
    assert match_columns(table, fitted.feature_names)[0].tolist() == fitted.X.tolist()
    X, notes = match_columns(frame(a=[1.0, 2.0], city=["Rome", " Oslo"]), fitted.feature_names)
    assert X.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert notes == ("1 row with a value of 'city' that the model has not seen: its indicators are 0",)
    # Columns already encoded are taken as they are; a name with '=' is cut where the table has a column.
    assert match_columns(frame(**{"k=v": ["p", "q"]}), ("k=v=q",))[0].tolist() == [[0], [1]]
    assert match_columns(frame(**{"k": ["p"], "k=p": [5.0]}), ("k=p",))[0].tolist() == [[5]]
    new = frame(**{"k": ["v=q", "p"], "k=v": ["q", "q"]})
    assert match_columns(new, ("k=v=q",), levels={"k": ["p", "v=q"]})[0].tolist() == [[1], [0]]


def test_match_indicators_of_a_column_that_looks_numeric_now():
    table = frame(s=["1", "2", "x"], y=[1.0, 2.0, 3.0])
    fitted = choose_columns(table, targets="y", text="indicators")
    assert match_columns(frame(s=[1.0, 2.0]), fitted.feature_names)[0].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_match_fills_gaps():
    new = frame(a=[1.0, None, math.inf], b=[1.0, 2.0, None])
    X, notes = match_columns(new, ("a", "b"), fill={"a": 7.0, "b": 8.0})
    assert X.tolist() == [[1, 1], [7, 2], [7, 8]]
    assert notes == ("replaced 3 missing or infinite values by the value of the fit of 2 columns: 'a', 'b'",)
    with pytest.raises(DataError, match=r"1 row of 3 with gaps \('b': 1 missing\).*fitted without gaps there"):
        match_columns(new, ("a", "b"), fill={"a": 7.0})
    with pytest.raises(DataError, match="'b': 1 missing"):
        match_columns(new, ("a", "b"), fill={"a": 7.0, "b": math.nan})
    with pytest.raises(DataError, match="'s=u': 1 missing"):
        match_columns(frame(s=["u", None]), ("s=u",))


def test_a_fit_and_its_own_rows_agree(read):
    text = "a,city,y\n1,Paris,2\n,Oslo,3\n5,,4\n7,Paris,5\n"
    fitted = choose_columns(read(text), targets="y", text="indicators", missing="median")
    X, _ = match_columns(read(text), fitted.feature_names, fill=fitted.fill)
    assert X.tolist() == fitted.X.tolist()


def test_importing_does_not_import_pandas():
    script = "import isthmus.tables, sys; assert not {'pandas', 'pyarrow'} & set(sys.modules), 'heavy'"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- mutated files


def one_screen(problem: BaseException) -> bool:
    text = str(problem)
    return len(text.splitlines()) <= 25 and len(text) <= 2500 and text.isprintable()


def originals(folder: Path) -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(40, 4)), columns=["x one", "x2", "y", "z"])
    table["city"] = [["Paris", "Oslo", 'the "Hague", NL', None][i % 4] for i in range(40)]
    table["n"] = np.arange(40)
    X = table[["x one", "x2"]].to_numpy()
    return {
        "a.csv": table.to_csv(index=False).encode(),
        "b.csv": table.drop(columns="city").to_csv(index=False, sep=";").encode(),
        "c.tsv": table.to_csv(index=False, sep="\t", lineterminator="\r\n").encode("utf-8-sig"),
        "d.txt": table[["x2"]].to_csv(index=False, header=False).encode(),
        "e.parquet": parquet(table),
        "f.parquet": parquet(table, row_group_size=10, compression="gzip"),
        "g.npy": saved(X),
        "h.npy": saved(np.asfortranarray(X.astype(np.float32))),
        "i.npz": zipped(X=X, y=table["y"].to_numpy(), n=table["n"].to_numpy()),
        "j.npz": zipped(packed=False, X=X, n=table["n"].to_numpy()),
        "k.csv.gz": gzip.compress(table.to_csv(index=False).encode(), mtime=0),
    }


def flip(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 20])):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    pieces = [
        rng.randbytes(rng.randrange(1, 30)),
        b",",
        b'"',
        b"\n",
        b"\r",
        b"1",
        b";;",
        b" ",
        b"-",
        b"\xe9",
        b"e9",
        b"_",
    ]
    return data[:at] + rng.choice(pieces) * rng.choice([1, 1, 3]) + data[at:]


def append(rng: random.Random, data: bytes) -> bytes:
    return data + rng.choice(
        [rng.randbytes(rng.randrange(1, 200)), bytes(50), data, b"\n\n\n", b"1,2\n", b"PK\5\6" * 9]
    )


def lines(rng: random.Random, data: bytes) -> bytes:
    """Duplicate, drop or swap lines (whatever a line is in a binary file)."""
    rows = data.split(b"\n")
    i, j = rng.randrange(len(rows)), rng.randrange(len(rows))
    choice = rng.randrange(3)
    if choice == 0:
        rows.insert(i, rows[j])
    elif choice == 1:
        del rows[i]
    else:
        rows[i], rows[j] = rows[j], rows[i]
    return b"\n".join(rows)


def cells(rng: random.Random, data: bytes) -> bytes:
    """Swap two cells, or overwrite one with something that is nearly a number."""
    separator = max(b",;\t\n", key=data.count)
    rows = data.split(bytes([separator]))
    i, j = rng.randrange(len(rows)), rng.randrange(len(rows))
    odd = [b"", b"NA", b"1e999", b"1_0", b"0x1", b"+5", b".5", b"5.", b"inf", b'"7"', b" 8 ", b"true", b"9" * 400]
    rows[i], rows[j] = (rows[j], rows[i]) if rng.random() < 0.5 else (rng.choice(odd), rows[j])
    return bytes([separator]).join(rows)


MUTATORS = (flip, cut, insert, append, lines, cells)


def number(cell: str) -> float | None:
    if not cell.isascii() or "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def agrees(table: pd.DataFrame, data: bytes) -> bool:
    """Whether ``table`` is what Python's csv module and float() make of the text, for one of the separators."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    for separator in ",;\t|":
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True))
        while rows and not any(cell.strip() for cell in rows[-1]) and len(rows[-1]) < 2:
            rows.pop()
        if table.shape[1] > 1:
            rows = [row for row in rows if len(row) > 1 or any(cell.strip() for cell in row)]
        else:
            while rows and not rows[0]:
                rows = rows[1:]
            rows = [row or [""] for row in rows]
        if not rows or {len(row) for row in rows} != {table.shape[1]}:
            continue
        names = [cell.strip() or f"column{j}" for j, cell in enumerate(rows[0], 1)]
        below = [rows[1:]] if names == list(table) else []
        below += [rows] if list(table) == [str(j) for j in range(len(names))] else []  # without names
        for body in below:
            if len(body) == len(table) and all(map(same_column, (table[n] for n in table), zip(*body))):
                return True
    return False


def same_column(column: pd.Series, cells: tuple[str, ...]) -> bool:
    for value, cell in zip(column, cells):
        bare = cell.strip()
        if pd.isna(value):
            if bare not in STR_NA_VALUES and not math.isnan(number(bare) or 0.0):
                return False
        elif isinstance(value, str):
            if value != bare:
                return False
        elif number(bare) != value:
            return False
    # Text only where it must be: some cell is no number, or an integer too long for one.
    gaps = [cell.strip() in STR_NA_VALUES for cell in cells]
    needs = [gap or number(cell.strip()) is not None for gap, cell in zip(gaps, cells)]
    long = any(abs(number(cell.strip()) or 0.0) >= 2**53 for cell in cells)
    return pd.api.types.is_float_dtype(column.dtype) or not all(needs) or long or all(gaps)


def campaign(count: int, folder: Path, seed: int = 0) -> tuple[list[str], dict[str, int]]:
    """What went wrong, and how many files were read or refused."""
    files = originals(folder)
    broken, outcomes = [], {"read": 0, "refused": 0, "compared": 0}
    for index in range(count):
        rng = random.Random(seed * 10**6 + index)
        name = list(files)[index % len(files)]
        mutate = MUTATORS[index // len(files) % len(MUTATORS)]
        data = mutate(rng, files[name])
        if name.endswith(".gz") and rng.random() < 0.5:  # inside the wrapping
            data = gzip.compress(mutate(rng, gzip.decompress(files[name])), mtime=0)
        path = folder / name
        path.write_bytes(data)
        begin = time.perf_counter()
        try:
            table = read_table(path)
            outcomes["read"] += 1
            if not len(table) or not table.shape[1]:
                broken.append(f"{index} {name} {mutate.__name__}: an empty table")
            if name.endswith((".csv", ".tsv", ".txt", ".gz")):
                outcomes["compared"] += 1
                if not agrees(table, gzip.decompress(data) if name.endswith(".gz") else data):
                    broken.append(f"{index} {name} {mutate.__name__}: another table")
            try:
                got = choose_columns(table, targets=[list(table)[0]], text="drop", missing="median")
                if not (np.isfinite(got.X).all() and np.isfinite(got.Y).all()):
                    broken.append(f"{index} {name} {mutate.__name__}: not finite")
            except DataError as problem:
                if not one_screen(problem):
                    broken.append(f"{index} {name} {mutate.__name__}: untidy {problem}")
        except DataError as problem:
            outcomes["refused"] += 1
            if not one_screen(problem):
                broken.append(f"{index} {name} {mutate.__name__}: untidy {str(problem)[:300]!r}")
        except Exception as problem:  # noqa: BLE001
            broken.append(f"{index} {name} {mutate.__name__}: {type(problem).__name__} {str(problem)[:200]}")
        if (taken := time.perf_counter() - begin) > 5:
            broken.append(f"{index} {name} {mutate.__name__}: {taken:.1f} s")
    return broken, outcomes


def test_the_originals_are_read(tmp_path):
    for name, data in originals(tmp_path).items():
        (tmp_path / name).write_bytes(data)
        assert len(read_table(tmp_path / name)) == 40, name


def test_60_mutated_files(tmp_path):
    broken, outcomes = campaign(60, tmp_path)
    assert broken == []
    assert min(outcomes.values()) >= 5, outcomes


@pytest.mark.slow
def test_500_mutated_files(tmp_path):
    broken, outcomes = campaign(500, tmp_path, seed=1)
    assert broken == []
    assert min(outcomes.values()) >= 100, outcomes


def test_the_comparison_can_fail():
    """Against a reader that fills, drops or rounds, the comparison speaks up."""
    text = b"a,b\n1,2\n3,4.5\n"
    good = pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 4.5]})
    assert agrees(good, text)
    assert not agrees(good[:1], text)
    assert not agrees(good.assign(b=[2.0, 4.500000001]), text)
    assert not agrees(good.assign(b=["2", "4.5"]), text)
    assert not agrees(good.assign(b=[2.0, None]), text)
    assert not agrees(good.rename(columns={"a": "c"}), text)
    assert not agrees(good, text + b"5\n")
    ragged = b"a,b\n1,2\n3\n4,5\n"
    assert not agrees(pd.read_csv(io.BytesIO(ragged)), ragged)
