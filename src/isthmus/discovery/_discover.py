"""discover(X, Y): the rank of a task, its coordinates, encoder and decoder."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import time as clock
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from isthmus._checks import check_integer, fail
from isthmus._cite import cites
from isthmus._errors import ConvergenceWarning, DataError, IsthmusError
from isthmus._progress import Progress, ProgressFactory, progress, silent
from isthmus._settings import MAX_RANK, Settings
from isthmus._tablefile import _counted
from isthmus._tablevalues import _replaced
from isthmus.diagnosis import diagnose
from isthmus.diagnosis._ranks import Evidence
from isthmus.discovery._evidence import explaining_gradients, gather
from isthmus.discovery._final import constant, finish_fit
from isthmus.discovery._maps import apply
from isthmus.discovery._result import Discovery, checked_names, with_gaps
from isthmus.discovery._search import Found, search, total_steps
from isthmus.discovery._task import column_names, make_task, notes_on, numbers, one_hot
from isthmus.discovery._walk import WIDE, Data, Effort, Stages, fingerprint, polish, wide_level
from isthmus.objective import constant_cost
from isthmus.training import train
from isthmus.training._plans import carrying_norm

_Discover = TypeVar("_Discover", bound=Callable[..., object])


def _with_settings(function: _Discover) -> _Discover:
    """Show every setting in the signature, where ``**settings`` stands in the code."""
    given = inspect.signature(function)
    own = [one for one in given.parameters.values() if one.kind is not one.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(f.name, kind, default=f.default, annotation=f.type) for f in dataclasses.fields(Settings)]
    setattr(function, "__signature__", given.replace(parameters=[*own, *more]))  # noqa: B010
    return function


@cites("bottleneck2023", "§4", ids=("Q-bnrank",))
@cites("rank2023", "§4")
@_with_settings
def discover(
    X: Any,
    Y: Any,
    *,
    groups: Any = None,
    time: Any = None,
    cv: Any = None,
    network: nn.Module | None = None,
    feature_names: Any = None,
    target_names: Any = None,
    checkpoint: str | Path | None = None,
    show_progress: bool | ProgressFactory = False,
    **settings: Any,
) -> Discovery:
    """How many variables y = f(x) really depends on, which they are, and the maps in and out.

    A wide regularised network is trained, then narrowed coordinate by coordinate; the held-out error as a function of
    their number, the *rank profile*, gives the rank. What could make the answer an accident of one training is tried:
    another seed, another division of the data, another depth, other starts at the rank just below.

    Parameters
    ----------
    X : array (N, d_in)
        NumPy, pandas, torch or nested lists. Units do not matter; neither does the order of the rows.
    Y : array (N, d_out) or (N,)
        Several outputs. A single one has rank ≤ 1 by theorem: the verdict is then ``"trivial"``. With
        ``loss="cross_entropy"`` class labels (N,), numbers or texts; outputs are then K logits, of which one is free,
        so that the rank is at most K − 1. The same array as X asks for an autoencoder.
    groups : array (N,), optional
        Rows of one group (a trajectory, a patient) are never on both sides of a division.
    time : array (N,), optional
        Numbers or dates (datetime64, pandas', of any time zone, texts of one reading) that order the rows in time: the
        last are held out.
    rank : "auto" or int
        A number fixes the rank; the verdict is then ``"given"``.
    max_rank : int, optional
        The largest rank to look for; by default what the data allow, at most 15.
    depth, width : int
        Layers of the network, an even number, and neurons in each.
    ridge : "auto" or float
        λ: a coordinate must explain at least about this share of the outputs' variance (the labels' entropy). "auto" is
        0.01, with a closer look at 0.001 where the profile is not clear; of classes the largest of 0.1, 0.03 and 0.01
        at which a wide network predicts held-out rows about as well as at any.
    cv : None, int, splitter or pairs of rows
        How rows are held out: a quarter by default, one K-th for an integer.
    replicas : int
        Further walks from other seeds, divisions and depths; the verdict needs them to agree.
    steps : int
        Quasi-Newton steps after each narrowing, and the measure of all others; training goes on to 2.5 times as many
        where the loss still falls.
    learning_rate, init_scale : float
        Of the few Adam steps before, and of the initial weights. The answer does not depend on them.
    max_samples : int
        Training rows beyond this number are used only for the last fit.
    missing : {"error", "median"}
        What to do with NaN in X; the medians are kept for new rows, and a note says how many were filled in.
    loss : {"mse", "cross_entropy"}
        Squared error, or log loss of class labels. Held-out errors are relative to the variance of the outputs, or to
        the entropy of the labels, and so is λ. Each class is divided for itself. The probabilities of the answer are
        calibrated: logits are divided by a temperature fitted on the rows held out.
    units : {"own", "common"}
        Columns divided by their own standard deviation, or all by one number: for columns of one unit (pixels, a
        spectrum), where a column that hardly varies should hardly count.
    input_noise : float
        Noise that is added to the inputs in the last fit, to up to four copies of each row, while outputs are left
        alone: the maps learn to undo it, the rank is not touched. In units of what one coordinate carries: its
        standard deviation in every direction is this many times (variance/rank)^½. For autoencoders.
    network : nn.Module, optional
        A second network to ask, such as a :class:`~isthmus.LeakyResNet`: a copy is trained on the same rows, and what
        its isthmus (and Hamiltonian) says stands among the evidence. It does not change the rank found.
    seed : int
    feature_names, target_names : sequence of str, optional
        By default those of a DataFrame, or x0, x1, … and y0, y1, …
    checkpoint : path, optional
        Folder for finished parts: a killed discovery started again goes on from there to the same answer.
    show_progress : bool

    Returns
    -------
    Discovery

    Examples
    --------
    >>> import isthmus
    >>> task = isthmus.problems.linear(d_in=6, d_out=6, rank=2, samples=200)
    >>> found = isthmus.discover(task.X, task.Y, depth=4, replicas=0)  # a quick look
    >>> found.rank, found.verdict
    (2, 'determined')
    """
    who = "discover"
    began = clock.monotonic()
    chosen = Settings.of(settings)
    effort = _effort(chosen)
    fill, lost = None, None
    frame_names = column_names(X), column_names(Y)
    if chosen.missing == "median":
        X, fill, lost = _filled(who, X)
    inputs = numbers(who, "X", X, missing=chosen.missing)
    if chosen.loss == "cross_entropy":
        targets, classes = one_hot(who, Y)
        frame_names = frame_names[0], classes.tolist()
    else:
        targets = numbers(who, "Y", Y)
    if len(inputs) != len(targets):
        got = f"{len(inputs)} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Align them.", error=DataError)
    names = (
        checked_names(who, frame_names[0] if feature_names is None else feature_names, inputs.shape[1], "x"),
        checked_names(who, frame_names[1] if target_names is None else target_names, targets.shape[1], "y"),
    )
    rows = {"groups": groups, "time": time, "cv": cv}
    about = {"loss": chosen.loss, "units": chosen.units, "names": names}
    task = make_task(who, inputs, targets, **rows, seed=chosen.seed, max_samples=chosen.max_samples, **about)
    if chosen.loss == "cross_entropy":
        task = dataclasses.replace(task, notes=(*task.notes, *notes_on(targets, names[1])))
    if lost is not None and lost.any():
        which = [names[0][j] for j in np.flatnonzero(lost.any(axis=0)).tolist()]
        filled = _replaced(_counted(int(lost.sum()), "missing value"), "the median", which)
        task = dataclasses.replace(task, notes=(filled, *task.notes))
    fixed = None if chosen.rank == "auto" else check_integer(who, "rank", chosen.rank, low=1, high=max(task.bound, 1))
    highest = max(min(task.bound, MAX_RANK if chosen.max_rank is None else chosen.max_rank), fixed or 0)
    if network is not None:
        check_witness(network, inputs.shape[1], targets.shape[1])
    shared = ("replicas", "max_samples", "seed", "missing", "loss", "units", "input_noise")
    told_settings = {
        "network": None if network is None else type(network).__name__,
        "rank": "auto" if fixed is None else fixed,
        "max_rank": highest,
        **{name: getattr(chosen, name) for name in shared},
        "autoencoder": task.autoencoder,
        "held_out": task.splits.describe(),
        **dataclasses.asdict(effort),
    }
    if task.bound == 0:
        return constant(inputs, targets, names, task.notes, told_settings, fill, task.why)
    data, scaling_in, scaling_out = task.data(0)
    # One more division than replicas: where two walks disagree there is a third.
    held = {f"held{index}": task.splits(index)[1] for index in range(chosen.replicas + 2)}
    identity = "" if checkpoint is None else fingerprint(told_settings, {"X": task.X, "Y": task.Y, **held})
    stages = Stages(None if checkpoint is None else Path(checkpoint), identity)
    show = show_progress if callable(show_progress) else (progress if show_progress else silent)
    aside: tuple[str, ...] = ()
    with show(total_steps(effort, highest, chosen.replicas), "discover") as bar:
        if chosen.loss == "cross_entropy" and chosen.ridge == "auto":
            strength, why = choose_strength(data, effort, seed=chosen.seed, stages=stages, bar=bar)
            effort, aside = dataclasses.replace(effort, strength=strength), (why,)
        found = search(
            task,
            data,
            effort,
            highest=highest,
            fixed=fixed,
            replicas=chosen.replicas,
            seed=chosen.seed,
            stages=stages,
            bar=bar,
        )
        finished = finish_fit(
            task.X,
            task.Y,
            scaling_in,
            scaling_out,
            found.chosen,
            found.strength,
            data,
            effort,
            max_samples=chosen.max_samples,
            input_noise=chosen.input_noise,
            seed=chosen.seed,
            stages=stages,
            bar=bar,
        )
    clues, remarks = _clues(found, data)
    told: tuple[str, ...] = ()
    if network is not None:
        more, note = testify(network, data, effort.strength, chosen.seed)
        clues, told = (*clues, *more), (note,)
    return Discovery(
        rank=found.judgement.rank,
        verdict=found.judgement.verdict,
        reasons=(*found.judgement.reasons, *remarks),
        profile=found.profile,
        replicas=found.replicas,
        evidence=clues,
        sensitivity=finished.sensitivity,
        encoder=finished.encoder,
        decoder=finished.decoder,
        coordinates=apply(finished.encoder, inputs),
        error=found.chosen.error,
        feature_names=names[0],
        target_names=names[1],
        notes=(*task.notes, *aside, *finished.notes, *told),
        fill=fill,
        settings={
            **told_settings,
            "strength": effort.strength,
            "seconds": round(clock.monotonic() - began, 2),
            "stages_reused": stages.reused,
        },
    )


def _clues(found: Found, data: Data) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """The other evidence, and what is to be said about it."""
    network = found.chosen.fit.network
    if found.judgement.verdict == "trivial":
        count = explaining_gradients(network, data.X)
        what = f"{count} linear direction{'s' * (count != 1)} of the inputs"
        return (), (f"a linear substitute for the rank: the gradient of f varies in {what} (AGOP)",)
    clues = tuple(gather(found.levels[0].fit.network, network, data, found.levels[0].shares))
    by_name = {item.name: item for item in clues}
    local, jacobian = by_name["TwoNN on the coordinates"], by_name["Jacobian"].rank
    if jacobian is not None and 0 < jacobian < found.judgement.rank:
        remark = (
            f"near one x the outputs move in {jacobian} direction{'s' * (jacobian > 1)} only (Jacobian), fewer than "
            f"the {found.judgement.rank} coordinates needed for all x together, as on a circle"
        )
        return clues, (remark,)
    if local.rank is not None and 0 < local.value < found.judgement.rank - 0.6:
        remark = (
            f"the {found.judgement.rank} coordinates lie on a surface of about {local.value:.1f} dimensions: fewer of "
            "them vary freely near one point than are needed for all, as on a circle"
        )
        return clues, (remark,)
    return clues, ()


def _effort(settings: Settings) -> Effort:
    steps = settings.steps
    return Effort(
        half=settings.depth // 2,
        width=settings.width,
        strength=settings.strength,
        warm=max(1, round(0.6 * steps)),
        rise=2 * steps,
        first=max(1, round(1.2 * steps)),
        each=steps,
        learning_rate=settings.learning_rate,
        init_scale=settings.init_scale,
    )


def _filled(who: str, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """X with medians in place of NaN, the medians, and where NaN was."""
    array = with_gaps(who, X)
    lost = np.isnan(array)
    if array.ndim == 2 and lost.all(axis=0).any():
        columns = np.flatnonzero(lost.all(axis=0))[:5].tolist()
        fail(who, "every column of `X` must have a value", f"none in columns {columns}", "Drop them.", error=DataError)
    fill = np.nanmedian(array, axis=0)
    return np.where(lost, fill, array), fill, lost


# ---- Another network asked about the same data: what its isthmus says stands among the evidence


#: Rows that its representations are looked at on.
ROWS = 1000


def check_witness(network: object, d_in: int, d_out: int) -> None:
    """Fail unless ``network`` is a module from the inputs to the outputs."""
    who, fix = "discover", "Pass e.g. isthmus.LeakyResNet(d_in, d_out), or leave `network` out."
    if not isinstance(network, nn.Module):
        fail(who, "`network` must be a torch.nn.Module", type(network).__name__, fix)
    parameter = next(network.parameters(), None)
    if parameter is None:
        fail(who, "`network` must have parameters", type(network).__name__, fix)
    try:
        with torch.no_grad():
            shape = tuple(network(torch.zeros(2, d_in, dtype=parameter.dtype)).shape)
    except (RuntimeError, TypeError, AttributeError) as error:
        fail(who, f"`network` must map (N, {d_in}) to (N, {d_out})", f"{type(error).__name__}: {error}", fix)
    if shape != (2, d_out):
        fail(who, f"`network` must map (N, {d_in}) to (N, {d_out})", f"outputs of shape {shape} for 2 rows", fix)


def testify(network: nn.Module, data: Data, strength: float, seed: int) -> tuple[tuple[Evidence, ...], str]:
    """Train a copy on the scaled rows, each dimension at the same price as in the discovery, and diagnose it.

    Returns
    -------
    tuple of Evidence, str
        What it counts, and how its training ended.
    """
    kind = type(network).__name__
    net = copy.deepcopy(network).to(data.X.dtype)
    alone = constant_cost(data.Y, data.loss)
    ridge = strength * alone / carrying_norm(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the state is told in the note
        result = train(net, data.X, data.Y, ridge=ridge, loss=data.loss, seed=seed)
    if result.state == "interrupted":
        raise KeyboardInterrupt
    note = (
        f"the given {kind}: training {result.state} ({result.reason}), cost {result.cost / alone:.3g} of a constant's"
    )
    rows = slice(None, None, max(1, -(-len(data.X) // ROWS)))
    try:
        found = diagnose(net, data.X[rows], data.Y[rows], ridge=ridge, loss=data.loss)
    except IsthmusError as error:
        return (), f"{note}; not diagnosed: {error}"
    rank = found.rank if found.verdict == "determined" else None
    meaning = "narrowest place of the network that was given, trained on the same rows"
    clues = [Evidence(f"given {kind}", math.nan if rank is None else float(rank), rank, meaning)]
    if found.mechanics is not None and found.mechanics.arrays is not None:
        clues.append(
            Evidence(
                f"given {kind}: −(2/L̃)𝓗",
                found.mechanics.rank_estimate,
                None,
                f"approaches the rank from below with L̃ at critical points; here: {found.mechanics.state}",
            )
        )
    return tuple(clues), note


# ---- How strong the ridge of a classification must be: labels are often wrong by chance, and networks learn by heart


#: λ that are tried, falling; the last is that of a regression.
STRENGTHS = (0.1, 0.03, 0.01)


def choose_strength(data: Data, effort: Effort, *, seed: int, stages: Stages, bar: Progress) -> tuple[float, str]:
    """The largest λ at which a wide network predicts held-out rows about as well as at any, and the errors in words.

    A squared error with a small ridge averages noise; a log loss with a small ridge is driven to 0 on every training
    row, wrong labels included. The network is trained at the largest λ and then on at each smaller one.
    """
    errors: list[float] = []
    level = None
    for strength in STRENGTHS:
        trial = dataclasses.replace(effort, strength=strength)
        if level is None:
            level = wide_level(data, trial, WIDE, seed=seed, name="strength", stages=stages, bar=bar)
        else:
            level = polish(data, trial, level, seed=seed, name=f"strength-{strength:g}", stages=stages, bar=bar)
        errors.append(level.error)
    finite = np.where(np.isfinite(errors), errors, np.inf)
    least = float(finite.min())
    allowed = least + dataclasses.replace(effort, strength=STRENGTHS[-1]).slack(least)
    chosen = STRENGTHS[int(np.argmax(finite <= allowed))]
    listed = ", ".join(f"{error:.3g} at λ = {strength:g}" for strength, error in zip(STRENGTHS, errors))
    return chosen, f"λ = {chosen:g} was taken for a wide network's error on the rows held out: {listed}"
