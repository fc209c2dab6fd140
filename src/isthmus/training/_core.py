"""The core of training: networks of one shape go through a plan. It neither warns nor prints.

Whatever is raised inside (Ctrl-C, an error in a callback) goes through; the last weights that were evaluated and found
finite are then in the networks.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus._activations import Rounding, preactivations
from isthmus._atomic import shown
from isthmus._checks import check_integer
from isthmus._errors import FileFormatError
from isthmus._progress import Progress
from isthmus.measures._stationarity import STATIONARY, Stationarity, certify
from isthmus.networks._direct import use_threads
from isthmus.networks._network import hooks_of
from isthmus.training._checkpoint import Checkpoints, TrainingState
from isthmus.training._first_order import FirstOrder, Optimiser, OptimiserState, ScaleDown
from isthmus.training._lbfgs import LBFGS, Memory, Pairs
from isthmus.training._narrow import Narrow
from isthmus.training._newton import Newton
from isthmus.training._objective import Objective, Stack, Value
from isthmus.training._phases import Phase
from isthmus.training._requests import Evaluate, Steps, drive
from isthmus.training._result import TrainingResult, criteria, recent, why_not

#: Share of the parameters' root mean square below which they may be zero at a stationary point.
IDLE = 1e-6

#: Quasi-Newton steps over which the decrease of the loss is judged.
WINDOW = 50

#: A loss this many times that of the first point means divergence even while it is finite.
EXPLOSION = 1e4

#: Quasi-Newton steps between two updates of what a network adapts: each forgets the curvature that was learned.
ADAPT_EVERY = 50


@dataclass(frozen=True, eq=False)
class TrainingEvent:
    """What a callback gets after every step.

    ``network`` has the weights after the step (a copy in float64 during phases of double precision). The numbers are
    those of the same weights for quasi-Newton steps, and of the weights before the move for all others, on the
    mini-batch if there is one.
    """

    step: int
    phase: int
    loss: float
    cost: float
    norm: float
    ridge: float
    network: nn.Module


@dataclass(eq=False)
class Job:
    """A network, its data and how it is trained: ``ridge``, ``loss``, ``tolerance`` and ``seed`` as plain settings."""

    net: nn.Module
    X: Tensor
    Y: Tensor
    settings: dict[str, Any]
    callbacks: tuple[Callable[[TrainingEvent], object], ...] = ()
    checkpoints: Checkpoints | None = None
    restored: TrainingState | None = None


def run_jobs(
    jobs: Sequence[Job],
    plan: tuple[Phase, ...],
    bar: Callable[[int], Progress],
    *,
    seconds: float = math.inf,
) -> list[TrainingResult]:
    """Train networks of one shape side by side, each as it would be alone; ``bar`` is given the steps already done."""
    room = _Room(jobs)
    trainings = [_Training(job, index, room, plan, seconds) for index, job in enumerate(jobs)]
    done = sum(own.before() for own in trainings)
    shown = bar(done)
    for own in trainings:
        own.bar = shown
    began = time.monotonic()
    with torch.no_grad(), room.stack(double=False).threads():
        results = drive([own.go() for own in trainings])
    # Side by side each takes its share, whenever it was done.
    seconds = (time.monotonic() - began) / len(jobs)
    return [replace(result, seconds=seconds) for result in results]


class _Room:
    """The networks' objectives, in their own precision and in double."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, self.threads = jobs, torch.get_num_threads()
        self.stacks: dict[bool, Stack] = {}
        self.memories: dict[tuple[int, torch.dtype], Memory] = {}

    def stack(self, *, double: bool) -> Stack:
        """The networks as one stack, in their own precision or in double; made on first use."""
        if double not in self.stacks:
            nets = [copy.deepcopy(job.net).double() if double else job.net for job in self.jobs]
            made: dict[int, Tensor] = {}

            def data(T: Tensor) -> Tensor:
                # One copy of what networks share.
                if double and T.is_floating_point():
                    return made.setdefault(id(T), T.double())
                return T

            Xs, Ys = [data(job.X) for job in self.jobs], [data(job.Y) for job in self.jobs]
            self.stacks[double] = Stack(nets, Xs, Ys, self.jobs[0].settings["loss"])
        return self.stacks[double]

    def memory(self, size: int, stack: Stack) -> Memory:
        """Memory for the curvature pairs of all networks; of a single network it is released when unused."""
        if len(self.jobs) == 1:
            return Memory(size, stack.theta)
        return self.memories.setdefault((size, stack.theta.dtype), Memory(size, stack.theta, len(self.jobs)))

    @contextmanager
    def objective(self, index: int, *, double: bool) -> Iterator[Objective]:
        """The objective of one network inside this context; at its end the network gets the parameters reached."""
        net, found = self.jobs[index].net, self.stack(double=double).objectives[index]
        try:
            if found.net is not net:
                _copy(net, found.net)
            with found.attached():
                yield found
        finally:
            if found.net is not net:
                _copy(found.net, net)


@torch.no_grad()
def _copy(source: nn.Module, target: nn.Module) -> None:
    """A copy of all parameters and buffers."""
    for own, other in zip([*target.parameters(), *target.buffers()], [*source.parameters(), *source.buffers()]):
        own.copy_(other)


@contextmanager
def _believed() -> Iterator[None]:
    """Check a checkpoint's content: one that fits this training may still have been manipulated."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
        got, do = f"{type(problem).__name__}: {problem}", "Pass resume=False to start anew, or remove it."
        must = "the checkpoint must hold a state of this training"
        raise FileFormatError(f"train: {must}. Got {shown(got, 300)}. {do}") from problem


class _Training:
    """The state of one training: network, position in the plan, history."""

    def __init__(self, job: Job, index: int, room: _Room, plan: tuple[Phase, ...], seconds: float) -> None:
        self.net, self.settings, self.plan, self.callbacks = job.net, job.settings, plan, job.callbacks
        self.index, self.room, self.checkpoints = index, room, job.checkpoints
        self.ridge: float = self.settings["ridge"]
        self.generator = torch.Generator().manual_seed(self.settings["seed"])
        self.phase, self.inside, self.step = 0, 0, 0
        self.history: dict[str, list[float]] = {k: [] for k in ("loss", "cost", "norm", "ridge", "phase")}
        self.evaluations = 0
        self.deadline = time.monotonic() + seconds
        #: The module under training: ``net``, or its copy in double precision.
        self.live = self.net
        self.good = torch.zeros(0)
        #: Whether the phase has converged before its last step; whether it found no step.
        self.complete, self.stalled = False, False
        #: What stands in the places of kinks, in the phase under way or the last such.
        self.rounded: tuple[Rounding, ...] = ()
        self.bar: Progress
        self.restored = job.restored
        if self.restored is not None:
            with _believed():
                self.place(self.restored)

    def place(self, restored: TrainingState) -> None:
        """The position in the plan that a checkpoint has."""
        numbers, tensors = restored.numbers, restored.tensors
        self.phase, self.inside, self.step, self.evaluations = (
            check_integer("train", key, numbers[key], low=0) for key in ("phase", "inside", "step", "evaluations")
        )
        steps = [*(phase.steps for phase in self.plan), 0]
        if self.inside > steps[self.phase] or not isinstance(numbers["complete"], bool):
            raise ValueError(f"step {self.inside} of phase {self.phase}")
        self.complete = numbers["complete"]
        bands = enumerate(numbers.get("bands", ()))
        self.rounded = tuple(Rounding(float(band), tensors.get(f"centres.{i}")) for i, band in bands)
        self.history = {k: tensors[f"history.{k}"].tolist() for k in self.history}
        if any(tensors[f"history.{k}"].shape != (self.step,) for k in self.history):
            raise ValueError(f"a history of another length than {self.step}")
        self.generator.set_state(tensors["generator"])

    def before(self) -> int:
        """Steps of the plan that are already done."""
        return sum(p.steps for p in self.plan[: self.phase]) + self.inside

    # ---------------------------------------------------------------- checkpoints

    def snapshot(self, objective: Objective, optimiser: Optimiser) -> TrainingState:
        state = optimiser.get_state()
        tensors = {
            "theta": objective.theta,
            "good": self.good,
            **{f"buffer.{i}": b for i, b in enumerate(objective.net.buffers())},
            **{f"centres.{i}": one.centres for i, one in enumerate(self.rounded) if one.centres is not None},
            "generator": self.generator.get_state(),
            **{f"optimiser.{k}": v for k, v in state.tensors.items()},
            **{f"history.{k}": torch.tensor(v, dtype=torch.float64) for k, v in self.history.items()},
        }
        numbers = {
            "phase": self.phase,
            "inside": self.inside,
            "step": self.step,
            "evaluations": self.evaluations + objective.evaluations,
            "complete": self.complete,
            "bands": [repr(one.band) for one in self.rounded],
            "optimiser": {k: repr(v) for k, v in state.numbers.items()},
        }
        return TrainingState(tensors, numbers)

    def restore(self, objective: Objective, optimiser: Optimiser) -> None:
        if self.restored is None:
            return
        prefix = "optimiser."
        tensors = {k: v.to(objective.theta.device) for k, v in self.restored.tensors.items()}
        kept = {"theta": objective.theta, "good": objective.theta}
        kept |= {f"buffer.{i}": buffer for i, buffer in enumerate(objective.net.buffers())}
        with _believed():
            for name, wanted in kept.items():
                found = tensors[name]
                if found.shape != wanted.shape or found.dtype != wanted.dtype:
                    raise ValueError(f"{name} of {found.dtype}, shape {tuple(found.shape)}")
            for name, fresh in optimiser.get_state().tensors.items():
                found, length = tensors[prefix + name], len(objective.theta)
                # Pairs grow in number while it runs; how many parameters they are about stays.
                if fresh.shape[-1:] == (length,) and (found.ndim != fresh.ndim or found.shape[-1] != length):
                    raise ValueError(f"{prefix}{name} of shape {tuple(found.shape)}")
                most = len(objective.X)
                of_rows = found.dtype == torch.int64 and found.ndim == 1 and bool(((found >= 0) & (found < most)).all())
                if not fresh.is_floating_point() and not of_rows:
                    raise ValueError(f"{prefix}{name} must be rows below {most}")
            optimiser.set_state(
                OptimiserState(
                    {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)},
                    {k: float(v) for k, v in self.restored.numbers["optimiser"].items()},
                )
            )
        for name, wanted in kept.items():
            if name != "good":
                wanted.copy_(tensors[name])
        self.good, self.restored = tensors["good"], None

    def save(self, objective: Objective, optimiser: Optimiser) -> None:
        if self.checkpoints is not None:
            self.checkpoints.write(self.snapshot(objective, optimiser))

    def optimiser(self, phase: Phase, objective: Objective) -> Optimiser:
        if phase.method == "scale":
            return ScaleDown()
        if not phase.quasi_newton:
            return FirstOrder(phase, objective.theta, self.generator)
        metric = hooks_of(objective.net).metric(self.settings["loss"]) if phase.metric else None
        kind = {"narrow": Narrow, "newton": Newton}.get(phase.method, LBFGS)
        memory = self.room.memory(phase.memory, objective.stack)
        return kind(
            phase, objective.theta, metric, self.generator, Pairs(phase.memory, objective.theta, memory, self.index)
        )

    # ---------------------------------------------------------------- the loop

    def go(self) -> Steps[TrainingResult]:
        state, reason = "budget", ""
        while self.phase < len(self.plan):
            phase = self.plan[self.phase]
            with self.room.objective(self.index, double=phase.precision == "double") as objective:
                objective.evaluations = 0
                outcome = yield from self.run_phase(phase, objective)
                self.evaluations += objective.evaluations
            if outcome is not None:
                state, reason = outcome
                break
            self.phase, self.inside, self.complete = self.phase + 1, 0, False
        return (yield from self.finish(state, reason))

    def run_phase(self, phase: Phase, objective: Objective) -> Steps[tuple[str, str] | None]:
        """Run one phase; (state, reason) when the whole training must stop."""
        optimiser = self.optimiser(phase, objective)
        self.live, self.good = objective.net, objective.theta.clone()
        rounds = phase.finishing
        if rounds and self.restored is None:
            if phase.moved:
                self.clear(objective)
            objective.set_rounding(self.rounded)
            self.rounded = objective.moved(phase.band) if phase.moved else objective.roundings(phase.band)
        self.restore(objective, optimiser)
        try:
            objective.set_rounding(self.rounded if rounds else ())
            stopped = yield from self.take_steps(phase, objective, optimiser)
            if stopped is not None and stopped[0] == "diverged":
                return stopped
            self.save(objective, optimiser)
            objective.hold(None)
            done = rounds and phase.moved and not stopped and self.at_kinks(objective)
        except BaseException:
            # It may have come between two halves of a step.
            objective.theta.copy_(self.good)
            if isinstance(optimiser, Narrow):
                optimiser.abandon(objective)
            raise
        finally:
            objective.hold(None)
            objective.set_rounding(())
        self.stalled = phase.method in ("lbfgs", "newton") and optimiser.finished
        if phase.finishing:
            return ("budget", "") if done else stopped
        if stopped is None and self.final(phase) and (self.complete or (yield from self.meets_stalled(objective))):
            lawless = math.isnan(hooks_of(objective.net).imbalance()[0])
            return "flat", f"the loss has stopped falling{'' if lawless else ' and the parameters are balanced'}"
        if stopped is not None and isinstance(optimiser, Narrow):
            # The checkpoint keeps the attempt; the weights handed back are those from before it.
            optimiser.abandon(objective)
        return stopped

    def take_steps(self, phase: Phase, objective: Objective, optimiser: Optimiser) -> Steps[tuple[str, str] | None]:
        """The steps of a phase, until it ends or the training must."""
        newton, interval = phase.quasi_newton, hooks_of(objective.net).adapt_interval()
        every = ADAPT_EVERY if newton and interval else interval
        last = self.final(phase)
        spare = torch.empty_like(self.good)
        saved = shown = time.monotonic()
        pending = 0
        stopped: tuple[str, str] | None = None
        while self.inside < phase.steps and not self.complete and not optimiser.finished:
            if every and self.step > 0 and not last and self.inside % every == 0:
                # The objective changes with what is adapted; in the last phase it must stand still.
                self.adapt(objective)
                optimiser.forget()
            ridge = self.ridge * phase.ridge_factor(self.inside)
            before = None if newton else spare.copy_(objective.theta)
            value = yield from optimiser.step(objective, self.inside, ridge)
            if phase.finishing:
                self.rounded = objective.rounded  # parabolas may have been moved
            if self.exploded(value, ridge, newton):
                return self.diverged(objective, value)
            # What was evaluated and found finite: the point before the move, except for quasi-Newton steps.
            self.good, spare = spare.copy_(objective.theta) if before is None else before, self.good
            stopped = self.record(value, ridge)
            pending += 1
            now = time.monotonic()
            if now - shown > 0.2 or self.inside == phase.steps:
                self.bar.advance(pending, **self.numbers(value))
                shown, pending = now, 0
            searches = phase.method in ("lbfgs", "newton")
            self.complete = searches and self.inside % 10 == 0 and self.settled(value, ridge, last)
            if self.checkpoints is not None and now - saved > self.checkpoints.every and self.inside < phase.steps:
                self.save(objective, optimiser)
                saved = now
            if stopped is None and now > self.deadline and not self.complete:
                stopped = ("budget", "the time given by `max_seconds` is over")
            if stopped is not None:
                break
        self.bar.advance(pending if stopped else pending + phase.steps - self.inside)
        if not newton and self.inside:
            # The last move has not been looked at.
            ridge = self.ridge * phase.ridge_factor(self.inside)
            value = yield Evaluate(objective, ridge)
            if self.exploded(value, ridge, newton):
                return self.diverged(objective, value)
        return stopped

    def adapt(self, objective: Objective) -> None:
        """Let the network adapt, with its parameters and the last good ones."""
        factors = hooks_of(objective.net).adapt(objective.X)
        sizes = [p.numel() for p in objective.parameters]
        for parameter, part in zip(objective.parameters, self.good.split(sizes)):
            part *= factors.get(parameter, 1.0)

    def exploded(self, value: Value, ridge: float, newton: bool) -> bool:
        """Whether the loss is not finite, or far above that of the first point at this ridge (no line search)."""
        if not value.finite or newton or not self.history["loss"]:
            return not value.finite
        first = self.history["cost"][0] + ridge * self.history["norm"][0]
        return value.loss > EXPLOSION * max(abs(first), 1e-12)

    def diverged(self, objective: Objective, value: Value) -> tuple[str, str]:
        objective.theta.copy_(self.good)
        what = "exploding" if math.isfinite(value.loss) and value.finite else "non-finite"
        method = self.plan[self.phase].method
        return "diverged", f"{what} loss at step {self.step} ({method}); the last good weights are kept"

    def meets_stalled(self, objective: Objective) -> Steps[bool]:
        """Whether L-BFGS ended because nothing lowers the loss, at a point that is balanced."""
        if not self.stalled:
            return False
        value = yield Evaluate(objective, self.ridge)
        found = criteria(objective.net, value, self.ridge, [], WINDOW, stalled=True)
        return found.met(self.settings["tolerance"])

    def record(self, value: Value, ridge: float) -> tuple[str, str] | None:
        for key, number in zip(self.history, (value.loss, value.cost, value.norm, ridge, float(self.phase))):
            self.history[key].append(number)
        self.step, self.inside = self.step + 1, self.inside + 1
        if not self.callbacks:
            return None
        event = TrainingEvent(self.step, self.phase, value.loss, value.cost, value.norm, ridge, self.live)
        with torch.enable_grad(), use_threads(self.room.threads):
            for callback in self.callbacks:
                if callback(event) is True:
                    return "interrupted", f"stopped by a callback at step {self.step}"
        return None

    def numbers(self, value: Value) -> dict[str, float]:
        shown = {"loss": value.loss, "cost": value.cost}
        # Among many a look at the rank would take longer than a step.
        return shown if len(self.room.jobs) > 1 else {**shown, **hooks_of(self.live).glance(value.norm)}

    def settled(self, value: Value, ridge: float, last: bool) -> bool:
        """Whether an L-BFGS phase at constant ridge has converged; on the way ten times more loosely."""
        if self.plan[self.phase].finishing:
            return self.smooth_and_flat(value, ridge)
        tolerance = self.settings["tolerance"] * (1.0 if last else 10.0)
        losses = recent(self.history, WINDOW)
        # The other criteria take longer than a step, and seldom decide.
        if len(losses) <= WINDOW or losses[0] - losses[-1] > tolerance * max(abs(losses[-1]), 1e-300):
            return False
        return criteria(self.live, value, ridge, losses, WINDOW).met(tolerance)

    def smooth_and_flat(self, value: Value, ridge: float) -> bool:
        """Whether L-BFGS has come to the minimum of the loss with rounded kinks, or no longer comes nearer."""
        force = 2.0 * ridge * math.sqrt(value.norm)
        # Where the kinks themselves are to be met, what is left of the gradient is all of the residual.
        phase = self.plan[self.phase]
        share = (0.5 if phase.pull else 0.2) if phase.moved else 1.0
        if float(value.gradient.norm()) <= share * STATIONARY * force:
            return True
        losses = recent(self.history, WINDOW)
        fall = losses[0] - losses[-1]
        slow = 1e-6 if self.plan[self.phase].moved else 1e-4
        return len(losses) > WINDOW and fall <= slow * self.settings["tolerance"] * abs(losses[-1])

    def clear(self, objective: Objective) -> None:
        """Set neurons to zero that the ridge has removed up to rounding, unless the loss rises."""
        theta = objective.theta
        before, origin, size = objective(self.ridge).loss, theta.clone(), float(theta.square().mean().sqrt())
        theta.masked_fill_(theta.abs() <= IDLE * size, 0.0)
        if not objective(self.ridge).loss <= before * (1.0 + IDLE):
            theta.copy_(origin)

    def at_kinks(self, objective: Objective) -> bool:
        """Whether the minimum with moved parabolas is a stationary point of the network itself."""
        value = objective(self.ridge)
        small = float(value.gradient.norm()) <= STATIONARY * 2.0 * self.ridge * math.sqrt(value.norm)
        return small and self.certificate(hessian=False).stationary

    def final(self, phase: Phase) -> bool:
        """Whether only phases at the full ridge follow."""
        rest = self.plan[self.phase :]
        return all(
            (p.method == "lbfgs" or p.finishing)
            and p.finishing == phase.finishing
            and p.ridge_start == p.ridge_end == 1.0
            and p.precision == phase.precision
            for p in rest
        )

    # ---------------------------------------------------------------- the end

    @property
    def finishing(self) -> bool:
        """Whether the training is to end at a stationary point."""
        return bool(self.plan) and self.plan[-1].finishing

    def certificate(self, *, hessian: bool | None = None) -> Stationarity:
        """The certificate of the present network; slopes of the rounded kinks are the first guess."""
        net, job = copy.deepcopy(self.live).double(), self.room.jobs[self.index]
        X, Y = job.X.double(), job.Y.double() if job.Y.is_floating_point() else job.Y
        zs = preactivations(net, X, self.rounded) if self.rounded else ()
        guess = [one.share(z) for one, z in zip(self.rounded, zs)] if self.rounded else None
        with torch.enable_grad():
            return certify(net, X, Y, ridge=self.ridge, loss=self.settings["loss"], hessian=hessian, derivatives=guess)

    def finish(self, state: str, reason: str) -> Steps[TrainingResult]:
        with self.room.objective(self.index, double=False) as objective:
            if state == "budget" and self.finishing:
                self.clear(objective)
            value: Value = yield Evaluate(objective, self.ridge)
        self.live = self.net
        certificate = self.certificate() if state == "budget" and self.finishing else None
        phases = self.history["phase"]
        judged = bool(phases) and self.plan[int(phases[-1])].method in ("lbfgs", "newton")
        losses = recent(self.history, WINDOW) if judged else []
        if certificate is not None:
            # Moved parabolas change the loss by less than is judged, and a phase between two moves can be short.
            losses = self.history["loss"][-WINDOW - 1 :]
        found = criteria(self.net, value, self.ridge, losses, WINDOW, stalled=self.stalled)
        if certificate is not None and certificate.stationary:
            state, reason = "stationary", certificate.sentence
        elif certificate is not None and found.falls_no_more(self.settings["tolerance"]):
            state, reason = "flat", f"the loss has stopped falling. {certificate.sentence}"
        if state == "budget" and not reason:
            reason = why_not(found, self.settings["tolerance"], self.step, judged=judged)
        return TrainingResult(
            network=self.net,
            state=state,
            reason=reason,
            loss=value.loss,
            cost=value.cost,
            norm=value.norm,
            ridge=self.ridge,
            criteria=found,
            stationarity=certificate,
            steps=self.step,
            evaluations=self.evaluations,
            seconds=0.0,
            history={k: np.array(v) for k, v in self.history.items()},
            settings=self.settings,
        )
