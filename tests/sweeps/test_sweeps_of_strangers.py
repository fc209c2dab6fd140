"""The folder of a sweep that comes from a stranger: nothing is written through a link, nothing in it is believed."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings

import pytest
from inline import Inline
from tiny import Tiny

from isthmus import IsthmusError, cli
from isthmus.sweeps import read, sweep


@pytest.mark.parametrize("name", ["index.jsonl", "states", "runs", ".progress", ".lock", "damaged", "sweep.json"])
def test_sweep_and_runs_write_through_no_link(tmp_path, name):
    victim = tmp_path / "elsewhere" / "precious"
    victim.parent.mkdir()
    victim.write_bytes(b"what only the victim may change")

    out = tmp_path / "sweep"
    sweep(Tiny, {"depth": [4]}, out=out, engine=Inline())
    content = {path.name: path.read_bytes() for path in victim.parent.iterdir()}
    path = out / name
    inside = name not in ("index.jsonl", ".lock", "sweep.json")
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(victim.parent if inside else victim)
    cli.main(["runs", str(out)])
    with contextlib.suppress(IsthmusError), warnings.catch_warnings():
        # That nothing can be recorded is said, and all else goes on.
        warnings.simplefilter("ignore", RuntimeWarning)
        sweep(Tiny, {"depth": [4, 5]}, out=out, engine=Inline())
    assert {path.name: path.read_bytes() for path in victim.parent.iterdir()} == content


@pytest.mark.parametrize("forged", ["names", "values", "measured", "seconds", "key", "problem"])
def test_an_index_with_anything_in_it_is_made_again(tmp_path, forged, capsys):

    first = sweep(Tiny, {"depth": [4, 5]}, out=tmp_path, engine=Inline())
    lines = [json.loads(line) for line in (tmp_path / "index.jsonl").read_text().splitlines()]
    if forged == "names":
        lines[0]["names"] = ["depth", "other"]
    for line in lines[1:]:
        if forged == "key":
            line["key"] = "../../x"
        elif forged == "problem":
            line["problem"] = {"a": 1}
        elif forged in line:
            line[forged] = {"values": [1], "measured": {"norm": {"a": [1]}}, "seconds": "<b>"}[forged]
    (tmp_path / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read(tmp_path).frame.equals(first.frame)
    assert cli.main(["runs", str(tmp_path)]) == 0
    capsys.readouterr()
