"""What a training consists of: phases, each one optimiser with its schedule; and the plan when none is given."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus.networks._network import hooks_of
from isthmus.objective import constant_cost

#: Above this many samples Adam runs on mini-batches.
FULL_BATCH = 10_000

#: The largest ridge on the way is such that a dimension must explain about this share of the cost of a constant.
STRUCTURE_SHARE = 0.02

#: Half-widths of the bands in which a training ends, relative to the scales of the layers, and L-BFGS steps in each.
BANDS = ((0.03, 300), (0.01, 500), (0.003, 2000))

#: Parameters in effect up to which Hessians are computed.
MOST_PARAMETERS = 3000

#: Of the last band, whose parabolas are moved: half-width, L-BFGS steps, pairs remembered. Networks with more
#: parameters have the second: their steps do not start from a Hessian.
MOVED, MOVED_OF_MANY = (0.001, 500, 40), (0.001, 1000, 60)

#: How tightly the parameters of the second are held, in terms of the ridge.
PULL = 10.0

#: How often they are moved at most.
MOVES = 24

METHODS = ("scale", "adam", "gd", "sgd", "nesterov", "lbfgs", "narrow", "newton")


@dataclass(frozen=True)
class Phase:
    """One optimiser for a number of steps.

    Attributes
    ----------
    method : {"scale", "adam", "gd", "sgd", "nesterov", "lbfgs", "narrow", "newton"}
        ``"sgd"`` is gradient descent with momentum on mini-batches; ``"nesterov"`` restarts its momentum whenever
        the loss rises; ``"lbfgs"`` has a line search, no learning rate, and stops when converged; ``"narrow"`` removes
        the weakest dimension of the middle layer, polishes, and keeps that if the loss is lower; ``"scale"`` multiplies
        all parameters by one number ≤ 1 so that the cost is at most twice that of a constant; ``"newton"`` is L-BFGS on
        the loss with rounded kinks that starts from its Hessian where at most 3000 parameters are in effect, else from
        a metric that couples the layers of a fully connected network or a leaky ResNet.
    steps : int
        At most this many.
    learning_rate : float, optional
        Needed by the first-order methods.
    batch_size : int, optional
        Mini-batches for ``"adam"`` and ``"sgd"``; all samples otherwise.
    ridge_start, ridge_end : float > 0
        The ridge goes geometrically from ``ridge_start`` to ``ridge_end`` times its value …
    ridge_share : float in [0, 1]
        … during this share of the phase, and then stays.
    anneal : bool
        Whether the learning rate falls along a cosine to a hundredth, after a short linear rise.
    momentum : float
        For ``"sgd"``.
    memory : int
        Pairs kept by ``"lbfgs"``.
    metric : bool
        Whether ``"lbfgs"`` starts from the Kronecker-factored metric where there is one (fully connected networks).
    attempt : int
        Polishing steps after which ``"narrow"`` decides; ``steps`` bounds their sum.
    band : float ≥ 0
        Above 0, ``"lbfgs"`` minimises the loss of the network with a parabola in the place of every kink, of this
        half-width relative to the root mean square of what the activation is applied to; ``"newton"`` needs one.
    moved : bool
        Whether these parabolas begin where entries have their slopes at that moment, so that kinks are met exactly at
        the end, however wide the band: a step of the method of multipliers.
    pull : float ≥ 0
        Above 0, ``"newton"`` holds the parameters where they are by so many times the force of the ridge, until that
        has a minimum nearby; then there, and with the parabolas moved, again: the proximal method of multipliers.
    precision : {"module", "double"}
        ``"double"`` runs the phase in float64 whatever the module's dtype.
    """

    method: str
    steps: int
    learning_rate: float | None = None
    batch_size: int | None = None
    ridge_start: float = 1.0
    ridge_end: float = 1.0
    ridge_share: float = 0.7
    anneal: bool = False
    momentum: float = 0.9
    memory: int = 20
    metric: bool = True
    attempt: int = 60
    band: float = 0.0
    moved: bool = False
    pull: float = 0.0
    precision: str = "module"

    def __post_init__(self) -> None:
        who = "Phase"
        check_choice(who, "method", self.method, METHODS)
        check_choice(who, "precision", self.precision, ("module", "double"))
        check_integer(who, "steps", self.steps, low=0)
        check_integer(who, "memory", self.memory, low=1, high=1000)
        check_number(who, "ridge_start", self.ridge_start, low=0.0, low_open=True)
        check_number(who, "ridge_end", self.ridge_end, low=0.0, low_open=True)
        check_number(who, "ridge_share", self.ridge_share, low=0.0, high=1.0)
        check_number(who, "momentum", self.momentum, low=0.0, high=1.0)
        check_integer(who, "attempt", self.attempt, low=1)
        check_number(who, "band", self.band, low=0.0, high=1.0)
        check_number(who, "pull", self.pull, low=0.0)
        if self.pull and not (self.method == "newton" and self.moved):
            fail(who, "`pull` needs the method 'newton' and `moved`", repr(self.method), "Pass both, or no pull.")
        if (self.band > 0.0) != (self.method == "newton") and self.method != "lbfgs":
            got, do = f"band={self.band:g} for {self.method!r}", "Pass e.g. Phase('newton', 100, band=1e-3)."
            fail(who, "`band` must be given for 'newton', and else only for 'lbfgs'", got, do)
        if self.quasi_newton or self.method == "scale":
            if self.batch_size is not None:
                fail(who, f"`batch_size` must be None for {self.method!r}", self.batch_size, "Use 'adam' or 'sgd'.")
        elif self.learning_rate is None:
            fail(who, f"`learning_rate` must be given for {self.method!r}", None, "Pass e.g. 1e-3.")
        else:
            check_number(who, "learning_rate", self.learning_rate, low=0.0, low_open=True)
        if self.batch_size is not None:
            check_integer(who, "batch_size", self.batch_size, low=1)
            if self.method in ("gd", "nesterov"):
                fail(who, f"`batch_size` must be None for {self.method!r}", self.batch_size, "Use 'sgd'.")

    @property
    def quasi_newton(self) -> bool:
        """Whether the phase takes line-searched steps on all samples."""
        return self.method in ("lbfgs", "narrow", "newton")

    @property
    def finishing(self) -> bool:
        """Whether the phase works on kinks, towards a stationary point."""
        return self.band > 0.0

    def ridge_factor(self, step: int) -> float:
        """The ridge in force at ``step`` (from 0), as a multiple of the training's."""
        change = self.ridge_share * self.steps
        if step >= change:
            return self.ridge_end
        return self.ridge_start * (self.ridge_end / self.ridge_start) ** (step / change)

    def rate(self, step: int) -> float:
        """Learning rate at ``step`` (from 0)."""
        if self.learning_rate is None:
            return 1.0
        if not self.anneal:
            return self.learning_rate
        warm = max(1.0, 0.05 * self.steps)
        fall = 0.505 + 0.495 * math.cos(math.pi * step / max(self.steps, 1))
        return self.learning_rate * min(1.0, (step + 1) / warm) * fall


def count_of(net: nn.Module) -> int:
    """Number of trainable scalars."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def default_plan(
    net: nn.Module,
    Y: Tensor,
    *,
    ridge: float,
    loss: str = "mse",
    learning_rate: float = 1e-3,
    steps: int = 100,
    newton_steps: int = 1500,
    finish: bool = False,
) -> list[Phase]:
    """Fit with a small ridge, raise it until low rank appears, drop dimensions that do not pay, lower it, converge.

    0. The initial weights are scaled down if their outputs are larger than the targets.
    1. Adam, at a thousandth of the structure ridge: enough to leave the initial weights.
    2. L-BFGS while the ridge rises geometrically to the structure ridge, and there. Coming from below, dimensions are
       given up one by one; with the full ridge from the start, the first fast steps would remove dimensions that the
       task needs and the rank found would be an artefact of the learning rate.
    3. Narrowing: the weakest dimension is removed for as long as that lowers the loss.
    4. L-BFGS while the ridge falls to its value, and until the loss is flat, which at kinks is not the end; with
       ``finish``, :func:`finishing_plan` goes on from there.

    The structure ridge is the larger of ``ridge`` and STRUCTURE_SHARE·(cost of a constant)/L: a dimension carried
    through L layers costs about ridge·L, so there each must explain about 2 % of what there is to explain. In a leaky
    ResNet it costs ridge·L̃², and L̃² takes the place of L; through filters on n² positions ridge·L/n². At a small
    ridge the way through it is shorter: the excess norm of the initial weights decays at the rate of the ridge.
    Dimensions that explain less, and would have been kept by a direct descent at a tiny ridge, can be lost.
    """
    structure = STRUCTURE_SHARE * constant_cost(Y, loss) / hooks_of(net).carrying_norm()
    batch = None if len(Y) <= FULL_BATCH else 2048
    ends = finish and ridge > 0
    last = [Phase("lbfgs", newton_steps), *(finishing_plan(count_of(net)) if ends else ())]
    if ridge <= 0 or structure <= 0:
        return [
            Phase("scale", 1),
            Phase("adam", 10 * steps, learning_rate, batch_size=batch, anneal=True),
            *last,
        ]
    top = max(1.0, structure / ridge)
    plan = [
        Phase("scale", 1),
        Phase(
            "adam", steps, learning_rate, batch_size=batch, ridge_start=1e-3 * top, ridge_end=1e-3 * top, anneal=True
        ),
        Phase("lbfgs", 150, ridge_start=1e-3 * top, ridge_end=top, ridge_share=1.0),
        Phase("lbfgs", 300, ridge_start=top, ridge_end=top),
    ]
    if hooks_of(net).can_narrow():
        plan.append(Phase("narrow", 600, ridge_start=top, ridge_end=top))
    if top > 1.0:
        plan.append(Phase("lbfgs", 150, ridge_start=top, ridge_share=1.0))
    return plan + last


def finishing_plan(parameters: int = 0) -> list[Phase]:
    """To a stationary point: L-BFGS on the loss with rounded kinks, band after band; then the kinks themselves.

    Kinks are what quasi-Newton steps founder on: with a parabola in their place they walk the valley to its end, and
    the next band begins there. In the last band the parabolas are moved, entry by entry, to where their slopes are:
    then the minimum comes to lie on the kinks. There the steps start from the Hessian; of a network with more than 3000
    ``parameters`` from a metric that couples its layers, and its parameters are held.
    """
    few = parameters <= MOST_PARAMETERS
    (band, steps, memory), pull = (MOVED, 0.0) if few else (MOVED_OF_MANY, PULL)
    last = Phase("newton", steps, band=band, moved=True, precision="double", memory=memory, pull=pull)
    return [*(Phase("lbfgs", n, band=h, precision="double", memory=40) for h, n in BANDS), *[last] * MOVES]
