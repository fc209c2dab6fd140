"""The command line: exit codes, purity of --json, light help, hostile text."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import isthmus
from isthmus import Run, cli, experiments
from isthmus.experiments.bottleneck2023._linear_expansion import LinearExpansion
from isthmus.runs import STATUSES, Outcome
from quick_runs import Here


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(capsys, *arguments):
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def shell(*arguments, **options):
    command = [sys.executable, "-m", "isthmus", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **options)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--help",), ("--version",), *[(verb, "-h") for verb in ("demo", "discover", "predict", "reproduce")]],
)
def test_help_has_an_example_and_imports_nothing_heavy(arguments):
    code = """
        import sys
        from isthmus.cli import main
        code = main(sys.argv[1:])
        heavy = {"torch", "numpy", "scipy", "pandas", "matplotlib", "safetensors"} & set(sys.modules)
        print(sorted(heavy), file=sys.stderr)
        raise SystemExit(code)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    if arguments == ("--version",):
        assert done.stdout.strip() == f"isthmus {isthmus.__version__}"
    else:
        assert re.search(r"Examples?: +isthmus \w+", done.stdout)


def test_every_command_has_an_example():
    for command in cli.app.registered_commands:
        assert command.callback is not None
        assert f"isthmus {command.name}" in (command.epilog or "")


def test_reproduce_writes_a_run(tmp_path, capsys):
    code, out, err = call(capsys, "reproduce", "E-linear", "--quick")
    assert code == 0
    assert err == ""
    assert "agrees" in out
    run = Run.read(tmp_path / "runs" / "E-linear-quick")
    assert run.status == "agrees"
    assert run.key == LinearExpansion.quick().key
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["E-linear-quick"]


def test_changed_parameters_go_to_their_own_folder(tmp_path, capsys):
    settings = ["--quick", "--set", "seed=4", "--set", "depths=2,4,8,16,32,64"]
    code, out, _ = call(capsys, "reproduce", "E-linear", *settings, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["folder"].endswith(f"E-linear-quick-{document['key']}")
    assert document["parameters"]["depths"] == [2, 4, 8, 16, 32, 64]
    assert Run.read(tmp_path / document["folder"]).parameters["seed"] == 4


def test_reproduce_json_is_one_document_from_the_shell(tmp_path):
    done = shell("reproduce", "E-linear", "--quick", "--json", "--out", "a b/[red]", cwd=tmp_path)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["status"] == "agrees"
    assert len(document["outcomes"]) == 5
    run = Run.read(tmp_path / "a b" / "[red]")
    assert run.provenance["command"] == ["reproduce", "E-linear", "--quick", "--json", "--out", "a b/[red]"]


def test_list(capsys):
    code, out, _ = call(capsys, "reproduce", "--list")
    assert code == 0
    assert "E-linear" in out
    code, out, _ = call(capsys, "reproduce", "--list", "--json")
    (linear,) = [one for one in json.loads(out) if one["id"] == "E-linear"]
    assert {"title", "paper", "where", "convention", "quick_seconds", "parameters"} <= set(linear)
    assert "depths" in [item["name"] for item in linear["parameters"]]
    code, out, _ = call(capsys, "reproduce", "E-linear", "--list")
    assert "singular_values" in out
    assert "our choice" in out


class Rigged(LinearExpansion):
    """Says what the test wants it to say."""

    id = "E-rigged"
    title = "[red]\x1b[2Jboo[/red]\u202e"
    said = ("agrees",)
    error = None

    def compute(self, progress):
        if self.error is not None:
            raise self.error
        print("a stray line on stdout")
        return {}

    def outcomes(self, arrays):
        return [Outcome("[bold]name\x1b]0;title\x07", status, 1, 1, "why\x9b") for status in self.said]

    def plot(self, arrays, figure):
        pass


@pytest.fixture
def rigged(monkeypatch):
    kind = type("Rigged", (Rigged,), {})
    monkeypatch.setattr(experiments, "find_experiment", lambda name: kind)
    return kind


@pytest.mark.parametrize(
    ("said", "code", "quick_code"),
    [
        (("agrees",), 0, 0),
        (("agrees", "differs"), 0, 0),
        # A quick variant may be too small to test a statement.
        (("agrees", "undetermined"), 1, 0),
        (("undetermined", "differs"), 0, 0),
        (("agrees", "fails", "differs"), 1, 1),
        ((), 1, 0),
    ],
)
def test_exit_code_follows_the_worst_outcome(rigged, capsys, said, code, quick_code):
    rigged.said = said
    assert call(capsys, "reproduce", "E-rigged")[0] == code
    found, out, err = call(capsys, "reproduce", "E-rigged", "--quick", "--json")
    assert found == quick_code
    assert json.loads(out)["status"] == (said and max(said, key=STATUSES.index) or "undetermined")
    assert "stray" in err


def test_hostile_text_is_shown_as_escapes(rigged, capsys):
    rigged.said = ("differs",)
    _, out, err = call(capsys, "reproduce", "E-rigged", "--quick")
    assert "[red]" in out
    assert "[bold]name" in out
    assert not set("\x1b\x07\x9b\u202e") & set(out + err)
    for arguments in (["\x1b[2J[red]"], ["reproduce", "x\x1b[2J"], ["reproduce", "E", "--\x1b[2J"]):
        code, out, err = call(capsys, *arguments)
        assert "\x1b" not in out + err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (isthmus.IsthmusError("wrong argument"), 2),
        (isthmus.DataError("wrong data"), 3),
        (isthmus.FileFormatError("wrong file"), 3),
        (OSError(28, "No space left on device"), 3),
        (RuntimeError("a bug\nof two lines"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_are_short_and_debug_shows_the_traceback(rigged, capsys, error, code):
    rigged.error = error
    found, out, err = call(capsys, "reproduce", "E-rigged", "--quick")
    assert (found, out) == (code, "")
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2
    assert (str(error).split("\n")[0] or "interrupted") in err
    found, out, _ = call(capsys, "reproduce", "E-rigged", "--quick", "--json")
    assert found == json.loads(out)["exit_code"] == code
    found, _, err = call(capsys, "--debug", "reproduce", "E-rigged", "--quick")
    assert found == code
    assert ("Traceback" in err) == (code != 130)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bogus"], "bogus"),
        (["reproduce"], "--list"),
        (["reproduce", "E-liner"], "'E-linear'"),
        (["reproduce", "E-linear", "--set", "dept=3"], "singular_values, depths"),
        (["reproduce", "E-linear", "--set", "seed"], "field=value"),
        (["reproduce", "E-linear", "--set", "seed=one"], "`seed` must be int"),
        (["reproduce", "E-linear", "--unknown"], "--unknown"),
        (["convert", "only-one"], "TARGET"),
        (["convert", "a", "b", "--slope", "x"], "--slope"),
    ],
)
def test_usage_errors(capsys, arguments, says):
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("error: ")


def test_refused_folder_is_noticed_before_computing(tmp_path, rigged, capsys):
    rigged.error = RuntimeError("computed")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    code, _, err = call(capsys, "reproduce", "E-rigged", "--out", "mine")
    assert code == 2
    assert "notes" in err


@pytest.mark.filterwarnings("default")
def test_convert(tmp_path, capsys):
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.save(module.state_dict(), "weights.pt")
    code, out, err = call(capsys, "convert", "weights.pt", "net.safetensors", "--json")
    assert code == 0
    assert json.loads(out)["dims"] == [3, 4, 2]
    assert err.count("warning: ") == 1
    net = isthmus.load("net.safetensors")
    X = torch.randn(5, 3)
    torch.testing.assert_close(net(X), module(X))
    code, out, _ = call(capsys, "convert", "weights.pt", "raw.safetensors", "--raw")
    assert code == 0
    assert "26 parameters" in out
    (tmp_path / "bad.pt").write_bytes(b"not a state_dict")
    code, out, err = call(capsys, "convert", "bad.pt", "x.safetensors", "--json")
    assert code == json.loads(out)["exit_code"] == 3
    assert "Traceback" not in err
    assert call(capsys, "convert", "absent.pt", "x.safetensors")[0] == 3


def test_runner_sees_the_same_app():
    result = CliRunner().invoke(cli.app, ["reproduce", "E-linear", "--list"])
    assert result.exit_code == 0
    assert "singular_values" in result.output


def test_interrupt_from_the_keyboard():
    code = """
        import signal, sys, time
        # A process in the background of a shell ignores Ctrl-C; this one must not.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from isthmus import cli
        from isthmus.experiments.bottleneck2023._linear_expansion import LinearExpansion
        def wait(self, progress):
            print("waiting", file=sys.stderr, flush=True)
            time.sleep(60)
        LinearExpansion.compute = wait
        raise SystemExit(cli.main(["reproduce", "E-linear", "--quick"]))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "interrupted\n")
    assert not os.path.lexists("runs/E-linear-quick")


def test_terminal_without_greek():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = shell("reproduce", "--list", env=environment)
    assert done.returncode == 0
    assert "E-linear" in done.stdout


def test_reader_that_goes_away():
    command = f"'{sys.executable}' -m isthmus --help | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_reproduce_all_runs_each_and_refuses_set(capsys, monkeypatch):
    found = {"E-linear": LinearExpansion}
    monkeypatch.setattr(experiments, "find_experiments", lambda: found)
    monkeypatch.setattr("isthmus.engines.local.Processes", lambda workers: Here())
    code, out, _ = call(capsys, "reproduce", "all", "--quick", "--out", "kept", "--json")
    assert code == 0
    (one,) = json.loads(out)
    assert one["folder"] == str(Path("kept/E-linear-quick"))
    assert Run.read("kept/E-linear-quick").status == "agrees"
    code, _, err = call(capsys, "reproduce", "all", "--set", "seed=1")
    assert code == 2
    assert "--set" in err


def test_flags_show_no_type_in_the_help(capsys):
    for verb in ([], ["reproduce"], ["discover"]):
        code, shown, _ = call(capsys, *verb, "--help")
        assert code == 0 and "--help" in shown and "<bool>" not in shown


@pytest.mark.parametrize(("words", "offered"), [("isthmus dis", ["discover"]), ("isthmus dem", ["demo"])])
def test_completion_in_a_shell(words, offered):
    asked = {"_ISTHMUS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "1"}
    done = shell(env={**os.environ, **asked}, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, offered), done.stderr
