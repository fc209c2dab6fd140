"""Training for people: inputs checked, progress shown, and a warning where it did not converge."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from isthmus._checks import as_matrix, as_tensor, check_choice, check_integer, check_number, check_seed, fail
from isthmus._deprecations import renamed
from isthmus._errors import ConvergenceWarning, DataError
from isthmus._progress import Progress, ProgressFactory, shown
from isthmus.networks._network import Network, hooks_of
from isthmus.objective import LOSSES
from isthmus.training._checkpoint import Checkpoints, identity_of_training
from isthmus.training._core import Job, TrainingEvent, run_jobs
from isthmus.training._phases import Phase, count_of, default_plan, finishing_plan
from isthmus.training._result import TrainingResult

#: At most so many networks in one computation unless given, and so many entries of what is kept of them: a bound on
#: memory. Larger stacks were up to a fifth faster with Adam.
AT_ONCE, ENTRIES = 64, 2**26

#: Where a training ends, and up to which size it ends at a stationary point unless given.
FINISHES = ("stationary", "flat")
AFFORDABLE_PARAMETERS, AFFORDABLE_PRODUCT = 1500, 3_000_000

_TOGETHER = "train_together"

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found", TrainingResult, list[TrainingResult])


def _warned(minimise: Callable[_Given, _Found]) -> functools._Wrapped[_Given, _Found, _Given, _Found]:
    """For people: it warns of what the results say. Callers that read them take ``minimise`` itself."""

    @functools.wraps(minimise)
    def warning(*given: _Given.args, **options: _Given.kwargs) -> _Found:
        found = minimise(*given, **options)
        results = found if isinstance(found, list) else [found]
        left = [result for result in results if not result.at_rest]
        if left:
            many = f" {len(left)} of {len(results)} networks:" if isinstance(found, list) else ""
            warnings.warn(f"{warning.__name__}:{many} {left[0].reason}", ConvergenceWarning, stacklevel=2)
        return found

    return warning


@_warned
@renamed(show_progress="progress")
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
    finish: str | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callable[[TrainingEvent], object]] = (),
    progress: bool | ProgressFactory = False,
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
        Flat when the loss falls by less than this share over 50 quasi-Newton steps, the balancedness residual
        is below 100 times it, and the gradient no longer dominates: see :class:`~isthmus.training.Criteria`.
    finish : {"stationary", "flat"}, optional
        Whether to go on, where the loss is flat, to a stationary point: by
        :func:`~isthmus.training.finishing_plan`, with a certificate in ``stationarity`` of the result. By default where
        that takes seconds (a ridge, no ``phases`` given, at most 1500 parameters and 3·10⁶ parameters × samples).
    max_seconds : float, optional
        Stop after this long, with state ``"budget"``.
    seed : int
        Of the mini-batches. No global generator is used.
    callbacks : iterable of callable
        Each is called with a :class:`TrainingEvent` after every step; returning True stops the training.
    progress : bool or callable, default False
        Loss, ‖θ‖²/L and time left on stderr: a bar on a terminal, lines elsewhere. A callable
        ``progress(total, label)`` that gives a context with ``advance(steps, **numbers)`` shows it its own way.
    checkpoint : path, optional
        Folder for checkpoints, written every ``checkpoint_seconds`` and at the end; the last two are kept.
    resume : bool, default True
        Continue from a checkpoint of the same training in that folder: ends in bitwise the weights of an
        uninterrupted run at the same number of threads. False starts anew.

    Returns
    -------
    TrainingResult
        ``state`` is ``"stationary"``, ``"flat"``, ``"budget"``, ``"diverged"`` or ``"interrupted"``; from the third on
        it is also a :class:`~isthmus.ConvergenceWarning`. After a non-finite loss the last good weights are kept.
        Ctrl-C is raised, as is what a callback raises; the weights reached until then are in ``net``.

    Examples
    --------
    >>> import torch, isthmus
    >>> X = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> net = isthmus.FullyConnected([3, 8, 8, 2], slope=1.0, generator=torch.Generator().manual_seed(1))
    >>> isthmus.train(net, X, X[:, :2], ridge=1e-2).state
    'stationary'
    """
    who = "train"
    check_number(who, "ridge", ridge, low=0.0)
    check_choice(who, "loss", loss, LOSSES)
    check_number(who, "tolerance", tolerance, low=0.0)
    if not isinstance(net, nn.Module):
        fail(who, "`net` must be a torch.nn.Module", type(net).__name__, "Pass e.g. isthmus.FullyConnected(dims).")
    inputs, targets = checked_data(net, X, Y, loss)
    plan = _plan(net, inputs, targets, ridge, loss, learning_rate, phases, finish)
    settings = _settings(ridge, loss, plan, tolerance, check_seed(who, seed))
    job = Job(net, inputs, targets, settings, tuple(callbacks))
    seconds = math.inf if max_seconds is None else check_number(who, "max_seconds", max_seconds, low=0.0)
    if checkpoint is not None:
        check_number(who, "checkpoint_seconds", checkpoint_seconds, low=0.0)
        identity = identity_of_training(settings, net, [inputs, targets])
        job.checkpoints = Checkpoints(checkpoint, identity, checkpoint_seconds)
        if resume:
            job.restored = job.checkpoints.read()
        else:
            job.checkpoints.clear()
    with shown(progress)(sum(p.steps for p in plan), who) as bar:
        return run_jobs([job], plan, _advanced(bar), seconds=seconds)[0]


@_warned
@renamed(show_progress="progress")
def train_together(
    nets: Sequence[Network],
    X: Any,
    Y: Any,
    *,
    ridges: float | Sequence[float],
    phases: Sequence[Phase],
    tolerance: float = 1e-4,
    seeds: int | Sequence[int] = 0,
    at_once: int | None = None,
    progress: bool | ProgressFactory = False,
) -> list[TrainingResult]:
    """Minimise cost(net_i(X_i), Y_i) + ridge_i·‖θ_i‖² for every network, in place, as :func:`train` would each alone.

    Every step is that of :func:`train` with ``loss="mse"``: each network has its own line search, curvature, metric,
    random numbers, convergence and divergence. Sums are taken in another order, so that weights agree to rounding and
    not to the bit; they also depend, to rounding, on which networks share a computation.

    Parameters
    ----------
    nets : sequence of Network
        Of one class, configuration and dtype; nothing frozen. Trained in place.
    X : array (N, d_in), or (B, N, d_in)
        Shared, or one for each of the B networks.
    Y : array (N, d_out), or (B, N, d_out)
    ridges : float or sequence of float
        One for all, or one for each.
    phases : sequence of Phase
        The same for all.
    tolerance : float, default 1e-4
        Of convergence, as in :func:`train`.
    seeds : int or sequence of int
        As ``seed`` in :func:`train`.
    at_once : int, optional
        Networks in one computation; the groups follow each other. By default at most 64, and fewer where the
        representations and, with L-BFGS, twice ``memory`` copies of the parameters would take more than 2²⁶ entries.
    progress : bool or callable, default False
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
    >>> results = train_together(nets, X, X[:, :2], ridges=[1e-2, 2e-2, 3e-2, 4e-2], phases=[Phase("lbfgs", 1500)])
    >>> [r.state for r in results]
    ['flat', 'flat', 'flat', 'flat']
    """
    who, nets = _TOGETHER, list(nets)
    _check_alike(nets)
    plan = _checked_plan(who, phases, nets[0])
    if any(phase.finishing for phase in plan):
        do = "Train each of them with `train`."
        fail(who, "`phases` must have no bands: scales differ between networks", "a phase with a band", do)
    check_number(who, "tolerance", tolerance, low=0.0)
    if at_once is not None:
        check_integer(who, "at_once", at_once, low=1)
    data = _checked_data_of_all(nets, X, Y)
    amounts = [check_number(who, "ridges", ridge, low=0.0) for ridge in _each("ridges", ridges, len(nets))]
    numbers = [check_integer(who, "seeds", seed, low=0) for seed in _each("seeds", seeds, len(nets))]
    at_once = at_once or _fitting(nets[0], data[0][0].shape[-2], plan)
    # Equal sizes: a last group of one would be the slowest of all.
    groups = -(-len(nets) // at_once)
    bounds = [round(k * len(nets) / groups) for k in range(groups + 1)]
    results: list[TrainingResult] = []
    with shown(progress)(len(nets) * sum(p.steps for p in plan), who) as bar:
        for start, end in zip(bounds, bounds[1:]):
            jobs = []
            for i in range(start, end):
                settings = _settings(amounts[i], "mse", plan, tolerance, numbers[i])
                jobs.append(Job(nets[i], *data[i], {**settings, "together": end - start}))
            results += run_jobs(jobs, plan, _advanced(bar))
    return results


#: For callers that read the results: the same without a warning of what they say.
minimise, minimise_together = train.__wrapped__, train_together.__wrapped__


def _plan(
    net: nn.Module,
    X: Tensor,
    Y: Tensor,
    ridge: float,
    loss: str,
    learning_rate: float,
    phases: Sequence[Phase] | None,
    finish: str | None,
) -> tuple[Phase, ...]:
    """What is given, or by default; with what leads to a stationary point where that is wanted."""
    who = "train"
    if finish is not None:
        check_choice(who, "finish", finish, FINISHES)
    if finish == "stationary" and ridge <= 0:
        do = "Pass a ridge, or finish=None."
        fail(who, "`ridge` must be positive to finish at a stationary point: the force it compares with", ridge, do)
    if phases is not None:
        wanted = finish == "stationary" and not any(isinstance(p, Phase) and p.finishing for p in phases)
        return (*_checked_plan(who, phases, net), *(finishing_plan(count_of(net)) if wanted else ()))
    if finish is None:
        count = count_of(net)
        small = count <= AFFORDABLE_PARAMETERS and count * len(X) <= AFFORDABLE_PRODUCT
        finish = "stationary" if small and ridge > 0 else "flat"
    options: dict[str, Any] = {"ridge": ridge, "loss": loss, "learning_rate": learning_rate}
    return _checked_plan(who, default_plan(net, Y, finish=finish == "stationary", **options), net)


def _settings(ridge: float, loss: str, plan: Sequence[Phase], tolerance: float, seed: int) -> dict[str, Any]:
    """How a network is trained, as plain data."""
    phases = [dataclasses.asdict(p) for p in plan]
    return {"ridge": float(ridge), "loss": loss, "phases": phases, "tolerance": float(tolerance), "seed": seed}


def _advanced(bar: Progress) -> Callable[[int], Progress]:
    """The bar, once it is where a training goes on."""

    def started(done: int) -> Progress:
        bar.advance(done)
        return bar

    return started


def _checked_plan(who: str, phases: Sequence[Phase], net: nn.Module) -> tuple[Phase, ...]:
    plan = tuple(phases)
    for phase in plan:
        if not isinstance(phase, Phase):
            fail(who, "`phases` must be Phase objects", repr(phase), 'Pass e.g. [Phase("adam", 100, 1e-3)].')
        if phase.method == "narrow" and not hooks_of(net).can_narrow():
            must = "`net` must be a FullyConnected without frozen parameters for the phase 'narrow'"
            fail(who, must, type(net).__name__, "Leave that phase out.")
    return plan


# ---- Inputs and targets


def checked_data(net: nn.Module, X: Any, Y: Any, loss: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets in the network's dtype and on its device, checked against each other and its outputs."""
    own = next((p for p in net.parameters()), None)
    if own is None:
        fail("train", "`net` must have parameters", "none", "Pass a network with weights.")
    if any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in net.modules()):
        fail("train", "`net` must be deterministic", "active dropout", "Call net.eval() first, or remove it.")
    inputs = as_tensor("train", "X", X, dtype=own.dtype, device=own.device)
    if inputs.ndim == 1:
        inputs = inputs[:, None]
    if inputs.ndim == 0 or inputs.numel() == 0:
        fail("train", "`X` must have samples", f"shape {tuple(inputs.shape)}", "Pass (N, d_in).", error=DataError)
    targets = _labels(Y, own) if loss == "cross_entropy" else None
    if targets is None:
        targets = as_matrix("train", "Y", Y, dtype=own.dtype, device=own.device)
    if len(inputs) != len(targets):
        fail("train", "`X` and `Y` must have as many rows", f"{len(inputs)} and {len(targets)}", "Align them.")
    outputs = _first_outputs(net, inputs)
    if targets.ndim == 2 and outputs.shape[1:] != targets.shape[1:]:
        fail(
            "train",
            f"`Y` must have the outputs of `net` as columns, {tuple(outputs.shape[1:])}",
            f"shape {tuple(targets.shape)}",
            "Match the network's last dimension to Y; class labels must be integers.",
        )
    classes = outputs.shape[-1]
    if targets.ndim == 1 and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        got = f"{int(targets.min())} to {int(targets.max())}"
        fail(
            "train", f"class indices must be in [0, {classes - 1}]", got, "Number the classes from 0.", error=DataError
        )
    return inputs, targets


def _labels(Y: Any, parameter: Tensor) -> Tensor | None:
    """Class indices (N,), or None if ``Y`` is not of integers."""
    labels = Y if isinstance(Y, Tensor) else np.asarray(Y)
    if isinstance(labels, np.ndarray):
        if labels.dtype.kind not in "iub":
            return None
        labels = torch.from_numpy(labels.astype(np.int64))
    if labels.is_floating_point() or labels.is_complex():
        return None
    if labels.ndim == 0 or labels.numel() != len(labels) or len(labels) == 0:
        must = "class indices must be one integer for each sample"
        fail("train", must, f"shape {tuple(labels.shape)}", "Convert one-hot rows to floating point, or by argmax(1).")
    return labels.detach().to(parameter.device).long().reshape(-1)


@torch.no_grad()
def _first_outputs(net: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs at the first sample, from a copy: looking must not move statistics or generators."""
    try:
        outputs = copy.deepcopy(net).eval()(inputs[:1])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        fail("train", "`net` must accept `X`", f"shape {tuple(inputs.shape)}: {error}", "Match d_in to its inputs.")
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or len(outputs) != 1:
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        fail("train", "`net` must give one row of outputs for each sample", got, "Return a tensor (N, d_out).")
    return outputs


# ---- Many networks of one shape


def _each(name: str, given: Any, count: int) -> list[Any]:
    """One for all, or one for each."""
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
        return [given] * count
    if len(given) != count:
        must = f"`{name}` must be one, or one for each of the {count} networks"
        fail(_TOGETHER, must, f"{len(given)} of them", "Match them to `nets`.")
    return [one.item() if hasattr(one, "item") else one for one in given]


def _fitting(net: nn.Module, samples: int, plan: Sequence[Phase]) -> int:
    """How many networks like this one are computed at once."""
    pairs = max((p.memory for p in plan if p.quasi_newton), default=0)
    widths = sum(max(p.shape) for p in net.parameters() if p.ndim > 1)
    each = samples * widths + 2 * pairs * sum(p.numel() for p in net.parameters())
    return max(1, min(AT_ONCE, ENTRIES // each))


def _check_alike(nets: list[Any]) -> None:
    if not nets:
        fail(_TOGETHER, "`nets` must not be empty", "none", "Pass networks of one shape.")
    for i, net in enumerate(nets):
        if not isinstance(net, Network):
            must = f"`nets[{i}]` must be a Network of isthmus"
            fail(_TOGETHER, must, type(net).__name__, "Train it with isthmus.train.")
        if not all(p.requires_grad for p in net.parameters()):
            fail(_TOGETHER, f"`nets[{i}]` must have no frozen parameters", "some", "Train it with isthmus.train.")
        if _kind(net) != _kind(nets[0]):
            must = f"`nets[{i}]` must be like nets[0], {_shape(nets[0])}"
            fail(_TOGETHER, must, _shape(net), "Group networks of one shape.")
    if len({id(net) for net in nets}) < len(nets):
        fail(_TOGETHER, "`nets` must be different modules", "one of them twice", "Copy it with copy.deepcopy.")


def _kind(net: Network) -> tuple[Any, ...]:
    """What networks that are computed together have in common, exactly."""
    own = next(net.parameters())
    return type(net), net.config(), own.dtype, own.device


def _shape(net: Network) -> str:
    own = next(net.parameters())
    settings_text = ", ".join(f"{name} {value}" for name, value in net.config().items())
    return f"{type(net).__name__} with {settings_text}, {own.dtype} on {own.device}"


def _checked_data_of_all(nets: list[Network], X: Any, Y: Any) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of each network, in its dtype and on its device; the same tensors where they share them."""
    own = next(nets[0].parameters())
    given = [as_tensor(_TOGETHER, name, T, dtype=own.dtype, device=own.device) for name, T in (("X", X), ("Y", Y))]
    for name, T in zip("XY", given):
        if T.ndim == 3 and len(T) != len(nets):
            must = f"`{name}` of shape (B, N, d) must have one entry for each of the {len(nets)} networks"
            fail(_TOGETHER, must, f"shape {tuple(T.shape)}", "Match it to `nets`, or pass (N, d) for all.")
        if T.ndim > 3:
            fail(_TOGETHER, f"`{name}` must be (N, d) or (B, N, d)", f"shape {tuple(T.shape)}", "Reshape it.")
    if given[0].ndim < 3 and given[1].ndim < 3:
        return [checked_data(nets[0], given[0], given[1], "mse")] * len(nets)
    Xs, Ys = (list(T) if T.ndim == 3 else [T] * len(nets) for T in given)
    pairs = [checked_data(*each, "mse") for each in zip(nets, Xs, Ys)]
    own_X, own_Y = (T.ndim == 3 for T in given)
    return [(pair[0] if own_X else pairs[0][0], pair[1] if own_Y else pairs[0][1]) for pair in pairs]
