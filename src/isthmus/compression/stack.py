"""Compression of one stack of layers: each phase is tried on a copy, measured, and kept only if it holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from isthmus._errors import ConvergenceWarning
from isthmus.compression.approximate import approximate
from isthmus.compression.certificate import EVERYWHERE, ON_DATA, UNCHANGED, WITHIN
from isthmus.compression.chain import Chain
from isthmus.compression.everywhere import ROUNDING, shrink_everywhere
from isthmus.compression.on_data import settle_on_data, shrink_on_data
from isthmus.compression.rebalance import rebalance
from isthmus.networks import FullyConnected

#: Largest deviation, relative to the largest output, that is called equality in float64.
EXACT = 1e-12
#: Share of ‖θ‖² below which rescaling alone is not worth a change of the weights.
WORTH = 1e-4
#: Random points at which equality everywhere is measured, and their sizes.
PROBES, SCALES = 256, (0.1, 1.0, 10.0)


@dataclass(eq=False)
class Shrunk:
    """A smaller chain, where it is equal to the first, and what to know about it."""

    chain: Chain
    domain: str
    points: int
    deviation: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Options:
    """What the user allows."""

    rebalance: bool = True
    free_norm: bool = False
    #: Of the dtype that the weights are stored in: rows of float32 are proportional up to float32's rounding.
    eps: float = torch.finfo(torch.float64).eps

    @property
    def roundings(self) -> tuple[float, ...]:
        """How far from proportional rows of norm 1 may be: as sums that cancel leave them, then more safely."""
        return (1e-12, ROUNDING) if self.eps < 1e-12 else (4 * self.eps,)

    @property
    def exact(self) -> float:
        """What is called equality: rounding of the stored weights cannot be told from a difference."""
        return max(EXACT, 1e3 * self.eps if self.eps > 1e-12 else 0.0)


def shrink_exactly(chain: Chain, X: Tensor | None, options: Options) -> Shrunk:
    """Shrink a copy of ``chain`` as far as it goes without any change, everywhere or on the data."""
    done = Shrunk(chain.copy(), UNCHANGED, 0)
    probes = probe_points(chain.Ws[0].shape[1], X)
    _phase(
        done,
        chain,
        EVERYWHERE,
        probes,
        options,
        [partial(shrink_everywhere, rounding=rounding) for rounding in options.roundings],
    )
    if X is not None:
        ways = [partial(shrink_on_data, X=X, rounding=rounding) for rounding in options.roundings]
        ways.append(partial(settle_on_data, X=X, rounding=options.roundings[-1]))
        _phase(done, chain, ON_DATA, [X], options, ways)
    return done


def _phase(
    done: Shrunk,
    first: Chain,
    domain: str,
    at: list[Tensor],
    options: Options,
    ways: Sequence[Callable[..., None]],
) -> None:
    """Try the ways from the boldest on; keep the first that is exact, smaller and of no larger norm."""
    wanted = [first(points) for points in at]
    for way in ways:
        for free in (True,) if options.free_norm else (True, False):
            trial = done.chain.copy()
            way(trial, free_norm=free)
            note = balanced(trial) if options.rebalance else ""
            if options.free_norm or trial.norm <= first.norm * (1 + 1e-12):
                break
        else:
            done.notes.append(f"what was tried for {domain} would have a larger norm and was taken back")
            continue
        found = max(deviation(outputs, trial(points)) for outputs, points in zip(wanted, at))
        if not found <= options.exact:
            done.notes.append(
                f"what was tried for {domain} deviates by {found:.1e} of the largest output, which is more than "
                f"rounding, and was taken back"
            )
            continue
        if trial.parameters > done.chain.parameters:
            continue
        smaller = trial.parameters < done.chain.parameters or _fewer_active(trial, done.chain)
        if smaller or trial.norm < done.chain.norm * (1 - WORTH):
            done.chain, done.domain, done.deviation = trial, domain, found
            done.points = sum(len(points) for points in at)
            done.notes += [note] if note else []
        return


def shrink_within(done: Shrunk, first: Chain, X: Tensor | None, tolerance: float, options: Options) -> Shrunk:
    """Fewer neurons and low-rank factors within ``tolerance`` of the outputs of ``first``; else ``done``."""
    trial = None if X is None else approximate(done.chain, first(X), X, tolerance)
    if trial is None or X is None:
        return done
    note = balanced(trial) if options.rebalance else ""
    found = deviation(first(X), trial(X))
    if found > tolerance or trial.parameters >= done.chain.parameters:
        return done
    notes = [*done.notes, *([note] if note else [])]
    if trial.norm > first.norm:
        notes.append(f"‖θ‖² grew from {first.norm:.4g} to {trial.norm:.4g}: refitted weights are larger")
    return Shrunk(trial, WITHIN, len(X), found, notes)


def _fewer_active(trial: Chain, other: Chain) -> bool:
    def active(chain: Chain) -> int:
        return sum(int((~mask).sum()) for mask in chain.linear)

    return active(trial) < active(other)


def balanced(chain: Chain) -> str:
    """Rescale all neurons to the least norm, in place; what to say of it, or nothing."""
    if not len(chain.hidden):
        return ""
    bs = [b / chain.bias for b in chain.bs] if chain.bias != 0.0 else None
    # Scales do not depend on the activation as long as it is homogeneous.
    net = FullyConnected.from_weights(chain.Ws, bs, slope=0.0, bias=chain.bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        done = rebalance(net)
    if done.norm_after > done.norm_before:
        return ""
    chain.Ws = [W.detach().clone() for W in done.network.Ws]
    if bs is not None:
        chain.bs = [chain.bias * b.detach() for b in done.network.bs]
    return "" if done.state == "converged" else "rebalancing did not converge: the norm is not the least"


def deviation(before: Tensor, after: Tensor) -> float:
    """max|Δ| / max|before|; ∞ where something is not finite."""
    difference, scale = float((after - before).abs().max()), float(before.abs().max())
    if not torch.isfinite(after).all():
        return float("inf")
    return difference / scale if scale > 0 else (0.0 if difference == 0 else float("inf"))


def probe_points(inputs: int, X: Tensor | None, around: tuple[Tensor, Tensor] | None = None) -> list[Tensor]:
    """Random points of several sizes, around the data where there are data, or of the centre and scale given."""
    draw = torch.Generator().manual_seed(0)
    G = torch.randn(PROBES, inputs, dtype=torch.float64, generator=draw)
    if X is None:
        centre, spread = around or (torch.zeros(inputs), torch.ones(inputs))
        return [centre.to("cpu", torch.float64) + scale * spread.to("cpu", torch.float64) * G for scale in SCALES]
    centre, spread = X.mean(0), X.std(0, correction=0) if len(X) > 1 else torch.ones(inputs, dtype=torch.float64)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    return [*(centre + scale * spread * G for scale in SCALES), X]
