"""scikit-learn estimators: discovery as ``fit``, coordinates as ``transform``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from isthmus._checks import check_choice, fail
from isthmus.discovery import Discovery, discover
from isthmus.discovery.discover import column_names
from isthmus.discovery.keep import from_parts, to_parts
from isthmus.files import register

Array = NDArray[np.float64]


class BottleneckRegressor(MultiOutputMixin, RegressorMixin, TransformerMixin, BaseEstimator):
    """Regression through as few variables as the task needs: y ≈ h(g(x)), g and h learned, their meeting place found.

    Parameters
    ----------
    rank : "auto" or int, default "auto"
        How many coordinates; found from the data unless given.
    depth : int, default 8
        Layers of the network, an even number.
    width : int, default 64
        Neurons in each.
    ridge : "auto" or float, default "auto"
        λ: a coordinate must explain at least about this share of the outputs' variance.
    max_rank : int, optional
        The largest rank to look for; by default what the data allow, at most 15.
    cv : None, int, splitter or pairs of rows
        How rows are held out to judge each rank: a quarter of them by default.
    replicas : int, default 1
        Further searches, from other seeds, divisions and depths, that must agree with the first.
    steps : int, default 50
        Quasi-Newton steps after each narrowing.
    learning_rate, init_scale : float
        Of the first few steps; the answer does not depend on them.
    max_samples : int, default 5000
        Training rows beyond this number are used only for the last fit.
    missing : {"error", "median"}
        What to do with NaN in X.
    random_state : int, RandomState or None, default 0
    verbose : bool, default False
        Show progress on stderr.

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

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        depth: int = 8,
        width: int = 64,
        ridge: float | str = "auto",
        max_rank: int | None = None,
        cv: Any = None,
        replicas: int = 1,
        steps: int = 50,
        learning_rate: float = 1e-3,
        init_scale: float = 1.0,
        max_samples: int = 5000,
        missing: str = "error",
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.rank = rank
        self.depth = depth
        self.width = width
        self.ridge = ridge
        self.max_rank = max_rank
        self.cv = cv
        self.replicas = replicas
        self.steps = steps
        self.learning_rate = learning_rate
        self.init_scale = init_scale
        self.max_samples = max_samples
        self.missing = missing
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect of it."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "median"
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
            Numbers that order the rows in time: the last are held out.
        """
        check_choice("BottleneckRegressor", "missing", self.missing, ("error", "median"))
        target_names = column_names(y)
        X, y = validate_data(
            self,
            X,
            y,
            multi_output=True,
            y_numeric=True,
            dtype=np.float64,
            ensure_min_samples=2,
            ensure_all_finite="allow-nan" if self.missing == "median" else True,
        )
        y = np.asarray(y, dtype=np.float64)
        self.discovery_: Discovery = discover(
            X,
            y,
            groups=groups,
            time=time,
            rank=self.rank,
            max_rank=self.max_rank,
            depth=self.depth,
            width=self.width,
            ridge=self.ridge,
            cv=self.cv,
            replicas=self.replicas,
            steps=self.steps,
            learning_rate=self.learning_rate,
            init_scale=self.init_scale,
            max_samples=self.max_samples,
            missing=self.missing,
            seed=_seed(self.random_state),
            feature_names=getattr(self, "feature_names_in_", None),
            target_names=target_names,
            show_progress=self.verbose,
        )
        self._flat = y.ndim == 1
        self._take()
        return self

    def _take(self) -> None:
        found = self.discovery_
        self.rank_, self.verdict_, self.reasons_ = found.rank, found.verdict, list(found.reasons)
        self.rank_profile_ = found.profile
        self.encoder_, self.decoder_ = found.encoder, found.decoder
        self._n_features_out = found.rank

    def transform(self, X: Any) -> Array:
        """The coordinates g(X), (n, rank_): uncorrelated, of unit variance, the weightiest first."""
        X = self._checked(X)
        return self.discovery_.transform(X)

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

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self)
        finite = "allow-nan" if self.missing == "median" else True
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=finite))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of the coordinates: ``coordinate0``, ``coordinate1``, …"""
        check_is_fitted(self)
        own = getattr(self, "feature_names_in_", None)
        if input_features is not None and own is not None and list(input_features) != list(own):
            raise ValueError("input_features is not equal to feature_names_in_")
        return np.array([f"coordinate{j}" for j in range(self.rank_)], dtype=object)


def _seed(random_state: Any) -> int:
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


#: Parameters that a file can hold; `cv` may be any object and is left out unless it is a number.
_PARAMETERS = tuple(BottleneckRegressor().get_params(deep=False))


def _to_parts(model: BottleneckRegressor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not hasattr(model, "discovery_"):
        fail("save", "the estimator must be fitted", "one that is not", "Call fit first.")
    config, tensors = to_parts(model.discovery_)
    given = model.get_params(deep=False)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    parameters = {name: value for name, value in plain.items() if _plain(value)}
    named = hasattr(model, "feature_names_in_")
    return {"parameters": parameters, "flat": model._flat, "named": named, "discovery": config}, tensors


def _from_parts(config: Any, tensors: dict[str, Tensor]) -> BottleneckRegressor:
    keys = {"parameters", "flat", "named", "discovery"}
    kinds = {"parameters": dict, "flat": bool, "named": bool}
    if (
        not isinstance(config, dict)
        or set(config) != keys
        or not all(isinstance(config[key], kind) for key, kind in kinds.items())
    ):
        fail(
            "load", f"an estimator must have the keys {', '.join(sorted(keys))}", ascii(config)[:200], "Save it again."
        )
    parameters = config["parameters"]
    if not set(parameters) <= set(_PARAMETERS) or not all(_plain(value) for value in parameters.values()):
        fail("load", f"parameters must be among {', '.join(_PARAMETERS)}", ascii(parameters)[:200], "Save it again.")
    found = from_parts(config["discovery"], tensors)
    model = BottleneckRegressor(**parameters)
    model.discovery_, model._flat = found, config["flat"]
    if model._flat and len(found.target_names) != 1:
        fail("load", "a flat y must be one column", len(found.target_names), "Save it again.")
    # Set as scikit-learn sets them, which declares neither.
    setattr(model, "n_features_in_", len(found.feature_names))  # noqa: B010
    if config["named"]:
        setattr(model, "feature_names_in_", np.array(found.feature_names, dtype=object))  # noqa: B010
    model._take()
    return model


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


register("BottleneckRegressor", BottleneckRegressor, _to_parts, _from_parts)
