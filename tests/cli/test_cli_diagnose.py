"""`isthmus diagnose`: the answer, its folder and exit codes, a user's own class, and everything that is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import nn

import isthmus
from isthmus import cli, files
from isthmus.cli import diagnosis_folder
from isthmus.discovery import discover
from isthmus.plotting import style
from tools import gaussian, linear_net, three_part_net

MODULE = """
import torch
from torch import nn

print("words of the user's module")

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 6), nn.Linear(6, 3)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))

def images():
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))

def wrong():
    return 3

def fails():
    raise RuntimeError("no such thing")

def needs(width):
    return nn.Linear(width, 2)
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(style, "render", lambda figure: b"\x89PNG" if figure.axes else b"")
    isthmus.save(three_part_net(3, noise=0.003, depth=6, width=14), "net.safetensors")
    X = gaussian(100, 12)
    np.save("X.npy", X.numpy())
    with torch.no_grad():
        np.save("Y.npy", three_part_net(3, noise=0.003, depth=6, width=14)(X).numpy())


@pytest.fixture
def own(monkeypatch):
    """A module of the user's in the current folder."""
    Path("mine").mkdir()
    Path("mine/nets.py").write_text(MODULE)
    yield
    for name in ("mine", "mine.nets"):
        sys.modules.pop(name, None)


def call(capsys, *arguments):
    capsys.readouterr()
    code = cli.main([str(one) for one in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_answer_and_its_folder(capsys):
    code, out, err = call(capsys, "diagnose", "net.safetensors", "--data", "X.npy", "--y", "Y.npy", "--ridge", "0.01")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Everything the network computes passes through 3 dimensions")
    assert lines[1] == "verdict: determined"
    assert sum("← the isthmus" in line for line in lines) >= 3
    assert any(line.startswith("Jacobian rank") and "agrees" in line for line in lines)
    assert any("cost " in line and "parameters" in line and "0 at a minimum" in line for line in lines)
    assert lines[-2] == "kept in runs/diagnose-net: diagnosis.json, layers.csv, figure.png, report.html"
    assert lines[-1].startswith("look at it: isthmus open runs/diagnose-net")
    folder = Path("runs/diagnose-net")
    assert sorted(path.name for path in folder.iterdir()) == sorted(diagnosis_folder.FILES)
    assert [path.name for path in folder.parent.iterdir()] == ["diagnose-net"]
    document = files.read_json(folder / "diagnosis.json")
    assert document["isthmus"]["rank"] == 3
    assert document["origin"] == {"data": "X.npy", "targets": "Y.npy", "module": None, "weights": "net.safetensors"}
    assert document["whole"]["cost"] == pytest.approx(0.0, abs=1e-20)
    table = pd.read_csv(folder / "layers.csv")
    direct = isthmus.diagnose(isthmus.load("net.safetensors"), np.load("X.npy"))
    assert list(table["layer"].astype(str)) == [layer.name for layer in direct.layers]
    np.testing.assert_allclose(table["norm"], direct.to_frame()["norm"], rtol=1e-12)


def test_json_is_one_document(capsys):
    code, out, _ = call(capsys, "diagnose", "net.safetensors", "--data", "X.npy", "--layers", "[02]", "--json")
    document = json.loads(out)
    assert code == (1 if document["isthmus"]["verdict"] == "undetermined" else 0)
    assert document["format"] == "isthmus.diagnosis"
    assert {"0", "2"} <= {layer["name"] for layer in document["layers"]}
    assert document["settings"]["layers"] == ["[02]"]


def test_exit_codes_of_the_verdicts(capsys):
    wide = linear_net(torch.linspace(1.0, 0.7, 12, dtype=torch.float64), [12, 12, 12])
    isthmus.save(wide, "wide.safetensors")
    code, out, _ = call(capsys, "diagnose", "wide.safetensors", "--data", "X.npy")
    assert (code, out.splitlines()[1]) == (0, "verdict: none")
    doubtful = linear_net([1.0] * 4 + [0.1] * 8, [12, 12, 12])
    isthmus.save(doubtful, "doubtful.safetensors")
    code, out, _ = call(capsys, "diagnose", "doubtful.safetensors", "--data", "X.npy")
    assert (code, out.splitlines()[1]) == (1, "verdict: undetermined")


def test_tables_as_data(capsys):
    X, Y = np.load("X.npy"), np.load("Y.npy")
    pd.DataFrame(X).rename(columns=lambda j: f"x{j}").to_csv("X.csv", index=False)
    np.savez("both.npz", X=X, Y=Y)
    for arguments in (["X.csv", "--y", "Y.npy"], ["both.npz"]):
        code, out, err = call(capsys, "diagnose", "net.safetensors", "--data", *arguments, "--json")
        assert code == 0, err
        assert json.loads(out)["whole"]["cost"] == pytest.approx(0.0, abs=1e-12)


def test_decimal_commas_and_columns_left_out(capsys):
    X, Y = (pd.DataFrame(np.load(f"{name}.npy")).add_prefix(name.lower()) for name in "XY")
    plain = call(capsys, "diagnose", "net.safetensors", "--data", "X.npy", "--y", "Y.npy", "--json")[1]
    X.insert(3, "id", [f"no {i}" for i in range(len(X))])
    X.to_csv("X.csv", index=False, sep=";", decimal=",", float_format="%.17g")
    Y.to_csv("Y.csv", index=False, sep=";", decimal=",", float_format="%.17g")
    Y.to_parquet("Y.parquet")
    command = ["diagnose", "net.safetensors", "--data", "X.csv", "--exclude", "i?", "--json"]
    code, _, err = call(capsys, *command)
    assert code == 3 and "if these are decimal commas, add --decimal ," in err
    # The mark is that of text files alone; whichever kind the targets are in, the numbers are the same.
    for targets in ("Y.csv", "Y.npy", "Y.parquet"):
        code, out, err = call(capsys, *command, "--y", targets, "--decimal", ",")
        assert code == 0, err
        document, wanted = json.loads(out), json.loads(plain)
        origin = {"data": "X.csv", "targets": targets, "exclude": ["i?"], "decimal": ","}
        assert document["origin"] == wanted["origin"] | origin
        assert document["whole"] == wanted["whole"] and document["isthmus"] == wanted["isthmus"]
    np.savez("both.npz", X=np.load("X.npy"), Y=np.load("Y.npy"), X99=np.ones(100))
    code, out, err = call(capsys, "diagnose", "net.safetensors", "--data", "both.npz", "--exclude", "X99", "--json")
    assert code == 0, err
    assert json.loads(out)["whole"] == wanted["whole"]


def test_a_discovery_and_an_estimator(capsys):
    X = gaussian(60, 4).numpy()
    Y = np.stack([X[:, 0], X[:, 1], X[:, 0] - X[:, 1]], 1)
    found = discover(X, Y, rank=2, width=4, depth=4, replicas=0, steps=5)
    isthmus.save(found, "found.safetensors")
    np.save("new.npy", X)
    code, out, err = call(capsys, "diagnose", "found.safetensors", "--data", "new.npy", "--json")
    assert code in (0, 1), err
    layers = {layer["name"]: layer for layer in json.loads(out)["layers"]}
    # The waist, with as many units as there are coordinates.
    assert min(layer["units"] for layer in layers.values()) == 2
    assert {name.split(".")[0] for name in layers} == {"encoder", "decoder"}
    estimator = isthmus.BottleneckRegressor(rank=2, width=4, depth=4, replicas=0).fit(X[:30], Y[:30])
    isthmus.save(estimator, "estimator.safetensors")
    assert call(capsys, "diagnose", "estimator.safetensors", "--data", "new.npy")[0] in (0, 1)


@pytest.mark.usefixtures("own")
def test_a_class_of_the_user(capsys):
    before = list(sys.path)
    with torch.random.fork_rng(devices=[]):
        net = nn.ModuleDict({"embed": nn.Embedding(10, 6), "head": nn.Linear(6, 3)})
    safetensors.torch.save_file(net.state_dict(), "w.safetensors")
    np.save("tokens.npy", np.arange(300).reshape(60, 5) % 10)
    arguments = ["--module", "mine.nets:Small", "--weights", "w.safetensors", "--data", "tokens.npy", "--json"]
    code, out, err = call(capsys, "diagnose", *arguments)
    assert code in (0, 1), err
    assert "words of the user's module" in err
    document = json.loads(out)
    assert document["origin"]["module"] == "mine.nets:Small"
    weights = {layer["name"]: layer["weights"] for layer in document["layers"]}
    direct = torch.linalg.svdvals(net["head"].weight.detach().double())
    assert weights["head"][0]["spectrum"]["values"] == pytest.approx(direct.tolist())
    assert sys.path == before
    assert Path("runs/diagnose-w/diagnosis.json").exists()


@pytest.mark.usefixtures("own")
def test_images_have_four_axes(capsys):
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    files.write_tensors("w.safetensors", net.state_dict())
    np.save("images.npy", gaussian(30, 2, 4, 4, dtype=torch.float32).numpy())
    code, out, err = call(
        capsys, *("diagnose", "--module", "mine.nets:images", "--weights", "w.safetensors", "--data", "images.npy")
    )
    assert code in (0, 1), err
    assert "convolution" in out


@pytest.mark.usefixtures("own")
def test_what_is_refused(capsys):
    torch.save({"a": torch.ones(2)}, "net.pt")
    safetensors.torch.save_file({"a": torch.ones(2)}, "other.safetensors")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("cut.npy").write_bytes(Path("X.npy").read_bytes()[:500])
    np.save("nan.npy", np.full((20, 12), np.nan))
    np.save("few.npy", np.ones((20, 5)))
    Path("few.csv").write_text("a,b\n" + "1,2\n" * 20)
    data, weights = ["--data", "X.npy"], ["--weights", "other.safetensors"]
    for arguments, code, says in (
        (["net.pt", *data], 3, "isthmus convert"),
        (["absent.safetensors", *data], 3, "absent"),
        (["other.safetensors", *data], 3, "isthmus.save"),
        (data, 2, "either MODEL or --module"),
        (["net.safetensors", "--module", "mine.nets:images", *weights, *data], 2, "either MODEL or --module"),
        (["--module", "mine.nets:images", *data], 2, "go together"),
        (["net.safetensors", *weights, *data], 2, "go together"),
        (["--module", "mine.nets", *weights, *data], 2, "PACKAGE.MODULE:FACTORY"),
        (["--module", "mine.absent:build", *weights, *data], 2, "ModuleNotFoundError"),
        (["--module", "mine.nets:absent", *weights, *data], 2, "AttributeError"),
        (["--module", "mine.nets:wrong", *weights, *data], 2, "torch.nn.Module"),
        (["--module", "mine.nets:fails", *weights, *data], 2, "no such thing"),
        (["--module", "mine.nets:needs", *weights, *data], 2, "without arguments"),
        (["--module", "mine.nets:images", *weights, *data], 3, "missing: 0.weight"),
        (["--module", "mine.nets:images", "--weights", "net.pt", *data], 3, "isthmus convert"),
        (["net.safetensors", "--data", "objects.npy"], 3, "never loaded"),
        (["net.safetensors", "--data", "cut.npy"], 3, "cut.npy"),
        (["net.safetensors", "--data", "absent.npy"], 3, "error: diagnose: 'absent.npy' must be a readable file"),
        (["net.safetensors", "--data", "nan.npy"], 3, "must be finite"),
        (["net.safetensors", "--data", "few.npy"], 2, "must run on"),
        (["net.safetensors", *data, "--y", "few.npy"], 3, "as many rows"),
        (["net.safetensors", *data, "--layers", "nothing"], 2, "must name layers"),
        (["net.safetensors", *data, "--loss", "hinge"], 2, "hinge"),
        (["net.safetensors", *data, "--decimal", ","], 2, "--decimal needs a text file for --data"),
        (["net.safetensors", *data, "--y", "few.npy", "--decimal", ","], 2, "for --data or --y"),
        (["net.safetensors", *data, "--decimal", ";"], 2, "--decimal"),
        (["net.safetensors", *data, "--exclude", "0"], 2, "--exclude needs a table for --data"),
        (["net.safetensors", "--data", "few.csv", "--exclude", "z"], 3, "`exclude` must name"),
        (["net.safetensors"], 2, "--data"),
    ):
        found, out, err = call(capsys, "diagnose", *arguments)
        assert (found, out) == (code, ""), (arguments, err)
        assert says in err, (arguments, err)
        assert not Path("runs").exists()


def test_folders_that_are_not_ours_stay(capsys):
    command = ["diagnose", "net.safetensors", "--data", "X.npy", "--out", "found"]
    Path("found").mkdir()
    Path("found/thesis.txt").write_text("years of work")
    code, out, err = call(capsys, *command)
    assert (code, out) == (2, "")
    assert "thesis.txt" in err
    Path("found/thesis.txt").rename("thesis.txt")
    Path("found/diagnosis.json").write_text("{}")
    assert "foreign" in call(capsys, *command)[2]
    Path("found/diagnosis.json").unlink()
    assert call(capsys, *command)[0] == 0
    Path("found/layers.csv").write_text("old")
    assert call(capsys, *command)[0] == 0
    assert Path("found/layers.csv").read_text() != "old"
    Path("file").write_text("")
    assert "a file" in call(capsys, *command[:-1], "file")[2]


def test_help_shows_an_example(capsys):
    code, out, _ = call(capsys, "diagnose", "--help")
    assert code == 0
    assert "isthmus diagnose net.safetensors" in out
