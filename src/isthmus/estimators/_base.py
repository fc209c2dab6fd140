"""What the estimators share: parameters, the discovery behind ``fit``, coordinates."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from isthmus._checks import fail, without_mask
from isthmus._errors import IsthmusError
from isthmus._settings import KINDS, Settings, present_name
from isthmus.discovery import Discovery, discover
from isthmus.discovery._columns import holds_dates, refuse_columns
from isthmus.discovery._result import discovery_from_parts, discovery_parts

Array = NDArray[np.float64]


class ParameterError(IsthmusError, InvalidParameterError):
    """A parameter of an estimator is not allowed: an error of this library's, and scikit-learn's."""


def _constraints() -> dict[str, list[Any]]:
    """What scikit-learn may know of each parameter that is a setting of discover; the library's words are in fit."""
    made: dict[str, list[Any]] = {}
    for one in fields(Settings):
        kind, allowed = one.metadata["kind"], one.metadata["allowed"]
        if kind is str:
            made[one.name] = [StrOptions(set(allowed["choices"]))]
            continue
        low, high, open_ = allowed.get("low"), allowed.get("high"), allowed.get("low_open")
        closed = ("neither" if open_ else "left") if high is None else ("right" if open_ else "both")
        numbers = Interval(Integral if kind is int else Real, low, high, closed=closed)
        other = [StrOptions({"auto"})] if one.default == "auto" else [None] if one.default is None else []
        made[one.name] = [numbers, *other]
    return made


class Bottleneck(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the three estimators share: parameters, the discovery behind ``fit``, and the coordinates."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{name: allowed for name, allowed in _constraints().items() if name not in ("loss", "input_noise", "seed")},
        "cv": "no_validation",
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "ridge": [StrOptions({"auto", "deprecated"}), Real],
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
        self.rank = rank
        self.depth = depth
        self.width = width
        self.activation = activation
        self.resolution = resolution
        self.units = units
        self.max_rank = max_rank
        self.cv = cv
        self.replicas = replicas
        self.steps = steps
        self.learning_rate = learning_rate
        self.init_scale = init_scale
        self.max_samples = max_samples
        self.missing = missing
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.ridge = ridge

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect of it."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "median"
        return tags

    @property
    def _finite(self) -> Any:
        return "allow-nan" if self.missing == "median" else True

    def _discover(self, X: Array, Y: Any, **more: Any) -> Self:
        """Discover on checked rows, with the estimator's parameters."""
        settings = {name: value for name, value in self.get_params(deep=False).items() if name in KINDS}
        if self.ridge != "deprecated":
            settings[present_name(type(self).__name__, "ridge")] = self.ridge
        self.discovery_: Discovery = discover(
            X,
            Y,
            cv=self.cv,
            seed=_seed(self.random_state),
            feature_names=getattr(self, "feature_names_in_", None),
            n_jobs=self.n_jobs,
            progress=bool(self.verbose),
            **settings,
            **more,
        )
        self._take()
        return self

    def _validated(self, X: Any, *y: Any, y_numeric: bool = False, **options: Any) -> Any:
        """As scikit-learn checks it; of columns that it refuses, which they are and what this library does about them.

        ``y_numeric`` says that y, if given, must be numbers.
        """
        more = {"y_numeric": True} if y_numeric else {}
        X, y = _detached(X), tuple(map(_detached, y))
        caught: Exception | None = None
        if not holds_dates(X):
            rows = _without_na(X) if self.missing == "median" else X
            try:
                return validate_data(
                    self, rows, *y, dtype=np.float64, ensure_all_finite=self._finite, **more, **options
                )
            except (TypeError, ValueError) as problem:
                caught = problem
        # Outside of the handler: scikit-learn's advice would stand above ours.
        who = type(self).__name__
        refuse_columns(who, "X", X, missing=self.missing, fitted=not options.get("reset", True))
        if y_numeric:
            refuse_columns(who, "y", y[0])
        raise caught or TypeError("dates are no numbers")

    def _check_parameters(self) -> None:
        try:
            self._validate_params()
        except InvalidParameterError as problem:
            raise ParameterError(str(problem)) from None

    def _take(self) -> None:
        """Set the fitted attributes from the discovery."""
        found = self.discovery_
        self.rank_, self.verdict_, self.reasons_ = found.rank, found.verdict, list(found.reasons)
        self.rank_profile_ = found.profile
        self.encoder_, self.decoder_ = found.encoder, found.decoder
        self._n_features_out = found.rank

    def transform(self, X: Any) -> Array:
        """The coordinates g(X), (n, rank_): uncorrelated, of unit variance, the most effective first."""
        X = self._checked(X)
        return self.discovery_.transform(X)

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self)
        return np.asarray(self._validated(X, reset=False))


def _detached(value: Any) -> Any:
    """A tensor as NumPy takes it, a masked array with NaN where it is masked; anything else as it is."""
    return value.detach().cpu() if isinstance(value, Tensor) else without_mask(value)


def _without_na(X: Any) -> Any:
    """X with NaN for the missing cells of its columns of objects: NumPy makes no number of pandas' NA."""
    objects = isinstance(X, pd.DataFrame) and any(kind.kind == "O" for kind in X.dtypes)
    return X.mask(X.isna()) if objects else X


def _seed(random_state: Any) -> int:
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


# ---- How fitted estimators are taken apart for a file and put together again; nothing in the file is believed


_FIX = "Save it again."

M = TypeVar("M", bound=Bottleneck)


def take_apart(model: Bottleneck, **more: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration as plain data (parameters, names, ``more``, the discovery), and tensors by name.

    Parameters that a file cannot hold are left out: ``cv`` may be any object.
    """
    if not hasattr(model, "discovery_"):
        fail("save", "the estimator must be fitted", "one that is not", "Call fit first.")
    config, tensors = discovery_parts(model.discovery_)
    given = model.get_params(deep=False)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    parameters = {name: value for name, value in plain.items() if _plain(value)}
    named = hasattr(model, "feature_names_in_")
    return {"parameters": parameters, "named": named, **more, "discovery": config}, tensors


def put_together(cls: type[M], config: Any, tensors: dict[str, Tensor], more: dict[str, type], loss: str = "mse") -> M:
    """An estimator of class ``cls`` with its discovery; ``more`` are the further keys and their types."""
    kinds = {"parameters": dict, "named": bool, **more}
    keys = {*kinds, "discovery"}
    if (
        not isinstance(config, dict)
        or set(config) != keys
        or not all(isinstance(config[key], kind) for key, kind in kinds.items())
    ):
        fail("load", f"an estimator must have the keys {', '.join(sorted(keys))}", ascii(config)[:200], _FIX)
    parameters, known = config["parameters"], tuple(cls().get_params(deep=False))
    if "ridge" in parameters and "resolution" not in parameters:  # as the version before wrote it
        parameters = {("resolution" if name == "ridge" else name): value for name, value in parameters.items()}
    if not set(parameters) <= set(known) or not all(_plain(value) for value in parameters.values()):
        fail("load", f"parameters must be among {', '.join(known)}", ascii(parameters)[:200], _FIX)
    found = discovery_from_parts(config["discovery"], tensors)
    if found.loss != loss:
        fail("load", f"the discovery of a {cls.__name__} must have the loss {loss!r}", ascii(found.loss)[:80], _FIX)
    model = cls(**parameters)
    model.discovery_ = found
    # Set as scikit-learn sets them, which declares neither.
    setattr(model, "n_features_in_", len(found.feature_names))  # noqa: B010
    if config["named"]:
        setattr(model, "feature_names_in_", np.array(found.feature_names, dtype=object))  # noqa: B010
    return model


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
