"""The page of a History: ranks, norms and spectra over the steps of a training, as they were recorded."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from isthmus import cli
from isthmus.diagnosis import History, LayerSnapshot, Snapshot, SpectrumSnapshot
from isthmus.plotting.history import STEPS, VALUES
from isthmus.report import page_of, page_of_document, save, save_report
from isthmus.report.page import Badge, Table
from reported import HOSTILE
from tools import assert_close


def spectrum(*values, rank: int | None = 2):
    s = torch.tensor(values, dtype=torch.float64)
    return SpectrumSnapshot("weight", s, float(s.square().sum()), 1.5, rank, "unclear" if rank is None else "clear")


def snapshot(step, names=("a", "b"), **changes):
    """Rank 2 at the first layer, unclear at the second; the norm is 100 − step."""
    layers = tuple(
        LayerSnapshot(name, "linear", (spectrum(3.0, 1.0),), spectrum(2.0 + step, 1.0, 0.0, rank=None if i else 2))
        for i, name in enumerate(names)
    )
    return replace(Snapshot(step, "measured", "", layers, 100.0 - step, 1.0 / (1 + step)), **changes)


def history(*snapshots, **more):
    return History(snapshots or tuple(map(snapshot, (0, 10, 20))), ("by hand",), {"every": 10}, **more)


def figures(found):
    return {one.key: one for one in page_of(found).figures()}


def test_the_figures_show_what_was_recorded():
    drawn = figures(history())
    assert list(drawn) == ["ranks", "norms", "cost", "spectra"]
    options = dict(drawn["ranks"].choices[0].options)
    assert drawn["ranks"].data[0]["x"] == [0, 10, 20]
    assert options["dimensions of the representation"]["data.0.z"] == [[2, 2, 2], [None] * 3]
    assert options["squared norm of the weights"]["data.0.z"] == [[10, 10, 10]] * 2
    assert_close(options["stable rank of the weights"]["data.0.z"], np.full((2, 3), 1.1111), rtol=1e-4, reason="digits")
    assert drawn["norms"].data[0]["y"] == [100, 90, 80]
    assert drawn["cost"].data[0]["y"] == [1, 0.090909, 0.047619]
    # Powers of ten where the numbers span them.
    assert [drawn[key].layout["yaxis"].get("type") for key in ("norms", "cost", "spectra")] == [None, "log", "log"]
    chosen = drawn["spectra"].choices[0]
    columns = [drawn["spectra"].columns[chosen.options[0][1][f"data.{i}.y"].index] for i in range(VALUES)]
    # Zeros have no place among powers of ten, and no more than three values were kept.
    assert columns == [[2, 12, 22], [1, 1, 1]] + [[None] * 3] * (VALUES - 2)


def test_the_answer_and_the_table():
    page = page_of(history())
    assert (page.answer.sentence, page.answer.verdict, list(page.answer.reasons)) == (
        history().sentence,
        "measured",
        [],
    )
    table = next(one for section in page.sections for one in section.blocks if isinstance(one, Table))
    assert table.rows[1] == [10, "measured", 90.0, 1 / 11, "2, ?", ""]
    assert not any(isinstance(cell, Badge) for row in table.rows for cell in row)


def test_snapshots_that_are_not_whole_are_marked():
    spoiled = snapshot(10, state="failed", note="no forward", layers=(), norm_squared=math.nan, cost=math.nan)
    page = page_of(history(snapshot(0), spoiled, snapshot(20)))
    assert page.answer.verdict == "incomplete" and list(page.answer.reasons) == ["step 10: failed; no forward"]
    norms = next(one for one in page.figures() if one.key == "norms")
    assert norms.data[0]["y"] == [100, None, 80]
    assert [one["x0"] for one in norms.layout["shapes"]] == [10] and "Dotted" in " ".join(norms.reading)
    assert figures(history())["norms"].layout["shapes"] == []


def test_long_histories_are_thinned_and_said():
    drawn = figures(history(*map(snapshot, range(3 * STEPS))))
    steps = drawn["norms"].data[0]["x"]
    assert len(steps) == STEPS and (steps[0], steps[-1]) == (0, 3 * STEPS - 1)
    assert all(f"Drawn are {STEPS} snapshots" in " ".join(one.reading) for one in drawn.values())


@pytest.mark.parametrize(
    "found",
    [
        history(),
        History(()),
        history(snapshot(0, layers=())),
        history(snapshot(0, cost=0.0)),
        history(snapshot(0, HOSTILE, note=HOSTILE[0])),
    ],
    ids=["whole", "empty", "no layers", "cost 0", "hostile"],
)
def test_every_history_has_a_page(found):
    text = save.render(page_of(found))
    assert text.count("<script") == text.count("</script") and "<img" not in text and "<b>bold" not in text
    block = re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL)
    assert block is not None and "NaN" not in block[1] and not set("<>&") & set(block[1])
    assert len(json.loads(block[1])) == len(page_of(found).figures())


# --- from its JSON


def test_the_json_gives_the_same_page(tmp_path, capsys):
    found = history(snapshot(0, HOSTILE, note=HOSTILE[0]), snapshot(10, state="failed", cost=math.nan))
    (tmp_path / "history.json").write_text(found.to_json(), encoding="utf-8")
    save_report(found, tmp_path / "direct.html")
    assert cli.main(["report", str(tmp_path / "history.json"), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["subject"], told["verdict"]) == ("History", "incomplete")
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "direct.html").read_bytes()


def test_numbers_at_the_ends_of_the_range_have_a_page():
    ends = (1.7e308, 1.0, 5e-324, 0.0)
    layers = (LayerSnapshot("a", "linear", (spectrum(*ends),), spectrum(*ends)),)
    wide = [snapshot(step, layers=layers, norm_squared=size, cost=size) for step, size in enumerate(ends)]
    content = json.loads(history(*(replace(one, step=s) for one, s in zip(wide, (-(2**53), 0, 0, 2**53)))).to_json())
    block = re.search(r'id="figures">(.*?)</script>', save.render(page_of_document(content)), flags=re.DOTALL)
    assert block is not None and "Infinity" not in block[1] and "NaN" not in block[1]


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "isthmus.history"}',
        '{"format": "isthmus.history", "version": 1, "snapshots": [{}], "notes": [], "settings": {}}',
        '{"format": "isthmus.history", "version": 1, "snapshots": NaN, "notes": [], "settings": {}}',
        '{"format": "isthmus.history", "format": "isthmus.history"}',
        '{"format": "isthmus.history", "version": 1, "snapshots": ' + "[" * 80 + "]" * 80 + "}",
    ],
    ids=["bare", "no fields", "NaN", "twice", "deep"],
)
def test_what_is_no_history_is_no_page(text, tmp_path, capsys):
    (tmp_path / "history.json").write_text(text, encoding="utf-8")
    assert cli.main(["report", str(tmp_path / "history.json")]) == 3
    assert "history" in capsys.readouterr().err.lower()
    assert not (tmp_path / "report.html").exists()
