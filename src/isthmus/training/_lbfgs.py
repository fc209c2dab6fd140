"""L-BFGS with a weak Wolfe line search, and the curvature that it remembers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.networks._metric import KroneckerMetric
from isthmus.networks._network import hooks_of
from isthmus.training._first_order import OptimiserState
from isthmus.training._objective import Objective, Value
from isthmus.training._phases import Phase
from isthmus.training._requests import Evaluate, Refresh, Solve, Steps

#: Rows begin at a multiple of so many bytes. Where they begin elsewhere some processors sum in another order: a
#: training that goes on from a file, with its rows at other places, would not come to the same bits.
ALIGNED = 64


class Window:
    """The last ``size`` vectors as the rows of one matrix, in memory taken once.

    There is room for a quarter more: rows are written one after the other, and moved to the front when the end is
    reached. With millions of parameters a new matrix at every step took as long as a gradient.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        each = ALIGNED // like.element_size()
        self.size, self.length = size, len(like)
        self.memory = like.new_empty((0, -(-len(like) // each) * each))
        self.begin = self.end = 0

    @property
    def rows(self) -> Tensor:
        """A view, the newest last."""
        return self.memory[self.begin : self.end, : self.length]

    def append(self, vector: Tensor) -> None:
        """The newest row; the oldest is dropped where there are more than ``size``."""
        if self.end == len(self.memory):
            self._make_room()
        self.memory[self.end, : self.length] = vector
        self.end += 1
        self.begin = max(self.begin, self.end - self.size)

    def _make_room(self) -> None:
        last, full = self.rows[max(0, self.end - self.begin - self.size + 1) :], self.size + -(-self.size // 4)
        if len(self.memory) < full:
            # Little at first: short trainings never fill it.
            self.memory = self.memory.new_empty((min(full, max(4, 2 * len(self.memory))), self.memory.shape[1]))
        # One by one: new places and old ones overlap.
        for place, row in zip(self.memory, last):
            place[: self.length].copy_(row)
        self.begin, self.end = 0, len(last)

    def clear(self) -> None:
        """No rows."""
        self.begin = self.end = 0


class Pairs:
    """Steps s_i and changes t_i of the gradient, as rows of S and T, the newest last, with their products S·Tᵀ.

    The products are kept and not computed anew: for matrices so long and so few rows that takes longer than all else.
    Those of S with itself are needed only once the ridge moves.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self._S, self._T = Window(size, like), Window(size, like)
        self.size = size
        self.products = torch.zeros((0, 0), dtype=torch.float64, device=like.device)
        self.squares: Tensor | None = None

    def __len__(self) -> int:
        return self._S.end - self._S.begin

    @property
    def S(self) -> Tensor:
        """A view."""
        return self._S.rows

    @property
    def T(self) -> Tensor:
        """A view."""
        return self._T.rows

    def append(self, s: Tensor, t: Tensor) -> None:
        """The newest pair; the oldest is dropped where there are more than ``size``."""
        self._S.append(s)
        self._T.append(t)
        self.products = _bordered(self.products, len(self), self.S @ t, self.T @ s)
        if self.squares is not None:
            with_itself = self.S @ s
            self.squares = _bordered(self.squares, len(self), with_itself, with_itself)

    def move_ridge(self, change: float) -> None:
        """Another ridge: gradients change by 2·Δ·θ, hence their differences by 2·Δ·s, exactly."""
        if self.squares is None:
            self.squares = (self.S @ self.S.mT).double()
        self.T.add_(self.S, alpha=2.0 * change)
        self.products.add_(self.squares, alpha=2.0 * change)

    def clear(self) -> None:
        """No pairs."""
        self._S.clear()
        self._T.clear()
        self.products, self.squares = self.products[:0, :0], None

    def get_state(self) -> dict[str, Tensor]:
        """Everything, to continue to the same bits."""
        found = {"S": self.S, "T": self.T, "products": self.products}
        return found if self.squares is None else {**found, "squares": self.squares}

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what :meth:`get_state` gave."""
        self.clear()
        for window, name in ((self._S, "S"), (self._T, "T")):
            for row in tensors[name]:
                window.append(row)
        products, squares = tensors.get("products"), tensors.get("squares")
        self.products = (self.S @ self.T.mT).double() if products is None else products.clone()
        self.squares = None if squares is None else squares.clone()


def _bordered(M: Tensor, count: int, column: Tensor, row: Tensor) -> Tensor:
    """The last rows and columns of M with a new last column and row, in all ``count`` × ``count``."""
    new = M.new_empty((count, count))
    kept = count - 1
    new[:kept, :kept] = M[len(M) - kept :, len(M) - kept :]
    new[:, kept] = column
    new[kept, :] = row
    return new


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

    def __init__(self, phase: Phase, theta: Tensor, metric: KroneckerMetric | None, generator: torch.Generator) -> None:
        self.phase, self.metric, self.generator = phase, metric, generator
        self.numbers = {"stalled": 0.0}
        self.pairs = Pairs(phase.memory, theta)
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
        if self.metric is not None and step % REFRESH == 0:
            yield Refresh(self.metric, objective, self.generator)
        direction = yield from self._direction(value.gradient, ridge)
        slope = float(value.gradient @ direction)
        if slope >= 0:
            self._forget()
            direction, slope = -value.gradient, -float(value.gradient @ value.gradient)
        first = 1.0
        if self.metric is None and not len(self.pairs):
            first = min(1.0, 1.0 / max(float(value.gradient.abs().sum()), 1e-300))
        origin = objective.theta.clone()
        found = yield from self._search(objective, origin, direction, slope, value, first, ridge)
        if found is None:
            objective.theta.copy_(origin)
            self.numbers["stalled"] = 1.0 if not len(self.pairs) else 0.0
            self._forget()
            self.value = value
            return value
        self._remember(objective.theta - origin, found.gradient - value.gradient)
        self.value = found
        return found

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
        """−H·gradient by the two-loop recursion, its sums over pairs as triangular systems.

        With α_i = s_i·q_i/(s_i·t_i) and q_i = −g − Σ_{j>i} α_j t_j, the first loop solves (upper part of S·Tᵀ) α =
        −S·g; with δ_i = α_i − β_i the second solves (lower part of T·Sᵀ) δ = d∘α − T·q, d the diagonal of both.
        """
        S, T, products = self.pairs.S, self.pairs.T, self.pairs.products
        if not len(S):
            return (yield from self._first_guess(-gradient[None], ridge))[0]
        alpha = torch.linalg.solve_triangular(products.triu(), (S @ -gradient).double()[:, None], upper=True)[:, 0]
        q = -gradient - T.mT @ alpha.to(T.dtype)
        q, image = yield from self._first_guess(torch.stack([q, T[-1]]), ridge)
        q = q * (products[-1, -1].to(q.dtype) / (T[-1] @ image))
        right = products.diagonal() * alpha - (T @ q).double()
        delta = torch.linalg.solve_triangular(products.mT.tril(), right[:, None], upper=False)[:, 0]
        return q + S.mT @ delta.to(S.dtype)

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

    def _remember(self, s: Tensor, t: Tensor) -> None:
        # Curvature that is not clearly positive would spoil the model; skipping the pair is safe.
        if float(s @ t) <= 1e-10 * float(s.norm() * t.norm()):
            return
        self.pairs.append(s, t)

    def forget(self) -> None:
        """The objective has changed: drop the curvature and the value at θ."""
        self._forget()
        self.value = None

    def _forget(self) -> None:
        self.pairs.clear()
