"""Q-denoise: known projections have no defect, everything else has; C-rank-12's twins are told apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from isthmus import FullyConnected, IsthmusError
from isthmus.measures._denoising import denoising, distance_to_data, projection_defect, tangent_defect
from tools import assert_close, gaussian, orthogonal, random_net


def oblique(d: int, k: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A projection onto the span of T along another space, and T."""
    T, N = gaussian(d, k, seed=seed), gaussian(d, k, seed=seed + 1)
    return T @ torch.linalg.solve(N.mT @ T, N.mT), T


def circle(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=1, keepdim=True)


def on_circle(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    t = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
    return torch.stack([t.cos(), t.sin()], 1), torch.stack([-t.sin(), t.cos()], 1)[:, :, None]


def test_projections_have_no_defect():
    T = orthogonal(6, 2)
    for P, tangents in ((T @ T.mT, T), oblique(6, 2, seed=3)):
        assert_close(projection_defect(P), 0.0, atol=1e-10, reason="an oblique projection can be long")
        assert_close(tangent_defect(P, tangents), 0.0, atol=1e-10, reason="an oblique projection can be long")
    # Orthogonal or not is not asked: the transpose of an oblique projection is one as well.
    assert float((oblique(6, 2, seed=3)[0] - oblique(6, 2, seed=3)[0].mT).norm()) > 0.1


def test_failing_twins():
    P, T = oblique(6, 2, seed=3)
    assert_close(projection_defect(0.5 * P), 0.25 * P.norm())
    assert_close(tangent_defect(0.5 * P, T), 0.5 * math.sqrt(2))
    assert float(tangent_defect(P, gaussian(6, 2, seed=9))) > 0.1
    assert_close(projection_defect(-torch.eye(3)), 2 * math.sqrt(3))
    nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    assert_close(projection_defect(nilpotent), 1.0)


def test_tangents_count_by_their_span_only():
    J, T = gaussian(5, 4, 4), gaussian(5, 4, 2, seed=1)
    mixed = T @ gaussian(5, 2, 2, seed=2) * 1e3
    assert_close(tangent_defect(J, T), tangent_defect(J, mixed))
    assert tangent_defect(J, T).shape == (5,)
    assert_close(tangent_defect(J, T[0])[0], tangent_defect(J[0], T[0]))


def test_projection_onto_the_circle():
    """f(x) = x/‖x‖: J = ttᵀ at the circle, and every output lies on it."""
    X, T = on_circle(24)
    noisy = 3.0 * gaussian(50, 2)
    found = denoising(circle, X, tangents=T, noisy=noisy, projection=circle)
    for defect in (found.projection, found.tangency, found.reconstruction, found.distance_after):
        assert float(defect.max()) < 1e-12
    assert bool((found.ranks == 1).all())
    assert_close(found.distance_before, (noisy.norm(dim=1) - 1).abs())
    # By the nearest data: at most half the spacing of 24 points.
    near = denoising(circle, X, noisy=noisy)
    assert float(near.distance_after.max()) <= 2 * math.sin(math.pi / 48) + 1e-12
    assert near.tangency is None


def test_autoencoders_that_do_not_denoise():
    X, T = on_circle(12)
    noisy = 3.0 * gaussian(20, 2)
    same = denoising(lambda x: x, X, tangents=T, noisy=noisy, projection=circle)
    # The identity is a projection and keeps tangents: its rank and its outputs give it away.
    assert float(same.projection.max()) == 0.0 == float(same.tangency.max())
    assert bool((same.ranks == 2).all())
    assert torch.equal(same.distance_after, same.distance_before)
    shrunk = denoising(lambda x: 0.9 * circle(x), X, tangents=T)
    assert_close(shrunk.projection, torch.full((12,), 0.09, dtype=torch.float64))
    assert_close(shrunk.tangency, torch.full((12,), 0.1, dtype=torch.float64))
    assert_close(shrunk.reconstruction, torch.full((12,), 0.1, dtype=torch.float64))


def test_networks_modules_and_callables_agree():
    net = random_net((3, 8, 8, 3))
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for layer, W, b in zip([m for m in module if isinstance(m, nn.Linear)], net.Ws, net.bs):
            layer.weight.copy_(W)
            layer.bias.copy_(b)
    X, T = gaussian(20, 3), gaussian(20, 3, 1, seed=1)
    by_trace, by_module, by_call = (denoising(f, X, tangents=T) for f in (net, module, lambda x: net(x)))
    chunked = denoising(module, X, tangents=T, chunk_bytes=1)
    for other in (by_module, by_call, chunked):
        assert_close(other.projection, by_trace.projection)
        assert_close(other.tangency, by_trace.tangency)
        assert_close(other.reconstruction, by_trace.reconstruction)
    assert float(by_trace.projection.max()) > 1e-3


def test_a_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    first, second = (denoising(module, gaussian(6, 2)) for _ in range(2))
    assert torch.equal(first.projection, second.projection)
    assert module.training and module[0].weight.dtype == torch.float32 and module[0].weight.grad is None


def test_a_rank_recovering_network_projects_onto_tangents():
    """C-rank-12 on data in a plane: a linear autoencoder of rank 2, against one of rank 3."""
    P, T = oblique(5, 2)
    X = gaussian(10, 2, seed=4) @ T.mT
    found = denoising(FullyConnected.from_weights([P, P, P], slope=1.0), X, tangents=T)
    assert float(found.projection.max()) < 1e-8 and float(found.tangency.max()) < 1e-8
    assert float(found.reconstruction.max()) < 1e-8
    more = P + 0.3 * torch.outer(gaussian(5, seed=5), torch.linalg.svd(T.mT).Vh[-1])
    twin = denoising(FullyConnected.from_weights([more], slope=1.0), X, tangents=T)
    assert float(twin.tangency.max()) < 1e-8 and float(twin.reconstruction.max()) < 1e-8
    assert float(twin.projection.min()) > 1e-2


def test_distances():
    data = gaussian(300, 3)
    Z = gaussian(40, 3, seed=1)
    assert_close(distance_to_data(Z, data), torch.cdist(Z, data).min(1).values)
    assert float(distance_to_data(data, data).max()) == 0.0
    assert_close(distance_to_data(Z, projection=lambda z: z * torch.tensor([1.0, 1.0, 0.0])), Z[:, 2].abs())


def test_refused():
    X = gaussian(4, 3)
    with pytest.raises(IsthmusError, match="square"):
        projection_defect(gaussian(2, 3))
    with pytest.raises(IsthmusError, match=r"\(\.\.\., d, k\)"):
        tangent_defect(gaussian(3, 3), gaussian(2, 1))
    with pytest.raises(IsthmusError, match="independent"):
        tangent_defect(gaussian(3, 3), torch.zeros(3, 1))
    with pytest.raises(IsthmusError, match="one of `data` and `projection`"):
        distance_to_data(X)
    with pytest.raises(IsthmusError, match="like its inputs"):
        denoising(lambda x: x[:, :2], X)
    with pytest.raises(IsthmusError, match="callable"):
        denoising(3, X)
