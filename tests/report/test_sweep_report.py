"""The page of a sweep: its numbers and no others, what went wrong first, small however many runs there are."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import isthmus
from docs_site import DOCS
from isthmus import FileFormatError
from isthmus.plotting import sweeps
from isthmus.plotting.sweeps import gather
from isthmus.report import page_of, save, sweep_page
from isthmus.report.page import Badge, Notes, Phase, Table
from isthmus.sweeps import result as sweep_results
from reported import HOSTILE
from swept import DEPTHS, RIDGES, norm_at, rank_at, result_of, row_of, spectrum_at, sweep_result, unfinished
from tools import assert_close

ROUNDED = "figures carry five digits, spectra three"


@pytest.fixture(scope="module")
def made():
    return sweep_result()


@pytest.fixture(scope="module")
def page(made):
    return page_of(made)


def blocks(page, kind):
    return {one.key: one for section in page.sections for one in section.blocks if isinstance(one, kind)}


def figures(result):
    return {one.key: one for one in page_of(result).figures()}


def test_the_answer_and_what_went_wrong_first(made, page):
    assert page.answer.verdict == "failures" and list(page.answer.reasons) == ["1 failed", "1 diverged"]
    assert page.answer.sentence == "67 of 72 runs are done; they end with ranks from 0 to 3."
    assert [one.key for one in page.sections] == ["problems", "ranks", "norms", "losses", "runs", "origin"]
    table = blocks(page, Table)["problems"]
    assert [(row[0], row[1], row[2], row[3]) for row in table.rows] == [
        (Badge("failed"), 10, 1e-4, 0),
        (Badge("diverged"), 12, 1e-3, 1),
    ]
    assert "samples must be finite" in table.rows[0][4]
    text = save.render(page)
    assert text.index("samples must be finite") < text.index("Rank over the settings")
    facts = {one.label: one.value for one in page.facts}
    assert facts["runs done"] == "67" and facts["settings"] == "24" and facts["ranks"] == "0 … 3"
    split = sum(len(one.ranks) == 1 for one in gather(made.frame, made.names).settings if one.measured > 1)
    assert facts["settings where all seeds agree"] == str(split)
    assert sum(len(section.blocks) for section in page.sections if section.key == "norms") == 2


@pytest.mark.parametrize(
    ("states", "verdict"),
    [(["done", "done"], "complete"), (["done", "waiting"], "incomplete"), (["done", "failed"], "failures")],
)
def test_verdicts(states, verdict):
    rows = [row_of(4, 1e-3, i) if s == "done" else unfinished(row_of(4, 1e-3, i), s) for i, s in enumerate(states)]
    found = page_of(result_of(rows))
    assert found.answer.verdict == verdict
    assert ("problems" in [one.key for one in found.sections]) == (verdict == "failures")


def test_a_sweep_without_configurations():
    whole = sweep_result()
    found = page_of(replace(whole, frame=whole.frame.iloc[:0], spectra={}, problems=()))
    assert found.answer.verdict == "empty" and not found.figures()


def test_cells_say_what_their_seeds_say(made, page):
    phase = blocks(page, Phase)["phase"]
    content = phase.content
    assert (content["names"], content["titles"]) == (["depth", "ridge"], ["depth", "ridge (logarithmic)"])
    assert (content["across"], content["up"]) == (0, 1)
    assert content["labels"] == [[str(depth) for depth in DEPTHS], ["0.0001", "0.001", "0.01"]]
    place = {tuple(cell[0]): cell for cell in content["cells"]}
    for (i, depth), (j, ridge) in itertools.product(enumerate(DEPTHS), enumerate(RIDGES)):
        _, text, kind, agreement, told, first, count = place[i, j]
        rows = made.frame[(made.frame["depth"] == depth) & (made.frame["ridge"] == ridge)]
        ranks = rows[rows["state"] == "done"]["rank"]
        assert count == len(rows) == 3 and {row[-2] for row in content["runs"][first : first + 3]} == set(rows.index)
        if len(ranks):
            assert text == str(int(ranks.mode().iloc[0])) and kind.startswith(f"rank r{text}")
            assert agreement == pytest.approx((ranks == ranks.mode().iloc[0]).mean(), abs=1e-3)
            assert ("wanting" in kind) == (len(ranks) < 3) and ("firm" in kind) == (agreement > 0.9)
        else:
            # Nothing measured, nothing coloured.
            assert (text, kind, agreement, told) == ("·", "unmeasured", None, "3 waiting")
    # The view without a script: largest ridge on top.
    assert [label for label, _ in phase.rows] == ["0.01", "0.001", "0.0001"]
    assert [content["cells"][i][0] for i in phase.rows[0][1]] == [[i, 2] for i in range(8)]
    told = [mark[2] for mark in phase.marks]
    assert told[:4] == ["nothing left", "rank 1", "rank 2", "rank 3"] and "nothing measured yet" in told
    assert not any("failed or diverged" in one and "nothing" in one for one in told)
    assert content["heads"] == ["seed", "state", "rank", "‖θ‖²", "loss", "training", "key", "error"]


def test_spectra_are_those_of_the_runs(made, page):
    content = blocks(page, Phase)["phase"].content
    assert content["layers"] and len(content["spectra"]) == len(content["runs"]) == 72
    for row, spectrum in zip(content["runs"], content["spectra"]):
        key, state = row[-2], row[1]
        if state != "done":
            assert spectrum is None
            continue
        depth, ridge, seed = (made.frame.loc[key, name] for name in ("depth", "ridge", "seed"))
        rank = rank_at(depth, ridge, seed)
        assert spectrum[:2] == [f"seed {seed}: rank {rank}", rank]
        assert_close(np.array(spectrum[2]).T, spectrum_at(int(depth), rank, seed), rtol=1e-2, reason=ROUNDED)


def test_spectra_that_cannot_be_read_are_left_out(made):
    class Broken(dict):
        def __getitem__(self, key):
            raise FileFormatError("torn")

    result = sweep_result(spectra=Broken(made.spectra))
    phase = blocks(page_of(result), Phase)["phase"]
    assert phase.figure == "" and not any(phase.content["spectra"]) and "cell" not in figures(result)
    strange = sweep_result(spectra={key: np.full((3, 2), np.nan) for key in made.spectra})
    assert figures(strange)["cell"].layout["yaxis"]["range"][0] < -6


def test_norms_and_what_was_fitted(page):
    figure = next(one for one in page.figures() if one.key == "norms")
    names = dict(figure.choices[0].options)
    assert list(names) == ["ridge = 0.0001", "ridge = 0.001", "ridge = 0.01"]
    data = names["ridge = 0.001"]["data"]
    two = next(trace for trace in data if trace.get("name", "").startswith("rank 2"))
    assert two["name"].startswith("rank 2: slope 2 (")
    assert_close(two["y"], [norm_at(x, 2) for x in two["x"]], rtol=1e-4, reason=ROUNDED)
    assert two["marker"]["line"]["color"] == "@blue" and "@paper" in two["marker"]["color"]
    table = blocks(page, Table)["costs"]
    rows = {(row[0], row[1]): row for row in table.rows}
    assert rows["ridge = 0.001", 2][4].startswith("2 (") and rows["ridge = 0.001", 2][5].startswith("10 (")
    assert rows["ridge = 0.01", 2][4:] == ["—", "—", "too few depths"]
    assert not any(rank == 0 for _, rank in rows)


def test_losses_against_every_number(made, page):
    drawn = {one.key: one for one in page.figures() if one.key.startswith("loss")}
    assert list(drawn) == ["loss-0", "loss-1"]
    first = drawn["loss-0"].data
    done = made.frame[made.frame["state"] == "done"]
    for trace, ridge in zip(first, RIDGES, strict=True):
        expected = done[done["ridge"] == ridge].groupby("depth")["loss"].agg(["median", "min", "max"])
        assert_close(trace["y"], expected["median"].to_numpy().copy(), rtol=1e-4, reason=ROUNDED)
        high = np.array(trace["y"]) + trace["error_y"]["array"]
        assert_close(high, expected["max"].to_numpy().copy(), rtol=1e-3, reason=ROUNDED)
    assert drawn["loss-1"].layout["xaxis"]["type"] == "log"
    # Width stands first where it is swept; many curves have a menu.
    rows = [row_of(d, 1e-3, 0, width=w, loss=1 / w) for d in range(4, 16) for w in (8, 16, 32)]
    wide = figures(result_of(rows, ("depth", "width")))
    assert wide["loss-0"].title == "Loss against width" and len(wide["loss-0"].choices[0].options) == 12
    assert_close(wide["loss-0"].data[0]["y"], [1 / 8, 1 / 16, 1 / 32], rtol=1e-4, reason=ROUNDED)


def test_fewer_parameters_no_rank_and_nothing():
    strip = result_of([row_of(depth, 1e-3, seed) for depth in DEPTHS for seed in range(2)], ("depth",))
    content = blocks(page_of(strip), Phase)["phase"].content
    assert (content["across"], content["up"]) == (0, None) and len(blocks(page_of(strip), Phase)["phase"].rows) == 1
    assert not figures(strip)["norms"].choices
    one = result_of([row_of(4, 1e-3, seed) for seed in range(3)], ())
    assert blocks(page_of(one), Phase)["phase"].rows == [("", [0])]
    rows = [{"state": s, "noise": 0.1 * i, "seed": 0} for i, s in enumerate(["done", "failed", "done"])]
    bare = page_of(result_of(rows, ("noise",)))
    cells = blocks(bare, Phase)["phase"].content["cells"]
    assert [(cell[1], cell[2]) for cell in cells] == [
        ("1/1", "unmeasured"),
        ("0/1", "unmeasured bad"),
        ("1/1", "unmeasured"),
    ]
    for found in (page_of(strip), page_of(one), bare):
        block = re.search(r'id="phases">(.*?)</script>', save.render(found), flags=re.DOTALL)
        assert block is not None and "NaN" not in block[1] and len(json.loads(block[1])) == 1


def test_three_parameters_start_where_most_was_computed():
    rows = [row_of(d, r, 0, width=w) for d in (4, 6) for r in RIDGES for w in (8, 16, 32)]
    rows = [unfinished(row, "waiting") if row["width"] != 16 else row for row in rows]
    phase = blocks(page_of(result_of(rows, ("depth", "ridge", "width"))), Phase)["phase"]
    assert phase.content["held"][2] == 1 and any("Choose which two" in one for one in phase.reading)
    shown = [phase.content["cells"][i] for _, row in phase.rows for i in row]
    assert len(shown) == 6 and all(cell[0][2] == 1 and cell[1] != "·" for cell in shown)


def hostile():
    rows = []
    for (i, text), value in itertools.product(enumerate(HOSTILE), (1, 2, 5)):
        row = {**row_of(4 + i, 1e-3, 0), HOSTILE[0]: text, HOSTILE[1]: value, "note": text}
        rows.append(unfinished(row, "failed", text) if i % 2 and value == 2 else row)
    return result_of(rows, HOSTILE[:2], problems=HOSTILE, title=HOSTILE[0], experiment=HOSTILE[2])


def test_hostile_names_values_and_errors_are_text():
    text = save.render(page_of(hostile()))
    assert text.count("<script") == 6 and "<img" not in text and "<b>bold" not in text
    for name in ("figures", "phases"):
        block = re.search(rf'id="{name}">(.*?)</script>', text, flags=re.DOTALL)
        assert block is not None and not set("<>&\u2028\u2029") & set(block[1])
    assert max(len(row[-1]) for row in blocks(page_of(hostile()), Phase)["phase"].content["runs"]) <= sweep_page.MESSAGE


def many(depths, ridges, seeds, **more):
    rows = [
        {"state": "done", "depth": d, "ridge": r, "seed": s, "rank": 2, "norm": 2.0 * d + s, "loss": r + s, **more}
        for d, r, s in itertools.product(range(4, 4 + depths), np.geomspace(1e-5, 1e-1, ridges).tolist(), range(seeds))
    ]
    result = result_of(rows, spectra={})
    spectrum = np.geomspace(1.3, 1e-7, 20)[None] * np.ones((9, 1))
    return replace(result, spectra=dict.fromkeys(result.frame.index, spectrum))


def test_beyond_some_runs_the_middle_layer_and_the_first_rows():
    result = many(10, 11, 5, extra=1.0, **{f"m{i}": 0.5 for i in range(12)})
    page = page_of(result)
    content = blocks(page, Phase)["phase"].content
    assert len(result.frame) > sweep_page.ALL_LAYERS and not content["layers"]
    assert_close(content["spectra"][0][2], np.geomspace(1.3, 1e-7, 20)[:8], rtol=1e-2, reason=ROUNDED)
    assert "only the middle layer" in " ".join(figures(result)["cell"].reading)
    runs = blocks(page, Table)["runs"]
    assert len(runs.rows) == sweep_results.RUNS and "250 are left out here: `to_frame()`" in runs.reading[0]
    assert "more measured numbers" in runs.reading[1] and len(runs.heads) < 18
    # Few runs of large networks are cut in the same way.
    small = many(2, 2, 2)
    assert blocks(page_of(small), Phase)["phase"].content["layers"]
    large = np.ones((5000, 12))
    deep = result_of([row_of(4, 1e-3, i) for i in range(8)], spectra={})
    deep = replace(deep, spectra=dict.fromkeys(deep.frame.index, large))
    assert not blocks(page_of(deep), Phase)["phase"].content["layers"]


def test_many_problems_are_counted():
    rows = [unfinished(row_of(4, 1e-3, seed), "failed", f"error {seed}") for seed in range(250)]
    page = page_of(result_of(rows, problems=[f"problem {i}" for i in range(20)]))
    table = blocks(page, Table)["problems"]
    assert len(table.rows) == sweep_results.PROBLEMS and "50 more are left out" in table.reading[0]
    notes = [one for section in page.sections for one in section.blocks if isinstance(one, Notes)]
    assert len(page.answer.reasons) + len(notes[0].sentences) == 20


def test_the_same_result_the_same_bytes_and_the_folder_by_name(tmp_path):
    result = sweep_result(folder=tmp_path / "secret" / "mine")
    text = save.render(page_of(result))
    assert text == save.render(page_of(sweep_result(folder=tmp_path / "secret" / "mine")))
    assert "secret" not in text and ">mine<" in text and "isthmus runs" not in text


def test_colours_of_ranks_are_the_same_everywhere():
    css = save._asset("report.css")
    for rank, colour in enumerate(sweeps.COLOURS):
        assert f".r{rank} {{ --rank: var(--{colour[1:]}); }}" in css


def test_the_page_on_reading_a_sweep_says_what_its_numbers_say():
    text = (DOCS / "how_to_read_a_sweep.md").read_text(encoding="utf-8")
    kept = json.loads((DOCS / "figures" / "sweep.json").read_text(encoding="utf-8"))
    agree, settings = kept["agree"]
    assert f"at {settings} settings" in text and f"agree at {agree} of the {settings} settings" in text
    assert len(kept["settings"]) == settings
    rows = [(one["rank"], *one["R0"]) for one in kept["slopes"]]
    assert len(rows) == 8 and all(low <= rank <= high for rank, _, low, high in rows)
    assert sum(high - low < 3 for _, _, low, high in rows) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("depths", "ridges", "seeds"), [(100, 100, 1), (50, 40, 5)])
def test_ten_thousand_runs_are_ten_megabytes_at_most(tmp_path, depths, ridges, seeds):
    result = many(depths, ridges, seeds, cost=0.1, training="converged", converged=True, seconds=3.25, error="e" * 500)
    assert len(result.frame) == 10_000
    size = isthmus.save_report(result, tmp_path / "report.html").stat().st_size
    print(f"{size / 1e6:.2f} MB")
    assert size < 10e6
