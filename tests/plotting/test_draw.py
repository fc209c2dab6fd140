"""A figure of plain data on matplotlib's axes: everything that a report draws, with the same numbers and colours."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from isthmus.plotting.draw import COLOURS, draw, edges, settled, sheet
from isthmus.plotting.figure import SHADES, Choice, Column, Figure, axis, layout, lines, powers, remark, rule
from isthmus.plotting.style import new_figure, render
from isthmus.report import page_of
from reported import diagnosis, discovery, hostile, hostile_diagnosis, profile, run, without

NAMES = ["$\\frac{a$", "a_b_$c$", "price\n(€)", "温度", "long " * 30, "x\x1b[2J", "\U0001f600", "\\alpha"]


def axes_of(figure, choices=None):
    axes = new_figure(9, 6, dpi=30).subplots()
    draw(axes, figure, choices)
    return axes


def made(*data, x=None, y=None, **more):
    return Figure("key", "Title", list(data), layout(x or axis("across"), y or axis("up"), **more), (), "")


def test_lines_and_points():
    trace = lines([1, 2, None, 4], [1.0, 2.0, None, 8.0], "@green", name="one", size=10)
    axes = axes_of(made(trace, showlegend=True))
    (line,), (points,) = axes.lines, axes.collections
    assert to_hex(line.get_color()) == COLOURS["green"].lower()
    assert np.isnan(line.get_ydata()[2]) and line.get_ydata()[3] == 8
    assert points.get_offsets()[-1].tolist() == [4, 8]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one"]
    assert (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()) == ("Title", "across", "up")


def test_bars_stand_on_one_another():
    bars = [
        {"type": "bar", "x": [1, 2], "y": y, "name": str(y), "marker": {"color": "@sky"}} for y in ([1, 2], [3, None])
    ]
    axes = axes_of(made(*bars, barmode="stack"))
    assert [(one.get_y(), one.get_height()) for one in axes.containers[1]][0] == (1, 3)


def test_bars_of_names_with_spread():
    spread = {"array": [1.0, 0.0], "arrayminus": [0.5, 0.0], "color": "@ink"}
    bars = {"type": "bar", "orientation": "h", "x": [3.0, 4.0], "y": ["b", "a"], "error_x": spread}
    axes = axes_of(made(bars, y=axis(type="category", autorange="reversed")))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["b", "a"] and axes.yaxis_inverted()
    segments = [path.vertices for part in axes.collections for path in part.get_paths()]
    assert any(np.allclose(one[:, 0], [2.5, 4.0]) for one in segments)


def test_maps_have_their_fields_and_scale():
    heat = {"type": "heatmap", "x": [1, 2, 4], "y": [1, 2], "z": [[0, 1, 2], [3, None, 5]], "colorscale": SHADES}
    axes = axes_of(made({**heat, "colorbar": "how much"}))
    (mesh,) = axes.collections
    assert np.ma.filled(mesh.get_array(), -1).ravel().tolist() == [0, 1, 2, 3, -1, 5]
    assert edges([1, 2, 4]).tolist() == [0.5, 1.5, 3.0, 5.0] and edges([3]).tolist() == [2.5, 3.5]
    assert axes.get_figure().axes[1].get_ylabel() == "how much"


def test_rules_fields_and_words():
    shapes = [rule(2.0, "@ink"), rule(3.0, "@ink", along="y")]
    shapes.append({"type": "rect", "x0": 1, "x1": 2, "fillcolor": "@orange", "opacity": 0.1, "line": {}})
    words = [remark("here", x=1, y=10.0), remark("edge", xref="paper", x=1, y=100.0)]
    axes = axes_of(
        made(lines([1, 3], [1.0, 100.0], "@blue"), shapes=shapes, annotations=words, y=axis(**powers(1, 100)))
    )
    assert [line.get_xdata()[0] for line in axes.lines[1:2]] == [2.0]
    assert axes.lines[2].get_ydata()[0] == 3.0 and len(axes.patches) == 1
    assert [text.xy for text in axes.texts] == [(1, 10.0), (1, 100.0)]
    assert axes.get_yscale() == "log" and [t.get_text() for t in axes.get_yticklabels()] == ["1", "10", "10²"]


def test_marks_of_an_axis_do_not_widen_the_view():
    marks = {"type": "log", "tickvals": [1e-3, 1, 1e3], "ticktext": ["a", "b", "c"]}
    low, high = axes_of(made(lines([1, 2], [1.0, 2.0], "@blue"), y=axis(**marks))).get_ylim()
    assert low > 0.5 and high < 4


def test_menus_settle_what_is_drawn():
    options = [(str(i), {"data.0.y": Column(i), "layout.yaxis.title.text": f"column {i}"}) for i in range(2)]
    figure = Figure(
        "key", "Title", [lines([1, 2], [], "@blue")], layout(axis(), axis()), (), "",
        columns=[[1, 2], [3, 4]], choices=[Choice("which", options, selected=1)],
    )  # fmt: skip
    assert settled(figure)[0][0]["y"] == [3, 4]
    assert axes_of(figure, [0]).get_ylabel() == "column 0"
    # What the figure holds is as it was.
    assert figure.data[0]["y"] == [] and figure.layout["yaxis"]["title"]["text"] == ""


@pytest.mark.parametrize(
    "result",
    [discovery(), discovery(1), hostile(), profile(), run(), diagnosis(), without("none", "wide"), hostile_diagnosis()],
    ids=lambda one: type(one).__name__,
)
def test_every_figure_of_a_report_is_drawn_here_too(result):
    """One description, two ways to draw it."""
    for figure in page_of(result).figures():
        axes_of(figure).get_figure().draw_without_rendering()


def test_names_are_not_mathematics():
    # Warnings about missing glyphs are errors here.
    for name in NAMES:
        marks = axis(name, tickvals=[1], ticktext=[name])
        figure = made(
            {**lines([1], [1.0], "@blue"), "name": name}, x=marks, showlegend=True, annotations=[remark(name, x=1, y=1)]
        )
        axes_of(figure).get_figure().draw_without_rendering()
    render(sheet([], " ".join(NAMES), "determined", why=NAMES, figure=new_figure(5, 3, dpi=30)))


def test_a_sheet_has_the_answer_its_colour_and_the_reasons():
    one = made(lines([1, 2], [1.0, 2.0], "@blue"))
    figure = sheet([(one, None)] * 3, "The answer.", "undetermined", why=["because"])
    assert (
        figure.get_suptitle() == "The answer." and figure.get_supxlabel() == "Why: because." and len(figure.axes) == 3
    )
    assert to_hex(figure._suptitle.get_color()) == COLOURS["vermilion"].lower()
    mine = new_figure(5, 3)
    assert sheet([(one, None)], "The answer.", figure=mine) is mine
    assert any("nothing to draw" in text.get_text() for text in sheet([], "The answer.").texts)
