"""Q-stable: is a minimum stable at one's own learning rate and batch size, and which samples make it unstable?

Near a minimum θ* a step of size η on the batch b is θ − θ* ↦ (I − ηH_b)(θ − θ*). With our loss, the mean over samples
of ‖f − y‖² plus ridge·‖θ‖², and where f fits, H_i = 2J_iᵀJ_i + 2·ridge with J_i = J_θ f(x_i), and H is their mean.
(Departs from talk2023, which has (2/N)‖J_i‖² ≥ 1/η for "cannot converge": twice too strict, see ``docs/errata.md``.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.func import jacrev, jvp, vjp, vmap

from isthmus._checks import as_matrix, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._codec import Plain, Within
from isthmus._errors import DataError
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.measures._ntk import Eigenvalue, _Flat, _targets, largest_stable_step, top_eigenvalue
from isthmus.objective import LOSSES
from isthmus.trace import Trace

#: The sharpest samples that a result lists.
LISTED = 100


#: A length of steps; null is one without a bound.
Step = Annotated[float, Within(null=math.inf)]


@dataclass(frozen=True)
class Stability(Plain):
    """Whether steps of one size lead back to a minimum.

    Attributes
    ----------
    verdict : {"stable", "unstable", "undetermined"}
        ``"undetermined"`` between ``stable_step`` and ``unstable_step``, or where ‖H‖ is only known from below.
    reason : str
    learning_rate : float
        η.
    batch_size, samples : int
        B and N; full batches are B = N.
    ridge : float
    curvature : {"Hessian", "Gauss–Newton"}
        Which H is meant; they are equal where f fits its targets.
    sharpness, trace : float
        ‖H‖_op and Tr H (of the Gauss–Newton matrix).
    stable_step : float
        Steps up to this one shrink the mean squared distance from the minimum: 2/‖H‖ for full batches, otherwise
        2/((1−c)‖H‖ + c·max‖H_i‖), c = (N−B)/(B(N−1)).
    trace_step : float
        2/((1−c)‖H‖ + c·Tr H): the same where all samples have the same Tr H_i.
    unstable_step : float
        Steps above this one enlarge it, in some direction and on average.
    sample, sample_sharpness : tuple
        The sharpest samples, at most 100: their rows, and ‖H_i‖ of each.
    unstable_samples : int
        How many of all samples have (‖H_i‖ − 2·ridge)/B + 2·ridge > 2/η: each of them expands some direction in every
        batch that it is in, whatever the other samples are.
    """

    verdict: str
    reason: str
    learning_rate: float
    batch_size: int
    samples: int
    ridge: float
    curvature: str
    sharpness: float
    trace: float
    stable_step: Step
    trace_step: Step
    unstable_step: Step
    sample: tuple[int, ...]
    sample_sharpness: tuple[float, ...]
    unstable_samples: int

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        batch = "full batches" if self.batch_size == self.samples else f"batches of {self.batch_size}"
        how = f"{self.verdict.capitalize()} at learning rate {self.learning_rate:g} with {batch}: {self.reason}"
        if not self.unstable_samples:
            return f"{how}."
        first = ", ".join(map(str, self.sample[: min(5, self.unstable_samples)]))
        more = ", …" if self.unstable_samples > 5 else ""
        return f"{how}; {self.unstable_samples} samples are too sharp by themselves (rows {first}{more})."


@cites("bottleneck2023", "§4", ids=("Q-stable",))
@cites("talk2023", "Minima stability", ids=("Q-stable",))
def step_stability(
    net: torch.nn.Module,
    X: Any,
    Y: Any = None,
    *,
    learning_rate: float,
    batch_size: int | None = None,
    ridge: float = 0.0,
    loss: str = "mse",
    samples: int | None = None,
    tolerance: float = 1e-4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Stability:
    """Is the minimum stable under (stochastic) gradient descent? ‖H‖ ≤ 2/η for full batches.

    With batches of B out of N samples, without replacement, E[(I − ηH_b)²] = I − 2ηH + η²((1−c)H² + c·E[H_i²]),
    c = (N−B)/(B(N−1)). Since H_i² ≤ ‖H_i‖H_i, steps up to 2/((1−c)‖H‖ + c·max‖H_i‖) shrink every direction on average.
    The distance grows in mean square if η·E Tr[ΣH_bΣH_b] > 2Tr[Σ²H] for any Σ: tried are the identity, the sharpest
    direction of the sharpest sample, and what full batches need, η > 2/‖H‖.

    Parameters
    ----------
    net : torch.nn.Module
        From one tensor (N, …) to outputs (N, d_out), in evaluation mode.
    X : array (n, …)
    Y : array (n, d_out) or labels (n,), optional
        With targets the Hessian of the loss decides for full batches; without, or with smaller batches, the
        Gauss–Newton matrix, to which it is equal where f fits.
    learning_rate : float
        η, of plain gradient steps on our loss. PyTorch's ``weight_decay`` is 2·``ridge``. A loss averaged over d_out
        outputs is ours divided by d_out: pass ``learning_rate``/d_out and ``ridge``·d_out.
    batch_size : int, optional
        B; full batches unless given.
    ridge, loss
        As in ``train``.
    samples : int, optional
        N of the training, where X is only some of its rows; H is then their mean.
    tolerance : float, default 1e-4
        Relative error of ‖H‖.
    """
    who = "step_stability"
    eta = check_number(who, "learning_rate", learning_rate, low=0.0, low_open=True)
    check_number(who, "ridge", ridge, low=0.0)
    check_choice(who, "loss", loss, LOSSES)
    flat = _Flat(who, net, X, None if Y is None else _targets(who, Y, loss), chunk_bytes)
    N = flat.samples if samples is None else check_integer(who, "samples", samples, low=flat.samples)
    B = N if batch_size is None else check_integer(who, "batch_size", batch_size, low=1, high=N)
    roots = _roots(flat, loss)
    kernels = _sample_kernels(flat, net, roots, chunk_bytes)
    s = torch.linalg.eigvalsh(kernels).clamp_min(0.0)
    each = s[:, -1] + 2.0 * ridge
    P, c = len(flat.theta), 0.0 if N == 1 else (N - B) / (B * (N - 1))
    exact = Y is not None and N == B

    def apply(u: Tensor) -> Tensor:
        return flat.hessian_product(u, loss, ridge) if exact else _gauss_newton(flat, u, roots) + 2.0 * ridge * u

    top = top_eigenvalue(apply, P, tolerance=tolerance)
    if not math.isfinite(top.value):
        fail(who, "the curvature must be finite", top.value, "Check the weights and the data.", error=DataError)
    trace = float(s.sum(1).mean()) + 2.0 * ridge * P
    stable = largest_stable_step((1.0 - c) * top.value + c * float(each.max()))
    unstable = largest_stable_step(top.value)
    if c > 0.0:
        squares = float(s.square().sum(1).mean()) + 4.0 * ridge * float(s.sum(1).mean()) + 4.0 * ridge**2 * P
        unstable = min(unstable, 2.0 * trace / (c * squares) if squares > 0 else math.inf)
        unstable = min(unstable, _along_one_sample(flat, roots, kernels, int(each.argmax()), ridge, c))
    verdict, reason = _judge(eta, stable, unstable, top.state)
    order = each.argsort(descending=True)
    return Stability(
        verdict=verdict,
        reason=reason,
        learning_rate=eta,
        batch_size=B,
        samples=N,
        ridge=ridge,
        curvature="Hessian" if exact else "Gauss–Newton",
        sharpness=top.value,
        trace=trace,
        stable_step=stable,
        trace_step=largest_stable_step((1.0 - c) * top.value + c * trace),
        unstable_step=unstable,
        sample=tuple(order[:LISTED].tolist()),
        sample_sharpness=tuple(each[order[:LISTED]].tolist()),
        unstable_samples=int((s[:, -1] / B + 2.0 * ridge > 2.0 / eta).sum()),
    )


@cites("bottleneck2023", "§4", ids=("Q-stable",))
def sharpness(
    net: torch.nn.Module,
    X: Any,
    *,
    ridge: float = 0.0,
    loss: str = "mse",
    tolerance: float = 1e-4,
    chunk_bytes: int = CHUNK_BYTES,
) -> Eigenvalue:
    """‖H‖ = ‖(1/N)Σ J_iᵀR_iR_iᵀJ_i‖ + 2·ridge of the Gauss–Newton matrix, RRᵀ = 2I for the mean square.

    The Hessian's where f fits; needs no targets. Gradient descent stays at the minimum for steps up to 2/‖H‖.
    """
    who = "sharpness"
    check_number(who, "ridge", ridge, low=0.0)
    check_choice(who, "loss", loss, LOSSES)
    flat = _Flat(who, net, X, None, chunk_bytes)
    roots = _roots(flat, loss)
    top = top_eigenvalue(lambda u: _gauss_newton(flat, u, roots), len(flat.theta), tolerance=tolerance)
    return replace(top, value=top.value + 2.0 * ridge)


def _judge(eta: float, stable: float, unstable: float, state: str) -> tuple[str, str]:
    # Lanczos that has not converged gives ‖H‖ from below, and steps from above.
    if eta > unstable:
        return "unstable", f"steps above {unstable:.3g} leave the minimum"
    if eta <= stable and state == "converged":
        return "stable", f"steps up to {stable:.3g} stay"
    if state != "converged":
        return "undetermined", f"the largest curvature was not found; steps above {unstable:.3g} leave the minimum"
    return "undetermined", f"steps up to {stable:.3g} stay, steps above {unstable:.3g} leave the minimum"


@torch.no_grad()
def _roots(flat: _Flat, loss: str) -> list[Tensor] | None:
    """R (n, d, d) with RRᵀ the Hessian of the loss by the outputs, chunk by chunk; None for the mean square, √2·I."""
    if loss == "mse":
        return None
    roots = []
    for inputs in flat.inputs:
        p = torch.softmax(flat.outputs(flat.theta, inputs), 1)
        # diag(p) − ppᵀ = RRᵀ for R = diag(√p) − p√pᵀ, because p sums to 1.
        roots.append(torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :])
    return roots


def _gauss_newton(flat: _Flat, u: Tensor, roots: list[Tensor] | None) -> Tensor:
    """(1/n)Σ J_iᵀR_iR_iᵀJ_i u, chunk by chunk."""
    total = torch.zeros_like(u)
    for index, inputs in enumerate(flat.inputs):
        f = lambda theta, inputs=inputs: flat.outputs(theta, inputs)  # noqa: E731
        image = jvp(f, (flat.theta,), (u,))[1]
        R = None if roots is None else roots[index]
        image = 2.0 * image if R is None else (R @ (R.mT @ image[:, :, None]))[:, :, 0]
        total += vjp(f, flat.theta)[1](image)[0]
    return total / flat.samples


def _sample_kernels(flat: _Flat, net: torch.nn.Module, roots: list[Tensor] | None, chunk_bytes: int) -> Tensor:
    """RᵀΘ(x_i, x_i)R at every sample, (n, d, d): its eigenvalues are those of the sample's Gauss–Newton matrix."""
    probe = flat.outputs(flat.theta, flat.inputs[0][:1])
    if probe.ndim != 2:
        got = f"outputs of shape {tuple(probe.shape)} for one sample"
        fail("step_stability", "`net` must give outputs (N, d_out)", got, "Flatten them.")
    layered = _layered(net, flat.inputs[0][:1])
    blocks = ntk_blocks(net, torch.cat(flat.inputs)) if layered else _by_jacobians(flat, chunk_bytes)
    if roots is None:
        return 2.0 * blocks
    R = torch.cat(roots)
    return R.mT @ blocks @ R


@torch.no_grad()
def _layered(net: Any, x: Tensor) -> bool:
    """Whether the parameters are those of fully connected layers, all of them, so that Θ has its layer formula."""
    return callable(getattr(net, "trace", None)) and isinstance(net.trace(x), Trace)


@cites("bottleneck2023", "§4", ids=("Q-ntk",))
@torch.no_grad()
def ntk_blocks(net: Any, X: Any, *, chunk_bytes: int = CHUNK_BYTES, dtype: torch.dtype = torch.float64) -> Tensor:
    """Θ(x, x) = Σ_ℓ (‖α_{ℓ-1}(x)‖² + β²)·G_ℓ(x)G_ℓ(x)ᵀ, G_ℓ = J(α̃_ℓ → f), for every row of X, (N, d_out, d_out)."""
    dims = (net.Ws[0].shape[1], *(W.shape[0] for W in net.Ws))
    inputs = as_matrix("ntk_blocks", "X", X, columns=dims[0], dtype=dtype, device=net.Ws[0].device)
    per_row = inputs.element_size() * (2 * dims[-1] * max(dims) + 4 * sum(dims))
    found = []
    for part in inputs.split(chunk_rows(len(inputs), per_row, chunk_bytes)):
        trace = net.trace(part, dtype=dtype)
        sizes = [a.square().sum(1) + trace.bias**2 for a in trace.activations]
        G = torch.eye(dims[-1], dtype=dtype, device=part.device).expand(len(part), -1, -1)
        total = sizes[-1][:, None, None] * G
        for ell in range(trace.depth - 1, 0, -1):
            G = (G @ trace.Ws[ell]) * trace.derivative(ell)[:, None, :]
            total = total + sizes[ell - 1][:, None, None] * (G @ G.mT)
        found.append(total)
    return torch.cat(found)


def _by_jacobians(flat: _Flat, chunk_bytes: int) -> Tensor:
    """Θ(x_i, x_i) of any module: as many samples at a time as their d_out × P Jacobians fit."""
    inputs = torch.cat(flat.inputs)
    d = flat.outputs(flat.theta, inputs[:1]).shape[1]
    rows = chunk_rows(len(inputs), 3 * 8.0 * d * len(flat.theta), chunk_bytes)
    each = vmap(jacrev(lambda theta, x: flat.outputs(theta, x[None])[0]), in_dims=(None, 0))
    found = []
    for part in inputs.split(rows):
        J = each(flat.theta, part)
        found.append((J @ J.mT).detach())
    return torch.cat(found)


def _along_one_sample(
    flat: _Flat, roots: list[Tensor] | None, kernels: Tensor, row: int, ridge: float, c: float
) -> float:
    """The step above which vvᵀ grows, v the sharpest direction of a sample: 2vᵀHv/((1−c)(vᵀHv)² + c·E(vᵀH_iv)²)."""
    inputs = torch.cat(flat.inputs)
    u = torch.linalg.eigh(kernels[row]).eigenvectors[:, -1]
    cotangent = u * math.sqrt(2.0) if roots is None else torch.cat(roots)[row] @ u
    v = vjp(lambda theta: flat.outputs(theta, inputs[row : row + 1])[0], flat.theta)[1](cotangent)[0]
    if float(v.norm()) == 0.0:
        return math.inf
    v = v / v.norm()
    along = []
    for index, part in enumerate(flat.inputs):
        image = jvp(lambda theta, part=part: flat.outputs(theta, part), (flat.theta,), (v,))[1]
        if roots is not None:
            image = (roots[index].mT @ image[:, :, None])[:, :, 0]
        along.append((2.0 if roots is None else 1.0) * image.square().sum(1))
    curvatures = torch.cat(along) + 2.0 * ridge
    mean = float(curvatures.mean())
    return 2.0 * mean / ((1.0 - c) * mean**2 + c * float(curvatures.square().mean()))
