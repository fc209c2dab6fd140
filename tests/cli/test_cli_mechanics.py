"""`isthmus mechanics` from the shell."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pandas as pd
import pytest

import isthmus
from isthmus.cli import main
from isthmus.cli.network import mechanics_command as command
from leaky_nets import critical, leaky
from tools import gaussian, random_net


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A critical network and its data as files, and its ridge."""
    monkeypatch.chdir(tmp_path)
    net, X, Y, ridge = critical(layers=8)
    isthmus.save(net, "leaky.safetensors")
    np.save("X.npy", X.numpy())
    np.save("Y.npy", Y.numpy())
    np.savez("both.npz", X=X.numpy(), Y=Y.numpy())
    return ["mechanics", "leaky.safetensors", "--data", "X.npy", "--y", "Y.npy", "--ridge", repr(ridge)]


def test_the_answer(given, capsys):
    assert main(given) == 0
    out = capsys.readouterr().out
    assert out.startswith("Conserved: −(2/L̃)𝓗 = 2.9")
    assert "cost of identity" in out and "residual" in out and "12 samples" in out
    # Eight steps, one in each line.
    assert sum(line.split()[:1] == [str(i)] for i in range(1, 9) for line in out.splitlines()) == 8


def test_json_is_what_report_takes(given, capsys, tmp_path):
    assert main([*given, "--json"]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["format"] == "isthmus.mechanics" and document["state"] == "conserved"
    (tmp_path / "mechanics.json").write_text(text, encoding="utf-8")
    assert main(["report", "mechanics.json", "--out", "page.html", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["subject"] == "Mechanics" and told["verdict"] == "conserved"
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Energies along the path" in page and len(page) < 10**7


def test_a_report(given, capsys, tmp_path):
    assert main([*given, "--out", "mechanics.html"]) == 0
    assert "Every step" in (tmp_path / "mechanics.html").read_text(encoding="utf-8")
    assert "look at it: mechanics.html" in capsys.readouterr().out


def test_one_file_of_both(given, capsys):
    assert main([*given[:2], "--data", "both.npz", *given[6:]]) == 0
    assert "Conserved" in capsys.readouterr().out


def test_tables_with_decimal_commas(given, capsys):
    assert main([*given, "--json"]) == 0
    wanted = capsys.readouterr().out
    for name in "XY":
        table = pd.DataFrame(np.load(f"{name}.npy")).add_prefix(name)
        table["id"] = range(len(table))
        table = table if name == "X" else table.drop(columns="id")
        table.to_csv(f"{name}.csv", index=False, sep=";", decimal=",", float_format="%.17g")
    command = [*given[:3], "X.csv", "--y", "Y.csv", *given[6:], "--json"]
    assert main([*command, "--exclude", "id", "--decimal", ","]) == 0
    assert capsys.readouterr().out == wanted
    assert main([*given, "--exclude", "id"]) == 2
    assert "--exclude needs a table for --data" in capsys.readouterr().err


def test_anything_but_conserved_is_exit_code_1(given, capsys):
    assert main([*given[:-1], "1.0"]) == 1
    assert capsys.readouterr().out.startswith("Not yet critical")
    assert main([*given, "--tolerance", "1e-6"]) == 1
    assert capsys.readouterr().out.startswith("Drifting")
    assert main([*given[:-1], "0"]) == 1
    assert "Mechanics not applicable: ridge is 0" in capsys.readouterr().out


def test_classes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    isthmus.save(leaky(layers=60), "net.safetensors")
    np.save("X.npy", gaussian(9, 4).numpy())
    np.save("Y.npy", np.arange(9) % 3)
    arguments = ["mechanics", "net.safetensors", "--data", "X.npy", "--y", "Y.npy", "--ridge", "0.1"]
    assert main([*arguments, "--loss", "cross_entropy"]) == 1
    assert "40 of 60 steps" in capsys.readouterr().out


def test_mistakes(given, capsys, tmp_path):
    assert main(given[:4] + given[6:]) == 2
    assert "--y is needed" in capsys.readouterr().err
    assert main(given[:-2]) == 2
    isthmus.save(random_net([6, 5, 6]), "plain.safetensors")
    assert main(["mechanics", "plain.safetensors", *given[2:]]) == 2
    assert "must be a LeakyResNet. Got FullyConnected" in capsys.readouterr().err
    np.save("few.npy", np.zeros((3, 6)))
    assert main([*given[:5], "few.npy", *given[6:]]) == 3
    assert main(["mechanics", "none.safetensors", *given[2:]]) == 3
    (tmp_path / "bad.json").write_text('{"format": "isthmus.mechanics", "version": 1}', encoding="utf-8")
    assert main(["report", "bad.json"]) == 3
    assert "every field must be there" in capsys.readouterr().err


def test_defaults_are_those_of_the_function():
    ours, theirs = (inspect.signature(one).parameters for one in (command, isthmus.mechanics))
    for name in ("gamma_share", "tolerance", "kinks", "loss"):
        assert ours[name].default == theirs[name].default


def test_diagnose_tells_it_too(given, capsys):
    arguments = ["diagnose", *given[1:], "--out", "found", "--json"]
    assert main(arguments) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    assert document["mechanics"]["state"] == "conserved"
    assert main(["report", "found", "--out", "again.html"]) == 0


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("leaky.safetensors", "--out must be another file than MODEL"),
        ("X.npy", "--out must be another file than --data"),
        ("Y.npy", "--out must be another file than --y"),
        ("both.npz", "--out must be a new file or a report"),
    ],
)
def test_nothing_of_the_user_is_overwritten(given, capsys, tmp_path, out, message):
    before = (tmp_path / out).read_bytes()
    assert main([*given, "--out", out]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (tmp_path / out).read_bytes() == before


def test_classes_that_the_outputs_do_not_have(given, capsys):
    """Bad data, and no bug: in every verb that computes the cost."""
    np.save("labels.npy", np.full(len(np.load("X.npy")), 99))
    arguments = [*given[1:5], "labels.npy", *given[6:], "--loss", "cross_entropy"]
    isthmus.save(random_net([np.load("X.npy").shape[1], 9, 4]), "net.safetensors")
    for verb, model in (("mechanics", given[1]), ("diagnose", given[1]), ("diagnose", "net.safetensors")):
        assert main([verb, model, *arguments[1:]]) == 3
        assert "class indices must be in [0, " in capsys.readouterr().err
    assert main(["verify", "net.safetensors", *arguments[1:], "--claim", "C-rank-9"]) == 0
    assert "class indices must be in [0, 3]" in capsys.readouterr().out
