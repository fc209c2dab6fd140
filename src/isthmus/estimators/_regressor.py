"""BottleneckRegressor: numbers from numbers, through as few variables as it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from isthmus._checks import fail
from isthmus.discovery._columns import column_names, refuse_columns
from isthmus.estimators._base import Array, Bottleneck, put_together, take_apart
from isthmus.files import register


class BottleneckRegressor(MultiOutputMixin, RegressorMixin, Bottleneck):
    """Regression through as few variables as the task needs: y ≈ h(g(x)), g and h learned, their meeting place found.

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
        A coordinate must explain at least about this share of the outputs' variance. "auto" takes what predicts
        held-out rows best among 0.01, 0.001, 0.0001 and 0.00001.
    units : {"auto", "own", "common"}, default "auto"
        Columns divided by their own standard deviation, or all by one number; "auto" asks what predicts better where
        many neighbouring columns are alike, as pixels are.
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
        What to do with NaN in X.
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
    verdict_ : {"determined", "undetermined", "trivial", "given"}
    reasons_ : list of str
    rank_profile_ : RankProfile or None
        Held-out error and the rest for each rank; None for a constant y.
    encoder_, decoder_ : nn.Module
        g and h in the units of X and y.
    discovery_ : Discovery
        Everything that was found.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only when X has names.

    Examples
    --------
    >>> import isthmus
    >>> task = isthmus.problems.linear(d_in=6, d_out=6, rank=2, samples=200)
    >>> model = isthmus.BottleneckRegressor(depth=4).fit(task.X, task.Y)
    >>> model.rank_, model.transform(task.X).shape, round(model.score(task.X, task.Y), 2)
    (2, (200, 2), 1.0)
    """

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect of it."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, time: Any = None) -> BottleneckRegressor:
        """Discover the rank of y = f(x) and learn the maps.

        Parameters
        ----------
        X : array (n, n_features)
        y : array (n,) or (n, n_outputs)
        groups : array (n,), optional
            Rows of one group are never on both sides of a division.
        time : array (n,), optional
            Numbers or dates that order the rows in time: the last are held out.
        """
        self._check_parameters()
        target_names = column_names(y)
        X, y = self._validated(X, y, multi_output=True, y_numeric=True, ensure_min_samples=2)
        if y.dtype.kind == "U":  # lets it pass
            refuse_columns(type(self).__name__, "y", y)
        y = np.asarray(y, dtype=np.float64)
        self._flat = y.ndim == 1
        return self._discover(X, y, groups=groups, time=time, target_names=target_names)

    def predict(self, X: Any) -> Array:
        """h(g(X)), of the shape of the y it was fitted on."""
        X = self._checked(X)
        Y = self.discovery_.predict(X)
        return Y[:, 0] if self._flat else Y

    def decode(self, Z: Any) -> Array:
        """h(Z) for coordinates Z (n, rank_): ``decode(transform(X))`` is ``predict(X)``."""
        check_is_fitted(self)
        Y = self.discovery_.decode(Z)
        return Y[:, 0] if self._flat else Y


def _to_parts(model: BottleneckRegressor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return take_apart(model, flat=getattr(model, "_flat", False))


def _from_parts(config: Any, tensors: dict[str, Tensor]) -> BottleneckRegressor:
    model = put_together(BottleneckRegressor, config, tensors, {"flat": bool})
    model._flat = config["flat"]
    if model._flat and len(model.discovery_.target_names) != 1:
        fail("load", "a flat y must be one column", len(model.discovery_.target_names), "Save it again.")
    model._take()
    return model


register("BottleneckRegressor", BottleneckRegressor, _to_parts, _from_parts)
