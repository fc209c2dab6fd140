"""The Run: round trip, refusals, and what is on disk after failures and SIGKILL."""

import errno
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import isthmus
from isthmus import FileFormatError, IsthmusError, Run, _folders, _provenance, files, runs
from isthmus._inside import in_use
from isthmus.runs import FOLDER, Outcome, configuration_key, provenance

PNG = b"\x89PNG not really"


def make(value=1.0, size=4):
    return Run(
        "E-test",
        {"value": value, "depths": (2, 4), "name": "é[red]"},
        {"x": np.full((size, 3), value), "mask": np.array([True, False]), "empty": np.zeros((0, 2))},
        [Outcome("a", "agrees", value, 1), Outcome("b", "differs", np.float32(2.0), 1, "stated otherwise")],
        provenance(seed=3, seconds=0.5, command=["reproduce", "E-test"]),
        {"figure.png": PNG},
    )


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_round_trip(tmp_path):
    run = make(np.pi)
    assert run.write(tmp_path / "deep" / "run") == tmp_path / "deep" / "run"
    again = Run.read(tmp_path / "deep" / "run")
    assert again.experiment == run.experiment
    assert dict(again.parameters) == dict(run.parameters) == {"value": np.pi, "depths": [2, 4], "name": "é[red]"}
    assert again.outcomes == run.outcomes
    assert dict(again.provenance) == dict(run.provenance)
    assert dict(again.figures) == {"figure.png": PNG}
    assert again.key == run.key
    assert again.status == "differs"
    assert set(again.arrays) == {"x", "mask", "empty"}
    for name, array in run.arrays.items():
        assert again.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(again.arrays[name], array)
    assert leftovers(tmp_path / "deep") == []


def test_folder_holds_the_named_files(tmp_path):
    make().write(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.json", "arrays.safetensors", "verdicts.json", "figure.png", "provenance.json"}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["schema"], config["experiment"]) == (runs.SCHEMA, "E-test")
    assert isinstance(json.loads((tmp_path / "run" / "verdicts.json").read_text()), list)


def test_key_depends_on_the_configuration_only():
    assert make(1.0).key == make(1.0, size=9).key != make(2.0).key
    assert configuration_key("E", {"a": 1, "b": 2}) == configuration_key("E", {"b": 2, "a": 1})
    assert configuration_key("E", {"a": 1}) != configuration_key("F", {"a": 1})
    # Fixed for ever: sweeps find their finished runs by it.
    assert configuration_key("E-none", {"depth": 3}) == "31b435197fa7"


def test_run_is_frozen():
    run = make()
    with pytest.raises(AttributeError):
        run.experiment = "other"
    with pytest.raises(TypeError):
        run.parameters["value"] = 2
    with pytest.raises(ValueError, match="read-only"):
        run.arrays["x"][0, 0] = 5
    assert repr(run) == f"Run('E-test', key='{run.key}', differs, 3 arrays, 1 figures)"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((), "undetermined"),
        (("agrees",), "agrees"),
        (("agrees", "differs", "agrees"), "differs"),
        (("fails", "differs"), "fails"),
        (("agrees", "undetermined"), "undetermined"),
        (("undetermined", "differs"), "differs"),
    ],
)
def test_status_is_the_worst(statuses, expected):
    outcomes = [Outcome("o", status, reason="why") for status in statuses]
    assert Run("E", {}, outcomes=outcomes).status == expected


def test_conditions_do_not_count():
    unmet = Outcome("converged", "not met", kind="condition")
    stated = Outcome("stated", "agrees", quote="the words", where="§1")
    run = Run("E", {}, outcomes=[unmet, stated])
    assert run.status == "agrees" and run.statements == (stated,) and run.conditions == (unmet,)
    assert Run("E", {}, outcomes=[unmet]).status == "undetermined"


def test_outcome_checks():
    with pytest.raises(IsthmusError, match="'agrees', 'undetermined', 'differs', 'fails'"):
        Outcome("o", "holds")
    with pytest.raises(IsthmusError, match="'met', 'not met'"):
        Outcome("o", "differs", reason="why", kind="condition")
    with pytest.raises(IsthmusError, match="'statement', 'condition'"):
        Outcome("o", "agrees", kind="remark")
    for status in ("differs", "undetermined"):
        with pytest.raises(IsthmusError, match="reason"):
            Outcome("o", status, 1, 2, "  ")
    with pytest.raises(IsthmusError, match="number, text or None"):
        Outcome("o", "agrees", [1, 2])
    assert Outcome("o", "fails", float("nan"), float("inf")).value == "nan"
    assert Outcome("o", "fails", torch.tensor(2.0), np.int64(3)) == Outcome("o", "fails", 2.0, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"experiment": ""},
        {"parameters": {"x": float("nan")}},
        {"parameters": {"x": object()}},
        {"arrays": {"x": np.array(["text"])}},
        {"arrays": {"x": np.array([1j])}},
        {"outcomes": ["agrees"]},
        {"figures": {"../evil.png": b""}},
        {"figures": {"figure.png": "text"}},
    ],
)
def test_wrong_content_is_refused(wrong):
    with pytest.raises(IsthmusError):
        Run(**{"experiment": "E", "parameters": {}, **wrong})


def test_existing_run_is_replaced(tmp_path):
    make(1.0).write(tmp_path / "run")
    make(2.0).write(tmp_path / "run")
    assert Run.read(tmp_path / "run").parameters["value"] == 2.0
    assert leftovers(tmp_path) == []


def test_empty_folder_and_symbolic_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for value in (1.0, 2.0):
        make(value).write(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert Run.read(tmp_path / "real").parameters["value"] == value


def test_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(IsthmusError, match=r"chapter\.tex"):
        make().write(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with pytest.raises(IsthmusError, match="a file"):
        make().write(tmp_path / "file")
    with pytest.raises(IsthmusError, match="can be replaced"):
        make().write("/")
    assert leftovers(tmp_path) == []


def test_run_with_the_users_own_file_is_refused(tmp_path):
    make(1.0).write(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(IsthmusError, match=r"notes\.txt"):
        make(2.0).write(tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    # A file of the user's does not make a Run unreadable.
    assert Run.read(tmp_path / "run").parameters["value"] == 1.0


def test_a_lone_config_of_another_program_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(IsthmusError, match="foreign"):
        FOLDER.check(tmp_path)


@pytest.mark.parametrize("step", ["write_json", "write_tensors", "write_atomic"])
@pytest.mark.parametrize("old", [False, True])
def test_failure_while_assembling_keeps_the_old(tmp_path, monkeypatch, step, old):
    if old:
        make(1.0).write(tmp_path / "run")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, step, full)
    with pytest.raises(IsthmusError, match="No space left"):
        make(2.0).write(tmp_path / "run")
    monkeypatch.undo()
    if old:
        assert Run.read(tmp_path / "run").parameters["value"] == 1.0
    assert (tmp_path / "run").exists() == old
    assert leftovers(tmp_path) == []


def test_without_exchange_of_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(_folders, "exchange", lambda place, first, second: False)
    for value in (1.0, 2.0, 3.0):
        make(value).write(tmp_path / "run")
        assert Run.read(tmp_path / "run").parameters["value"] == value
    assert leftovers(tmp_path) == []


def test_killed_between_the_two_renames(tmp_path):
    make(1.0).write(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / _folders.previous("run"))
    assert Run.read(tmp_path / "run").parameters["value"] == 1.0
    make(2.0).write(tmp_path / "run")
    assert Run.read(tmp_path / "run").parameters["value"] == 2.0
    assert leftovers(tmp_path) == []


def test_second_rename_fails(tmp_path, monkeypatch):
    make(1.0).write(tmp_path / "run")
    monkeypatch.setattr(_folders, "exchange", lambda place, first, second: False)
    replace, tried = os.replace, []

    def failing(source, target, **where):
        if target == "run" and source.endswith(".tmp") and (tried or tried.append(1)):
            raise OSError(errno.EIO, "Input/output error")
        return replace(source, target, **where)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(IsthmusError, match="Input/output"):
        make(2.0).write(tmp_path / "run")
    assert Run.read(tmp_path / "run").parameters["value"] == 1.0


def test_remains_of_killed_processes_are_swept(tmp_path):
    left, used = tmp_path / ".run.00aa.tmp", tmp_path / ".run.00bb.tmp"
    for folder in (left, used):
        folder.mkdir()
    descriptor = os.open(used, os.O_RDONLY)
    # As a living process does with the folder that it assembles; the lock ends with the process.
    assert in_use(descriptor)
    make().write(tmp_path / "run")
    assert not left.exists()
    assert used.exists()
    os.close(descriptor)
    make().write(tmp_path / "run")
    assert not used.exists()


def _damage_json(folder, name, change):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def test_runs_of_the_first_schema_are_read(tmp_path):
    """Its outcomes had neither kind nor quote: all of them count as statements."""
    make().write(tmp_path / "run")
    _damage_json(tmp_path / "run", "config.json", lambda config: config.update(schema=1))
    new = ("kind", "quote", "where")
    _damage_json(tmp_path / "run", "verdicts.json", lambda listed: [o.pop(key) for o in listed for key in new])
    digests = {name: runs._digest(tmp_path / "run" / name) for name in ("config.json", "verdicts.json")}
    _damage_json(tmp_path / "run", "provenance.json", lambda source: source["sha256"].update(digests))
    again = Run.read(tmp_path / "run")
    assert again.outcomes == make().outcomes and again.status == "differs"
    # A mixture of the two is neither.
    _damage_json(tmp_path / "run", "config.json", lambda config: config.update(schema=2))
    digest = {"config.json": runs._digest(tmp_path / "run" / "config.json")}
    _damage_json(tmp_path / "run", "provenance.json", lambda source: source["sha256"].update(digest))
    with pytest.raises(FileFormatError, match="list of outcomes"):
        Run.read(tmp_path / "run")


@pytest.mark.parametrize("name", ["config.json", "arrays.safetensors", "verdicts.json", "provenance.json"])
def test_missing_or_damaged_files_are_named(tmp_path, name):
    make().write(tmp_path / "run")
    content = (tmp_path / "run" / name).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"\x00" * 50, b"[" * 100_000, None):
        if damaged is None:
            (tmp_path / "run" / name).unlink()
        else:
            (tmp_path / "run" / name).write_bytes(damaged)
        with pytest.raises(FileFormatError, match=name) as caught:
            Run.read(tmp_path / "run")
        assert len(str(caught.value)) < 1500


def test_unknown_schema_foreign_figure_and_size(tmp_path):
    make().write(tmp_path / "run")
    with pytest.raises(isthmus.DataError, match="at most 10 bytes"):
        Run.read(tmp_path / "run", max_bytes=10)
    (tmp_path / "run" / "figure.svg").write_text("<svg/>")
    with pytest.raises(FileFormatError, match=r"listed in provenance\.json"):
        Run.read(tmp_path / "run")
    _damage_json(tmp_path / "run", "config.json", lambda config: config.update(schema=99))
    with pytest.raises(FileFormatError, match="`schema` must be among 1, 2. Got 99"):
        Run.read(tmp_path / "run")
    with pytest.raises(FileFormatError, match="no such folder"):
        Run.read(tmp_path / "absent")


def test_files_of_two_runs_are_not_mixed(tmp_path):
    make(1.0).write(tmp_path / "one")
    make(2.0).write(tmp_path / "two")
    shutil.copy(tmp_path / "two" / "arrays.safetensors", tmp_path / "one" / "arrays.safetensors")
    with pytest.raises(FileFormatError, match="SHA-256"):
        Run.read(tmp_path / "one")


def test_replaced_while_it_is_read(tmp_path, monkeypatch):
    make(1.0).write(tmp_path / "run")
    original, calls = files.read_tensors, []

    def slow(path, **options):
        if not calls:
            make(2.0).write(tmp_path / "run")
        calls.append(path)
        return original(path, **options)

    monkeypatch.setattr(files, "read_tensors", slow)
    run = Run.read(tmp_path / "run")
    assert run.arrays["x"][0, 0] == run.parameters["value"] == 2.0


def test_provenance_fields(monkeypatch):
    home = Path("~").expanduser()
    found = provenance(seed=7, seconds=1.5, command=["reproduce", f"--out={home}/x"], started=0.0)
    assert found["seed"] == 7
    assert found["started"] == "1970-01-01T00:00:00+00:00"
    assert found["command"] == ["reproduce", "--out=~/x"]
    assert found["threads"] == torch.get_num_threads()
    assert {"torch", "numpy", "safetensors"} <= set(found["versions"])
    assert found["isthmus"] == isthmus.__version__
    assert provenance()["commit"] == found["commit"]
    # Asked once for a process: without git it must do all the same.
    _provenance._commit.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert provenance()["commit"] is None
    _provenance._commit.cache_clear()
    json.dumps(found, allow_nan=False)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_provenance_of_a_checkout(tmp_path, monkeypatch):
    package = tmp_path / "repo" / "src" / "isthmus"
    package.mkdir(parents=True)
    source = Path(isthmus.__file__).parent
    for name in ("__init__.py", "_errors.py", "_provenance.py"):
        shutil.copy(source / name, package / name)
    # A module knows where its file lies: this one says where it comes from, not where the package does.
    spec = importlib.util.spec_from_file_location("copied_provenance", package / "_provenance.py")
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)

    def git(*arguments):
        plain = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(tmp_path / "repo"), *identity, *arguments]
        return subprocess.run(command, env=plain, check=True, capture_output=True, text=True).stdout.strip()

    def ask():
        with monkeypatch.context() as inside:
            inside.setenv("GIT_DIR", "/nowhere")
            copied._commit.cache_clear()
            found = copied.provenance()
        return [found["commit"], found["dirty"]]

    git("init", "-q")
    (tmp_path / "repo" / ".gitignore").write_text("__pycache__/\n")
    (tmp_path / "repo" / "other.txt").write_text("x")
    git("add", "other.txt", ".gitignore")
    git("commit", "-q", "-m", "somebody else's repository")
    # Inside a repository that does not track the package, as a virtual environment is.
    assert ask() == [None, None]
    git("add", "src")
    git("commit", "-q", "-m", "isthmus")
    assert ask() == [git("rev-parse", "HEAD"), False]
    (package / "new.py").write_text("x = 1\n")
    assert ask() == [git("rev-parse", "HEAD"), True]


WRITER = """
    import sys, itertools, numpy as np
    from isthmus.runs import Run, Outcome
    folder = sys.argv[1]
    print("ready", flush=True)
    for i in itertools.count():
        value = float(i)
        arrays = {"x": np.full((200, 50), value)}
        Run("E-kill", {"value": value}, arrays, [Outcome("o", "agrees", value, value)]).write(folder)
        print(i, flush=True)
"""


def _kill_once(folder, rng):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        time.sleep(rng.uniform(0.0, 0.5))
    finally:
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()
        process.stdout.close()
        process.wait()
    return int(said[-1]) if said else -1


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_sigkill_leaves_a_complete_run(tmp_path, kills):
    rng = random.Random(kills)
    for _ in range(kills):
        last = _kill_once(tmp_path / "run", rng)
        if last < 0 and not (tmp_path / "run").exists():
            continue
        run = Run.read(tmp_path / "run")
        assert np.all(run.arrays["x"] == run.parameters["value"])
        # What was reported as written is there, or the one after it.
        assert last < 0 or run.parameters["value"] in (last, last + 1)
