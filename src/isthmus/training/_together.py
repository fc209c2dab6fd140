"""Many small networks of one shape, trained in one computation."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, check_integer, check_number, fail
from isthmus._errors import ConvergenceWarning
from isthmus._progress import ProgressFactory, progress, silent
from isthmus.networks import FullyConnected
from isthmus.training._inputs import checked_data
from isthmus.training._phases import Phase
from isthmus.training._result import TrainingResult
from isthmus.training._together_loop import StackedTraining

#: At most so many networks in one computation unless given, and so many entries of what is kept of them: a bound on
#: memory. Larger stacks were up to a fifth faster with Adam.
AT_ONCE, ENTRIES = 64, 2**26

_WHO = "train_together"


def train_together(
    nets: Sequence[FullyConnected],
    X: Any,
    Y: Any,
    *,
    ridges: float | Sequence[float],
    phases: Sequence[Phase],
    tolerance: float = 1e-4,
    seeds: int | Sequence[int] = 0,
    at_once: int | None = None,
    show_progress: bool | ProgressFactory = False,
) -> list[TrainingResult]:
    """Minimise cost(net_i(X_i), Y_i) + ridge_i·‖θ_i‖² for every network, in place, as :func:`train` would each alone.

    The mathematics of every step is that of :func:`train` with ``loss="mse"``: each network has its own line search,
    curvature, metric, random numbers, convergence and divergence. Sums are taken in another order, so that weights
    agree to rounding and not to the bit; they also depend, to rounding, on which networks share a computation.

    Parameters
    ----------
    nets : sequence of FullyConnected
        Of equal dims, amount of bias, dtype and slope, which must not be negative; nothing frozen. Trained in place.
    X : array (N, d_in), or (B, N, d_in)
        Shared, or one for each of the B networks.
    Y : array (N, d_out), or (B, N, d_out)
    ridges : float or sequence of float
        One for all, or one for each.
    phases : sequence of Phase
        The same for all: ``"scale"``, ``"adam"``, ``"gd"``, ``"sgd"``, ``"nesterov"``, ``"lbfgs"``, on all samples.
        Mini-batches and ``"narrow"`` are for :func:`train`.
    tolerance : float, default 1e-4
        Of convergence, as in :func:`train`.
    seeds : int or sequence of int
        As ``seed`` in :func:`train`.
    at_once : int, optional
        Networks in one computation; the groups follow each other. By default at most 64, and fewer where the
        representations and, with L-BFGS, twice ``memory`` copies of the parameters would take more than 2²⁶ entries.
    show_progress : bool or callable, default False
        Median loss and number of networks under way, on stderr.

    Returns
    -------
    list of TrainingResult
        In the order of ``nets``. ``seconds`` is an equal share of its group's; ``settings["together"]`` the size of the
        group. One :class:`~isthmus.ConvergenceWarning` tells how many did not converge.

    Examples
    --------
    >>> import torch, isthmus
    >>> from isthmus.training import Phase, train_together
    >>> X = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> nets = [isthmus.FullyConnected([3, 8, 8, 2], generator=torch.Generator().manual_seed(i)) for i in range(4)]
    >>> results = train_together(nets, X, X[:, :2], ridges=[1e-2, 2e-2, 3e-2, 4e-2], phases=[Phase("lbfgs", 500)])
    >>> [r.state for r in results]
    ['converged', 'converged', 'converged', 'converged']
    """
    nets = list(nets)
    _check_nets(nets)
    plan = _checked_plan(phases)
    check_number(_WHO, "tolerance", tolerance, low=0.0)
    if at_once is not None:
        check_integer(_WHO, "at_once", at_once, low=1)
    inputs, targets = _checked_data(nets, X, Y)
    shared = {"loss": "mse", "phases": [dataclasses.asdict(p) for p in plan], "tolerance": float(tolerance)}
    amounts = [check_number(_WHO, "ridges", ridge, low=0.0) for ridge in _each("ridges", ridges, len(nets))]
    numbers = [check_integer(_WHO, "seeds", seed, low=0) for seed in _each("seeds", seeds, len(nets))]
    settings = [{"ridge": ridge, **shared, "seed": seed} for ridge, seed in zip(amounts, numbers)]
    at_once = at_once or _fitting(nets[0], inputs.shape[-2], plan)
    # Equal sizes: a last group of one would be the slowest of all.
    groups = -(-len(nets) // at_once)
    bounds = [round(k * len(nets) / groups) for k in range(groups + 1)]
    show = show_progress if callable(show_progress) else (progress if show_progress else silent)
    results: list[TrainingResult] = []
    with show(groups * sum(p.steps for p in plan), _WHO) as bar:
        for start, end in zip(bounds, bounds[1:]):
            part = slice(start, end)
            own = [{**each, "together": end - start} for each in settings[part]]
            own_X, own_Y = (T if T.ndim == 2 else T[part] for T in (inputs, targets))
            training = StackedTraining(nets[part], own_X, own_Y, own, plan)
            if results and results[-1].state == "interrupted":
                training.interrupt()
            results += training.go(bar)
    left = [result for result in results if result.state != "converged"]
    if left:
        told = f"{_WHO}: {len(left)} of {len(nets)} networks: {left[0].reason}"
        warnings.warn(told, ConvergenceWarning, stacklevel=2)
    return results


def _each(name: str, given: Any, count: int) -> list[Any]:
    """One for all, or one for each."""
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
        return [given] * count
    if len(given) != count:
        must = f"`{name}` must be one, or one for each of the {count} networks"
        fail(_WHO, must, f"{len(given)} of them", "Match them to `nets`.")
    return [one.item() if hasattr(one, "item") else one for one in given]


def _fitting(net: FullyConnected, samples: int, plan: Sequence[Phase]) -> int:
    """How many networks like this one are computed at once."""
    pairs = max((p.memory for p in plan if p.quasi_newton), default=0)
    each = samples * sum(net.dims) + 2 * pairs * sum(p.numel() for p in net.parameters())
    return max(1, min(AT_ONCE, ENTRIES // each))


def _check_nets(nets: list[Any]) -> None:
    if not nets:
        fail(_WHO, "`nets` must not be empty", "none", "Pass networks of one shape.")
    for i, net in enumerate(nets):
        # Not isinstance: a subclass may have a forward of its own.
        if type(net) is not FullyConnected:
            must = f"`nets[{i}]` must be a FullyConnected"
            fail(_WHO, must, type(net).__name__, "Train it with isthmus.train.")
        if not all(p.requires_grad for p in net.parameters()):
            fail(_WHO, f"`nets[{i}]` must have no frozen parameters", "some", "Train it with isthmus.train.")
        own, first = _shape(net), _shape(nets[0])
        if own != first:
            fail(_WHO, f"`nets[{i}]` must be like nets[0], {first}", own, "Group networks of one shape.")
    if nets[0].slope < 0.0:
        must = "the slope of `nets` must be in [0, 1]"
        fail(_WHO, must, nets[0].slope, "Train them with isthmus.train one by one.")
    if len({id(net) for net in nets}) < len(nets):
        fail(_WHO, "`nets` must be different modules", "one of them twice", "Copy it with copy.deepcopy.")


def _shape(net: FullyConnected) -> str:
    own = net.weights[0]
    return f"dims {list(net.dims)}, slope {net.slope:g}, bias {net.bias:g}, {own.dtype} on {own.device}"


def _checked_plan(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    plan = tuple(phases)
    for phase in plan:
        if not isinstance(phase, Phase):
            fail(_WHO, "`phases` must be Phase objects", repr(phase), 'Pass e.g. [Phase("adam", 100, 1e-3)].')
        if phase.method == "narrow":
            fail(_WHO, "`phases` must be without 'narrow'", repr(phase.method), "Leave it out, or use isthmus.train.")
        if phase.batch_size is not None:
            must = "`batch_size` must be None: all samples are used in every step"
            fail(_WHO, must, phase.batch_size, "Leave it out, or use isthmus.train.")
    return plan


def _checked_data(nets: list[FullyConnected], X: Any, Y: Any) -> tuple[Tensor, Tensor]:
    """Inputs and targets in the networks' dtype and on their device, (N, d) if shared and (B, N, d) if not."""
    own = nets[0].weights[0]
    inputs, targets = (as_tensor(_WHO, name, T, dtype=own.dtype, device=own.device) for name, T in (("X", X), ("Y", Y)))
    for name, T in (("X", inputs), ("Y", targets)):
        if T.ndim == 3 and len(T) != len(nets):
            must = f"`{name}` of shape (B, N, d) must have one entry for each of the {len(nets)} networks"
            fail(_WHO, must, f"shape {tuple(T.shape)}", "Match it to `nets`, or pass (N, d) for all.")
        if T.ndim > 3:
            fail(_WHO, f"`{name}` must be (N, d) or (B, N, d)", f"shape {tuple(T.shape)}", "Reshape it.")
    if inputs.ndim < 3 and targets.ndim < 3:
        return checked_data(nets[0], inputs, targets, "mse")
    Xs, Ys = (list(T) if T.ndim == 3 else [T] * len(nets) for T in (inputs, targets))
    checked = [checked_data(*each, "mse") for each in zip(nets, Xs, Ys)]
    both = [
        torch.stack([pair[k] for pair in checked]) if T.ndim == 3 else checked[0][k]
        for k, T in enumerate((inputs, targets))
    ]
    return both[0], both[1]
