"""Shared by the tests of reports: results written down by hand, so that every number on a page is known."""

from __future__ import annotations

import numpy as np
import torch

from isthmus.discovery import Discovery, RankProfile
from isthmus.discovery.evidence import Evidence
from isthmus.discovery.maps import ConstantMap, Encoder
from isthmus.discovery.meaning import Sensitivity
from isthmus.networks import FullyConnected
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
            Outcome("pi is three", "differs", 3.14159, 3, "it is not"),
        ),
        "provenance": {"isthmus": "0", "seconds": 2.0, "command": ["reproduce", "F-made"]},
    }
    return Run(**{**content, **changes})


def _encoder(inputs, rank):
    net = random_net((inputs, 8, rank)).requires_grad_(False)
    assert isinstance(net, FullyConnected)
    shift, scale = torch.zeros(inputs, dtype=torch.float64), torch.ones(inputs, dtype=torch.float64)
    return Encoder(shift, scale, net).requires_grad_(False)
