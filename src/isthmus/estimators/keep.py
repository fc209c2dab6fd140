"""How fitted estimators are taken apart for a file and put together again; nothing in the file is believed."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from isthmus._checks import fail
from isthmus.discovery.keep import from_parts, to_parts
from isthmus.estimators.base import Bottleneck

_FIX = "Save it again."
M = TypeVar("M", bound=Bottleneck)


def take_apart(model: Bottleneck, **more: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration as plain data (parameters, names, ``more``, the discovery), and tensors by name.

    Parameters that a file cannot hold are left out: ``cv`` may be any object.
    """
    if not hasattr(model, "discovery_"):
        fail("save", "the estimator must be fitted", "one that is not", "Call fit first.")
    config, tensors = to_parts(model.discovery_)
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
    if not set(parameters) <= set(known) or not all(_plain(value) for value in parameters.values()):
        fail("load", f"parameters must be among {', '.join(known)}", ascii(parameters)[:200], _FIX)
    found = from_parts(config["discovery"], tensors)
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
