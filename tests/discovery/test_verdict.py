"""The verdict on profiles written down by hand: positive, negative and undetermined, each threshold from both sides."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isthmus.discovery import _search as verdict
from isthmus.discovery._profile import standard_error
from isthmus.discovery._search import Judgement, doubt_surface, judge, needs_refinement, pooled_rank, supports
from made import level, levels_of, profile_of

#: Rank 2, plain to see; slack is 0.1·0.01 + 0.005 = 0.006.
CLEAR = {1: 0.30, 2: 0.0101, 3: 0.01, 16: 0.01}


def judged(errors, *, finer=None, replicas=(CLEAR,), highest=5, bound=5, baseline=1.0, rows=200, **options):
    levels = levels_of(errors, rows=rows, **options)
    profile = profile_of(errors, rows=rows, baseline=baseline, **options)
    others = [profile_of(one, seed=i + 1) for i, one in enumerate(replicas)]
    constant = baseline * level(1, 1.0, rows=rows).errors
    fine = levels_of(finer or {}, rows=rows)
    return judge(profile, levels, fine, others, highest=highest, bound=bound, baseline=constant)


def test_a_clear_profile_is_determined():
    found = judged(CLEAR)
    assert (found.rank, found.verdict) == (2, "determined")
    assert found.reasons[0].startswith("2 is the smallest k")
    assert "30 times as large" in found.reasons[1]
    assert "a second walk from another seed" in found.reasons[2]
    assert judged(CLEAR, replicas=()).verdict == "determined"
    assert "each of 2 further walks" in judged(CLEAR, replicas=(CLEAR, CLEAR)).reasons[2]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_every_rank_can_be_the_answer(k):
    errors = {j: 0.01 + 0.1 * max(k - j, 0) for j in (1, 2, 3, 4, 5, 16)}
    found = judged(errors, replicas=(errors,))
    assert (found.rank, found.verdict) == (k, "determined")


def doubts(found):
    """What comes before the rule among the reasons."""
    rule = next(i for i, text in enumerate(found.reasons) if "the smallest k whose" in text)
    return found.reasons[:rule]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        # Pure noise: nothing is better than a constant.
        ("nothing of Y is predicted", {"errors": {1: 1.02, 2: 1.03, 3: 1.1, 16: 1.3}}),
        ("nothing of Y is predicted", {"errors": {1: 1.5, 2: 0.95, 3: 0.95, 16: 0.95}}),
        ("a constant is not beaten", {"errors": {1: 0.99, 2: 0.85, 16: 0.85}, "rows": 12, "spread": 4.0}),
        ("too few samples", {"errors": {1: 0.9, 2: 0.4, 16: 0.4}, "cost": 0.01}),
        ("one coordinate less is not clearly worse", {"errors": {1: 0.02, 2: 0.0101, 16: 0.01}}),
        ("one coordinate less is not clearly worse", {"errors": {1: 0.3, 2: 0.0101, 16: 0.01}, "spread": 60.0}),
        ("did not converge: at rank 2 the loss was still falling", {"errors": CLEAR, "states": {2: "falling"}}),
        ("did not converge: at rank 1 the loss was still falling", {"errors": CLEAR, "states": {1: "falling"}}),
        ("did not converge: at rank 2 the loss diverged", {"errors": CLEAR, "states": {2: "diverged"}}),
        (
            "depends on seed, split or depth: 2 at depth 8, 3 at depth 8",
            {"errors": CLEAR, "replicas": ({1: 0.5, 2: 0.2, 3: 0.01, 16: 0.01},)},
        ),
        (
            "depends on seed, split or depth",
            {"errors": CLEAR, "replicas": ({1: 0.0101, 2: 0.01, 16: 0.01},)},
        ),
        ("only 9 rows or groups", {"errors": CLEAR, "rows": 9}),
        ("a weak further coordinate", {"errors": CLEAR, "finer": {2: 1.02e-3 * verdict.WEAK_RATIO, 3: 0.001}}),
    ],
)
def test_each_doubt_is_enough(words, options):
    found = judged(**options)
    assert found.verdict == "undetermined"
    assert any(words in text for text in doubts(found)), found.reasons


def test_what_is_no_doubt():
    # Ranks that the answer does not rest on may still be falling.
    assert judged(CLEAR, states={3: "falling", 16: "falling"}).verdict == "determined"
    # Few rows, but at least ten.
    assert judged(CLEAR, rows=10).verdict == "determined"
    # A large error that more data would not lower: noise.
    noisy = {1: 0.9, 2: 0.4, 3: 0.4, 16: 0.41}
    assert judged(noisy, cost=0.35, replicas=(noisy,)).verdict == "determined"
    # A much better fit through more coordinates than the theorem allows.
    assert judged(CLEAR, finer={2: 1.02e-3 * verdict.WEAK_RATIO, 3: 0.001}, highest=2, bound=2).verdict == "determined"
    # A better fit with one coordinate more, but not by many times.
    assert judged(CLEAR, finer={2: 0.98e-3 * verdict.WEAK_RATIO, 3: 0.001}).verdict == "determined"


def test_thresholds_from_both_sides():
    best = 0.02
    slack = 0.1 * best + 0.005
    for factor, rank in ((0.99, 1), (1.01, 2)):
        errors = {1: best + factor * slack, 2: best, 16: best}
        assert judged(errors, replicas=(errors,)).rank == rank
    for factor, wanted in ((1.99, "undetermined"), (2.01, "determined")):
        errors = {1: best + factor * slack, 2: best, 16: best}
        found = judged(errors, replicas=())
        assert (found.rank, found.verdict) == (2, wanted)
    # Below that, a tenth of the ridge decides: twice the error, or not.
    errors = {1: best + 1.5 * slack, 2: best, 16: best}
    for error, wanted in ((0.0099, "undetermined"), (0.0102, "determined")):
        found = judged(errors, finer={1: error, 2: 0.005}, replicas=())
        assert (found.rank, found.verdict) == (2, wanted)
    for factor, wanted in ((1.02, "undetermined"), (0.98, "determined")):
        assert judged(CLEAR, finer={2: 1e-3 * factor * verdict.WEAK_RATIO, 3: 1e-3}).verdict == wanted
    for share, wanted in ((0.91, "undetermined"), (0.89, "determined")):
        errors = {1: 0.9 * share / 0.91, 2: 0.9 * share / 0.91, 16: 0.9 * share / 0.91}
        found = judged(errors, baseline=errors[1] / share, replicas=(errors,))
        assert (found.rank, found.verdict) == (1, wanted)
    for cost, wanted in ((0.3 / 3.1, "undetermined"), (0.3 / 2.9, "determined")):
        errors = {1: 0.9, 2: 0.3, 16: 0.3}
        assert judged(errors, cost=cost, replicas=(errors,)).verdict == wanted


def test_max_rank_too_small():
    errors = {1: 0.9, 2: 0.5, 16: 0.01}
    found = judged(errors, replicas=(errors,), highest=2)
    assert (found.rank, found.verdict) == (2, "undetermined")
    assert "raise `max_rank`" in found.reasons[0]
    # Where the theorem allows no more, the last rank is the answer, however much a wider network does better.
    found = judged(errors, replicas=(errors,), highest=2, bound=2)
    assert found.rank == 2


@pytest.mark.parametrize("bound", [5, 20])
def test_a_rank_that_was_not_tried_is_no_answer(bound):
    """The wide network used two coordinates, and narrowed to them it is worse: nothing to be sure about."""
    errors = {1: 0.5, 2: 0.2, 16: 0.01}
    found = judged(errors, replicas=(), highest=5, bound=bound)
    assert (found.rank, found.verdict) == (2, "undetermined")
    assert "do not suffice" in found.reasons[0]
    more = {1: 0.9, 2: 0.5, 3: 0.2, 4: 0.01, 16: 0.01}
    found = judged(errors, replicas=(more,), highest=5, bound=bound)
    assert (found.rank, found.verdict) == (2, "undetermined")


def test_pooled_rank():
    two, three = profile_of(CLEAR), profile_of({2: 0.02, 3: 0.01, 16: 0.01})
    assert two.chosen == pooled_rank([two], 9) == 2
    assert three.chosen == 3
    # Excess 0.0001 and 0.01 over a mean slack of 0.006.
    assert pooled_rank([two, three], 9) == 2
    worse = profile_of({2: 0.03, 3: 0.01, 16: 0.01})
    assert pooled_rank([two, worse], 9) == 3
    assert pooled_rank([two, worse, two], 9) == 3
    assert pooled_rank([two, three, two], 9) == 2
    # A walk that stopped above a rank did so because more was not enough.
    assert pooled_rank([two, profile_of({3: 0.1, 4: 0.01, 16: 0.01})], 9) == 4
    assert pooled_rank([worse], 2) == 2
    assert pooled_rank([profile_of({1: 0.9, 2: 0.9, 16: 0.01})], 5) == 5


def test_supports():
    clear = profile_of(CLEAR)
    assert supports(clear, 2, 9)
    assert not supports(clear, 1, 9)
    assert not supports(clear, 3, 9)
    # Chosen 3 there, but 2 is within twice the slack of 0.006 and 1 is not: compatible with 2.
    nearly = profile_of({1: 0.5, 2: 0.021, 3: 0.01, 16: 0.01})
    assert nearly.chosen == 3
    assert supports(nearly, 2, 9)
    assert not supports(profile_of({1: 0.5, 2: 0.023, 3: 0.01, 16: 0.01}), 2, 9)
    # Where the theorem allows no more, enough is what there is.
    assert supports(profile_of({1: 0.5, 2: 0.2, 16: 0.01}), 2, 2)


def test_needs_refinement():
    assert needs_refinement(profile_of({1: 0.3, 2: 0.01, 3: 0.01, 16: 0.01}), 2) == set()
    assert needs_refinement(profile_of({1: 0.021, 2: 0.01, 3: 0.01, 16: 0.01}), 2) == {1, 2}
    assert needs_refinement(profile_of({1: 0.3, 2: 0.0016, 3: 0.001, 16: 0.001}), 2) == {2, 3}
    assert needs_refinement(profile_of({1: 0.004, 2: 0.0016, 3: 0.001, 16: 0.001}), 2) == {1, 2, 3}


def test_worse_by_mean_or_by_most_rows():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 1.5, 50)
    assert verdict._worse(base + 0.1, base + 0.01 * rng.standard_normal(50))
    assert not verdict._worse(base, base)
    assert not verdict._worse(base - 0.1, base)
    assert not verdict._worse(base + 0.1 * rng.standard_normal(50), base)
    # A tear: every row a little worse, one much better, so that the mean is within its standard error.
    torn = base + 0.01
    torn[0] += 10.0
    assert (torn - base).mean() < 3 * standard_error(torn - base)
    assert verdict._worse(torn, base)
    # One bad row alone is an accident.
    torn = base.copy()
    torn[0] += 10.0
    assert not verdict._worse(torn, base)
    assert not verdict._worse(torn[:9] + 0.01, base[:9])


def test_standard_error():
    assert standard_error(np.array([1.0])) == math.inf
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1.0)


def test_coordinates_on_a_thin_surface():
    """A knot or a torus may be unrolled with fewer coordinates than any start found; a circle needs its two."""
    sure = {k: Judgement(k, "determined", ("clear",)) for k in (2, 3, 4)}
    for k in (3, 4):
        found = doubt_surface(sure[k], (verdict.SURFACE - 0.01) * k, math.nan)
        assert (found.rank, found.verdict) == (k, "undetermined")
        assert "no start that was tried unrolled it" in found.reasons[0]
        assert doubt_surface(sure[k], (verdict.SURFACE + 0.01) * k, 0.3) is sure[k]
        assert doubt_surface(sure[k], math.nan, math.nan) is sure[k]
        found = doubt_surface(sure[k], float(k), verdict.FLAT - 0.01)
        assert found.verdict == "undetermined" and f"unrolls into {k - 1}" in found.reasons[0]
        assert doubt_surface(sure[k], float(k), verdict.FLAT + 0.01) is sure[k]
    assert doubt_surface(sure[2], 1.0, 0.5) is sure[2]
    # A sphere needs three for its two dimensions.
    assert doubt_surface(sure[3], 2.0, 0.4) is sure[3]
