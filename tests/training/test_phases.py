"""Phases: schedules and checks."""

from __future__ import annotations

import pytest

from isthmus import IsthmusError
from isthmus.training import Phase
from tools import assert_close


def test_ridge_is_geometric_then_constant():
    phase = Phase("lbfgs", 100, ridge_start=100.0, ridge_end=1.0, ridge_share=0.5)
    assert_close([phase.ridge_factor(s) for s in (0, 25, 50, 99)], [100.0, 10.0, 1.0, 1.0])
    constant = Phase("lbfgs", 10, ridge_start=0.3, ridge_end=0.3)
    # Exactly: convergence is judged only where the ridge is the same number.
    assert {constant.ridge_factor(s) for s in range(10)} == {0.3}
    assert Phase("lbfgs", 10, ridge_start=5.0, ridge_share=0.0).ridge_factor(0) == 1.0
    assert Phase("lbfgs", 0, ridge_start=5.0).ridge_factor(0) == 1.0


def test_learning_rate():
    assert {Phase("gd", 10, 0.1).rate(s) for s in range(10)} == {0.1}
    phase = Phase("adam", 100, 0.1, anneal=True)
    rates = [phase.rate(s) for s in range(101)]
    assert_close(rates[0], 0.1 / 5)
    assert max(rates) <= 0.1
    assert all(a > b for a, b in zip(rates[5:], rates[6:]))
    assert_close(rates[100], 1e-3)
    assert Phase("lbfgs", 10).rate(3) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rmsprop", "steps": 1}, "'adam', 'gd', 'sgd', 'nesterov', 'lbfgs', 'narrow'"),
        ({"method": "adam", "steps": 1}, "learning_rate"),
        ({"method": "adam", "steps": -1, "learning_rate": 1.0}, "steps"),
        ({"method": "adam", "steps": 1.5, "learning_rate": 1.0}, "integer"),
        ({"method": "adam", "steps": 1, "learning_rate": 0.0}, "learning_rate"),
        ({"method": "adam", "steps": 1, "learning_rate": float("nan")}, "learning_rate"),
        ({"method": "gd", "steps": 1, "learning_rate": 1.0, "batch_size": 3}, "Use 'sgd'"),
        ({"method": "lbfgs", "steps": 1, "batch_size": 3}, "Use 'adam' or 'sgd'"),
        ({"method": "sgd", "steps": 1, "learning_rate": 1.0, "batch_size": 0}, "batch_size"),
        ({"method": "sgd", "steps": 1, "learning_rate": 1.0, "momentum": 1.5}, "momentum"),
        ({"method": "lbfgs", "steps": 1, "ridge_start": 0.0}, "ridge_start"),
        ({"method": "lbfgs", "steps": 1, "ridge_share": 2.0}, "ridge_share"),
        ({"method": "lbfgs", "steps": 1, "memory": 0}, "memory"),
        ({"method": "narrow", "steps": 1, "attempt": 0}, "attempt"),
        ({"method": "lbfgs", "steps": 1, "precision": "half"}, "'module', 'double'"),
    ],
)
def test_wrong_phases_are_refused(options, message):
    with pytest.raises(IsthmusError, match=message):
        Phase(**options)
