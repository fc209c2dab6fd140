"""`isthmus discover`, `transform`, `predict` and `demo`: answers, folders, exit codes, resuming, hostile files."""

import contextlib
import csv
import dataclasses
import functools
import gzip
import importlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus
from isthmus import cli, discovery, files, problems, tables
from isthmus.cli import discovery_folder
from isthmus.plotting import style
from tools import SEED, random_net

#: Small networks: seconds of training would test nothing more here.
QUICK = ["--width", "16", "--depth", "4", "--replicas", "0"]
NAMES = ("a", "b", "c", "d")


def linear(samples=100, d_out=3, rank=2):
    return problems.linear(d_in=4, d_out=d_out, rank=rank, samples=samples, seed=SEED)


def frame():
    """Four inputs, three outputs of rank 2, and what real tables have besides."""
    task = linear()
    table = pd.DataFrame(np.hstack([task.X, task.Y]), columns=[*NAMES, "y0", "y1", "y2"])
    table["patient"] = [f"p{i % 25}" for i in range(len(table))]
    table["hour"] = np.arange(len(table)) / 2
    table["city"] = ["Paris", "Oslo"] * (len(table) // 2)
    return table


#: Steps of training, which the command line has no option for: enough to have something to resume.
STEPS = 3


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Trainings and figures cut short, except for the module's `model`, which is made before this is in force."""
    monkeypatch.chdir(tmp_path)
    frame().to_csv("data.csv", index=False)
    monkeypatch.setattr(discovery, "discover", functools.partial(discovery.discover, steps=STEPS))
    monkeypatch.setattr(style, "render", lambda figure: b"\x89PNG" if figure.axes else b"")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder that `isthmus discover` wrote with nothing cut short, and what it said."""
    folder = tmp_path_factory.mktemp("model")
    frame().to_csv(folder / "data.csv", index=False)
    arguments = ["--target", "y*", "--features", "[abcd]", *QUICK, "--out", str(folder / "found")]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert cli.main(["discover", str(folder / "data.csv"), *arguments]) == 0
    return folder / "found", said.getvalue()


@pytest.fixture
def model(whole):
    return whole[0]


def call(capsys, *arguments):
    capsys.readouterr()
    code = cli.main([str(one) for one in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def numbers(text):
    """Names and numbers of a CSV text, every digit."""
    names, *rows = csv.reader(io.StringIO(text))
    return names, np.array([[float(cell) for cell in row] for row in rows])


def read(folder):
    return files.read_json(Path(folder) / "discovery.json")


def comparable(folder):
    """What must not depend on when it was computed, or in how many attempts."""
    content = read(folder)
    content.pop("provenance")
    for key in ("seconds", "stages_reused"):
        content["settings"].pop(key)
    tensors, _ = files.read_tensors(Path(folder) / "model.safetensors")
    return content, tensors, {name: (Path(folder) / name).read_bytes() for name in ("coordinates.csv", "meaning.csv")}


def assert_same(first, second):
    (a, tensors, texts), (b, others, more) = comparable(first), comparable(second)
    assert a == b
    assert set(tensors) == set(others)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name
    assert texts == more


# --- the answer and its folder


def test_the_answer_and_the_folder(whole):
    folder, out = whole
    assert sorted(path.name for path in folder.iterdir()) == sorted(discovery_folder.FILES)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["data.csv", "found"]
    lines = out.splitlines()
    assert lines[0] == "The 3 outputs depend on the 4 inputs through 2 variables (determined)."
    assert lines[1] == "verdict: determined"
    assert any("← the rank" in line and line.startswith("2 ") for line in lines)
    assert any(line.startswith("wide ") for line in lines)
    assert any("coordinate1: " in line and line.count("–") == 3 for line in lines)
    assert f"kept in {folder}" in out
    document = read(folder)
    assert document["rank"] == 2
    assert document["data"]["file"] == "data.csv"
    assert document["data"]["targets"] == ["y*"]
    assert document["inputs"] == list(NAMES)
    assert "command" in document["provenance"]
    found = isthmus.load(folder / "model.safetensors")
    names, table = numbers((folder / "coordinates.csv").read_text())
    assert names == ["row", "coordinate0", "coordinate1"]
    np.testing.assert_array_equal(table, np.column_stack([np.arange(100), found.coordinates]))
    profile = pd.read_csv(folder / "profile.csv")
    np.testing.assert_allclose(profile["error"], found.profile.error, rtol=1e-12)
    meaning = pd.read_csv(folder / "meaning.csv")
    assert set(meaning["input"]) == set(NAMES)
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_as_in_python(capsys):
    assert call(capsys, "discover", "data.csv", "--target", "y*", "--features", "[abcd]", *QUICK)[0] in (0, 1)
    kept = isthmus.load("runs/discover-data/model.safetensors")
    chosen = tables.choose_columns(tables.read_table("data.csv"), targets="y*", features="[abcd]")
    found = discovery.discover(chosen.X, chosen.Y, width=16, depth=4, replicas=0)
    assert np.array_equal(found.coordinates, kept.coordinates)
    assert found.to_dict()["profile"] == kept.to_dict()["profile"]


def test_json_is_the_file_and_nothing_else(tmp_path):
    process = start("discover", *TASK, "--json", "--out", "a [red]")
    out, err = process.communicate(timeout=120)
    assert process.returncode in (0, 1), err
    assert json.loads(out) == read(tmp_path / "a [red]")
    assert out == (tmp_path / "a [red]" / "discovery.json").read_bytes()


def test_groups_time_gaps_and_text(capsys):
    table = frame()
    table.loc[3, "a"] = np.nan
    table.loc[7, "y1"] = np.nan
    table.to_csv("gaps.csv", index=False)
    common = ["discover", "gaps.csv", "--target", "y0", "--target", "y1", *QUICK]
    common += ["--group", "patient", "--time", "hour"]
    code, _, err = call(capsys, *common, "--features", "[abcd]")
    assert code == 3
    assert "--missing" in err
    code, _, err = call(capsys, *common, "--missing", "drop")
    assert code == 3
    assert "--text indicators" in err
    more = ["--text", "indicators", "--seed", "3", "--max-rank", "1", "--resolution", "0.02", "--out", "dropped"]
    code, _, err = call(capsys, *common, "--missing", "drop", *more)
    assert code in (0, 1), err
    rows = pd.read_csv("dropped/coordinates.csv")
    assert list(rows["row"]) == [i for i in range(100) if i not in (3, 7)]
    assert list(rows["group"]) == [f"p{i % 25}" for i in rows["row"]]
    assert list(rows["time"]) == [i / 2 for i in rows["row"]]
    document = read("dropped")
    assert {"city=Oslo", "city=Paris"} < set(document["inputs"])
    assert not {"patient", "hour", "y2"} - set(document["inputs"]) - {"patient", "hour"}
    settings = document["settings"]
    assert (settings["seed"], settings["max_rank"], settings["strength"]) == (3, 1, 0.02)
    assert (settings["width"], settings["half"], settings["replicas"]) == (16, 2, 0)
    assert any("dropped 2 rows" in note for note in document["notes"])


def test_exclude_and_decimal_commas(capsys):
    table = frame().drop(columns=["patient", "hour"])
    table.insert(0, "id", np.arange(500, 600))
    table.to_csv("commas.csv", index=False, sep=";", decimal=",")
    common = ["discover", "commas.csv", "--target", "y*", "--exclude", "city", *QUICK, "--rank", "2", "--out", "found"]
    code, _, err = call(capsys, *common)
    assert code == 3
    assert "if these are decimal commas, add --decimal ," in err
    common += ["--decimal", ","]
    code, out, err = call(capsys, *common)
    assert code == 0, err
    assert "'id' numbers the rows and is an input like any other" in " ".join(out.split())
    assert read("found")["inputs"] == ["id", *NAMES]
    code, out, err = call(capsys, *common, "--exclude", "id", "--exclude", "y2")
    assert code == 0, err
    assert "numbers the rows" not in out
    document = read("found")
    assert document["inputs"] == list(NAMES)
    assert document["outputs"] == ["y0", "y1"]
    assert document["data"]["exclude"] == ["city", "id", "y2"]
    assert document["data"]["decimal"] == ","
    assert any(note == "left out 3 columns as asked: 'id', 'y2', 'city'" for note in document["notes"])
    found = isthmus.load("found/model.safetensors")
    np.testing.assert_array_equal(found.coordinates, found.transform(frame()[list(NAMES)]))
    for verb, wanted in (("transform", found.coordinates), ("predict", found.predict(frame()[list(NAMES)]))):
        code, _, err = call(capsys, verb, "found", "commas.csv")
        assert code == 3
        assert "--decimal ," in err
        code, out, err = call(capsys, verb, "found", "commas.csv", "--decimal", ",")
        assert code == 0, err
        np.testing.assert_array_equal(numbers(out)[1], wanted)


def test_na_values_and_marks(capsys):
    table = frame().drop(columns=["patient", "hour", "city"])
    table.loc[::20, NAMES[1]] = -9999.0
    table.to_csv("marks.csv", index=False)
    common = ["discover", "marks.csv", "--target", "y*", *QUICK, "--rank", "2", "--out", "found"]
    code, _, err = call(capsys, *common)
    assert code == 3
    assert "-9999" in err and f"'{NAMES[1]}'" in err and "--na-values" in err
    code, _, err = call(capsys, *common, "--missing", "median")
    assert code == 0, err
    document = read("found")
    assert document["settings"]["na_values"] == {NAMES[1]: [-9999.0]}
    found = isthmus.load("found/model.safetensors")
    np.testing.assert_array_equal(found.coordinates, found.transform(table[list(NAMES)]))
    code, out, err = call(capsys, "transform", "found", "marks.csv")
    assert code == 0, err
    np.testing.assert_allclose(numbers(out)[1], found.coordinates)
    # Named by the user: the same, and nothing else is looked for.
    code, _, err = call(capsys, *common, "--missing", "median", "--na-values", "-9999")
    assert code == 0, err
    assert read("found")["data"]["na_values"] == ["-9999"]
    named = isthmus.load("found/model.safetensors")
    np.testing.assert_array_equal(found.coordinates, named.coordinates)
    code, out, err = call(capsys, "transform", "found", "marks.csv", "--na-values", "-9999")
    assert code == 0, err
    np.testing.assert_allclose(numbers(out)[1], found.coordinates)
    # Measured values, says the user.
    code, _, err = call(capsys, *common, "--na-values", "")
    assert code == 0, err
    assert "na_values" not in read("found")["settings"]


def test_exclude_from_an_archive(capsys):
    task = linear()
    np.savez("data.npz", X=task.X, Y=task.Y)
    code, _, err = call(capsys, "discover", "data.npz", "--exclude", "X3", *QUICK, "--rank", "1", "--out", "found")
    assert code == 0, err
    assert read("found")["inputs"] == ["X0", "X1", "X2"]


def test_medians_are_kept_for_new_rows(capsys):
    table = frame().drop(columns=["patient", "hour"])
    table.loc[[3, 4], "a"] = np.nan
    table.to_csv("gaps.csv", index=False)
    options = ["--target", "y*", "--missing", "median", "--text", "drop", "--rank", "2", *QUICK, "--out", "found"]
    code, out, err = call(capsys, "discover", "gaps.csv", *options)
    assert code == 0, err
    assert "as given" in out
    assert read("found")["verdict"] == "given"
    assert sum("by the median of 1 column: 'a'" in note for note in read("found")["notes"]) == 1
    found = isthmus.load("found/model.safetensors")
    assert found.fill is not None
    assert found.fill[0] == np.nanmedian(table["a"])
    code, out, err = call(capsys, "transform", "found", "gaps.csv")
    assert code == 0
    assert "the value of the fit" in err
    filled = table[list(NAMES)].fillna({"a": np.nanmedian(table["a"])})
    np.testing.assert_array_equal(numbers(out)[1], found.transform(filled.to_numpy()))


@pytest.mark.parametrize("letters", ["XY", "xy"])
def test_npz_has_its_own_targets(capsys, letters):
    task = linear()
    x, y = letters
    np.savez("arrays.npz", **{x: task.X, y: task.Y[:, 0], "weight": np.arange(100.0)})
    code, out, err = call(capsys, "discover", "arrays.npz", *QUICK)
    assert code == 0, err
    assert "trivial" in out.splitlines()[0]
    document = read("runs/discover-arrays")
    assert document["outputs"] == [y]
    assert document["inputs"] == [f"{x}{j}" for j in range(4)]


def test_constant_targets_have_rank_zero(capsys):
    table = frame()[list(NAMES)]
    table["y0"], table["y1"] = 1.0, 2.0
    table.to_csv("constant.csv.gz", index=False)
    code, out, _ = call(capsys, "discover", "constant.csv.gz", "--target", "y?")
    assert code == 0
    assert "rank 0" in out
    folder = Path("runs/discover-constant")
    assert read(folder)["rank"] == 0
    assert pd.read_csv(folder / "coordinates.csv").shape == (100, 1)
    code, out, _ = call(capsys, "predict", folder, "constant.csv.gz")
    assert numbers(out)[1].tolist() == [[1.0, 2.0]] * 100
    code, out, _ = call(capsys, "transform", folder, "constant.csv.gz", "--json")
    assert code == 0
    none = "there are no coordinates: the discovery has rank 0, its outputs are constant"
    assert json.loads(out) == {"columns": [], "rows": 100, "notes": [none], "values": [[]] * 100}
    assert call(capsys, "transform", folder, "constant.csv.gz") == (0, "", f"note: {none}\n")


def test_undetermined_is_exit_code_one(capsys):
    noise = np.random.default_rng(SEED).standard_normal((60, 6))
    pd.DataFrame(noise, columns=[*NAMES, "y0", "y1"]).to_csv("noise.csv", index=False)
    code, out, _ = call(capsys, "discover", "noise.csv", "--target", "y*", *QUICK)
    assert code == 1
    assert out.startswith("Undetermined")
    assert "← a guess" in out
    code, out, _ = call(capsys, "discover", "noise.csv", "--target", "y*", *QUICK, "--rank", "1", "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "given"


def test_on_a_terminal_there_is_a_picture(model, monkeypatch, capsys):
    answer = importlib.import_module("isthmus.cli.discover")
    found = isthmus.load(model / "model.safetensors")
    stream = io.StringIO()
    make = importlib.import_module("rich.console").Console
    for encoding, full in (("utf-8", "█"), ("ascii", "#")):
        out = make(file=stream, force_terminal=True, width=100, legacy_windows=False)
        monkeypatch.setattr(make, "encoding", encoding)
        monkeypatch.setattr(answer, "console", lambda out=out: out)
        answer.print_answer(found, None)
        assert full * 5 in stream.getvalue()
    strange = dataclasses.replace(
        found,
        feature_names=("[red]\x1b[2J", "line\nbreak", "x" * 300, "\u202e"),
        reasons=("\x9b31m " + "very long " * 60,),
        verdict="undetermined",
        profile=dataclasses.replace(found.profile, error=np.full(len(found.profile.error), np.nan)),
    )
    monkeypatch.undo()
    answer.print_answer(strange, Path("x\x1b"))
    shown = capsys.readouterr().out
    assert not set("\x1b\x9b\u202e") & set(shown)
    assert "[red]" in shown
    assert "line break" in shown


# --- usage, bad data, foreign folders


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["data.csv"], 2, "'a', 'b', 'c', 'd', 'y0'"),
        (["data.csv", "--target", "y*", "--features", "[abcd]", "--rank", "9"], 2, "`rank` must be"),
        (["data.csv", "--target", "y*", "--features", "[abcd]", "--depth", "5"], 2, "even"),
        (["data.csv", "--target", "y*", "--features", "[abcd]", "--replicas", "-1"], 2, "`replicas`"),
        (["data.csv", "--target", "y*", "--missing", "bogus"], 2, "bogus"),
        (["data.csv", "--target", "y*", "--text", "bogus"], 2, "bogus"),
        (["data.csv", "--target", "z"], 3, "no match"),
        (["data.csv", "--target", "y*", "--exclude", "z"], 3, "`exclude` must name"),
        (["data.csv", "--target", "y0", "--exclude", "y*"], 2, "--target and --exclude both name 'y0'"),
        (["data.csv", "--classes", "city", "--exclude", "city"], 2, "--classes and --exclude both name 'city'"),
        (["data.csv", "--target", "y*", "--decimal", ";"], 2, "--decimal"),
        (["data.csv", "--target", "y*", "--group", "y0"], 3, "one role"),
        (["absent.csv", "--target", "y"], 3, "absent.csv"),
        (["data.doc", "--target", "y"], 3, "data.doc"),
        ([], 2, "DATA"),
    ],
)
def test_usage_and_data_errors(capsys, arguments, code, says):
    found, out, err = call(capsys, "discover", *arguments)
    assert (found, out) == (code, "")
    assert says in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 3
    found, out, _ = call(capsys, "discover", *arguments, "--json")
    assert json.loads(out)["exit_code"] == found == code


def spoil_lines(text):
    lines = text.splitlines()
    return "\n".join([*lines[:50], lines[50].rpartition(",")[0], *lines[51:]]).encode()


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("short.csv", spoil_lines),
        ("word.csv", lambda text: text.replace("0.", "O,", 3).encode()),
        ("binary.csv", lambda text: text[:900].encode() + b"\0\x1b[2J" + text[900:].encode()),
        ("cut.csv.gz", lambda text: gzip.compress(text.encode())[:-200]),
        ("text.parquet", lambda text: text.encode()),
    ],
)
def test_damaged_data_end_in_one_screen(capsys, name, spoil):
    Path(name).write_bytes(spoil(frame().to_csv(index=False)))
    code, out, err = call(capsys, "discover", name, "--target", "y*", "--text", "drop", *QUICK)
    assert (code, out) == (3, "")
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert len(err) < 1500
    assert not Path("runs").exists()


def foreign(kind, folder):
    if kind == "a file":
        folder.write_text("mine")
        return
    folder.mkdir()
    if kind == "notes":
        (folder / "notes.txt").write_text("mine")
    elif kind == "another answer":
        (folder / "discovery.json").write_text('{"format": "mine"}')
    elif kind == "damaged":
        (folder / "discovery.json").write_text('{"format": "isthmus disc')
    elif kind == "without an answer":
        (folder / "figure.png").write_bytes(b"mine")
    elif kind == "notes among the trainings":
        (folder / ".progress").mkdir()
        (folder / ".progress" / "notes.txt").write_text("mine")
    elif kind == "a link":
        (folder / "elsewhere").mkdir()
        (folder / ".progress").symlink_to(folder / "elsewhere")
        (folder / "elsewhere").rename(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    "kind",
    ["a file", "notes", "another answer", "damaged", "without an answer", "notes among the trainings", "a link"],
)
def test_foreign_folders_are_refused_before_computing(tmp_path, capsys, monkeypatch, kind):
    monkeypatch.setattr(tables, "read_table", lambda *_: pytest.fail("read before the folder was checked"))
    folder = tmp_path / "mine"
    foreign(kind, folder)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, _, err = call(capsys, "discover", "data.csv", "--target", "y*", "--out", folder, "--restart")
    assert code == 2
    assert "Choose another folder" in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_discovery_is_replaced_and_remains_are_swept(model, tmp_path, capsys):
    (tmp_path / "found").mkdir()
    for path in model.iterdir():
        (tmp_path / "found" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "found" / ".isthmus-0123.tmp").write_bytes(b"of a killed process")
    task = ["data.csv", "--target", "y*", "--features", "[abcd]", *QUICK]
    code, _, err = call(capsys, "discover", *task, "--out", "found", "--seed", "5")
    assert code in (0, 1), err
    assert sorted(path.name for path in Path("found").iterdir()) == sorted(discovery_folder.FILES)
    assert read("found")["settings"]["seed"] == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "found"]


# --- interrupted and resumed


_PROGRAM = f"""
import functools, signal, sys
import isthmus.discovery
isthmus.discovery.discover = functools.partial(isthmus.discovery.discover, steps={STEPS})
# A process in the background of a shell ignores Ctrl-C; this one must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
from isthmus.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


def start(*arguments):
    """A process of its own, cut short like the tests in this one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(process, folder, trainings, patience=120.0):
    """Until so many trainings are kept, or the process is done."""
    ends = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < ends:
        if len(list((Path(folder) / ".progress").glob("*.safetensors"))) >= trainings:
            return
        time.sleep(0.003)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    return process.returncode == -signal.SIGKILL


#: What is killed and resumed: with a further walk, there is more of it.
TASK = ["data.csv", "--target", "y*", "--features", "[abcd]", *QUICK, "--replicas", "1"]


@pytest.mark.slow
def test_killed_and_started_again_it_resumes(capsys):
    assert call(capsys, "discover", *TASK, "--out", "whole")[0] in (0, 1)
    process = start("discover", *TASK, "--out", "found")
    wait_for(process, "found", 2)
    assert kill(process)
    kept = len(list(Path("found/.progress").glob("*.safetensors")))
    assert kept >= 2
    code, out, err = call(capsys, "discover", *TASK, "--out", "found")
    assert code in (0, 1)
    assert f"found {kept} trainings of an interrupted run" in err
    assert f"resumed: {kept} trainings" in err
    assert "resumed" not in out
    assert read("found")["settings"]["stages_reused"] == kept
    assert not Path("found/.progress").exists()
    assert_same("found", "whole")


def test_restart_and_other_data_use_no_trainings(capsys, monkeypatch):
    inner = importlib.import_module("isthmus.discovery._discover")
    original = inner.finish_fit

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    for more in (["--restart"], ["--seed", "1"]):
        monkeypatch.setattr(inner, "finish_fit", interrupted)
        code, out, err = call(capsys, "discover", *TASK[:-2], "--out", "found")
        assert (code, out) == (130, "")
        assert err.splitlines()[-1].startswith("interrupted; the same command goes on")
        assert len(list(Path("found/.progress").glob("*.safetensors"))) > 1
        monkeypatch.setattr(inner, "finish_fit", original)
        code, _, err = call(capsys, "discover", *TASK[:-2], "--out", "found", *more)
        assert code in (0, 1)
        assert "resumed" not in err
        assert read("found")["settings"]["stages_reused"] == 0
        assert not Path("found/.progress").exists()


@pytest.mark.slow
def test_ctrl_c_from_the_keyboard():
    process = start("discover", *TASK, "--out", "found")
    wait_for(process, "found", 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err == b"interrupted; the same command goes on from what is kept in found/.progress\n"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_twenty_kills_at_random_moments(capsys):
    assert call(capsys, "discover", *TASK, "--out", "whole")[0] in (0, 1)
    total = 20
    dice = random.Random(SEED)
    kills = 0
    while kills < 20:
        # After so many trainings and a moment: at the start, between two, during one, while the folder is written.
        folder, trainings = f"found{kills}", dice.randrange(total)
        process = start("discover", *TASK, "--out", folder)
        wait_for(process, folder, trainings)
        time.sleep(dice.uniform(0.0, 0.3))
        killed = kill(process)
        if not killed:
            total = max(2, min(total, trainings))
            continue
        kills += 1
        names = [path.name for path in Path(folder).iterdir()] if Path(folder).exists() else []
        assert set(names) <= {*discovery_folder.FILES, ".progress"}
        done = start("discover", *TASK, "--out", folder)
        _, err = done.communicate(timeout=300)
        assert done.returncode in (0, 1), err
        assert_same(folder, "whole")
        assert not (Path(folder) / ".progress").exists()


# --- new rows


def test_transform_and_predict_are_those_of_python(model, capsys):
    found = isthmus.load(model / "model.safetensors")
    new = problems.linear(d_in=4, d_out=3, rank=2, samples=30, seed=SEED + 1)
    table = pd.DataFrame(new.X, columns=list(NAMES))
    table["other"] = "text"
    table[["other", "d", "b", "a", "c"]].to_csv("new.csv", index=False)
    for verb, values, names in (
        ("transform", found.transform(new.X), ["coordinate0", "coordinate1"]),
        ("predict", found.predict(new.X), ["y0", "y1", "y2"]),
    ):
        for path in (model, model / "model.safetensors"):
            code, out, err = call(capsys, verb, path, "new.csv")
            assert (code, err) == (0, "")
            columns, given = numbers(out)
            assert columns == names
            np.testing.assert_array_equal(given, values)
        code, out, _ = call(capsys, verb, model, "new.csv", "--json")
        document = json.loads(out)
        assert (document["columns"], document["values"]) == (names, values.tolist())
        code, out, _ = call(capsys, verb, model, "new.csv", "--out", "given.csv")
        assert (code, out) == (0, f"wrote given.csv: 30 rows of {', '.join(names)}\n")
        np.testing.assert_array_equal(numbers(Path("given.csv").read_text())[1], values)
        code, out, _ = call(capsys, verb, model, "new.csv", "--out", "given.csv", "--json")
        assert json.loads(out) == {"columns": names, "rows": 30, "notes": [], "file": "given.csv"}


def test_an_estimator_serves_as_a_model(capsys):
    task = linear()
    X = pd.DataFrame(task.X, columns=list(NAMES))
    estimator = isthmus.BottleneckRegressor(rank=2, width=8, depth=4, replicas=0).fit(X, task.Y)
    isthmus.save(estimator, "estimator.safetensors")
    X.to_csv("new.csv", index=False)
    code, out, err = call(capsys, "predict", "estimator.safetensors", "new.csv")
    assert code == 0, err
    np.testing.assert_array_equal(numbers(out)[1], estimator.predict(X))


def test_wrong_models_and_rows(model, capsys):
    isthmus.save(random_net([4, 8, 2]), "net.safetensors")
    table = pd.DataFrame(np.ones((3, 3)), columns=["a", "b", "c"])
    table.to_csv("few.csv", index=False)
    table.assign(d=[1.0, np.nan, 2.0]).to_csv("gap.csv", index=False)
    table.assign(d=[1.0, 1.5, 2.0]).to_csv("new.csv", index=False)
    for arguments, code, says in (
        (["net.safetensors", "new.csv"], 3, "must hold a Discovery"),
        (["absent", "new.csv"], 3, "absent"),
        ([".", "new.csv"], 3, "model.safetensors"),
        ([model, "few.csv"], 3, "'d'"),
        ([model, "gap.csv"], 3, "'d': 1 missing"),
        ([model, "new.csv", "--out", "new.csv"], 2, "another file"),
        ([model, "new.csv", "--out", model / "model.safetensors"], 2, "another file than MODEL"),
        ([model], 2, "DATA"),
    ):
        for verb in ("transform", "predict"):
            found, out, err = call(capsys, verb, *arguments)
            assert (found, out) == (code, "")
            assert says in err


# --- the demo


def small_demo(monkeypatch):
    demo = importlib.import_module("isthmus.cli.demo")
    sizes = {"d_in": 4, "rank": 2, "d_out": 4, "samples": 150}
    monkeypatch.setattr(demo, "TASK", {**demo.TASK, **sizes})
    monkeypatch.setattr(demo, "OPTIONS", {"width": 16, "depth": 4, "replicas": 0})
    return demo


def test_demo_discovers_and_says_whether_it_is_right(capsys, monkeypatch):
    demo = small_demo(monkeypatch)
    code, out, err = call(capsys, "demo")
    document = read("runs/demo")
    assert document["truth"]["rank"] == 2
    assert code == (1 if document["verdict"] == "undetermined" else 0), err
    assert "The truth: 2 hidden variables." in out
    assert "R² = " in out
    assert sorted(path.name for path in Path("runs/demo").iterdir()) == sorted(discovery_folder.FILES)
    found = isthmus.load("runs/demo/model.safetensors")
    monkeypatch.setattr(demo, "run_discovery", lambda context, *_, **__: context.obj.update(started=0.0) or found)
    code, out, _ = call(capsys, "demo", "--json")
    again = json.loads(out)
    assert again["truth"] == document["truth"]
    wrong = dataclasses.replace(found, rank=2, verdict="undetermined")
    monkeypatch.setattr(demo, "run_discovery", lambda context, *_, **__: context.obj.update(started=0.0) or wrong)
    code, out, _ = call(capsys, "demo")
    assert code == 1
    assert "Undetermined" in out


def test_demo_sees_a_difference(monkeypatch):
    demo = small_demo(monkeypatch)
    Z = np.random.default_rng(SEED).standard_normal((400, 2))
    same = np.stack([np.exp(Z[:, 0] / 2), Z[:, 1] + Z[:, 0] ** 2 / 4], axis=1)
    assert min(demo._explained(Z, same), demo._explained(same, Z)) > demo.SAME
    assert demo._explained(Z[:, :1], Z) < 0.2
    assert demo._explained(Z, np.empty((400, 0))) == 0.0


@pytest.mark.slow
def test_the_demo_itself_is_right(capsys, monkeypatch):
    demo = importlib.import_module("isthmus.cli.demo")
    monkeypatch.setattr(demo, "OPTIONS", {**demo.OPTIONS, "steps": 50})
    code, out, _ = call(capsys, "demo")
    assert code == 0
    assert "The truth: 5 hidden variables. Right." in out
    assert "the true ones in other words" in out


# --- five hundred mutated files


def mutated(data, dice):
    """One or two changes of the kinds that editors, transfers and people make."""
    data = bytearray(data)
    for _ in range(dice.randint(1, 2)):
        at = dice.randrange(len(data))
        kind = dice.randrange(8)
        if kind == 0:
            data[at] = dice.randrange(256)
        elif kind == 1:
            del data[at : at + dice.randint(1, 20)]
        elif kind == 2:
            data[at:at] = bytes(dice.choice(b',;"\n\t |.-eE+ \rNa_') for _ in range(dice.randint(1, 3)))
        elif kind == 3:
            data[at:at] = data[at : at + dice.randint(1, 80)]
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at] = dice.choice(b'0123456789,\n".;-')
        elif kind == 6:
            old, new = dice.choice([(b"\n", b"\r\n"), (b",", b";"), (b",", b"\t"), (b".", b","), (b"\n", b"\n\n")])
            data = data.replace(old, new)
        else:
            data[:0] = dice.choice([b"\xef\xbb\xbf", b"\n", b" ", b"# made by hand\n"])
        if not data:
            data = bytearray(b"\n")
    return bytes(data)


def readings(data):
    """What Python's own csv module makes of a file, for each separator: columns by name."""
    for encoding in ("utf-8-sig", "latin-1"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        for separator in ",;\t|":
            rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True))
            rows = [row for row in rows if row and (len(row) > 1 or row[0].strip())]
            if rows and len({len(row) for row in rows}) == 1:
                names = [name.strip() or f"column{j}" for j, name in enumerate(rows[0], 1)]
                yield dict(zip(names, zip(*rows[1:])))
                yield {str(j): column for j, column in enumerate(zip(*rows))}
        return


def confirmed(chosen, data):
    """Whether some reading of the csv module has the same numbers in the columns of that name."""
    names, values = (*chosen.feature_names, *chosen.target_names), np.hstack([chosen.X, chosen.Y])
    for columns in readings(data):
        try:
            if all(np.array_equal([float(c) for c in columns[n]], v) for n, v in zip(names, values.T)):
                return True
        except (KeyError, ValueError):
            continue
    return False


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_hundred_mutated_files(tmp_path):
    task = linear(samples=40)
    table = pd.DataFrame(np.hstack([task.X, task.Y]), columns=[*NAMES, "y0", "y1", "y2"]).round(4)
    np.savez(tmp_path / "good.npz", X=task.X, Y=task.Y)
    sources = {".csv": table.to_csv(index=False).encode(), ".npz": (tmp_path / "good.npz").read_bytes()}
    dice = random.Random(SEED)
    refused, accepted = [], 0
    for index in range(500):
        kind = ".npz" if index % 5 == 0 else ".csv"
        path = tmp_path / f"mutated{kind}"
        data = mutated(sources[kind], dice)
        path.write_bytes(data)
        try:
            targets = "Y*" if kind == ".npz" else "y*"
            chosen = tables.choose_columns(tables.read_table(path), targets=targets)
        except isthmus.DataError as problem:
            refused.append(str(problem))
            continue
        accepted += 1
        if kind == ".csv":
            assert confirmed(chosen, data), (index, data)
        else:
            # Checksums guard the content: what is not refused is what was written.
            np.testing.assert_array_equal(chosen.X, task.X)
            np.testing.assert_array_equal(chosen.Y, task.Y)
    assert len(refused) > 100
    assert all(len(message) < 1500 and message.isprintable() for message in refused)
    assert accepted > 50, accepted
