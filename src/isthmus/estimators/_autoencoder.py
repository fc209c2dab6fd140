"""BottleneckAutoencoder: the surface that data lie on, coordinates on it, and points brought back to it."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._settings import Settings
from isthmus.estimators._base import Array, Bottleneck, put_together, take_apart
from isthmus.files import register
from isthmus.measures import Denoising, denoising, jacobian

#: Rows whose Jacobians are held at once.
ROWS = 256

#: Shares of the energy of noise along a direction: with more it is kept, with less undone; between is neither.
KEPT, UNDONE = 0.25, 0.1


@dataclass(frozen=True, eq=False)
class AutoencoderDenoising(Denoising):
    """Denoising of a fitted autoencoder.

    Attributes
    ----------
    relative : Tensor (N,)
        ‖J² − J‖_F/‖J‖_F: 0 for projections, whatever their rank.
    """

    relative: Tensor


@cites("rank2023", "§5, 'Autoencoders'", ids=("Q-denoise",))
class BottleneckAutoencoder(Bottleneck):
    """An autoencoder x ≈ h(g(x)) through as few variables as the data need; h∘g brings points back to their surface.

    A rank-recovering autoencoder is the identity on the data and has no more dimensions than they: its Jacobian
    projects onto the tangents of their surface, and what is off the surface, noise, is taken away.

    Parameters
    ----------
    rank : "auto" or int, default "auto"
        How many coordinates; found from the data unless given.
    depth : int, default 6
        Layers of the network, an even number.
    width : int, default 128
        Neurons in each.
    activation : {"auto", "smooth", "kinked"}, default "auto"
        SiLU or ReLU; "auto" is SiLU.
    resolution : "auto" or float, default "auto"
        A coordinate must explain at least about this share of the variance, 0.01 by default. Noise can be described
        too, by coordinates of its own: what is below the resolution is left out, so raise it above the noise's share.
        Networks are trained with a ridge of 0.4 of it, in the last fit of a tenth: what is above is hardly shrunk.
    units : {"auto", "own", "common"}, default "auto"
        Columns divided by their own standard deviation (here also with "auto"), or all by one number: for columns of
        one unit (pixels).
    noise : float, default 0.0
        Noise that the last fit adds to copies of the inputs, and learns to undo; the rank is found without. In every
        direction its standard deviation is this many times (variance/rank)^½, the spread of one coordinate. With 0 the
        rank alone denoises; directions off a closed surface, which the rank allows, are then only partly undone.
    max_rank : int, optional
        The largest rank to look for; by default what the data allow, at most 15.
    cv : None, int, splitter or pairs of rows
        How rows are held out to judge each rank: a quarter of them by default.
    replicas : int, default 1
        Further trainings, from other seeds, divisions and depths, that must agree with the first.
    steps : int, default 50
        Quasi-Newton steps after each narrowing.
    learning_rate, init_scale : float
        Of the first steps; the answer does not depend on them.
    max_samples : int, default 5000
        Training rows beyond this number are used only for the last fit.
    missing : {"error", "median"}
        What to do with NaN in X; a gap is first filled by the median, then reconstructed.
    n_jobs : int, optional
        Processes for trainings that do not depend on each other: None is 1 unless a joblib context says otherwise, −1
        one for each core. The answer does not depend on it.
    random_state : int, RandomState or None, default 0
    verbose : bool, default False
        Show progress on stderr.
    ridge : float
        The former name of ``resolution``; it goes in the next version.

    Attributes
    ----------
    rank_ : int
        Coordinates needed to tell all rows apart.
    dimension_ : int
        Directions in which the surface extends near one row, by the rank of the Jacobian: fewer than ``rank_`` where it
        closes up. A circle needs 2 coordinates and has dimension 1; a sphere 3 and 2.
    verdict_ : {"determined", "undetermined", "trivial", "given"}
        Of ``rank_``.
    reasons_ : list of str
    rank_profile_ : RankProfile or None
        Held-out error and the rest for each rank; None for rows that do not vary.
    encoder_, decoder_ : nn.Module
        g and h in the units of X.
    discovery_ : Discovery
        Everything that was found.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only when X has names.

    Examples
    --------
    >>> import isthmus
    >>> curve = isthmus.problems.noisy_curve(samples=200, noise=0.0)
    >>> model = isthmus.BottleneckAutoencoder(depth=6, width=32, replicas=0).fit(curve.X)
    >>> model.rank_, model.dimension_, model.reconstruct(curve.X).shape
    (1, 1, (200, 2))
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Bottleneck._parameter_constraints,
        "noise": [Interval(Real, 0.0, None, closed="left")],
    }

    def __init__(
        self,
        rank: int | str = Settings.rank,
        *,
        depth: int = Settings.depth,
        width: int = Settings.width,
        activation: str = Settings.activation,
        resolution: float | str = Settings.resolution,
        units: str = Settings.units,
        noise: float = Settings.input_noise,
        max_rank: int | None = Settings.max_rank,
        cv: Any = None,
        replicas: int = Settings.replicas,
        steps: int = Settings.steps,
        learning_rate: float = Settings.learning_rate,
        init_scale: float = Settings.init_scale,
        max_samples: int = Settings.max_samples,
        missing: str = Settings.missing,
        n_jobs: int | None = None,
        random_state: Any = Settings.seed,
        verbose: bool = False,
        ridge: float | str = "deprecated",
    ) -> None:
        super().__init__(
            rank,
            depth=depth,
            width=width,
            activation=activation,
            resolution=resolution,
            units=units,
            max_rank=max_rank,
            cv=cv,
            replicas=replicas,
            steps=steps,
            learning_rate=learning_rate,
            init_scale=init_scale,
            max_samples=max_samples,
            missing=missing,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
            ridge=ridge,
        )
        self.noise = noise

    def fit(self, X: Any, y: Any = None, groups: Any = None, time: Any = None) -> BottleneckAutoencoder:
        """Find how many coordinates the rows of X need, and learn the maps to them and back.

        Parameters
        ----------
        X : array (n, n_features)
        y : ignored
        groups : array (n,), optional
            Rows of one group are never on both sides of a division.
        time : array (n,), optional
            Numbers or dates that order the rows in time: the last are held out.
        """
        self._check_parameters()
        noise = float(self.noise)
        X = self._validated(X, ensure_min_samples=2)
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(X.shape[1])])
        return self._discover(X, X, groups=groups, time=time, input_noise=noise, target_names=names)

    def _take(self) -> None:
        super()._take()
        self.dimension_, told = self.rank_, "rank of the Jacobian"
        if self.rank_ > 1:
            rows = self.discovery_.coordinates[:: max(1, -(-len(self.discovery_.coordinates) // ROWS))]
            J = self._jacobian(self.discovery_.decode(rows)) * self._scaling()[1] / self._scaling()[1][:, None]
            # At the reconstructions: they are on the surface, and known from the coordinates alone.
            s = torch.linalg.svdvals(torch.from_numpy(J)).median(0).values[: self.rank_]
            self.dimension_, clear = directions_kept(s)
            cloud = {item.name: item for item in self.discovery_.evidence}.get("TwoNN on the coordinates")
            if not clear and cloud is not None and cloud.rank is not None and cloud.rank <= self.rank_:
                # A direction that is half undone is neither there nor not; the cloud of coordinates knows.
                self.dimension_ = max(1, cloud.rank)
                told = "TwoNN on the coordinates; the Jacobian's singular values leave no clear gap"
        told = f"local dimension {self.dimension_} ({told})"
        if self.dimension_ < self.rank_:
            told += (
                f": the surface closes up, and needs {self.rank_} coordinates, as circles (2, 1) and spheres (3, 2) do"
            )
        self.reasons_.append(told)

    def inverse_transform(self, X: Any) -> Array:
        """h(X), (n, n_features), from coordinates X (n, rank_)."""
        check_is_fitted(self)
        return self.discovery_.decode(X)

    def reconstruct(self, X: Any) -> Array:
        """h(g(X)), (n, n_features): the rows brought to the surface of the data, which is what denoises them."""
        X = self._checked(X)
        return self.discovery_.predict(X)

    def score(self, X: Any, y: Any = None) -> float:
        """1 − Σ‖x − h(g(x))‖²/Σ‖x − mean‖², the share of the variance explained.

        Mean and units are those of the fit; the mean alone scores 0.
        """
        X = self._checked(X)
        target = self._mended(X)
        mean, scale = self._scaling()
        left = (((target - self.discovery_.predict(X)) / scale) ** 2).sum()
        whole = (((target - mean) / scale) ** 2).sum()
        return float(1.0 - left / whole) if whole > 0 else float(left == 0)

    def _scaling(self) -> tuple[Array, Array]:
        encoder: Any = self.encoder_
        decoder: Any = self.decoder_
        if self.rank_ > 0:
            return encoder.shift.numpy(), encoder.scale.numpy()
        value = decoder.value.numpy()
        return value, np.ones_like(value)

    def jacobian(self, X: Any) -> Array:
        """J of h∘g at the rows of X, (n, n_features, n_features), in the units of X."""
        X = self._checked(X)
        return self._jacobian(self._mended(X))

    def _mended(self, X: Array) -> Array:
        """Checked rows as the maps take them: without gaps, gross outliers limited as in the fit."""
        return self.discovery_.mending("BottleneckAutoencoder", X, self.discovery_.feature_names)

    def _jacobian(self, X: Array) -> Array:
        if self.rank_ == 0:
            return np.zeros((len(X), X.shape[1], X.shape[1]))
        mean, scale = self._scaling()
        scaled = torch.from_numpy((X - mean) / scale)
        encoder: Any = self.encoder_
        decoder: Any = self.decoder_
        parts = []
        with torch.no_grad():
            for rows in scaled.split(ROWS):
                inner = jacobian(encoder.network, rows)
                outer = jacobian(decoder, encoder.network(rows))
                parts.append((outer @ inner / torch.from_numpy(scale)).numpy())
        return np.concatenate(parts)

    def tangent_frames(self, X: Any) -> Array:
        """Orthonormal tangents of the surface at the reconstructions, (n, n_features, dimension_), as columns.

        They are the leading left singular vectors of the Jacobian of h∘g; the direction in which most is kept first.
        """
        J = self.jacobian(X)
        return np.linalg.svd(J, full_matrices=False)[0][:, :, : self.dimension_]

    def denoising(
        self, X: Any, *, tangents: Any = None, noisy: Any = None, projection: Any = None
    ) -> AutoencoderDenoising:
        """Q-denoise at the rows of X: ‖J² − J‖, ‖JT − T‖, and how near outputs of noisy inputs come to the data.

        Parameters
        ----------
        X : array (n, n_features)
            Where Jacobians are taken.
        tangents, noisy, projection : optional
            As in :func:`isthmus.measures.denoising`.
        """
        X = self._mended(self._checked(X))
        whole = nn.Sequential(self.encoder_, self.decoder_)
        found = denoising(whole, X, tangents=tangents, noisy=noisy, projection=projection)
        size = torch.from_numpy(np.sqrt((self._jacobian(X) ** 2).sum(axis=(1, 2))))
        # The zero map is a projection too.
        return AutoencoderDenoising(**vars(found), relative=found.projection / size.clamp_min(1e-300))


def directions_kept(s: Tensor) -> tuple[int, bool]:
    """Directions that a map near a projection keeps, at least one, and whether each is either kept or undone.

    The singular values of a projection are 0 or 1. A smooth network undoes noise off a closed surface only in part:
    what counts is the share s² of its energy that is left, relative to the first direction's.
    """
    energy = (s / s[0].clamp_min(1e-300)) ** 2
    return max(1, int((energy > KEPT).sum())), not bool(((energy > UNDONE) & (energy <= KEPT)).any())


def _to_parts(model: BottleneckAutoencoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return take_apart(model)


def _from_parts(config: Any, tensors: dict[str, Tensor]) -> BottleneckAutoencoder:
    model = put_together(BottleneckAutoencoder, config, tensors, {})
    found = model.discovery_
    if found.feature_names != found.target_names:
        got = f"{len(found.feature_names)} and {len(found.target_names)}"
        fail("load", "an autoencoder must have the same inputs and outputs", got, "Save it again.")
    model._take()
    return model


register("BottleneckAutoencoder", BottleneckAutoencoder, _to_parts, _from_parts)
