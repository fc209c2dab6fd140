"""The picture of a mechanics: curves with the result's own numbers, for every state and size."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import isthmus
from isthmus.plotting.mechanics import MARKS, energies
from isthmus.plotting.style import new_figure, render
from leaky_nets import critical, leaky
from tools import assert_close, gaussian

ROUNDED = "figures carry five digits"


@pytest.fixture(scope="module")
def found():
    net, X, Y, ridge = critical(layers=10)
    return isthmus.mechanics(net, X, Y, ridge=ridge)


def coarse():
    """An empty figure of few pixels, which is drawn quickly."""
    return new_figure(9.0, 6.0, dpi=30)


def test_the_numbers_are_in_it(found):
    figure = found.plot()
    path, spectra, along, residual = (axes for axes in figure.axes if axes.get_label() != "<colorbar>")
    assert figure.get_suptitle().replace("\n", " ").startswith("Conserved: −(2/L̃)H")
    line = path.lines[0]
    assert_close(np.column_stack([line.get_xdata(), line.get_ydata()]), found.arrays.path, rtol=1e-3, reason=ROUNDED)
    values = found.arrays.weight_spectra / found.effective_depth
    # Every W holds for its whole step: steps, the last value drawn to the end.
    drawn = [line for line in spectra.lines if line.get_drawstyle() == "steps-post"]
    assert len(drawn) == values.shape[1]
    assert_close(np.stack([one.get_ydata()[:-1] for one in reversed(drawn)], 1), values, rtol=1e-3, reason=ROUNDED)
    assert len(along.get_legend().get_texts()) == 4
    costs = [line.get_ydata() for line in along.lines if len(line.get_ydata()) == len(found.arrays.identity_cost)]
    apart = [np.abs(np.asarray(one) - found.arrays.identity_cost).max() for one in costs]
    assert min(apart) < 1e-4 * np.abs(found.arrays.identity_cost).max()
    (steps,) = [line for line in residual.lines if line.get_drawstyle() == "steps-post"]
    assert_close(
        np.asarray(steps.get_ydata())[:-1], np.maximum(found.arrays.residual, 1e-16), rtol=1e-3, reason=ROUNDED
    )
    # A grey line at each end of every step.
    for axes in (spectra, along, residual):
        marks = [line.get_xdata()[0] for line in axes.lines if line.get_color() == "#D5DAE0"]
        assert marks == found.arrays.positions.tolist()


def test_energies_have_one_unit(found):
    told = energies(asdict(found.arrays), found.effective_depth)
    assert_close(told["stable"], told["identity_cost"] - told["kinetic"])
    assert_close(np.median(told["hamiltonian"]), found.rank_estimate)


def test_on_a_figure_of_ones_own(found):
    mine = Figure(figsize=(9, 6))
    assert found.plot(mine) is mine
    assert render(mine)[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("net", "given"),
    [
        (leaky(layers=1, effective_depth=0.5), {}),
        (leaky(layers=MARKS + 30), {}),
        (leaky(), {"ridge": 0.0}),
        (leaky(effective_depth=0.0), {}),
        (leaky(), {"tolerance": 0.0}),
    ],
)
def test_every_kind_is_drawn(net, given):
    samples = 1 if net.layers == 1 else 20
    told = isthmus.mechanics(net, gaussian(samples, 4), gaussian(samples, 3), **{"ridge": 0.1, **given})
    figure = told.plot(coarse())
    assert bool(figure.axes) == (told.arrays is not None)
    assert render(figure)[:4] == b"\x89PNG"


def test_what_is_not_finite_is_left_out():
    net = leaky(bias=0)
    with torch.no_grad():
        net.W_in.copy_(-net.W_in.abs())
    dead = isthmus.mechanics(net, gaussian(5, 4).abs(), gaussian(5, 3), ridge=0.1)
    assert np.isinf(dead.arrays.identity_cost).all()
    render(dead.plot(coarse()))
