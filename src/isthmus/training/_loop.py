"""The one training loop."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus._errors import ConvergenceWarning
from isthmus._progress import Progress, ProgressFactory, progress, silent
from isthmus.objective import LOSSES
from isthmus.trace import Layered
from isthmus.training import _adaptive as adaptive
from isthmus.training._checkpoint import Checkpoints, Snapshot, fingerprint
from isthmus.training._flat import FlatObjective, Value
from isthmus.training._inputs import TrainingEvent, checked_data
from isthmus.training._lbfgs import LBFGS
from isthmus.training._metric import metric_for
from isthmus.training._narrow import Narrow, can_narrow
from isthmus.training._optimisers import FirstOrder, Optimiser, OptimiserState, ScaleDown
from isthmus.training._phases import Phase
from isthmus.training._plans import default_plan
from isthmus.training._result import TrainingResult, criteria, outstanding, recent, why_not

#: Quasi-Newton steps over which the decrease of the loss is judged.
WINDOW = 50

#: A loss this many times that of the first point means divergence even while it is finite.
EXPLOSION = 1e4


def train(
    net: nn.Module,
    X: Any,
    Y: Any,
    *,
    ridge: float,
    loss: str = "mse",
    phases: Sequence[Phase] | None = None,
    learning_rate: float = 1e-3,
    tolerance: float = 1e-4,
    max_seconds: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callable[[TrainingEvent], object]] = (),
    show_progress: bool | ProgressFactory = False,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 10.0,
    resume: bool = True,
) -> TrainingResult:
    """Minimise cost(net(X), Y) + ridge·‖θ‖² in place, and say why it stopped.

    Parameters
    ----------
    net : nn.Module
        Trained in place, in its own dtype and on its own device. Only parameters that require gradients move, and
        only they count in ‖θ‖².
    X : array (N, d_in)
    Y : array (N, d_out), or (N,) of class indices for ``loss="cross_entropy"``
    ridge : float
        Multiplies ‖θ‖², weights and biases; :func:`isthmus.ridge_from` converts from the papers. It is part of the
        loss, never decoupled weight decay.
    loss : {"mse", "cross_entropy"}
        Mean over samples; ``"mse"`` is summed over outputs.
    phases : sequence of Phase, optional
        What to do, in order. By default Adam, then L-BFGS through a larger ridge and back to convergence: see
        :func:`isthmus.training.default_plan`.
    learning_rate : float, default 1e-3
        Of the default plan's Adam.
    tolerance : float, default 1e-4
        Converged when the loss falls by less than this share over 50 quasi-Newton steps, the balancedness residual
        is below 100 times it, and the gradient no longer dominates: see :class:`~isthmus.training.Criteria`.
    max_seconds : float, optional
        Stop after this long, with state ``"budget"``.
    seed : int
        Of the mini-batches. No global generator is used.
    callbacks : iterable of callable
        Each is called with a :class:`TrainingEvent` after every step; returning True stops the training.
    show_progress : bool, default False
        Loss, ‖θ‖²/L and time left on stderr: a bar on a terminal, lines elsewhere.
    checkpoint : path, optional
        Folder for checkpoints, written every ``checkpoint_seconds`` and at the end; the last two are kept.
    resume : bool, default True
        Continue from a checkpoint of the same training in that folder: ends in bitwise the weights of an
        uninterrupted run at the same number of threads. False starts anew.

    Returns
    -------
    TrainingResult
        ``state`` is ``"converged"``, ``"budget"``, ``"diverged"`` or ``"interrupted"``; anything but converged is
        also a :class:`~isthmus.ConvergenceWarning`. After a non-finite loss the last good weights are kept.

    Examples
    --------
    >>> import torch, isthmus
    >>> X = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> net = isthmus.FullyConnected([3, 8, 8, 2], slope=1.0, generator=torch.Generator().manual_seed(1))
    >>> isthmus.train(net, X, X[:, :2], ridge=1e-2).state
    'converged'
    """
    who = "train"
    check_choice(who, "loss", loss, LOSSES)
    check_number(who, "ridge", ridge, low=0.0)
    check_number(who, "tolerance", tolerance, low=0.0)
    if not isinstance(net, nn.Module):
        fail(who, "`net` must be a torch.nn.Module", type(net).__name__, "Pass e.g. isthmus.FullyConnected(dims).")
    inputs, targets = checked_data(net, X, Y, loss)
    plan = tuple(
        default_plan(net, targets, ridge=ridge, loss=loss, learning_rate=learning_rate) if phases is None else phases
    )
    for phase in plan:
        if not isinstance(phase, Phase):
            fail(who, "`phases` must be Phase objects", repr(phase), 'Pass e.g. [Phase("adam", 100, 1e-3)].')
        if phase.method == "narrow" and not can_narrow(net):
            must = "`net` must be a FullyConnected without frozen parameters for the phase 'narrow'"
            fail(who, must, type(net).__name__, "Leave that phase out.")
    settings = {
        "ridge": float(ridge),
        "loss": loss,
        "phases": [dataclasses.asdict(p) for p in plan],
        "tolerance": float(tolerance),
        "seed": check_integer(who, "seed", seed, low=0),
    }
    run = _Training(net, inputs, targets, settings, plan, tuple(callbacks))
    if max_seconds is not None:
        run.deadline = time.monotonic() + check_number(who, "max_seconds", max_seconds, low=0.0)
    if checkpoint is not None:
        check_number(who, "checkpoint_seconds", checkpoint_seconds, low=0.0)
        run.use_checkpoints(Path(checkpoint), checkpoint_seconds, resume)
    show = show_progress if callable(show_progress) else (progress if show_progress else silent)
    with show(sum(p.steps for p in plan), "train") as bar:
        bar.advance(sum(p.steps for p in plan[: run.phase]) + run.inside)
        result = run.go(bar)
    if result.state != "converged":
        warnings.warn(f"train: {result.reason}", ConvergenceWarning, stacklevel=2)
    return result


class _Training:
    """The state of one training: network, position in the plan, history."""

    def __init__(
        self,
        net: nn.Module,
        X: Tensor,
        Y: Tensor,
        settings: dict[str, Any],
        plan: tuple[Phase, ...],
        callbacks: tuple[Callable[[TrainingEvent], object], ...],
    ) -> None:
        self.net, self.X, self.Y, self.settings, self.plan, self.callbacks = net, X, Y, settings, plan, callbacks
        self.ridge: float = settings["ridge"]
        self.generator = torch.Generator().manual_seed(settings["seed"])
        self.phase, self.inside, self.step = 0, 0, 0
        self.history: dict[str, list[float]] = {k: [] for k in ("loss", "cost", "norm", "ridge", "phase")}
        self.evaluations = 0
        self.deadline = math.inf
        #: The module under training: ``net``, or its copy in double precision.
        self.live = net
        self.good = torch.zeros(0)
        #: Whether the phase has converged before its last step; whether it found no step.
        self.complete, self.stalled = False, False
        self.checkpoints: Checkpoints | None = None
        self.every = math.inf
        self.restored: Snapshot | None = None

    # ---------------------------------------------------------------- checkpoints

    def use_checkpoints(self, folder: Path, every: float, resume: bool) -> None:
        self.checkpoints = Checkpoints(folder, fingerprint(self.settings, self.net, [self.X, self.Y]))
        self.every = every
        if not resume:
            self.checkpoints.clear()
            return
        self.restored = self.checkpoints.read()
        if self.restored is not None:
            numbers = self.restored.numbers
            self.phase, self.inside, self.step = numbers["phase"], numbers["inside"], numbers["step"]
            self.evaluations, self.complete = numbers["evaluations"], numbers["complete"]
            self.history = {k: self.restored.tensors[f"history.{k}"].tolist() for k in self.history}
            self.generator.set_state(self.restored.tensors["generator"])

    def snapshot(self, objective: FlatObjective, optimiser: Optimiser) -> Snapshot:
        state = optimiser.get_state()
        tensors = {
            "theta": objective.theta,
            "good": self.good,
            **{f"buffer.{i}": b for i, b in enumerate(objective.net.buffers())},
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
            "optimiser": {k: repr(v) for k, v in state.numbers.items()},
        }
        return Snapshot(tensors, numbers)

    def restore(self, objective: FlatObjective, optimiser: Optimiser) -> None:
        if self.restored is None:
            return
        prefix = "optimiser."
        tensors = {k: v.to(objective.theta.device) for k, v in self.restored.tensors.items()}
        objective.theta.copy_(tensors["theta"])
        self.good = tensors["good"]
        for i, buffer in enumerate(objective.net.buffers()):
            buffer.copy_(tensors[f"buffer.{i}"])
        optimiser.set_state(
            OptimiserState(
                {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)},
                {k: float(v) for k, v in self.restored.numbers["optimiser"].items()},
            )
        )
        self.restored = None

    def optimiser(self, phase: Phase, objective: FlatObjective) -> Optimiser:
        if phase.method == "scale":
            return ScaleDown()
        if not phase.quasi_newton:
            return FirstOrder(phase, objective.theta, self.generator)
        metric = metric_for(objective.net, self.settings["loss"]) if phase.metric else None
        kind = Narrow if phase.method == "narrow" else LBFGS
        return kind(phase, objective.theta, metric, self.generator)

    # ---------------------------------------------------------------- the loop

    def go(self, bar: Progress) -> TrainingResult:
        began = time.monotonic()
        state, reason = "budget", ""
        while self.phase < len(self.plan):
            phase = self.plan[self.phase]
            double = phase.precision == "double"
            net = copy.deepcopy(self.net).double() if double else self.net
            X = self.X.double() if double else self.X
            Y = self.Y.double() if double and self.Y.is_floating_point() else self.Y
            objective = FlatObjective(net, X, Y, self.settings["loss"])
            with objective.attached():
                outcome = self.run_phase(phase, objective, bar)
            self.evaluations += objective.evaluations
            if double:
                with torch.no_grad():
                    mine, others = ([*m.parameters(), *m.buffers()] for m in (self.net, net))
                    for own, other in zip(mine, others):
                        own.copy_(other)
            if outcome is not None:
                state, reason = outcome
                break
            self.phase, self.inside, self.complete = self.phase + 1, 0, False
        return self.finish(state, reason, time.monotonic() - began)

    def run_phase(self, phase: Phase, objective: FlatObjective, bar: Progress) -> tuple[str, str] | None:
        """Run one phase; (state, reason) when the whole training must stop."""
        newton, optimiser = phase.quasi_newton, self.optimiser(phase, objective)
        self.live, self.good = objective.net, objective.theta.clone()
        self.restore(objective, optimiser)
        spare = torch.empty_like(self.good)
        saved = shown = time.monotonic()
        pending = 0
        stopped: tuple[str, str] | None = None
        try:
            while self.inside < phase.steps and not self.complete and not optimiser.finished:
                if self.step > 0 and not self.final(phase) and adaptive.due(objective.net, self.inside, newton=newton):
                    # The objective changes with the steps; in the last phase it must stand still.
                    adaptive.adapt(objective, [self.good])
                    optimiser.forget()
                ridge = self.ridge * phase.ridge_factor(self.inside)
                before = None if newton else spare.copy_(objective.theta)
                with objective.threads():
                    value = optimiser.step(objective, self.inside, ridge)
                if self.exploded(value, ridge, newton):
                    return self.diverged(objective, value)
                # What was evaluated and found finite: the point before the move, except for quasi-Newton steps.
                self.good, spare = spare.copy_(objective.theta) if before is None else before, self.good
                stopped = self.record(value, ridge)
                pending += 1
                now = time.monotonic()
                if now - shown > 0.2 or self.inside == phase.steps:
                    bar.advance(pending, **self.numbers(value))
                    shown, pending = now, 0
                self.complete = phase.method == "lbfgs" and self.inside % 10 == 0 and self.settled(phase, value, ridge)
                if now - saved > self.every and self.inside < phase.steps:
                    self.save(objective, optimiser)
                    saved = now
                if stopped is None and now > self.deadline and not self.complete:
                    stopped = ("budget", "the time given by `max_seconds` is over")
                if stopped is not None:
                    break
            bar.advance(pending if stopped else pending + phase.steps - self.inside)
            if not newton and self.inside:
                # The last move has not been looked at.
                ridge = self.ridge * phase.ridge_factor(self.inside)
                value = objective(ridge)
                if self.exploded(value, ridge, newton):
                    return self.diverged(objective, value)
            self.save(objective, optimiser)
        except KeyboardInterrupt:
            # The interrupt may have come between two halves of a step.
            objective.theta.copy_(self.good)
            stopped = ("interrupted", f"interrupted at step {self.step}; the weights so far are kept")
        self.stalled = phase.method == "lbfgs" and optimiser.finished
        if stopped is None and self.final(phase) and (self.complete or self.meets_stalled(objective)):
            balanced = " and the parameters are balanced" if isinstance(objective.net, Layered) else ""
            return "converged", f"the loss has stopped falling{balanced}"
        if stopped is not None and isinstance(optimiser, Narrow):
            # The checkpoint keeps the attempt; the weights handed back are those from before it.
            optimiser.abandon(objective)
        return stopped

    def exploded(self, value: Value, ridge: float, newton: bool) -> bool:
        """Whether the loss is not finite, or far above that of the first point at this ridge (no line search)."""
        if not value.finite or newton or not self.history["loss"]:
            return not value.finite
        first = self.history["cost"][0] + ridge * self.history["norm"][0]
        return value.loss > EXPLOSION * max(abs(first), 1e-12)

    def diverged(self, objective: FlatObjective, value: Value) -> tuple[str, str]:
        objective.theta.copy_(self.good)
        what = "exploding" if value.finite else "non-finite"
        method = self.plan[self.phase].method
        return "diverged", f"{what} loss at step {self.step} ({method}); the last good weights are kept"

    def meets_stalled(self, objective: FlatObjective) -> bool:
        """Whether L-BFGS ended because nothing lowers the loss, at a point that is balanced."""
        if not self.stalled:
            return False
        found = criteria(objective.net, objective(self.ridge), self.ridge, [], WINDOW, stalled=True)
        return found.met(self.settings["tolerance"])

    def save(self, objective: FlatObjective, optimiser: Optimiser) -> None:
        if self.checkpoints is not None:
            self.checkpoints.write(self.snapshot(objective, optimiser))

    def record(self, value: Value, ridge: float) -> tuple[str, str] | None:
        for key, number in zip(self.history, (value.loss, value.cost, value.norm, ridge, float(self.phase))):
            self.history[key].append(number)
        self.step, self.inside = self.step + 1, self.inside + 1
        event = TrainingEvent(self.step, self.phase, value.loss, value.cost, value.norm, ridge, self.live)
        for callback in self.callbacks:
            if callback(event) is True:
                return "interrupted", f"stopped by a callback at step {self.step}"
        return None

    def numbers(self, value: Value) -> dict[str, float]:
        shown = {"loss": value.loss, "cost": value.cost}
        if isinstance(self.live, Layered):
            shown["‖θ‖²/L"] = value.norm / len(self.live.Ws)
            shown["rank"] = outstanding(self.live)
        return shown

    def settled(self, phase: Phase, value: Value, ridge: float) -> bool:
        """Whether an L-BFGS phase at constant ridge has converged; on the way ten times more loosely."""
        tolerance = self.settings["tolerance"] * (1.0 if self.final(phase) else 10.0)
        return criteria(self.live, value, ridge, recent(self.history, WINDOW), WINDOW).met(tolerance)

    def final(self, phase: Phase) -> bool:
        """Whether nothing but the same at the full ridge can follow."""
        rest = self.plan[self.phase :]
        return all(
            p.method == "lbfgs" and p.ridge_start == p.ridge_end == 1.0 and p.precision == phase.precision for p in rest
        )

    # ---------------------------------------------------------------- the end

    def finish(self, state: str, reason: str, seconds: float) -> TrainingResult:
        objective = FlatObjective(self.net, self.X, self.Y, self.settings["loss"])
        with objective.attached():
            value = objective(self.ridge)
        phases = self.history["phase"]
        judged = bool(phases) and self.plan[int(phases[-1])].method == "lbfgs"
        losses = recent(self.history, WINDOW) if judged else []
        found = criteria(self.net, value, self.ridge, losses, WINDOW, stalled=self.stalled)
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
            steps=self.step,
            evaluations=self.evaluations,
            seconds=seconds,
            history={k: np.array(v) for k, v in self.history.items()},
            settings=self.settings,
        )
