"""Numbers of the whole network: norm, balancedness, NTK, mechanics, and how well it fits and how near a minimum."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import as_tensor, fail
from isthmus._errors import DataError, IsthmusError
from isthmus.diagnosis._calls import first_tensor
from isthmus.diagnosis._inputs import Batches
from isthmus.diagnosis._ranks import Isthmus
from isthmus.measures import (
    KernelNorm,
    Mechanics,
    Minimum,
    Stability,
    balance,
    forces,
    kind_of_minimum,
    largest_stable_step,
    ntk_top_eigenvalue,
    ntk_trace,
    parameter_norms,
    read_spectrum,
    step_stability,
)
from isthmus.networks import FullyConnected, Network
from isthmus.objective import class_indices, cost
from isthmus.trace import Trace

#: Samples of the NTK's largest eigenvalue, which takes tens of passes over them.
NTK_SAMPLES = 200

#: Samples whose curvature is looked at one by one: of fully connected layers, and of other modules.
STABILITY_SAMPLES, OTHER_SAMPLES = 2000, 200

#: Share of the cost of the best constant up to which targets count as fitted.
FITS = 0.1

#: Widest layer whose forces are computed: they take a decomposition of every layer.
FORCE_WIDTH = 1000


def describe(module: nn.Module) -> dict[str, Any]:
    """Type, number of parameters, ‖θ‖² in float64, dtype and device."""
    parameters = list(module.parameters())
    squares = [float(p.detach().double().square().sum()) for p in parameters if not p.is_complex()]
    return {
        "type": type(module).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "norm_squared": _finite(sum(squares)),
        "dtype": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        "device": ", ".join(sorted({str(p.device) for p in parameters})),
    }


def fully_connected_numbers(net: FullyConnected, X: Tensor, ridge: float | None) -> dict[str, Any]:
    """What only a fully connected network has: ‖θ‖²/L, balancedness, the NTK."""
    if not all(bool(torch.isfinite(p).all()) for p in net.parameters()):
        return {"depth": len(net.Ws), "ntk_top_state": "not computed: weights are not finite"}
    balanced = balance(net)
    rows = X[:: max(1, -(-len(X) // NTK_SAMPLES))]
    top = ntk_top_eigenvalue(net, rows)
    sharpness = 2.0 * top.value / len(rows) + 2.0 * (ridge or 0.0)
    return {
        "depth": len(net.Ws),
        "norm_per_depth": _finite(parameter_norms(net).per_depth),
        "layer_imbalance": _finite(balanced.layer_residual),
        "neuron_imbalance": _finite(balanced.neuron_residual),
        "ntk_trace": _finite(float(ntk_trace(net, X).mean())),
        "ntk_top": _finite(top.value / len(rows)),
        "ntk_top_state": top.state,
        "largest_stable_step": _finite(largest_stable_step(sharpness)),
        "forces": _forces(net, X),
    }


def _forces(net: FullyConnected, X: Tensor) -> list[dict[str, Any]]:
    """Attraction and repulsion at the hidden layers; none where they would take longer than all the rest."""
    if max(net.dims) > FORCE_WIDTH or len(net.dims) < 3:
        return []
    try:
        return forces(net, X).to_dict()["layers"]
    except IsthmusError:  # pre-activations that are not finite
        return []


def fit_numbers(module: nn.Module, batches: Batches, Y: Any, loss: str, ridge: float | None) -> dict[str, Any]:
    """Cost of the targets, and with ``ridge`` how near a minimum of cost + ridge·‖θ‖² the parameters are."""
    who = "diagnose"
    if batches.samples is None:
        fail(who, "`Y` goes with `X` given as arrays", "`X` as a loader", "Pass arrays for both, or leave `Y` out.")
    targets = targets_of(who, Y, loss)
    if len(targets) != batches.samples:
        got = f"{batches.samples} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Pass one target for each sample.", error=DataError)
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    for parameter in parameters:
        parameter.requires_grad_(ridge is not None)
    total, start = 0.0, 0
    gradients = [torch.zeros_like(p) for p in parameters]
    for args, kwargs in batches:
        with torch.set_grad_enabled(ridge is not None):
            outputs = first_tensor(module(*args, **kwargs))
            assert outputs is not None
            part = targets[start : start + len(outputs)].to(outputs.device)
            part = part.to(outputs.dtype) if part.is_floating_point() else part
            if loss == "mse" and part.shape != outputs.shape:
                got = f"{tuple(part.shape[1:])} for outputs {tuple(outputs.shape[1:])}"
                fail(who, "`Y` must have the shape of the outputs", got, "Match it.", error=DataError)
            flat = outputs.flatten(1) if loss == "mse" else outputs
            value = cost(flat, part.flatten(1) if loss == "mse" else part, loss)
        share = len(outputs) / len(targets)
        total += float(value.detach()) * share
        start += len(outputs)
        if ridge is not None:
            for kept, new in zip(gradients, torch.autograd.grad(value, parameters, allow_unused=True)):
                kept += 0 if new is None else share * new
    numbers: dict[str, Any] = {"cost": _finite(total), "loss": loss}
    if loss == "mse":
        variance = float((targets - targets.mean(0)).square().flatten(1).sum(1).mean())
        numbers["unexplained"] = _finite(total / variance) if variance > 0 else None
    if ridge is not None:
        pull = [2.0 * ridge * p.detach() for p in parameters]
        residual = math.sqrt(sum(float((g + q).double().square().sum()) for g, q in zip(gradients, pull)))
        size = math.sqrt(sum(float(q.double().square().sum()) for q in pull))
        numbers["ridge"] = ridge
        numbers["criticality"] = _finite(residual / size) if size > 0 else None
    return numbers


def mechanics_of(net: Network, batches: Batches, Y: Any, loss: str, ridge: float) -> Mechanics | None:
    """The mechanics of the network on the same samples, where its representations are a path."""
    rows = [value for args, kwargs in batches for value in (*args, *kwargs.values())]
    return net.mechanics(torch.cat(rows), targets_of("diagnose", Y, loss), ridge=ridge, loss=loss)


def stability_of(
    module: nn.Module,
    batches: Batches,
    Y: Any,
    samples: int,
    *,
    loss: str,
    ridge: float | None,
    learning_rate: float,
    training_batch: int | None,
) -> tuple[Stability | None, str]:
    """Whether the training's own steps stay at this minimum, on some of its samples; or None and why not."""
    few = STABILITY_SAMPLES if hasattr(module, "Ws") else OTHER_SAMPLES
    inputs, keywords = batches.first(few)
    if len(inputs) != 1 or keywords or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
        return None, "stability not computed: it needs one array of numbers as input"
    X = inputs[0]
    # Evenly spaced ones of arrays, the first ones of a loader.
    rows = torch.arange(len(X))
    rows = rows if batches.samples is None else rows * samples // len(X)
    targets = None if Y is None else targets_of("diagnose", Y, loss)[rows]
    try:
        found = step_stability(
            module,
            X,
            targets,
            learning_rate=learning_rate,
            batch_size=None if training_batch is None else min(training_batch, samples),
            ridge=ridge or 0.0,
            loss=loss,
            samples=samples,
        )
    # Transforms of torch.func refuse some modules, each in words of its own.
    except (IsthmusError, RuntimeError, NotImplementedError) as problem:
        return None, f"stability not computed: {' '.join(str(problem).split())[:200]}"
    return replace(found, sample=tuple(int(rows[row]) for row in found.sample)), ""


def minimum_of(
    net: FullyConnected,
    X: Tensor,
    targets: Tensor,
    *,
    rank: int | None,
    loss: str,
    ridge: float,
    true_rank: int | None = None,
    gradient: float = 0.0,
) -> Minimum:
    """Which kind of minimum a fully connected network is at, on samples X with these targets.

    Its layers projected on fewer directions, with the least weights for that, are the networks of lower rank that it is
    compared with: they are not trained, and can show no more than that the rank is overestimated.
    """
    targets = targets.to(X) if targets.is_floating_point() else targets.to(X.device)

    def numbers(one: FullyConnected) -> tuple[float, float]:
        with torch.no_grad():
            return float(cost(one(X), targets, loss)), parameter_norms(one).total

    own, norm = numbers(net)
    if not math.isfinite(own + norm):
        return Minimum("undetermined", "its cost is not finite", rank, true_rank, False, ())
    below = {}
    if rank is not None and true_rank is None:
        for k in range(rank):
            narrow = _narrowed(net, X, rank, k)
            with torch.no_grad():
                below[k] = float(cost(narrow.outputs, targets, loss)), _least_norm(narrow)
    return kind_of_minimum(
        rank=rank,
        cost=own,
        norm=norm,
        ridge=ridge,
        depth=net.depth,
        fit=FITS * _scale(targets, loss),
        true_rank=true_rank,
        below={k: pair for k, pair in below.items() if math.isfinite(sum(pair))},
        gradient=gradient,
    )


def rank_in_use(narrow: Isthmus, X: Tensor, net: FullyConnected) -> int | None:
    """The rank; where nothing is narrower than it must be, that of inputs and outputs, if the data have as many."""
    if narrow.verdict != "none":
        return narrow.rank
    most = min(net.dims[0], net.dims[-1])
    return most if int(torch.linalg.matrix_rank(X - X.mean(0))) >= most else None


def relative_gradient(net: FullyConnected, X: Tensor, targets: Tensor, loss: str, ridge: float) -> float:
    """‖∇(cost + ridge·‖θ‖²)‖/‖2·ridge·θ‖; 0 for a network that vanishes."""
    parameters = [p.detach().requires_grad_() for p in net.parameters()]
    named = dict(zip((name for name, _ in net.named_parameters()), parameters))
    with torch.enable_grad():
        value = cost(torch.func.functional_call(net, named, (X,)), targets, loss)
        gradients = torch.autograd.grad(value, parameters)
    pull = [2.0 * ridge * p.detach() for p in parameters]
    size = math.sqrt(sum(float(q.square().sum()) for q in pull))
    left = math.sqrt(sum(float((g + q).square().sum()) for g, q in zip(gradients, pull)))
    return left / size if size > 0 else 0.0


def _narrowed(net: FullyConnected, X: Tensor, rank: int, k: int) -> Trace:
    """The network with every layer of this rank projected on its k leading directions, on X."""
    narrow = copy.deepcopy(net)
    for ell, A in enumerate(net.trace(X).preactivations[:-1], start=1):
        reading = read_spectrum(torch.linalg.svdvals(A - A.mean(0)))
        if reading.status in ("clear", "full") and reading.count == rank:
            narrow.pinch_(X, ell, k)
    return narrow.trace(X)


def _least_norm(trace: Trace) -> float:
    """Σ_ℓ min(‖W_ℓ‖² + ‖b_ℓ‖², ‖Z_ℓ(Z^σ_(ℓ−1))⁺‖²): of weights with the same representations on these samples."""
    total = 0.0
    for ell, norm in enumerate(parameter_norms(trace).layers.tolist(), start=1):
        total += min(norm, KernelNorm(trace.Z_sigma(ell - 1)).square(trace.Z(ell)))
    return total


def _scale(targets: Tensor, loss: str) -> float:
    """Cost of the best constant: the variance of the targets, or the entropy of the classes."""
    if loss == "mse":
        return float((targets - targets.mean(0)).square().flatten(1).sum(1).mean())
    shares = targets.double().mean(0) if targets.is_floating_point() else torch.bincount(targets) / len(targets)
    return float(torch.special.entr(shares).sum())


def targets_of(who: str, Y: Any, loss: str) -> Tensor:
    """Targets as the loss takes them: class indices (N,), or float64 with at least two axes."""
    tensor = as_tensor(who, "Y", Y)
    if loss == "cross_entropy" and (tensor.ndim == 1 or tensor.shape[1:] == (1,)):
        return class_indices(who, tensor)
    return tensor[:, None] if tensor.ndim == 1 else tensor


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
