"""The Discovery: the answer, its evidence, and the maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from torch import nn

from isthmus import _html
from isthmus._checks import as_matrix, fail
from isthmus.diagnosis._ranks import Evidence
from isthmus.discovery._columns import with_gaps
from isthmus.discovery._maps import Sensitivity, apply
from isthmus.discovery._profile import RankProfile

Array = NDArray[np.float64]


VERDICTS = ("determined", "undetermined", "trivial", "given")


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
        if self.fill is not None:
            X = with_gaps("transform", X)
            if X.ndim == 2 and X.shape[1] == len(self.fill):
                X = np.where(np.isnan(X), self.fill, X)
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
        how = {"determined": "determined", "trivial": "trivial, by theorem", "given": "as given"}[self.verdict]
        return f"{start} {verb} on {inputs} through {variables} ({how})."

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
        how = {"determined": "determined", "trivial": "trivial, by theorem", "given": "as given"}[self.verdict]
        return f"{variables} {columns} ({how})."

    def to_dict(self) -> dict[str, Any]:
        """Everything but the maps and the coordinates, as plain data for JSON."""
        found = self.sensitivity
        meaning = []
        for j in range(self.rank if found is not None else 0):
            assert found is not None
            meaning.append(
                [
                    {
                        "input": self.feature_names[i],
                        "sensitivity": float(found.value[j, i]),
                        "low": float(found.low[j, i]),
                        "high": float(found.high[j, i]),
                    }
                    for i in found.strongest(j, 10)
                ]
            )
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

    def plot(self, figure: Any = None) -> Any:
        """Draw profile, coordinates and their meaning on a matplotlib figure, which is returned."""
        from isthmus.plotting.discovery import draw_discovery

        return draw_discovery(self, figure)

    def __repr__(self) -> str:
        error = f", error={self.error:.3g}" if np.isfinite(self.error) else ""
        return f"Discovery(rank={self.rank}, verdict={self.verdict!r}{error})"

    def _repr_html_(self) -> str:
        profile = "" if self.profile is None else self.profile.html_table(self.rank)
        answer = _html.heading(_html.badge(self.verdict), f"<b>{_html.told(self.sentence)}</b>")
        return _html.card(answer, _html.items(self.reasons), profile)
