"""Computations that an optimiser requests during a step, done for one network or for several at once.

An optimiser is written for one network, as a generator: where it needs something worth sharing it yields a request, and
goes on with the answer. :func:`drive` runs one such generator, or many side by side; then it answers requests of one
kind together. So every network has its own line search, curvature, random numbers and end, and all share the products.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from operator import is_not
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from isthmus.networks._metric import KroneckerMetric
from isthmus.training._objective import Objective, Value

Result = TypeVar("Result")
#: Yields requests, gets their answers, ends with a result.
Steps = Generator["Request", Any, Result]


class Request(ABC):
    """A computation that can be done alone or together with others of its kind."""

    __slots__ = ()
    #: Of several kinds that wait, the first is answered first: who is behind in its step catches up with the others.
    order: ClassVar[int] = 0

    @abstractmethod
    def answer(self) -> Any:
        """The result for one network."""

    @staticmethod
    def answer_all(requests: Sequence[Any]) -> Sequence[Any]:
        """The results for several networks, in their order."""
        return [request.answer() for request in requests]


class Evaluate(Request):
    """Value and gradient at ``theta``; of all samples unless there is a ``batch``."""

    __slots__ = ("batch", "fleeting", "objective", "ridge")

    def __init__(self, objective: Objective, ridge: float, batch: Tensor | None = None, fleeting: bool = False) -> None:
        self.objective, self.ridge, self.batch, self.fleeting = objective, ridge, batch, fleeting

    def answer(self) -> Value:
        """The result for one network."""
        return self.objective(self.ridge, self.batch, fleeting=self.fleeting)

    @staticmethod
    def answer_all(requests: Sequence[Evaluate]) -> Sequence[Value]:
        """The results for several networks, in their order."""
        found: dict[int, Value] = {}
        stacks: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            if request.batch is None and request.objective.stack.together:
                stacks.setdefault(id(request.objective.stack), []).append(place)
            else:
                found[place] = request.answer()
        for places in stacks.values():
            chosen = [requests[place] for place in places]
            objectives, ridges = [r.objective for r in chosen], [r.ridge for r in chosen]
            fleeting = all(r.fleeting for r in chosen)
            found.update(zip(places, objectives[0].stack.evaluate(objectives, ridges, fleeting=fleeting)))
        return [found[place] for place in range(len(requests))]


class Refresh(Request):
    """Estimate the factors of a metric at ``theta``."""

    __slots__ = ("generator", "metric", "objective")
    order: ClassVar[int] = 1

    def __init__(self, metric: KroneckerMetric, objective: Objective, generator: torch.Generator) -> None:
        self.metric, self.objective, self.generator = metric, objective, generator

    def answer(self) -> None:
        """The result for one network."""
        self.metric.refresh(self.objective.theta, self.objective.X, [self.generator])

    @staticmethod
    def answer_all(requests: Sequence[Refresh]) -> Sequence[None]:
        """With one propagation for all of them where that is possible."""
        first = requests[0].metric
        alike = len({(id(r.objective.stack), type(r.metric)) for r in requests}) == 1
        if len(requests) == 1 or not (first.several and alike):
            return [r.answer() for r in requests]
        joint = copy.copy(first)
        joint.tensors = {}
        theta = torch.stack([r.objective.theta for r in requests])
        inputs = [r.objective.X for r in requests]
        X = inputs[0] if all(T is inputs[0] for T in inputs) else torch.stack(inputs)
        joint.refresh(theta, X, [r.generator for r in requests])
        for row, request in enumerate(requests):
            request.metric.tensors = {name: T[row] for name, T in joint.tensors.items()}
        return [None] * len(requests)


class Solve(Request):
    """H⁻¹·v for the rows v of ``vectors``."""

    __slots__ = ("metric", "ridge", "vectors")
    order: ClassVar[int] = 3

    def __init__(self, metric: KroneckerMetric, vectors: Tensor, ridge: float) -> None:
        self.metric, self.vectors, self.ridge = metric, vectors, ridge

    def answer(self) -> Tensor:
        """The result for one network."""
        return self.metric.solve(self.vectors, [self.ridge])

    @staticmethod
    def answer_all(requests: Sequence[Solve]) -> Sequence[Tensor]:
        """As one batch of products for networks of one shape and as many vectors."""
        found: dict[int, Tensor] = {}
        groups: dict[Any, list[int]] = {}
        for place, r in enumerate(requests):
            key = (type(r.metric), r.vectors.shape, r.vectors.dtype) if r.metric.several else place
            groups.setdefault(key, []).append(place)
        for places in groups.values():
            chosen = [requests[place] for place in places]
            if len(chosen) == 1:
                found[places[0]] = chosen[0].answer()
                continue
            joint = _joint([r.metric for r in chosen])
            answers = joint.solve(torch.stack([r.vectors for r in chosen]), [r.ridge for r in chosen])
            found.update(zip(places, answers.unbind()))
        return [found[place] for place in range(len(requests))]


def _joint(metrics: Sequence[KroneckerMetric]) -> KroneckerMetric:
    """The metrics of several networks as one; kept with the first, until one of them is estimated anew."""
    first = metrics[0]
    states = [m.tensors for m in metrics]
    if first.joint is None or len(first.joint[0]) != len(states) or any(map(is_not, first.joint[0], states)):
        joint = copy.copy(first)
        # Without the last one, which would hold the one before it, and so on.
        joint.joint = None
        joint.tensors = {name: torch.stack([own[name] for own in states]) for name in first.tensors}
        first.joint = states, joint
    return first.joint[1]


class Adam(Request):
    """Step number ``step`` (from 0) of Adam with its usual constants, in place."""

    __slots__ = ("gradient", "mean", "rate", "square", "step", "theta")
    order: ClassVar[int] = 6

    def __init__(self, theta: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: int, rate: float) -> None:
        self.theta, self.gradient, self.mean, self.square = theta, gradient, mean, square
        self.step, self.rate = step, rate

    def answer(self) -> None:
        """The result for one network."""
        adam_([self.theta], [self.gradient], [self.mean], [self.square], self.step, self.rate)

    @staticmethod
    def answer_all(requests: Sequence[Adam]) -> Sequence[None]:
        """One call for all that are at the same step."""
        groups: dict[tuple[int, float], list[Adam]] = {}
        for r in requests:
            groups.setdefault((r.step, r.rate), []).append(r)
        for (step, rate), chosen in groups.items():
            thetas, gradients = [r.theta for r in chosen], [r.gradient for r in chosen]
            adam_(thetas, gradients, [r.mean for r in chosen], [r.square for r in chosen], step, rate)
        return [None] * len(requests)


def adam_(
    thetas: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor], step: int, rate: float
) -> None:
    """PyTorch's fused kernel, called itself: one pass over what takes eight otherwise, and the function around it takes
    as long as a small network's step.
    """
    count = torch.full((), step + 1.0, device=thetas[0].device)
    torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
        thetas,
        gradients,
        means,
        squares,
        [],
        [count] * len(thetas),
        lr=rate,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def drive(runs: Sequence[Steps[Result]]) -> list[Result]:
    """Run generators to their ends, side by side; their results. Whatever is raised closes them all."""
    try:
        return [_drive_one(runs[0])] if len(runs) == 1 else _drive_many(runs)
    finally:
        for run in runs:
            run.close()


def _drive_one(run: Steps[Result]) -> Result:
    answer = None
    try:
        while True:
            answer = run.send(answer).answer()
    except StopIteration as end:
        return end.value


class _Waiting(NamedTuple):
    run: int
    request: Request


def _drive_many(runs: Sequence[Steps[Result]]) -> list[Result]:
    results: dict[int, Result] = {}
    waiting: list[_Waiting] = []

    def advance(run: int, answer: Any) -> None:
        try:
            waiting.append(_Waiting(run, runs[run].send(answer)))
        except StopIteration as end:
            results[run] = end.value

    for run in range(len(runs)):
        advance(run, None)
    while waiting:
        first = min(each.request.order for each in waiting)
        # In the order of the networks: what is computed together does not depend on who came last.
        served = sorted((each for each in waiting if each.request.order == first), key=lambda each: each.run)
        waiting = [each for each in waiting if each.request.order != first]
        answers = type(served[0].request).answer_all([each.request for each in served])
        for each, answer in zip(served, answers):
            advance(each.run, answer)
    return [results[run] for run in range(len(runs))]
