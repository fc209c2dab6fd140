"""Pictures of a sweep: every cell has the rank its seeds have, none is coloured that was not measured."""

import math
import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from isthmus import IsthmusError
from isthmus.measures import estimate_costs
from isthmus.plotting import sweeps as picture
from isthmus.plotting.style import new_figure, render
from isthmus.plotting.sweeps import Swept, curves, gather, pieces
from swept import DEPTHS, RIDGES, norm_at, rank_at, result_of, row_of, sweep_result, unfinished
from tools import assert_close

NAMES = ["$\\frac{a$", "a_b_$c$", "price\n(€)", "温度", "long " * 30, "x\x1b[2J"]


@pytest.fixture(scope="module")
def made():
    return sweep_result()


@pytest.fixture(scope="module")
def found(made):
    return gather(made.frame, made.names)


def setting(found, *values):
    at = tuple(one.values.index(value) for one, value in zip(found.swept, values))
    return next(one for one in found.settings if one.at == at)


def small(states_and_ranks):
    """One setting with these runs."""
    rows = [{"state": s, "depth": 4, "seed": i, "rank": r} for i, (s, r) in enumerate(states_and_ranks)]
    return gather(pd.DataFrame(rows), ["depth"]).settings[0]


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def cells_of(axes):
    """Cells by their place."""
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {(round(box.get_x() + 0.5), round(box.get_y() + 0.5)): box for box in boxes}


def legend_of(axes):
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_known_settings(found):
    assert [one.values for one in found.swept] == [DEPTHS, RIDGES]
    assert len(found.settings) == 24 and found.ranks() == [0, 1, 2, 3]
    plain, split = setting(found, 4, 1e-3), setting(found, 8, 1e-3)
    assert (plain.rank, plain.agreement, plain.told) == (3, 1.0, "rank 3 in 3 of 3 runs")
    assert (split.rank, split.ranks) == (2, {2: 2, 3: 1}) and split.agreement == pytest.approx(2 / 3)
    # Of the failed run's two companions one differs: the smaller rank of two equally frequent ones.
    failed = setting(found, 10, 1e-4)
    assert (failed.rank, failed.agreement, failed.wanting) == (2, 0.5, 1)
    assert failed.told == "rank 2 in 1 of 2 runs, 3 in the others; 1 failed"
    nothing = setting(found, 18, 1e-4)
    assert nothing.rank is None and math.isnan(nothing.agreement) and nothing.told == "3 waiting"


@pytest.mark.parametrize(
    ("runs", "rank", "measured"),
    [
        ([("done", 2.0), ("done", 2.5), ("done", -1)], 2, 1),  # what is no rank is not counted as one
        ([("failed", 3), ("diverged", 3), ("running", 3)], None, 0),  # left over from an earlier attempt
        ([("done", "2"), ("done", None), ("done", float("inf"))], 2, 1),
        ([("done", 0), ("done", 0), ("done", 1)], 0, 3),
    ],
)
def test_what_counts(runs, rank, measured):
    one = small(runs)
    assert (one.rank, one.measured, one.wanting) == (rank, measured, len(runs) - measured)


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(st.sampled_from([4, 6]), st.sampled_from([0.1, 0.2]), st.integers(0, 3)), min_size=1, max_size=12
    )
)
def test_by_the_other_route(runs):
    """The summary of the result counts too, and so does the standard library."""
    rows = [row_of(depth, ridge, i, rank=rank) for i, (depth, ridge, rank) in enumerate(runs)]
    result = result_of(rows, spectra={})
    summary = result.summary()
    for one in (gathered := gather(result.frame, result.names)).settings:
        place = tuple(swept.values[i] for swept, i in zip(gathered.swept, one.at))
        assert one.rank == summary.loc[place, "rank"]
        assert one.agreement == pytest.approx(summary.loc[place, "agreement"])
        ranks = [rank for depth, ridge, rank in runs if (depth, ridge) == place]
        assert one.rank == statistics.mode(sorted(ranks))


@pytest.mark.parametrize(
    ("values", "numeric", "powers"),
    [
        ((4, 6, 8, 10), True, False),
        ((1e-4, 1e-3, 1e-2), True, True),
        ((8, 16, 32, 64), True, True),
        ((1, 2, 5, 100), True, True),  # uneven and far apart
        ((1, 2, 5, 6), True, False),
        (tuple(range(2, 100, 2)), True, False),  # far apart, but even
        ((0, 1, 10, 100), True, False),
        ((3, "auto"), False, False),
        ((False, True), False, False),
        ((7,), False, False),
    ],
)
def test_axes(values, numeric, powers):
    one = Swept("name", values)
    assert (one.numeric, one.logarithmic) == (numeric, powers)


def test_labels_are_short_and_different():
    assert Swept("a", (1e-5, 0.0359381, 1024)).labels == ["1e-05", "0.0359", "1024"]
    assert Swept("a", (0.10001, 0.10002)).labels == ["0.10001", "0.10002"]
    assert Swept("a", (2, True, "auto", None)).labels == ["2", "True", "auto", "none"]
    assert gather(pd.DataFrame({"state": ["done"] * 4, "a": [None, "b", 3.0, True], "seed": 0}), ["a"]).swept[
        0
    ].values == (3, True, "b", None)


def test_pieces_have_the_slopes_they_were_made_with(found):
    families = dict(pieces(found, "depth", estimate_costs))
    assert list(families) == [(-1, 0), (-1, 1), (-1, 2)]
    two = next(piece for piece in families[-1, 1] if piece.rank == 2)
    assert two.fit.state == "computed"
    assert_close([two.fit.R0.value, two.fit.R1.value, two.fit.R2.value], [2.0, 10.0, 2.0], rtol=1e-8, reason="solved")
    # The diverged one is not among them, and by the other route the same.
    assert len(two.keys) == 15 and sorted(set(two.depths)) == [8, 10, 12, 14, 16, 18]
    A = np.stack([two.depths, np.ones(15), 1 / two.depths], axis=1)
    assert_close(two.fit.R0.value, np.linalg.lstsq(A, two.norms)[0][0], rtol=1e-8, reason="solved")
    L, values = two.line(5)
    assert_close(values, [norm_at(depth, 2) for depth in L], rtol=1e-8, reason="solved")
    assert two.told.startswith("rank 2: slope 2 (")
    few = {piece.rank: piece for piece in families[-1, 2]}
    assert few[2].told == "rank 2: too few depths" and not few[2].drawn
    assert few[0].fit is None and few[0].told == "rank 0: nothing left"
    # Seed 1 had not converged.
    assert few[3].converged.tolist() == [True, False, True] * 2 + [True]


def test_norms_that_break_say_so():
    rows = [row_of(depth, 1e-3, 0, rank=2, norm=2.0 * depth if depth < 12 else 5.0 * depth) for depth in range(4, 22)]
    here = pieces(gather(result_of(rows).frame, ["depth"]), "depth", estimate_costs)[0][1]
    assert here[0].fit.state == "not affine" and here[0].told.endswith("not affine")


def test_curves_by_the_other_route(made, found):
    done = made.frame[made.frame["state"] == "done"]
    table = done.groupby(["ridge", "depth"])["loss"].agg(["median", "min", "max"])
    for curve, ridge in zip(curves(found, "depth", "loss"), RIDGES, strict=True):
        expected = table.loc[ridge]
        assert curve.x.tolist() == expected.index.tolist()
        assert_close(np.stack([curve.middle, curve.low, curve.high], 1), expected.to_numpy().copy())


def test_cells_are_coloured_by_rank_and_agreement_or_not_at_all(found):
    axes = new_figure().subplots()
    picture.draw_phase(axes, found, "depth", "ridge")
    cells = cells_of(axes)
    assert len(cells) == 24
    for one in found.settings:
        patch = cells[one.at]
        if one.rank is None:
            assert to_rgba(patch.get_facecolor())[3] == 0.0
        else:
            assert patch.get_facecolor() == to_rgba(picture.colour_of(one.rank), one.agreement)
    # A cross for the failed and the diverged, a dot for what waits.
    marks = sorted((str(line.get_marker()), *np.asarray(line.get_xydata())[0].tolist()) for line in axes.lines)
    assert marks == [(".", 7.0, 0.0), ("x", 3.33, 0.33), ("x", 4.33, 1.33)]
    legend = legend_of(axes)
    assert legend[:4] == ["0: nothing left", "1", "2", "3"] and "paler: fewer seeds agree" in legend


def test_the_whole_picture(made):
    figure = picture.draw_sweep(made.frame, made.names, estimate_costs, title=made.title, where={"ridge": 1e-3})
    told = texts(figure)
    assert len(figure.axes) == 3 and "‖θ‖² against depth at ridge = 0.001" in told
    assert any(one.startswith("rank 2: slope 2 (") for one in told)
    assert render(figure).startswith(b"\x89PNG")
    assert picture.draw_sweep(made.frame, made.names).axes  # without an estimate there are points alone


def test_fewer_and_more_parameters(made):
    one = result_of([row_of(depth, 1e-3, seed) for depth in DEPTHS for seed in range(2)], ("depth",))
    figure = picture.draw_sweep(one.frame, one.names, estimate_costs)
    assert figure.axes[0].get_ylim() == (-0.5, 0.5)  # a strip
    none = result_of([row_of(4, 1e-3, seed) for seed in range(3)], ())
    assert len(picture.draw_sweep(none.frame, none.names).axes) == 1
    rows = [row_of(d, r, 0, width=w, loss=1 / w) for d in DEPTHS for r in RIDGES for w in (8, 16, 32)]
    three = result_of(rows, ("depth", "ridge", "width"))
    figure = picture.draw_sweep(three.frame, three.names, estimate_costs, x="width", y="depth", where={"ridge": 1e-2})
    assert figure.axes[0].get_title(loc="left") == "Rank at ridge = 0.01"
    assert "Loss" in figure.axes[2].get_title(loc="left") and figure.axes[2].get_xscale() == "log"
    shown = cells_of(figure.axes[0])
    for i, depth in enumerate(DEPTHS):
        assert shown[0, i].get_facecolor() == to_rgba(picture.colour_of(rank_at(depth, 1e-2, 0)))


def test_no_rank_no_loss_nothing_at_all():
    frame = pd.DataFrame({"state": ["done", "failed"], "depth": [4, 5], "seed": [0, 0], "seconds": [1.0, None]})
    figure = picture.draw_sweep(frame, ["depth"])
    assert len(figure.axes) == 1
    assert [to_rgba(patch.get_facecolor())[3] for patch in cells_of(figure.axes[0]).values()] == [0.0, 0.0]
    empty = pd.DataFrame({"state": [], "depth": [], "seed": []})
    render(picture.draw_sweep(empty, ["depth"]))
    all_bad = result_of([unfinished(row_of(4, 1e-3, seed), "failed", "no") for seed in range(2)])
    render(picture.draw_sweep(all_bad.frame, all_bad.names, estimate_costs))


def test_names_are_not_mathematics():
    for name, other in (NAMES[:2], NAMES[3:5]):
        rows = [{**row_of(4, 1e-3, i), name: value, other: i} for i, value in enumerate(NAMES)]
        result = result_of(rows, (name, other), title=" ".join(NAMES))
        # Warnings about missing glyphs are errors here.
        picture.draw_sweep(result.frame, result.names, title=result.title).draw_without_rendering()


@pytest.mark.parametrize("wrong", [{"x": "widht"}, {"y": "seed"}, {"where": {"nobody": 1}}, {"where": {"ridge": 7}}])
def test_wrong_names_list_the_right_ones(made, wrong):
    with pytest.raises(IsthmusError, match="draw_sweep"):
        picture.draw_sweep(made.frame, made.names, **wrong)


def test_ranks_beyond_the_colours_share_the_last():
    rows = [row_of(depth, 1e-3, 0, rank=depth) for depth in (4, 7, 9, 12)]
    axes = new_figure().subplots()
    picture.draw_phase(axes, gather(result_of(rows).frame, ["depth"]), "depth", None)
    assert legend_of(axes) == ["4", "7 and more"]
    assert "12" in [text.get_text() for text in axes.texts]
