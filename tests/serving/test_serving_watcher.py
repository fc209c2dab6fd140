"""What the watcher says of folders that are running, finished, stopped, damaged or hostile."""

import json
import os
import shutil
import time

import numpy as np
import pytest
import torch

from isthmus import DataError, files
from isthmus._inside import Inside
from isthmus.networks import FullyConnected, SmoothNetwork
from isthmus.networks._network import to_parts
from isthmus.runs import Outcome, Run
from isthmus.serving import Watcher, record, watcher
from isthmus.serving.record import StageShelf
from isthmus.serving.snapshot import figures_of, rank_so_far, revision, snapshot, thin
from served import end, start, step, write_record, write_stage
from tools import assert_close

HOSTILE = '</script><img src=x onerror=alert(1)>"\u202e'


def discovery_document(**more):
    rows = [{"rank": 16, "start": "fresh", "error": 0.02}, {"rank": 2, "start": "narrowed", "error": 0.03}]
    content = {"format": "isthmus discovery", "sentence": "Two variables.", "verdict": "determined", "rank": 2}
    return {**content, "profile": {"rows": rows}, "replicas": [], **more}


@pytest.fixture
def now():
    return time.time()


def views(folder):
    return {view.name: view for view in Watcher(folder).runs()}


def test_all_kinds_and_states(tmp_path, now, monkeypatch):
    monkeypatch.setattr(record, "is_alive", lambda pid: pid == os.getpid())
    for name, lines, age in (
        ("busy", [start(now)], 0),
        ("stopped", [start(now), end(now, "interrupted")], 100),
        ("broken", [start(now), end(now, "failed", "no memory")], 100),
        ("killed", [start(now - 100, pid=1)], 20),
        ("quiet", [start(now - 100, host="elsewhere")], 60),
        ("writing", [start(now), end(now)], 0),
    ):
        write_record(tmp_path / name / ".progress", *lines, age=age)
    write_record(tmp_path / ".E-linear.progress", start(now, sentence="E-linear: a figure."), age=0)
    (tmp_path / "found").mkdir()
    files.write_json(tmp_path / "found" / "discovery.json", discovery_document())
    (tmp_path / "found" / "report.html").write_text("<p>report</p>")
    unmet = Outcome("c", "not met", kind="condition")
    Run("E-two", {"depth": 2}, outcomes=[Outcome("a", "agrees"), Outcome("b", "fails"), unmet]).write(
        tmp_path / "E-two"
    )
    (tmp_path / "seen").mkdir()
    diagnosis = {"format": "isthmus.diagnosis", "sentence": "Rank 3.", "isthmus": {"verdict": "determined"}}
    files.write_json(tmp_path / "seen" / "diagnosis.json", diagnosis)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "discovery.json").write_text("{")
    (tmp_path / "holiday pictures").mkdir()
    (tmp_path / "a file").write_text("x")
    found = views(tmp_path)
    assert {name: (view.kind, view.state) for name, view in found.items()} == {
        "busy": ("discovery", "running"),
        "stopped": ("discovery", "interrupted"),
        "broken": ("discovery", "failed"),
        "killed": ("discovery", "killed"),
        "quiet": ("discovery", "silent"),
        "writing": ("discovery", "running"),
        "E-linear": ("run", "running"),
        "found": ("discovery", "finished"),
        "E-two": ("run", "finished"),
        "seen": ("diagnosis", "finished"),
        "odd": ("run", "unreadable"),
    }
    assert found["broken"].problem == "no memory"
    assert found["writing"].problem == "the answer is being written"
    assert found["found"].answer.sentence == "Two variables." and found["found"].has_report
    assert found["found"].answer.walks == {(0, 0): 0.02, (0, 2): 0.03}
    assert found["E-two"].answer.sentence == "E-two: 1 of 2 statements came out as stated."
    assert found["E-two"].answer.verdict == "fails"
    assert not found["E-two"].has_report
    assert snapshot(found["killed"])["state"]["word"] == "killed?"
    assert "goes on from the trainings" in snapshot(found["killed"])["meaning"]
    assert snapshot(found["broken"])["meaning"] == "It ended with an error. No memory."
    for view in found.values():
        json.dumps(snapshot(view), allow_nan=False)


def test_from_running_to_the_answer(tmp_path, now):
    folder = tmp_path / "mine"
    write_record(folder / ".progress", start(now), step(now, 1))
    watching = Watcher(tmp_path)
    (view,) = watching.runs()
    assert view.state == "running"
    first = revision(snapshot(view))
    assert revision(snapshot(watching.run(view.id))) == first
    shutil.rmtree(folder)
    assert watching.run(view.id) is None
    folder.mkdir()
    files.write_json(folder / "discovery.json", discovery_document())
    again = watching.run(view.id)
    assert (again.state, again.answer.sentence) == ("finished", "Two variables.")
    assert revision(snapshot(again)) != first
    # Computed again over the old answer: what is running counts.
    write_record(folder / ".progress", start(now), step(now, 1))
    assert (watching.run(view.id).state, watching.run(view.id).answer) == ("running", None)


def test_one_run_is_a_folder_of_runs_too(tmp_path, now):
    write_record(tmp_path / "mine" / ".progress", start(now))
    assert [view.name for view in Watcher(tmp_path / "mine").runs()] == ["mine"]


def test_there_must_be_a_folder(tmp_path):
    with pytest.raises(DataError, match="RUNS_DIR must be an existing folder"):
        Watcher(tmp_path / "none")


def test_links_are_said_and_not_followed(tmp_path, now):
    outside = tmp_path / "outside"
    write_record(outside / ".progress", start(now, sentence="secret"))
    root = tmp_path / "root"
    (root / "mine").mkdir(parents=True)
    files.write_json(root / "mine" / "discovery.json", discovery_document())
    (root / "mine" / "report.html").symlink_to(outside / ".progress" / "live.jsonl")
    (root / "link").symlink_to(outside)
    (root / "inner").mkdir()
    (root / "inner" / ".progress").symlink_to(outside / ".progress")
    watching = Watcher(root)
    found = {view.name: view for view in watching.runs()}
    assert {name: view.state for name, view in found.items()} == {"mine": "finished", "link": "unreadable"}
    assert not found["mine"].has_report
    assert watching.report(found["mine"].id) is None
    assert watching.report(found["link"].id) is None
    assert "secret" not in json.dumps([snapshot(view) for view in found.values()])


def test_ids_are_opaque_and_others_each_time(tmp_path, now):
    write_record(tmp_path / "mine" / ".progress", start(now))
    ids = {Watcher(tmp_path).runs()[0].id for _ in range(3)}
    assert len(ids) == 3
    assert all(len(one) == 16 and "mine" not in one for one in ids)
    assert Watcher(tmp_path).run("mine") is None
    assert Watcher(tmp_path).run("../outside") is None


# --- trainings


@pytest.mark.parametrize("family", [FullyConnected, SmoothNetwork])
def test_trainings_are_read_once_and_rightly(tmp_path, monkeypatch, family):
    nets = {name: write_stage(tmp_path, name, rank, family=family) for name, rank in (("main-wide", 6), ("main-3", 3))}
    for index, name in enumerate(nets):
        os.utime(tmp_path / f"{name}.safetensors", (100 + index,) * 2)
    shelf = StageShelf(Inside(tmp_path))
    wide, three = shelf.stages()
    assert (wide.name, three.name, wide.changed) == ("main-wide", "main-3", 100.0)
    assert (three.loss, three.norm_per_depth) == (0.25, 3.0)
    for stage, net in ((wide, nets["main-wide"]), (three, nets["main-3"])):
        m = net.waist
        expected = torch.linalg.svdvals((net.Ws[m] @ net.Ws[m - 1]).detach().double())[: net.dims[m]]
        assert_close(torch.tensor(stage.values[: len(expected)]), expected[: len(stage.values)], rtol=1e-6, atol=1e-9,
                     reason="the product is taken in float32 here, in float64 there")  # fmt: skip
    assert three.in_use == 3
    read = []
    monkeypatch.setattr(StageShelf, "_load", lambda *_: read.append(1))
    assert len(shelf.stages()) == 2
    assert read == []


def test_unused_coordinates_are_not_counted(tmp_path):
    net = write_stage(tmp_path, "main-3")
    with torch.no_grad():
        net.weights[net.waist - 1][2] *= 1e-5
    tensors = {key: p.detach() for key, p in net.named_parameters()}
    _, metadata = files.read_tensors(tmp_path / "main-3.safetensors")
    kept = {key: metadata[key] for key in ("kind", "identity", "name", "numbers")}
    files.write_tensors(tmp_path / "main-3.safetensors", tensors, kept)
    (stage,) = StageShelf(Inside(tmp_path)).stages()
    assert (stage.in_use, len(stage.values)) == (2, 3)


def test_hostile_trainings_break_nothing(tmp_path, now):
    folder = tmp_path / "mine" / ".progress"
    write_record(folder, start(now), step(now, 1))
    write_stage(folder, "main-3")
    (folder / "garbage.safetensors").write_bytes(b"\xff" * 100)
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "liar.safetensors").write_bytes((2**60).to_bytes(8, "little"))
    (folder / "folder.safetensors").mkdir()
    (folder / "link.safetensors").symlink_to("/etc/passwd")
    config, one = to_parts(FullyConnected.hourglass([3, 2], [2, 4], bias=0.0, dtype=torch.float64))
    bad = {"network": config, "family": "FullyConnected", "loss": "0.5", "norm": "1.0"}
    for name, tensors, numbers in (
        ("mismatch", {"weights.0": np.ones((2, 3)), "weights.1": np.ones((4, 5))}, bad),
        ("vector", {"weights.0": np.ones(3), "weights.1": np.ones(3)}, bad),
        ("nan", {"weights.0": np.full((2, 3), np.nan), "weights.1": np.ones((4, 2))}, bad),
        ("nothing", {"weights.0": np.ones((0, 3)), "weights.1": np.ones((4, 0))}, bad),
        ("far", one, {**bad, "network": {**config, "dims": [3, 10**15, 4]}}),
        ("deep", one, {**bad, "network": {**config, "dims": [1] * 10**4}}),
        ("without", one, {**bad, "network": {**config, "slope": 0.0}}),
        ("unknown", one, {**bad, "network": [3, 2, 4]}),
        ("other", one, {**bad, "family": "other"}),
        ("families", one, {**bad, "family": ["FullyConnected"]}),
        ("word", one, {**bad, "loss": "small"}),
        ("list", one, [1]),
    ):
        files.write_tensors(folder / f"{name}.safetensors", tensors, {"numbers": json.dumps(numbers)})
    # Not finite is not unreadable: that is what a diverged training leaves.
    files.write_tensors(folder / "diverged.safetensors", one, {"numbers": json.dumps({**bad, "loss": "inf"})})
    (view,) = Watcher(tmp_path).runs()
    assert {stage.name for stage in view.stages} == {"main-3", "diverged"}
    assert {stage.name: stage.loss for stage in view.stages}["diverged"] is None
    assert view.state == "running"
    assert view.problem == "15 of the files in it cannot be read"
    json.dumps(snapshot(view), allow_nan=False)


def test_large_trainings_are_left_out(tmp_path, monkeypatch):
    write_stage(tmp_path, "main-3")
    monkeypatch.setattr(record, "STAGE_BYTES", 100)
    shelf = StageShelf(Inside(tmp_path))
    assert (shelf.stages(), shelf.unreadable) == ([], 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"sentence": 1}',
        '{"sentence": "a", "verdict": "b", "replicas": [], "profile": {"rows": [{"error": 1, "start": "x"}]}}',
        '{"sentence": "a", "verdict": "b", "replicas": [], "profile": {"rows": [7]}}',
        '{"sentence": "a", "verdict": "b", "replicas": [], "profile": {"rows": 7}}',
        "[" * 10_000,
    ],
)
def test_damaged_answers_are_unreadable(tmp_path, text):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "discovery.json").write_text(text)
    (view,) = Watcher(tmp_path).runs()
    assert view.state == "unreadable"
    assert snapshot(view)["sentence"] == "Discovery.json cannot be read as that of a discovery"


def test_a_record_of_nonsense_is_unreadable(tmp_path):
    (tmp_path / "mine" / ".progress").mkdir(parents=True)
    (tmp_path / "mine" / ".progress" / "live.jsonl").write_bytes(b"\xff\n" * 100)
    (view,) = Watcher(tmp_path).runs()
    assert (view.state, view.problem) == ("unreadable", "its live record cannot be read")


def test_only_the_newest_runs_are_shown(tmp_path, monkeypatch, now):
    monkeypatch.setattr(watcher, "MOST_RUNS", 2)
    for age in (30, 10, 20):
        write_record(tmp_path / f"run{age}" / ".progress", start(now - age - 1), age=age)
    assert [view.name for view in Watcher(tmp_path).runs()] == ["run10", "run20"]


# --- what is shown


def test_rank_so_far():
    assert rank_so_far({}, None) == "—"
    assert rank_so_far({(0, 0): 0.1}, None) == "—"
    assert rank_so_far({(0, 0): 0.02, (0, 3): 0.02}, None) == "≤ 3"
    assert rank_so_far({(0, 0): 0.02, (0, 3): 0.02, (0, 2): 0.5}, None) == "3"
    assert rank_so_far({(0, 0): 0.02, (0, 1): 0.02}, None) == "1"
    # Another walk has no say; a larger ridge forgives more.
    assert rank_so_far({(0, 0): 0.02, (0, 3): 0.02, (1, 2): 0.02}, None) == "≤ 3"
    assert rank_so_far({(0, 0): 0.02, (0, 3): 0.02, (0, 2): 0.1}, 0.5) == "≤ 2"


def test_figures_of_a_discovery(tmp_path, now):
    folder = tmp_path / "mine" / ".progress"
    write_record(folder, start(now), step(now, 1, error=0.02), step(now, 2, rank=3, error=0.02))
    write_stage(folder, "main-3")
    (view,) = Watcher(tmp_path).runs()
    shown = snapshot(view)
    made = {figure["key"]: figure for figure in shown["figures"]}
    assert list(made) == ["error", "spectrum", "loss", "norm"]
    assert made["error"]["data"][0]["x"] == [3, 4.5]
    assert made["spectrum"]["data"][-1]["y"][0] == 1.0
    assert made["spectrum"]["layout"]["yaxis"]["type"] == "log"
    assert made["norm"]["data"][0]["y"] == [3.0]
    assert {fact["label"]: fact["value"] for fact in shown["facts"]} == {
        "rank so far": "≤ 3",
        "held-out error": "0.02",
        "coordinates in use": "3 of 3",
        "‖θ‖²/L": "3",
        "trainings": "1",
    }
    assert shown["progress"] == {"share": 0.02, "left": "", "done": 2, "total": 100}


def test_the_rank_so_far_goes_by_the_rule_of_the_discovery(tmp_path, now):
    folder = tmp_path / "mine" / ".progress"
    errors = [step(now, 1, error=1e-4), step(now, 2, rank=3, error=1e-4), step(now, 3, rank=2, error=2e-3)]
    found = []
    for told in ({}, {"λ": 1e-4, "resolution": 4e-4, "tolerance": 0.1}):
        write_record(folder, start(now), step(now, 0, **told), *errors)
        (view,) = Watcher(tmp_path).runs()
        found.append({fact["label"]: (fact["value"], fact["note"]) for fact in snapshot(view)["facts"]})
    assert [facts["rank so far"][0] for facts in found] == ["≤ 2", "3"]
    assert "λ" not in found[0]
    assert found[1]["λ"] == ("0.0001", "what explains less than about 0.0004 of the variance is below the resolution")


@pytest.mark.parametrize(
    ("loss", "unit", "whole"),
    [
        ({}, "variance", "the outputs' variance"),
        ({"loss": "mse"}, "variance", "the outputs' variance"),
        ({"loss": "cross_entropy"}, "entropy", "the classes' entropy"),
        ({"loss": {"hostile": []}}, "variance", "the outputs' variance"),
    ],
)
def test_errors_are_shares_of_the_right_thing(tmp_path, now, loss, unit, whole):
    folder = tmp_path / "mine" / ".progress"
    write_record(folder, start(now, **loss), step(now, 1, error=0.02), step(now, 2, rank=3, error=0.02))
    write_stage(folder, "main-3")
    (view,) = Watcher(tmp_path).runs()
    shown = snapshot(view)
    made = {figure["key"]: figure for figure in shown["figures"]}
    assert made["error"]["layout"]["yaxis"]["title"]["text"] == f"held-out error (share of the {unit})"
    assert f"as a share of {whole}, when" in made["loss"]["reading"]
    assert shown["facts"][1]["note"] == f"the best so far, share of the {unit}"
    assert ("variance" in json.dumps(shown)) == (unit == "variance")
    # The same of the answer.
    shutil.rmtree(folder.parent)
    folder.parent.mkdir()
    document = discovery_document()
    document["profile"] |= {f"{key}_kind": value for key, value in loss.items()}
    files.write_json(folder.parent / "discovery.json", document)
    (view,) = Watcher(tmp_path).runs()
    (error,) = snapshot(view)["figures"]
    assert error["layout"]["yaxis"]["title"]["text"] == f"held-out error (share of the {unit})"


def test_figures_of_a_training(tmp_path, now):
    steps = [step(now + i, i, 50, "train", loss=1.0 / i, cost=0.5 / i, rank=4) for i in range(1, 30)]
    write_record(tmp_path / ".F-rank-1.progress", start(now), *steps)
    (view,) = Watcher(tmp_path).runs()
    shown = snapshot(view)
    assert [figure["title"] for figure in shown["figures"]] == ["Loss and cost", "Rank"]
    assert shown["figures"][0]["data"][0]["y"][:2] == [1.0, 0.5]
    assert [fact["label"] for fact in shown["facts"]] == ["loss", "cost", "rank"]
    assert shown["progress"]["left"] == "about 0:21 left"


def test_nothing_to_show_is_no_figure():
    assert figures_of({}, [], {}) == []
    assert len(thin([(float(i), 0.0) for i in range(1001)])) <= 400
    assert thin([(float(i), 0.0) for i in range(1001)])[-1] == (1000.0, 0.0)


def test_hostile_names_stay_text(tmp_path, now):
    folder = tmp_path / "<b>x" / ".progress"
    write_record(folder, start(now, sentence=HOSTILE), step(now, 1, label=HOSTILE, **{HOSTILE: 1.0}))
    write_stage(folder, "<img src=x onerror=alert(1)>")
    (view,) = Watcher(tmp_path).runs()
    # Titles are set as text, as in test_serving_browser: they are the names themselves.
    assert "<img src=x" in snapshot(view)["figures"][0]["title"]
    assert "\u202e" not in json.dumps(snapshot(view), ensure_ascii=False)
