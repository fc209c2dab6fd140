"""Discoveries and estimators in files: back to the bit, or an error; nothing in between."""

from __future__ import annotations

import json
import random

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus
from isthmus import (
    BottleneckRegressor,
    FileFormatError,
    FullyConnected,
    IsthmusError,
    SmoothNetwork,
    discover,
    problems,
)
from isthmus._tensorfile import fingerprint
from isthmus.discovery._fits import Fit
from isthmus.discovery._result import discovery_from_parts, discovery_parts
from isthmus.discovery._walk import Stages
from isthmus.estimators._regressor import _from_parts, _to_parts
from made import QUICK
from test_files_hostile import MUTATORS
from tools import SEED, gaussian

MUTATIONS = 60


def line(samples=30):
    return problems.linear(d_in=4, d_out=3, rank=2, samples=samples, seed=SEED)


def frames():
    task = line()
    X = pd.DataFrame(task.X, columns=["a", "β", "c d", "e"])
    X.iloc[3, 1] = np.nan
    return X, pd.DataFrame(task.Y, columns=["p", "q", "r"])


@pytest.fixture(scope="module")
def things():
    task, (X, Y) = line(), frames()
    few = {**QUICK, "steps": 2}
    return {
        "plain": discover(task.X, task.Y, **few),
        "replica": discover(task.X, task.Y, **{**few, "replicas": 1}),
        "names and fill": discover(X, Y, missing="median", **few),
        "one output": discover(task.X, task.Y[:, 0], **few),
        "rank 0": discover(task.X, np.full((30, 2), 7.0)),
        "two rows": discover(task.X[:2], task.Y[:2], **few),
        "wide": discover(gaussian(20, 300).numpy(), task.Y[:20], **few),
        "estimator": BottleneckRegressor(**few).fit(task.X, task.Y),
        "named estimator": BottleneckRegressor(missing="median", random_state=4, **few).fit(X, Y),
        "flat estimator": BottleneckRegressor(**few).fit(task.X, task.Y[:, 0]),
        "constant estimator": BottleneckRegressor(**few).fit(task.X, np.ones(30)),
    }


NAMES = [
    "plain", "replica", "names and fill", "one output", "rank 0", "two rows", "wide", "estimator", "named estimator",
    "flat estimator", "constant estimator",
]  # fmt: skip


def content(thing):
    """All there is to it: configuration as text, tensors by their bytes."""
    config, tensors = (_to_parts if isinstance(thing, BottleneckRegressor) else discovery_parts)(thing)
    return json.dumps(config, sort_keys=True), fingerprint(tensors)


def rows(thing):
    found = thing.discovery_ if isinstance(thing, BottleneckRegressor) else thing
    return gaussian(7, len(found.feature_names), seed=3).numpy()


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(things, name, tmp_path):
    thing = things[name]
    isthmus.save(thing, tmp_path / "kept")
    twin = isthmus.load(tmp_path / "kept")
    assert type(twin) is type(thing)
    assert content(twin) == content(thing)
    X = rows(thing)
    assert np.array_equal(twin.predict(X), thing.predict(X))
    assert np.array_equal(twin.transform(X), thing.transform(X))
    assert np.array_equal(twin.decode(twin.transform(X)), thing.predict(X))
    isthmus.save(twin, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "kept").read_bytes()
    own, other = (getattr(one, "discovery_", one) for one in (thing, twin))
    assert repr(other) == repr(own)
    assert other.sentence == own.sentence
    assert json.dumps(other.to_dict()) == json.dumps(own.to_dict())
    assert (other.profile is None) == (own.profile is None)
    profiles = [] if own.profile is None else [own.profile, *own.replicas]
    for one, two in zip(profiles, [other.profile, *other.replicas]):
        for key, value in vars(one).items():
            assert np.array_equal(value, vars(two)[key], equal_nan=np.asarray(value).dtype.kind == "f"), key
    if isinstance(thing, BottleneckRegressor):
        assert twin.get_params() == thing.get_params()
        assert twin.n_features_in_ == thing.n_features_in_
        assert hasattr(twin, "feature_names_in_") == hasattr(thing, "feature_names_in_")
        assert twin.predict(X).shape == thing.predict(X).shape
        assert twin.get_feature_names_out().tolist() == thing.get_feature_names_out().tolist()


@pytest.mark.parametrize(("activation", "family"), [("smooth", SmoothNetwork), ("kinked", FullyConnected)])
def test_either_family_comes_back(activation, family, tmp_path):
    task = line()
    few = {**QUICK, "steps": 2, "activation": activation}
    thing = discover(task.X, task.Y, checkpoint=tmp_path / "stages", **few)
    isthmus.save(thing, tmp_path / "kept")
    twin = isthmus.load(tmp_path / "kept")
    assert type(thing.encoder.network) is type(twin.encoder.network) is type(twin.decoder) is family
    X = rows(thing)
    assert np.array_equal(twin.predict(X), thing.predict(X))
    assert np.array_equal(twin.transform(X), thing.transform(X))
    # What was trained so far is kept in the same way.
    found = Stages(tmp_path / "some", "one")
    net = family([4, 3, 2], generator=torch.Generator().manual_seed(0))
    found.write("one", Fit(net, 0.5, 0.6, 7.0, 0.01, "at rest"))
    again = found.read("one")
    assert again is not None and type(again.network) is family and (again.cost, again.state) == (0.5, "at rest")
    assert torch.equal(again.network(torch.ones(2, 4)), net(torch.ones(2, 4)))


def test_missing_values_after_loading(things, tmp_path):
    X = frames()[0]
    for name in ("names and fill", "named estimator"):
        isthmus.save(things[name], tmp_path / "kept")
        twin = isthmus.load(tmp_path / "kept")
        assert np.array_equal(twin.predict(X), things[name].predict(X))
    with pytest.raises(ValueError, match="feature names"):
        twin.predict(X.rename(columns={"a": "z"}))


def test_what_cannot_be_saved(things, tmp_path):
    class Mine(BottleneckRegressor):
        pass

    for bad in (BottleneckRegressor(), Mine()):
        with pytest.raises(IsthmusError):
            isthmus.save(bad, tmp_path / "kept")
    import dataclasses

    import torch

    foreign = dataclasses.replace(things["plain"], encoder=torch.nn.Linear(4, 2))
    with pytest.raises(IsthmusError, match="must have the maps it was made with"):
        isthmus.save(foreign, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def campaign(things, count, folder):
    kept = []
    for name in ("names and fill", "rank 0", "named estimator"):
        isthmus.save(things[name], folder / "good")
        kept.append(((folder / "good").read_bytes(), content(things[name])))
    outcomes = {"same": 0, "refused": 0, "untidy": 0}
    for index in range(count):
        rng = random.Random(f"{SEED}-{index}")
        data, expected = kept[index // len(MUTATORS) % len(kept)]
        path = folder / "mutant"
        try:
            mutant = MUTATORS[index % len(MUTATORS)](rng, data)
        except (KeyError, IndexError):
            # Some mutators look for what only networks have.
            continue
        path.write_bytes(mutant)
        try:
            thing = isthmus.load(path)
        except IsthmusError as problem:
            outcomes["refused" if len(str(problem)) <= 2000 else "untidy"] += 1
        else:
            kind = MUTATORS[index % len(MUTATORS)].__name__
            # Two tensors of one shape exchanged, and the checksum made to agree: another file, not a damaged one.
            assert kind == "swap" or content(thing) == expected, (index, kind)
            outcomes["same"] += 1
    return outcomes


def test_mutated_files(things, tmp_path):
    outcomes = campaign(things, MUTATIONS, tmp_path)
    assert outcomes["refused"] > MUTATIONS // 2
    assert outcomes["untidy"] == 0


@pytest.mark.slow
def test_many_mutated_files(things, tmp_path):
    assert campaign(things, 1000, tmp_path)["same"] > 10


def tamper(config, path, value):
    """A copy with one entry replaced; a tuple of keys leads there."""
    config = json.loads(json.dumps(config))
    place = config
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("rank",), 3), (("rank",), 0), (("rank",), -1), (("rank",), True), (("rank",), 2.0), (("rank",), KeyError),
        (("verdict",), "certain"), (("verdict",), None), (("reasons",), [1]), (("reasons",), "because"),
        (("feature_names",), ["a"]), (("feature_names",), ["a"] * 4), (("feature_names",), [1, 2, 3, 4]),
        (("target_names",), []), (("error",), "small"), (("error",), True), (("notes",), [None]),
        (("settings",), []), (("shape",), {}), (("shape", "encoder", "depth"), 1), (("shape", "encoder", "depth"), 99),
        (("shape", "encoder", "depth"), 10**30), (("shape", "decoder", "slope"), "steep"),
        (("shape", "decoder", "bias"), None), (("profile", "rows"), []), (("profile", "rows"), 7),
        (("profile", "rows", 0, "error"), "small"), (("profile", "rows", 0, "rank"), KeyError),
        (("profile", "rows", 0, "rank"), 10**30), (("profile", "rows", 0, "rank"), 2.5),
        (("profile", "rows", 0, "rank"), 16), (("profile", "depth"), [8]), (("profile", "shares"), [[1.0], []]),
        (("evidence",), [{}]), (("evidence",), [7]), (("replicas",), [None]), (("extra",), 1),
        (("profile",), {}),
    ],
)  # fmt: skip
def test_tampered_configurations(things, path, value):
    config, tensors = discovery_parts(things["plain"])
    discovery_from_parts(json.loads(json.dumps(config)), tensors)
    with pytest.raises(IsthmusError):
        discovery_from_parts(tamper(config, path, value), tensors)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("coordinates", lambda T: T[:, :1]), ("coordinates", lambda T: T * float("nan")), ("shift", lambda T: T[:2]),
        ("coordinates", lambda T: T.float()), ("scale", lambda T: T * 0), ("scale", lambda T: -T), ("shift", None),
        ("encoder.weights.0", None), ("encoder.weights.0", lambda T: T.float()),
        ("encoder.weights.0", lambda T: T * float("inf")), ("decoder.weights.1", lambda T: T.mT),
        ("decoder.biases.0", lambda T: T[:1]), ("sensitivity.low", None), ("sensitivity.high", lambda T: T[:, :1]),
        ("fill", lambda T: T[:1]), ("surplus", lambda T: T),
    ],
)  # fmt: skip
def test_tampered_tensors(things, name, change):
    config, tensors = discovery_parts(things["names and fill"])
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change(tensors.get(name, tensors["shift"]))
    with pytest.raises(FileFormatError):
        discovery_from_parts(config, tensors)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("parameters", "ranks"), 2), (("parameters", "rank"), [2]), (("parameters",), []), (("flat",), True),
        (("flat",), "no"), (("named",), 1), (("discovery",), None), (("discovery", "rank"), 1), (("named",), KeyError),
    ],
)  # fmt: skip
def test_tampered_estimators(things, path, value):
    config, tensors = _to_parts(things["estimator"])
    _from_parts(json.loads(json.dumps(config)), tensors)
    with pytest.raises(IsthmusError):
        _from_parts(tamper(config, path, value), tensors)
