"""The verdict on profiles written down by hand: positive, negative and undetermined, each threshold from both sides."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isthmus.discovery import _search as verdict
from isthmus.discovery._profile import standard_error
from isthmus.discovery._reference import Reference
from isthmus.discovery._search import (
    Judgement,
    doubt_surface,
    judge,
    needs_closer_look,
    supports,
    underfits,
)
from isthmus.discovery._walk import ROUGH
from made import level, levels_of, profile_of

#: Rank 2, plain to see; slack is 0.1·0.01 + 0.005 = 0.006.
CLEAR = {1: 0.30, 2: 0.0101, 3: 0.01, 16: 0.01}


def judged(
    errors,
    *,
    replicas=(CLEAR,),
    highest=5,
    bound=5,
    baseline=1.0,
    rows=200,
    tolerance=verdict.TOLERANCE,
    reference=None,
    resolution=None,
    **options,
):
    levels = levels_of(errors, rows=rows, **options)
    profile = profile_of(errors, rows=rows, baseline=baseline, tolerance=tolerance, resolution=resolution, **options)
    others = [profile_of(one, seed=i + 1) for i, one in enumerate(replicas)]
    constant = baseline * level(1, 1.0, rows=rows).errors
    return judge(profile, levels, others, highest=highest, bound=bound, baseline=constant, reference=reference)


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
        ("one coordinate less is not clearly worse", {"errors": {1: 0.3, 2: 0.0101, 16: 0.01}, "spread": 8.0}),
        ("did not converge: at rank 2 the loss diverged", {"errors": CLEAR, "states": {2: "diverged"}}),
        ("did not converge: at rank 1 the loss diverged", {"errors": CLEAR, "states": {1: "diverged"}}),
        (
            "depends on seed, split or depth: 2 at depth 8, but errors of ",
            {"errors": CLEAR, "replicas": ({1: 0.5, 2: 0.2, 3: 0.01, 16: 0.01},)},
        ),
        (
            "depends on seed, split or depth",
            {"errors": CLEAR, "replicas": ({1: 0.0101, 2: 0.01, 16: 0.01},)},
        ),
        ("only 9 rows or groups", {"errors": CLEAR, "rows": 9}),
        ("a weak further coordinate", {"errors": {1: 0.3, 2: 0.011, 3: 0.01, 16: 0.01}, "resolution": 5e-4}),
        ("the network underfits", {"errors": {1: 0.9, 2: 0.1, 16: 0.1}, "reference": Reference(0.05, "a forest", {})}),
    ],
)
def test_each_doubt_is_enough(words, options):
    found = judged(**options)
    assert found.verdict == "undetermined"
    assert any(words in text for text in doubts(found)), found.reasons


def test_what_is_no_doubt():
    # Slow training raises no doubt of its own: what it spoils is seen in the errors.
    assert judged(CLEAR, states=dict.fromkeys(CLEAR, "falling")).verdict == "determined"
    # Nor does a rank that the answer does not rest on.
    assert judged(CLEAR, states={3: "diverged", 16: "diverged"}).verdict == "determined"
    # Few rows, but at least ten.
    assert judged(CLEAR, rows=10).verdict == "determined"
    # A large error that more data would not lower: noise.
    noisy = {1: 0.9, 2: 0.4, 3: 0.4, 16: 0.41}
    assert judged(noisy, cost=0.35, replicas=(noisy,)).verdict == "determined"
    # A better fit through more coordinates than the theorem allows.
    weak = {1: 0.3, 2: 0.011, 3: 0.01, 16: 0.01}
    assert judged(weak, replicas=(weak,), highest=2, bound=2).verdict == "determined"
    # One that gains less than half the resolution.
    assert judged(weak, replicas=(weak,), resolution=5e-4).verdict == "undetermined"
    assert judged(weak, replicas=(weak,), resolution=1e-3).verdict == "determined"
    # A reference that predicts better than the networks, but not by much.
    assert judged(CLEAR, reference=Reference(0.0099, "a forest", {})).verdict == "determined"


def test_a_difference_within_its_standard_error_does_not_count():
    best = 0.02
    slack = 0.1 * best + 0.005
    for factor, spread, rank in ((1.5, 1e-3, 2), (1.5, 60.0, 1), (2.9, 60.0, 1), (3.1, 60.0, 2)):
        errors = {1: best + factor * slack, 2: best, 16: best}
        assert judged(errors, replicas=(), spread=spread).rank == rank


def test_thresholds_from_both_sides():
    best = 0.02
    slack = 0.1 * best + 0.005
    for factor, rank in ((0.99, 1), (1.01, 2)):
        errors = {1: best + factor * slack, 2: best, 16: best}
        assert judged(errors, replicas=(errors,), spread=0.0).rank == rank
    # Beyond the slack, the standard error of the difference is allowed.
    chance = profile_of({1: best + slack, 2: best, 16: best}, spread=0.2).excess_error[0]
    assert 0 < chance < slack
    for factor, rank in ((0.9, 1), (1.1, 2)):
        errors = {1: best + slack + factor * chance, 2: best, 16: best}
        assert profile_of(errors, spread=0.2).chosen == judged(errors, replicas=(errors,), spread=0.2).rank == rank
    for factor, wanted in ((1.99, "undetermined"), (2.01, "determined")):
        errors = {1: best + factor * slack, 2: best, 16: best}
        found = judged(errors, replicas=(), spread=1e-3)
        assert (found.rank, found.verdict) == (2, wanted)
    # Through one more the error may be lower by a share of it, and by half the resolution.
    for factor, wanted in ((1.02, "undetermined"), (0.98, "determined")):
        errors = {1: 0.3, 2: (0.01 + factor * 2.5e-4) / (1 - factor * verdict.MARGINAL), 3: 0.01, 16: 0.01}
        found = judged(errors, replicas=(), spread=1e-3, resolution=5e-4)
        assert (found.rank, found.verdict) == (2, wanted)
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


def test_a_rank_that_comes_from_the_bound_is_not_said_to_come_from_the_errors():
    errors = {1: 0.30, 2: 0.05, 3: 0.01, 16: 0.01}
    assert profile_of(errors).chosen == 3
    found = judged(errors, replicas=(errors,), highest=2, bound=2)
    assert (found.rank, found.verdict) == (2, "determined")
    assert found.reasons[0].startswith("2 is the most that the rank can be, by theorem")
    assert "it would be 3, with 0.01 at best; with 2 it is 0.05 of the outputs' variance" in found.reasons[0]
    assert "smallest k" not in " ".join(found.reasons)
    # Where both agree the errors say it.
    assert judged(CLEAR, highest=2, bound=2).reasons[0].startswith("2 is the smallest k")


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


def test_where_errors_are_approximations():
    """There k is the last that lowers the error much: by more than twice what all further ones do."""
    floor, best = 0.005, 0.02
    for factor, wanted in ((0.99, "undetermined"), (1.01, "determined")):
        errors = {1: factor * verdict.CLEAR_RATIO * (best + floor) - floor, 2: best, 3: best, 16: best}
        found = judged(errors, tolerance=ROUGH, replicas=())
        assert (found.rank, found.verdict) == (2, wanted)
        # If two more coordinates ease the fit as much as the second did, nothing is clear.
        eased = {1: errors[1], 2: best, 3: 0.9 * best, 16: 0.7 * best}
        assert judged(eased, tolerance=ROUGH, replicas=()).verdict == "undetermined"
    # That further ones ease the fit a little is no doubt there.
    errors = {1: 0.5, 2: 0.022, 3: 0.02, 16: 0.02}
    assert judged(errors, tolerance=ROUGH, replicas=(errors,)).verdict == "determined"
    assert judged(errors, replicas=(errors,), resolution=1e-3).verdict == "undetermined"


def test_a_gain_by_chance_is_none():
    errors = {1: 0.3, 2: 0.011, 3: 0.01, 16: 0.01}
    for spread, count in ((0.2, 1), (60.0, 0)):
        levels, profile = levels_of(errors, spread=spread), profile_of(errors, spread=spread, resolution=5e-4)
        assert len(verdict._one_more(profile, levels, 2)) == count
    rng = np.random.default_rng(0)
    # A little more than three standard errors: rare by chance in one look, not in one of twenty.
    draw = rng.standard_normal(400)
    draw = (draw - draw.mean()) / draw.std(ddof=1) + 3.3 / 20
    others = np.full(400, 5.0)
    assert 3.2 < draw.mean() / standard_error(draw) < 3.4
    assert verdict._worse(others + draw, others)
    assert not verdict._worse(others + draw, others, looks=20)


def test_underfits():
    for factor, wanted in ((1.01, True), (0.99, False)):
        limit = verdict.WORSE * 0.02 + 0.001
        assert underfits(factor * limit, Reference(0.02, "a forest", {}), 0.001) is wanted
        # At any rank: the best level counts.
        errors = {k: 10 * error for k, error in CLEAR.items()}
        reference = Reference((0.1 - 0.01) / verdict.WORSE / factor, "a forest", {})
        assert (judged(errors, reference=reference).verdict == "undetermined") is wanted


@pytest.mark.parametrize(("theirs", "said"), [(0.0068, False), (0.0066, True)])
def test_what_was_not_learned_is_said(theirs, said):
    """Errors of more than 1.5 times the reference's are named, even if the difference is below the resolution."""
    found = judged(CLEAR, reference=Reference(theirs, "a forest", {}))
    assert found.verdict == "determined"
    assert any("below the resolution" in reason and "a forest" in reason for reason in found.reasons) is said


def test_what_chance_may_give_away():
    """Within the slack an error is enough; beyond three times the slack it never is, however much rows differ."""
    rng = np.random.default_rng(0)
    between = set()
    for seed in range(200):
        errors = dict(enumerate(np.sort(rng.lognormal(-3.0, 0.4, 4))[::-1], start=1))
        profile = profile_of(errors, spread=1.0, seed=seed, rows=12)
        excess = profile.excess[profile.row(profile.chosen)]
        assert excess <= 3.0 * profile.slack
        assert profile.chosen <= profile.ranks[profile.excess <= profile.slack].min()
        between.add(bool(excess > profile.slack))
    assert between == {False, True}


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
    # Where one coordinate less lacks much, a little of that may be lacking with all.
    for factor, wanted in ((0.99, True), (1.01, False)):
        errors = {1: 1.01, 2: 0.01 + factor * verdict.LITTLE * 1.0, 16: 0.01}
        assert supports(profile_of(errors), 2, 9) is wanted
    # Where the theorem allows no more, enough is what there is.
    assert supports(profile_of({1: 0.5, 2: 0.2, 16: 0.01}), 2, 2)


def wanted_of(errors, k=2, bound=9, **options):
    return needs_closer_look(profile_of(errors, **options), levels_of(errors), k, bound)


def test_needs_closer_look():
    clear = {1: 0.3, 2: 0.01, 3: 0.01, 16: 0.01}
    # However clear: k − 1 coordinates may do once the surface is unrolled.
    assert wanted_of(clear) == {1}
    assert wanted_of({1: 0.01, 2: 0.01, 16: 0.01}, k=1) == set()
    # One less is not clearly worse: the slack is 0.006, and it takes twice that.
    assert wanted_of({**clear, 1: 0.01 + 1.99 * 0.006}) == {1, 2}
    assert wanted_of({**clear, 1: 0.01 + 2.01 * 0.006}) == {1}
    # One more, or many more, do better by more than is marginal.
    for rank in (3, 16):
        for factor, wanted in ((1.02, {1, 2, 3}), (0.98, {1})):
            errors = {1: 0.3, 2: 0.01, 3: 0.01, 16: 0.01, rank: 0.01 * (1 - factor * verdict.MARGINAL)}
            assert wanted_of(errors) == wanted
            # By theorem no more are needed.
            assert wanted_of(errors, bound=2) == {1}
    # Approximations that are not about as good as the best are compared all alike, as far as there are any.
    assert wanted_of(clear, tolerance=ROUGH) == {1}
    assert wanted_of({**clear, 16: 0.002}, tolerance=ROUGH) == {1, 2, 3}
    assert wanted_of({1: 0.3, 2: 0.01, 16: 0.002}, tolerance=ROUGH) == {1, 2}


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
        for dimension in (k - 1.0, math.nan):
            found = doubt_surface(sure[k], dimension, verdict.FLAT - 0.01)
            assert found.verdict == "undetermined" and f"unrolls into {k - 1}" in found.reasons[0]
            assert doubt_surface(sure[k], dimension, verdict.FLAT + 0.01) is sure[k]
        # A cloud that fills k dimensions is no surface, whatever shortest paths say.
        assert doubt_surface(sure[k], verdict.FILLED * k + 0.01, verdict.FLAT - 0.01) is sure[k]
    assert doubt_surface(sure[2], 1.0, 0.5) is sure[2]
    # A sphere needs three for its two dimensions.
    assert doubt_surface(sure[3], 2.0, 0.4) is sure[3]


def test_a_surface_that_one_coordinate_less_hardly_tears():
    """Through one coordinate less a sphere is torn, and much is lost; a ring with a width loses little."""
    sure = Judgement(3, "determined", ("clear",))
    thin, whole = 3 * verdict.FILLED - 0.01, 3 * verdict.FILLED + 0.01
    little, much = verdict.TORN - 1e-6, verdict.TORN + 1e-6
    found = doubt_surface(sure, thin, 0.4, little)
    assert (found.rank, found.verdict, found.reasons[1:]) == (3, "undetermined", ("clear",))
    for dimension, torn in ((thin, much), (whole, little), (math.nan, little)):
        assert doubt_surface(sure, dimension, 0.4, torn) is sure
    # Nothing was trained through fewer.
    assert doubt_surface(sure, thin, 0.4) is sure
    # An arc that is nearly closed goes through one coordinate with little loss, a circle does not.
    curve = Judgement(2, "determined", ("clear",))
    assert doubt_surface(curve, 1.0, 0.4, verdict.TORN_CURVE - 1e-6).verdict == "undetermined"
    assert doubt_surface(curve, 1.0, 0.4, verdict.TORN_CURVE + 1e-6) is curve
