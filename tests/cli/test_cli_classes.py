"""`isthmus discover --classes` and `--autoencode`: answers, folders, predictions, errors."""

from __future__ import annotations

import functools
import html
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import isthmus
from isthmus import cli, discovery
from isthmus._live import LiveRecord
from isthmus.cli.base import UNDETERMINED
from isthmus.cli.discover import choose_labelled
from isthmus.plotting import style
from isthmus.problems import inverted_s_classes, noisy_curve

QUICK = ["--width", "12", "--depth", "4", "--replicas", "0"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = inverted_s_classes(classes=3, samples=90, seed=1)
    table = pd.DataFrame(data.X, columns=["x", "y"])
    table["kind"] = np.array(["red", "green", "blue"])[data.labels]
    table.to_csv("classes.csv", index=False)
    pd.DataFrame(noisy_curve(samples=80, noise=0.0).X, columns=["x", "y"]).to_csv("curve.csv", index=False)
    monkeypatch.setattr(discovery, "discover", functools.partial(discovery.discover, steps=4))
    monkeypatch.setattr(style, "render", lambda figure: b"\x89PNG" if figure.axes else b"")


def run(capsys, *arguments):
    code = cli.main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_classes_from_a_table(capsys, monkeypatch):
    told = []

    def record(path, **more):
        told.append(more["facts"])
        return LiveRecord(path, **more)

    monkeypatch.setattr("isthmus._live.LiveRecord", record)
    code, out, err = run(
        capsys, "discover", "classes.csv", "--classes", "kind", "--resolution", "0.01", "--out", "f", *QUICK
    )
    # So that a live page knows what errors are shares of.
    assert told == [{"resolution": 0.01, "loss": "cross_entropy"}]
    assert code in (0, UNDETERMINED), err
    assert "the 3 classes" in out.lower()
    assert "shares of the classes' entropy" in out
    document = json.loads(Path("f/discovery.json").read_text())
    assert document["outputs"] == ["blue", "green", "red"]
    assert document["inputs"] == ["x", "y"]
    assert document["settings"]["loss"] == "cross_entropy"
    assert document["data"]["classes"] == "kind"
    page = Path("f/report.html").read_text()
    assert "share of the entropy" in page
    assert "Errors are shares of the classes' entropy" in html.unescape(page)
    assert "share of the variance" not in page
    found = isthmus.load("f/model.safetensors")
    assert found.loss == "cross_entropy"
    code, out, _ = run(capsys, "predict", "f", "classes.csv", "--out", "p.csv")
    assert code == 0
    given = pd.read_csv("p.csv")
    assert list(given.columns) == ["class", "probability:blue", "probability:green", "probability:red"]
    P = given.iloc[:, 1:].to_numpy()
    assert np.allclose(P.sum(axis=1), 1.0)
    assert given["class"].tolist() == [["blue", "green", "red"][i] for i in P.argmax(axis=1)]
    assert np.allclose(P, found.probabilities(pd.read_csv("classes.csv")[["x", "y"]]))
    code, out, _ = run(capsys, "predict", "f", "classes.csv", "--json")
    assert json.loads(out)["values"][0][0] in ("blue", "green", "red")


def test_autoencode(capsys):
    code, out, err = run(capsys, "discover", "curve.csv", "--autoencode", "--units", "common", "--out", "a", *QUICK)
    assert code in (0, UNDETERMINED), err
    assert "describe" in out
    found = isthmus.load("a/model.safetensors")
    assert found.target_names == found.feature_names == ("x", "y")
    assert found.settings["units"] == "common"
    assert found.settings["autoencoder"] is True
    code, out, _ = run(capsys, "predict", "a", "curve.csv")
    assert code == 0
    assert out.splitlines()[0] == "x,y"


def test_one_question_at_a_time(capsys):
    for extra in (["--target", "x", "--classes", "kind"], ["--autoencode", "--classes", "kind"]):
        code, _, err = run(capsys, "discover", "classes.csv", *extra, *QUICK)
        assert code == 2
        assert "one of --target, --classes and --autoencode" in " ".join(err.split())
    code, _, err = run(capsys, "discover", "classes.csv", "--classes", "sort", *QUICK)
    assert code == 2
    assert "'kind'" in err
    code, _, err = run(capsys, "discover", "classes.csv", "--autoencode", *QUICK)
    assert code != 0
    assert "kind" in err


def test_rows_without_a_class():
    frame = pd.DataFrame({"x": [1.0, 2.0, np.nan, 4.0], "kind": [1, np.nan, 2, 2]})
    roles = {"targets": None, "features": None, "group": None, "time": None}
    chosen, labels = choose_labelled(frame, "kind", roles, "drop", "error")
    assert chosen.rows.tolist() == [0, 3]
    assert labels.tolist() == [1, 2]
    assert labels.dtype.kind == "i"
    assert any("dropped 1 rows without a class" in note for note in chosen.notes)
    filled, labels = choose_labelled(frame, "kind", roles, "median", "error")
    assert filled.rows.tolist() == [0, 2, 3]
    assert filled.X[:, 0].tolist() == [1.0, 2.5, 4.0]
    assert labels.tolist() == [1, 2, 2]


def test_numbers_are_no_classes(capsys):
    code, out, err = run(capsys, "discover", "curve.csv", "--classes", "x", *QUICK)
    assert (code, out) == (3, "")
    assert "--classes must name a column of labels. Got continuous numbers in 'x'. Use --target for numbers" in err
