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
from isthmus.claims.hamiltonian2024._flow import signed_start
from isthmus.constructions import flow_network
from tools import gaussian, random_net

ROOT = Path(__file__).parent.parent.parent
IDS = tomllib.loads((ROOT / "docs/ids.toml").read_text(encoding="utf-8"))
EXPECTED = {name for name in IDS if name.startswith(("C-rank-", "C-bn-", "C-ham-", "C-feat-"))}


@pytest.fixture(scope="module")
def samples():
    return verify_samples()


def test_every_claim_of_the_papers_is_there():
    assert set(CLAIMS) == EXPECTED


def test_none_fails_on_its_sample(samples):
    assert samples.failed == ()
    assert [v.claim for v in samples if v.status != "holds"] == []
    for verdict in samples:
        assert {h.name for h in verdict.hypotheses} == set(CLAIMS[verdict.claim].hypotheses), verdict.claim


def test_what_is_said_of_them(samples):
    assert samples.sentence.startswith(f"Of {len(EXPECTED)} claims {len(EXPECTED)} hold, 0 fail")
    frame = samples.to_frame()
    assert list(frame["claim"]) == list(CLAIMS) and set(frame["status"]) == {"holds"}
    content = json.loads(samples.to_json())
    assert content["format"] == "isthmus.verdicts" and content["version"] == 1
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
    assert found["C-rank-9"].status == "not applicable"
    for verdict in found:
        if verdict.claim.startswith("C-ham-"):
            assert (verdict.status, verdict.reason) == ("not applicable", "needs a leaky ResNet")


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
            assert (verdict.status, verdict.reason) == ("not applicable", "needs a fully connected network")
    # The caller's network stays in its dtype, and trainable.
    assert net.W_in.dtype == torch.float32 and all(p.requires_grad for p in net.parameters())


def test_a_leaky_network_at_a_critical_point():
    made = flow_network(*signed_start(), 2.0, 30)
    found = verify(made.network, made.X, made.Y, ridge=made.ridge, claims="C-ham-*")
    assert found.failed == ()
    assert {v.claim for v in found if v.status == "holds"} == {"C-ham-4", "C-ham-5", "C-ham-7", "C-ham-9"}
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


@pytest.mark.parametrize("identity", ["C-bn-7", "C-bn-8"])
def test_unbalanced_networks_are_named_before_any_jacobian(identity, monkeypatch):
    def never(*_, **__):
        raise AssertionError("Jacobians are dear")

    monkeypatch.setattr("isthmus.claims.bottleneck2023._balanced.points_of", never)
    net = FullyConnected.from_weights([3.0 * torch.eye(4), torch.eye(4)])
    found = verify(net, gaussian(10, 4), claims=identity)[identity]
    assert found.status == "not applicable" and found.reason.startswith("balanced: not met")


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
