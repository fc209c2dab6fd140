"""`isthmus compress` from the shell: the smaller file, the answer in words, nothing lost when something is wrong."""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus
from isthmus import FullyConnected, Standardized
from isthmus.cli import main
from isthmus.cli.network import compress_command as command
from isthmus.cli.network import network_in, print_certificate
from isthmus.compression import Certificate
from isthmus.discovery import Discovery
from isthmus.files import read_json
from leaky_nets import leaky
from tools import assert_close, gaussian, generator, random_net

DOCS = Path(__file__).resolve().parents[2] / "docs"


def doubled():
    """Every hidden neuron twice: 8 of 16 can go, everywhere."""
    W, b = gaussian(8, 5, seed=1), gaussian(8, 1, seed=2)[:, 0]
    V, c = gaussian(3, 8, seed=3), gaussian(3, 1, seed=4)[:, 0]
    return FullyConnected.from_weights([torch.cat([W, 2 * W]), torch.cat([V, V], 1)], [torch.cat([b, 2 * b]), c])


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A network that is larger than it need be, its data, and where the smaller one goes."""
    monkeypatch.chdir(tmp_path)
    isthmus.save(doubled(), "net.safetensors")
    np.save("X.npy", gaussian(40, 5).numpy())
    np.save("X2.npy", gaussian(30, 5, seed=9).numpy())
    return ["compress", "net.safetensors", "--out", "small.safetensors"]


def same(one, other, X):
    with torch.no_grad():
        assert_close(one(X), other(X))


def test_the_answer_and_the_file(given, capsys):
    before = Path("net.safetensors").read_bytes()
    assert main(given) == 0
    out = capsys.readouterr().out
    assert out.startswith("16 → 8 neurons, 147 → 75 parameters (1.96 times fewer); the same function everywhere")
    assert "8 on one ray" in out and "wrote small.safetensors: Sequential 5 → 8 → 3" in out
    assert re.search(r"parameters +147 +75", out) and re.search(r"bytes +1,176 +600", out)
    assert "equal: everywhere; largest deviation" in out and "random points" in out
    assert Path("net.safetensors").read_bytes() == before
    small = isthmus.load("small.safetensors")
    assert [type(layer).__name__ for layer in small] == ["Linear", "ReLU", "Linear"] and small[0].out_features == 8
    same(small, doubled(), gaussian(25, 5, seed=7))


def test_data_tolerance_and_check(given, capsys):
    arguments = [*given, "--data", "X.npy", "--tolerance", "0.2", "--check", "X2.npy", "--json"]
    assert main(arguments) == 0
    says = Certificate.from_dict(json.loads(capsys.readouterr().out))
    assert says.domain == "within a tolerance on the data" and says.points == 40 and says.deviation <= 0.2
    small, X = isthmus.load("small.safetensors"), torch.from_numpy(np.load("X2.npy"))
    with torch.no_grad():
        Y, Z = doubled()(X), small(X)
    assert_close(says.elsewhere, float((Y - Z).abs().max() / Y.abs().max()))
    assert says.parameters_after == sum(p.numel() for p in small.parameters()) < 75


def test_decimal_commas_and_columns_left_out(given, capsys):
    def answer(*more):
        assert main([*given, *more, "--tolerance", "0.2", "--json"]) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)
        return {name: value for name, value in found.items() if not name.startswith("latency")}

    wanted = answer("--data", "X.npy", "--check", "X2.npy")
    for name in ("X", "X2"):
        table = pd.DataFrame(np.load(f"{name}.npy")).add_prefix("x")
        table.insert(0, "id", range(len(table)))
        table.to_csv(f"{name}.csv", index=False, sep=";", decimal=",", float_format="%.17g")
    reading = ["--exclude", "id", "--decimal", ","]
    assert answer("--data", "X.csv", "--check", "X2.csv", *reading) == wanted
    assert answer("--data", "X.npy", "--check", "X2.csv", *reading) == wanted
    assert main([*given, "--data", "X.csv", "--exclude", "id"]) == 3
    assert "add --decimal ," in capsys.readouterr().err
    assert main([*given, "--data", "X.csv", "--exclude", "name", "--decimal", ","]) == 3
    assert "`exclude` must name" in capsys.readouterr().err
    for data in ([], ["--data", "X.npy"]):
        assert main([*given, *data, "--exclude", "id"]) == 2
        assert "--exclude needs a table for --data or --check" in capsys.readouterr().err
        assert main([*given, *data, "--decimal", ","]) == 2
        assert "--decimal needs a text file for --data or --check" in capsys.readouterr().err


def test_the_options_reach_the_function(given, capsys):
    isthmus.save(random_net([5, 6, 3], seed=2), "lean.safetensors")
    norms = []
    for more in (["--no-rebalance"], []):
        assert main(["compress", "lean.safetensors", *given[2:], *more, "--json"]) == 0
        norms.append(json.loads(capsys.readouterr().out)["norm_after"])
    assert norms[1] < 0.99 * norms[0]
    # A constant neuron whose bias is larger than the neuron: only with a larger norm can it go.
    W = torch.zeros(2, 1, dtype=torch.float64)
    W[1] = 1.0
    V = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    big = torch.tensor([1.0, 0.0], dtype=torch.float64)
    net = FullyConnected.from_weights([W, V], [big, torch.tensor([10.0], dtype=torch.float64)])
    isthmus.save(net, "constant.safetensors")
    widths = []
    for more in ([], ["--allow-larger-norm"]):
        assert main(["compress", "constant.safetensors", *given[2:], *more, "--json"]) == 0
        widths.append(json.loads(capsys.readouterr().out)["neurons_after"])
    assert widths == [2, 1]


def test_nothing_to_remove_is_an_answer(given, capsys):
    net = random_net([5, 6, 3], seed=2)
    isthmus.save(net, "lean.safetensors")
    assert main(["compress", "lean.safetensors", *given[2:], "--no-rebalance"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Nothing was found that could go") and "equal: unchanged, bit for bit" in out
    assert all(
        torch.equal(p, q)
        for p, q in zip(isthmus.load("small.safetensors").parameters(), net.to_torch().parameters(), strict=True)
    )


def test_a_scaled_network_goes_in_again(given, capsys):
    Ws, bs = [gaussian(4, 5), gaussian(2, 4, seed=1)], [None, gaussian(2, 1)[:, 0]]
    net = Standardized(
        FullyConnected.from_weights(Ws, bs, linear=[2]),
        shift=1 + gaussian(1, 5)[0],
        scale=torch.rand(5, generator=generator(1), dtype=torch.float64) + 0.5,
    )
    isthmus.save(net, "scaled.safetensors")
    assert main(["compress", "scaled.safetensors", *given[2:], "--json"]) == 0
    small = isthmus.load("small.safetensors")
    assert type(small[0]) is torch.nn.BatchNorm1d and torch.equal(small[0].running_mean, net.shift)
    same(small, net, gaussian(20, 5, seed=3))
    assert json.loads(capsys.readouterr().out)["format"] == "isthmus.compression"
    assert main(["compress", "small.safetensors", "--out", "again.safetensors"]) == 0
    assert "wrote again.safetensors: Sequential 5 → 4 → 2" in capsys.readouterr().out


def test_a_discovery_is_one_network_behind_its_scaling():
    """h∘g in the units of whoever has the inputs, with a linear waist between the two."""
    g, h = random_net([5, 6, 2], 0.1), random_net([2, 7, 3], 0.1, seed=1)
    found = Discovery.__new__(Discovery)
    parts = {"rank": 2, "encoder": Standardized(g, 1 + gaussian(1, 5)[0], torch.full((5,), 2.0).double()), "decoder": h}
    for name, value in {**parts, "fill": None, "settings": {}}.items():
        object.__setattr__(found, name, value)
    net, notes = network_in(found)
    assert type(net) is Standardized and net.plain_layers().slopes == (0.1, 1.0, 0.1) and len(notes) == 1
    X = gaussian(9, 5, seed=3)
    assert_close(net(X), h(parts["encoder"](X)))
    object.__setattr__(found, "settings", {"limits": {"x0": [0.0, 1.0]}})
    assert len(network_in(found)[1]) == 2
    object.__setattr__(found, "rank", 0)
    with pytest.raises(isthmus.IsthmusError, match="rank above 0"):
        network_in(found)


def test_the_json_and_the_report(given, capsys, tmp_path):
    assert main([*given, "--report", "page.html", "--json"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "certificate.json").write_text(text, encoding="utf-8")
    assert main(["report", "certificate.json", "--out", "again.html", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["subject"] == "Compression" and told["verdict"] == "everywhere"
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    assert main([*given, "--report", "page.html"]) == 0
    assert "look at it: page.html" in capsys.readouterr().out


def test_what_was_left_alone_is_told(capsys):
    net = torch.nn.Sequential(torch.nn.GroupNorm(1, 2), torch.nn.Flatten(), torch.nn.Linear(8, 4))
    print_certificate(isthmus.compress(net).certificate)
    assert "untouched: 0: GroupNorm is not" in capsys.readouterr().out
    wide = random_net([2] * 50)
    print_certificate(isthmus.compress(wide, rebalance=False).certificate)
    assert "40 of 48 layers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ([], 2, "Missing option '--out'"),
        (["--out", "net.safetensors"], 2, "--out must be another file than MODEL"),
        (["--out", "link.safetensors"], 2, "--out must be another file than MODEL"),
        (["--out", "X.npy", "--data", "X.npy"], 2, "--out must be another file than --data"),
        (["--out", "X2.npy", "--check", "X2.npy"], 2, "--out must be another file than --check"),
        (["--out", "a.html", "--report", "./a.html"], 2, "--report must be another file than --out"),
        (["--out", "none/small.safetensors"], 2, "folder that exists"),
        (["--out", "."], 2, "--out must be a file"),
        (["--out", "s", "--tolerance", "0.1"], 2, "--tolerance needs --data"),
        (["--out", "s", "--tolerance", "-1", "--data", "X.npy"], 2, "tolerance"),
        (["--out", "s", "--data", "few.npy"], 2, "must have 5 columns"),
        (["--out", "s", "--data", "none.npy"], 3, "no such file"),
        (["--out", "s", "--data", "nan.npy"], 3, "must be finite"),
    ],
)
def test_mistakes_cost_nothing(given, capsys, more, code, message):
    Path("link.safetensors").symlink_to("net.safetensors")
    np.save("few.npy", np.zeros((3, 2)))
    np.save("nan.npy", np.full((3, 5), np.nan))
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert main([*given[:2], *more]) == code
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_what_cannot_be_compressed_here(given, capsys):
    isthmus.save(leaky(), "leaky.safetensors")
    assert main(["compress", "leaky.safetensors", *given[2:]]) == 2
    assert "or a Discovery. Got a LeakyResNet" in capsys.readouterr().err
    torch.save(doubled().state_dict(), "weights.pt")
    assert main(["compress", "weights.pt", *given[2:]]) == 3
    assert main(["compress", "none.safetensors", *given[2:]]) == 3
    assert not Path("small.safetensors").exists()


def test_defaults_are_those_of_the_function():
    ours, theirs = (inspect.signature(one).parameters for one in (command, isthmus.compress))
    for name in ("tolerance", "check", "rebalance", "allow_larger_norm"):
        assert ours[name].default == theirs[name].default


def test_help_has_an_example(capsys):
    assert main(["compress", "--help"]) == 0
    assert "isthmus compress net.safetensors --out small.safetensors" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_the_page_has_the_numbers_of_the_script():
    page = (DOCS / "how_to_compress.md").read_text(encoding="utf-8")
    kept = read_json(DOCS / "figures" / "compress.json")["compressed"]
    rows = {cells[0]: cells for line in page.splitlines() if len(cells := line.strip("| ").split(" | ")) == 7}
    for name, found in kept.items():
        cells = rows[name]
        assert cells[1] == found["domain"]
        assert cells[2] == f"{found['neurons_before']} → {found['neurons_after']}"
        assert cells[3] == f"{found['parameters_before']:,} → {found['parameters_after']:,}"
        assert cells[4] == f"{found['deviation']:.1e}" and cells[5] == f"{found['elsewhere']:.1e}"
        assert cells[6] == f"{found['test_error']:.2g}"
    assert kept["within 0.01"]["sentence"] in page.replace("\n", " ")


PAGE = (DOCS / "how_to_compress.md").read_text(encoding="utf-8")
#: Code and what it prints, if that follows.
CODE = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, flags=re.DOTALL)


@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(CODE[0][0], "how_to_compress.md", "exec"), {})
    assert "times fewer" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"small.safetensors", "compression.html", "compression.png"}


def test_the_examples_of_real_modules_print_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    vars(module)["__name__"] = "page"
    assert len(CODE) == 3 and all(said for _, said in CODE[1:])
    for code, said in CODE[1:]:
        exec(compile(code, "how_to_compress.md", "exec"), vars(module))
        assert capsys.readouterr().out == said
