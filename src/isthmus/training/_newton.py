"""Quasi-Newton steps that start from the Hessian itself, kinks included.

The loss with rounded kinks is continuously differentiable and piecewise smooth; within its parabola an entry z adds
δ·∇z∇zᵀ/2h to the Hessian, for the derivative δ of the loss by what its activation gives. L-BFGS that starts from this
matrix needs some ten steps where from the identity it needs thousands. Of larger networks the parameters are held near
a point, which moves: small gradients are reached without walking a valley to its end. Derivations are in
docs/notes/stationarity.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from isthmus._activations import preactivations
from isthmus._kinks import Kinked
from isthmus.measures._stationarity import STATIONARY
from isthmus.training._coupled import MOST_KINKS, CoupledMetric
from isthmus.training._first_order import OptimiserState
from isthmus.training._lbfgs import LBFGS
from isthmus.training._objective import Objective, Value
from isthmus.training._phases import MOST_PARAMETERS
from isthmus.training._requests import Steps

#: Steps between two Hessians: at least the first, and one for so many parameters in effect, which they take longer for.
EVERY, EACH = 30, 10

#: Where parameters are held: steps between two looks whether to move on; that is done where the gradient is this share
#: of what holds them, and after so many steps.
LOOK, NEAR, LONGEST = 10, 0.3, 300

#: After so few steps they are held half as tightly, after so many twice; never less than this many times the ridge.
FEW, LONG, LEAST = 10.0, 120.0, 0.1


class Newton(LBFGS):
    """L-BFGS from the Hessian of the rounded loss, from the coupled metric, or, where there is none, from the identity.

    What it starts from is a function of the point where it was computed: from there it is computed again after a pause.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.at: Tensor | None = None
        self.live = torch.zeros(0, dtype=torch.int64)
        self.factor: Tensor | None = None
        self.coupled: CoupledMetric | None = None
        #: Whether these are those of the point ``at``.
        self.known = False
        #: Where the parameters are held, and where they were at the last move.
        self.centre: Tensor | None = None
        self.before: Tensor | None = None
        #: Kinks that the coupled metric knows, as places and weights in each activation: parabolas have moved since.
        self.kinks: dict[str, Tensor] = {}
        self.numbers |= {"pull": self.phase.pull, "pull of metric": self.phase.pull}
        self.numbers |= {"inner": 0.0, "due": 0.0, "age": 0.0}

    def get_state(self) -> OptimiserState:
        """Of L-BFGS, where the Hessian was computed, and where the parameters are held."""
        points = {"at": self.at, "centre": self.centre, "before": self.before}
        kept = {name: point for name, point in points.items() if point is not None}
        return OptimiserState({**self.pairs.get_state(), **kept, **self.kinks}, self.numbers)

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``."""
        self.numbers, self.value = {**self.numbers, **state.numbers}, None
        self.pairs.set_state(state.tensors)
        self.at, self.known = state.tensors.get("at"), False
        self.centre, self.before = state.tensors.get("centre"), state.tensors.get("before")
        self.kinks = {name: T for name, T in state.tensors.items() if name.startswith("kinks.")}

    def forget(self) -> None:
        """Drop what was computed from the former objective."""
        super().forget()
        self.at, self.known, self.centre, self.before = None, False, None, None

    @property
    def scaled(self) -> bool:
        """Whether there is a Hessian or a metric."""
        return self.factor is not None or self.coupled is not None

    def step(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:
        """One step; the value returned is that without what holds the parameters."""
        if not self.phase.pull:
            return (yield from super().step(objective, step, ridge))
        if self.centre is None or self.numbers["due"]:
            self._move(objective, ridge)
        objective.hold(self.centre, 2.0 * ridge * self.numbers["pull"])
        value = yield from super().step(objective, step, ridge)
        self._judge(objective, value, ridge)
        return objective.released(value, ridge)

    def _move(self, objective: Objective, ridge: float) -> None:
        """Hold the parameters where they are now, the parabolas at their slopes, more or less tightly than before."""
        numbers, before = self.numbers, self.numbers["pull"]
        if self.centre is not None:
            objective.hold(None)
            objective.set_rounding(objective.moved(self.phase.band))
            if numbers["inner"] <= FEW:
                numbers["pull"] = max(0.5 * before, LEAST)
            elif numbers["inner"] >= LONG:
                numbers["pull"] = 2.0 * before
            if numbers["pull"] != before:
                # Gradients change by 2·ridge·Δ·(θ − centre), hence their differences exactly by that of s.
                self.pairs.move_ridge(ridge * (numbers["pull"] - before))
        theta = objective.theta.clone()
        if self.before is not None and self.centre is not None:
            # Nesterov's centres: further on the way, from the beginning where the last one was too far for the loss.
            way = theta - self.before
            numbers["age"] = 0.0 if float((self.centre - theta) @ way) > 0.0 else numbers["age"] + 1.0
            self.centre = theta + way * (numbers["age"] / (numbers["age"] + 3.0))
        else:
            self.centre = theta
        self.before, self.value = theta, None
        numbers |= {"inner": 0.0, "due": 0.0}

    def _judge(self, objective: Objective, value: Value, ridge: float) -> None:
        """Whether the gradient that is left is small beside what holds the parameters: then it is time to move on."""
        numbers, centre = self.numbers, self.centre
        numbers["inner"] += 1.0
        stuck = self.finished and numbers["inner"] > 1.0
        due = stuck or numbers["inner"] >= LONGEST
        if not due and numbers["inner"] % LOOK == 0.0 and centre is not None:
            away = 2.0 * ridge * numbers["pull"] * float((objective.theta - centre).norm())
            force = 2.0 * ridge * math.sqrt(value.norm)
            due = float(value.gradient.norm()) <= max(NEAR * away, 0.1 * STATIONARY * force)
        if stuck:
            numbers["stalled"] = 0.0
        numbers["due"] = float(due)

    def _prepare(self, objective: Objective, step: int, ridge: float) -> Steps[None]:
        """A Hessian where it is time for one; the coupled metric once in a phase."""
        if self.at is not None and not self.known:
            self._compute(objective, self.at, ridge)
        few = not (self.phase.pull or self.kinks or len(self.live) > MOST_PARAMETERS)
        if self.at is None or (few and step % max(EVERY, len(self.live) // EACH) == 0):
            self.at, self.kinks = objective.theta.clone(), {}
            self.numbers["pull of metric"] = self.numbers["pull"]
            self._forget()
            self._compute(objective, self.at, ridge)
        yield from ()

    def _first_guess(self, vectors: Tensor, ridge: float) -> Steps[Tensor]:
        yield from ()
        if self.coupled is not None:
            return self.coupled.solve(vectors)
        if self.factor is None:
            return vectors
        solved = vectors / (2.0 * ridge)
        solved[:, self.live] = torch.cholesky_solve(vectors[:, self.live].mT, self.factor).mT
        return solved

    def _compute(self, objective: Objective, theta: Tensor, ridge: float) -> None:
        """The Hessian in the parameters that the cost depends on; along all others it is 2·ridge."""
        self.factor, self.coupled, self.known = None, None, True
        if self.kinks:
            self._couple(objective, theta, ridge)
            return
        model = Kinked(objective.net, objective.X, objective.Y, objective.stack.loss, ridge, objective.stack.rows)
        rounded = objective.rounded
        zs = model.z(theta, lambda place, Z, a, part: rounded[place].of_rows(part).value(Z, a))
        shares = [one.share(z) for one, z in zip(rounded, zs)]
        slopes = [a + (1.0 - a) * D for a, D in zip(model.kinds, shares)]
        offsets = [one.value(z, a) - S * z for one, z, a, S in zip(rounded, zs, model.kinds, slopes)]
        gradient, _, pulled = model.first_order(theta, slopes, offsets)
        self.live = ((theta != 0.0) | (gradient - 2.0 * ridge * theta != 0.0)).nonzero()[:, 0]
        weights = [(1.0 - a) * one / (2.0 * own.band) for a, one, own in zip(model.kinds, pulled, rounded)]
        active = [(D > 0.0) & (D < 1.0) & (weight > 0.0) for D, weight in zip(shares, weights)]
        if self.phase.pull or len(self.live) > MOST_PARAMETERS:
            if len(objective.X) <= objective.stack.rows:
                for place, (mask, weight) in enumerate(zip(active, weights)):
                    stiff = torch.where(mask, weight, 0.0).reshape(-1).topk(min(MOST_KINKS, int(mask.sum())))
                    self.kinks |= {f"kinks.{place}.places": stiff.indices, f"kinks.{place}.weights": stiff.values}
            self._couple(objective, theta, ridge)
            return
        H, G = model.second_order(theta, slopes, offsets, active, self.live)
        weight = torch.cat([theta[:0], *(one[mask] for one, mask in zip(weights, active))])
        H += G.mT @ (weight[:, None] * G)
        damping = 0.0
        while True:
            factor, failed = torch.linalg.cholesky_ex(H)
            if int(failed) == 0:
                self.factor = factor
                return
            more = max(2.0 * damping, 1e-3 * 2.0 * ridge)
            H.diagonal().add_(more - damping)
            damping = more

    def _couple(self, objective: Objective, theta: Tensor, ridge: float) -> None:
        """The coupled metric at ``theta`` with the kinks that are known, where the network has one."""
        if self.metric is None:
            return
        weights = []
        for place, z in enumerate(preactivations(objective.net, objective.X[:1]) if self.kinks else ()):
            weight = z.new_zeros(len(objective.X), *z.shape[1:])
            weight.view(-1)[self.kinks[f"kinks.{place}.places"]] = self.kinks[f"kinks.{place}.weights"]
            weights.append(weight)
        held = ridge * (1.0 + self.numbers["pull of metric"])
        self.coupled = CoupledMetric(self.metric, theta, objective.X, held, weights)
