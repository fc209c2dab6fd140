"""Q-minimum: the kinds of minima, on linear networks whose minima are known in closed form."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from scipy.optimize import brentq, minimize_scalar

from isthmus import IsthmusError
from isthmus.constructions import linear_network, rank_one
from isthmus.diagnosis import Diagnosis, History, Monitor, diagnose
from isthmus.measures import Minimum, kind_of_minimum, parameter_norms
from isthmus.objective import cost
from tools import gaussian, random_net

RIDGE, DEPTH = 0.1, 4
SIZES = (3.0, 2.0, 0.45)


def local_minimum(m):
    """The positive local minimum of (s − m)² + ridge·L·s^(2/L), by the sign of its derivative."""
    slope = lambda s: 2 * (s - m) + 2 * RIDGE * s ** (2 / DEPTH - 1)  # noqa: E731
    lowest = minimize_scalar(slope, bounds=(1e-6, m), method="bounded").x
    return brentq(slope, lowest, m)


def task():
    """Inputs with XᵀX = N and a linear map of singular values 3, 2 and 0.45: the loss is a sum over singular values."""
    X = torch.linalg.qr(gaussian(60, 5)).Q * 60**0.5
    U, V = torch.linalg.qr(gaussian(4, 3, seed=1)).Q, torch.linalg.qr(gaussian(5, 3, seed=2)).Q
    M = U * torch.tensor(SIZES, dtype=torch.float64) @ V.mT
    return X, X @ M.mT, U, V


def network(kept):
    """The local minimum that keeps these singular values."""
    _, _, U, V = task()
    s = torch.tensor([local_minimum(SIZES[i]) for i in kept], dtype=torch.float64)
    kept = list(kept)
    return linear_network(U[:, kept] * s @ V[:, kept].mT, DEPTH).network


def numbers(net):
    X, Y, *_ = task()
    return float(cost(net(X), Y).detach()), parameter_norms(net).total


def test_the_profile_by_enumeration():
    """Of all subsets of singular values the first two have the least loss; to keep 0.45 is a minimum too."""
    totals = {}
    for count in range(4):
        for kept in itertools.combinations(range(3), count):
            C = sum((local_minimum(m) - m) ** 2 if i in kept else m**2 for i, m in enumerate(SIZES))
            R = DEPTH * sum(local_minimum(SIZES[i]) ** (2 / DEPTH) for i in kept)
            totals[kept] = C + RIDGE * R
            if kept:
                assert numbers(network(kept)) == pytest.approx((C, R), rel=1e-9)
    assert min(totals, key=totals.get) == (0, 1)
    profile = {k: numbers(network(range(k))) for k in (1, 2, 3)}
    options = {"ridge": RIDGE, "depth": DEPTH, "fit": 1.325, "profile": profile}
    kinds = []
    for k in (1, 2, 3):
        C, R = profile[k]
        found = kind_of_minimum(rank=k, cost=C, norm=R, **options)
        kinds.append(found.kind)
        assert found.true_rank == 2 and [one.rank for one in found.profile] == [1, 2, 3]
        assert found.profile[k - 1].total == pytest.approx(totals[tuple(range(k))])
        assert Minimum.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    # In linear networks a rank that is too low cannot fit.
    assert kinds == ["underestimating and not fitting", "rank-recovering", "overestimating"]


def test_a_rank_that_is_too_low_can_fit():
    X = gaussian(12, 2)
    Y = X @ gaussian(2, 3, seed=1)
    net = rank_one(X, Y, 8, generator=torch.Generator().manual_seed(0)).network
    C, R = float(cost(net(X), Y).detach()), parameter_norms(net).total
    assert C < 1e-12
    options = {"ridge": 1e-3, "depth": net.depth, "fit": 0.1}
    found = kind_of_minimum(rank=1, cost=C, norm=R, true_rank=2, **options)
    assert found.kind == "underestimating and fitting" and found.fits
    # By the profile: the linear map itself has rank 2 and far less norm.
    truth = (0.0, parameter_norms(linear_network(gaussian(2, 3, seed=1).mT, net.depth).network).total)
    found = kind_of_minimum(rank=1, cost=C, norm=R, profile={2: truth, 3: (0.0, truth[1] + 8)}, **options)
    assert (found.kind, found.true_rank) == ("underestimating and fitting", 2)


def test_what_is_undetermined():
    options = {"cost": 0.1, "norm": 10.0, "ridge": 0.01, "depth": 4, "fit": 0.2}
    assert "could not be determined" in kind_of_minimum(rank=None, true_rank=2, **options).reason
    assert "no minimum yet" in kind_of_minimum(rank=2, true_rank=2, gradient=3.0, **options).reason
    assert "rank 1 is not known" in kind_of_minimum(rank=2, **options).reason
    close = kind_of_minimum(rank=2, profile={1: (0.12, 8.05)}, **options)
    assert close.kind == "undetermined" and "within" in close.reason
    # Rank 3 is not known, and costs 0.04 while 0.1 could be saved.
    assert "rank 3 is not known" in kind_of_minimum(rank=2, profile={1: (1.0, 5.0)}, **options).reason
    paid = {**options, "cost": 0.001, "norm": 8.1}
    assert kind_of_minimum(rank=2, profile={1: (1.0, 5.0)}, **paid).kind == "rank-recovering"
    # Networks that were not trained show nothing unless their loss is less.
    assert kind_of_minimum(rank=2, below={1: (1.0, 5.0)}, **paid).kind == "undetermined"
    assert kind_of_minimum(rank=2, below={1: (0.002, 4.0)}, **paid).kind == "overestimating"
    with pytest.raises(IsthmusError):
        kind_of_minimum(rank=2, **{**options, "depth": 0})


@pytest.mark.parametrize(
    ("kept", "kind"),
    [(3, "overestimating"), (2, "rank-recovering"), (1, "underestimating and not fitting")],
)
def test_diagnose_with_and_without_the_true_rank(kept, kind):
    X, Y, *_ = task()
    net = network(range(kept))
    found = diagnose(net, X, Y, ridge=RIDGE, true_rank=2)
    assert found.rank == kept and found.minimum.kind == kind
    assert found.minimum.sentence in found._repr_html_()
    assert Diagnosis.from_dict(json.loads(found.to_json())).minimum == found.minimum
    alone = diagnose(net, X, Y, ridge=RIDGE).minimum
    # Without it the network that keeps 0.45 betrays itself: dropping it lowers the loss.
    assert alone.kind == ("overestimating" if kept == 3 else "undetermined")
    assert diagnose(net, X, Y).minimum is None


def test_a_network_on_its_way_and_one_without_a_bottleneck():
    X, Y, *_ = task()
    net = random_net([5, 8, 8, 4], seed=3)
    found = diagnose(net, X, Y, ridge=1e-6, true_rank=2)
    assert found.minimum.kind == "undetermined"
    wide = linear_network(torch.diag(torch.tensor([3.0, 2.5, 2.0])).double(), 3).network
    Z = gaussian(50, 3)
    found = diagnose(wide, Z, wide(Z).detach(), ridge=1e-12, true_rank=1)
    assert found.verdict == "none" and found.minimum.rank == 3 and found.minimum.kind == "overestimating"


def test_a_monitor_says_where_it_ends():
    X, Y, *_ = task()
    net = network(range(2))
    with Monitor(net, X, Y=Y, ridge=RIDGE, true_rank=2) as monitor:
        pass
    (snapshot,) = monitor.history.snapshots
    assert snapshot.minimum == "rank-recovering" and "ends rank-recovering" in monitor.history.sentence
    again = History.from_dict(json.loads(monitor.history.to_json()))
    assert again.snapshots[0].minimum == "rank-recovering"
    with Monitor(random_net([5, 8, 8, 4], seed=3), X, Y=Y, ridge=1e-6, true_rank=2) as monitor:
        pass
    assert monitor.history.snapshots[0].minimum == "undetermined"
    with Monitor(net, X) as monitor:
        pass
    assert monitor.history.snapshots[0].minimum == ""


def test_labels():
    """Classes of a rank-1 classifier, fitted and not."""
    X = gaussian(80, 3)
    labels = (X[:, 0] > 0).long()
    for size, kind in ((40.0, "rank-recovering"), (1e-3, "rank-recovering")):
        A = torch.tensor([[-size, 0.0, 0.0], [size, 0.0, 0.0]], dtype=torch.float64)
        found = diagnose(linear_network(A, 3).network, X, labels, loss="cross_entropy", ridge=10.0, true_rank=1)
        assert found.minimum.kind == kind and found.minimum.fits == (size > 1)
