"""Q-spectra: singular values of weights and representations, and effective dimensions of a spectrum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, check_choice, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.trace import Layered, Trace


@cites("bottleneck2023", "Fig. 1b", ids=("Q-spectra",))
@torch.no_grad()
def weight_spectra(net: Layered) -> list[Tensor]:
    """Singular values of W_1 … W_L, decreasing, in float64."""
    for ell, W in enumerate(net.Ws, start=1):
        if not bool(torch.isfinite(W).all()):
            fail(
                "weight_spectra",
                "weights must be finite",
                f"NaN or infinite entries in W_{ell}",
                "Replace them.",
                error=DataError,
            )
    return [torch.linalg.svdvals(W.detach().double()) for W in net.Ws]


@cites("rank2023", "Fig. 1A", ids=("Q-spectra",))
@torch.no_grad()
def representation_spectra(trace: Trace, *, centered: bool = True, of: str = "preactivations") -> list[Tensor]:
    """Singular values of the representations divided by √N, decreasing.

    Parameters
    ----------
    trace : Trace
        Of a network on data.
    centered : bool, default True
        Subtract the mean over samples: a direction that is constant over the data stands in for a bias and is
        not a dimension of the representation.
    of : {"preactivations", "activations"}
        α̃_1 … α̃_L, or α_0 … α_{L-1}.

    Returns
    -------
    list of Tensor (min(N, n_ℓ),)

    Notes
    -----
    For N > n the values come from a QR factor (n × n), never from the covariance, whose square roots would
    put a floor at √eps on small singular values.
    """
    check_choice("representation_spectra", "of", of, ("preactivations", "activations"))
    return [_spectrum(A, centered) for A in getattr(trace, of)]


def _spectrum(A: Tensor, centered: bool) -> Tensor:
    A = A.double()
    samples = A.shape[0]
    if centered:
        A = A - A.mean(0)
    if samples > 2 * A.shape[1]:
        A = torch.linalg.qr(A, mode="r").R
    return torch.linalg.svdvals(A) / samples**0.5


def _spectrum_in(who: str, s: Any) -> Tensor:
    values = as_tensor(who, "s", s)
    if values.ndim == 0 or values.shape[-1] == 0 or bool((values < 0).any()):
        fail(
            who,
            "`s` must be a non-empty array of singular values ≥ 0",
            f"shape {tuple(values.shape)}",
            "Pass s(A).",
        )
    return values


def participation_ratio(s: Any) -> Tensor:
    """(Σs²)² / Σs⁴: the number of directions that carry the variance; 0 for a zero spectrum.

    Parameters
    ----------
    s : array (..., r)
        Singular values, in any order.
    """
    square = _spectrum_in("participation_ratio", s).square()
    # Dividing by the largest first keeps s⁴ from under- or overflowing.
    top = square.amax(-1, keepdim=True)
    square = square / torch.where(top > 0, top, torch.ones_like(top))
    total = square.sum(-1)
    return total.square() / square.square().sum(-1).clamp_min(torch.finfo(square.dtype).tiny)


def stable_rank(s: Any) -> Tensor:
    """‖A‖²_F / ‖A‖²_op = Σs² / s₁²; 0 for a zero spectrum.

    Parameters
    ----------
    s : array (..., r)
        Singular values, in any order.
    """
    values = _spectrum_in("stable_rank", s)
    top = values.amax(-1, keepdim=True)
    return (values / torch.where(top > 0, top, torch.ones_like(top))).square().sum(-1)
