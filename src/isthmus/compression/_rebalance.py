"""A-rebalance: the least ‖θ‖² over rescalings that keep the function."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from isthmus._checks import check_choice
from isthmus._cite import cites
from isthmus._errors import ConvergenceWarning
from isthmus.measures import balance, parameter_norms
from isthmus.networks import FullyConnected
from isthmus.networks._rescaling import least_norm


@dataclass(frozen=True, eq=False)
class Rebalanced:
    """A network of the same function and least norm over rescalings.

    Attributes
    ----------
    network : FullyConnected
    norm_before, norm_after : float
        ‖θ‖².
    residual : float
        Relative unbalanced norm that is left: ``balance(network).neuron_residual`` or ``.layer_residual``.
    dead_neurons : tuple of int
        Hidden neurons in each layer without input or without output, whose weights were set to 0 (the infimum
        over rescalings is not attained with them); with ``by="layer"`` only where a whole layer is so.
    steps : int
    state : str
        ``"converged"`` or ``"not converged"``.
    """

    network: FullyConnected
    norm_before: float
    norm_after: float
    residual: float
    dead_neurons: tuple[int, ...]
    steps: int
    state: str


@cites("rank2023", "Prop. 12, Remark 6", ids=("A-rebalance",))
def rebalance(net: FullyConnected, *, by: str = "neuron", tolerance: float = 1e-13) -> Rebalanced:
    """Rescale layers or neurons to the minimum of ‖θ‖² at the same function.

    A neuron's inputs and bias are multiplied by e^u and its outgoing weights by e^{−u}. As a function of all
    the u, ‖θ‖² = Σ_ℓ Σ_ij W²_{ℓ,ij} e^{2(u_{ℓ,i} − u_{ℓ-1,j})} + Σ b²_{ℓ,i} e^{2u_{ℓ,i}} is convex (a
    geometric programme); its stationarity is balancedness. Newton's method with conjugate gradients solves
    it, also with biases, where no closed form exists.

    Parameters
    ----------
    net : FullyConnected
        Not modified.
    by : {"neuron", "layer"}
        One scale for each hidden neuron, or one for each hidden layer.
    tolerance : float
        Relative unbalanced norm at which to stop.

    Examples
    --------
    >>> import torch, isthmus
    >>> net = isthmus.FullyConnected([3, 8, 2], generator=torch.Generator().manual_seed(0))
    >>> isthmus.rebalance(net).norm_after < isthmus.measures.parameter_norms(net).total
    True
    """
    check_choice("rebalance", "by", by, ("neuron", "layer"))
    found = rescaled(net, by=by, tolerance=tolerance)
    if found.state != "converged":
        warnings.warn(
            f"rebalance: the relative unbalanced norm is {found.residual:.1e} after {found.steps} Newton steps; "
            "the function is unchanged, the norm not yet least.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return found


@torch.no_grad()
def rescaled(net: FullyConnected, *, by: str = "neuron", tolerance: float = 1e-13) -> Rebalanced:
    """What :func:`rebalance` gives, without a warning."""
    own = net.Ws[0].dtype
    Ws, bs, dead, steps = least_norm(net.Ws, net.bs, by=by, tolerance=tolerance)
    result = FullyConnected.from_weights(Ws, bs or None, slope=net.slope, bias=net.bias)
    measured = balance(result)
    residual = measured.neuron_residual if by == "neuron" else measured.layer_residual
    # Measured on the result: rounding of many exponentials leaves a little more than the solver's own residual.
    state = "converged" if residual <= max(1e3 * tolerance, 1e-10) else "not converged"
    before, after = parameter_norms(net).total, parameter_norms(result).total
    result.train(net.training)
    return Rebalanced(result.to(own), before, after, residual, dead, steps, state)
