"""The plan that training follows when none is given."""

from __future__ import annotations

from torch import Tensor, nn

from isthmus.networks import ConvolutionalNet, LeakyResNet
from isthmus.objective import constant_cost
from isthmus.training._narrow import can_narrow
from isthmus.training._phases import Phase

#: Above this many samples Adam runs on mini-batches.
FULL_BATCH = 10_000

#: The largest ridge on the way is such that a dimension must explain about this share of the cost of a constant.
STRUCTURE_SHARE = 0.02


def default_plan(
    net: nn.Module,
    Y: Tensor,
    *,
    ridge: float,
    loss: str = "mse",
    learning_rate: float = 1e-3,
    steps: int = 100,
    newton_steps: int = 1500,
) -> list[Phase]:
    """Fit with a small ridge, raise it until the structure appears, give up what does not pay, come back, converge.

    0. The initial weights are scaled down if their outputs are larger than the targets.
    1. Adam, at a thousandth of the structure ridge: enough to leave the initial weights.
    2. L-BFGS while the ridge rises geometrically to the structure ridge, and there. Coming from below, dimensions are
       given up one by one; with the full ridge from the start, the first fast steps would remove dimensions that the
       task needs and the rank found would be an artefact of the learning rate.
    3. Narrowing: the weakest dimension is removed for as long as that lowers the loss.
    4. L-BFGS while the ridge falls to its value, and to convergence.

    The structure ridge is the larger of ``ridge`` and STRUCTURE_SHARE·(cost of a constant)/L: a dimension carried
    through L layers costs about ridge·L, so there each must explain about 2 % of what there is to explain. In a leaky
    ResNet it costs ridge·L̃², and L̃² takes the place of L; through filters on n² positions ridge·L/n². At a small
    ridge the way through it is shorter: the excess norm of the initial weights decays at the rate of the ridge.
    Dimensions that explain less, and would have been kept by a direct descent at a tiny ridge, can be lost.
    """
    structure = STRUCTURE_SHARE * constant_cost(Y, loss) / carrying_norm(net)
    batch = None if len(Y) <= FULL_BATCH else 2048
    if ridge <= 0 or structure <= 0:
        return [
            Phase("scale", 1),
            Phase("adam", 10 * steps, learning_rate, batch_size=batch, anneal=True),
            Phase("lbfgs", newton_steps),
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
    if can_narrow(net):
        plan.append(Phase("narrow", 600, ridge_start=top, ridge_end=top))
    if top > 1.0:
        plan.append(Phase("lbfgs", 150, ridge_start=top, ridge_share=1.0))
    plan.append(Phase("lbfgs", newton_steps))
    return plan


def carrying_norm(net: nn.Module) -> float:
    """‖θ‖² that one dimension carried through the whole network takes: L, L̃² in a leaky ResNet, L/n² by filters."""
    if isinstance(net, LeakyResNet):
        return max(1.0, net.effective_depth**2)
    if isinstance(net, ConvolutionalNet):
        return net.depth / net.positions
    return max(1.0, sum(p.ndim >= 2 for p in net.parameters()))
