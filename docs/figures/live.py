"""Screenshot of the live page of a demo on its way: ``python docs/figures/live.py [FOLDER]``.

With FOLDER also live-dark.png, live-phone.png and live-list.png, which go there and are kept nowhere else. Needs
Chromium and playwright; uses no network. Takes about a minute.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

HERE = Path(__file__).parent
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGUMENTS += ["--disable-sync", "--no-first-run"]
#: Trainings after which the pictures are taken: the first walk is over, another one is on its way.
TRAININGS = 11

#: Name of the picture: how wide, how high, which theme, whether of the run or of the list.
SHOTS = {
    "": (1280, 1640, "light", True),
    "-dark": (1280, 1640, "dark", True),
    "-phone": (390, 1480, "light", True),
    "-list": (1280, 700, "light", False),
}


def start(*arguments):
    return subprocess.Popen([sys.executable, "-m", "isthmus", *arguments], stdout=subprocess.PIPE, text=True)


def main(more):
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        runs = Path(place) / "runs"
        runs.mkdir()
        server, demo = start("serve", str(runs)), start("demo", "--out", str(runs / "demo"))
        try:
            address = server.stdout.readline().split()[-1]
            while len(list(runs.glob("demo/.progress/*.safetensors"))) < TRAININGS and demo.poll() is None:
                time.sleep(0.1)
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
            for name, (width, height, theme, of_run) in SHOTS.items():
                if name and more is None:
                    continue
                size = {"width": width, "height": height}
                page = browser.new_page(viewport=size, color_scheme=theme, reduced_motion="reduce")
                page.goto(address)
                if of_run:
                    page.click(".runs a")
                    expect(page.locator(".figures .plot .drawn").first).to_be_visible(timeout=60_000)
                    page.wait_for_timeout(500)
                page.screenshot(path=(more if name else HERE) / f"live{name}.png")
                page.close()
            browser.close()
        finally:
            for process in (demo, server):
                process.terminate()
                process.communicate()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
