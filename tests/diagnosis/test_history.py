"""The History and diagnose_checkpoints: tables, JSON and pictures of what was recorded; files that must be refused."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

from isthmus import DataError, FileFormatError, IsthmusError, diagnose_checkpoints
from isthmus.diagnosis import History, LayerSnapshot, Monitor, Snapshot, SpectrumSnapshot
from isthmus.files import write_tensors
from isthmus.plotting.style import render
from tools import assert_close, gaussian, three_part_net

X = gaussian(60, 5, seed=1, dtype=torch.float32)
HOSTILE = "<script>alert(1)</script>$x"


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2))


def recorded(net=None, steps=6, *, spoil=False):
    net = network() if net is None else net
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    kept = [copy.deepcopy(net.state_dict())]
    with Monitor(net, X, every=2, Y=gaussian(60, 2, seed=2)) as monitor:
        for step in range(steps):
            if spoil and step == 3:
                with torch.no_grad():
                    next(net.parameters())[0, 0] = math.nan
            optimiser.zero_grad()
            net(X).square().mean().backward()
            optimiser.step()
            kept.append(copy.deepcopy(net.state_dict()))
    return monitor.history, kept


def spectrum(label):
    return SpectrumSnapshot(label, torch.tensor([3.0, 1.0], dtype=torch.float64), 10.0, 1.2, 2, "full")


#: The smallest history with everything in it, as text.
WHOLE = History(
    (Snapshot(0, "measured", "", (LayerSnapshot("a", "linear", (spectrum("weight"),), spectrum("x")),), 10.0, 1.0),),
    ("by hand",),
    {"every": 1},
).to_json()


def test_one_row_for_each_step_and_layer():
    history, _ = recorded()
    frame = history.to_frame()
    assert list(frame["step"].unique()) == list(history.steps) == [0, 2, 4, 6]
    assert list(frame["layer"].unique()) == list(history.layers) == ["0", "2", "4"]
    assert len(frame) == 12
    row = frame[(frame["step"] == 4) & (frame["layer"] == "2")].iloc[0]
    layer = history.snapshots[2]["2"]
    assert_close(row["weight_norm_squared"], layer.weights[0].norm_squared)
    assert_close(row["participation_ratio"], layer.representation.participation_ratio)
    assert row["rank"] is layer.representation.rank or row["rank"] == layer.representation.rank
    assert frame["cost"].notna().all()


def test_json_is_versioned_and_has_no_nan():
    history, _ = recorded(spoil=True)
    assert "not finite" in history.states
    content = json.loads(history.to_json())
    assert (content["format"], content["version"]) == ("isthmus.history", 1)
    assert content["steps"] == [0, 2, 4, 6]
    assert content["states"] == list(history.states)
    assert content["snapshots"][0]["layers"][0]["weights"][0]["values"] == pytest.approx(
        history.snapshots[0]["0"].weights[0].values.tolist()
    )
    assert content["snapshots"][-1]["norm_squared"] is None
    assert "not whole" in history.sentence
    assert repr(history).startswith("<History: 4 snapshots from step 0 to 6")


@pytest.mark.parametrize("spoil", [False, True])
def test_json_there_and_back(spoil):
    history, _ = recorded(spoil=spoil)
    content = json.loads(history.to_json())
    again = History.from_dict(content)
    assert json.loads(again.to_json()) == content
    assert again.sentence == history.sentence and again.layers == history.layers
    for one, other in zip(again.snapshots, history.snapshots):
        for layer in one.layers:
            inside, wanted = layer.representation, other[layer.name].representation
            assert torch.equal(inside.values, wanted.values.double()) and inside.rank == wanted.rank
    assert History.from_dict(json.loads(History(()).to_json())).sentence == "Nothing was recorded."


def changed(content, path, value):
    """A copy in which one place holds something else."""
    content = copy.deepcopy(content)
    *before, last = path
    place = content
    for key in before:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return content


SNAPSHOT = ("snapshots", 0)
LAYER = (*SNAPSHOT, "layers", 0)
SPECTRUM = (*LAYER, "weights", 0)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (("format",), [None, "isthmus.diagnosis", KeyError]),
        (("version",), [2, "1", KeyError]),
        (("snapshots",), [None, {}, "text", 3, [None], [[]], [{}], KeyError]),
        (("notes",), ["text", [3], None, KeyError]),
        (("settings",), [[], None, KeyError]),
        ((*SNAPSHOT, "step"), [1.5, True, "1", None, 10**30, -(10**30), KeyError]),
        ((*SNAPSHOT, "state"), ["fine", 3, None, KeyError]),
        ((*SNAPSHOT, "note"), [3, None, KeyError]),
        ((*SNAPSHOT, "norm_squared"), [-1.0, "1", True, [], math.inf, 10**400, KeyError]),
        ((*SNAPSHOT, "cost"), ["nan", {}, KeyError]),
        ((*SNAPSHOT, "layers"), [None, {}, [3], KeyError]),
        ((*LAYER, "name"), [3, None, KeyError]),
        ((*LAYER, "weights"), [None, {}, [None], KeyError]),
        ((*LAYER, "representation"), [3, [], {}, KeyError]),
        ((*SPECTRUM, "values"), [[1.0, 2.0], [-1.0], [math.nan], ["1"], [[1.0]], [True], 3, [0.0] * 33, KeyError]),
        ((*SPECTRUM, "rank"), [-1, 1.5, True, 10**30, KeyError]),
        ((*SPECTRUM, "status"), ["sure", None, KeyError]),
        ((*SPECTRUM, "participation_ratio"), [-1.0, "many", KeyError]),
    ],
    ids=lambda one: one[-1] if isinstance(one, tuple) else "",
)
def test_what_is_no_history_is_refused(path, values):
    content = json.loads(WHOLE)
    for value in values:
        with pytest.raises(FileFormatError, match="History.from_dict"):
            History.from_dict(changed(content, path, value))


def test_no_mapping_is_no_history():
    for content in (None, [], "isthmus.history", 3):
        with pytest.raises(FileFormatError, match="must be a history of version 1"):
            History.from_dict(content)


def test_pictures():
    history, _ = recorded()
    figure = history.plot(layer="0")
    assert render(figure).startswith(b"\x89PNG")
    said = [axes.get_title(loc="left") for axes in figure.axes]
    assert "Singular values of the representation of layer 0" in said
    with pytest.raises(IsthmusError, match="Choose from"):
        history.plot(layer="9")
    recorded(spoil=True)[0].plot()
    deep, _ = recorded(three_part_net(2, depth=10, d_in=5, d_out=2, dtype=torch.float32).to_torch(), steps=2)
    assert len(deep.plot().axes) == 5  # the map of the layers has an axis of its colours
    assert History(()).sentence == "Nothing was recorded."
    History(()).plot().draw_without_rendering()
    assert len(History(()).to_frame()) == 0


def test_hostile_names_are_escaped_and_drawn():
    net = nn.Sequential()
    net.add_module(HOSTILE, nn.Linear(5, 2))
    history, _ = recorded(net)
    page = history._repr_html_()
    assert "<script" not in page
    assert "step" in page
    spoiled, _ = recorded(nn.Sequential(nn.Linear(5, 2)), spoil=True)
    assert "not finite" in spoiled._repr_html_()
    history.plot().draw_without_rendering()
    # The note of a spoiled snapshot carries the name of its layer.
    spoiled_net = nn.Sequential()
    spoiled_net.add_module(HOSTILE, nn.Linear(5, 2))
    page = recorded(spoiled_net, spoil=True)[0]._repr_html_()
    assert "<script" not in page and "&lt;script" in page


def test_a_long_history_has_a_short_page():
    history, _ = recorded()
    long = History(history.snapshots * 200)
    assert len(long._repr_html_()) < 20_000


def test_checkpoints_give_what_the_monitor_saw(tmp_path):
    net = network()
    before = copy.deepcopy(net.state_dict())
    history, kept = recorded(copy.deepcopy(net))
    paths = []
    for step, state in enumerate(kept):
        paths.append(tmp_path / f"{step}.safetensors")
        # Ours, with hashes, and those of the safetensors library, without.
        (write_tensors if step % 2 else lambda path, s: safetensors.torch.save_file(s, path))(paths[-1], state)
    for series in (kept, paths, iter(kept)):
        found = diagnose_checkpoints(net, series, X, gaussian(60, 2, seed=2), steps=range(7))
        assert found.steps == tuple(range(7))
        for one in history.snapshots:
            again = found.snapshots[one.step]
            assert_close(again.norm_squared, one.norm_squared)
            assert_close(again.cost, one.cost)
            for layer in one.layers:
                assert_close(again[layer.name].weights[0].values, layer.weights[0].values)
                assert_close(again[layer.name].representation.values, layer.representation.values)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])
    assert diagnose_checkpoints(net, kept[:2], X).steps == (0, 1)


def test_checkpoints_that_do_not_fit(tmp_path):
    net = network()
    good = net.state_dict()
    missing = {name: value for name, value in good.items() if name != "2.bias"}
    for bad, says in (
        (missing, "missing: 2.bias"),
        ({**good, "9.weight": torch.ones(2)}, "not in the module: 9.weight"),
        ({**good, "0.bias": torch.ones(3)}, r"of another shape: 0.bias \(3,\) for \(12,\)"),
    ):
        with pytest.raises(DataError, match=says):
            diagnose_checkpoints(net, [good, bad], X)
    for series, options, says in (
        ([], {}, "must not be empty"),
        (good, {}, "Put it into a list"),
        ([3], {}, "state dict or a path"),
        ([good], {"steps": [1, 2]}, "one entry for each"),
        (iter([good, good]), {"steps": [1]}, "one entry for each"),
        ([good], {"steps": [-1]}, "steps"),
        ([tmp_path / "absent.safetensors"], {}, "absent"),
    ):
        with pytest.raises(IsthmusError, match=says):
            diagnose_checkpoints(net, series, X, **options)


def test_pickles_and_damaged_files_are_refused(tmp_path):
    net = network()

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    torch.save(net.state_dict(), tmp_path / "net.pt")
    (tmp_path / "bomb.safetensors").write_bytes(pickle.dumps(Bomb()))
    torch.save(net.state_dict(), tmp_path / "disguised.safetensors")
    for name in ("net.pt", "bomb.safetensors", "disguised.safetensors"):
        with pytest.raises(FileFormatError, match="isthmus convert"):
            diagnose_checkpoints(net, [tmp_path / name], X)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "good.safetensors")
    content = (tmp_path / "good.safetensors").read_bytes()
    for size in (4, 100, len(content) - 3):
        (tmp_path / "cut.safetensors").write_bytes(content[:size])
        with pytest.raises(FileFormatError):
            diagnose_checkpoints(net, [tmp_path / "cut.safetensors"], X)
    write_tensors(tmp_path / "hashed.safetensors", net.state_dict())
    content = bytearray((tmp_path / "hashed.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "hashed.safetensors").write_bytes(content)
    with pytest.raises(FileFormatError, match="SHA-256"):
        diagnose_checkpoints(net, [tmp_path / "hashed.safetensors"], X)
