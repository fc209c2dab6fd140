"""`isthmus report` and `isthmus open`; the folders of the other verbs hold their report."""

import json
import shutil
import webbrowser

import numpy as np
import pandas as pd
import pytest

import isthmus
from isthmus import cli
from isthmus.cli import discovery_folder
from isthmus.report.discovery_page import samples_of
from reported import constant, discovery, run


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return written(tmp_path_factory.mktemp("original") / "found", discovery())


@pytest.fixture
def folder(original, tmp_path):
    """The folder of a discovery, written as `isthmus discover` writes it."""
    return shutil.copytree(original, tmp_path / "found")


def written(path, found):
    document = {"format": discovery_folder.FORMAT, **found.to_dict(), "data": {"file": "data.csv"}}
    document["truth"] = {"rank": 2, "found_from_true": 0.99, "true_from_found": 0.98}
    X = np.random.default_rng(0).standard_normal((len(found.coordinates), 4))
    rows = pd.DataFrame({"row": range(len(X))})
    target = discovery_folder.FOLDER.check(path)
    discovery_folder.write_discovery(target, found, document, rows, samples_of(found, X))
    return path


def test_a_folder_again_gives_the_same_report(folder, tmp_path, capsys):
    assert cli.main(["report", str(folder), "--out", str(tmp_path / "again.html")]) == 0
    assert "again.html" in capsys.readouterr().out
    again = (tmp_path / "again.html").read_bytes()
    assert again == (folder / "report.html").read_bytes()
    assert b"input x0" in again and b"data.csv" in again and b"Learned against true" in again


def test_where_it_is_written(folder, capsys):
    (folder / "report.html").unlink()
    assert cli.main(["report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(folder / "report.html") and told["verdict"] == "determined"
    assert told["bytes"] == (folder / "report.html").stat().st_size


def test_from_the_json_alone_or_without_the_maps(folder, tmp_path):
    out = tmp_path / "report.html"
    (folder / "model.safetensors").unlink()
    for source in (folder / "discovery.json", folder):
        assert cli.main(["report", str(source), "--out", str(out)]) == 0
        assert "holds no samples" in out.read_text(encoding="utf-8")


def test_folders_of_earlier_times_and_of_rank_0(folder, tmp_path):
    (folder / "samples.csv").unlink()
    assert cli.main(["report", str(folder)]) == 0
    assert "predicted y0" in (folder / "report.html").read_text(encoding="utf-8")
    assert cli.main(["report", str(written(tmp_path / "constant", constant()))]) == 0


def test_of_a_run_and_of_a_saved_file(tmp_path):
    run().write(tmp_path / "run")
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    assert "pi is three" in (tmp_path / "run/report.html").read_text(encoding="utf-8")
    # The report is no part of the record, and does not stand in its way.
    assert isthmus.Run.read(tmp_path / "run").key == run().key
    run().write(tmp_path / "run")
    isthmus.save(discovery(), tmp_path / "found.safetensors")
    assert cli.main(["report", str(tmp_path / "found.safetensors"), "--out", str(tmp_path / "b.html")]) == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{}", "must be the JSON of a discovery"),
        ("a.json", '{"format": "isthmus discovery"}', "must be that of a Discovery"),
        ("a.json", "nothing", "must be strict JSON"),
        ("missing", None, "no such file"),
        (".", None, "neither discovery.json nor config.json"),
    ],
)
def test_what_is_no_result_is_bad_data(tmp_path, capsys, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert cli.main(["report", str(tmp_path / name), "--out", str(tmp_path / "out.html")]) == 3
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_damaged_samples_are_refused(folder, capsys):
    path = folder / "samples.csv"
    path.write_text("x:x0\nred\n", encoding="utf-8")
    assert cli.main(["report", str(folder)]) == 3
    assert "columns beside" in capsys.readouterr().err


def test_the_source_is_not_overwritten(folder):
    answer = folder / "discovery.json"
    before = answer.read_bytes()
    assert cli.main(["report", str(answer), "--out", str(answer)]) == 2
    assert answer.read_bytes() == before


def test_open(folder, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    assert cli.main(["open", str(folder)]) == 0
    (folder / "report.html").unlink()
    assert cli.main(["open", str(folder)]) == 0
    assert asked == [(folder / "report.html").resolve().as_uri()] * 2
    assert cli.main(["open", str(folder / "discovery.json")]) == 2
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    capsys.readouterr()
    assert cli.main(["open", str(folder)]) == 2
    assert "a browser must be there" in capsys.readouterr().err


def test_reproduce_writes_one_and_replaces_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.main(["reproduce", "E-linear", "--quick", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert "E-linear" in (tmp_path / told["report"]).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["model.safetensors", "samples.csv", "discovery.json"])
def test_only_a_report_is_replaced(folder, capsys, name):
    before = (folder / name).read_bytes()
    assert cli.main(["report", str(folder), "--out", str(folder / name)]) == 2
    assert "--out must be a new file or a report" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (folder / name).read_bytes() == before
    for other in (folder / "page", folder / "old.html"):
        other.touch()
        for _ in range(2):
            assert cli.main(["report", str(folder), "--out", str(other)]) == 0
