"""Units of columns, and which of very many count: chosen by what predicts."""

from __future__ import annotations

import numpy as np

from isthmus.discovery import Settings
from isthmus.discovery._task import make_task
from isthmus.discovery._units import SPREAD, alike, choose_units
from tools import SEED, gaussian

RNG = [SEED, 11]


def pictures(rows=300, side=64):
    """Spots at a place that decides: near the border hardly anything is seen but noise of the pixels."""
    rng = np.random.default_rng(RNG)
    place = rng.uniform(0.35, 0.65, (rows, 2))
    along = np.linspace(0.0, 1.0, side)
    shape = np.exp(-((along - place[:, :1]) ** 2) / 0.01) * (1 + place[:, 1:])
    return shape + 1e-3 * rng.standard_normal((rows, side)), np.column_stack([place, place[:, :1] * place[:, 1:]])


def test_pixels_are_divided_by_one_number():
    X, Y = pictures()
    assert alike(X)
    found = choose_units(X, Y, None, 0, 256)
    assert (found.inputs, found.outputs, found.kept) == ("common", "own", None)
    assert len(found.notes) == 1
    task = make_task(X, Y, Settings())
    assert task.units == found and task.notes[0] == found.notes[0]
    # What is asked for is done, without a look at what predicts.
    own = make_task(X, Y, Settings(units="own"))
    assert (own.units.inputs, own.units.notes) == ("own", ())


def test_columns_in_different_units_are_not_alike():
    """A table: neighbours have nothing to do with each other, however many there are."""
    rng = np.random.default_rng(RNG)
    X = gaussian(200, 40).numpy() * 10.0 ** rng.uniform(-3, 3, 40)
    assert not alike(X)
    found = choose_units(X, np.tanh(X[:, :2] / X[:, :2].std(axis=0)), None, 0, 256)
    assert (found.inputs, found.outputs, found.kept, found.notes) == ("own", "own", None, ())


def test_few_columns_or_columns_that_vary_alike_raise_no_question():
    waves = 1 + np.sin(np.linspace(0, 3, 40))
    X = gaussian(200, 40).numpy()
    assert alike(X * waves**3)
    assert not alike((X * waves**3)[:, :15])
    # From both sides of the ratio from which on it matters.
    for factor, wanted in ((1.05, True), (0.95, False)):
        deviations = np.exp(np.linspace(0.0, np.log(factor * SPREAD), 40))
        assert alike(X / X.std(axis=0) * deviations) is wanted


def test_an_autoencoder_keeps_its_own_units():
    X, _ = pictures()
    assert make_task(X, X.copy(), Settings()).units.inputs == "own"


def test_a_few_columns_among_four_hundred():
    rng = np.random.default_rng(RNG)
    X = rng.standard_normal((400, 400))
    Y = np.column_stack([X[:, 7] + X[:, 311], X[:, 7] * X[:, 90], X[:, 90]])
    found = choose_units(X, Y, None, 0, 256)
    assert found.kept is not None and {7, 90, 311} <= set(found.kept.tolist()) and len(found.kept) <= 64
    assert len(found.notes) == 1
    scaled = make_task(X, Y, Settings()).data(0)[0].X
    assert scaled.shape[1] == len(found.kept)
    # Nothing of that where the columns are not too many.
    assert choose_units(X[:, :256], Y, None, 0, 256).kept is None


def test_where_all_columns_count_all_are_kept():
    rng = np.random.default_rng(RNG)
    Z = rng.standard_normal((400, 2))
    X = Z @ rng.standard_normal((2, 400)) + 0.5 * rng.standard_normal((400, 400))
    found = choose_units(X, Z, None, 0, 256)
    assert (found.kept, found.notes) == (None, ())
