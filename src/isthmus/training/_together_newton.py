"""Quasi-Newton steps of a stack of networks, each with the curvature, metric and line search it would have alone."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from isthmus._errors import ConvergenceWarning
from isthmus.compression import rebalance
from isthmus.networks import FullyConnected
from isthmus.training._lbfgs import _CURVATURE, _SUFFICIENT, _TRIALS, REBALANCE, REFRESH
from isthmus.training._phases import Phase
from isthmus.training._together_metric import StackedMetric
from isthmus.training._together_pairs import StackedPairs
from isthmus.training._together_stack import Array, StackedMeanSquare, Values, column, dots, fill


class StackedLBFGS:
    """:class:`~.lbfgs.LBFGS` for networks as rows of ``theta``.

    Parameters
    ----------
    scratch : FullyConnected
        A module of the same shape and dtype, to be overwritten.
    """

    def __init__(
        self,
        phase: Phase,
        theta: Tensor,
        objective: StackedMeanSquare,
        metric: StackedMetric | None,
        scratch: FullyConnected,
    ) -> None:
        self.objective, self.metric, self.scratch = objective, metric, scratch
        self.pairs = StackedPairs(theta, phase.memory)
        self.stalled = np.zeros(len(theta), dtype=bool)
        self.values: Values | None = None
        self.ridges: Array | None = None

    def finished(self) -> Array:
        """For each network, whether no step could be found along steepest descent either."""
        return self.stalled

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the networks."""
        chosen = rows.numpy(force=True)
        self.pairs.keep(rows)
        if self.metric is not None:
            self.metric.keep(rows)
        self.stalled = self.stalled[chosen]
        self.values = None if self.values is None else self.values.keep(rows)
        self.ridges = None if self.ridges is None else self.ridges[chosen]

    @torch.no_grad()
    def step(self, theta: Tensor, step: int, ridges: Array) -> Values:
        """One accepted step of each, or none (then it is among :meth:`finished`); the values are those at the new θ."""
        moved = self._rebalance(theta, ridges) if step % REBALANCE == 0 else []
        values, looked = self._current(theta, ridges, moved)
        finite = values.finite() if looked else np.ones(len(theta), dtype=bool)
        if self.ridges is not None:
            self.pairs.move_ridges(ridges - self.ridges)
        self.ridges = ridges.copy()
        if self.metric is not None and step % REFRESH == 0:
            # Eigenvalues exist of what is finite only; the others take no step, whatever their metric.
            alive = theta if finite.all() else torch.where(torch.as_tensor(finite)[:, None], theta, 0.0)
            self.metric.refresh(alive, self.objective.X, self.objective.members)
        direction = self.pairs.direction(values.gradient, ridges, self.metric)
        slope = dots(values.gradient, direction)
        uphill = np.flatnonzero(finite & (slope >= 0))
        if len(uphill):
            self.pairs.forget(uphill)
            rows = torch.as_tensor(uphill)
            direction[rows] = -values.gradient[rows]
            slope[uphill] = -dots(values.gradient[rows], values.gradient[rows])
        length = np.ones(len(theta))
        if self.metric is None:
            bare = self.pairs.counts == 0
            sizes = values.gradient.abs().sum(1).double().numpy(force=True)
            length[bare] = np.minimum(1.0, 1.0 / np.maximum(sizes[bare], 1e-300))
        found, new, there = self._search(theta, direction, slope, values, length, ridges, finite)
        lost = np.flatnonzero(~found)
        if len(lost):
            rows = torch.as_tensor(lost)
            new[rows] = theta[rows]
            there.put(lost, values, lost)
            self.stalled[lost] = finite[lost] & (self.pairs.counts[lost] == 0)
            self.pairs.forget(lost)
        self.pairs.remember(np.flatnonzero(found), new - theta, there.gradient - values.gradient)
        theta.copy_(new)
        self.values = there
        return there

    def _current(self, theta: Tensor, ridges: Array, moved: list[int]) -> tuple[Values, bool]:
        """Values at θ, and whether they have to be looked at: not where they are those of the last step."""
        if self.values is None:
            return self.objective(theta, ridges), True
        values, same = self.values, bool((self.ridges == ridges).all())
        if not same:
            values = values.at_ridges(ridges, theta)
        if moved:
            which = np.array(moved)
            anew = self.objective(theta[torch.as_tensor(which)], ridges[which], which)
            values.put(which, anew, np.arange(len(which)))
        return values, not same or bool(moved)

    def _rebalance(self, theta: Tensor, ridges: Array) -> list[int]:
        """Least ‖θ‖² over rescalings of neurons, where that is lower; which networks moved."""
        moved = []
        if self.metric is None:
            return moved
        for i in np.flatnonzero(ridges > 0):
            # Finite weights may have squares that are not.
            if not bool(theta[i].double().square().sum().isfinite()):
                continue
            fill(self.scratch, theta[i])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                better = rebalance(self.scratch, tolerance=1e-6)
            if better.norm_after < better.norm_before * (1.0 - 1e-6):
                theta[i] = torch.nn.utils.parameters_to_vector(better.network.parameters())
                moved.append(int(i))
        self.pairs.forget(np.array(moved, dtype=np.int64))
        return moved

    def _search(
        self,
        origin: Tensor,
        direction: Tensor,
        slope: Array,
        values: Values,
        length: Array,
        ridges: Array,
        active: Array,
    ) -> tuple[Array, Tensor, Values]:
        """The bisection of each network; which ended lower, its point, and the values there.

        Nearly all end at the first trial, which all take together; the others go on in ever smaller stacks.
        """
        count = len(origin)
        low, high = np.zeros(count), np.full(count, math.inf)
        found, length = np.zeros(count, dtype=bool), length.copy()
        new, there = origin, values
        todo = np.flatnonzero(active)
        for trial in range(_TRIALS):
            if not len(todo):
                break
            whole = len(todo) == count
            rows = slice(None) if whole else torch.as_tensor(todo)
            along, now = direction[rows], length[todo]
            points = torch.addcmul(origin[rows], along, column(now, origin))
            tried = self.objective(points, ridges[todo], None if whole else todo)
            slopes = dots(tried.gradient, along)
            # A gradient that is not finite leaves no finite product with the direction.
            above = ~(np.isfinite(tried.loss) if np.isfinite(slopes).all() else tried.finite())
            with np.errstate(invalid="ignore"):
                above |= tried.loss > values.loss[todo] + _SUFFICIENT * now * slope[todo]
                better = ~above & (tried.loss < values.loss[todo])
                better &= ~found[todo] | (tried.loss < there.loss[todo])
            found[todo[better]] = True
            if trial == 0 and whole:
                new, there = points, tried
            else:
                if trial == 0:
                    new, there = origin.clone(), values.keep(torch.arange(count))
                chosen = np.flatnonzero(better)
                new[torch.as_tensor(todo[chosen])] = points[torch.as_tensor(chosen)]
                there.put(todo[chosen], tried, chosen)
            ended = ~above & (slopes >= _CURVATURE * slope[todo])
            high[todo] = np.where(above, now, high[todo])
            low[todo] = np.where(above, low[todo], now)
            length[todo] = np.where(np.isinf(high[todo]), 2.0 * now, 0.5 * (low[todo] + high[todo]))
            todo = todo[~ended]
        return found, new, there
