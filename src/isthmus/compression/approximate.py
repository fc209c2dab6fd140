"""Smaller within a tolerance on the data: fewer neurons refitted, and layers of low rank as two factors."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.compression.chain import Chain
from isthmus.compression.factoring import factor
from isthmus.compression.fewer_neurons import reduce_chain

#: Errors of single factors that are tried, in units of the tolerance of the outputs.
ERRORS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)


def approximate(chain: Chain, outputs: Tensor, X: Tensor, tolerance: float) -> Chain | None:
    """The smallest of what is found within ``tolerance``·max|outputs| of ``outputs`` on X; None if nothing is smaller.

    Fewer neurons, these with factors in what is left of the tolerance, and factors alone are tried: which is smallest
    depends on the network.
    """
    fewer = with_fewer_neurons(chain, X, tolerance)
    tried = [fewer, with_factors(fewer, outputs, X, tolerance), with_factors(chain, outputs, X, tolerance)]
    scale = float(outputs.abs().max())
    serve = [one for one in tried if float((one(X) - outputs).abs().max()) <= tolerance * scale]
    best = min(serve, key=lambda one: one.parameters, default=chain)
    return best if best.parameters < chain.parameters else None


def with_fewer_neurons(chain: Chain, X: Tensor, tolerance: float) -> Chain:
    """The chain with neurons chosen in every layer and the weights after them refitted."""
    bs = [b if has else None for b, has in zip(chain.bs, chain.biased)]
    found = reduce_chain(chain.Ws, bs, chain.slopes, X, tolerance, linear=chain.linear)
    made = chain.copy()
    for i, kept in enumerate(found.kept):
        made.linear[i] = chain.linear[i][kept]
        if len(kept) < len(chain.Ws[i]):
            made.note(i, "refitted within the tolerance", len(chain.Ws[i]) - len(kept))
    made.Ws = [W.clone() for W in found.Ws]
    made.bs = [torch.zeros(len(W), dtype=torch.float64) if b is None else b for W, b in zip(found.Ws, found.bs)]
    return made


def with_factors(chain: Chain, outputs: Tensor, X: Tensor, tolerance: float) -> Chain:
    """The chain with layers of low rank on the data as two factors, where r(m + n) < mn; itself if nothing serves."""
    allowed = tolerance * float(outputs.abs().max())
    best = chain
    for error in ERRORS:
        trial = _factored(chain, X, error * tolerance)
        near = float((trial(X) - outputs).abs().max()) <= allowed
        if near and trial.parameters < best.parameters:
            best = trial
            break
    return best


def _factored(chain: Chain, X: Tensor, error: float) -> Chain:
    """All layers factored that can be within this error each, activations being those of the factored chain."""
    made = chain.copy()
    made.Ws, made.bs, made.biased, made.slopes, made.linear, made.names = [], [], [], [], [], []
    S = X
    for i, (W, b) in enumerate(zip(chain.Ws, chain.bs)):
        found = factor(W, S.mT, b, tolerance=error, offset=chain.biased[i])
        if found is not None and found.b is not None:
            made.Ws += [found.B, found.A]
            made.bs += [torch.zeros(found.rank, dtype=torch.float64), found.b]
            made.biased += [False, chain.biased[i]]
            made.slopes.append(1.0)
            made.linear.append(torch.ones(found.rank, dtype=torch.bool))
            made.names.append(f"factors of weight {i + 1}")
            Z = S @ found.B.mT @ found.A.mT + found.b
        else:
            made.Ws.append(W)
            made.bs.append(b)
            made.biased.append(chain.biased[i])
            Z = S @ W.mT + b
        if i < len(chain.Ws) - 1:
            made.slopes.append(chain.slopes[i])
            made.linear.append(chain.linear[i])
            made.names.append(chain.names[i])
            S = chain.sigma(i, Z)
    return made
