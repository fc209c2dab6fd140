"""The page of a Diagnosis: its numbers and no others, from the object or from its JSON."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import FileFormatError, IsthmusError
from isthmus.diagnosis import Evidence, Spectrum, WeightDiagnosis, diagnose
from isthmus.diagnosis._result import MOST_VALUES
from isthmus.measures import Reading
from isthmus.plotting import depth
from isthmus.plotting.figure import LAYERS, Layers
from isthmus.report import page_of, page_of_document, save
from isthmus.report.page import Table
from reported import diagnosis, hostile_diagnosis, layer, spectrum, without
from tools import SEED, assert_close, gaussian, three_part_net

ROUNDED = "figures carry five digits"


def around():
    """A small network whose convolution is bypassed; its positions are samples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)

        class Around(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(32, 3)

            def forward(self, x):
                return self.head((x + self.inner(x)).flatten(1))

        return Around().double()


@pytest.fixture(scope="module")
def real():
    X = gaussian(80, 12)
    return diagnose(three_part_net(3, depth=6).to_torch(), X, gaussian(80, 10, seed=1), ridge=1e-3)


def figures(found):
    return {one.key: one for one in page_of(found).figures()}


def table(page, key):
    found = (one for section in page.sections for one in section.blocks)
    return next(one for one in found if isinstance(one, Table) and one.key == key)


def test_the_answer_and_the_facts():
    page = page_of(diagnosis())
    assert (page.subject, page.title) == ("Diagnosis", "Made")
    assert page.answer.sentence == diagnosis().sentence and page.answer.verdict == "determined"
    assert list(page.answer.reasons) == ["two stand out", "so says J"]
    assert [(one.label, one.value) for one in page.facts] == [
        ("bottleneck rank", "2"),
        ("layers in the isthmus", "2 of 6"),
        ("samples", "20"),
        ("parameters", "1,234"),
    ]
    assert page.facts[1].note == "from b to c"
    order = ["layers", "agreement", "representations", "weights", "jacobians", "network", "notes", "origin"]
    assert [section.key for section in page.sections] == order


@pytest.mark.parametrize(("verdict", "shown"), [("none", "none"), ("undetermined", "?")])
def test_a_network_without_a_rank(verdict, shown):
    page = page_of(without(verdict, "nothing drops"))
    assert page.answer.verdict == verdict and page.facts[0].value == shown
    drawn = {one.key: one for one in page.figures()}
    # No rank, no line, no shade, and no way of counting is judged by it.
    for key in ("counts", "agreement", "weights-map", "representations-lines"):
        assert drawn[key].layout.get("shapes", []) == [], key
    assert all(row[2] == "" for row in table(page, "agreement-numbers").rows)


def test_without_a_bottleneck_the_page_says_what_there_is():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        net = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 12))
    found = diagnose(net, gaussian(80, 12, dtype=torch.float32))
    page = page_of(found)
    assert page.sections[0].key == "effective"
    facts = {one.label: one.value for one in page.facts}
    assert facts["dimensions"].endswith(f" of {found[found.narrowest.layer].units}")
    assert "freshly initialised" in facts and facts["carried"].endswith("%")
    drawn = figures(found)["effective"]
    marks = {one["name"]: one["y"] for one in drawn.data if one.get("mode") == "markers"}
    values = [one.effective.participation.value for one in found.layers if one.effective]
    assert_close(torch.tensor(marks["this network"]), values, rtol=1e-4, reason=ROUNDED)
    # Lines from the low to the high end of each interval.
    lines = next(one["y"] for one in drawn.data if one.get("mode") == "lines")
    assert len(lines) == 3 * len(values)


def test_counts_by_layer():
    figure = figures(diagnosis())["counts"]
    traces = [(one["name"], one["marker"].get("symbol"), one["x"], one["y"]) for one in figure.data]
    assert traces == [
        ("units", None, [1, 2, 3, 4, 5, 6], [4, 4, 4, 4, 4, None]),
        # Both matrices of c say 2: one mark. What is unclear has none.
        ("weights", "square", [2, 3], [2, 2]),
        ("weights", "square-open", [4], [2]),
        # All positions together, where that differs.
        ("representation", "circle", [2, 3, 5], [2, 2, 3]),
        ("representation", "circle-open", [4], [2]),
        ("Jacobian", "triangle-up", [2, 3, 5], [3, 3, 3]),
        ("Jacobian", "triangle-up-open", [4], [3]),
    ]
    assert [one["showlegend"] for one in figure.data[1:]] == [True, False] * 3
    shade = figure.layout["shapes"][0]
    assert (shade["x0"], shade["x1"]) == (1.5, 3.5)
    assert figure.layout["xaxis"]["ticktext"] == ["a", "b", "c", "around", "(output)", "never"]
    # A count of zero has a place on the logarithmic axis.
    zero = figures(diagnosis([layer("z", representation=spectrum(0.0, 0.0, status="zero", count=0))]))["counts"]
    assert zero.data[2]["y"] == [0.5] and zero.data[2]["text"] == ["z, representation: 0"]
    assert zero.layout["yaxis"]["ticktext"][0] == "0"


def test_the_agreement_panel():
    points = figures(diagnosis())["agreement"].data[0]
    assert points["x"] == [2.0, 3.0, 1.9, 1.25]  # what is not known is in the table only
    assert points["marker"]["symbol"] == ["circle", "circle", "circle", "circle-open"]
    assert points["marker"]["color"] == ["@green", "@blue", "@green", "@blue"]
    judged = [getattr(row[2], "word", row[2]) for row in table(page_of(diagnosis()), "agreement-numbers").rows]
    # The answer itself; more than the rank, for no reason; the same; less, with the reason; not measured.
    assert [text.partition(":")[0] for text in judged] == ["", "unexplained", "agrees", "counts something else", ""]
    wide = diagnosis(agreement=(Evidence("AGOP gap", 300.0, 300, ""), Evidence("none", 0.0, 0, "")))
    figure = figures(wide)["agreement"]
    assert figure.layout["xaxis"]["type"] == "log" and figure.data[0]["x"] == [300.0, 0.5]
    assert "agreement" not in figures(diagnosis(agreement=()))


def test_spectra_through_depth():
    drawn = figures(diagnosis())
    heat, drops = drawn["representations-map"].data
    assert heat["text"][0] == ["a", "b", "c", "around", "(output)"]
    expected = [[1, 0.9, None], [1, 0.5, 0.001], [1, 0.5, 0.001], [1, 0.5, 0.001], [1, 1, 1]]
    assert np.array(heat["customdata"]).T.tolist() == expected
    lines = drawn["representations-lines"]
    assert [list(row) for row in zip(*(one["y"] for one in lines.data[::-1]))] == expected
    assert lines.drives == ("representations-layer", [1, 2, 3, 4, 5])
    # A mark where the drop is clear: at b, c and around.
    assert (drops["x"][::3], drops["y"][::3]) == ([1.5, 2.5, 3.5], [2.5, 2.5, 2.5])
    # Every matrix of a layer has its place.
    assert drawn["weights-map"].data[0]["text"][0] == ["b", "c · part 0", "c · part 1", "around"]
    assert [(one["x0"], one["x1"]) for one in drawn["weights-lines"].layout["shapes"]] == [(0.5, 3.5)]
    # Below the floor is at the floor; the third value of the Jacobian still stands out, the fourth does not.
    name, setting = drawn["jacobians-layer"].choices[0].options[0]
    assert name == "b" and setting["data.0.y"] == [1, 0.5, 0.25, depth.FLOOR]
    assert setting["data.0.marker.color"] == ["@blue"] * 3 + ["@vermilion"]


def test_sizes_and_numbers_of_the_whole():
    page = page_of(diagnosis())
    options = dict(next(one for one in page.figures() if one.key == "sizes").choices[0].options)
    assert options["squared norm ‖W‖²"]["data.0.y"] == [25.0, 50.0, 25.0]
    assert options["largest singular value"]["data.0.y"] == [4.0, 4.0, 4.0]
    assert_close(options["stable rank ‖W‖²/s₁²"]["data.0.y"][0], 25.000016 / 16, rtol=1e-4, reason=ROUNDED)
    # The line at the rank only beside what it is compared with.
    assert [len(setting["layout.shapes"]) for setting in options.values()] == [2, 1, 2]
    rows = {row[0]: row[1:] for row in table(page, "whole").rows}
    assert rows["squared norm ‖θ‖²"][0] == 50.0 and "Σ‖W_ℓ‖²" in rows["squared norm ‖θ‖²"][1]
    assert rows["distance from a minimum"][0] == 0.25 and "cost" not in rows
    assert any("≤ 1e-9" in row[2] for row in table(page, "quantities").rows)


def test_the_table_says_what_a_real_diagnosis_says(real):
    """By the other route: the frame."""
    layers = table(page_of(real), "layers")
    frame = real.to_frame()
    column = {head: [row[i] for row in layers.rows] for i, head in enumerate(layers.heads)}
    assert column["layer"] == list(frame["layer"])
    for head, key in (
        ("‖W‖", "norm"),
        ("largest s(W)", "largest"),
        ("stable rank", "stable_rank"),
        ("bypass", "bypass"),
    ):
        assert_close(column[head], frame[key].to_numpy(dtype=float).copy())
    for head, key in (("rank of W", "weight_rank"), ("dimensions", "dimensions"), ("rank of J", "jacobian_rank")):
        assert column[head] == ["?" if value is None else str(value) for value in frame[key].replace({np.nan: None})]
    marked = [name for name, where in zip(column["layer"], column["where"]) if where]
    assert marked == list(real.isthmus.layers)
    share = real.layers[4].representation.values
    drawn = figures(real)["representations-layer"].choices[0].options[4][1]["data.0.y"]
    assert_close(drawn, (share / share[0]).clamp_min(depth.FLOOR)[: depth.VALUES], rtol=1e-4, reason=ROUNDED)


def test_from_the_json_the_same_bytes_and_nothing_computed(real, monkeypatch):
    pages = [save.render(page_of(found)) for found in (real, diagnosis(), hostile_diagnosis())]
    for name in ("svd", "svdvals", "eigvalsh", "eigh"):
        monkeypatch.setattr(torch.linalg, name, None)
    monkeypatch.setattr(nn.Module, "__call__", None)
    for found, expected in zip((real, diagnosis(), hostile_diagnosis()), pages):
        assert save.render(page_of_document(json.loads(found.to_json()))) == expected


def test_every_diagnosis_has_a_page():
    empty = Spectrum(torch.zeros(0, dtype=torch.float64), "not computed", float("nan"), None, "not finite")
    broken = layer("x", representation=empty, jacobian=None, weights=0, bypass=float("nan"))
    cases = [
        without("undetermined", "the outputs are not finite", layers=(broken,), agreement=(), whole={}),
        without("none", "no layers", agreement=(), notes=(), settings={}, provenance={}),
        diagnosis([layer("0", weights=1)], inside=("0",)),
        diagnose(around(), gaussian(12, 2, 4, 4)),
    ]
    for found in cases:
        page = page_of(found)
        text = save.render(page)
        block = re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL)
        assert block is not None and "NaN" not in block[1] and len(json.loads(block[1])) == len(page.figures())
    assert [one.key for one in page_of(cases[0]).figures()] == ["counts"]


def test_long_spectra_stand_at_their_numbers():
    count = 3 * MOST_VALUES
    values = 2.0 ** -torch.arange(count, dtype=torch.float64).clamp_max(900)
    found = diagnosis([layer("long", representation=Spectrum(values, "exact"))], inside=("long",))
    shown = figures(found)["representations-layer"].choices[0].options[0][1]["data.0.y"]
    expected = [max(2.0**-i, depth.FLOOR) for i in range(depth.VALUES)]
    assert_close(shown, expected, rtol=1e-4, reason=ROUNDED)


def test_many_layers_are_cut_and_said():
    many = [layer(f"part.{i}") for i in range(LAYERS + 5)]
    drawn = figures(diagnosis(many, inside=("part.3",)))
    for key in ("counts", "representations-lines", "weights-map", "sizes"):
        assert f"Only the first {LAYERS} of {LAYERS + 5}" in " ".join(drawn[key].reading), key
    assert len(drawn["counts"].data[0]["x"]) == len(drawn["weights-layer"].choices[0].options) == LAYERS
    assert len(drawn["counts"].layout["xaxis"]["ticktext"]) <= 32
    assert not any("Only the first" in " ".join(one.reading) for one in figures(diagnosis()).values())


def test_a_network_of_fifty_layers_is_small():
    values = torch.linspace(1, 0.1, 2000, dtype=torch.float64)
    wide = Spectrum(values, "exact", 0.0, Reading("full", 2000, 1.0, 1.0, 0.0))
    parts = tuple(WeightDiagnosis(f"part {i}", (2000, 2000), 1.0, wide) for i in range(2))
    deep = [layer(f"encoder.layers.{i}.attention", weights=0, representation=wide, jacobian=wide) for i in range(50)]
    found = without("none", "wide", layers=tuple(replace(one, weights=parts) for one in deep))
    assert len(save.render(page_of(found)).encode()) < 10e6


def test_shades_of_layers():
    layers = Layers(range(1, 8), list("abcdefg"), [2, 3, 6, 99])
    assert [(one["x0"], one["x1"]) for one in layers.shades()] == [(1.5, 3.5), (5.5, 6.5)]
    assert Layers.numbered(0, 2).axis()["dtick"] == 1
    assert Layers([1, 2], ["x" * 30 + ".end", "<b>"]).axis()["ticktext"] == ["…" + "x" * 19 + ".end", "<b>"]


def test_hostile_names_are_text():
    text = save.render(page_of(hostile_diagnosis()))
    assert text.count("<script") == 4 and "<img" not in text and "<b>bold" not in text
    block = re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL)
    assert block is not None and not set("<>&\u2028\u2029") & set(block[1])
    assert len(page_of(hostile_diagnosis()).answer.sentence) <= 400


@pytest.mark.parametrize(
    "change",
    [
        {"isthmus": {"verdict": "</script>", "rank": 2, "layers": ["b"], "kind": None, "reasons": []}},
        {"isthmus": {"verdict": "determined", "rank": -1, "layers": ["b"], "kind": None, "reasons": []}},
        {"isthmus": {"verdict": "determined", "rank": 2, "layers": [], "kind": "full", "reasons": []}},
        {"isthmus": {"verdict": "determined", "rank": 2, "layers": ["b"], "kind": [], "reasons": []}},
        {"layers": [{}]},
        {"quantities": {"a": 3}},
        {"quantities": None},
        {"origin": "here"},
        {"version": 99},
        {"whole": 3},
    ],
    ids=str,
)
def test_documents_of_strangers_are_checked(change):
    with pytest.raises(IsthmusError):
        page_of_document({**diagnosis().to_dict(), **change})


@pytest.mark.parametrize("values", [[None], [[1.0]], "text", [1.0, 0.5, 0.1, 0.01], {"a": 1}])
def test_spectra_of_strangers_are_checked(values):
    """Also where there are more values than the file says there were."""
    document = json.loads(diagnosis().to_json())
    document["layers"][1]["representation"]["values"] = values
    with pytest.raises(IsthmusError):
        page_of_document(document)
    document = json.loads(diagnosis().to_json())
    del document["quantities"]
    with pytest.raises(FileFormatError, match="JSON must be that of a Diagnosis"):
        page_of_document(document)
