"""Inside the bottleneck representations are non-negative, as the effective depth grows (hamiltonian2024, Prop. 5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim, unmet
from isthmus.claims._evidence import fit_exponent
from isthmus.claims.hamiltonian2024._flow import ORDER_ROOM, Path, as_subject, path_of
from isthmus.constructions import steady_path
from isthmus.networks import LeakyResNet
from isthmus.objective import cost
from isthmus.trace import activate

HYPOTHESES = (
    "a family by L̃",
    "critical points",
    "local minima",
    "no descent by an added neuron found",
    "∂_pA bounded near p₀",
)

#: Half-width of the neighbourhood of p₀.
NEAR = 0.1

#: Errors and shares below this are rounding.
SMALLEST = 1e-13

#: A series falls if its fitted exponent in L̃ is at most this; that of a constant is 0.
FALLS = -1e-3


def deepening_family() -> Subject:
    """Critical points in closed form for L̃ = 2, 4, 8, 12: two positive directions and a negative neuron that leaks."""
    A = torch.tensor([[1.0, 0.4], [0.3, 1.2]], dtype=torch.float64)
    D = torch.tensor([[0.2, 0.1], [0.1, -0.1]], dtype=torch.float64)
    members = []
    for L_tilde in (2.0, 4.0, 8.0, 12.0):
        G = torch.eye(2, dtype=torch.float64) + D / L_tilde
        leaking = torch.tensor([[-1.0, -0.5]], dtype=torch.float64)
        members.append(as_subject(steady_path(A, G, L_tilde, 18, leaking=leaking)))
    return members[-1].replace(known={"family": members})


@claim(
    "C-ham-6",
    "For local minima with L̃ → ∞ and ‖∂_pA‖ bounded near p₀ the representation at p₀ tends to a non-negative one, and "
    "−(2/L̃)𝓗 and min_p‖A_p‖²_K to one integer",
    paper="hamiltonian2024",
    where="Prop. 5 and Prop. 9",
    hypotheses=HYPOTHESES,
    sample=deepening_family,
    relation="≤",
    erratum="Prop. 5 also needs minima that are stable under adding a neuron.",
    rate=True,
    about=LeakyResNet.kind,
)
def non_negative_inside(check: Check, subject: Subject) -> None:
    """‖[A_{p₀}]₋‖²/‖A_{p₀}‖² falls with L̃, and so do the distances of −(2/L̃)𝓗 and min_p‖A_p‖²_K from an integer.

    ``known["family"]`` has Subjects of growing L̃, ``known["p0"]`` is p₀ (½ unless given). That a member is a minimum is
    read off its Hessian (up to 600 parameters), its stability searched for below.
    Derivatives count as bounded if the whole interval of their exponent in L̃ does. As the statement is about the
    limit, the distances are judged by their fitted exponents, not one by one.
    """
    family: list[Subject] = sorted(subject.family(Subject) or (), key=lambda one: one.net.effective_depth)
    if not family:
        check.not_applicable("needs subjects of growing L̃", supply="known['family']")
    p0 = float(subject.known.get("p0", 0.5))
    depths = [one.net.effective_depth for one in family]
    check.assume(HYPOTHESES[0], len(set(depths)) >= 3, f"L̃ = {', '.join(f'{d:g}' for d in depths)}")
    paths: list[Path] = []
    for one in family:
        path, found = path_of(one)
        if path is None:
            check.assume(HYPOTHESES[1], False, f"L̃ = {one.net.effective_depth:g}: {unmet(found)}")
            check.not_applicable()
        paths.append(path)
    check.assume(HYPOTHESES[1], True, f"residuals up to {max(path.residual for path in paths):.2g}")
    check.require()
    curved = [least_curvature(one) for one in family]
    known = [value for value in curved if value is not None]
    least = min(known, default=math.nan)
    minima = None if len(known) < len(family) else least > 0
    check.assume(HYPOTHESES[2], minima, f"least curvature {least:.3g} of the ridge's")
    neuron = min(neuron_curvature(path) for path in paths)
    check.assume(HYPOTHESES[3], neuron >= -1e-9, f"least change {neuron:.3g}")
    speeds = [_speed(path, p0) for path in paths]
    rate = fit_exponent(depths, [max(speed, SMALLEST) for speed in speeds])
    # With few members the interval is wide, and decides neither.
    bounded = True if rate.high <= ORDER_ROOM else False if rate.low > 0 else None
    exponent = f"exponent in L̃ from {rate.low:.2g} to {rate.high:.2g}"
    check.assume(HYPOTHESES[4], bounded, f"‖∂_pA‖/‖A‖ from {speeds[0]:.3g} to {speeds[-1]:.3g}, {exponent}")
    _falling(check, paths, depths, p0)


def _falling(check: Check, paths: list[Path], depths: list[float], p0: float) -> None:
    """Compare the exponent in L̃ of each series with ``FALLS``."""
    shares = [negative_share(path, p0) for path in paths]
    ranks = [
        -2.0 / path.L_tilde * float(torch.tensor(path.hamiltonians(), dtype=torch.float64).median()) for path in paths
    ]
    costs = [min(step.norm.square(step.A) for step in path.steps()) for path in paths]
    integer = round(ranks[-1])
    series = {
        "negative share at p₀": shares,
        f"distance of −(2/L̃)𝓗 from {integer}": [abs(value - integer) for value in ranks],
    }
    if all(math.isfinite(value) for value in costs):
        series[f"distance of min ‖A‖²_K from {integer}"] = [abs(value - integer) for value in costs]
    rates = {
        what: fit_exponent(depths, [max(value, SMALLEST) for value in values])
        for what, values in series.items()
        if max(values) > SMALLEST
    }
    # A series of mere rounding cannot fall further: it counts as falling. Exponents are of the order of 1.
    exponents = [rates[what].value if what in rates else -math.inf for what in series]
    check.compare(
        exponents,
        "≤",
        FALLS,
        tolerance=0.0,
        scale=1.0 + max((abs(value) for value in exponents if math.isfinite(value)), default=0.0),
        where=[f"{what}: exponent in L̃" for what in series],
        details={"L̃": depths, **series, **{f"exponent of {what}": rate.numbers for what, rate in rates.items()}},
    )


def _nearest(path: Path, p0: float) -> int:
    return int((path.trace.positions - p0).abs().argmin())


def negative_share(path: Path, p0: float) -> float:
    """‖[A]₋‖²/‖A‖² at the position nearest to p₀."""
    A = path.trace.A(_nearest(path, p0))
    return float(A.clamp_max(0.0).square().sum() / A.square().sum().clamp_min(1e-300))


def _speed(path: Path, p0: float) -> float:
    """Largest ‖∂_pA‖/‖A‖ over the steps near p₀."""
    trace = path.trace
    near = [ell for ell in range(1, trace.depth + 1) if abs(float(trace.positions[ell]) - p0) <= NEAR]
    chosen = near or [max(1, _nearest(path, p0))]
    return max(float(trace.derivative(ell).norm() / trace.A(ell).norm().clamp_min(1e-300)) for ell in chosen)


# ---- Is a leaky ResNet at a local minimum of its loss, and does it stay one when a neuron is added?


#: The Hessian is formed of at most so many parameters.
PARAMETERS = 600

#: Power iterations of the search for a neuron that lowers the loss.
ITERATIONS = 15


def least_curvature(subject: Subject) -> float | None:
    """Smallest eigenvalue of the Hessian of cost + ridge·‖θ‖² over 2·ridge; None for more than 600 parameters.

    The ridge alone gives 1. The Hessian is blind to pre-activations at a kink of σ.
    """
    net, ridge = subject.net, subject.ridge
    parameters = dict(net.named_parameters())
    if subject.Y is None or not ridge or sum(p.numel() for p in parameters.values()) > PARAMETERS:
        return None
    sizes = [p.numel() for p in parameters.values()]
    shapes = [p.shape for p in parameters.values()]
    targets = subject.Y

    def loss(theta: Tensor) -> Tensor:
        parts = {name: t.reshape(s) for name, t, s in zip(parameters, theta.split(sizes), shapes)}
        outputs = torch.func.functional_call(net, parts, (subject.X,))
        return cost(outputs, targets, subject.loss) + ridge * theta.square().sum()

    theta = torch.cat([p.detach().flatten() for p in parameters.values()])
    # Twice in reverse mode: forward mode would first load half of PyTorch.
    H = torch.func.jacrev(torch.func.grad(loss))(theta)
    assert isinstance(H, Tensor)
    return float(torch.linalg.eigvalsh((H + H.mT) / 2)[0]) / (2.0 * ridge)


def neuron_curvature(path: Path) -> float:
    """Least second-order change of the loss by a neuron with incoming weights r_ℓ and the best outgoing ones.

    A neuron of size ε changes the loss by ε²λ/2L̃ times Σρ‖r_ℓ‖² − L̃²Σρ_ℓ‖B_ℓσ(a_{ℓ-1})ᵀ‖², where its activations are
    a_ℓ = (1−ρ_ℓL̃)a_{ℓ-1} + ρ_ℓr_ℓσ(A_{ℓ-1}), a_0 = 0, and its outgoing weights L̃B_ℓσ(a_{ℓ-1})ᵀ. Given relative to
    Σρ‖r_ℓ‖². The second sum is raised by power iteration from bumps r_ℓ = t(p)σ(A_i), by which the paper proves
    Prop. 5, with both signs: evidence, and no proof, that there is nothing lower.
    """
    trace, L_tilde = path.trace, path.L_tilde
    S = torch.stack([trace.sigma_A(ell) for ell in range(trace.depth)])
    B = torch.stack(path.Bs[1:])
    rho = trace.rho
    centres = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    bumps = (1.0 - (trace.positions[:-1] - centres[:, None]).abs() / 0.25).clamp_min(0.0)
    columns = S[:, :, torch.linspace(0, S.shape[2] - 1, min(S.shape[2], 8)).long().unique()]
    starts = torch.einsum("cl,lwi->cilw", bumps, columns).flatten(0, 1)
    r = torch.cat([starts, -starts])

    def gain(rows: Tensor) -> Tensor:
        a = rows.new_zeros(len(rows), S.shape[2])
        total = rows.new_zeros(len(rows))
        for ell in range(trace.depth):
            total = total + rho[ell] * (activate(a, trace.slope) @ B[ell].mT).square().sum(1)
            a = (1.0 - rho[ell] * L_tilde) * a + rho[ell] * rows[:, ell] @ S[ell]
        return L_tilde**2 * total

    best = 1.0
    for _ in range(ITERATIONS):
        r = r / (rho[:, None] * r.square()).sum((1, 2), keepdim=True).sqrt().clamp_min(1e-300)
        r = r.detach().requires_grad_()
        with torch.enable_grad():
            values = gain(r)
            (slope,) = torch.autograd.grad(values.sum(), r)
        best = min(best, 1.0 - float(values.detach().max()))
        # The metric is Σρ‖r_ℓ‖²; directions that gain nothing stay where they are.
        r = torch.where(slope.abs().amax((1, 2), keepdim=True) > 0, slope / rho[:, None], r)
    return best
