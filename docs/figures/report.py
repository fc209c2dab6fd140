"""Screenshots of reports, light, dark and at phone width: ``python docs/figures/report.py [FOLDER]``.

FOLDER is that of a discovery, by default ``runs/demo``, which is made if it is missing. The Run is ``runs/F-rank-1``
(``isthmus reproduce F-rank-1``), left out if it is missing. The diagnosis is of the network of ``diagnosis.py``, which
is trained here again. Needs Chromium and playwright; uses no network.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import ViewportSize, sync_playwright

import isthmus
from diagnosis import STEPS, WEIGHT_DECAY, network, task
from isthmus.cli import main as command

HERE = Path(__file__).parent
RUN = Path("runs/F-rank-1")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGUMENTS += ["--disable-sync", "--no-first-run"]

#: Name of the picture: what is shown, how wide, how high, which theme, from which section on.
SHOTS = {
    "light": ("discovery", 1280, 1480, "light", None),
    "dark": ("discovery", 1280, 1480, "dark", "coordinates"),
    "phone": ("discovery", 390, 1480, "light", None),
    "run": ("run", 1280, 1480, "light", "weights"),
    "diagnosis": ("diagnosis", 1280, 1480, "light", None),
}


#: Whether every figure in the window is there.
DRAWN = """[...document.querySelectorAll("[data-figure]")]
    .filter((one) => one.getBoundingClientRect().top < innerHeight && one.getBoundingClientRect().bottom > 0)
    .every((one) => one.querySelector(".drawn"))"""


def main(folder):
    """Make the reports, then their pictures."""
    if not folder.exists():
        command(["demo", "--out", str(folder)])
    with tempfile.TemporaryDirectory() as place:
        pages = {name: Path(place) / f"{name}.html" for name in ("discovery", "run", "diagnosis")}
        command(["report", str(folder), "--out", str(pages["discovery"])])
        if RUN.exists():
            command(["report", str(RUN), "--out", str(pages["run"])])
        isthmus.save_report(diagnosed(), pages["diagnosis"])
        shoot(pages)


def diagnosed():
    """The Diagnosis of a network that was trained with weight decay."""
    X, Y = task()
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (net(X) - Y).square().sum(1).mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        schedule.step()
    return isthmus.diagnose(net, X, Y, ridge=WEIGHT_DECAY / 2)


def shoot(pages):
    """Pictures of the pages that are there."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for name, (what, width, height, theme, section) in SHOTS.items():
            if what not in pages or not pages[what].exists():
                continue
            size: ViewportSize = {"width": width, "height": height}
            page = browser.new_page(viewport=size, color_scheme=theme, offline=True, reduced_motion="reduce")
            page.goto(pages[what].as_uri())
            page.wait_for_selector("html[data-ready]")
            if section is not None:
                page.evaluate(f"document.getElementById('{section}').scrollIntoView()")
                # Figures are drawn when they come near the window.
                page.wait_for_function(DRAWN)
            page.screenshot(path=HERE / f"report-{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/demo"))
