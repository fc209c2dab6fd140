"""The truth attached to every problem, checked by a second route."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from isthmus import IsthmusError, problems
from isthmus._cite import CITATIONS
from isthmus.problems import CATALOGUE, Problem
from isthmus.problems._teachers import random_network, surface_maps

NAMES = sorted(CATALOGUE)
WITH_RANK = [name for name in NAMES if name != "pure-noise"]
WITH_FUNCTION = [name for name in WITH_RANK if name != "surface"]


@pytest.fixture(scope="module")
def made():
    """Every problem of the catalogue, made once."""
    return {name: maker(seed=0) for name, maker in CATALOGUE.items()}


def numerical_jacobian(function, x, steps):
    """Central differences with a step for each column, columns in units of those steps."""
    points = np.concatenate([x + np.diag(steps), x - np.diag(steps)])
    values = function(points)
    d = len(x)
    return ((values[:d] - values[d:]) / 2).T


def local_linear_error(latents, Y):
    """Leave-one-out error of local linear prediction from nearest neighbours, relative to the variance of Y.

    Also the average gradient outer product in standardised latents.
    """
    Z = (latents - latents.mean(0)) / latents.std(0)
    Y = Y / Y.std(0)
    queries = np.arange(0, len(Z), len(Z) // 300)  # a few hundred are enough
    neighbours = NearestNeighbors(n_neighbors=3 * (Z.shape[1] + 2) + 1).fit(Z)
    index = neighbours.kneighbors(Z[queries], return_distance=False)[:, 1:]
    design = np.concatenate([np.ones((*index.shape, 1)), Z[index] - Z[queries, None]], axis=2)
    coefficients = np.linalg.pinv(design) @ Y[index]
    error = np.mean((coefficients[:, 0] - Y[queries]) ** 2)
    return error, np.einsum("nij,nkj->ik", coefficients[:, 1:], coefficients[:, 1:]) / len(queries)


# --- rank ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_FUNCTION)
def test_jacobian_rank_by_finite_differences(made, name):
    p = made[name]
    steps = 1e-6 * p.X.std(axis=0)
    ranks = []
    for x in p.X[:: p.samples // 20]:
        # Output units would hide the smaller directions of the hostile problem.
        s = np.linalg.svd(numerical_jacobian(p.function, x, steps).T / p.clean_Y.std(axis=0), compute_uv=False)
        ranks.append(int((s > 1e-4 * s[0]).sum()))
    assert max(ranks) == p.jacobian_rank
    # Not only somewhere: at most points.
    assert np.mean(ranks) > p.jacobian_rank - 0.5


@pytest.mark.parametrize("name", WITH_RANK)
@pytest.mark.parametrize("seed", [0, 1])
def test_latents_determine_outputs_and_each_is_needed(name, seed):
    p = CATALOGUE[name](seed=seed)
    error, gradients = local_linear_error(p.latents, p.clean_Y)
    assert error < (0.07 if p.rank >= 8 else 0.03)
    # Failing twin: without one of the latents the outputs are not determined.
    for j in range(p.rank):
        if p.rank > 1:
            without, _ = local_linear_error(np.delete(p.latents, j, axis=1), p.clean_Y)
            assert without > 1.5 * error + 0.02, (j, without, error)
    # No direction of latent space is nearly without effect: if rank k−1 were as good, the task would be void.
    # (The ball's position and velocity are strongly correlated, and its future mostly sees one mixture.)
    eigenvalues = np.linalg.eigvalsh(gradients)
    assert eigenvalues[0] > 0.01 * eigenvalues[-1]


@pytest.mark.parametrize("name", ["teacher-3", "teacher-5", "teacher-5-narrow", "teacher-8", "teacher-chain"])
def test_teacher_latents_are_white_and_matter_comparably(made, name):
    p = made[name]
    np.testing.assert_allclose(np.cov(p.latents, rowvar=False), np.eye(p.rank), atol=0.15)
    np.testing.assert_allclose(p.X.std(axis=0), 1.0, atol=0.1)
    np.testing.assert_allclose(p.clean_Y.std(axis=0), 1.0, atol=0.1)
    gradients = local_linear_error(p.latents, p.clean_Y)[1]
    eigenvalues = np.linalg.eigvalsh(gradients)
    assert eigenvalues[0] > 0.5 * eigenvalues[-1]


@pytest.mark.parametrize("name", NAMES)
def test_rank_within_bounds(made, name):
    p = made[name]
    assert p.jacobian_rank <= p.rank <= min(p.d_in, p.d_out)
    assert p.latents.shape == (p.samples, p.rank)
    assert 500 <= p.samples <= 2000
    assert max(p.d_in, p.d_out) <= 50
    assert p.notes.endswith(".")
    # rank ≤ dimension of the affine span of the outputs, which an affine projection reaches.
    s = np.linalg.svd((p.clean_Y - p.clean_Y.mean(0)) / (p.clean_Y.std(0) + (p.rank == 0)), compute_uv=False)
    assert p.rank <= int((s > 1e-9 * max(s[0], 1e-9)).sum())


def test_linear_map_is_recovered_by_least_squares():
    s = [2.0, 1.0, 0.25]
    p = problems.linear(d_in=7, d_out=5, rank=3, singular_values=s, seed=3)
    A = np.linalg.lstsq(p.X, p.Y, rcond=None)[0].T
    np.testing.assert_allclose(np.linalg.svd(A, compute_uv=False), [*s, 0.0, 0.0], atol=1e-12)
    # Directions outside the row space change nothing.
    null = np.linalg.svd(A)[2][3:]
    np.testing.assert_allclose(p.function(p.X + null.sum(0)), p.clean_Y, atol=1e-12)


def test_norms_are_invariant_under_block_rotations_only():
    p = problems.norms(blocks=2, block_size=4, seed=1)
    rng = np.random.default_rng(0)
    Q1, Q2 = (np.linalg.qr(rng.standard_normal((4, 4)))[0] for _ in range(2))
    turned = np.hstack([p.X[:, :4] @ Q1, p.X[:, 4:] @ Q2])
    np.testing.assert_allclose(p.function(turned), p.clean_Y, atol=1e-10)
    np.testing.assert_allclose(p.latents[:, 1], np.sqrt((p.X[:, 4:] ** 2).sum(1)))
    Q = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    assert np.abs(p.function(p.X @ Q) - p.clean_Y).max() > 0.1


def test_angle_ignores_radius_and_closes():
    p = problems.angle(d_in=5, harmonics=2, seed=2)
    np.testing.assert_allclose(p.function(3.7 * p.X), p.clean_Y, atol=1e-12)
    assert (p.rank, p.jacobian_rank) == (2, 1)
    # The image is one closed curve: sorted by angle, the last point is next to the first.
    order = np.argsort(np.arctan2(p.latents[:, 1], p.latents[:, 0]))
    steps = np.linalg.norm(np.diff(p.clean_Y[order], axis=0, append=p.clean_Y[order[:1]]), axis=1)
    assert steps.max() < 0.2
    twin = problems.angle(d_in=5, harmonics=2, arc=math.pi, seed=2)
    assert (twin.rank, twin.jacobian_rank) == (1, 1)
    order = np.argsort(twin.latents[:, 0])
    assert np.linalg.norm(twin.clean_Y[order[0]] - twin.clean_Y[order[-1]]) > 1.0


def test_min_cross_is_continuous_and_the_identity_on_the_cross():
    p = problems.min_cross(seed=0)
    t = np.linspace(-1, 1, 41)
    for cross in (np.column_stack([t, t]), np.column_stack([t, -t])):
        np.testing.assert_allclose(p.function(cross), cross, atol=1e-15)
    rng = np.random.default_rng(0)
    A = rng.uniform(-1, 1, (2000, 2))
    A[::2, rng.integers(2)] = 0.0  # on an axis, where the printed function jumps
    B = A + 1e-7 * rng.standard_normal(A.shape)
    change = np.linalg.norm(p.function(A) - p.function(B), axis=1) / np.linalg.norm(A - B, axis=1)
    assert change.max() < 2.0
    # The image is the cross itself.
    np.testing.assert_allclose(np.abs(p.clean_Y[:, 0]), np.abs(p.clean_Y[:, 1]))

    def printed(x):
        big = np.abs(x[:, :1]) >= np.abs(x[:, 1:])
        first = np.column_stack([x[:, 0], np.sign(x[:, 1]) * np.abs(x[:, 0])])
        return np.where(big, first, np.column_stack([np.sign(x[:, 0]) * np.abs(x[:, 1]), x[:, 1]]))

    jump = np.array([[0.5, 1e-9], [0.5, -1e-9]])
    assert np.ptp(printed(jump), axis=0).max() > 0.5
    assert np.ptp(p.function(jump), axis=0).max() < 1e-8


def test_product_latents():
    p = problems.product(rank=3, seed=0)
    np.testing.assert_allclose(p.latents[:, 0], p.X[:, 0] * p.X[:, 1])
    # The outputs are a linear image of the latents, and in no way of the inputs.
    fit = np.linalg.lstsq(p.latents, p.clean_Y, rcond=None)[0]
    np.testing.assert_allclose(p.latents @ fit, p.clean_Y, atol=1e-12)
    q = problems.product(rank=2, where="decoder", seed=0)
    np.testing.assert_allclose(q.latents, q.X[:, :2])
    assert np.linalg.matrix_rank(q.clean_Y) == 3


def test_surface_is_injective_and_maps_as_stated():
    settings = {"latent_dim": 8, "seen": 2, "d_in": 20, "d_out": 20, "hidden": 100, "seed": 4}
    p = problems.partially_seen_surface(samples=400, **settings)
    g, h = surface_maps(**settings)
    assert p.function is None
    np.testing.assert_allclose(h(p.latents), p.clean_Y, atol=1e-12)
    rng = np.random.default_rng(0)
    # g is a bi-Lipschitz image of R⁸: no two far points come close.
    Z = rng.standard_normal((1000, 8))
    U = Z + rng.standard_normal(Z.shape) * 10.0 ** rng.uniform(-6, 0, (1000, 1))
    stretch = np.linalg.norm(g(Z) - g(U), axis=1) / np.linalg.norm(Z - U, axis=1)
    assert stretch.min() > 0.05
    s = np.linalg.svd(p.X - p.X.mean(0), compute_uv=False)
    assert s[8] > 0.01 * s[0]  # curved: the linear span is larger than 8
    # The Jacobian of f = h∘g⁻¹ on tangents has rank 2.
    J = h.jacobian(Z[:50, :2]) @ np.linalg.pinv(g.jacobian(Z[:50]))[:, :2]
    assert set(np.linalg.matrix_rank(J, rtol=1e-8)) == {2}


def test_network_jacobian_against_finite_differences():
    g, _ = surface_maps(latent_dim=4, seen=2, d_in=6, d_out=3, hidden=12, seed=0)
    x = np.random.default_rng(1).standard_normal(4)
    J = numerical_jacobian(g, x, np.full(4, 1e-7)) / 1e-7
    np.testing.assert_allclose(g.jacobian(x[None])[0], J, atol=1e-6)


# --- dynamics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("throw", ["plane", "vertical"])
@pytest.mark.parametrize("encoding", ["positions", "ranges"])
def test_ball_against_integration(throw, encoding):
    p = problems.ball_trajectories(throw=throw, encoding=encoding, future=(0.3, 0.5), samples=40, seed=5)
    half = p.rank // 2
    place, velocity = p.latents[:, :half].copy(), p.latents[:, half:].copy()
    dt, reached = 1e-3, []
    for step in range(1, 501):
        # Velocity Verlet, exact for constant acceleration.
        place += velocity * dt
        place[:, -1] -= 0.5 * 9.81 * dt**2
        velocity[:, -1] -= 9.81 * dt
        if step in (300, 500):
            reached.append(place.copy())
    np.testing.assert_allclose(np.hstack(reached), p.clean_Y, atol=1e-9)
    # Each flight is one parabola: its snapshots follow each other by the same law.
    first = p.take(p.groups == 0)
    np.testing.assert_allclose(
        first.latents[1:, :half][:, :-1] - first.latents[:-1, :half][:, :-1],
        0.05 * first.latents[:-1, half:][:, :-1],
        atol=1e-12,
    )
    np.testing.assert_allclose(np.diff(first.latents[:, -1]), -9.81 * 0.05)
    assert p.feature_names[-1] == "kinetic"
    np.testing.assert_allclose(p.X[:, -1], 0.5 * (p.latents[:, half:] ** 2).sum(1))


def test_descent_losses_by_the_recursion_of_the_summary_statistics(made):
    p = made["descent"]
    U, losses = p.latents, []
    for _ in range(p.d_out):
        U = problems.summary_step(U, 0.02)
        losses.append(problems.summary_cost(U))
    np.testing.assert_allclose(np.column_stack(losses), p.clean_Y, rtol=1e-10, atol=1e-13)


def test_summary_statistics_against_gradient_flow():
    rng = np.random.default_rng(0)
    d = 6
    w = rng.standard_normal(d)
    w /= np.linalg.norm(w)
    V = 0.7 * rng.standard_normal((30, d))
    U = problems.summary_statistics(V, w)
    np.testing.assert_allclose(U.sum(1), (V**2).sum(1))
    # C by its definition.
    direct = [np.linalg.norm(np.outer(v, v) - np.outer(w, w)) ** 2 for v in V]
    np.testing.assert_allclose(problems.summary_cost(U), direct, rtol=1e-12)
    # The gradient used by `descend`, by central differences, with a noise matrix that is not symmetric.
    E = 0.1 * rng.standard_normal((d, d))
    paths, costs = problems.descend(V, w, steps=1, step_size=1e-2, E=E)
    for v, after, C in zip(V[:5], paths[:5, 1], costs[:5, 0]):
        assert math.isclose(C, np.linalg.norm(np.outer(v, v) - np.outer(w, w) - E) ** 2, rel_tol=1e-12)
        around = np.concatenate([v + 1e-5 * np.eye(d), v - 1e-5 * np.eye(d)])
        values = problems.factorisation_cost(around, w, E)
        np.testing.assert_allclose((v - after) / 1e-2, (values[:d] - values[d:]) / 2e-5, atol=1e-6)
    # The ODE: the difference quotient of u along descent converges to it at order 1 in the step.
    errors = []
    for eta in (1e-3, 1e-4):
        after = problems.descend(V, w, steps=1, step_size=eta)[0][:, 1]
        quotient = (problems.summary_statistics(after, w) - U) / eta
        errors.append(np.abs(quotient - problems.summary_velocity(U)).max())
    assert 9.0 < errors[0] / errors[1] < 11.0
    # And over a finite time, Runge–Kutta on u against small steps on v.
    v = problems.descend(V, w, steps=4000, step_size=1e-4)[0][:, -1]
    h, u, f = 1e-3, U, problems.summary_velocity
    for _ in range(400):
        k1 = f(u)
        k2 = f(u + h / 2 * k1)
        k3 = f(u + h / 2 * k2)
        u = u + h / 6 * (k1 + 2 * k2 + 2 * k3 + f(u + h * k3))
    np.testing.assert_allclose(problems.summary_statistics(v, w), u, atol=2e-3)


def test_descent_is_invariant_under_rotations_around_w_only():
    p = problems.gradient_descent_losses(d=6, steps=8, samples=50, seed=1)
    # Recover w from the truth: V w = ±√u₁, so w is the top eigenvector of the regression of u₁ on vvᵀ.
    products = np.einsum("ni,nj->nij", p.X, p.X).reshape(50, -1)
    M = np.linalg.lstsq(products, p.latents[:, 0], rcond=None)[0].reshape(6, 6)
    w = np.linalg.eigh((M + M.T) / 2)[1][:, -1]
    Q = np.linalg.qr(np.column_stack([w, np.random.default_rng(0).standard_normal((6, 5))]))[0]
    turn = np.eye(6)
    turn[1:3, 1:3] = [[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]]
    np.testing.assert_allclose(p.function(p.X @ (Q @ turn @ Q.T)), p.clean_Y, atol=1e-10)
    turn[[0, 1]] = turn[[1, 0]]
    assert np.abs(p.function(p.X @ (Q @ turn @ Q.T)) - p.clean_Y).max() > 0.01


def test_descent_with_noise_matrix_and_start():
    sizes = (1e-3, 1e-2)
    noisy = [problems.gradient_descent_losses(perturbation=size, seed=2, samples=200) for size in sizes]
    assert noisy[0].rank == 2
    np.testing.assert_array_equal(noisy[0].clean_Y, noisy[1].clean_Y)
    # What E changes is of first order in its size.
    assert 8.0 < noisy[1].noise / noisy[0].noise < 12.0
    start = problems.gradient_descent_losses(include_start=True, seed=2, samples=200)
    np.testing.assert_allclose(start.clean_Y[:, 1:], noisy[0].clean_Y)
    np.testing.assert_allclose(start.clean_Y[:, 0], problems.summary_cost(start.latents))


def test_summary_is_cited():
    cited = {c.function.rsplit(".", 1)[1] for c in CITATIONS if "Q-summary" in c.ids}
    assert {"summary_statistics", "summary_velocity", "summary_cost"} <= cited


# --- randomness, noise, splits ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_reproducible_from_the_seed_and_nothing_else(made, name):
    np.random.seed(0)  # noqa: NPY002 (the global state must be left alone)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    again = CATALOGUE[name](seed=0)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    for field in ("X", "Y", "clean_Y", "latents"):
        np.testing.assert_array_equal(getattr(again, field), getattr(made[name], field))
    assert not np.array_equal(CATALOGUE[name](seed=1).X, again.X)


@pytest.mark.parametrize("name", WITH_RANK)
def test_noise_level_is_as_stated_and_leaves_the_task_alone(made, name):
    p = CATALOGUE[name](seed=0, noise=0.1)
    ratio = (p.Y - p.clean_Y).std(axis=0) / p.clean_Y.std(axis=0)
    np.testing.assert_allclose(ratio, 0.1, rtol=5 / math.sqrt(2 * p.samples))
    assert p.noise == 0.1
    np.testing.assert_array_equal(p.X, made[name].X)
    np.testing.assert_array_equal(p.clean_Y, made[name].Y)


def test_more_samples_are_of_the_same_function():
    few, many = (problems.teacher(d_in=6, rank=2, d_out=4, samples=n) for n in (10, 100))
    np.testing.assert_array_equal(few.function(many.X), many.clean_Y)


def test_pure_noise(made):
    p = made["pure-noise"]
    assert p.rank == p.jacobian_rank == 0
    assert p.noise == math.inf
    C = np.corrcoef(p.X, p.Y, rowvar=False)[: p.d_in, p.d_in :]
    assert np.abs(C).max() < 5 / math.sqrt(p.samples)
    np.testing.assert_allclose(p.Y.std(0), 1.0, atol=0.15)


@pytest.mark.parametrize("name", ["teacher-3", "ball", "pure-noise"])
def test_split(made, name):
    p = made[name]
    train, test = p.split(0.25, seed=1)
    assert train.samples + test.samples == p.samples
    assert test.samples == p.samples // 4
    rows = {tuple(x) for x in p.X}
    assert {tuple(x) for x in train.X} | {tuple(x) for x in test.X} == rows
    np.testing.assert_array_equal(p.split(0.25, seed=1)[1].X, test.X)
    assert not np.array_equal(p.split(0.25, seed=2)[1].X, test.X)
    if p.groups is not None:
        assert not set(train.groups) & set(test.groups)
        # Time order is kept: vertical velocity falls within each flight.
        for group in set(test.groups):
            assert (np.diff(test.latents[test.groups == group, -1]) < 0).all()


def test_arrays_are_read_only_copies():
    X = np.random.default_rng(0).standard_normal((5, 2))
    p = Problem(name="identity", X=X, Y=X, rank=2, jacobian_rank=2, latents=X, clean_Y=X, function=lambda X: X)
    X[0, 0] = 100.0
    assert p.X[0, 0] != 100.0
    with pytest.raises(ValueError, match="read-only"):
        p.X[0, 0] = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.rank = 1  # type: ignore[misc]


# --- nuisances -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_RANK)
def test_nuisances_carry_the_truth_along(made, name):
    p = made[name]
    q = problems.with_nuisances(p, irrelevant=7, units=4.0, heavy_tails=0.5, shuffle=True, seed=3)
    assert (q.rank, q.jacobian_rank, q.d_in) == (p.rank, p.jacobian_rank, p.d_in + 7)
    added = set(q.feature_names) - set(p.feature_names)
    assert len(added) == 7
    # Row by row the same task: undo the order of the rows through the latents.
    back = np.argsort(q.latents[:, 0])
    there = np.argsort(p.latents[:, 0])
    column = q.target_names.index(p.target_names[0])
    scale = q.clean_Y[:, column].std() / p.clean_Y[:, 0].std()
    np.testing.assert_allclose(
        q.clean_Y[back, column] / scale, p.clean_Y[there, 0], atol=1e-9 * np.abs(p.clean_Y).max()
    )
    if p.groups is not None:
        np.testing.assert_array_equal(q.groups, p.groups)
        np.testing.assert_array_equal(q.latents, p.latents)
    if q.function is not None:
        moved = q.X.copy()
        moved[:, [i for i, n in enumerate(q.feature_names) if n in added]] *= 2.0
        np.testing.assert_allclose(q.function(moved), q.clean_Y, rtol=1e-6, atol=1e-6 * np.abs(q.clean_Y).max(0).min())


def test_nuisances_are_what_they_say():
    p = problems.teacher(d_in=8, rank=2, d_out=6, samples=2000, noise=0.1)
    q = problems.with_nuisances(p, irrelevant=8, heavy_tails=1.0, seed=1)

    def kurtosis(X):
        return (((X - X.mean(0)) / X.std(0)) ** 4).mean(0)

    assert kurtosis(q.X).min() > 6.0 > kurtosis(p.X).max()
    plain = problems.with_nuisances(p, irrelevant=8, seed=1)
    junk = plain.X[:, 8:]
    np.testing.assert_allclose(junk.std(0), 1.0, atol=0.1)
    assert np.abs(np.corrcoef(junk, rowvar=False) - np.eye(8)).max() > 0.5
    assert np.abs(np.corrcoef(junk, p.latents, rowvar=False)[:8, 8:]).max() < 0.12
    np.testing.assert_array_equal(plain.X[:, :8], p.X)
    scaled = problems.with_nuisances(p, units=3.0, seed=1)
    decades = np.log10(scaled.X.std(0) / p.X.std(0))
    assert np.ptp(decades) > 2.0
    assert np.abs(decades).max() <= 3.0
    tails = problems.with_nuisances(p, noise_tails=3.0, seed=1)
    noise = tails.Y - tails.clean_Y
    np.testing.assert_allclose(noise.std(0) / p.clean_Y.std(0), 0.1)
    assert kurtosis(noise).mean() > 6.0
    with pytest.raises(IsthmusError, match="noise_tails"):
        problems.with_nuisances(problems.linear(), noise_tails=3.0)


# --- refusals --------------------------------------------------------------------------------------------


def consistent(**changes):
    X = np.random.default_rng(0).standard_normal((20, 3))
    fields = {
        "name": "sum",
        "X": X,
        "Y": X[:, :2],
        "clean_Y": X[:, :2],
        "latents": X[:, :2],
        "rank": 2,
        "jacobian_rank": 2,
        "function": lambda X: X[:, :2],
    }
    return Problem(**(fields | changes))


def test_consistent_problem_is_accepted():
    p = consistent()
    assert (p.samples, p.d_in, p.d_out) == (20, 3, 2)
    assert p.feature_names == ("x0", "x1", "x2")
    assert p.target_names == ("y0", "y1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 3, "latents": np.zeros((20, 3))}, r"`rank` must be an integer in \[0, 2\]"),
        ({"rank": -1}, "`rank`"),
        ({"rank": 2.0}, "`rank`"),
        ({"jacobian_rank": 3}, "`jacobian_rank`"),
        ({"rank": 1}, "jacobian_rank"),
        ({"latents": np.zeros((20, 1))}, "`latents` must have 2 columns"),
        ({"latents": np.zeros((19, 2))}, "`latents` must have 20 rows"),
        ({"rank": 0, "jacobian_rank": 0, "latents": np.empty((20, 0))}, "rank 0 must be constant"),
        ({"function": lambda X: X[:, :2] + 1e-3}, "must equal `clean_Y`"),
        ({"function": lambda X: X}, "must have shape"),
        ({"function": lambda X: np.full((20, 2), np.nan)}, "must equal `clean_Y`"),
        ({"noise": 0.1}, "`noise` must be 0 exactly when"),
        ({"Y": np.ones((20, 2))}, "`noise` must be 0 exactly when"),
        ({"noise": -1.0}, "`noise`"),
        ({"noise": math.nan}, "`noise`"),
        ({"Y": np.full((20, 2), np.nan)}, "`Y` must be finite"),
        ({"groups": np.zeros(19, dtype=int)}, "`groups`"),
        ({"groups": np.zeros(20)}, "`groups`"),
        ({"feature_names": ("a", "b", "b")}, "`feature_names`"),
        ({"target_names": ("a",)}, "`target_names`"),
    ],
)
def test_inconsistent_problem_is_refused(changes, message):
    with pytest.raises(IsthmusError, match=message):
        consistent(**changes)


@pytest.mark.parametrize(
    ("family", "arguments"),
    [
        ("teacher", {"rank": 60}),
        ("teacher", {"rank": 0}),
        ("teacher", {"rank": 5, "hidden": 2}),
        ("teacher", {"depth_in": 0}),
        ("teacher", {"samples": 1}),
        ("teacher", {"samples": 10.0}),
        ("teacher", {"seed": -1}),
        ("teacher", {"noise": -0.1}),
        ("teacher", {"noise": "much"}),
        ("teacher_chain", {"dims": (30,)}),
        ("teacher_chain", {"dims": (30, 0, 30)}),
        ("partially_seen_surface", {"seen": 9}),
        ("partially_seen_surface", {"latent_dim": 21}),
        ("partially_seen_surface", {"hidden": 4}),
        ("linear", {"rank": 21}),
        ("linear", {"singular_values": (1.0, 2.0)}),
        ("linear", {"singular_values": (1.0, 2.0, 0.0)}),
        ("norms", {"blocks": 3, "d_out": 2}),
        ("norms", {"block_size": 0}),
        ("product", {"where": "middle"}),
        ("product", {"rank": 1, "where": "decoder"}),
        ("product", {"rank": 10}),
        ("angle", {"d_in": 1}),
        ("angle", {"arc": 6.0}),
        ("angle", {"inner_radius": 2.0}),
        ("min_cross", {"d_out": 1}),
        ("ball_trajectories", {"throw": "sideways"}),
        ("ball_trajectories", {"encoding": "frames"}),
        ("ball_trajectories", {"past": 1}),
        ("ball_trajectories", {"future": (0.2,)}),
        ("ball_trajectories", {"future": (0.2, 0.2)}),
        ("gradient_descent_losses", {"d": 1}),
        ("gradient_descent_losses", {"steps": 1}),
        ("gradient_descent_losses", {"step_size": 1.0}),
        ("gradient_descent_losses", {"law": "cauchy"}),
        ("pure_noise", {"d_out": 0}),
    ],
)
def test_invalid_arguments_are_refused(family, arguments):
    with pytest.raises(IsthmusError, match=r"\. Got "):
        getattr(problems, family)(**arguments)


def test_invalid_calls_are_refused(made):
    p = made["linear-3"]
    for fraction in (0.0, 1.0, 1.5, "half"):
        with pytest.raises(IsthmusError, match="fraction"):
            p.split(fraction)
    with pytest.raises(IsthmusError, match="units"):
        problems.with_nuisances(p, units=-1.0)
    with pytest.raises(IsthmusError, match="irrelevant"):
        problems.with_nuisances(p, irrelevant=-1)
    with pytest.raises(IsthmusError, match="unit vector"):
        problems.summary_statistics(np.ones((2, 3)), np.ones(3))
    with pytest.raises(IsthmusError, match="`E`"):
        problems.descend(np.ones((2, 2)), [1.0, 0.0], steps=1, step_size=0.1, E=np.ones((3, 2)))


def test_relu_latents_lie_in_the_positive_orthant():
    p = problems.teacher(d_in=12, rank=3, d_out=10, relu_latents=True, samples=200)
    assert p.latents.min() == 0.0
    # Shifted by one deviation before the ReLU: positive for about 84 % of the samples.
    assert 0.7 < (p.latents > 0).mean() < 0.95
    inside = (p.latents > 0.05).all(1)
    ranks = [np.linalg.matrix_rank(numerical_jacobian(p.function, x, [1e-5] * 12), rtol=1e-6) for x in p.X[inside][:10]]
    assert max(ranks) == p.rank == p.jacobian_rank == 3
    # Twin: without the ReLU the latents are centred.
    assert abs(problems.teacher(d_in=12, rank=3, d_out=10, samples=200).latents.mean()) < 0.2


def test_a_chain_of_residual_networks():
    """Values and derivatives by hand and by finite differences; inner representations have unit covariance."""
    found = problems.teacher_chain(dims=(12, 4, 2, 10), depth=4, residual=True, samples=3000, seed=1)
    assert (found.rank, found.jacobian_rank) == (2, 2)
    np.testing.assert_allclose(np.cov(found.latents, rowvar=False), np.eye(2), atol=0.15)
    np.testing.assert_allclose(found.Y.std(axis=0), 1.0, atol=0.15)
    rng = np.random.default_rng(0)
    net, values = random_network(rng, (5, 6, 6, 3), rng.standard_normal((200, 5)), decoder=True, residual=True)
    x, step = rng.standard_normal((1, 5)), 1e-6
    A = x @ net.Ws[0].T + net.bs[0]
    A = A + np.maximum(A, 0.0) @ net.Ws[1].T + net.bs[1]
    np.testing.assert_allclose(net(x), A @ net.Ws[2].T + net.bs[2], rtol=1e-12)
    moved = np.stack([(net(x + step * e) - net(x - step * e))[0] / (2 * step) for e in np.eye(5)], axis=1)
    np.testing.assert_allclose(net.jacobian(x)[0], moved, atol=1e-7)
    np.testing.assert_allclose(values.std(axis=0), 1.0, rtol=1e-10)
