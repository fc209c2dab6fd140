"""Where the isthmus of a network is, how narrow, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus._cite import cites
from isthmus._codec import Plain
from isthmus._result import Badge, Table
from isthmus.measures import BottleneckRank, Reading, participation_ratio, read_spectrum, stable_rank, two_nn
from isthmus.measures._bottleneck_rank import curved_only, narrowest
from isthmus.measures._dimension import FEWEST_POINTS


@dataclass(frozen=True)
class Isthmus(Plain):
    """The rank of a network and where it is attained, or why there is none.

    Attributes
    ----------
    verdict : {"determined", "none", "undetermined"}
        ``"none"``: no layer through which everything passes is narrower than inputs and outputs force.
    rank : int or None
        Given only when determined.
    layers : tuple of str
        Layers that have this rank, in the order of the computation: the isthmus begins at the first, ends at the last.
    kind : {"full", "half", None}
        ``"full"``: narrower than inputs and outputs. ``"half"``: as wide as the outputs, which force it.
    reasons : tuple of str
        What speaks for the verdict; doubts first.
    per : {"sample", "position"}
        What the rank is counted at. ``"position"``: at each token, where inputs are tokens.
    """

    later: ClassVar = ("per",)

    verdict: str
    rank: int | None
    layers: tuple[str, ...]
    kind: str | None
    reasons: tuple[str, ...]
    per: str = "sample"


@dataclass(frozen=True, eq=False)
class Gate:
    """A layer through which everything passes.

    Attributes
    ----------
    name : str
    spectrum : Tensor (r,)
        Of the whole centred representation, all positions of a sample together.
    floor : float
        What rounding leaves of it.
    weights : Reading or None
        Of the layer's weight matrix, where it has exactly one.
    points : Tensor (P, columns)
        Some rows of the representation.
    by_position : bool
        Whether positions are its samples.
    """

    name: str
    spectrum: Tensor
    floor: float
    weights: Reading | None
    points: Tensor
    by_position: bool = False


@cites("talk2023", "Impact of the Output Dim.", ids=("Q-full-half",))
def full_or_half(rank: int, d_in: int, d_out: int) -> str | None:
    """``"full"`` if rank < min(d_in, d_out), ``"half"`` if rank = d_out < d_in, None if nothing was narrowed.

    In a half bottleneck the outputs force the rank: the network learns f(x) = f(y) as its symmetry, which may be
    coarser than that of the task (talk2023).
    """
    if rank < min(d_in, d_out):
        return "full"
    return "half" if rank == d_out < d_in else None


def isthmus_of_chain(found: BottleneckRank, names: list[str], d_in: int, d_out: int) -> Isthmus:
    """From the rank of a fully connected network; ``names`` of its layers from input to output."""
    layers = tuple(names[ell - 1] for ell in found["representations"].layers) if found.rank is not None else ()
    kind = None if found.rank is None else full_or_half(found.rank, d_in, d_out)
    if found.verdict == "none" and d_out < d_in:
        # Nothing inside is narrower than the outputs, which are narrower than the inputs.
        kind = "half"
    return Isthmus(found.verdict, found.rank, layers, kind, found.reasons)


def isthmus_of_gates(
    gates: list[Gate],
    *,
    d_in: int,
    d_out: int,
    samples: int,
    data_rank: int,
    jacobian: Reading | None,
    eps: float,
    most: int = 10**9,
) -> Isthmus:
    """From the layers that separate inputs from outputs, in any architecture.

    The whole representation must show the rank, and one other kind of evidence must agree: the width of the layer
    itself, its weights (k directions, or k + 1 with one that is constant over the data), or the Jacobian of the network
    (rank k). A Jacobian of higher rank refutes it, one of lower rank does not (a circle: 1 against 2).

    Parameters
    ----------
    gates : list of Gate
        In the order of the computation, the output last; at least one more.
    d_in, d_out : int
        Numbers in the inputs and outputs for one sample.
    samples : int
        N: centred representations cannot show more than N − 1 dimensions; positions, where these are counted.
    data_rank : int
        Dimension of the span of the inputs: what is as low already was not narrowed by the network.
    jacobian : Reading or None
        Of the Jacobian of the whole network.
    eps : float
        Relative rounding in the spectra.
    most : int
        What layers in between have at most whatever they compute.
    """
    # What the data do not have, no layer can lose.
    limit = min(d_in, d_out, samples - 1, data_rank, most)
    spectra, floors = [gate.spectrum for gate in gates], [gate.floor for gate in gates]
    forced = limit == min(data_rank, samples - 1, most)
    found = narrowest("representations", spectra, limit, eps, floors, forced_everywhere=forced)
    where = tuple(gates[ell - 1].name or "(output)" for ell in found.layers)
    said = found.explanation + (f" ({', '.join(where)})" if where else "")
    if found.status == "unclear":
        return Isthmus("undetermined", None, (), None, ("representations show no clear drop", said))
    if found.rank is None:
        half = "half" if d_out < min(d_in, data_rank) else None
        why = "no layer is narrower than inputs and outputs force"
        if gates[-1].by_position:
            why = f"every layer has the {limit} dimensions at each position that embeddings, norms and outputs allow"
        elif data_rank < min(d_in, d_out):
            why += f"; the inputs have only {data_rank} dimensions themselves"
        return Isthmus("none", None, (), half, (why, said))
    rank = found.rank
    if samples - 1 <= 2 * rank:
        few = f"{samples} samples are too few to tell a rank of {rank}: supply more than {2 * rank + 1}"
        return Isthmus("undetermined", None, (), None, (few, said))
    attained = [gates[ell - 1] for ell in found.layers]
    local = jacobian if jacobian is not None and jacobian.status in ("clear", "full", "zero") else None
    if local is not None and local.count > rank:
        more = f"the Jacobian has rank {local.count} > {rank}: small directions still matter"
        return Isthmus("undetermined", None, (), None, (more, said))
    if local is not None and local.count < rank:
        doubt = curved_only(attained[len(attained) // 2].points, rank, local.count)
        if doubt:
            return Isthmus("undetermined", None, (), None, (doubt, said))
    support = _support(attained, rank, local)
    if not support:
        alone = "only the representations show it: neither weights nor the Jacobian agree"
        return Isthmus("undetermined", None, (), None, (alone, said))
    reasons = [said, *support]
    if local is not None and local.count < rank:
        reasons.append(f"the Jacobian has rank {local.count} < {rank}: the surface closes up, as a circle does")
    per = "position" if any(gate.by_position for gate in attained) else "sample"
    return Isthmus("determined", rank, where, full_or_half(rank, d_in, d_out), tuple(reasons), per)


def _support(attained: list[Gate], rank: int, local: Reading | None) -> list[str]:
    support = []
    if any(len(gate.spectrum) == rank for gate in attained):
        support.append(f"a layer is {rank} wide")
    drops = [gate.weights for gate in attained if gate.weights is not None and gate.weights.status == "clear"]
    if any(drop.count == rank for drop in drops):
        support.append(f"weights: {rank} singular values stand out")
    elif any(drop.count == rank + 1 for drop in drops):
        support.append(f"weights: {rank + 1} singular values stand out; one may be constant over the data")
    if local is not None and local.count == rank:
        support.append(f"jacobian: rank {rank}")
    return support


def rounding_floor(size: float, eps: float) -> float:
    """What rounding leaves of a representation after centring, from its size ‖A‖_F/√N before it."""
    return 4.0 * eps * size


# ---- The agreement panel: other ways of counting dimensions, what each measures and why it may differ


#: Share of the trace that linear methods are asked to explain.
EXPLAINED = 0.99


#: The answer itself among the other ways of counting.
OURS = "bottleneck rank"
#: A measure that need not be whole agrees within this.
SOFT = 0.5
_CLOUD = ("noise thickens the cloud of points", "the points fill a curved surface, or few of its dimensions")
_INPUTS = ("these are linear directions of x, and the coordinates are curved", "weak directions are left out")
_OUTPUTS = ("these are linear directions of y, and the outputs are curved", "weak directions are left out")
_NEAR = ("", "near one x fewer coordinates move: others close up, or are cut off by a ReLU there")
#: Why a way of counting may say more than the rank, and less.
DEPARTURES = {
    "coordinates in use": ("a wide network of this depth often keeps one that moves the outputs next to nothing", ""),
    "centred representations": ("a wide network of this depth often keeps one that it does not need", ""),
    "weights": ("one direction may be the same for all samples, in place of a bias", ""),
    "Jacobian": _NEAR,
    "Jacobian rank": _NEAR,
    "TwoNN": _CLOUD,
    "TwoNN on the coordinates": _CLOUD,
    "TwoNN on Y": _CLOUD,
    "‖θ‖²/L": ("an upper estimate, which nears the rank with depth", ""),
    "participation ratio": ("many weak directions add up", "directions carry the variance unequally"),
    "stable rank": ("the weights carry directions that the samples do not use", "singular values are unequal"),
    "AGOP": _INPUTS,
    "AGOP gap": _INPUTS,
    "PCA of Y": _OUTPUTS,
    "PCA of the outputs": _OUTPUTS,
}
#: These explain one dimension more or less, and no further ones.
NEARLY = ("coordinates in use", "centred representations", "weights")


@dataclass(frozen=True)
class Evidence(Plain):
    """One way of counting.

    Attributes
    ----------
    name : str
    value : float
        What was measured; NaN if nothing could be.
    rank : int or None
        The count it amounts to, where it amounts to one.
    meaning : str
        What it counts, and when it differs from the rank.
    """

    name: str
    value: float
    rank: int | None
    meaning: str

    def agrees(self, rank: int) -> bool:
        """Whether it says the same as an answer of ``rank``; what is soft does within half a dimension."""
        return self.rank == rank if self.rank is not None else abs(self.value - rank) < SOFT

    def beside(self, rank: int) -> tuple[str, str]:
        """What it says of an answer of ``rank``.

        Returns
        -------
        str, str
            ``"agrees"``; ``"counts something else"``, and why that is more or less here; ``"unexplained"``, where
            nothing is known that would make this way of counting differ so; or twice nothing, where nothing was
            measured.
        """
        if not math.isfinite(self.value):
            return "", ""
        if self.agrees(rank):
            return "agrees", ""
        above, below = DEPARTURES.get(self.name, ("", ""))
        why = above if self.value > rank else below
        far = self.name in NEARLY and abs(self.value - rank) > 1
        return ("unexplained", "") if far or not why else ("counts something else", why)


def evidence_table(key: str, panel: Sequence[Evidence], rank: int | None) -> Table:
    """What each way of counting says, and what that means for an answer of ``rank``."""
    rows = []
    for one in panel:
        word, why = ("", "") if rank is None or one.name == OURS else one.beside(rank)
        judged = f"{word}: {why}" if why else Badge(word) if word else ""
        counts, _, _ = one.meaning.partition(";")
        rows.append([one.name, one.value, judged, counts])
    heads = ["way of counting", "says", "for this answer", "what it counts"]
    return Table(key, "What each way of counting says", heads, rows, brief=(0, 1, 2))


def explaining(values: NDArray[np.float64] | Tensor, share: float = EXPLAINED) -> int:
    """How many of the decreasing ``values`` make up this share of their sum; 0 for zeros."""
    array = np.asarray(values, dtype=np.float64)
    total = array.sum()
    return int(np.searchsorted(np.cumsum(array), share * total) + 1) if total > 0 else 0


def rounded(dimension: float) -> int | None:
    """The nearest count, None for NaN."""
    return round(dimension) if math.isfinite(dimension) else None


def agreement_panel(
    *,
    rank: int | None,
    narrowest: str,
    points: Tensor | None,
    spectrum: Tensor | None,
    weights: list[Tensor],
    jacobian: Reading | None,
    agop: Tensor | None,
    outputs: Tensor | None,
) -> tuple[Evidence, ...]:
    """The panel.

    Parameters
    ----------
    rank : int or None
        Ours.
    narrowest : str
        Name of the layer that TwoNN and the participation ratio look at.
    points, spectrum : Tensor, optional
        Its representation: some samples (N, n), and singular values over all samples.
    weights : list of Tensor
        Singular values of every weight matrix.
    jacobian : Reading or None
        Of the whole network, at the median sample.
    agop : Tensor (d_in, d_in), optional
    outputs : Tensor, optional
        Singular values of the centred outputs.
    """
    at = f"at {narrowest!r}" if narrowest else "at the outputs"
    panel = [
        Evidence(
            "bottleneck rank",
            math.nan if rank is None else float(rank),
            rank,
            "ours: dimensions of the narrowest representation that everything passes through",
        ),
        Evidence(
            "Jacobian rank",
            math.nan if jacobian is None else float(jacobian.count),
            jacobian.count if jacobian is not None and jacobian.status != "unclear" else None,
            "directions that matter near one x; fewer than the rank where the surface closes up (a circle: 1, not 2)",
        ),
        _neighbours(points, at),
        Evidence(
            "participation ratio",
            math.nan if spectrum is None else float(participation_ratio(spectrum)),
            None,
            f"(Σs²)²/Σs⁴ {at}: how many directions carry the variance; below the rank when they carry it unequally",
        ),
        Evidence(
            "stable rank",
            min((float(stable_rank(s)) for s in weights), default=math.nan),
            None,
            "‖W‖²_F/‖W‖²_op, smallest over the layers: a soft count of directions, below the rank unless all are equal",
        ),
        _gradients(agop),
    ]
    linear = None if outputs is None else explaining(outputs.square())
    panel.append(
        Evidence(
            "PCA of the outputs",
            math.nan if linear is None else float(linear),
            linear,
            f"linear directions of the outputs with {EXPLAINED:.0%} of the variance; more than the rank if h is curved",
        )
    )
    return tuple(panel)


def _neighbours(points: Tensor | None, at: str) -> Evidence:
    dimension = math.nan
    if points is not None and len(points) >= FEWEST_POINTS:
        dimension = two_nn(points).dimension
    meaning = f"dimension of the cloud {at}; fewer than the rank if it is a curved surface, more if it is noisy"
    return Evidence("TwoNN", dimension, rounded(dimension), meaning)


def _gradients(agop: Tensor | None) -> Evidence:
    meaning = "linear directions of x that gradients live in, up to a drop; more than the rank if g is curved"
    if agop is None:
        return Evidence("AGOP gap", math.nan, None, meaning)
    values = torch.linalg.eigvalsh(agop).flip(0).clamp_min(0)
    reading = read_spectrum(values.sqrt(), eps=1e-8)
    return Evidence("AGOP gap", float(reading.count), reading.count if reading.status != "unclear" else None, meaning)
