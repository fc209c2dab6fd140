"""Is a leaky ResNet at a local minimum of its loss, and does it stay one when a neuron is added?"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.base import Subject
from isthmus.claims.leaky_points import Path
from isthmus.objective import cost
from isthmus.trace import activate

#: Most parameters whose Hessian is formed.
PARAMETERS = 600
#: Iterations of the search for a neuron.
ITERATIONS = 15


def least_curvature(subject: Subject) -> float | None:
    """Smallest eigenvalue of the Hessian of cost + ridge·‖θ‖² over 2·ridge; None for more than 600 parameters.

    1 is the ridge alone. At entries on a kink of σ the Hessian says nothing.
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
