"""The Discovery: the answer, its evidence, and the maps; and how a file keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor, nn

from isthmus import _html
from isthmus._checks import as_matrix, check_choice, check_integer, check_number, fail
from isthmus._errors import FileFormatError
from isthmus._result import Table
from isthmus.diagnosis import Evidence
from isthmus.discovery._columns import Mending, checked_names
from isthmus.discovery._maps import ConstantMap, Sensitivity, apply
from isthmus.discovery._profile import RankProfile
from isthmus.files import register
from isthmus.networks import FAMILIES, FullyConnected, Standardized

Array = NDArray[np.float64]


VERDICTS = ("determined", "undetermined", "trivial", "given")
_HOW = {"determined": "determined", "trivial": "trivial, by theorem", "given": "as given"}


@dataclass(frozen=True, eq=False, repr=False)
class Discovery:
    """How many variables y = f(x) depends on, with the coordinates and the maps in and out.

    Attributes
    ----------
    rank : int
        k, the number of coordinates; with the verdict ``"undetermined"`` a guess.
    verdict : {"determined", "undetermined", "trivial", "given"}
        ``"trivial"``: a theorem bounds the rank by 1 or 0 whatever the data. ``"given"``: the rank was an argument.
    reasons : tuple of str
        Why; for ``"undetermined"`` the doubts come first.
    profile : RankProfile or None
        Held-out error and the rest for each k; None for a constant Y.
    replicas : tuple of RankProfile
        The same from other seeds, divisions of the data and depths.
    evidence : tuple of Evidence
        Other ways of counting.
    sensitivity : Sensitivity or None
        What each coordinate responds to.
    encoder, decoder : nn.Module
        g and h, in the units of X and Y, float64. For classes h gives logits, calibrated.
    coordinates : array (N, k)
        g at the samples, in their order. Uncorrelated, unit variance, the one that moves the outputs most first.
    error : float
        Held-out squared error at this rank, relative to the variance of the outputs; for classes, log loss relative to
        their entropy.
    feature_names, target_names : tuple of str
        Inputs, and outputs or classes.
    notes : tuple of str
        What was done to the data.
    fill : array (d_in,) or None
        Medians that stand in for missing values.
    settings : dict
        How it was computed, as plain data.
    """

    rank: int
    verdict: str
    reasons: tuple[str, ...]
    profile: RankProfile | None
    replicas: tuple[RankProfile, ...]
    evidence: tuple[Evidence, ...]
    sensitivity: Sensitivity | None
    encoder: nn.Module
    decoder: nn.Module
    coordinates: Array
    error: float
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fill: Array | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def transform(self, X: Any) -> Array:
        """Coordinates g(X), (N, k)."""
        return apply(self.encoder, self._inputs(X))

    def decode(self, Z: Any) -> Array:
        """Outputs h(Z), (N, d_out), from coordinates (N, k)."""
        if self.rank == 0 and np.ndim(Z) == 2 and np.shape(Z)[1] == 0:
            return apply(self.decoder, np.empty((len(Z), 0)))
        Z = as_matrix("decode", "Z", Z, columns=self.rank).numpy()
        return apply(self.decoder, Z)

    def predict(self, X: Any) -> Array:
        """Outputs h(g(X)), (N, d_out)."""
        return self.decode(self.transform(X))

    @property
    def mending(self) -> Mending:
        """What is done to inputs before the maps see them: gaps filled, gross outliers limited."""
        return Mending.of("Discovery", self.settings, self.fill)

    @property
    def loss(self) -> str:
        """``"mse"``, or ``"cross_entropy"`` for classes."""
        return str(self.settings.get("loss", "mse"))

    def probabilities(self, X: Any) -> Array:
        """softmax(h(g(X))), (N, K): how likely each class is, for a discovery of classes."""
        if self.loss != "cross_entropy":
            do = "Call predict, or discover with loss='cross_entropy'."
            fail("probabilities", "the discovery must be one of classes", f"loss {self.loss!r}", do)
        return softmax(self.predict(X), axis=1)

    def _inputs(self, X: Any) -> Array:
        X = self.mending("transform", X, self.feature_names)
        return as_matrix("transform", "X", X, columns=len(self.feature_names)).numpy()

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.settings.get("autoencoder") is True:
            return self._of_an_autoencoder
        what = "class" if self.loss == "cross_entropy" else "output"
        more = f"the {len(self.target_names)} {what}{'es' if what == 'class' else 's'}"
        outputs = more if len(self.target_names) > 1 else f"the {what}"
        inputs = f"the {len(self.feature_names)} inputs" if len(self.feature_names) > 1 else "the input"
        variables = "1 variable" if self.rank == 1 else f"{self.rank} variables"
        verb, they = ("depend", "they are") if len(self.target_names) > 1 else ("depends", "it is")
        start = f"{outputs[0].upper()}{outputs[1:]}"
        if self.rank == 0:
            return f"{start} {verb} on no variable of {inputs}: {they} as good as constant (rank 0)."
        if self.verdict == "undetermined":
            return (
                f"Undetermined: how many variables {outputs} {verb} on cannot be said from these data; "
                f"the best guess is {self.rank}."
            )
        return f"{start} {verb} on {inputs} through {variables} ({_HOW[self.verdict]})."

    @property
    def _of_an_autoencoder(self) -> str:
        columns = f"the {len(self.feature_names)} columns" if len(self.feature_names) > 1 else "the column"
        variables = "1 variable describes" if self.rank == 1 else f"{self.rank} variables describe"
        if self.rank == 0:
            return f"{columns[0].upper()}{columns[1:]} do not vary: nothing is needed to describe them (rank 0)."
        if self.verdict == "undetermined":
            return (
                f"Undetermined: how many variables describe {columns} cannot be said from these data; "
                f"the best guess is {self.rank}."
            )
        return f"{variables} {columns} ({_HOW[self.verdict]})."

    def to_dict(self) -> dict[str, Any]:
        """Everything but the maps and the coordinates, as plain data for JSON."""
        found = self.sensitivity
        meaning = [] if found is None else [self._meaning(found, j) for j in range(self.rank)]
        return {
            "rank": self.rank,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "reasons": list(self.reasons),
            "error": self.error if np.isfinite(self.error) else None,
            "profile": None if self.profile is None else self.profile.to_dict(),
            "replicas": [replica.to_dict() for replica in self.replicas],
            "evidence": [item.to_dict() for item in self.evidence],
            "coordinates": meaning,
            "inputs": list(self.feature_names),
            "outputs": list(self.target_names),
            "samples": len(self.coordinates),
            "notes": list(self.notes),
            "settings": dict(self.settings),
        }

    def _meaning(self, found: Sensitivity, j: int) -> list[dict[str, Any]]:
        parts = {"sensitivity": found.value[j], "low": found.low[j], "high": found.high[j]}
        return [
            {"input": self.feature_names[i], **{name: float(values[i]) for name, values in parts.items()}}
            for i in found.strongest(j, 10)
        ]

    def tables(self) -> list[Table]:
        """The rank profile, other ways of counting, and what the coordinates respond to."""
        from isthmus.discovery._tables import tables_of

        return tables_of(self)

    def plot(self, figure: Any = None) -> Any:
        """Draw profile, coordinates and their meaning on a matplotlib figure, which is returned."""
        from isthmus.plotting.discovery import plot

        return plot(self, figure)

    def __repr__(self) -> str:
        error = f", error={self.error:.3g}" if np.isfinite(self.error) else ""
        return f"Discovery(rank={self.rank}, verdict={self.verdict!r}{error})"

    def _repr_html_(self) -> str:
        return _html.result(self)


# ---- How a Discovery is taken apart for a file, and put together again; nothing in the file is believed


_FIX = "The file was not written by isthmus.save, or was altered by hand."

_MEANING = ("value", "low", "high", "agreement")

#: What the configuration of a file holds, and of what type each is.
_CONTENT = {
    "rank": int,
    "verdict": str,
    "reasons": list,
    "profile": (dict, type(None)),
    "replicas": list,
    "evidence": list,
    "error": (float, int, type(None)),
    "feature_names": list,
    "target_names": list,
    "notes": list,
    "settings": dict,
    "shape": dict,
    "samples": int,
}


def discovery_parts(found: Discovery) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration as plain data, and tensors by name."""
    whole = found.to_dict()
    tensors: dict[str, Tensor] = {"coordinates": torch.from_numpy(np.ascontiguousarray(found.coordinates))}
    shape: dict[str, Any] = {}
    encoder: Any = found.encoder
    decoder: Any = found.decoder
    layers = [getattr(encoder, "network", None), decoder]
    if found.rank == 0:
        tensors["constant"] = decoder.value
    elif all(type(net).__name__ in FAMILIES for net in layers):
        tensors |= {"shift": encoder.shift, "scale": encoder.scale}
        for part, net in zip(("encoder", "decoder"), layers):
            shape[part] = {"depth": net.depth, "slope": net.config()["slope"], "bias": net.bias}
            shape[part] |= {"family": type(net).__name__}
            tensors |= {f"{part}.{name}": p.detach() for name, p in net.named_parameters()}
    else:
        got = f"{type(found.encoder).__name__} and {type(found.decoder).__name__}"
        fail("save", "a Discovery must have the maps it was made with", got, "Save those maps by themselves.")
    if found.sensitivity is not None:
        for name in _MEANING:
            tensors[f"sensitivity.{name}"] = torch.from_numpy(np.array(getattr(found.sensitivity, name)))
    if found.fill is not None:
        tensors["fill"] = torch.from_numpy(np.array(found.fill))
    config = {key: whole[key] for key in _CONTENT if key in whole}
    config |= {"feature_names": whole["inputs"], "target_names": whole["outputs"], "shape": shape}
    return config, tensors


def discovery_from_parts(config: Any, tensors: dict[str, Tensor]) -> Discovery:
    """Inverse of :func:`discovery_parts`, for untrusted files."""
    try:
        return _build(config, dict(tensors))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as problem:
        # An IsthmusError is a ValueError, and says more than this would.
        raise FileFormatError(f"load: the parts of a Discovery must fit together. {problem}. {_FIX}") from problem


def _build(config: Any, tensors: dict[str, Tensor]) -> Discovery:
    who = "load"
    if not isinstance(config, dict) or set(config) != set(_CONTENT):
        fail(who, f"a Discovery must have the keys {', '.join(_CONTENT)}", ascii(config)[:200], _FIX)
    for key, kind in _CONTENT.items():
        # True is an int to Python; nothing here is.
        if not isinstance(config[key], kind) or isinstance(config[key], bool):
            fail(who, f"`{key}` must be {kind}", type(config[key]).__name__, _FIX)
    names = [
        checked_names(who, _texts(who, key, config[key]), len(config[key]), "")
        for key in ("feature_names", "target_names")
    ]
    d_in, d_out = len(names[0]), len(names[1])
    rank = check_integer(who, "rank", config["rank"], low=0, high=max(d_in, 1))
    check_choice(who, "verdict", config["verdict"], VERDICTS)
    arrays = {name: T.numpy() for name, T in tensors.items() if T.dtype == torch.float64}
    # Of rank 0 there is no number in them, and so no checksum that would tell how many rows there were.
    coordinates = _shaped(who, arrays, "coordinates", (config["samples"], rank))
    if rank == 0:
        encoder, decoder = (
            ConstantMap(torch.zeros(0, dtype=torch.float64)),
            ConstantMap(torch.from_numpy(_shaped(who, arrays, "constant", (d_out,)))),
        )
    else:
        parts = {part: _network(who, part, config["shape"], tensors) for part in ("encoder", "decoder")}
        ends = [
            (parts["encoder"].dims[0], parts["encoder"].dims[-1]),
            (parts["decoder"].dims[0], parts["decoder"].dims[-1]),
        ]
        if ends != [(d_in, rank), (rank, d_out)]:
            fail(who, f"the maps must lead {d_in} → {rank} → {d_out}", ends, _FIX)
        shift, scale = (torch.from_numpy(_shaped(who, arrays, key, (d_in,))) for key in ("shift", "scale"))
        if not bool((scale > 0).all()):
            fail(who, "`scale` must be positive", "something else", _FIX)
        encoder, decoder = Standardized(parts["encoder"], shift, scale).requires_grad_(False), parts["decoder"]
    Mending.of(who, config["settings"], None)
    meaning = None
    if "sensitivity.value" in arrays:
        shapes = {name: (rank,) if name == "agreement" else (rank, d_in) for name in _MEANING}
        meaning = Sensitivity(*(_shaped(who, arrays, f"sensitivity.{name}", shapes[name]) for name in _MEANING))
    known = {"coordinates", "fill", "shift", "scale", "constant", *(f"sensitivity.{name}" for name in _MEANING)}
    surplus = [name for name in tensors if name not in known and not name.startswith(("encoder.", "decoder."))]
    if surplus:
        fail(who, "a Discovery must have no further tensors", ascii(surplus)[:200], _FIX)
    profile = None if config["profile"] is None else RankProfile.from_dict(config["profile"])
    return Discovery(
        rank=rank,
        verdict=config["verdict"],
        reasons=tuple(_texts(who, "reasons", config["reasons"])),
        profile=profile,
        replicas=tuple(RankProfile.from_dict(one) for one in config["replicas"]),
        evidence=tuple(Evidence.from_dict(one) for one in config["evidence"]),
        sensitivity=meaning,
        encoder=encoder,
        decoder=decoder,
        coordinates=coordinates,
        error=math.nan if config["error"] is None else float(config["error"]),
        feature_names=names[0],
        target_names=names[1],
        notes=tuple(_texts(who, "notes", config["notes"])),
        fill=_shaped(who, arrays, "fill", (d_in,)) if "fill" in tensors else None,
        settings=config["settings"],
    )


def _texts(who: str, name: str, values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        fail(who, f"`{name}` must be a list of texts", ascii(values)[:200], _FIX)
    return values


def _shaped(who: str, arrays: dict[str, Any], name: str, shape: tuple[int | None, ...]) -> Any:
    array = arrays.get(name)
    if array is None:
        fail(who, f"`{name}` must be there, in float64", "nothing of that name", _FIX)
    if array.ndim != len(shape) or any(wanted not in (None, got) for wanted, got in zip(shape, array.shape)):
        fail(who, f"`{name}` must have shape {shape}", array.shape, _FIX)
    if not np.isfinite(array).all():
        fail(who, f"`{name}` must be finite", "NaN or infinite values", _FIX)
    return array


def _network(who: str, part: str, shape: dict[str, Any], tensors: dict[str, Tensor]) -> FullyConnected:
    depth = check_integer(who, f"{part}.depth", shape[part]["depth"], low=1, high=len(tensors))
    Ws = [tensors[f"{part}.weights.{i}"] for i in range(depth)]
    bs = [tensors[f"{part}.biases.{i}"] for i in range(depth)]
    if any(T.dtype != torch.float64 or not bool(T.isfinite().all()) for T in (*Ws, *bs)):
        fail(who, f"`{part}` must be finite, in float64", "something else", _FIX)
    slope, bias = (check_number(who, f"{part}.{key}", shape[part][key]) for key in ("slope", "bias"))
    # Files of earlier versions, which knew one, do not say.
    family = shape[part].get("family", "FullyConnected")
    check_choice(who, f"{part}.family", family, tuple(FAMILIES))
    with torch.random.fork_rng(devices=[]):
        net = FAMILIES[family].from_weights(Ws, bs, slope=slope, bias=bias)
    return net.requires_grad_(False)


register("Discovery", Discovery, discovery_parts, discovery_from_parts)
