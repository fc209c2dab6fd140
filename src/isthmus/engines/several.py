"""Several experiments at once, each computed once: what ``isthmus reproduce all`` does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

from isthmus.engines.base import Failure, Task, computed
from isthmus.experiments._experiment import Experiment
from isthmus.runs import Run


def run_several(experiments: Sequence[Experiment], executor: Executor) -> Iterator[tuple[Experiment, Run | Failure]]:
    """Yield every experiment with its Run, or the reason why there is none, as they finish.

    Figures of one computation (F-ham-1 and F-ham-3, F-bn-2 and F-talk-3) share it: experiments that inherit the same
    ``compute`` and have the same parameters.
    """
    groups: dict[str, list[Experiment]] = {}
    for one in experiments:
        same = next((key for key, group in groups.items() if _shared(group[0], one)), one.key)
        groups.setdefault(same, []).append(one)
    # The longest first: the last one to end decides how long all take.
    order = sorted(groups, key=lambda key: -_seconds(groups[key][0]))
    tasks = [Task(groups[key][0].id, (groups[key][0].parameters,), (key,), figures=True) for key in order]
    for finished in computed(executor, tasks):
        first, *others = groups[finished.key]
        outcome = finished.run if finished.run is not None else finished.failure or Failure("Lost", "no result")
        yield first, outcome
        for one in others:
            yield one, outcome if isinstance(outcome, Failure) else _second(one, outcome)


def _shared(one: Experiment, other: Experiment) -> bool:
    return type(one).compute is type(other).compute and one.parameters == other.parameters


def _seconds(one: Experiment) -> float:
    return one.quick_seconds if one == type(one).quick() else one.full_seconds


def _second(one: Experiment, run: Run) -> Run:
    """The Run of an experiment whose arrays are those of another."""
    extra = {"computed_with": run.experiment}
    seconds = float(run.provenance["seconds"])
    return one.recorded(run.arrays, started=time.time() - seconds, seconds=seconds, more=extra)
