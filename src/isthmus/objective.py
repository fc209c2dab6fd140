"""The one convention: cost = mean over samples, sum over outputs; ``ridge`` multiplies ‖θ‖², biases included.

Every paper writes its regulariser differently; :func:`ridge_from` converts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError

LOSSES = ("mse", "cross_entropy")


def cost(outputs: Tensor, Y: Tensor, loss: str = "mse") -> Tensor:
    """C = (1/N) Σᵢ c(f(xᵢ), yᵢ).

    Parameters
    ----------
    outputs : Tensor (..., N, d_out)
        f(X), samples as rows.
    Y : Tensor (..., N, d_out), or (..., N) of class indices for ``"cross_entropy"``
        Targets.
    loss : {"mse", "cross_entropy"}
        ``"mse"``: c = ‖f − y‖², summed over outputs. ``"cross_entropy"``: c = −log softmax(f)_y;
        rows of probabilities are accepted as soft targets.

    Returns
    -------
    Tensor (...)
        One cost for each leading index, so that stacks of networks train together.
    """
    check_choice("cost", "loss", loss, LOSSES)
    if loss == "mse":
        if outputs.shape != Y.shape:
            fail(
                "cost",
                "`outputs` and `Y` must have the same shape",
                f"{tuple(outputs.shape)} and {tuple(Y.shape)}",
                "Pass Y as samples × outputs.",
            )
        return (outputs - Y).square().sum(-1).mean(-1)
    soft = Y.dtype.is_floating_point
    if (outputs.shape if soft else outputs.shape[:-1]) != Y.shape:
        fail(
            "cost",
            "`Y` must be class indices (one integer for each sample) or probabilities (samples × classes)",
            f"{Y.dtype} of shape {tuple(Y.shape)} for outputs {tuple(outputs.shape)}",
            "Convert labels to integers, or to rows of probabilities.",
        )
    logs = torch.log_softmax(outputs, dim=-1)
    if soft:
        return -(Y * logs).sum(-1).mean(-1)
    try:
        chosen = logs.gather(-1, Y.long()[..., None])
    except RuntimeError:
        # Looked into only now: training comes along here at every step.
        low, high, classes = int(Y.min()), int(Y.max()), logs.shape[-1]
        if low >= 0 and high < classes:
            raise
        must, do = f"class indices must be in [0, {classes - 1}], one class for each output", "Number classes from 0."
        fail("cost", must, f"indices from {low} to {high}", do, error=DataError)
    return -chosen.squeeze(-1).mean(-1)


def class_indices(who: str, Y: Tensor) -> Tensor:
    """Labels (N,) or (N, 1) of any dtype as class indices; they must be whole numbers, 0 at least."""
    labels = Y.reshape(-1)
    whole = labels.long()
    if bool((whole != labels).any()) or bool((whole < 0).any()):
        wrong = labels[(whole != labels) | (whole < 0)][0].item()
        do = "Number the classes from 0; for numbers use loss='mse'."
        fail(who, "class indices must be whole numbers from 0 on", wrong, do, error=DataError)
    return whole


def constant_cost(Y: Tensor, loss: str = "mse") -> float:
    """Cost of the best constant prediction: the total variance, or the entropy of the labels.

    Parameters
    ----------
    Y : Tensor (N, d_out), or (N,) of class indices
    """
    check_choice("constant_cost", "loss", loss, LOSSES)
    if loss == "mse":
        return float(cost(Y.mean(0).expand_as(Y), Y))
    shares = Y.mean(0) if Y.is_floating_point() else torch.bincount(Y.reshape(-1)) / Y.numel()
    return float(-torch.special.xlogy(shares, shares).sum())


@cites("rank2023", "§4, (λ/L)‖W‖²")
@cites("hamiltonian2024", "§1, (λ/2L̃)∫‖W_p‖²dp")
def ridge_from(
    paper: str,
    lam: float,
    *,
    depth: int | None = None,
    effective_depth: float | None = None,
    outputs: int | None = None,
) -> float:
    """Our ``ridge`` from a paper's λ.

    Parameters
    ----------
    paper : {"plain", "rank2023", "bottleneck2023", "features2022", "hamiltonian2024"}
        ``"plain"``, ``"bottleneck2023"``, ``"features2022"``: λ‖θ‖², ridge = λ.
        ``"rank2023"``: (λ/L)‖W‖², ridge = λ/L; needs ``depth``.
        ``"hamiltonian2024"``: (λ/2L̃)∫‖W_p‖²dp; needs ``effective_depth``. For a :class:`~isthmus.LeakyResNet`, whose
        parameters are √ρ_ℓW_ℓ: ridge = λ/(2L̃). With ``depth`` for the fully connected weight W/L̃ on L equidistant
        steps: ridge = λL̃/(2L). See Notes.
    lam : float
        The paper's λ ≥ 0.
    depth : int, optional
        Number of layers L.
    effective_depth : float, optional
        L̃ > 0.
    outputs : int, optional
        Give it when the paper's cost is *averaged* over outputs: ours is the sum, so the ridge is multiplied
        by it.

    Notes
    -----
    (λ/2L̃)∫‖W_p‖²dp = (λ/2L̃)Σ‖√ρ_ℓW_ℓ‖² for any steps. A leaky step is (1−ρL̃)α + ρWσ(α). At ρL̃ = 1 it is the fully
    connected layer of weight ρW = W/L̃, and (λ/2L̃)(1/L)‖W‖² = (λL̃/2L)‖W/L̃‖²: hence the ridge λL̃/(2L). For ρL̃ ≠ 1
    the identity ρW = W/L̃ no longer holds and λL̃/(2L) is the ridge of W/L̃, the matrix whose k singular values near 1
    carry the bottleneck.

    Examples
    --------
    >>> ridge_from("rank2023", 2e-4, depth=10)
    2e-05
    """
    who = "ridge_from"
    check_choice(who, "paper", paper, ("plain", "rank2023", "bottleneck2023", "features2022", "hamiltonian2024"))
    ridge = check_number(who, "lam", lam, low=0.0)
    if depth is not None:
        check_integer(who, "depth", depth, low=1)
    if paper == "rank2023":
        if depth is None:
            fail(who, f"`depth` must be given for {paper!r}", None, "Pass the number of layers L.")
        ridge = ridge / depth
    if paper == "hamiltonian2024":
        if effective_depth is None:
            fail(who, f"`effective_depth` must be given for {paper!r}", None, "Pass L̃.")
        L_tilde = check_number(who, "effective_depth", effective_depth, low=0.0, low_open=True)
        ridge = ridge / (2 * L_tilde) if depth is None else ridge * L_tilde / (2 * depth)
    if outputs is not None:
        ridge = ridge * check_integer(who, "outputs", outputs, low=1)
    return ridge
