"""L-BFGS with a weak Wolfe line search, and its memory of curvature pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.networks._metric import KroneckerMetric
from isthmus.networks._network import hooks_of
from isthmus.training._first_order import OptimiserState
from isthmus.training._objective import Objective, Value
from isthmus.training._phases import Phase
from isthmus.training._requests import Evaluate, Refresh, Request, Solve, Steps

#: Rows begin at a multiple of so many bytes. Where they begin elsewhere some processors sum in another order: a
#: training that goes on from a file, with its rows at other places, would not come to the same bits.
ALIGNED = 64

#: A pair is kept if s·t is more than this share of |s||t|.
CURVED = 1e-10

#: Entries of S up to which those of some networks are copied to be computed together: small ones wait for calls.
COPIED = 2**16

#: The number of a network, or those of several.
Which = int | slice | Tensor


class Memory:
    """Memory for the pairs of several networks of one shape: S and T (B, rows, P), products (B, rows, rows).

    There is room for a quarter more than is kept: rows are written one after the other, and moved to the front when the
    end is reached. With millions of parameters a new matrix at every step took as long as a gradient. Networks that go
    side by side have their rows at the same places, and are computed together without being copied.
    """

    def __init__(self, size: int, like: Tensor, count: int = 1) -> None:
        each = ALIGNED // like.element_size()
        self.size, self.full = size, size + -(-size // 4)
        self.length = like.shape[-1]
        self.S = like.new_empty((count, 0, -(-self.length // each) * each))
        self.T = self.S
        self.products = torch.zeros((count, 0, 0), dtype=torch.float64, device=like.device)
        self.squares: Tensor | None = None

    @property
    def rows(self) -> int:
        """The largest number of pairs of one network."""
        return self.S.shape[1]

    def write(self, which: Which, begin: int, end: int, s: Tensor, t: Tensor) -> tuple[int, int]:
        """A new pair behind those from ``begin`` to ``end``, of one network or several; where their pairs are then."""
        if end == self.rows:
            begin, end = self._make_room(which, begin, end)
        self.S[which, end, : self.length] = s
        self.T[which, end, : self.length] = t
        begin, end = max(begin, end + 1 - self.size), end + 1
        column = _along(self.S[which, begin:end, : self.length], t)
        self.products[which, begin:end, end - 1] = column.to(self.products.dtype)
        if self.squares is not None:
            column = _along(self.S[which, begin:end, : self.length], s)
            self.squares[which, begin:end, end - 1] = column.to(self.squares.dtype)
        return begin, end

    def _make_room(self, which: Which, begin: int, end: int) -> tuple[int, int]:
        if self.rows < self.full:
            # Little at first: short trainings never fill it.
            self._grow(min(self.full, max(4, 2 * self.rows)))
            return begin, end
        begin = max(begin, end - self.size + 1)
        count = end - begin
        for M in (self.S, self.T):
            # In parts that do not overlap with where they go.
            for start in range(0, count, begin):
                stop = min(start + begin, count)
                M[which, start:stop] = M[which, begin + start : begin + stop]
        for M in (self.products, self.squares):
            if M is not None:
                M[which, :count, :count] = M[which, begin:end, begin:end].clone()
        return 0, count

    def _grow(self, rows: int) -> None:
        before = self.rows
        for name in ("S", "T"):
            old = getattr(self, name)
            new = old.new_empty((len(old), rows, old.shape[2]))
            new[:, :before] = old
            setattr(self, name, new)
        self.products = _enlarged(self.products, rows)
        self.squares = None if self.squares is None else _enlarged(self.squares, rows)


def _enlarged(M: Tensor, rows: int) -> Tensor:
    new = M.new_zeros((len(M), rows, rows))
    new[:, : M.shape[1], : M.shape[1]] = M
    return new


class Pairs:
    """Steps s_i and changes t_i of the gradient, the newest last, with their products s_i·t_j for i ≤ j.

    The products are kept and not computed anew: for matrices so long and so few rows that takes longer than all else.
    """

    def __init__(self, size: int, like: Tensor, memory: Memory | None = None, index: int = 0) -> None:
        self.memory, self.index = Memory(size, like) if memory is None else memory, index
        self.begin = self.end = 0
        #: Whether products of S with itself have been needed: once the ridge moves.
        self.squared = False

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def S(self) -> Tensor:
        """Steps as rows: a view."""
        return self.memory.S[self.index, self.begin : self.end, : self.memory.length]

    @property
    def T(self) -> Tensor:
        """Changes of the gradient as rows: a view."""
        return self.memory.T[self.index, self.begin : self.end, : self.memory.length]

    @property
    def products(self) -> Tensor:
        """The upper triangle of S·Tᵀ: a view. Entries below the diagonal are undefined."""
        return self.memory.products[self.index, self.begin : self.end, self.begin : self.end]

    def append(self, s: Tensor, t: Tensor) -> None:
        """The newest pair; the oldest is dropped where there are as many as are kept."""
        self.begin, self.end = self.memory.write(self.index, self.begin, self.end, s, t)

    def move_ridge(self, change: float) -> None:
        """Another ridge: gradients change by 2·Δ·θ, hence their differences by 2·Δ·s, exactly."""
        squares = self._squares()
        if not self.squared:
            squares.copy_(self.S @ self.S.mT)
            self.squared = True
        self.T.add_(self.S, alpha=2.0 * change)
        self.products.add_(squares, alpha=2.0 * change)

    def _squares(self) -> Tensor:
        """The upper triangle of S·Sᵀ, once it is kept: a view."""
        memory = self.memory
        if memory.squares is None:
            memory.squares = torch.zeros_like(memory.products)
        return memory.squares[self.index, self.begin : self.end, self.begin : self.end]

    def clear(self) -> None:
        """Drop all pairs. The next is written behind the last, as those of the other networks."""
        self.begin, self.squared = self.end, False

    def get_state(self) -> dict[str, Tensor]:
        """Everything, to continue to the same bits."""
        found = {"S": self.S, "T": self.T, "products": self.products.triu()}
        return {**found, "squares": self._squares().triu()} if self.squared else found

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what :meth:`get_state` gave."""
        self.clear()
        for s, t in zip(tensors["S"], tensors["T"]):
            self.append(s, t)
        if "products" in tensors:
            self.products.copy_(tensors["products"])
        if "squares" in tensors:
            self._squares().copy_(tensors["squares"])
            self.squared = True


# ---- The two-loop recursion, its sums over pairs as triangular systems, of one network or of many side by side
#
# With α_i = s_i·q_i/(s_i·t_i) and q_i = −g − Σ_{j>i} α_j t_j, the first loop solves (upper part of S·Tᵀ) α = −S·g; with
# δ_i = α_i − β_i the second solves (lower part of T·Sᵀ) δ = d∘α − T·q, d the diagonal of both. Products hold the upper
# part; what is below their diagonal is not read.


def first_loop(S: Tensor, T: Tensor, products: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(α, (q, t) as rows), t the newest change of the gradient; with one more axis in front for several networks."""
    right = _along(S, -gradient).double()[..., None]
    alpha = torch.linalg.solve_triangular(products.contiguous(), right, upper=True)[..., 0]
    vectors = torch.stack([gradient, T[..., -1, :]], -2)
    vectors[..., 0, :].add_(_combined(T, alpha.to(T.dtype))).neg_()
    return alpha, vectors


def second_loop(S: Tensor, T: Tensor, products: Tensor, alpha: Tensor, images: Tensor) -> Tensor:
    """The direction, from the images of the first loop's two vectors."""
    diagonal = products.diagonal(dim1=-2, dim2=-1)
    image = images[..., 1, :]
    scale = diagonal[..., -1].to(T.dtype) / _along(T[..., -1:, :], image)[..., 0]
    q = images[..., 0, :] * scale[..., None]
    right = diagonal * alpha - _along(T, q).double()
    delta = torch.linalg.solve_triangular(products.contiguous().mT, right[..., None], upper=False)[..., 0]
    return q.add_(_combined(S, delta.to(S.dtype)))


def _along(rows: Tensor, vector: Tensor) -> Tensor:
    """Products of each row with the vector."""
    return rows @ vector if vector.ndim == 1 else torch.bmm(vector[:, None], rows.mT)[:, 0]


def _combined(rows: Tensor, weights: Tensor) -> Tensor:
    """The sum of the rows with these weights."""
    return rows.mT @ weights if weights.ndim == 1 else torch.bmm(weights[:, None], rows)[:, 0]


class FirstLoop(Request):
    """:func:`first_loop` of one network's pairs."""

    __slots__ = ("gradient", "pairs")
    order: ClassVar[int] = 2

    def __init__(self, pairs: Pairs, gradient: Tensor) -> None:
        self.pairs, self.gradient = pairs, gradient

    def answer(self) -> tuple[Tensor, Tensor]:
        """The result for one network."""
        return first_loop(self.pairs.S, self.pairs.T, self.pairs.products, self.gradient)

    @staticmethod
    def answer_all(requests: Sequence[FirstLoop]) -> Sequence[tuple[Tensor, Tensor]]:
        """Of networks with as many pairs together."""

        def compute(chosen: Sequence[FirstLoop], which: Which) -> Iterable[tuple[Tensor, Tensor]]:
            return zip(*first_loop(*_several(chosen[0].pairs, which), torch.stack([r.gradient for r in chosen])))

        return _side_by_side(requests, compute)


class SecondLoop(Request):
    """:func:`second_loop` of one network's pairs."""

    __slots__ = ("alpha", "images", "pairs")
    order: ClassVar[int] = 4

    def __init__(self, pairs: Pairs, alpha: Tensor, images: Tensor) -> None:
        self.pairs, self.alpha, self.images = pairs, alpha, images

    def answer(self) -> Tensor:
        """The result for one network."""
        return second_loop(self.pairs.S, self.pairs.T, self.pairs.products, self.alpha, self.images)

    @staticmethod
    def answer_all(requests: Sequence[SecondLoop]) -> Sequence[Tensor]:
        """Of networks with as many pairs together."""

        def compute(chosen: Sequence[SecondLoop], which: Which) -> Iterable[Tensor]:
            alpha, images = torch.stack([r.alpha for r in chosen]), torch.stack([r.images for r in chosen])
            return second_loop(*_several(chosen[0].pairs, which), alpha, images).unbind()

        return _side_by_side(requests, compute)


class Remember(Request):
    """A new pair, unless its curvature is not clearly positive: it would spoil the model, and skipping it is safe."""

    __slots__ = ("pairs", "s", "t")
    order: ClassVar[int] = 5

    def __init__(self, pairs: Pairs, s: Tensor, t: Tensor) -> None:
        self.pairs, self.s, self.t = pairs, s, t

    def answer(self) -> None:
        """The result for one network."""
        if float(self.s @ self.t) > CURVED * float(self.s.norm() * self.t.norm()):
            self.pairs.append(self.s, self.t)

    @staticmethod
    def answer_all(requests: Sequence[Remember]) -> Sequence[None]:
        """Together where all have a pair to remember."""

        def compute(chosen: Sequence[Remember], which: Which) -> Iterable[None]:
            s, t = torch.stack([r.s for r in chosen]), torch.stack([r.t for r in chosen])
            if not bool(((s * t).sum(1) > CURVED * s.norm(dim=1) * t.norm(dim=1)).all()):
                return [r.answer() for r in chosen]
            memory, places = chosen[0].pairs.memory, (chosen[0].pairs.begin, chosen[0].pairs.end)
            places = memory.write(which, *places, s, t)
            for r in chosen:
                r.pairs.begin, r.pairs.end = places
            return [None] * len(chosen)

        return _side_by_side(requests, compute)


def _side_by_side(requests: Sequence[Any], compute: Callable[[Sequence[Any], Which], Iterable[Any]]) -> list[Any]:
    """Answers: together for the networks of a memory that have their pairs at the same places."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for place, r in enumerate(requests):
        groups.setdefault((id(r.pairs.memory), r.pairs.begin, r.pairs.end), []).append(place)
    found: dict[int, Any] = {}
    for places in groups.values():
        chosen = [requests[place] for place in places]
        memory = chosen[0].pairs.memory
        if len(chosen) == len(memory.S) > 1:
            found.update(zip(places, compute(chosen, slice(None))))
        elif len(chosen) > 1 and memory.size * memory.length <= COPIED:
            # Some of them must be copied out of the memory.
            found.update(zip(places, compute(chosen, torch.tensor([r.pairs.index for r in chosen]))))
        else:
            found.update((place, requests[place].answer()) for place in places)
    return [found[place] for place in range(len(requests))]


def _several(pairs: Pairs, which: Which) -> tuple[Tensor, Tensor, Tensor]:
    """S, T and products of several networks with their pairs at the same places."""
    memory, rows = pairs.memory, slice(pairs.begin, pairs.end)
    S, T = memory.S[which, rows, : memory.length], memory.T[which, rows, : memory.length]
    return S, T, memory.products[which, rows, rows]


# ---- Limited-memory BFGS with a weak Wolfe line search; its whole state is in named tensors


_SUFFICIENT = 1e-4

_CURVATURE = 0.9

_TRIALS = 25

#: Steps between two estimates of the metric.
REFRESH = 20

#: Steps between two rebalancings.
REBALANCE = 200


class LBFGS:
    """One quasi-Newton step at a time.

    The line search is the bisection of Lewis and Overton for the *weak* Wolfe conditions, which also ends at points
    where a piecewise linear network is not differentiable.
    """

    def __init__(
        self,
        phase: Phase,
        theta: Tensor,
        metric: KroneckerMetric | None,
        generator: torch.Generator,
        pairs: Pairs | None = None,
    ) -> None:
        self.phase, self.metric, self.generator = phase, metric, generator
        self.numbers = {"stalled": 0.0}
        self.pairs = Pairs(phase.memory, theta) if pairs is None else pairs
        self.value: Value | None = None

    @property
    def finished(self) -> bool:
        """Whether no step could be found along steepest descent either: rounding, or a kink."""
        return self.numbers["stalled"] > 0

    def get_state(self) -> OptimiserState:
        """Curvature pairs, metric and ridge."""
        metric = {} if self.metric is None else {f"metric.{k}": v for k, v in self.metric.tensors.items()}
        return OptimiserState({**self.pairs.get_state(), **metric}, self.numbers)

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``; the value at θ is evaluated again, to the same bits."""
        self.numbers = state.numbers
        self.pairs.set_state(state.tensors)
        if self.metric is not None:
            prefix = "metric."
            self.metric.tensors = {k[len(prefix) :]: v for k, v in state.tensors.items() if k.startswith(prefix)}
        self.value = None

    def step(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:
        """One accepted step, or none (then :attr:`finished`); the value returned is that at the new θ."""
        # With rounded kinks the function changes when neurons are rescaled.
        if step % REBALANCE == 0 and ridge > 0 and not self.phase.finishing:
            self._rebalance(objective)
        if self.value is not None:
            value = self.value.at_ridge(ridge, objective.theta)
        else:
            value = yield Evaluate(objective, ridge)
        self._move_ridge(ridge)
        if not value.finite:
            return value
        yield from self._prepare(objective, step, ridge)
        direction = yield from self._direction(value.gradient, ridge)
        slope = float(value.gradient @ direction)
        if slope >= 0:
            self._forget()
            direction, slope = -value.gradient, -float(value.gradient @ value.gradient)
        first = 1.0
        if not self.scaled and not len(self.pairs):
            first = min(1.0, 1.0 / max(float(value.gradient.abs().sum()), 1e-300))
        origin = objective.theta.clone()
        found = yield from self._search(objective, origin, direction, slope, value, first, ridge)
        if found is None:
            objective.theta.copy_(origin)
            self.numbers["stalled"] = 1.0 if not len(self.pairs) else 0.0
            self._forget()
            self.value = value
            return value
        yield Remember(self.pairs, objective.theta - origin, found.gradient - value.gradient)
        self.value = found
        return found

    @property
    def scaled(self) -> bool:
        """Whether a first step without memory has a length that can be right."""
        return self.metric is not None

    def _prepare(self, objective: Objective, step: int, ridge: float) -> Steps[None]:  # noqa: ARG002
        """Renew the metric that the direction starts from, where that is due."""
        if self.metric is not None and step % REFRESH == 0:
            yield Refresh(self.metric, objective, self.generator)

    def _rebalance(self, objective: Objective) -> None:
        """Take the decrease that costs nothing: least ‖θ‖² over rescalings of neurons, at the same function.

        These directions are the slowest of all for a quasi-Newton method: the cost is exactly flat along them.
        """
        if self.metric is None or not math.isfinite(float(objective.theta.double().square().sum())):
            return
        if not hooks_of(objective.net).rebalance_():
            return
        self._forget()
        self.value = None

    def _move_ridge(self, ridge: float) -> None:
        change = ridge - self.numbers.get("ridge", ridge)
        if change != 0.0:
            self.pairs.move_ridge(change)
        self.numbers["ridge"] = ridge

    def _direction(self, gradient: Tensor, ridge: float) -> Steps[Tensor]:
        """−H·gradient by the two-loop recursion."""
        if not len(self.pairs):
            return (yield from self._first_guess(-gradient[None], ridge))[0]
        alpha, vectors = yield FirstLoop(self.pairs, gradient)
        images = yield from self._first_guess(vectors, ridge)
        return (yield SecondLoop(self.pairs, alpha, images))

    def _first_guess(self, vectors: Tensor, ridge: float) -> Steps[Tensor]:
        """The metric's inverse on each row, where there is a metric."""
        return vectors if self.metric is None else (yield Solve(self.metric, vectors, ridge))

    def _search(
        self,
        objective: Objective,
        origin: Tensor,
        direction: Tensor,
        slope: float,
        value: Value,
        length: float,
        ridge: float,
    ) -> Steps[Value | None]:
        low, high = 0.0, math.inf
        best: tuple[float, Value] | None = None
        for _ in range(_TRIALS):
            torch.add(origin, direction, alpha=length, out=objective.theta)
            trial: Value = yield Evaluate(objective, ridge)
            if not trial.finite or trial.loss > value.loss + _SUFFICIENT * length * slope:
                high = length
            else:
                if trial.loss < value.loss and (best is None or trial.loss < best[1].loss):
                    best = (length, trial)
                if float(trial.gradient @ direction) >= _CURVATURE * slope:
                    break
                low = length
            length = 0.5 * (low + high) if high < math.inf else 2.0 * length
        if best is None:
            return None
        torch.add(origin, direction, alpha=best[0], out=objective.theta)
        return best[1]

    def forget(self) -> None:
        """The objective has changed: drop the curvature and the value at θ."""
        self._forget()
        self.value = None

    def _forget(self) -> None:
        self.pairs.clear()
