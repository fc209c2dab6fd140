"""A-symmetries: leaky ResNets that are the same up to a change of scale."""

from __future__ import annotations

from torch import Tensor

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.networks import LeakyResNet


@cites("hamiltonian2024", "§1.2, integration range", ids=("A-symmetries",))
def rescale_range(net: LeakyResNet, factor: float) -> LeakyResNet:
    """W'_ℓ = W_ℓ/c on steps cρ_ℓ with the leak L̃/c: the same representations on [0, c], and Σρ‖W‖² divided by c.

    Exact discretely, because ρL̃ and ρW stay as they are. The lengths of the result sum to c.

    Parameters
    ----------
    net : LeakyResNet
        Not changed.
    factor : float
        c > 0.
    """
    c = check_number("rescale_range", "factor", factor, low=0.0, low_open=True)
    return _with(net, [W.detach() / c for W in net.Ws], c * net.rho, net.effective_depth / c)


@cites("hamiltonian2024", "§1.2, output scaling", ids=("A-symmetries",))
def shift_leak(net: LeakyResNet, shift: float) -> LeakyResNet:
    """The same W with the leak L̃ + c: α'_p = e^{−cp}α_p as ρ → 0, up to O(ρ) on a network; without bias only.

    Parameters
    ----------
    net : LeakyResNet
        Without bias. Not changed.
    shift : float
        c ≥ −L̃.
    """
    who = "shift_leak"
    if net.bias:
        fix = "A bias does not scale with the representation: there is no such symmetry."
        fail(who, "`net` must have no bias", f"bias {net.bias:g}", fix)
    c = check_number(who, "shift", shift, low=-net.effective_depth)
    return _with(net, [W.detach() for W in net.Ws], net.rho, net.effective_depth + c)


@cites("hamiltonian2024", "§3", ids=("A-symmetries",))
def refine_steps(net: LeakyResNet, times: int) -> LeakyResNet:
    """Every step cut into ``times`` of the same W: nearer to the path ∂_pα = −L̃α + W_pσ(α) of the stepwise W_p."""
    m = check_integer("refine_steps", "times", times, low=1)
    Ws = [W.detach() for W in net.Ws for _ in range(m)]
    return _with(net, Ws, (net.rho / m).repeat_interleave(m), net.effective_depth)


def _with(net: LeakyResNet, Ws: list[Tensor], rho: Tensor, effective_depth: float) -> LeakyResNet:
    return LeakyResNet.from_weights(
        Ws,
        rho,
        effective_depth=effective_depth,
        W_in=net.W_in.detach(),
        W_out=net.W_out.detach(),
        slope=net.slope,
        bias=net.bias,
        steps=net.steps,
        embed=net.embed,
    )
