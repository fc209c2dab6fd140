"""The page of a Diagnosis: its numbers and no others, from the object or from its JSON, in a browser too."""

import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import isthmus
from isthmus import FileFormatError, IsthmusError, cli
from isthmus.cli import diagnosis_folder
from isthmus.diagnosis import Diagnosis, Evidence, Isthmus, LayerDiagnosis, Spectrum, WeightDiagnosis, diagnose
from isthmus.diagnosis.result import MOST_VALUES
from isthmus.measures import Reading
from isthmus.plotting import style
from isthmus.report import depth, page_of, write
from isthmus.report.diagnosis_page import page_of_document
from isthmus.report.layers import LAYERS, Layers
from isthmus.report.page import Table
from reported import HOSTILE
from tools import SEED, assert_close, gaussian, three_part_net

ROUNDED = "figures carry five digits"


def spectrum(*values, status="clear", count=2):
    s = torch.tensor(values, dtype=torch.float64)
    return Spectrum(s, "exact", 0.0, Reading(status, count, 100.0, 1.0, 0.01), "by hand")


def layer(name, *, weights=1, bypass=0.0, **changes):
    """Width 4; two values stand out, in the Jacobian three."""
    part = WeightDiagnosis("weight", (4, 4), 5.0, spectrum(4.0, 3.0, 0.004))
    parts = tuple(replace(part, label=f"part {i}") for i in range(weights)) if weights > 1 else (part,) * weights
    content = {
        "kind": "linear",
        "type_name": "Linear",
        "order": 0,
        "calls": 1,
        "units": 4,
        "rows": 20,
        "note": "(N, units)",
        "weights": parts,
        "representation": spectrum(2.0, 1.0, 0.002),
        "whole": None,
        "jacobian": spectrum(8.0, 4.0, 2.0, 0.0, count=3),
        "bypass": bypass,
    }
    return LayerDiagnosis(name=name, **{**content, **changes})


def made(layers=None, inside=("b", "c"), **changes):
    """A Diagnosis written down by hand: rank 2 at b and c."""
    unclear = spectrum(1.0, 0.9, status="unclear")
    layers = layers or (
        layer("a", weights=0, representation=unclear, jacobian=None),
        layer("b"),
        layer("c", weights=2),
        layer("around", bypass=0.4),
        layer("", weights=0, whole=spectrum(3.0, 3.0, 3.0, status="full", count=3)),
        layer("never", weights=0, order=None, representation=None, jacobian=None, units=0, bypass=float("nan")),
    )
    content = {
        "isthmus": Isthmus("determined", 2, tuple(inside), "full", ("two stand out", "so says J")),
        "agreement": (
            Evidence("bottleneck rank", 2.0, 2, "ours"),
            Evidence("Jacobian rank", 3.0, 3, "near one x"),
            Evidence("TwoNN", 1.9, 2, "the cloud"),
            Evidence("stable rank", 1.25, None, "a soft count"),
            Evidence("AGOP gap", float("nan"), None, "of gradients"),
        ),
        "layers": tuple(layers),
        "whole": {"type": "Made", "parameters": 1234, "norm_squared": 50.0, "depth": 3, "criticality": 0.25},
        "samples": 20,
        "notes": ("made by hand",),
        "settings": {"seed": 0},
        "provenance": {"isthmus": "0"},
    }
    return Diagnosis(**{**content, **changes})


def without(verdict, *reasons, **changes):
    return made(isthmus=Isthmus(verdict, None, (), None, reasons), **changes)


def hostile():
    named = [layer(name, weights=2) for name in HOSTILE]
    texts = {"notes": HOSTILE, "settings": {name: name for name in HOSTILE}, "provenance": {}}
    panel = tuple(Evidence(name, 2.0, 2, name) for name in HOSTILE)
    narrow = Isthmus("determined", 2, HOSTILE, "full", HOSTILE)
    return made(named, isthmus=narrow, agreement=panel, **texts)


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


@pytest.fixture
def _without_plotly(monkeypatch):
    monkeypatch.setattr(write, "get_plotlyjs", lambda: "// Plotly")


def figures(found):
    return {one.key: one for one in page_of(found).figures()}


def table(page, key):
    found = (one for section in page.sections for one in section.blocks)
    return next(one for one in found if isinstance(one, Table) and one.key == key)


def test_the_answer_and_the_facts():
    page = page_of(made())
    assert (page.subject, page.title) == ("Diagnosis", "Made")
    assert page.answer.sentence == made().sentence and page.answer.verdict == "determined"
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


def test_counts_by_layer():
    figure = figures(made())["counts"]
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
    zero = figures(made([layer("z", representation=spectrum(0.0, 0.0, status="zero", count=0))]))["counts"]
    assert zero.data[2]["y"] == [0.5] and zero.data[2]["text"] == ["z, representation: 0"]
    assert zero.layout["yaxis"]["ticktext"][0] == "0"


def test_the_agreement_panel():
    points = figures(made())["agreement"].data[0]
    assert points["x"] == [2.0, 3.0, 1.9, 1.25]  # what is not known is in the table only
    assert points["marker"]["symbol"] == ["circle", "circle", "circle", "circle-open"]
    assert points["marker"]["color"] == ["@green", "@blue", "@green", "@blue"]
    judged = [getattr(row[2], "word", row[2]) for row in table(page_of(made()), "agreement-numbers").rows]
    assert judged == ["", "differs", "agrees", "", ""]
    wide = made(agreement=(Evidence("AGOP gap", 300.0, 300, ""), Evidence("none", 0.0, 0, "")))
    figure = figures(wide)["agreement"]
    assert figure.layout["xaxis"]["type"] == "log" and figure.data[0]["x"] == [300.0, 0.5]
    assert "agreement" not in figures(made(agreement=()))


def test_spectra_through_depth():
    drawn = figures(made())
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
    page = page_of(made())
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


@pytest.mark.usefixtures("_without_plotly")
def test_from_the_json_the_same_bytes_and_nothing_computed(real, monkeypatch):
    pages = [write.render(page_of(found)) for found in (real, made(), hostile())]
    for name in ("svd", "svdvals", "eigvalsh", "eigh"):
        monkeypatch.setattr(torch.linalg, name, None)
    monkeypatch.setattr(nn.Module, "__call__", None)
    for found, expected in zip((real, made(), hostile()), pages):
        assert write.render(page_of_document(json.loads(found.to_json()))) == expected


@pytest.mark.usefixtures("_without_plotly")
def test_every_diagnosis_has_a_page():
    empty = Spectrum(torch.zeros(0, dtype=torch.float64), "not computed", float("nan"), None, "not finite")
    broken = layer("x", representation=empty, jacobian=None, weights=0, bypass=float("nan"))
    cases = [
        without("undetermined", "the outputs are not finite", layers=(broken,), agreement=(), whole={}),
        without("none", "no layers", agreement=(), notes=(), settings={}, provenance={}),
        made([layer("0", weights=1)], inside=("0",)),
        diagnose(around(), gaussian(12, 2, 4, 4)),
    ]
    for found in cases:
        page = page_of(found)
        text = write.render(page)
        block = re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL)
        assert block is not None and "NaN" not in block[1] and len(json.loads(block[1])) == len(page.figures())
    assert [one.key for one in page_of(cases[0]).figures()] == ["counts"]


def test_long_spectra_stand_at_their_numbers():
    count = 3 * MOST_VALUES
    values = 2.0 ** -torch.arange(count, dtype=torch.float64).clamp_max(900)
    found = made([layer("long", representation=Spectrum(values, "exact"))], inside=("long",))
    shown = figures(found)["representations-layer"].choices[0].options[0][1]["data.0.y"]
    expected = [max(2.0**-i, depth.FLOOR) for i in range(depth.VALUES)]
    assert_close(shown, expected, rtol=1e-4, reason=ROUNDED)


def test_many_layers_are_cut_and_said():
    many = [layer(f"part.{i}") for i in range(LAYERS + 5)]
    drawn = figures(made(many, inside=("part.3",)))
    for key in ("counts", "representations-lines", "weights-map", "sizes"):
        assert f"Only the first {LAYERS} of {LAYERS + 5}" in " ".join(drawn[key].reading), key
    assert len(drawn["counts"].data[0]["x"]) == len(drawn["weights-layer"].choices[0].options) == LAYERS
    assert len(drawn["counts"].layout["xaxis"]["ticktext"]) <= 32
    assert not any("Only the first" in " ".join(one.reading) for one in figures(made()).values())


def test_a_network_of_fifty_layers_is_small():
    values = torch.linspace(1, 0.1, 2000, dtype=torch.float64)
    wide = Spectrum(values, "exact", 0.0, Reading("full", 2000, 1.0, 1.0, 0.0))
    parts = tuple(WeightDiagnosis(f"part {i}", (2000, 2000), 1.0, wide) for i in range(2))
    deep = [layer(f"encoder.layers.{i}.attention", weights=0, representation=wide, jacobian=wide) for i in range(50)]
    found = without("none", "wide", layers=tuple(replace(one, weights=parts) for one in deep))
    assert len(write.render(page_of(found)).encode()) < 10e6


def test_shades_of_layers():
    layers = Layers(range(1, 8), list("abcdefg"), [2, 3, 6, 99])
    assert [(one["x0"], one["x1"]) for one in layers.shades()] == [(1.5, 3.5), (5.5, 6.5)]
    assert Layers.numbered(0, 2).axis()["dtick"] == 1
    assert Layers([1, 2], ["x" * 30 + ".end", "<b>"]).axis()["ticktext"] == ["…" + "x" * 19 + ".end", "&lt;b&gt;"]


@pytest.mark.usefixtures("_without_plotly")
def test_hostile_names_are_text():
    text = write.render(page_of(hostile()))
    assert text.count("<script") == 3 and "<img" not in text and "<b>bold" not in text
    block = re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL)
    assert block is not None and not set("<>&\u2028\u2029") & set(block[1])
    assert len(page_of(hostile()).answer.sentence) <= 400


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
        page_of_document({**made().to_dict(), **change})


@pytest.mark.parametrize("values", [[None], [[1.0]], "text", [1.0, 0.5, 0.1, 0.01], {"a": 1}])
def test_spectra_of_strangers_are_checked(values):
    """Also where there are more values than the file says there were."""
    document = json.loads(made().to_json())
    document["layers"][1]["representation"]["values"] = values
    with pytest.raises(IsthmusError):
        page_of_document(document)
    document = json.loads(made().to_json())
    del document["quantities"]
    with pytest.raises(FileFormatError, match="JSON must be that of a Diagnosis"):
        page_of_document(document)


# --- the command line


@pytest.fixture
def _without_picture(monkeypatch):
    """Of matplotlib, which is tested elsewhere."""
    monkeypatch.setattr(style, "render", lambda figure: b"PNG")


@pytest.fixture
def folder(tmp_path, _without_picture):
    """As `isthmus diagnose` leaves it."""
    target = diagnosis_folder.check_destination(tmp_path / "found")
    document = {**made().to_dict(), "origin": {"data": "X.npy", "weights": "net.safetensors"}}
    diagnosis_folder.write_diagnosis(target, made(), document)
    return target


def test_a_folder_again_gives_the_same_report(folder, tmp_path, capsys):
    expected = (folder / "report.html").read_bytes()
    assert b"net.safetensors" in expected
    for source in (folder, folder / "diagnosis.json"):
        assert cli.main(["report", str(source), "--out", str(tmp_path / "again.html"), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["subject"], told["verdict"]) == ("Diagnosis", "determined")
        assert (tmp_path / "again.html").read_bytes() == expected
    # A folder with its report is still a diagnosis, which may be replaced.
    assert diagnosis_folder.check_destination(folder) == folder
    document = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))
    (folder / "diagnosis.json").write_text(json.dumps({**document, "layers": 3}), encoding="utf-8")
    assert cli.main(["report", str(folder), "--out", str(tmp_path / "no.html")]) == 3
    assert not (tmp_path / "no.html").exists()


@pytest.mark.usefixtures("_without_picture")
def test_diagnose_writes_a_report_and_says_where(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    isthmus.save(three_part_net(3), "net.safetensors")
    np.save("X.npy", gaussian(60, 12).numpy())
    assert cli.main(["diagnose", "net.safetensors", "--data", "X.npy"]) == 0
    out = capsys.readouterr().out
    assert "look at it: isthmus open runs/diagnose-net (runs/diagnose-net/report.html, one file to share)" in out
    assert "passes through 3 dimensions" in (tmp_path / "runs/diagnose-net/report.html").read_text(encoding="utf-8")


def test_samples_go_with_a_discovery_only(tmp_path):
    with pytest.raises(IsthmusError, match="go with a Discovery"):
        isthmus.save_report(made(), tmp_path / "report.html", X=np.ones((3, 2)))


# --- in a browser


@pytest.fixture(scope="module")
def shared():
    """The tools of the other tests in a browser; where there is none, these tests too are left out."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium on this machine")
    import test_report_browser

    return test_report_browser


@pytest.fixture(scope="module")
def browser(shared):
    with shared.playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shared.CHROMIUM, args=shared.ARGUMENTS)
        yield chromium
        chromium.close()


def drawn(page):
    return page.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => p.querySelectorAll("
        "'.scatterlayer path, .barlayer path, .heatmaplayer image').length)"
    )


def move(page, box, x):
    """Move the mouse to the value 1 at ``x``, which stands out in every figure through the depth."""
    plot = page.locator(f"{box} .plot")
    plot.scroll_into_view_if_needed()
    place = plot.evaluate(
        """(plot, x) => {
            const { xaxis, yaxis } = plot._fullLayout;
            const at = plot.getBoundingClientRect();
            return [at.x + xaxis._offset + xaxis.d2p(x), at.y + yaxis._offset + yaxis.d2p(1)];
        }""",
        x,
    )
    page.mouse.move(place[0] - 3, place[1] + 3)
    page.mouse.move(*place, steps=3)
    page.wait_for_selector(f"{box} .hoverlayer .hovertext")
    page.wait_for_timeout(100)


def test_in_a_browser(shared, browser, real, tmp_path):
    path = isthmus.save_report(real, tmp_path / "report.html")
    watched = shared.Watched(browser, path, viewport={"width": 1200, "height": 900})
    page = watched.page
    assert all(drawn(page)) and len(drawn(page)) == len(page_of(real).figures())
    # Every figure through the depth leads to the layer under the mouse.
    links = {"counts": "representations", "representations-lines": "representations", "weights-map": "weights"}
    for place, (source, target) in enumerate({**links, "jacobians-lines": "jacobians"}.items(), start=2):
        move(page, f"[data-figure={source}]", place)
        assert page.eval_on_selector(f"[data-figure={target}-layer] select", "s => s.value") == str(place - 1), source
    page.select_option("[data-figure=representations-layer] select", label=real.layers[-1].name)
    shown = page.evaluate("document.querySelector('[data-figure=representations-layer] .plot').data[0].y")
    share = real.layers[-1].representation.values
    assert_close(shown[: len(share)], share / share[0], rtol=1e-4, reason=ROUNDED)
    page.select_option("[data-figure=sizes] select", label="largest singular value")
    title = page.evaluate("document.querySelector('[data-figure=sizes] .plot').layout.yaxis.title.text")
    assert title == "largest singular value"
    page.click("[data-table=layers] th:nth-child(10) button")
    norms = "[...document.querySelectorAll('[data-table=layers] td:nth-child(10)')].map(c => +c.dataset.raw)"
    assert page.evaluate(norms) == sorted(real.to_frame()["norm"])
    page.click("#theme")
    assert all(drawn(page))
    watched.check_quiet()
    watched.context.close()


def test_hostile_names_in_a_browser_of_the_width_of_a_phone(shared, browser, tmp_path):
    path = isthmus.save_report(hostile(), tmp_path / "report.html")
    watched = shared.Watched(browser, path, viewport={"width": 390, "height": 900})
    page = watched.page
    assert all(drawn(page)) and page.evaluate("document.documentElement.scrollWidth") <= 390
    ticks = page.text_content("[data-figure=counts] .xaxislayer-above")
    assert "alert(1)</script>" in ticks and "@blue" in ticks
    watched.saved("[data-csv=layers]").save_as(tmp_path / "layers.csv")
    rows = list(csv.DictReader((tmp_path / "layers.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["layer"] for row in rows] == list(HOSTILE)
    watched.check_quiet()
    watched.context.close()
