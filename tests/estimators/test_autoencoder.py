"""BottleneckAutoencoder: scikit-learn's own checks, ranks and dimensions of known surfaces, denoising, files."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import isthmus
from isthmus import BottleneckAutoencoder, ConvergenceWarning, FullyConnected, IsthmusError, train
from isthmus.estimators._autoencoder import _from_parts, _to_parts, directions_kept
from isthmus.measures import distance_to_data
from isthmus.objective import constant_cost
from isthmus.problems import noisy_curve, noisy_surface
from tools import SEED, assert_close, some_checks

#: Where the point is not how well it fits.
QUICK = {"depth": 4, "width": 16, "steps": 4, "replicas": 0}
#: Small, and trained to rest.
SMALL = {"depth": 6, "width": 32, "steps": 25, "replicas": 0}


SMALLEST = BottleneckAutoencoder(rank=1, depth=4, width=8, steps=2)
#: Those of scikit-learn's checks that the fast suite makes of this estimator; of the regressor it makes all.
FEW = ("check_estimators_pickle", "check_transformer_general", "check_fit2d_1feature", "check_n_features_in")


@some_checks(SMALLEST, FEW)
def test_some_of_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([SMALLEST])
def test_scikit_learns_own_checks(estimator, check):
    """In networks so small that all the checks take seconds; the search for the rank is in the slow ones."""
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BottleneckAutoencoder()])
def test_scikit_learns_own_checks_at_default_arguments(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def curve():
    return noisy_curve(samples=300, noise=0.0, seed=1)


@pytest.fixture(scope="module")
def fitted(curve):
    return BottleneckAutoencoder(**SMALL).fit(pd.DataFrame(curve.X, columns=["a", "b"]))


def test_a_curve_is_one_variable(fitted, curve):
    assert (fitted.rank_, fitted.dimension_) == (1, 1)
    assert fitted.discovery_.sentence.startswith("1 variable describes the 2 columns")
    assert "further coordinates would explain" in " ".join(fitted.reasons_)
    assert fitted.reasons_[-1] == "local dimension 1 (rank of the Jacobian)"
    # λ is what need not be explained; the ridge is smaller.
    profile = fitted.rank_profile_
    assert (profile.resolution, profile.strength) == pytest.approx((0.01, 0.001))
    X = pd.DataFrame(curve.X, columns=["a", "b"])
    Z = fitted.transform(X)
    assert Z.shape == (300, 1)
    assert np.array_equal(fitted.inverse_transform(Z), fitted.reconstruct(X))
    assert curve.distance(fitted.reconstruct(X)).mean() < 0.02
    left = (curve.X - fitted.reconstruct(X)) / curve.X.std(axis=0)
    assert fitted.score(X) == pytest.approx(1 - (left**2).sum() / 600, rel=1e-3)
    assert fitted.score(X) > 0.995


def test_jacobian_and_tangents(fitted, curve):
    """By differences, and against the true tangents of the curve."""
    X = pd.DataFrame(curve.X, columns=["a", "b"])
    J = fitted.jacobian(X)
    step, moved = 1e-6, []
    for j in range(2):
        shifted = X.copy()
        shifted.iloc[:, j] += step
        moved.append((fitted.reconstruct(shifted) - fitted.reconstruct(X)) / step)
    same = np.abs(np.stack(moved, axis=2) - J).max(axis=(1, 2)) < 1e-4
    # Elsewhere a kink lies between the two points.
    assert same.mean() > 0.98
    frames = fitted.tangent_frames(X)
    assert frames.shape == (300, 2, 1)
    assert_close(np.linalg.norm(frames, axis=1), np.ones((300, 1)))
    true = np.stack([np.ones(300), 0.5 * np.pi * np.cos(np.pi * curve.X[:, 0])], axis=1)
    aligned = np.abs((frames[:, :, 0] * true).sum(axis=1)) / np.linalg.norm(true, axis=1)
    assert np.median(aligned) > 0.99


def test_denoising_by_the_measures(fitted, curve):
    X = pd.DataFrame(curve.X[:50], columns=["a", "b"])
    found = fitted.denoising(X, tangents=fitted.tangent_frames(X), noisy=curve.X[:20] + 0.05)
    J = fitted.jacobian(X)
    by_hand = np.linalg.norm(J @ J - J, axis=(1, 2)) / np.linalg.norm(J, axis=(1, 2))
    assert_close(found.relative, by_hand, rtol=1e-6, atol=1e-9, reason="a difference of nearly equal matrices")
    assert (found.ranks == 1).all()
    assert found.relative.median() < 0.1
    assert found.distance_after is not None
    assert found.tangency is not None
    assert found.tangency.median() < 0.2


@pytest.mark.slow
def test_noise_is_learned_to_be_undone():
    """A circle: two coordinates allow what is off it; with noise in the last fit it goes."""
    circle = noisy_curve(closed=True, samples=300, noise=0.0)
    plain, taught = (BottleneckAutoencoder(**SMALL, noise=noise).fit(circle.X) for noise in (0.0, 0.15))
    assert plain.rank_ == taught.rank_ == 2
    off = circle.clean * 1.1
    after = [circle.distance(model.reconstruct(off)).mean() for model in (plain, taught)]
    assert after[1] < 0.7 * after[0]
    assert after[1] < 0.05
    assert taught.dimension_ == 1
    assert "closes up, and needs 2 coordinates" in taught.reasons_[-1]


def test_constant_rows_and_names():
    model = BottleneckAutoencoder(**QUICK).fit(np.full((20, 3), 2.0))
    assert (model.rank_, model.dimension_, model.verdict_) == (0, 0, "trivial")
    assert model.reconstruct(np.zeros((2, 3))).tolist() == [[2.0] * 3] * 2
    assert model.score(np.full((2, 3), 2.0)) == 1.0
    assert model.score(np.zeros((2, 3))) == 0.0
    assert model.jacobian(np.zeros((2, 3))).shape == (2, 3, 3)
    assert model.tangent_frames(np.zeros((2, 3))).shape == (2, 3, 0)
    pipe = make_pipeline(StandardScaler(), BottleneckAutoencoder(**QUICK)).fit(np.random.default_rng(0).random((30, 3)))
    assert pipe[-1].get_feature_names_out()[0] == "bottleneckautoencoder0"


def test_missing_values(curve):
    X = np.array(curve.X)
    X[::10, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        BottleneckAutoencoder(**QUICK).fit(X)
    model = BottleneckAutoencoder(**QUICK, missing="median").fit(X)
    assert np.isfinite(model.reconstruct(X)).all()
    assert np.isfinite(model.jacobian(X)).all()
    assert np.isfinite(model.score(X))


def test_errors():
    X = np.random.default_rng(SEED).random((20, 3))
    for bad in ({"units": "mine"}, {"noise": -1.0}, {"noise": "some"}, {"rank": 9}, {"missing": "drop"}):
        with pytest.raises(IsthmusError):
            BottleneckAutoencoder(**{**QUICK, **bad}).fit(X)
    with pytest.raises(NotFittedError):
        BottleneckAutoencoder().reconstruct(X)


def test_files(fitted, curve, tmp_path):
    isthmus.save(fitted, tmp_path / "model.safetensors")
    twin = isthmus.load(tmp_path / "model.safetensors")
    X = pd.DataFrame(curve.X, columns=["a", "b"])
    assert type(twin) is BottleneckAutoencoder
    assert np.array_equal(twin.reconstruct(X), fitted.reconstruct(X))
    assert np.array_equal(twin.tangent_frames(X), fitted.tangent_frames(X))
    assert (twin.dimension_, twin.reasons_, twin.get_params()) == (1, fitted.reasons_, fitted.get_params())
    config, tensors = _to_parts(fitted)
    _from_parts(json.loads(json.dumps(config)), tensors)
    other = {**config["discovery"], "target_names": ["b", "a"]}
    with pytest.raises(IsthmusError, match="same inputs and outputs"):
        _from_parts({**config, "discovery": other}, tensors)


def shallow_outputs(X, noisy, lam):
    """A network of two layers, trained at the same price of a dimension."""
    scale = float(X.std(axis=0).mean())
    A = torch.from_numpy((X - X.mean(axis=0)) / scale)
    net = FullyConnected([A.shape[1], 200, A.shape[1]], generator=torch.Generator().manual_seed(0)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        train(net, A, A, ridge=lam * constant_cost(A) / 2)
    with torch.no_grad():
        return net(torch.from_numpy((noisy - X.mean(axis=0)) / scale)).numpy() * scale + X.mean(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["curve", "surface"])
def test_deep_autoencoders_denoise_and_shallow_ones_do_not(name):
    """F-rank-3's outcome, learned from noisy points: outputs four times nearer to the surface than inputs, or more."""
    make = {"curve": noisy_curve, "surface": noisy_surface}[name]
    data = make(samples=1000, noise=0.05)
    model = BottleneckAutoencoder(units="common", resolution=0.02).fit(data.X)
    assert (model.rank_, model.dimension_) == (data.rank, data.dimension)
    assert model.verdict_ in ("determined", "undetermined")
    fresh = data.clean + 0.05 * np.random.default_rng(7).standard_normal(data.clean.shape)
    before, after = data.distance(fresh).mean(), data.distance(model.reconstruct(fresh)).mean()
    assert before > 4 * after
    assert model.denoising(data.clean).relative.median() < 0.1
    flat = data.distance(shallow_outputs(data.X, fresh, 0.002)).mean()
    assert before < 3 * flat


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rank", "dimension"), [("circle", 2, 1), ("sphere", 3, 2)])
def test_closed_surfaces_are_told_from_their_jacobian(name, rank, dimension):
    data = (noisy_curve if name == "circle" else noisy_surface)(closed=True, noise=0.0)
    model = BottleneckAutoencoder(units="common", resolution=0.001, noise=0.15).fit(data.X)
    assert model.rank_ == rank or model.verdict_ == "undetermined"
    assert model.dimension_ == dimension
    assert "(rank of the Jacobian)" in model.reasons_[-1]
    noisy = data.clean + 0.05 * np.random.default_rng(7).standard_normal(data.clean.shape)
    assert data.distance(noisy).mean() > 3 * data.distance(model.reconstruct(noisy)).mean()


@pytest.mark.parametrize(
    ("values", "count", "clear"),
    [
        ([1.03, 0.99, 0.13], 2, True),
        ([1.0, 0.51], 2, True),
        ([1.0, 0.49], 1, False),
        ([1.0, 0.32], 1, False),
        ([1.0, 0.31], 1, True),
        ([0.0, 0.0], 1, True),
    ],
)
def test_directions_that_a_projection_keeps(values, count, clear):
    assert directions_kept(torch.tensor(values, dtype=torch.float64)) == (count, clear)


def test_known_projections():
    """The nearest point by Gauss–Newton against a dense sample, and against closed forms."""
    patch, rng = noisy_surface(samples=200, noise=0.1), np.random.default_rng(SEED)
    dense = noisy_surface(samples=200_000, noise=0.0)
    # Another seed would place the patch otherwise: more samples of the same do not.
    near = distance_to_data(patch.X, np.concatenate([dense.clean, patch.clean])).numpy()
    assert (patch.distance(patch.X) <= near + 1e-12).all()
    assert np.abs(patch.distance(patch.X) - near).max() < 0.02
    curve = noisy_curve(samples=100, noise=0.2)
    t = np.linspace(-1, 1, 100_001)
    fine = distance_to_data(curve.X, np.stack([t, 0.5 * np.sin(np.pi * t)], axis=1)).numpy()
    assert_close(curve.distance(curve.X), fine, rtol=1e-4, atol=1e-6, reason="spacing of the sample")
    circle, sphere = noisy_curve(closed=True, noise=0.1), noisy_surface(closed=True, noise=0.1)
    assert_close(circle.distance(circle.X), np.abs(np.linalg.norm(circle.X, axis=1) - 1))
    assert_close(sphere.distance(sphere.clean), np.zeros(1000), atol=1e-12, reason="rounding")
    Z = rng.standard_normal((50, 10))
    assert (sphere.distance(Z) <= distance_to_data(Z, sphere.clean).numpy()).all()
    assert circle.projection(np.zeros((1, 2))).tolist() == [[1.0, 0.0]]


@pytest.mark.slow
def test_digits_against_pca():
    """A quick look; the benchmark has the peers and the numbers."""
    X = load_digits().data[:600]
    new = load_digits().data[600:800]
    noisy = new + 4.0 * np.random.default_rng(SEED).standard_normal(new.shape)
    model = BottleneckAutoencoder(
        rank=6, units="common", depth=4, width=48, steps=25, replicas=0, resolution=0.003
    ).fit(X)
    linear = PCA(6).fit(X)
    ours = ((model.reconstruct(noisy) - new) ** 2).mean()
    theirs = ((linear.inverse_transform(linear.transform(noisy)) - new) ** 2).mean()
    assert ours < theirs
