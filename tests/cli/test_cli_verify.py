"""`isthmus verify` from the shell."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import isthmus
from isthmus.claims import CLAIMS
from isthmus.cli import main
from tools import gaussian, random_net


@pytest.fixture
def network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    isthmus.save(random_net([5, 9, 9, 4]), "net.safetensors")
    np.save("X.npy", gaussian(20, 5).numpy())
    np.save("Y.npy", gaussian(20, 4, seed=1).numpy())
    return ["verify", "net.safetensors", "--data", "X.npy"]


def test_the_list(capsys):
    assert main(["verify", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in listed] == list(CLAIMS)
    assert all(one["statement"] and one["assumes"] is not None and one["paper"] for one in listed)
    assert main(["verify", "--list", "--claim", "C-rank-1"]) == 0
    assert "C-rank-1" in capsys.readouterr().out


def test_a_network(network, capsys):
    assert main([*network, "--y", "Y.npy", "--ridge", "0.1", "--claim", "C-rank-*"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Of 15 claims")
    assert "holds" in out and "not applicable" in out and "margin" in out
    assert "you can supply:" in out and "known['truth']" in out and "Schatten bound" in out
    assert out.rstrip().splitlines()[-1].startswith("Its norm is")


def test_what_only_you_know(network, capsys):
    assert main([*network, "--y", "Y.npy", "--known", "noise=0.5", "--claim", "C-rank-10", "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["status"] == "holds trivially"
    np.save("T.npy", np.tile(np.eye(5)[:, :2], (20, 1, 1)))
    isthmus.save(random_net([5, 9, 5]), "auto.safetensors")
    known = ["--known", "tangents=T.npy", "--known", "rank=2", "--known", "independent=true"]
    assert main(["verify", "auto.safetensors", "--data", "X.npy", *known, "--claim", "C-bn-5", "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["cause"] == "network" and "f = id on Ω, or nearly: not met" in verdict["reason"]
    isthmus.save(random_net([5, 6, 4], bias=0.0, seed=1), "f.safetensors")
    isthmus.save(random_net([5, 6, 4], bias=0.0, seed=2), "g.safetensors")
    known = ["--known", "f=f.safetensors", "--known", "g=g.safetensors", "--known", "join=f+g"]
    assert main([*network, *known, "--claim", "C-bn-2", "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["status"] == "holds" and "f+g" in verdict["where"]


def test_the_rank_to_judge_at(network, capsys):
    assert main([*network, "--k", "1", "--claim", "C-bn-1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "k = 1" in document["verdicts"][0]["where"] and "rank-1 network" in document["closing"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--known", "noise"], "NAME=VALUE"),
        (["--known", "noice=1"], "noise"),
        (["--known", "tangents=no.npy"], "cannot be read as an array"),
        (["--k", "0"], "`k`"),
    ],
)
def test_mistakes_in_what_is_known(network, capsys, flags, message):
    assert main([*network, *flags]) != 0
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert main(["verify", "--k", "2"]) == 2


def test_the_table_fits_a_hundred_columns(network, monkeypatch, capsys):
    """On a terminal of that width, nothing cut off: every id, verdict, both sides and the margin in one line."""
    import sys

    from rich.console import Console

    from isthmus.cli import network as verify_module

    monkeypatch.setattr(
        verify_module,
        "console",
        lambda: Console(file=sys.stdout, width=100, highlight=False, markup=False, emoji=False),
    )
    assert main([*network, "--y", "Y.npy", "--ridge", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = [line for line in lines if line.startswith("C-") and "holds" in line]
    judged = isthmus.verify(isthmus.load("net.safetensors"), np.load("X.npy"), np.load("Y.npy"), ridge=0.1).judged
    assert len(rows) == len(judged)
    for row, verdict in zip(rows, judged):
        assert (
            row.startswith(verdict.claim) and verdict.status in row and row.rstrip().endswith(f"{verdict.margin:.3g}")
        )


def test_json_is_one_document(network, capsys):
    assert main([*network, "--claim", "C-bn-1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (verdict,) = document["verdicts"]
    assert verdict["id"] == "C-bn-1" and verdict["status"] == "holds" and verdict["lhs"] >= verdict["rhs"]


def test_a_table_with_decimal_commas(network, capsys):
    assert main([*network, "--claim", "C-bn-1", "--json"]) == 0
    wanted = capsys.readouterr().out
    table = pd.DataFrame(np.load("X.npy")).add_prefix("x").assign(id=range(20))
    table.to_csv("X.csv", index=False, sep=";", decimal=",", float_format="%.17g")
    reading = ["--exclude", "id", "--decimal", ","]
    assert main([*network[:3], "X.csv", "--claim", "C-bn-1", "--json", *reading]) == 0
    assert capsys.readouterr().out == wanted
    assert main(["verify", "--claim", "C-bn-1", "--decimal", ","]) == 2
    assert "--decimal needs a text file for --data" in capsys.readouterr().err


def test_samples(capsys):
    assert main(["verify", "--claim", "C-rank-9", "--claim", "C-bn-1*"]) == 0
    assert "each on its own sample" in capsys.readouterr().out


def test_a_failing_claim_is_exit_code_1(network, monkeypatch, capsys):
    monkeypatch.setattr("isthmus.claims.rank2023._norm_bounds._squares", lambda _: (1e-9, 3))
    assert main([*network, "--claim", "C-rank-1"]) == 1
    assert "wrong by" in capsys.readouterr().out


def test_mistakes(network, capsys):
    assert main(["verify", "net.safetensors"]) == 2
    assert main([*network, "--claim", "C-none"]) != 0
    np.save("wrong.npy", np.zeros((3, 7)))
    assert main(["verify", "net.safetensors", "--data", "wrong.npy"]) != 0
    assert "columns" in capsys.readouterr().err


def test_a_report(network, tmp_path, capsys):
    assert main([*network, "--claim", "C-bn-*", "--out", "theorems.html"]) == 0
    page = (tmp_path / "theorems.html").read_text(encoding="utf-8")
    assert "C-bn-6" in page and "not applicable" in page and len(page) < 10**7
    assert "look at it: theorems.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("net.safetensors", "--out must be another file than MODEL"),
        ("X.npy", "--out must be another file than --data"),
        ("Y.npy", "--out must be a new file or a report"),
    ],
)
def test_nothing_of_the_user_is_overwritten(network, capsys, tmp_path, out, message):
    before = (tmp_path / out).read_bytes()
    assert main([*network, "--claim", "C-bn-1", "--out", out]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (tmp_path / out).read_bytes() == before
