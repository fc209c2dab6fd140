"""discover(X, Y): the rank of a task, its coordinates, encoder and decoder."""

from __future__ import annotations

import dataclasses
import functools
import time as clock
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
from joblib.parallel import get_active_backend
from threadpoolctl import threadpool_limits
from torch import nn

from isthmus._checks import check_integer
from isthmus._cite import cites
from isthmus._deprecations import renamed
from isthmus._progress import ProgressFactory, shown
from isthmus._settings import MAX_RANK, STRENGTH, Settings
from isthmus.diagnosis import Evidence
from isthmus.discovery._columns import read_arrays
from isthmus.discovery._evidence import check_witness, explaining_gradients, gather_evidence, testify
from isthmus.discovery._final import constant, finish_fit
from isthmus.discovery._maps import apply
from isthmus.discovery._reference import measure_reference
from isthmus.discovery._result import Discovery
from isthmus.discovery._search import Found, catch_up, choose_strength, search_rank, total_steps
from isthmus.discovery._task import Data, RankTask, make_task
from isthmus.discovery._walk import TOLERANCE, Context, Stages, identity_of, in_parallel
from isthmus.networks._direct import use_threads

#: Share of an autoencoder's resolution that is the λ of its ridge: through four layers of SiLU, of slope 1/2 at 0, a
#: coordinate costs 2.5 times what it costs through ReLU. With less, many thin directions of noise would be described.
FAITHFUL = 0.4

#: Training rows from which on several processes pay.
MANY = 500


@cites("bottleneck2023", "§4", ids=("Q-bnrank",))
@cites("rank2023", "§4")
@renamed(show_progress="progress", network="net", ridge="resolution")
def discover(
    X: Any,
    Y: Any,
    *,
    groups: Any = None,
    time: Any = None,
    cv: Any = None,
    rank: int | str = Settings.rank,
    net: nn.Module | None = None,
    na_values: Sequence[float] | None = None,
    feature_names: Any = None,
    target_names: Any = None,
    checkpoint: str | Path | None = None,
    n_jobs: int | None = None,
    progress: bool | ProgressFactory = False,
    **settings: Any,
) -> Discovery:
    """How many variables y = f(x) really depends on, which they are, and the maps in and out.

    A wide regularised network is trained, then narrowed coordinate by coordinate; the held-out error as a function of
    their number, the *rank profile*, gives the rank. What could make the answer an accident of one training is tried:
    the ranks on which it hangs are trained again from random weights and other starts, and from another seed, at
    another depth, on another division of the data. Learners that know nothing of ranks (kernel ridge regression, a
    forest, a plain network) say how well the outputs can be predicted: where the networks do clearly worse, the
    verdict is "undetermined".

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
    cv : None, int, splitter or pairs of rows
        How rows are held out: a quarter by default, one K-th for an integer.
    rank : "auto" or int
        A number fixes the rank; the verdict is then ``"given"``.
    na_values : sequence of float, optional
        Numbers that mean "missing", such as −9999. By default they are looked for: exact extreme values far outside
        the rest of a column. Pass () where all numbers are measured ones.
    net : nn.Module, optional
        A second network to ask, such as a :class:`~isthmus.LeakyResNet`: a copy is trained on the same rows, and what
        its isthmus (and Hamiltonian) says stands among the evidence. It does not change the rank found.
    feature_names, target_names : sequence of str, optional
        By default those of a DataFrame, or x0, x1, … and y0, y1, …
    checkpoint : path, optional
        Folder for finished parts: a killed discovery started again goes on from there to the same answer.
    n_jobs : int, optional
        Processes for trainings that do not depend on each other, as joblib counts them: −1 is one for each core. None
        is what a joblib context says, else one for each core if there are rows enough that it pays. The answer does
        not depend on it.
    progress : bool or callable, default False
        Show on stderr how far it is, as in :func:`isthmus.train`.
    **settings
        Further fields of :class:`isthmus.discovery.Settings`, explained there: ``max_rank``, ``depth``, ``width``,
        ``activation``, ``resolution``, ``replicas``, ``steps``, ``learning_rate``, ``init_scale``, ``max_samples``,
        ``missing``, ``loss``, ``units``, ``input_noise``, ``seed``.

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
    chosen = Settings.of({"rank": rank, **settings})
    table = read_arrays(X, Y, chosen, feature_names, target_names, na_values)
    inputs, targets, names, notes = table.X, table.Y, table.names, table.notes
    task = make_task(inputs, targets, chosen, names=names, groups=groups, time=time, cv=cv)
    fixed = None if chosen.rank == "auto" else check_integer(who, "rank", chosen.rank, low=1, high=max(task.bound, 1))
    highest = max(min(task.bound, MAX_RANK if chosen.max_rank is None else chosen.max_rank), fixed or 0)
    if net is not None:
        check_witness(net, inputs.shape[1], targets.shape[1])
    record = {
        "network": None if net is None else type(net).__name__,
        "rank": "auto" if fixed is None else fixed,
        "max_rank": highest,
        **_record(task),
        **table.mending.settings,
    }
    about = {"feature_names": names[0], "target_names": names[1], "fill": table.mending.fill}
    notes = (*notes, *task.notes)
    if task.bound == 0:
        return constant(inputs, targets, task.why, notes=notes, settings=record, **about)
    data, scaling_in, scaling_out = task.data(0)
    stages = _stages(checkpoint, task, record)
    # One thread in each process: the answer does not depend on how many there are, and nothing waits for a barrier.
    reporting = shown(progress)(total_steps(chosen, highest), who)
    with reporting as bar, use_threads(1), threadpool_limits(1), stages.awaited():
        strength, finest = chosen.strength, 0.0
        if task.autoencoder:
            # Held-out rows can choose no ridge: a wide network reproduces them, noise and all.
            finest = STRENGTH if chosen.resolution == "auto" else strength
            strength = FAITHFUL * finest
        context = Context(data, chosen, stages, bar, chosen.depth, strength, chosen.seed, smooth=chosen.smooth)
        context = dataclasses.replace(context, finest=finest, n_jobs=_processes(n_jobs, len(data.X)))
        wide, reference = None, None
        if chosen.resolution == "auto" and not task.autoencoder:
            # In another process it takes no time, and its imports are done when they are needed.
            asked = chosen.loss == "mse" and fixed is None and task.bound > 1
            learners = [functools.partial(measure_reference, data, chosen.seed)] * asked
            waiting = in_parallel(learners, context.n_jobs)
            context, wide, why = choose_strength(context, highest)
            reference, notes = next(iter([*waiting]), None), (*notes, why)
            if wide is not None and reference is not None:
                context, wide, done = catch_up(context, wide, reference)
                notes = (*notes, done) if done else notes
        found = search_rank(task, context, highest, fixed, wide, reference)
        last = finish_fit(task, scaling_in, scaling_out, context, found.chosen)
    clues, remarks = _clues(found, data)
    notes = (*notes, *last.notes)
    if net is not None:
        more, note = testify(net, data, context.strength, chosen.seed)
        clues, notes = (*clues, *more), (*notes, note)
    if reference is not None:
        record["reference"] = reference.errors
    spent = {"seconds": round(clock.monotonic() - began, 2), "stages_reused": stages.reused}
    return Discovery(
        rank=found.judgement.rank,
        verdict=found.judgement.verdict,
        reasons=(*found.judgement.reasons, *remarks),
        profile=found.profile,
        replicas=found.replicas,
        evidence=clues,
        sensitivity=last.sensitivity,
        encoder=last.encoder,
        decoder=last.decoder,
        coordinates=apply(last.encoder, inputs),
        error=found.chosen.error,
        notes=notes,
        settings={**record, "strength": context.strength, **spent},
        **about,
    )


def _processes(n_jobs: int | None, rows: int) -> int:
    """How many processes; none but this one for a discovery that takes no longer than their imports."""
    set_elsewhere: Any = get_active_backend()[1]
    chosen = set_elsewhere if n_jobs is None else n_jobs
    if chosen is None:
        chosen = -1 if rows >= MANY else 1
    return joblib.effective_n_jobs(chosen)


def _record(task: RankTask) -> dict[str, Any]:
    """How it is computed, as plain data, beside what is asked for."""
    settings = task.settings
    shared = ("replicas", "max_samples", "seed", "missing", "loss", "units", "input_noise")
    return {
        **{name: getattr(settings, name) for name in shared},
        "autoencoder": task.autoencoder,
        "units_in": task.units.inputs,
        "units_out": task.units.outputs,
        "held_out": task.splits.describe(),
        "half": settings.depth // 2,
        **{name: getattr(settings, name) for name in ("width", "activation", "strength", "passes", "first")},
        "each": settings.steps,
        "learning_rate": settings.learning_rate,
        "init_scale": settings.init_scale,
        "tolerance": TOLERANCE,
    }


def _stages(checkpoint: str | Path | None, task: RankTask, record: dict[str, Any]) -> Stages:
    if checkpoint is None:
        return Stages(None, "")
    held = {f"held{index}": task.splits(index)[1] for index in range(task.settings.replicas + 1)}
    return Stages(Path(checkpoint), identity_of(record, {"X": task.X, "Y": task.Y, **held}))


def _clues(found: Found, data: Data) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """The other evidence, and what is to be said about it."""
    network = found.chosen.fit.network
    if found.judgement.verdict == "trivial":
        count = explaining_gradients(network, data.X)
        what = f"{count} linear direction{'s' * (count != 1)} of the inputs"
        return (), (f"a linear substitute for the rank: the gradient of f varies in {what} (AGOP)",)
    clues = tuple(gather_evidence(found.levels[0].fit.network, network, data, found.levels[0].shares))
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
