"""The training loop for a stack of networks: every network goes the way that ``train`` would take with it alone."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus._progress import Progress
from isthmus.networks import FullyConnected
from isthmus.training._lbfgs import REBALANCE
from isthmus.training._loop import EXPLOSION, WINDOW
from isthmus.training._phases import Phase
from isthmus.training._result import TrainingResult, criteria, recent, why_not
from isthmus.training._together_first import StackedFirstOrder, StackedOptimiser, StackedScaleDown
from isthmus.training._together_metric import StackedMetric
from isthmus.training._together_newton import StackedLBFGS
from isthmus.training._together_stack import Array, StackedMeanSquare, Values, fill

#: What is recorded of every step.
NUMBERS: tuple[str, ...] = ("loss", "cost", "norm", "ridge", "phase")


@dataclasses.dataclass
class Account:
    """How one network fares."""

    state: str = ""
    reason: str = ""
    steps: int = 0
    evaluations: int = 0
    #: Whether its last phase found no step.
    stalled: bool = False


class StackedTraining:
    """Networks of one shape on their way through one plan.

    They take the same steps of a phase at the same time. One that has settled leaves the stack and waits for the next
    phase; one that has converged or diverged leaves it for good.
    """

    def __init__(
        self,
        nets: Sequence[FullyConnected],
        X: Tensor,
        Y: Tensor,
        settings: Sequence[dict[str, Any]],
        plan: tuple[Phase, ...],
    ) -> None:
        self.nets, self.X, self.Y, self.settings, self.plan = list(nets), X, Y, settings, plan
        self.ridges = np.array([own["ridge"] for own in settings])
        self.tolerance: float = settings[0]["tolerance"]
        self.generators = [torch.Generator().manual_seed(own["seed"]) for own in settings]
        self.theta = torch.stack([torch.cat([p.detach().reshape(-1) for p in net.parameters()]) for net in nets])
        self.accounts = [Account() for _ in nets]
        #: Of each step: which networks, and their loss, cost, norm, ridge and phase.
        self.records: list[tuple[Array, Array]] = []
        self.first = np.full((2, len(nets)), np.nan)

    def go(self, bar: Progress) -> list[TrainingResult]:
        """All phases, then the account of each network."""
        began = time.monotonic()
        try:
            for index, phase in enumerate(self.plan):
                alive = np.array([i for i, own in enumerate(self.accounts) if not own.state], dtype=np.int64)
                if len(alive):
                    _StackedPhase(self, index, phase, alive).go(bar)
                else:
                    bar.advance(phase.steps)
        except KeyboardInterrupt:
            self.interrupt()
        return self.finish(time.monotonic() - began)

    def interrupt(self) -> None:
        """Stop all that are still on their way."""
        for own in self.accounts:
            if not own.state:
                own.state, own.reason = "interrupted", f"interrupted at step {own.steps}; the weights so far are kept"

    def final(self, index: int) -> bool:
        """Whether nothing but the same at the full ridge can follow."""
        here = self.plan[index].precision
        return all(
            p.method == "lbfgs" and p.ridge_start == p.ridge_end == 1.0 and p.precision == here
            for p in self.plan[index:]
        )

    def finish(self, seconds: float) -> list[TrainingResult]:
        """Put the weights into the modules, and judge each as ``train`` does at its end."""
        objective = StackedMeanSquare(self.nets[0], self.X, self.Y, len(self.nets))
        values = objective(self.theta, self.ridges)
        which = np.concatenate([members for members, _ in self.records] or [np.zeros(0, dtype=np.int64)])
        rows = np.concatenate([numbers for _, numbers in self.records] or [np.zeros((5, 0))], axis=1)
        results = []
        for i, (net, own) in enumerate(zip(self.nets, self.accounts)):
            fill(net, self.theta[i])
            history: dict[str, Array] = dict(zip(NUMBERS, rows[:, which == i]))
            last = self.plan[int(history["phase"][-1])].method if own.steps else ""
            losses = recent({k: v.tolist() for k, v in history.items()}, WINDOW) if last == "lbfgs" else []
            ridge, value = float(self.ridges[i]), values.one(i)
            found = criteria(net, value, ridge, losses, WINDOW, stalled=own.stalled)
            state, reason = own.state or "budget", own.reason
            if state == "budget":
                reason = why_not(found, self.tolerance, own.steps, judged=last == "lbfgs")
            results.append(
                TrainingResult(
                    network=net,
                    state=state,
                    reason=reason,
                    loss=value.loss,
                    cost=value.cost,
                    norm=value.norm,
                    ridge=ridge,
                    criteria=found,
                    steps=own.steps,
                    evaluations=own.evaluations,
                    seconds=seconds / len(self.nets),
                    history=history,
                    settings=self.settings[i],
                )
            )
        return results


class _StackedPhase:
    """One phase of those networks that take part in it: the rows of ``theta``."""

    def __init__(self, training: StackedTraining, index: int, phase: Phase, members: Array) -> None:
        self.training, self.index, self.phase, self.members = training, index, phase, members
        double = phase.precision == "double"
        self.dtype = torch.float64 if double else training.theta.dtype
        self.theta = training.theta[torch.as_tensor(members)].to(self.dtype)
        X, Y = ((T if T.ndim == 2 else T[torch.as_tensor(members)]).to(self.dtype) for T in (training.X, training.Y))
        self.scratch = copy.deepcopy(training.nets[0]).to(self.dtype)
        self.objective = StackedMeanSquare(self.scratch, X, Y, len(members))
        self.whole = members
        self.optimiser = self._optimiser()
        self.good, self.before = self.theta.clone(), torch.empty_like(self.theta)
        self.final = training.final(index)
        self.tolerance = training.tolerance * (1.0 if self.final else 10.0)
        #: Losses of this phase (all networks), and since which step the ridge has been the same.
        self.losses: list[Array] = []
        self.since = 0

    def _optimiser(self) -> StackedOptimiser:
        if self.phase.method == "scale":
            return StackedScaleDown(self.objective)
        if self.phase.method != "lbfgs":
            return StackedFirstOrder(self.phase, self.theta, self.objective)
        metric = None
        if self.phase.metric:
            metric = StackedMetric(self.scratch, [self.training.generators[i] for i in self.members])
        return StackedLBFGS(self.phase, self.theta, self.objective, metric, self.scratch)

    def go(self, bar: Progress) -> None:
        """All steps; afterwards the accounts say who has ended."""
        newton, shown, pending, inside = self.phase.quasi_newton, time.monotonic(), 0, 0
        try:
            while inside < self.phase.steps and not self.optimiser.finished().all():
                values = self._step(inside, newton=newton)
                inside, pending, now = inside + 1, pending + 1, time.monotonic()
                if now - shown > 0.2:
                    bar.advance(pending, networks=len(self.members), loss=float(np.median(values.loss)))
                    shown, pending = now, 0
            bar.advance(pending + self.phase.steps - inside)
            if not newton and inside and len(self.members):
                # The last move has not been looked at.
                ridges = self.training.ridges[self.members] * self.phase.ridge_factor(inside)
                values = self.objective(self.theta, ridges)
                self._diverge(self._exploded(values, ridges, newton=newton), values)
            every = np.ones(len(self.members), dtype=bool)
            self._leave(every, ~every)
        except KeyboardInterrupt:
            # The interrupt may have come between two halves of a step; a quasi-Newton step ends in a single copy.
            self._put(self.theta if newton else self.good)
            raise
        finally:
            for i, count in zip(self.whole, self.objective.evaluations):
                self.training.accounts[i].evaluations += int(count)

    def _step(self, inside: int, *, newton: bool) -> Values:
        """One step of all; who has diverged, settled or finished leaves."""
        factor = self.phase.ridge_factor(inside)
        if inside and factor != self.phase.ridge_factor(inside - 1):
            self.since = inside
        ridges = self.training.ridges[self.members] * factor
        if not newton:
            self.before.copy_(self.theta)
        elif inside % REBALANCE == 0:
            # Between these, a quasi-Newton step that meets a non-finite value has not moved.
            self.good.copy_(self.theta)
        values = self.optimiser.step(self.theta, inside, ridges)
        bad = self._exploded(values, ridges, newton=newton)
        self._diverge(bad, values)
        if not newton:
            # What was evaluated and found finite: the points before the move.
            self.good, self.before = self.before, self.good
        self._record(~bad, values, ridges)
        complete = np.zeros(len(bad), dtype=bool)
        if newton and (inside + 1) % 10 == 0:
            complete = self._settled(values, ridges) & ~bad
        leaving = bad | complete | (self.optimiser.finished() & newton)
        if leaving.any():
            self._leave(leaving, complete)
        return values

    def _exploded(self, values: Values, ridges: Array, *, newton: bool) -> Array:
        """Whether each loss is not finite, or far above that of the first point at this ridge (no line search)."""
        bad = ~values.finite()
        if newton:
            return bad
        cost, norm = self.training.first[:, self.members]
        with np.errstate(invalid="ignore"):
            # Nothing is above NaN: before the first step there is nothing to compare with.
            return bad | (values.loss > EXPLOSION * np.maximum(np.abs(cost + ridges * norm), 1e-12))

    def _diverge(self, bad: Array, values: Values) -> None:
        for k in np.flatnonzero(bad):
            own = self.training.accounts[self.members[k]]
            what = "exploding" if np.isfinite(values.loss[k]) else "non-finite"
            own.state = "diverged"
            own.reason = f"{what} loss at step {own.steps} ({self.phase.method}); the last good weights are kept"
            self.theta[k] = self.good[k]

    def _record(self, fine: Array, values: Values, ridges: Array) -> None:
        members = self.members[fine]
        numbers = [part[fine] for part in (values.loss, values.cost, values.norm, ridges)]
        self.training.records.append((members, np.stack([*numbers, np.full(len(members), float(self.index))])))
        losses = np.full(len(self.training.nets), np.nan)
        losses[members] = numbers[0]
        self.losses.append(losses)
        new = members[np.isnan(self.training.first[0, members])]
        if len(new):
            places = np.searchsorted(members, new)
            self.training.first[:, new] = np.stack([numbers[1][places], numbers[2][places]])
        for i in members:
            self.training.accounts[i].steps += 1

    def _settled(self, values: Values, ridges: Array) -> Array:
        """Whether the phase has converged, for each network; on the way ten times more loosely."""
        settled = np.zeros(len(self.members), dtype=bool)
        if len(self.losses) - self.since <= WINDOW:
            return settled
        window = np.stack(self.losses[-1 - WINDOW :])[:, self.members]
        decrease = (window[0] - window[-1]) / np.maximum(np.abs(window[-1]), 1e-300)
        # The other criteria take longer to evaluate than a step, and seldom decide.
        for k in np.flatnonzero(decrease <= self.tolerance).tolist():
            found = criteria(self._module(k), values.one(k), float(ridges[k]), window[:, k].tolist(), WINDOW)
            settled[k] = found.met(self.tolerance)
        return settled

    def _leave(self, leaving: Array, complete: Array) -> None:
        """What ``train`` does at the end of a phase, for some of the networks; the others stay."""
        finished = self.optimiser.finished()
        for k in np.flatnonzero(leaving).tolist():
            own = self.training.accounts[self.members[k]]
            if own.state:
                continue
            own.stalled = self.phase.method == "lbfgs" and bool(finished[k])
            if self.final and (complete[k] or (own.stalled and self._meets_stalled(k))):
                own.state, own.reason = "converged", "the loss has stopped falling and the parameters are balanced"
        self._put(self.theta)
        stay = np.flatnonzero(~leaving)
        rows = torch.as_tensor(stay)
        self.members = self.members[stay]
        self.theta, self.good, self.before = self.theta[rows], self.good[rows], self.before[rows]
        self.objective.keep(stay)
        self.optimiser.keep(rows)

    def _meets_stalled(self, k: int) -> bool:
        """Whether a network ended because nothing lowers its loss, at a point that is balanced."""
        one, ridges = np.array([k]), self.training.ridges[self.members[[k]]]
        values = self.objective(self.theta[k : k + 1], ridges, one)
        found = criteria(self._module(k), values.one(0), float(ridges[0]), [], WINDOW, stalled=True)
        return found.met(self.training.tolerance)

    def _put(self, theta: Tensor) -> None:
        """Hand the weights back."""
        self.training.theta[torch.as_tensor(self.members)] = theta.to(self.training.theta.dtype)

    def _module(self, k: int) -> FullyConnected:
        fill(self.scratch, self.theta[k])
        return self.scratch
