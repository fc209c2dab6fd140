"""`isthmus compress` of a discovery: encoder and decoder as one network."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus
from isthmus.cli import discovery_folder, main
from isthmus.cli.network import network_in
from isthmus.networks import SmoothNetwork, Standardized
from reported import constant, discovery
from tools import assert_close, gaussian, generator, random_net

OUT = ["--out", "small.safetensors"]


def test_a_discovery_and_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = discovery()
    isthmus.save(found, "found.safetensors")
    np.save("X.npy", gaussian(40, 4).numpy())
    assert main(["compress", "found.safetensors", *OUT, "--data", "X.npy", "--tolerance", "0.3"]) == 0
    out = capsys.readouterr().out
    assert "note: encoder and decoder became one network" in out and "missing inputs" not in out
    small, X = isthmus.load("small.safetensors"), np.load("X.npy")
    with torch.no_grad():
        off = np.abs(small(torch.from_numpy(X)).numpy() - found.predict(X)).max()
    assert off <= 0.3 * np.abs(found.predict(X)).max()
    folder = tmp_path / "folder"
    folder.mkdir()
    isthmus.save(found, folder / discovery_folder.MODEL)
    assert main(["compress", "folder", *OUT, "--json"]) == 0
    assert main(["compress", "folder", "--out", f"folder/{discovery_folder.MODEL}"]) == 2
    assert "--out must be another file than MODEL" in capsys.readouterr().err


def test_columns_are_taken_by_name(tmp_path, monkeypatch, capsys):
    """As transform takes them: whatever their order and whatever stands beside them."""
    monkeypatch.chdir(tmp_path)
    found = discovery()
    isthmus.save(found, "found.safetensors")
    X = pd.DataFrame(gaussian(40, 4).numpy(), columns=list(found.feature_names))
    X.to_csv("X.csv", index=False)
    X[X.columns[::-1]].assign(beside=1.0).to_csv("turned.csv", index=False)
    X.rename(columns={X.columns[1]: "other"}).to_csv("other.csv", index=False)
    X.to_csv("bare.csv", index=False, header=False)
    np.savez("both.npz", X=X.to_numpy(), Y=found.predict(X))

    def answer(verb, data):
        more = ["--out", "small.safetensors", "--tolerance", "0.3"] if verb == "compress" else ["--out", "out"]
        code = main([verb, "found.safetensors", "--data", data, *more, "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    for verb, key in (("compress", "deviation"), ("diagnose", "layers")):
        code, wanted, _ = answer(verb, "X.csv")
        assert code < 2
        for data, says in (("turned.csv", ""), ("bare.csv", "taken by position"), ("both.npz", "")):
            code, told, err = answer(verb, data)
            assert code < 2 and told[key] == wanted[key] and says in err
        code, _, err = answer(verb, "other.csv")
        assert code == 3 and f"none for {found.feature_names[1]!r}" in err


@pytest.mark.parametrize("bias", [1.0, 0.5, 0.0])
def test_the_whole_of_a_discovery_is_its_prediction(bias):
    """By the maps of the discovery, and by the network made of them."""
    scale = 0.5 + torch.rand(4, generator=generator(2), dtype=torch.float64)
    encoder = Standardized(random_net([4, 7, 2], bias=bias, slope=0.1), gaussian(1, 4)[0], scale)
    found = discovery(encoder=encoder, fill=np.zeros(4))
    whole, notes = network_in(found)
    X = gaussian(15, 4)
    with torch.no_grad():
        assert_close(whole(X), torch.from_numpy(found.predict(X.numpy())))
    assert whole.network.slopes == (0.1, 1.0, 0.0) and "fill them in first" in notes[1]


@pytest.mark.parametrize("smooth", ["encoder", "decoder", "both"])
def test_smooth_maps_are_compressed_as_they_are(tmp_path, monkeypatch, capsys, smooth):
    """As ReLU networks of the same weights they would compute something else."""
    monkeypatch.chdir(tmp_path)
    shift, scale = gaussian(1, 4)[0], torch.ones(4, dtype=torch.float64)
    g, h = (SmoothNetwork(dims, dtype=torch.float64, generator=generator(1)) for dims in ([4, 7, 2], [2, 8, 3]))
    with torch.no_grad():
        for net in (g, h):
            net.weights[0][2], net.biases[0][2] = net.weights[0][1], net.biases[0][1]
            net.weights[0][4] = 0.0
    maps = {"encoder": Standardized(g, shift, scale), "decoder": h}
    found = discovery(**(maps if smooth == "both" else {smooth: maps[smooth]}))
    isthmus.save(found, "found.safetensors")
    np.save("X.npy", gaussian(40, 4).numpy())
    for more, off in (([], 1e-12), (["--tolerance", "0.05"], 0.05)):
        assert main(["compress", "found.safetensors", *OUT, "--data", "X.npy", *more, "--json"]) == 0
        says = json.loads(capsys.readouterr().out)
        small, X = isthmus.load("small.safetensors"), gaussian(30, 4, seed=5) if not more else gaussian(40, 4)
        with torch.no_grad():
            got = small.eval()(X)
        wanted = torch.from_numpy(found.predict(X.numpy()))
        assert float((got - wanted).abs().max()) <= off * float(wanted.abs().max())
        assert says["parameters_after"] < says["parameters_before"]
        if smooth == "both" and not more:
            # Two of seven and of eight neurons: a copy, and a constant one.
            assert [layer["after"] for layer in says["layers"]] == [5, 6] and says["domain"] == "everywhere"


@pytest.mark.slow
def test_discoveries_of_either_kind():
    task = isthmus.problems.linear(d_in=4, d_out=4, rank=1, samples=100)
    options = {"depth": 4, "width": 8, "rank": 1, "steps": 5, "replicas": 0}
    for activation in ("smooth", "kinked"):
        found = isthmus.discover(task.X, task.Y, activation=activation, **options)
        whole, _ = network_in(found)
        small = isthmus.compress(whole, task.X, tolerance=0.01).network
        with torch.no_grad():
            off = small(torch.tensor(task.X)) - torch.from_numpy(found.predict(task.X))
        assert float(off.abs().max()) <= 0.011 * float(np.abs(found.predict(task.X)).max())


def test_constants_have_no_layers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    isthmus.save(constant(), "constant.safetensors")
    assert main(["compress", "constant.safetensors", *OUT]) == 2
    assert "rank above 0" in capsys.readouterr().err and not (tmp_path / "small.safetensors").exists()
