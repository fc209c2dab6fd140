"""Files that earlier code wrote, kept in ``old/`` with the outputs it gave: today's ``load`` gives the same.

They were written at commit ed4364f, when the fully connected network had three classes and each class its own codec.
There is no file of an ``Hourglass``: it could only be saved compressed, or inside a Discovery.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import isthmus
from isthmus import ConvolutionalNet, Discovery, FullyConnected, LeakyResNet, Standardized
from tools import assert_close

OLD = Path(__file__).parent / "old"
KEPT = json.loads((OLD / "outputs.json").read_text(encoding="utf-8"))

NETWORKS = {
    "fully_connected": FullyConnected,
    "fully_connected_float32": FullyConnected,
    "compact": FullyConnected,
    "compact_scaled": Standardized,
    "compressed_hourglass": FullyConnected,
    "leaky_resnet": LeakyResNet,
    "leaky_resnet_adaptive": LeakyResNet,
    "leaky_resnet_float32": LeakyResNet,
    "convolutional": ConvolutionalNet,
    "convolutional_signal": ConvolutionalNet,
}
DISCOVERIES = ("discovery", "discovery_constant")
ESTIMATORS = {"regressor": "predict", "classifier": "predict_proba", "autoencoder": "reconstruct"}


def loaded(name):
    return isthmus.load(OLD / f"{name}.safetensors")


def test_every_kept_file_is_read_below():
    assert {path.stem for path in OLD.glob("*.safetensors")} == set(KEPT) == {*NETWORKS, *DISCOVERIES, *ESTIMATORS}
    kinds = {"FullyConnected", "CompactNetwork", "LeakyResNet", "ConvolutionalNet", "Discovery"}
    assert kinds < {one["kind"] for one in KEPT.values()}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_outputs_it_had(name, tmp_path):
    kept, net = KEPT[name], loaded(name)
    assert type(net) is NETWORKS[name]
    dtype = getattr(torch, kept["dtype"])
    X, Y = (torch.tensor(kept[key], dtype=dtype) for key in ("inputs", "outputs"))
    with torch.no_grad():
        outputs = net(X)
        assert outputs.dtype == dtype
        assert_close(outputs, Y)
        assert_close(net.to_torch()(X).flatten(1), Y.flatten(1))
        # Saved as networks are today, it is the same network.
        isthmus.save(net, tmp_path / "now.safetensors")
        assert torch.equal(isthmus.load(tmp_path / "now.safetensors")(X), outputs)


def test_adapted_steps_have_their_lengths():
    assert_close(loaded("leaky_resnet_adaptive").rho, KEPT["leaky_resnet_adaptive"]["rho"])


@pytest.mark.parametrize("name", DISCOVERIES)
def test_a_discovery_has_its_answer_and_its_maps(name, tmp_path):
    kept, found = KEPT[name], loaded(name)
    assert type(found) is Discovery
    assert (found.rank, found.verdict, found.sentence) == (kept["rank"], kept["verdict"], kept["sentence"])
    X = torch.tensor(kept["inputs"], dtype=torch.float64)
    with torch.no_grad():
        Z = found.encoder(X)
        assert_close(Z, np.reshape(kept["coordinates"], (len(X), found.rank)))
        assert_close(found.decoder(Z), kept["outputs"])
    isthmus.save(found, tmp_path / "now.safetensors")
    assert isthmus.load(tmp_path / "now.safetensors").to_dict() == found.to_dict()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_predicts_what_it_did(name):
    kept, model = KEPT[name], loaded(name)
    assert type(model).__name__ == kept["kind"] and (model.rank_, model.verdict_) == (kept["rank"], kept["verdict"])
    X = np.array(kept["inputs"])
    assert_close(model.transform(X), kept["coordinates"])
    assert_close(getattr(model, ESTIMATORS[name])(X), kept["outputs"])
    if name == "classifier":
        assert model.predict(X).tolist() == kept["classes"]
