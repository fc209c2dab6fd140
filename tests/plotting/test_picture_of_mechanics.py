"""The picture of a mechanics: four panels with the result's own numbers, for every state and size."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import isthmus
from isthmus.plotting.mechanics import MARKS, energies
from isthmus.plotting.style import new_figure, render
from leaky_nets import critical, leaky
from tools import assert_close, gaussian


@pytest.fixture(scope="module")
def found():
    net, X, Y, ridge = critical(layers=10)
    return isthmus.mechanics(net, X, Y, ridge=ridge)


def coarse():
    """An empty figure of few pixels, which is drawn quickly."""
    return new_figure(9.0, 6.0, dpi=30)


def test_the_numbers_are_in_it(found):
    figure = found.plot()
    path, spectra, along, residual = figure.axes
    assert figure.get_suptitle().replace("\n", " ").startswith("Conserved: −(2/L̃)H")
    line = path.lines[0]
    assert np.array_equal(np.column_stack([line.get_xdata(), line.get_ydata()]), found.arrays.path)
    steps = [patch for patch in spectra.patches if type(patch).__name__ == "StepPatch"]
    assert len(steps) == found.arrays.weight_spectra.shape[1]
    drawn = np.stack([step.get_data().values for step in reversed(steps)], 1)
    assert_close(drawn, found.arrays.weight_spectra / found.effective_depth)
    labels = along.get_legend_handles_labels()[1]
    assert len(labels) == 4
    by_label = {line.get_label(): line.get_ydata() for line in along.lines}
    cost = next(values for label, values in by_label.items() if "cost of identity" in label)
    assert np.array_equal(cost, found.arrays.identity_cost)
    (stairs,) = [patch for patch in residual.patches if type(patch).__name__ == "StepPatch"]
    assert_close(np.asarray(stairs.get_data().values), np.maximum(found.arrays.residual, 1e-16))
    # A grey line at each end of every step.
    for axes in (spectra, along, residual):
        marks = [line for line in axes.lines if line.get_color() == "#D5DAE0"]
        assert [line.get_xdata()[0] for line in marks] == found.arrays.positions.tolist()


def test_energies_have_one_unit(found):
    a = found.arrays
    told = energies({name: getattr(a, name) for name in vars(a)}, found.effective_depth)
    assert_close(told["stable"], told["identity_cost"] - told["kinetic"])
    assert_close(np.median(told["hamiltonian"]), found.rank_estimate)


def test_on_a_figure_of_ones_own(found):
    mine = Figure(figsize=(9, 6))
    assert found.plot(mine) is mine and len(mine.axes) == 4
    assert render(mine)[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("net", "given"),
    [
        (leaky(layers=1, effective_depth=0.5), {}),
        (leaky(layers=MARKS + 30), {}),
        (leaky(bias=0, width=4), {}),
        (leaky(), {"ridge": 0.0}),
        (leaky(effective_depth=0.0), {}),
        (leaky(), {"tolerance": 0.0}),
    ],
)
def test_every_kind_is_drawn(net, given):
    samples = 1 if net.layers == 1 else 20
    told = isthmus.mechanics(net, gaussian(samples, 4), gaussian(samples, 3), **{"ridge": 0.1, **given})
    figure = told.plot(coarse())
    assert len(figure.axes) == (0 if told.arrays is None else 4)
    assert render(figure)[:4] == b"\x89PNG"


def test_what_is_not_finite_is_left_out():
    import torch

    net = leaky(bias=0)
    with torch.no_grad():
        net.W_in.copy_(-net.W_in.abs())
    dead = isthmus.mechanics(net, gaussian(5, 4).abs(), gaussian(5, 3), ridge=0.1)
    assert np.isinf(dead.arrays.identity_cost).all()
    render(dead.plot(coarse()))
    render(isthmus.mechanics(net, torch.zeros(5, 4), gaussian(5, 3), ridge=0.1).plot(coarse()))
