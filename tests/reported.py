"""Shared by the tests of reports: results written down by hand, so that every number on a page is known, and a browser
that remembers what a page complains of.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from isthmus.diagnosis import Diagnosis, Isthmus, LayerDiagnosis, Spectrum, WeightDiagnosis
from isthmus.diagnosis import Evidence as Counted
from isthmus.diagnosis._ranks import Evidence
from isthmus.discovery import Discovery, RankProfile
from isthmus.discovery._maps import ConstantMap, Sensitivity
from isthmus.measures import Reading
from isthmus.networks import FullyConnected, Standardized
from isthmus.runs import Outcome, Run
from tools import SEED, random_net

#: Names as nobody should give them: markup, quotes, both directions of writing, no end.
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=\"alert('x')\">",
    "\"quoted\" & 'single' <b>bold</b>",
    "right\u202eto\u2066left שלום",
    "long" * 2500,
    "%{x} {{ 7 * 7 }} {% raw %} $a^2$",
    "@blue",
)

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGUMENTS += ["--disable-sync", "--no-first-run"]
#: Generous, in milliseconds: other tests share the machine.
PATIENCE = 60_000

ERRORS = {1: 0.9, 2: 0.031, 3: 0.034, 16: 0.036}


def profile(errors=None, **changes):
    """A profile whose widest network is the wide one."""
    errors = errors or ERRORS
    ranks = np.array(sorted(errors))
    error = np.array([errors[k] for k in sorted(errors)])
    count = len(ranks)
    content = {
        "ranks": ranks,
        "cost": error / 2,
        "loss": error,
        "error": error,
        "standard_error": error / 10,
        "excess": error - np.nanmin(error),
        "excess_error": error / 20,
        "norm": np.full(count, 40.0),
        "regularity": 40.0 - 8 * ranks,
        "states": ("at rest",) * count,
        "starts": ("narrowed",) * (count - 1) + ("fresh",),
        "baseline": 1.01,
        "depth": 8,
        "width": 64,
        "strength": 0.01,
        "tolerance": 0.1,
        "resolution": 0.01,
    }
    return RankProfile(**{**content, **changes})


def discovery(rank=2, *, samples=40, inputs=4, outputs=3, **changes):
    """A Discovery of untrained maps: what the page shows of it is known, and nothing was fitted."""
    rng = np.random.default_rng([SEED, rank, samples])
    Z = rng.standard_normal((samples, rank))
    value = np.sort(rng.uniform(0.1, 1.0, (rank, inputs)), axis=1)[:, ::-1].copy()
    content = {
        "rank": rank,
        "verdict": "determined",
        "reasons": ("one coordinate less is clearly worse",),
        "profile": profile(),
        "replicas": (profile({1: 0.8, 2: 0.04, 3: 0.05, 16: 0.05}, depth=10),),
        "evidence": (
            Evidence("weights", 2.0, 2, "singular values that stand out"),
            Evidence("PCA of Y", 7.0, 7, "linear directions"),
            Evidence("nothing", float("nan"), None, "could not be measured"),
        ),
        "sensitivity": Sensitivity(value, 0.9 * value, 1.1 * value, np.ones(rank)),
        "encoder": _encoder(inputs, max(rank, 1)),
        "decoder": random_net((max(rank, 1), 8, outputs), seed=1).requires_grad_(False),
        "coordinates": Z,
        "error": 0.031,
        "feature_names": tuple(f"x{i}" for i in range(inputs)),
        "target_names": tuple(f"y{i}" for i in range(outputs)),
        "notes": ("made by hand",),
        "settings": {"seed": 0, "depth": 8, "seconds": 1.5},
    }
    return Discovery(**{**content, **changes})


def constant(samples=40):
    """Rank 0: outputs that do not move."""
    encoder, decoder = (ConstantMap(torch.zeros(n, dtype=torch.float64)) for n in (0, 3))
    return discovery(
        0,
        verdict="trivial",
        profile=None,
        replicas=(),
        evidence=(),
        sensitivity=None,
        encoder=encoder,
        decoder=decoder,
        coordinates=np.zeros((samples, 0)),
        error=float("nan"),
    )


def hostile():
    """A Discovery all of whose names are hostile."""
    names = HOSTILE
    return discovery(
        2,
        inputs=len(names),
        outputs=len(names),
        feature_names=names,
        target_names=tuple(f"{name}!" for name in names),
        reasons=names,
        notes=names,
        evidence=tuple(Evidence(name, 2.0, 2, name) for name in names),
        settings={name: name for name in names},
    )


def run(layers=5, values=6, **changes):
    """A Run with the arrays of a network through its depth."""
    rng = np.random.default_rng([SEED, layers])
    spectra = np.sort(rng.uniform(0.01, 1.0, (layers + 1, values)), axis=1)[:, ::-1]
    content = {
        "experiment": "F-made",
        "parameters": {"rank": 2, "depth": layers},
        "arrays": {
            "weight_spectra": spectra[1:],
            "representation_spectra": spectra,
            "jacobian_spectra": spectra[:3],
            "weight_norms": np.arange(1.0, layers + 1),
            "bias_norms": np.ones(layers),
            "history": np.array([1.0, np.nan]),
        },
        "outcomes": (
            Outcome("two is two", "agrees", 2, 2),
            Outcome("pi is three", "differs", 3.14159, 3, "it is not", quote="π = 3", where="§1"),
            Outcome("converged", "not met", 0.7, kind="condition"),
        ),
        "provenance": {"isthmus": "0", "seconds": 2.0, "command": ["reproduce", "F-made"]},
    }
    return Run(**{**content, **changes})


def spectrum(*values, status="clear", count=2):
    """These values, of which ``count`` stand out."""
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


def diagnosis(layers=None, inside=("b", "c"), **changes):
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
            Counted("bottleneck rank", 2.0, 2, "ours"),
            Counted("Jacobian rank", 3.0, 3, "near one x"),
            Counted("TwoNN", 1.9, 2, "the cloud"),
            Counted("stable rank", 1.25, None, "a soft count"),
            Counted("AGOP gap", float("nan"), None, "of gradients"),
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
    """A Diagnosis that found no rank."""
    return diagnosis(isthmus=Isthmus(verdict, None, (), None, reasons), **changes)


def hostile_diagnosis():
    """A Diagnosis all of whose names are hostile."""
    named = [layer(name, weights=2) for name in HOSTILE]
    texts = {"notes": HOSTILE, "settings": {name: name for name in HOSTILE}, "provenance": {}}
    panel = tuple(Counted(name, 2.0, 2, name) for name in HOSTILE)
    narrow = Isthmus("determined", 2, HOSTILE, "full", HOSTILE)
    return diagnosis(named, isthmus=narrow, agreement=panel, **texts)


@contextlib.contextmanager
def chromium():
    """A browser; where there is none, the tests that want it are left out."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Watched:
    """A page whose every complaint and every request is remembered; ``first`` is run before its own scripts."""

    def __init__(self, browser, path, first="", **options):
        self.context = browser.new_context(offline=True, accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.context.route("**/*", self._judge)
        self.page.add_init_script(first)
        started = time.perf_counter()
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        self.seconds = time.perf_counter() - started

    def _judge(self, route):
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def drawn(self):
        """How many marks each figure of the page shows."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('.mark').length)"
        )

    def until(self, expression):
        """Wait until it is true; Playwright's own way evaluates texts in the page, which its policy forbids."""
        ends = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < ends, expression
            self.page.wait_for_timeout(20)

    def show(self, figure):
        """Scroll to a figure as a reader would."""
        self.page.locator(f"[data-figure={figure}] .plot").scroll_into_view_if_needed()
        self.page.wait_for_selector(f"[data-figure={figure}] .drawn")

    def show_all(self):
        """Scroll from the first figure to the last."""
        for figure in self.page.eval_on_selector_all("[data-figure]", "all => all.map(one => one.dataset.figure)"):
            self.show(figure)

    def saved(self, selector):
        with self.page.expect_download() as waited:
            self.page.click(selector)
        return waited.value

    def check_quiet(self):
        # Blobs and data are made by the page itself; nothing else may be asked for.
        assert [url for url in self.requests if not url.startswith(("blob:", "data:"))] == []
        assert self.complaints == []


def _encoder(inputs, rank):
    net = random_net((inputs, 8, rank)).requires_grad_(False)
    assert isinstance(net, FullyConnected)
    shift, scale = torch.zeros(inputs, dtype=torch.float64), torch.ones(inputs, dtype=torch.float64)
    return Standardized(net, shift, scale).requires_grad_(False)
