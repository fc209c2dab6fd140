"""The report of a Diagnosis as a file: written by the commands, made again from the folder, looked at in a browser."""

import csv
import json

import numpy as np
import pytest

import isthmus
from isthmus import IsthmusError, cli
from isthmus.cli import diagnosis_folder
from isthmus.diagnosis import diagnose
from isthmus.plotting import style
from isthmus.report import page_of
from reported import HOSTILE, Watched, chromium, diagnosis, hostile_diagnosis
from tools import assert_close, gaussian, three_part_net

# --- the command line


@pytest.fixture
def _without_picture(monkeypatch):
    """Of matplotlib, which is tested elsewhere."""
    monkeypatch.setattr(style, "render", lambda figure: b"PNG")


@pytest.fixture
def folder(tmp_path, _without_picture):
    """As `isthmus diagnose` leaves it."""
    target = diagnosis_folder.FOLDER.check(tmp_path / "found")
    document = {**diagnosis().to_dict(), "origin": {"data": "X.npy", "weights": "net.safetensors"}}
    diagnosis_folder.write_diagnosis(target, diagnosis(), document)
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
    assert diagnosis_folder.FOLDER.check(folder) == folder
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
        isthmus.save_report(diagnosis(), tmp_path / "report.html", X=np.ones((3, 2)))


# --- in a browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


def move(watched, figure, x):
    """Move the mouse to the value 1 at ``x``, which stands out in every figure through the depth."""
    watched.show(figure)
    page = watched.page
    place = page.locator(f"[data-figure={figure}] .plot").evaluate("(plot, x) => plot.where(x, 1)", x)
    page.mouse.move(place[0] - 3, place[1] + 3)
    page.mouse.move(*place, steps=3)
    page.wait_for_selector(f"[data-figure={figure}] .tip:not([hidden])")
    page.wait_for_timeout(100)


@pytest.fixture(scope="module")
def real():
    X = gaussian(80, 12)
    return diagnose(three_part_net(3, depth=6).to_torch(), X, gaussian(80, 10, seed=1), ridge=1e-3)


@pytest.mark.slow
def test_in_a_browser(browser, real, tmp_path):
    path = isthmus.save_report(real, tmp_path / "report.html")
    watched = Watched(browser, path, viewport={"width": 1200, "height": 900})
    page = watched.page
    watched.show_all()
    assert all(watched.drawn()) and len(watched.drawn()) == len(page_of(real).figures())
    # Every figure through the depth leads to the layer under the mouse.
    links = {"counts": "representations", "representations-lines": "representations", "weights-map": "weights"}
    for place, (source, target) in enumerate({**links, "jacobians-lines": "jacobians"}.items(), start=2):
        move(watched, source, place)
        assert page.eval_on_selector(f"[data-figure={target}-layer] select", "s => s.value") == str(place - 1), source
    page.select_option("[data-figure=representations-layer] select", label=real.layers[-1].name)
    shown = page.evaluate("document.querySelector('[data-figure=representations-layer] .plot').data[0].y")
    share = real.layers[-1].representation.values
    assert_close(shown[: len(share)], share / share[0], rtol=1e-4, reason="figures carry five digits")
    page.select_option("[data-figure=sizes] select", label="largest singular value")
    title = page.evaluate("document.querySelector('[data-figure=sizes] .plot').layout.yaxis.title.text")
    assert title == "largest singular value"
    heads = [head.strip() for head in page.locator("[data-table=layers] th").all_text_contents()]
    place = next(i for i, head in enumerate(heads, start=1) if head.startswith("‖W‖"))
    page.click(f"[data-table=layers] th:nth-child({place}) button")
    norms = f"[...document.querySelectorAll('[data-table=layers] td:nth-child({place})')].map(c => +c.dataset.raw)"
    assert page.evaluate(norms) == sorted(real.to_frame()["norm"])
    page.click("#theme")
    assert all(watched.drawn())
    watched.check_quiet()
    watched.context.close()


@pytest.mark.slow
def test_hostile_names_in_a_browser_of_the_width_of_a_phone(browser, tmp_path):
    path = isthmus.save_report(hostile_diagnosis(), tmp_path / "report.html")
    watched = Watched(browser, path, viewport={"width": 390, "height": 900})
    page = watched.page
    watched.show_all()
    assert all(watched.drawn()) and page.evaluate("document.documentElement.scrollWidth") <= 390
    ticks = "".join(page.locator("[data-figure=counts] .xtick").all_text_contents())
    assert "alert(1)</script>" in ticks and "@blue" in ticks
    watched.saved("[data-csv=layers]").save_as(tmp_path / "layers.csv")
    rows = list(csv.DictReader((tmp_path / "layers.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["layer"] for row in rows] == list(HOSTILE)
    watched.check_quiet()
    watched.context.close()
