"""What :func:`isthmus.symmetry` gives: orbit distances layer by layer, and a state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus._checks import as_tensor, check_integer, check_number, check_seed, fail
from isthmus._cite import cites
from isthmus._errors import DataError, IsthmusError
from isthmus._html import badge, card, heading, number, prose, table
from isthmus.diagnosis._capture import in_float64, run_hooked, survey, untouched, unwrap
from isthmus.diagnosis._diagnose import as_torch
from isthmus.diagnosis._inputs import batches
from isthmus.measures._orbits import OrbitDistance, distance_matrix, distances, summarise
from isthmus.networks import Network

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


STATES = ("invariant", "not invariant", "undetermined", "spurious")


@dataclass(frozen=True)
class LayerOrbits:
    """Orbits as one layer sees them.

    Attributes
    ----------
    name : str
        "inputs", "layer 1" … of this library's networks, or the submodule's name; "outputs".
    within, between : float
        Mean distance within an orbit, and between orbits (the range).
    ratio, error : float
        ``within/between`` and its standard error over samples; NaN where the layer is constant.
    state : {"collapsed", "spread", "unclear", "constant"}
    """

    name: str
    within: float
    between: float
    ratio: float
    error: float
    state: str


@dataclass(frozen=True)
class LevelSets:
    """Whether samples that a network takes for the same have the same targets.

    Of each sample the one with the nearest outputs is its partner, and the closer half of these pairs is kept.

    Attributes
    ----------
    training, held_out : float
        Mean distance of the targets of partners, relative to that of any two samples.
    training_error, held_out_error : float
        Standard errors.
    resolution : float
        The same of their outputs, the larger of both: how nearly partners have the same.
    state : {"true", "spurious", "not fitted", "undetermined"}
        ``"spurious"``: they do on the training samples, and not on those held out.
    """

    training: float
    training_error: float
    held_out: float
    held_out_error: float
    resolution: float
    state: str


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Whether a network collapses the orbits of a group action, and from which layer on.

    Attributes
    ----------
    state : {"invariant", "not invariant", "undetermined", "spurious"}
        Of the outputs. ``"spurious"``: invariant at the samples and not at those held out; without an action, what
        ``levels`` says.
    layer : str or None
        The first layer from which on all are collapsed; None unless invariant.
    reason : str
    layers : tuple of LayerOrbits
        The inputs first, the outputs last, in the order of the forward pass.
    maps : dict of str to array (P, P)
        Distances in each layer between points ordered by orbit: P = ``shown`` samples times (1 + draws).
    shown : int
    tolerance : float
    samples, draws : int
    notes : tuple of str
    held_out : Symmetry or None
        The same at the samples held out.
    full : Symmetry or None
        That of the full symmetry x ~ x' ⇔ y = y', which the bottleneck may have learned beyond the action: its
        ``layer`` is the first from which on samples with the same targets are one point.
    levels : LevelSets or None
    """

    state: str
    layer: str | None
    reason: str
    layers: tuple[LayerOrbits, ...]
    maps: dict[str, np.ndarray]
    shown: int
    tolerance: float
    samples: int
    draws: int
    notes: tuple[str, ...] = ()
    held_out: Symmetry | None = None
    full: Symmetry | None = None
    levels: LevelSets | None = None

    @property
    def learned_by(self) -> float:
        """Share ℓ/L of the depth at which it is learned: 0 the inputs, 1 the outputs; NaN unless there is a layer."""
        names = [layer.name for layer in self.layers]
        return names.index(self.layer) / (len(names) - 1) if self.layer in names else math.nan

    def __getitem__(self, name: str) -> LayerOrbits:
        """The layer of that name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"{name!r} is none of {', '.join(layer.name for layer in self.layers)}")

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.state == "invariant":
            where = "at the outputs" if self.layer == "outputs" else f"from {self.layer} on"
            return f"Invariant {where}: {self.reason}."
        return f"{self.state.capitalize()}: {self.reason}."

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data and arrays."""
        return {
            "format": "isthmus.symmetry",
            "version": 1,
            "sentence": self.sentence,
            "state": self.state,
            "layer": self.layer,
            "reason": self.reason,
            "layers": [asdict(layer) for layer in self.layers],
            "maps": dict(self.maps),
            "shown": self.shown,
            "tolerance": self.tolerance,
            "samples": self.samples,
            "draws": self.draws,
            "notes": list(self.notes),
            "learned_by": self.learned_by,
            "held_out": None if self.held_out is None else self.held_out.to_dict(),
            "full": None if self.full is None else self.full.to_dict(),
            "levels": None if self.levels is None else asdict(self.levels),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row for each layer, as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame([asdict(layer) for layer in self.layers]).set_index("name")

    def plot(self, figure: Figure | None = None) -> Figure:
        """Orbit distances through depth, and distance maps before and after the collapse."""
        from isthmus.plotting.orbits import draw_symmetry

        return draw_symmetry(self.to_dict(), figure)

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        rows = [[prose(one.name), number(one.ratio), number(one.error), prose(one.state)] for one in self.layers]
        columns = ["layer", "orbit distance / range", "± error", "orbits"]
        return card(heading(badge(self.state), prose(self.reason)), table(columns, rows))


# ---- Does a network collapse the orbits of a group action, and from which layer on?


Action = Callable[[Tensor, torch.Generator], Any]

#: Samples that run together; a sample's partners for the range are among them.
CHUNK = 64

#: Samples of the distance maps, and moved copies of each.
SHOWN, COPIES = 6, 8

#: Samples among which those with the nearest targets are looked for.
PAIRED = 4000

#: Standard errors by which a ratio must be away from the tolerance.
SURE = 3.0

#: Distance of targets, relative to their range, below which they are the same for :class:`LevelSets`: along what a
#: network ignores and the task does not, they differ by a large part of it.
SAME = 0.25

#: An action that moves inputs by less than this share of their range shows nothing when outputs stand still.
MOVED = 0.2


@cites("bottleneck2023", "§5, Figure 2c", ids=("Q-spurious",))
@cites("talk2023", "'Symmetry overfitting?', 'Impact of the Output Dim.'", ids=("Q-spurious",))
def symmetry(
    net: nn.Module,
    X: Any,
    action: Any = None,
    *,
    Y: Any = None,
    held_out: Any = None,
    draws: int = 8,
    samples: int = 512,
    tolerance: float = 0.05,
    seed: int = 0,
) -> Symmetry:
    """Per layer mean ‖α(x) − α(g·x)‖ / mean ‖α(x) − α(g·y)‖: 0 where the orbits of a group are collapsed.

    Parameters
    ----------
    net : nn.Module
        Not changed, bit for bit. Networks of this library are seen through their trace (α_ℓ after the activation),
        any other module through hooks on its innermost layers.
    X : array (N, …)
        Samples along the first axis, from different orbits.
    action : callable, matrix, permutation, or list of them
        ``action(X, generator)`` returns every sample moved along its orbit by a g of its own draw, from ``generator``.
        A matrix g (d, d) gives g·x on the last axis, a permutation (d integers) moves its entries. In a list each is
        one fixed g, and a callable takes X alone; each is applied once, whatever ``draws`` is. None, with ``Y``, is
        the full symmetry.
    Y : array (N, d_out), or labels (N,), optional
        Targets. With them also the full symmetry, x ~ x' where y = y': of each sample the one with the nearest target
        is its partner, and the closer half of the pairs is looked at.
    held_out : array (M, …), or pair of arrays (X, Y), optional
        Samples that the network was not trained on: whether what holds on X holds there. With targets, ``levels`` says
        whether samples that the network takes for the same have the same targets, there as on X.
    draws : int, default 8
        Moved copies of each sample.
    samples : int, default 512
        At most this many of the samples, chosen at random.
    tolerance : float, default 0.05
        A layer is "collapsed" when its ratio is below this by 3 standard errors, "spread" when above by as much.
    seed : int

    Returns
    -------
    Symmetry
        "undetermined" when sampling noise does not allow a decision, when the outputs are constant, and when the
        action hardly moves the inputs. "Invariant from a layer on" says that this and all later ones are collapsed.

    Notes
    -----
    Only the draws and the samples given are judged, and only invariance: a layer that turns when its input turns
    counts as spread.

    Examples
    --------
    >>> import torch, isthmus
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> X = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    >>> isthmus.symmetry(net, X, [-torch.eye(2)]).state
    'not invariant'
    """
    who = "symmetry"
    check_integer(who, "draws", draws, low=1)
    check_integer(who, "samples", samples, low=4)
    check_number(who, "tolerance", tolerance, low=0.0, high=1.0, low_open=True)
    check_seed(who, seed)
    inputs = _samples(who, X)
    targets = None if Y is None else _targets(who, "Y", Y, len(inputs))
    if action is None and targets is None:
        fail(who, "`action` must be given, or `Y`", "neither", "Pass the targets for the full symmetry.")
    moves = None if action is None else _moves(who, action, draws)
    plain, notes = unwrap(net, who=who)
    if not _traced(plain, inputs):
        plain = as_torch(plain)
    look = _Look(plain, samples, tolerance, seed, tuple(notes))
    found = look(inputs, targets, moves)
    full = None if moves is None or targets is None else look(inputs, targets, None)
    there, levels = None, None
    if held_out is not None:
        other, answers = _held_out(who, held_out, targets)
        if moves is not None or answers is not None:
            there = look(other, answers, moves)
        if targets is not None and answers is not None:
            levels = _levels(look.answers(inputs, targets), look.answers(other, answers))
    state, reason = found.state, found.reason
    if moves is None:
        if levels is not None and levels.state == "spurious":
            state, reason = "spurious", _told_levels(levels)
    elif there is not None and state == "invariant" and there.state == "not invariant":
        state, reason = "spurious", f"{reason}; at the samples held out {there.reason}"
    return replace(found, state=state, reason=reason, held_out=there, full=full, levels=levels)


#: Outputs and targets, (n, …) each.
Answers = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Look:
    """Measures a relation between samples at every layer: an action, or equal targets where ``moves`` is None."""

    module: nn.Module
    samples: int
    tolerance: float
    seed: int
    notes: tuple[str, ...]

    def __call__(self, X: Tensor, Y: Tensor | None, moves: list[Action] | None) -> Symmetry:
        generator = torch.Generator().manual_seed(self.seed)
        resolution = 0.0
        if moves is None:
            assert Y is not None
            rows = torch.randperm(len(X), generator=generator)[:PAIRED]
            X, Y = X[rows], Y[rows]
            index, partners = _pairs(Y, self.samples)
            resolution = _apart(Y, index, partners).ratio
            stacks = [torch.stack([X[part], X[partners[part]]]) for part in _chunks(index)]
        else:
            index = torch.randperm(len(X), generator=generator)[: self.samples]
            stacks = [_moved("symmetry", X[part], moves, generator) for part in _chunks(index)]
        seen, how = self._observed(stacks)
        eps = torch.finfo(torch.float64 if how == "float64 copy" else torch.float32).eps
        layers = tuple(_judged(name, one.summary(eps), self.tolerance) for name, one in seen.items())
        state, layer, reason = _decide(layers, self.tolerance)
        if state != "undetermined" and not resolution < self.tolerance / 2:
            state, layer = "undetermined", None
            reason = f"no samples have the same targets: the nearest differ by {resolution:.2g} of the range"
        return Symmetry(
            state=state,
            layer=layer,
            reason=reason,
            layers=layers,
            maps={name: one.map for name, one in seen.items()},
            shown=min(SHOWN, len(stacks[0][0])),
            tolerance=self.tolerance,
            samples=len(index),
            draws=len(stacks[0]) - 1,
            notes=(*self.notes, f"run in evaluation mode: {how}"),
        )

    def answers(self, X: Tensor, Y: Tensor) -> Answers:
        """Outputs and targets at the samples, as many as are looked at."""
        index = torch.randperm(len(X), generator=torch.Generator().manual_seed(self.seed))[: self.samples]
        seen, _ = self._observed([torch.stack([X[part], X[part]]) for part in _chunks(index)])
        return torch.cat(seen["outputs"].rows), Y[index]

    def _observed(self, stacks: list[Tensor]) -> tuple[dict[str, _Seen], str]:
        run_in, how = in_float64(self.module)
        try:
            return _observe(run_in, stacks), how
        except IsthmusError:
            if run_in is self.module:
                raise
            # A forward that insists on a dtype runs in no other.
            return _observe(self.module, stacks), "own dtype: it does not run in float64"


def _chunks(index: Tensor) -> tuple[Tensor, ...]:
    return index.tensor_split(math.ceil(len(index) / CHUNK))


# ---- Equal targets, equal outputs: relations between the samples themselves


def _pairs(T: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Samples whose nearest other one in ``T`` is closest, at most half of all, and for every sample that one."""
    D = distance_matrix(T)
    D.fill_diagonal_(math.inf)
    apart, partners = D.min(dim=1)
    # Of many samples with one label each has a partner of its own, not all the same.
    nearest = apart[:, None] >= D
    ties = torch.nonzero(nearest.sum(1) > 1)[:, 0].tolist()
    for i in ties:
        equal = torch.nonzero(nearest[i])[:, 0]
        partners[i] = equal[int(torch.searchsorted(equal, i)) % len(equal)]
    # Two that are each other's nearest are one pair, not two.
    here = torch.arange(len(T))
    once = torch.nonzero((partners[partners] != here) | (partners > here))[:, 0]
    count = min(most, len(once) if len(ties) == len(T) else max(4, (len(once) + 1) // 2))
    index = once[apart[once].argsort(stable=True)[:count]]
    # The range of a layer is that of neighbours in this order.
    return index[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))], partners


def _apart(T: Tensor, index: Tensor, partners: Tensor) -> OrbitDistance:
    """Distance in ``T`` between partners, relative to the mean over all pairs."""
    A = T[index]
    within = (A - T[partners[index]]).norm(dim=1)
    between = distance_matrix(A).sum(1) / (len(A) - 1)
    return summarise(within, between, float(A.square().sum(1).mean().sqrt()))


def _levels(training: Answers, held_out: Answers) -> LevelSets:
    """Whether equal outputs are equal targets, on either set."""
    numbers, floors = [], []
    for F, Y in (training, held_out):
        index, partners = _pairs(F, len(F))
        numbers.append(_judged("", _apart(Y, index, partners), SAME))
        floors.append(_apart(F, index, partners).ratio)
    first, second = numbers
    resolution = max(floors)
    state = "undetermined"
    if resolution < SAME / 2:
        if first.state == "spread":
            state = "not fitted"
        elif first.state == "collapsed" and second.state in ("collapsed", "spread"):
            state = "true" if second.state == "collapsed" else "spurious"
    return LevelSets(first.ratio, first.error, second.ratio, second.error, resolution, state)


def _told_levels(levels: LevelSets) -> str:
    return (
        f"where outputs agree the targets differ by {levels.held_out:.2g} ± {levels.held_out_error:.1g} of their range "
        f"at the samples held out, by {levels.training:.2g} ± {levels.training_error:.1g} at those trained on"
    )


def _targets(who: str, name: str, Y: Any, rows: int) -> Tensor:
    """Targets as rows of numbers of one scale; classes as rows of 0 and 1."""
    values = Y.detach().cpu() if isinstance(Y, Tensor) else torch.as_tensor(np.array(Y))
    if values.ndim == 0 or len(values) != rows:
        got = f"shape {tuple(values.shape)} for {rows} samples"
        fail(who, f"`{name}` must have one row for each sample", got, "Align them.", error=DataError)
    if values.ndim == 1 and not values.is_floating_point():
        return torch.nn.functional.one_hot(values.unique(return_inverse=True)[1]).double()
    return as_tensor(who, name, values).double().reshape(rows, -1)


def _held_out(who: str, held_out: Any, targets: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if not isinstance(held_out, tuple):
        return _samples(who, held_out), None
    if len(held_out) != 2:
        fail(who, "`held_out` must be an array or a pair (X, Y)", f"{len(held_out)} entries", "Pass both.")
    inputs = _samples(who, held_out[0])
    return inputs, None if targets is None else _targets(who, "held_out", held_out[1], len(inputs))


def _samples(who: str, X: Any) -> Tensor:
    if isinstance(X, (tuple, dict)):
        fail(who, "`X` must be one array", type(X).__name__, "Wrap the module so that it takes one argument.")
    # Token indices must stay integers.
    tensor = X.detach() if isinstance(X, Tensor) else torch.as_tensor(np.array(X))
    if tensor.ndim == 0 or len(tensor) < 4:
        fail(who, "`X` must have at least 4 samples", f"shape {tuple(tensor.shape)}", "Pass more.", error=DataError)
    as_tensor(who, "X", tensor)
    return tensor.cpu()


def _moves(who: str, action: Any, draws: int) -> list[Action]:
    """One function of (X, generator) for each moved copy."""
    if callable(action) and not isinstance(action, (Tensor, np.ndarray)):
        return [action] * draws
    if isinstance(action, Sequence) and len(action) and not all(isinstance(g, (int, np.integer)) for g in action):
        return [_fixed(who, g) for g in action]
    return [_fixed(who, action)]


def _fixed(who: str, g: Any) -> Action:
    if callable(g) and not isinstance(g, (Tensor, np.ndarray)):
        return lambda X, _: g(X)
    element = as_tensor(who, "action", g)
    whole = element.round().long()
    if element.ndim == 1 and len(element) and torch.equal(whole.sort().values, torch.arange(len(whole))):
        return lambda X, _: X[..., _fits(who, X, whole)]
    if element.ndim == 2 and element.shape[0] == element.shape[1]:
        return lambda X, _: (X.double() @ _fits(who, X, element).mT).to(X.dtype)
    do = "Pass a function (X, generator) → X, or a list of these."
    return fail(
        who, "`action` must be a function, a permutation or a square matrix", f"shape {tuple(element.shape)}", do
    )


def _fits(who: str, X: Tensor, g: Tensor) -> Tensor:
    if X.ndim < 2 or X.shape[-1] != len(g):
        fail(who, f"samples must have {len(g)} entries on their last axis", f"shape {tuple(X.shape)}", "Reshape them.")
    return g


def _moved(who: str, X: Tensor, moves: list[Action], generator: torch.Generator) -> Tensor:
    """X and its moved copies, (1 + draws, n, …)."""
    copies = [X]
    for move in moves:
        value = move(X.clone(), generator)
        value = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
        if value.shape != X.shape:
            got = f"{tuple(value.shape)} from {tuple(X.shape)}"
            fail(who, "`action` must return as many samples of the same shape", got, "Move each sample on its own.")
        copies.append(value.to(X.dtype))
    return torch.stack(copies)


class _Seen:
    """What one layer gave so far: per sample numbers only."""

    def __init__(self) -> None:
        self._within: list[Tensor] = []
        self._between: list[Tensor] = []
        self._squares = 0.0
        self.map = np.zeros((0, 0))
        #: Those of the samples as they are.
        self.rows: list[Tensor] = []

    def take(self, rows: Tensor, stack: Tensor, *, keep: bool = False) -> None:
        P = rows.detach().to("cpu", torch.float64).reshape(*stack.shape[:2], -1)
        within, between = distances(P[0], P[1:])
        if keep:
            self.rows.append(P[0].clone())
        if not self._within:
            few = P[: 1 + COPIES, :SHOWN].transpose(0, 1).flatten(0, 1)
            self.map = distance_matrix(few).numpy()
        self._within.append(within)
        self._between.append(between)
        self._squares += float(P.square().sum()) / len(P)

    def summary(self, eps: float) -> OrbitDistance:
        within, between = torch.cat(self._within), torch.cat(self._between)
        return summarise(within, between, (self._squares / len(within)) ** 0.5, eps)


def _observe(module: nn.Module, stacks: list[Tensor]) -> dict[str, _Seen]:
    """Inputs, layers in the order of the forward pass, outputs."""
    seen: dict[str, _Seen] = {"inputs": _Seen()}
    look = _by_trace if _traced(module, stacks[0][0]) else _by_hooks
    with torch.no_grad(), untouched(module):
        for stack in stacks:
            seen["inputs"].take(stack.double(), stack)
            look(module, stack, seen)
    seen["outputs"] = seen.pop("outputs")
    return seen


def _traced(module: nn.Module, X: Tensor) -> bool:
    """Whether the network itself gives its representations."""
    return isinstance(module, Network) and module.representations(X[:1]) is not None


def _by_trace(module: nn.Module, stack: Tensor, seen: dict[str, _Seen]) -> None:
    assert isinstance(module, Network)
    rows = stack.flatten(0, 1)
    for ell, A in (module.representations(rows) or {}).items():
        seen.setdefault(f"layer {ell}", _Seen()).take(A, stack)
    seen.setdefault("outputs", _Seen()).take(module.trace(rows).outputs, stack, keep=True)


def _by_hooks(module: nn.Module, stack: Tensor, seen: dict[str, _Seen]) -> None:
    calls = list(batches("symmetry", stack.flatten(0, 1), module, batch_size=stack.shape[0] * stack.shape[1]))
    inner = [name for name, part in module.named_modules() if name and not any(True for _ in part.children())]
    places = survey(module, calls[0], [*inner, ""])
    if places[""].batch_axis is None:
        fail("symmetry", "the outputs must have an axis of samples", str(places[""].shape), "Return one row a sample.")
    rows: dict[str, Tensor] = {}

    def visit(name: str, output: Tensor, number: int) -> None:
        place = places[name]
        # Of a layer that is called several times, the last call. What an in-place layer overwrites is copied.
        if place.batch_axis is not None and number == place.calls - 1:
            rows[name] = place.by_sample(output).detach().clone()
            if name:
                seen.setdefault(name, _Seen()).take(rows.pop(name), stack)

    run_hooked(module, calls, list(places), visit, who="symmetry")
    seen.setdefault("outputs", _Seen()).take(rows[""], stack, keep=True)


def _judged(name: str, found: OrbitDistance, tolerance: float) -> LayerOrbits:
    if math.isnan(found.ratio):
        state = "constant"
    elif found.ratio + SURE * found.error < tolerance:
        state = "collapsed"
    else:
        state = "spread" if found.ratio - SURE * found.error > tolerance else "unclear"
    return LayerOrbits(name, found.within, found.between, found.ratio, found.error, state)


def _decide(layers: tuple[LayerOrbits, ...], tolerance: float) -> tuple[str, str | None, str]:
    inputs, outputs = layers[0], layers[-1]
    evidence = f"orbit distance {outputs.ratio:.3g} ± {outputs.error:.1g} of the range at the outputs"
    if inputs.state == "constant":
        return "undetermined", None, "the inputs are all the same"
    if outputs.state == "constant":
        return "undetermined", None, "the outputs do not vary over the samples"
    if outputs.state == "spread":
        return "not invariant", None, evidence
    if inputs.ratio < MOVED:
        return "undetermined", None, f"the action moves the inputs by {inputs.ratio:.2g} of their range only"
    if outputs.state == "unclear":
        return "undetermined", None, f"{evidence}, too near {tolerance:g} for {SURE:g} standard errors"
    first = outputs
    for layer in reversed(layers[1:-1]):
        if layer.state in ("spread", "unclear"):
            break
        # One that is constant collapses everything and shows nothing.
        first = layer if layer.state == "collapsed" else first
    return "invariant", first.name, f"{evidence}, {first.ratio:.3g} ± {first.error:.1g} at {first.name}"
