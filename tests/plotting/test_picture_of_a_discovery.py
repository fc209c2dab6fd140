"""The picture of a discovery: every verdict and rank, hostile names, numbers that are none."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from isthmus import discovery
from isthmus.plotting import discovery as picture
from isthmus.plotting.names import readable
from isthmus.plotting.style import new_figure, render
from tools import SEED

NAMES = [
    "$\\frac{a$",
    "a_b_$c$",
    "price\n(€)",
    "温度 sensor",
    "long " * 30,
    "x\x1b[2J",
    "",
    "\U0001f600",
    "$$",
    "\\alpha",
]


def profile(ranks=(1, 2, 3, 4), error=(0.5, 0.1, 0.01, 0.011), starts=None, states=None, **numbers):
    error = np.array(error, dtype=float)
    columns = dict.fromkeys(("cost", "loss", "norm", "regularity", "excess_error"), np.ones(len(error)))
    columns |= {"standard_error": 0.1 * error, "excess": error - np.nanmin(error, initial=1.0)}
    settings = {"baseline": 1.0, "depth": 8, "width": 64, "strength": 0.01, "tolerance": 0.1} | numbers
    return discovery.RankProfile(
        ranks=np.array(ranks),
        error=error,
        states=tuple(states or ["at rest"] * len(error)),
        starts=tuple(starts or ["narrowed"] * (len(error) - 1) + ["fresh"]),
        shares=np.ones(4),
        **{**columns, **settings},
    )


def found(rank=3, verdict="determined", samples=300, inputs=10, outputs=4, **changes):
    """What the picture reads of a Discovery."""
    rng = np.random.default_rng(SEED)
    value = rng.random((rank, inputs))
    mix = rng.standard_normal((rank, outputs))
    meaning = discovery.Sensitivity(value, 0.8 * value, 1.2 * value, np.ones(rank))
    given = {
        "rank": rank,
        "verdict": verdict,
        "sentence": f"The answer is {rank} ({verdict}).",
        "reasons": ("because",),
        "profile": profile(),
        "replicas": (profile(error=(0.6, 0.12, 0.02, 0.02)),),
        "coordinates": rng.standard_normal((samples, rank)),
        "decode": lambda Z: Z @ mix,
        "sensitivity": meaning,
        "feature_names": tuple(f"x{i}" for i in range(inputs)),
        "target_names": tuple(f"y{i}" for i in range(outputs)),
    }
    return SimpleNamespace(**(given | changes))


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_three_panels_and_the_sentence():
    figure = picture.draw_discovery(found())
    assert render(figure).startswith(b"\x89PNG")
    said = texts(figure)
    assert "The answer is 3 (determined)." in said
    assert "k = 3" in said
    assert "wide" in said
    assert "Why: because." in said
    assert any(text.startswith("best + slack = ") for text in said)
    assert len(figure.axes) == 4  # the colours have an axis too


def test_a_given_figure_is_drawn_on_and_returned():
    figure = new_figure(8, 4)
    assert picture.draw_discovery(found(), figure) is figure
    assert figure.axes


@pytest.mark.parametrize("rank", [1, 2, 6, 15])
@pytest.mark.parametrize("samples", [1, 5000])
def test_every_rank_and_size(rank, samples):
    ranks = [*range(1, rank + 2), 16]
    error = [10.0 ** -min(k, rank) for k in ranks]
    one = found(rank, samples=samples, inputs=20, profile=profile(ranks, error), replicas=())
    figure = picture.draw_discovery(one)
    figure.draw_without_rendering()
    drawn = [c.get_offsets() for c in figure.axes[1].collections if isinstance(c, PathCollection)]
    assert 1 <= len(drawn[0]) <= picture.POINTS
    assert f"k = {rank}" in texts(figure)
    bars = len(figure.axes[2].patches)
    assert bars <= picture.BARS
    assert ("the first 6" in figure.axes[2].get_title(loc="left")) == (rank > 6)


def test_undetermined_is_seen():
    figure = picture.draw_discovery(found(verdict="undetermined", reasons=("one is not clearly worse " * 30,)))
    figure.draw_without_rendering()
    assert "k = 3?" in texts(figure)
    assert max(len(line) for text in texts(figure) for line in text.split("\n")) < 200


def test_rank_zero_has_nothing_to_draw():
    one = found(rank=0, verdict="trivial", profile=None, replicas=(), sensitivity=None, reasons=())
    figure = picture.draw_discovery(one)
    figure.draw_without_rendering()
    assert any("nothing to draw" in text for text in texts(figure))


def test_names_are_not_mathematics():
    one = found(rank=2, inputs=6, feature_names=tuple(NAMES[:6]), target_names=tuple(NAMES[6:]))
    figure = picture.draw_discovery(one)
    render(figure)  # warnings about missing glyphs are errors here
    said = texts(figure)
    assert "$\\frac{a$" in said
    assert "a_b_$c$" in said
    assert "price (€)" in said
    assert not set("\x1b\n") & set("".join(text for text in said if text in map(readable, NAMES)))


@pytest.mark.parametrize("name", NAMES)
def test_readable(name):
    assert 0 < len(readable(name)) <= 24
    assert readable(name).isprintable()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
@pytest.mark.parametrize("where", [2, slice(None)])
def test_numbers_that_are_none(bad, where):
    error = np.array([0.5, 0.1, 0.01, 0.011])
    error[where] = bad
    spoiled = profile(error=error, states=["diverged"] * 4, baseline=bad)
    spoiled = dataclasses.replace(spoiled, standard_error=np.full(4, bad), excess=np.full(4, bad))
    meaning = discovery.Sensitivity(*(np.full((3, 10), bad) for _ in range(3)), np.ones(3))
    figure = picture.draw_discovery(found(profile=spoiled, replicas=(spoiled,), sensitivity=meaning))
    figure.draw_without_rendering()


def test_outputs_and_coordinates_that_are_none():
    one = found(decode=lambda Z: np.full((len(Z), 4), np.nan))
    picture.draw_discovery(one).draw_without_rendering()
    one = found(decode=lambda Z: np.ones((len(Z), 4)), sensitivity=None)
    picture.draw_discovery(one).draw_without_rendering()
    assert picture._strongest_output(np.ones((5, 2)), np.ones((5, 3))) == 0
    U = np.arange(10.0)[:, None]
    assert picture._strongest_output(U, np.hstack([np.ones_like(U), U**2, -U])) == 2


def test_a_discovery_draws_itself():
    X = np.random.default_rng(SEED).standard_normal((40, 3))
    one = discovery.discover(X, X[:, :2], rank=2, width=4, depth=4, steps=1)
    assert render(one.plot()).startswith(b"\x89PNG")
