"""Over networks of all kinds: no theorem fails, and the corrupted twin of each that holds is caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks_of_all_kinds import KINDS, drawn_subject
from scipy.stats import binom

from isthmus import FullyConnected, LeakyResNet
from isthmus.claims import CLAIMS
from isthmus.claims._verify import NOT_COMPUTED
from isthmus.measures import linear_expansion

CLAIMS_OF = "isthmus.claims."


def evaluated(identity, subject):
    """The verdict, or None where the numbers are too large to be computed."""
    try:
        return CLAIMS[identity].evaluate(subject)
    except NOT_COMPUTED:
        return None


# ------------------------------------------------------------------------------------- twins: what must be noticed


def scaled(path, factor):
    """A twin: the function at this path of the claims gives ``factor`` times what it should."""

    def corrupt(patch, subject):
        module, name = path.rsplit(".", 1)
        true = vars(__import__(CLAIMS_OF + module, fromlist=[name]))[name]
        patch.setattr(CLAIMS_OF + path, lambda *args, **options: _times(true(*args, **options), factor))
        return subject

    return corrupt


def _times(value, factor):
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_times(one, factor) if not isinstance(one, int) else one for one in value)
    if hasattr(value, "weights"):
        return replace(value, weights=factor * value.weights, biases=factor * value.biases)
    return value if value is None else factor * value


def both(*twins):
    def corrupt(patch, subject):
        for one in twins:
            subject = one(patch, subject)
        return subject

    return corrupt


def moved(factor, only=None):
    """A twin: all weights, or those of one layer, times ``factor``; the next layer undoes it where there is one."""

    def corrupt(patch, subject):  # noqa: ARG001
        net = subject.net
        Ws = [W.detach().clone() for W in net.Ws]
        if isinstance(net, LeakyResNet):
            options = {"effective_depth": net.effective_depth, "slope": net.slope, "bias": net.bias}
            return subject.replace(net=LeakyResNet.from_weights([factor * W for W in Ws], net.rho, **options))
        bs = [b.detach().clone() for b in net.bs]
        Ws[0] *= factor
        if bs:
            bs[0] *= factor
        if only is not None and len(Ws) > only:
            Ws[only] /= factor
        other = FullyConnected.from_weights(Ws, bs or None, slope=net.slope, bias=net.bias).requires_grad_(False)
        return subject.replace(net=other)

    return corrupt


def with_known(**known):
    """A twin: something that is not so is said of the network."""
    return lambda patch, subject: subject.replace(known={**subject.known, **known})  # noqa: ARG005


def meeting(patch, subject):  # noqa: ARG001
    """Three sectors that meet in the middle of the samples."""
    middle = ((subject.X.amin(0) + subject.X.amax(0)) / 2 + 1e-3).numpy()

    def sectors(points):
        angle = np.arctan2(points[:, 1] - middle[1], points[:, 0] - middle[0])
        return (angle // (2 * np.pi / 3)).astype(np.int64)

    return subject.replace(known={"classifier": sectors})


def shifted_layer(patch, subject):  # noqa: ARG001
    Ws = [W.detach() for W in subject.net.Ws]
    return subject.replace(known={"Ws": (2.0 * Ws[0], *Ws[1:])})


def larger_weights(patch, subject):  # noqa: ARG001
    return subject.replace(known={"Ws": tuple(1e3 * W.detach() for W in subject.net.Ws)})


def bent_cost(patch, subject):
    """R2 = −100 in norms that are fitted over depths."""
    from isthmus.claims.bottleneck2023 import _costs

    true = _costs.diagonal_cost
    patch.setattr(_costs, "diagonal_cost", lambda s, L: true(s, L) - 100.0 / L)
    return subject


def another_map(patch, subject):
    from isthmus.claims.bottleneck2023 import _costs

    patch.setattr(_costs, "diagonal_expansion", lambda s: linear_expansion(torch.diag(1.5 * s + 0.5)))
    return subject


def wrong_shares(patch, subject):
    from isthmus.claims.hamiltonian2024 import _identity

    true = _identity.constant_identity_path

    def wrong(A):
        path = true(A)
        return type(path)(path.A, 1.1 * path.shares)

    patch.setattr(_identity, "constant_identity_path", wrong)
    return subject


def longer_range(patch, subject):
    from isthmus.claims.hamiltonian2024 import _symmetries

    true = _symmetries.rescale_range
    patch.setattr(_symmetries, "rescale_range", lambda net, c: true(net, 1.01 * c))
    return subject


def larger_pairs(patch, subject):
    from isthmus.claims.features2022 import _widths

    true = _widths.reduced
    patch.setattr(_widths, "reduced", lambda Z, slope: 1.001 * true(Z, slope))
    return subject


def cheap_fit(patch, subject):
    from isthmus.claims.rank2023 import _rank_one

    true = _rank_one.rank_one

    def wrong(*args, **options):
        fit = true(*args, **options)
        return fit.with_known(details={**fit.known.details, "norm_constant": -0.5 * fit.depth})

    patch.setattr(_rank_one, "rank_one", wrong)
    return subject


def longer_path(patch, subject):
    from isthmus.claims.rank2023 import _rank_one

    true = _rank_one.shortest_path

    def wrong(Y):
        found = true(Y)
        return type(found)(1e6 * found.value, found.order, found.state)

    patch.setattr(_rank_one, "shortest_path", wrong)
    return subject


def concave(patch, subject):
    from isthmus.claims.features2022 import _widths

    true = _widths.segment

    def wrong(*args, **options):
        here, ends = true(*args, **options)
        return [2.0 * value + 1e-3 for value in here], ends

    patch.setattr(_widths, "segment", wrong)
    return subject


def dearer_join(patch, subject):
    from isthmus.claims.bottleneck2023 import _costs

    true = _costs.linear_values

    def wrong(pair):
        whole, f, g = true(pair)
        return None if whole is None else 1e3 * whole, f, g

    patch.setattr(_costs, "linear_values", wrong)
    return subject


def other_covariances(patch, subject):
    from isthmus.claims.features2022 import _minima

    true = _minima.distance_of_covariances
    patch.setattr(_minima, "distance_of_covariances", lambda *args: 1e-3 + true(*args))
    return subject


#: For every claim that holds, and not trivially, on drawn networks.
TWINS = {
    "C-rank-1": scaled("rank2023._norm_bounds._squares", 1e-4),
    "C-rank-5": scaled("rank2023._norm_bounds._squares", 1e-4),
    "C-rank-4": cheap_fit,
    "C-rank-8": longer_path,
    "C-rank-9": moved(1.5, only=1),
    "C-rank-11": meeting,
    "C-rank-15": with_known(rank=0),
    "C-bn-1": scaled("bottleneck2023._jacobian_bounds.parameter_norms", 1e-4),
    "C-bn-2": both(scaled("bottleneck2023._costs.parameter_norms", 1e-4), dearer_join),
    "C-bn-3": another_map,
    "C-bn-4": scaled("bottleneck2023._costs.linear_values", 3.0),
    "C-bn-5": scaled("bottleneck2023._domains.parameter_norms", 1e-4),
    "C-bn-6": larger_weights,
    "C-bn-7": scaled("bottleneck2023._balanced.ntk_trace", 1e-4),
    "C-bn-8": scaled("bottleneck2023._balanced.representation_spectra", 1e3),
    "C-bn-9": scaled("bottleneck2023._curvature._sharpness", 1e-4),
    "C-bn-11": scaled("bottleneck2023._curvature.parameter_norms", 1e-4),
    "C-bn-13": shifted_layer,
    "C-bn-14": bent_cost,
    "C-bn-16": scaled("bottleneck2023._kernel_floor.ntk_trace", 1e-4),
    "C-ham-1": scaled("hamiltonian2024._identity._bare_cost", 1e-4),
    "C-ham-3": wrong_shares,
    "C-ham-4": moved(1.1),
    "C-ham-5": moved(1.1),
    "C-ham-7": moved(1.1),
    "C-ham-8": longer_range,
    "C-ham-9": moved(1.1),
    "C-feat-1": scaled("features2022._maps.representation_loss", 1.01),
    "C-feat-2": moved(1.1),
    "C-feat-3": scaled("features2022._maps.covariance_loss", 1.01),
    "C-feat-5": larger_pairs,
    "C-feat-8": scaled("features2022._merging._merge_groups", 1.1),
    "C-feat-10": moved(1.1, only=1),
    "C-feat-11": concave,
    "C-feat-12": larger_pairs,
    "C-feat-13": other_covariances,
}


def survey(seeds, monkeypatch):
    """Every claim on every drawn network: how often it holds, and how often its twin is caught; none may fail."""
    statuses, caught = Counter(), Counter()
    for seed in seeds:
        kind, subject = drawn_subject(seed)
        for identity in CLAIMS:
            found = evaluated(identity, subject)
            if found is None:
                continue
            assert found.status != "fails", (seed, kind, identity, found.where, found.reason)
            statuses[identity, found.status] += 1
            if found.status == "holds" and identity in TWINS:
                with monkeypatch.context() as patch:
                    twin = evaluated(identity, TWINS[identity](patch, subject))
                caught[identity] += twin is None or not twin.status.startswith("holds")
    return statuses, caught


def test_every_kind_is_drawn():
    assert {drawn_subject(seed)[0] for seed in range(len(KINDS))} == set(KINDS)


def test_no_false_fail_on_networks_of_all_kinds(monkeypatch):
    statuses, caught = survey(range(36), monkeypatch)
    for identity, number in caught.items():
        assert number >= statuses[identity, "holds"] - 1, identity


class Survey:
    """A part of two thousand networks; classes of their own, so that workers share them."""

    part: int
    networks = 250

    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_no_false_fail(self, monkeypatch):
        first = 10_000 + self.part * self.networks
        statuses, caught = survey(range(first, first + self.networks), monkeypatch)
        holds = {identity: number for (identity, status), number in statuses.items() if status == "holds"}
        assert set(holds) <= set(TWINS), set(holds) - set(TWINS)
        missed = {identity: (number - caught[identity], number) for identity, number in holds.items()}
        # 95 % of the draws are caught: a part has few of some claims, so as many may be missed as chance allows then.
        assert not {one: told for one, told in missed.items() if told[0] > max(1, binom.ppf(0.99, told[1], 0.05))}
        assert len(holds) >= 28


for number in range(8):
    globals()[f"TestPart{number}"] = type(f"TestPart{number}", (Survey,), {"part": number})
