"""Folders and files of strangers: no link is written or read through, nothing hangs, unpacks without bound or runs."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from isthmus import DataError, FileFormatError, FullyConnected, IsthmusError, Run, cli, files, train
from isthmus._folders import Folder, as_written, csv_bytes
from isthmus._inside import Inside, clear_remains, in_use
from isthmus._tensorfile import fingerprint, read_tensors, write_tensors
from isthmus.cli import report as serve_verb
from isthmus.discovery._walk import Stages
from isthmus.runs import Outcome
from isthmus.sweeps.places import Lock, holder
from isthmus.tables import read_table
from isthmus.training import Phase
from isthmus.training._train import minimise

SECRET = b"what only the victim may change"
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "elsewhere" / "precious"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def run(tmp_path):
    return Run("E-none", {"depth": 3}, {"a": np.arange(3.0)}, [Outcome("two is two", "agrees", 2, 2)]).write(
        tmp_path / "run"
    )


def small_training(folder):
    net = FullyConnected([3, 4, 1], generator=torch.Generator().manual_seed(1))
    X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    minimise(net, X, X[:, :1], ridge=1e-2, phases=[Phase("adam", 4, 1e-2)], checkpoint=folder)


# --- links, devices and pipes


def test_a_name_inside_is_never_a_link(tmp_path, victim):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "file").symlink_to(victim)
    (root / "folder").symlink_to(victim.parent)
    inside = Inside(root)
    for name in ("file", "folder"):
        assert inside.stamp(name) is None
        assert not inside.is_folder(name)
    with pytest.raises(OSError):
        inside.read("folder", "precious", limit=100)
    with pytest.raises(IsthmusError):
        files.write_atomic(inside / "folder" / "precious", b"x")
    with pytest.raises(OSError):
        (inside / "folder").make_folder()
    files.write_atomic(inside / "file", b"mine")
    assert not (root / "file").is_symlink()
    assert (root / "file").read_bytes() == b"mine"
    assert victim.read_bytes() == SECRET
    for name in ("..", ".", "", "a/b", "a\0b"):
        with pytest.raises(OSError):
            inside.read(name, limit=10)
        assert inside.stamp(name) is None


def test_report_writes_through_no_link(run, victim, capsys):
    page = victim.with_name("page.html")
    page.write_bytes(SECRET)
    for target in (victim, page):
        (run / "report.html").unlink(missing_ok=True)
        (run / "report.html").symlink_to(target)
        cli.main(["report", str(run)])
        assert target.read_bytes() == SECRET
    capsys.readouterr()


def test_trainings_are_kept_through_no_link(tmp_path, victim):
    (tmp_path / "found" / ".progress").mkdir(parents=True)
    link = tmp_path / "found" / ".progress" / "main-wide.safetensors"
    link.symlink_to(victim)
    from isthmus.cli.discovery_folder import FOLDER

    with pytest.raises(IsthmusError, match="main-wide"):
        FOLDER.check(tmp_path / "found")
    stages = Stages(tmp_path / "found" / ".progress", "identity")
    assert stages.read("main-wide") is None
    small_training(tmp_path / "kept")
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    for name in names:
        (tmp_path / "kept" / name).unlink()
        (tmp_path / "kept" / name).symlink_to(victim)
    with pytest.warns(match="starts anew"):
        small_training(tmp_path / "kept")
    assert victim.read_bytes() == SECRET


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("kind", ["pipe", "device", "zero"])
def test_what_is_no_file_is_not_read(tmp_path, run, kind):
    """A pipe would be waited for, /dev/zero never ends."""

    def put(path):
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero" if kind == "zero" else "/dev/full")

    for name in ("provenance.json", "config.json", "arrays.safetensors", "verdicts.json", "figure.png"):
        copy = tmp_path / f"copy-{name}"
        shutil.copytree(run, copy)
        put(copy / name)
        began = time.monotonic()
        if name != "figure.png":
            with pytest.raises(FileFormatError):
                Run.read(copy)
        assert time.monotonic() - began < 60.0
    (tmp_path / "sweep").mkdir()
    put(tmp_path / "sweep" / ".lock")
    put(tmp_path / "sweep" / "index.jsonl")
    assert holder(tmp_path / "sweep") is None
    with pytest.raises(OSError), Lock(tmp_path / "sweep"):
        pass


# --- what unpacks without bound


def _npz(size):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("X.npy", "w") as entry:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": (size // 100, 100)}
        )
        entry.write(header.getvalue())
        for _ in range(size // 2**20):
            entry.write(bytes(2**20))
        entry.write(bytes(size % 2**20))
    return stream.getvalue()


def test_bombs_are_refused_by_ratio(tmp_path):
    size = 80 * 2**20 // 100 * 100
    (tmp_path / "bomb.npz").write_bytes(_npz(size))
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"0,0\n" * (20 * 2**20), 6))
    frame = pd.DataFrame({"a": np.zeros(10 * 2**20)})
    frame.to_parquet(tmp_path / "bomb.parquet")
    for name in ("bomb.npz", "bomb.csv.gz", "bomb.parquet"):
        packed = (tmp_path / name).stat().st_size
        assert packed < 2**20
        with pytest.raises(FileFormatError, match="must unpack to at most"):
            read_table(tmp_path / name)
    # Whoever means it says so.
    assert len(read_table(tmp_path / "bomb.parquet", max_bytes=2**32)) == 10 * 2**20


# --- what meets HTML, spreadsheets and other processes


def test_a_forged_outcome_runs_no_script_in_a_notebook(run):
    for place in ("value", "expected", "name", "reason"):
        outcome = Outcome(**{"name": "n", "status": "differs", "reason": "r", place: SCRIPT})
        card = Run("E", {}, {}, [outcome])._repr_html_()
        assert "<script" not in card
        assert place == "reason" or "&lt;script&gt;" in card


def test_every_text_is_escaped_where_it_meets_html():
    from isthmus import _html

    hostile = f'"{SCRIPT}&'
    made = [_html.table([hostile], [[hostile, _html.number(hostile)]]), _html.card(hostile), _html.heading(hostile)]
    made += [_html.items([hostile]), _html.badge(hostile), _html.strong(hostile), _html.name(hostile)]
    for text in made:
        assert "<script" not in text
        assert "&lt;script&gt;" in text


def test_spreadsheets_take_nothing_for_a_formula():
    texts = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "plain", "-1.5", "+inf", None]
    frame = pd.DataFrame({"=name": texts, "x": [-1.0, *range(8)]})
    content = csv_bytes(frame).decode()
    back = pd.read_csv(io.StringIO(content), keep_default_na=False, dtype=str)
    assert list(back.columns) == ["'=name", "x"]
    assert list(back.iloc[:, 0]) == [f"'{t}" for t in texts[:5]] + ["plain", "-1.5", "+inf", ""]
    assert back["x"].astype(float).tolist() == frame["x"].tolist()
    assert as_written("'=name") == "=name"
    assert as_written("'t is") == "'t is"
    assert frame.columns[0] == "=name", "the table itself is left as it was"


def test_the_token_is_on_no_command_line(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    serve_verb.show('http://127.0.0.1:1/?token=SECRET&a="b"')
    (address,) = opened
    assert "SECRET" not in address
    page = next(tmp_path.glob("isthmus-serve-*/open.html"))
    assert address == page.as_uri()
    assert "token=SECRET&amp;a=&#34;b&#34;" in page.read_text()
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700


# --- checkpoints


def _forge(path, change):
    tensors, metadata = read_tensors(path)
    numbers = json.loads(metadata["numbers"])
    change(tensors, numbers)
    metadata["numbers"] = json.dumps(numbers)
    write_tensors(path, tensors, metadata)


FORGERIES = {
    "no phase": lambda t, n: n.pop("phase"),
    "a phase that is none": lambda t, n: n.update(phase=7),
    "a phase that is text": lambda t, n: n.update(phase="x"),
    "a negative step": lambda t, n: n.update(step=-1),
    "past the end of its phase": lambda t, n: n.update(inside=10**6),
    "numbers that are a list": lambda t, n: n.update(optimiser=[1]),
    "no weights": lambda t, n: t.pop("theta"),
    "weights of another size": lambda t, n: t.update(theta=torch.zeros(1)),
    "weights of another type": lambda t, n: t.update(theta=t["theta"].double()),
    "a momentum of another size": lambda t, n: t.update({"optimiser.mean": torch.zeros(2)}),
    "rows that are not there": lambda t, n: t.update({"optimiser.order": torch.tensor([30, 10**6])}),
    "rows before the first": lambda t, n: t.update({"optimiser.order": torch.tensor([-1])}),
    "rows that are fractions": lambda t, n: t.update({"optimiser.order": torch.tensor([0.5])}),
    "no generator": lambda t, n: t.pop("generator"),
    "a generator of another size": lambda t, n: t.update(generator=torch.zeros(3, dtype=torch.uint8)),
    "a history too short": lambda t, n: t.update({"history.loss": torch.zeros(1, dtype=torch.float64)}),
    "a history of another shape": lambda t, n: t.update({"history.loss": torch.zeros(2, 2)}),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_forged_checkpoints_are_refused_by_name(tmp_path, how):
    small_training(tmp_path)
    for path in tmp_path.iterdir():
        _forge(path, FORGERIES[how])
    with pytest.raises(FileFormatError, match="state of this training"):
        small_training(tmp_path)


# --- leftovers and destinations


def test_leftovers_of_the_dead_are_cleared_and_those_of_the_living_stay(tmp_path):
    left, used = tmp_path / ".isthmus-00.tmp", tmp_path / ".isthmus-11.tmp"
    for path in (left, used):
        path.write_bytes(b"half")
    (tmp_path / "mine.tmp").write_bytes(b"mine")
    with used.open("rb") as handle:
        assert in_use(handle.fileno())
        clear_remains(Inside(tmp_path))
        assert sorted(path.name for path in tmp_path.iterdir()) == [used.name, "mine.tmp"]
    clear_remains(Inside(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.tmp"]


def test_a_killed_write_leaves_what_the_next_run_clears(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    script = "import os, signal, sys; from isthmus import files\ndef pieces():\n yield b'half'\n"
    script += f" os.kill(os.getpid(), signal.SIGKILL)\nfiles.write_atomic({str(folder / 'a')!r}, pieces())"
    subprocess.run([sys.executable, "-c", script], check=False)
    assert [path.name.startswith(".isthmus-") for path in folder.iterdir()] == [True]
    Stages(folder, "identity")
    assert list(folder.iterdir()) == []


def test_destinations_are_checked_before_work_begins(tmp_path, monkeypatch):
    """As root everything may be written: what the system would say is put in its place."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    kinds = Folder("verb", "a result", ("a",), lambda folder, names: True)
    with pytest.raises(IsthmusError, match="must be writable. Got (permission|the file system)"):
        kinds.check(tmp_path / "new" / "folder")
    X = torch.zeros(4, 2)
    with pytest.raises(IsthmusError, match="must be writable"):
        train(FullyConnected([2, 2, 1]), X, X[:, :1], ridge=1e-2, checkpoint=tmp_path / "kept")
    with pytest.raises(IsthmusError, match="must be writable"):
        Stages(tmp_path / "kept", "identity")
    assert list(tmp_path.iterdir()) == []


# --- numbers at the edge


def test_numbers_whose_squares_overflow_and_seeds_beyond_64_bits_are_refused_by_name():
    from isthmus import diagnose, discover

    X = np.random.default_rng(0).normal(size=(40, 3))
    big = np.where(X > 0, 1.7e308, -1.7e308)
    net = FullyConnected([3, 4, 1], dtype=torch.float64)
    for call in (lambda: discover(big, X), lambda: discover(X, big), lambda: diagnose(net, big)):
        with pytest.raises(DataError, match="at most 1e.150"):
            call()
    single = FullyConnected([3, 4, 1], dtype=torch.float32)
    for given in (big, torch.tensor(big)):
        with pytest.raises(DataError, match="120 beyond the largest number of float32 of 120 values"):
            train(single, given, X[:, :1], ridge=1e-2)
    for call in (lambda: discover(X, X[:, :1], seed=2**70), lambda: diagnose(net, X, seed=2**70)):
        with pytest.raises(IsthmusError, match="seed"):
            call()


def test_masked_values_are_not_written_as_if_they_were_there(tmp_path):
    A = np.ma.masked_array(np.arange(3.0), mask=[False, True, False])
    for call in (
        lambda: write_tensors(tmp_path / "a", {"a": A}),
        lambda: fingerprint({"a": A}),
        lambda: Run("E", {}, {"a": A}),
    ):
        with pytest.raises(IsthmusError, match="masked"):
            call()
    assert Outcome("a", "agrees", A[1]).value is None
    files.write_json(tmp_path / "a.json", {"a": A})
    assert files.read_json(tmp_path / "a.json") == {"a": [0.0, None, 2.0]}
    # Without masked values it is an array like any other.
    assert Run("E", {}, {"a": np.ma.masked_array([1.0])}).arrays["a"].tolist() == [1.0]


@pytest.mark.parametrize("content", ["[1, 2]", "7", '"text"', "null", '{"a": {"b": [1, {"c": "<b>"}]}}'])
def test_documents_with_anything_in_them_are_drawn_or_refused(tmp_path, content, capsys):
    """Exit 3 for what is no document of ours; 70 would call it a bug."""
    for form in ("isthmus discovery", "isthmus.diagnosis", "isthmus.compression", "isthmus.mechanics"):
        for place in ("data", "provenance", "settings", "profile", "layers", "sentence", "verdict"):
            document = {"format": form, place: json.loads(content)}
            (tmp_path / "found.json").write_text(json.dumps(document))
            code = cli.main(["report", str(tmp_path / "found.json")])
            assert code in (0, 3), (form, place)
    capsys.readouterr()
