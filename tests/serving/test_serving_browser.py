"""The live page in a real browser: it follows a real discovery to its end, and one that is killed and goes on."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from isthmus import files, problems
from isthmus.serving import record
from served import served, start, step, write_record, write_stage

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGUMENTS += ["--disable-sync", "--no-first-run"]
#: Generous: other tests share the machine.
PATIENCE = 60_000
#: The command line with trainings and the picture cut short, and a pause after each that lets it be watched: it waits
#: for as long as the file HOLD is there, from the third on.
PROGRAM = """
import functools, os, sys, time
from isthmus import discovery
from isthmus.discovery._walk import Stages
from isthmus.plotting import style
style.render = lambda figure: b"\\x89PNG"
discovery.discover = functools.partial(discovery.discover, steps=3)
write = Stages.write
written = []
def write_and_wait(*given):
    write(*given)
    written.append(given)
    time.sleep(float(os.environ["PAUSE"]))
    while len(written) > 2 and os.path.exists(os.environ["HOLD"]):
        time.sleep(0.02)
Stages.write = write_and_wait
from isthmus.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def runs(tmp_path):
    task = problems.linear(d_in=4, d_out=3, rank=2, samples=100)
    names = pd.Index([*"abcd", "y0", "y1", "y2"])
    pd.DataFrame(np.hstack([task.X, task.Y]), columns=names).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def begin(runs, pause):
    options = ["--target", "y*", "--width", "8", "--depth", "4", "--replicas", "0", "--out", str(runs / "found")]
    command = [sys.executable, "-c", PROGRAM, "discover", str(runs.parent / "data.csv"), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PAUSE": str(pause), "HOLD": str(runs.parent / "hold")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Watched:
    """A page whose every complaint and every foreign request is remembered."""

    def __init__(self, browser, port, token, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        home = f"http://127.0.0.1:{port}/"
        self.context.on(
            "request",
            lambda asked: asked.url.startswith((home, "data:", "blob:")) or self.complaints.append(asked.url),
        )
        self.page.goto(f"{home}?token={token}")
        self.page.wait_for_selector("html[data-ready]")

    def open(self, name):
        self.page.click(f".runs a:has-text('{name}')")
        self.page.wait_for_selector("html[data-ready]")

    def state(self, word):
        playwright.expect(self.page.locator("#state")).to_have_text(word, timeout=PATIENCE)

    def points(self, figure):
        """How many points the first curve of a figure has."""
        return self.page.eval_on_selector(f"[data-figure={figure}] .plot", "plot => plot.data.at(-1).x.length")


def wait_for_stages(runs, count):
    ends = time.monotonic() + 60
    while len(list((runs / "found" / ".progress").glob("*.safetensors"))) < count and time.monotonic() < ends:
        time.sleep(0.02)


def test_it_follows_a_discovery_to_its_end(browser, runs):
    hold = runs.parent / "hold"
    hold.touch()
    process = begin(runs, 0.1)
    wait_for_stages(runs, 3)
    with served(runs) as (server, port):
        watched = Watched(browser, port, server.token)
        watched.open("found")
        page = watched.page
        # The line through one point is not to be seen, the point is.
        page.locator("[data-figure=error] .mark").last.wait_for()
        assert page.text_content("#state") == "running"
        assert "3 outputs" in page.text_content("#sentence")
        assert page.is_visible(".bar")
        seen = watched.points("loss")
        hold.unlink()
        watched.state("finished")
        assert process.wait(60) in (0, 1)
        # The answer, without a reload; the figures stay, with more in them than at first.
        assert page.text_content("#sentence") == files.read_json(runs / "found" / "discovery.json")["sentence"]
        assert not page.is_visible("#progress")
        assert watched.points("loss") > seen
        assert page.locator(".figures .plot .mark").count() > 8
        assert page.evaluate("performance.getEntriesByType('navigation').length") == 1
        page.click("#report a")
        page.wait_for_selector("html[data-ready]")
        page.locator("[data-figure=profile] .plot").scroll_into_view_if_needed()
        page.wait_for_selector("[data-figure=profile] .drawn")
        assert page.locator("[data-figure=profile] .mark").count() > 2
        assert watched.complaints == []
        watched.context.close()


@pytest.mark.slow
def test_it_says_that_it_was_killed_and_goes_on(browser, runs, monkeypatch):
    monkeypatch.setattr(record, "GONE", 0.5)
    process = begin(runs, 0.6)
    with served(runs) as (server, port):
        wait_for_stages(runs, 2)
        watched = Watched(browser, port, server.token)
        watched.open("found")
        watched.page.wait_for_selector("[data-figure=loss] .mark")
        process.send_signal(signal.SIGKILL)
        process.wait()
        watched.state("killed?")
        assert "goes on from the trainings that are kept" in watched.page.text_content("#meaning")
        kept = watched.points("loss")
        assert kept >= 2 and watched.page.is_visible("[data-figure=spectrum] .plot")
        process = begin(runs, 0.1)
        watched.state("running")
        watched.state("finished")
        assert process.wait(60) in (0, 1)
        assert watched.points("loss") > kept
        assert "started again, from what was kept" in watched.page.text_content("#lines")
        assert watched.complaints == []
        watched.context.close()


def test_narrow_dark_and_hostile(browser, tmp_path):
    now = time.time()
    hostile = '</script><img src=x onerror="alert(1)">' + "x" * 300
    folder = tmp_path / "<img src=x onerror=alert(2)>" / ".progress"
    write_record(folder, start(now, sentence=hostile), step(now, 1, label=hostile[:50], error=0.1))
    write_stage(folder, "<img src=x onerror=alert(3)>")
    with served(tmp_path) as (server, port):
        watched = Watched(browser, port, server.token, viewport={"width": 390, "height": 800}, color_scheme="dark")
        page = watched.page
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.click(".runs a")
        page.wait_for_selector("html[data-ready]")
        page.wait_for_selector("[data-figure=spectrum] .mark")
        assert "<img src=x on" in page.text_content("[data-figure=spectrum] h3")
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = page.eval_on_selector("[data-figure=spectrum] .drawn", "svg => getComputedStyle(svg).fill")
        page.focus("#theme")
        page.keyboard.press("Enter")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        assert page.eval_on_selector("[data-figure=spectrum] .drawn", "svg => getComputedStyle(svg).fill") != ink
        assert watched.complaints == []
        watched.context.close()


@pytest.mark.slow
def test_the_list_follows_too(browser, tmp_path):
    with served(tmp_path) as (server, port):
        watched = Watched(browser, port, server.token)
        assert watched.page.text_content("h1") == "Nothing here yet"
        write_record(tmp_path / "mine" / ".progress", start(time.time()))
        playwright.expect(watched.page.locator("h1")).to_have_text("One run, running", timeout=PATIENCE)
        assert watched.complaints == []
        watched.context.close()
