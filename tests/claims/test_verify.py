"""The verb: every claim on its sample, and on networks as people have them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import DataError, FullyConnected, IsthmusError, LeakyResNet, verify
from isthmus.claims import CLAIMS, verify_samples
from isthmus.claims._base import CAUSES
from isthmus.claims._verify import shortened
from isthmus.claims.hamiltonian2024._flow import signed_start
from isthmus.constructions import flow_network
from tools import gaussian, linear_net, random_net

ROOT = Path(__file__).parent.parent.parent
IDS = tomllib.loads((ROOT / "docs/ids.toml").read_text(encoding="utf-8"))
EXPECTED = {name for name in IDS if name.startswith(("C-rank-", "C-bn-", "C-ham-", "C-feat-"))}


@pytest.fixture(scope="module")
def samples():
    return verify_samples()


def test_every_claim_of_the_papers_is_there():
    assert set(CLAIMS) == EXPECTED


#: About data alone, or true by the way it is put together: their samples hold, and test nothing.
TRIVIAL = {"C-rank-6", "C-rank-10", "C-rank-14", "C-feat-6", "C-feat-14"}


def test_none_fails_on_its_sample(samples):
    assert samples.failed == ()
    assert {v.claim for v in samples if v.status == "not applicable"} == set()
    assert {v.claim for v in samples if v.status == "holds trivially"} == TRIVIAL & set(CLAIMS)
    for verdict in samples:
        assert {h.name for h in verdict.hypotheses} == set(CLAIMS[verdict.claim].hypotheses), verdict.claim


def test_what_is_said_of_them(samples):
    n, trivial = len(EXPECTED), len(TRIVIAL)
    assert samples.sentence.startswith(f"Of {n} claims {n - trivial} hold, {trivial} hold trivially, 0 fail")
    frame = samples.to_frame()
    assert list(frame["claim"]) == list(CLAIMS) and set(frame["status"]) == {"holds", "holds trivially"}
    assert frame["margin"].notna().all() and frame["title"].str.len().between(4, 40).all()
    content = json.loads(samples.to_json())
    assert content["format"] == "isthmus.verdicts" and content["version"] == 2
    assert all(one["margin"] is not None and one["parts"] for one in content["verdicts"])
    assert "<script" not in samples._repr_html_() and "C-rank-1" in samples._repr_html_()
    assert "C-bn-6" in repr(samples)
    assert samples["C-bn-1"].claim == "C-bn-1" and samples[0].claim == next(iter(CLAIMS))


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("given", [False, True])
def test_a_plain_network_never_raises(slope, given):
    """Without special knowledge a claim holds or says what it needs."""
    net = random_net([5, 9, 9, 4], slope)
    X = gaussian(30, 5)
    found = verify(net, X, *([gaussian(30, 4, seed=1)] if given else []), ridge=0.1 if given else None)
    assert len(found) == len(EXPECTED)
    assert found.failed == ()
    for verdict in found:
        assert verdict.status == "holds" or verdict.reason, verdict.claim
        assert (verdict.cause != "") == (verdict.status == "not applicable"), verdict.claim
        assert bool(verdict.supply) == (verdict.cause == "supply"), verdict.claim
    assert found["C-rank-9"].cause == ("network" if given else "supply")
    for verdict in found:
        if verdict.claim.startswith("C-ham-"):
            assert (verdict.cause, verdict.reason) == ("kind", "needs a leaky ResNet")


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("given", [False, True])
def test_a_leaky_network_never_raises(bias, given):
    net = LeakyResNet(5, 4, 8, 6, 2.0, bias=bias, generator=torch.Generator().manual_seed(1))
    X = gaussian(30, 5)
    found = verify(net, X, *([gaussian(30, 4, seed=1)] if given else []), ridge=0.1 if given else None)
    assert len(found) == len(EXPECTED) and found.failed == ()
    assert "a leaky ResNet of 6 steps" in found.sentence
    for verdict in found:
        assert verdict.status == "holds" or verdict.reason, verdict.claim
        if not verdict.claim.startswith("C-ham-"):
            assert (verdict.cause, verdict.reason) == ("kind", "needs a fully connected network")
    # The caller's network stays in its dtype, and trainable.
    assert net.W_in.dtype == torch.float32 and all(p.requires_grad for p in net.parameters())


def test_a_leaky_network_at_a_critical_point():
    made = flow_network(*signed_start(), 2.0, 30)
    found = verify(made.network, made.X, made.Y, ridge=made.ridge, claims="C-ham-*")
    assert found.failed == ()
    holds = {v.claim for v in found if v.status == "holds"}
    assert holds == {f"C-ham-{number}" for number in (1, 3, 4, 5, 7, 8, 9)}
    assert found.closing.startswith("It is on a Hamiltonian flow")
    other = verify(made.network, made.X, made.Y, ridge=2 * made.ridge, claims="C-ham-4")
    assert "critical point: not met" in other["C-ham-4"].reason
    with pytest.raises(IsthmusError, match="columns"):
        verify(made.network, made.X[:, :2])


@pytest.mark.parametrize("error", [OverflowError, torch.linalg.LinAlgError, np.linalg.LinAlgError])
def test_arithmetic_that_fails_ends_one_claim_only(error, monkeypatch):
    def raised(*_):
        raise error("too large")

    monkeypatch.setattr("isthmus.claims.rank2023._norm_bounds._squares", raised)
    first, other = verify(random_net([3, 4, 2]), gaussian(5, 3), claims=["C-rank-1", "C-bn-1"])
    assert first.status == "not applicable" and first.reason == f"not computed ({error.__name__}: too large)"
    assert other.status == "holds"


def test_a_defect_is_not_hidden(monkeypatch):
    monkeypatch.setattr("isthmus.claims.rank2023._norm_bounds._squares", lambda _: ())
    with pytest.raises(ValueError, match="unpack"):
        verify(random_net([3, 4, 2]), gaussian(5, 3), claims="C-rank-1")


def test_wide_layers_are_not_decomposed(monkeypatch):
    """Jacobians of all layers are dear: of wide ones the norms are taken."""
    monkeypatch.setattr("isthmus.claims.bottleneck2023._balanced.WIDE", 8)
    found = verify(random_net([5, 9, 9, 4]), gaussian(20, 5), claims=["C-bn-7", "C-bn-8"])
    jacobians, prefixes, _ = found["C-bn-7"].parts
    assert jacobians.status == "not applicable" and "wider than 8" in jacobians.reason
    assert prefixes.status != "fails" and found["C-bn-8"].status != "fails"


# ------------------------------------------------------------------------------------------------ what only you know


def test_what_is_known_reaches_the_claims():
    net, X = random_net([2, 6, 2]), gaussian(40, 2)
    plain = verify(net, X, gaussian(40, 2, seed=1))
    assert plain["C-rank-10"].supply == "known['noise']" and plain["C-bn-15"].cause == "supply"
    told = verify(net, X, gaussian(40, 2, seed=1), known={"noise": 1.0})
    assert told["C-rank-10"].status == "holds trivially"
    # For one claim alone.
    alone = verify(net, X, known={"C-bn-15": {"action": lambda X: X, "quotient_dimension": 2}})
    assert alone["C-bn-15"].status == "holds" and alone["C-rank-10"].cause == "supply"
    with pytest.raises(IsthmusError, match="noise"):
        verify(net, X, known={"noice": 1.0})


def test_k_is_the_rank_that_bounds_are_judged_at():
    net, X = random_net([5, 9, 9, 4]), gaussian(30, 5)
    found = verify(net, X, k=2, claims=["C-bn-1", "C-bn-6", "C-bn-7", "C-bn-8"])
    assert "k = 2" in found["C-bn-1"].where and "k = 2" in found["C-bn-6"].where
    assert all("k = 2" in part.where for part in found["C-bn-8"].parts)
    assert "rank-2 network" in found.closing
    beyond = verify(net, X, k=5, claims="C-bn-1")["C-bn-1"]
    assert beyond.cause == "network" and "k ≤ Rank Jf(x): not met" in beyond.reason
    with pytest.raises(IsthmusError, match="`k`"):
        verify(net, X, k=0)


def test_a_family_for_one_claim_is_none_for_another():
    """Constructions by depth are no subjects by width: each claim takes what is meant for it."""
    family = CLAIMS["C-rank-2"].sample().known["family"]
    net = random_net([4, 8, 4])
    found = verify(net, gaussian(10, 4).abs(), known={"family": family}, claims=["C-rank-2", "C-feat-4"])
    assert found["C-feat-4"].supply == "known['family']" and found.failed == ()


# ------------------------------------------------------------------------------------------------------- what is said


def test_claims_that_do_not_apply_are_grouped_by_cause():
    found = verify(random_net([5, 9, 9, 4]), gaussian(30, 5))
    groups = found.silent
    assert list(groups) == [cause for cause in CAUSES if cause in groups] and groups["kind"]
    assert "C-rank-9" in groups["supply"]["Y and ridge"]
    listed = [one for group in groups.values() for ids in group.values() for one in ids]
    assert sorted(listed) == sorted(v.claim for v in found if v.status == "not applicable")
    assert json.loads(found.to_json())["not_applicable"] == groups
    for text in (repr(found), found._repr_html_()):
        assert "you can supply" in text and "C-ham-1 … 9" in text


def test_runs_of_ids_are_shortened():
    ids = ["C-rank-2", "C-rank-3", "C-rank-6", "C-bn-7", "C-ham-1", "C-ham-2", "C-ham-3"]
    assert shortened(ids) == "C-rank-2, C-rank-3, C-rank-6, C-bn-7, C-ham-1 … 3"


def test_it_ends_with_one_sentence_in_words():
    """Isometries of rank 3 at every layer, of norm kL: the least there is."""
    least = verify(linear_net([1.0, 1.0, 1.0], [5, 7, 7, 4]), gaussian(20, 5))
    assert least.closing == (
        "Its norm is within 0% of the least of a rank-3 network with these Jacobians; "
        "3 of 3 layers are isometries of rank 3 to 0.05."
    )
    assert repr(least).endswith(least.closing) and least.to_dict()["closing"] == least.closing
    wild = verify(random_net([5, 9, 9, 4]), gaussian(20, 5)).closing
    assert "times the least of a rank-" in wild or "within" in wild
    dead = verify(FullyConnected.from_weights([torch.zeros(3, 4), torch.zeros(2, 3)]), gaussian(5, 4)).closing
    assert "no rank" in dead
    leaky = LeakyResNet(5, 4, 8, 6, 2.0, generator=torch.Generator().manual_seed(1))
    assert "not known to be on a Hamiltonian flow" in verify(leaky, gaussian(9, 5)).closing


def test_claims_by_name():
    net = random_net([5, 9, 4])
    assert [v.claim for v in verify(net, gaussian(10, 5), claims="C-rank-1")] == ["C-rank-1"]
    some = verify(net, gaussian(10, 5), claims=["C-bn-1", "C-rank-5*"])
    assert {v.claim for v in some} == {"C-bn-1", "C-rank-5"}
    with pytest.raises(IsthmusError, match="C-rank-1"):
        verify(net, gaussian(10, 5), claims="C-none")


def test_torch_modules_and_mistakes():
    net = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 4))
    assert verify(net, gaussian(10, 5), claims="C-rank-1")["C-rank-1"].status == "holds"
    with pytest.raises(IsthmusError, match="columns"):
        verify(net, gaussian(10, 6))
    with pytest.raises(DataError, match="rows"):
        verify(net, gaussian(10, 5), gaussian(9, 4))
    with pytest.raises(IsthmusError, match="ridge"):
        verify(net, gaussian(10, 5), ridge=-1.0)
    with pytest.raises(IsthmusError, match="Linear"):
        verify(nn.Sequential(nn.Conv1d(1, 1, 1)), gaussian(10, 5))


def test_a_failing_claim_is_shown(monkeypatch):
    monkeypatch.setattr("isthmus.claims.rank2023._norm_bounds._squares", lambda _: (1e-9, 3))
    found = verify(random_net([5, 9, 9, 4]), gaussian(10, 5), claims="C-rank-1")
    assert found.failed == ("C-rank-1",)
    assert "wrong by" in found["C-rank-1"].reason


@pytest.mark.slow
@pytest.mark.parametrize("dims", [[2000] * 11, [200] * 201])
def test_large_networks_fit_in_two_gigabytes(dims):
    """In a process of its own, for its peak memory."""
    import subprocess
    import sys

    script = f"""
import resource, torch
from isthmus import FullyConnected, verify
torch.set_num_threads(1)
net = FullyConnected({dims}, generator=torch.Generator().manual_seed(0))
found = verify(net, torch.randn(20, {dims[0]}, generator=torch.Generator().manual_seed(1)))
assert not found.failed, found
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 2000


def test_the_pages_are_of_these_claims():
    for paper in ("rank2023", "bottleneck2023", "hamiltonian2024"):
        page = (ROOT / f"docs/claims/{paper}.md").read_text(encoding="utf-8")
        for one in CLAIMS.values():
            if one.paper == paper:
                assert f"## {one.id}\n\n{one.statement}.\n" in page, "run python docs/claims/make.py"
                assert not one.erratum or one.erratum in page


def test_float32_networks_are_judged_in_float64():
    net = FullyConnected([5, 9, 4], dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    verify(net, gaussian(10, 5), claims="C-rank-1")
    assert net.weights[0].dtype == torch.float32
