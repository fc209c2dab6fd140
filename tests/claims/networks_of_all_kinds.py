"""Seeded networks of every kind that claims meet: random, low-rank, linear, trained, collapsed, and leaky ones."""

from __future__ import annotations

import warnings

import torch

import isthmus
from isthmus import FullyConnected, LeakyResNet
from isthmus.claims import Subject
from isthmus.claims.hamiltonian2024._flow import as_subject, signed_start
from isthmus.constructions import flow_network, linear_network, positive_linear_network, rank_one
from isthmus.training import Phase

KINDS = ("random", "low rank", "linear", "trained", "collapsed", "leaky")


def drawn_subject(seed: int) -> tuple[str, Subject]:
    """The kind and the network of this seed, with data, targets and a ridge."""
    source = torch.Generator().manual_seed(seed)
    kind = KINDS[seed % len(KINDS)]
    make = {
        "random": _random,
        "low rank": _low_rank,
        "linear": _linear,
        "trained": _trained,
        "collapsed": _collapsed,
        "leaky": _leaky,
    }[kind]
    return kind, make(source)


def _choice(source, *values):
    return values[int(torch.randint(len(values), (1,), generator=source))]


def _between(source, low, high):
    return low + (high - low) * float(torch.rand((), generator=source))


def _normal(source, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def _dims(source):
    hidden = [_choice(source, 1, 2, 3, 5, 8, 16) for _ in range(_choice(source, 0, 1, 2, 3, 5))]
    return [_choice(source, 1, 2, 3, 6), *hidden, _choice(source, 1, 2, 3, 6)]


def _with_data(source, net, *, ridge=None):
    X = _normal(source, _choice(source, 2, 6, 30), net.dims[0])
    Y = _normal(source, len(X), net.dims[-1])
    return Subject(net.requires_grad_(False), X, Y, _between(source, 1e-3, 0.1) if ridge is None else ridge)


def _random(source):
    net = FullyConnected(
        _dims(source),
        _choice(source, 0.0, 0.0, 0.2, -0.5),
        _choice(source, 0.0, 1.0, 2.0),
        init_scale=_choice(source, 0.3, 1.0, 3.0),
        dtype=torch.float64,
        generator=source,
    )
    for b in net.biases if net.bs else ():
        b.data = _choice(source, 0.0, 0.3) * _normal(source, *b.shape)
    return _with_data(source, net)


def _low_rank(source):
    """Weights of rank 1 or 2, exactly or up to something small."""
    net = _random(source).net
    rest = _choice(source, 0.0, 1e-14, 1e-9, 1e-6, 1e-3)
    for W in net.weights:
        U, s, Vh = torch.linalg.svd(W.data, full_matrices=False)
        s[_choice(source, 1, 2) :] *= rest
        W.data = (U * s) @ Vh
    return _with_data(source, net)


def _linear(source):
    A = _normal(source, _choice(source, 1, 3, 5), _choice(source, 1, 3, 5))
    if _choice(source, True, False):
        A = A[:, :1] @ _normal(source, 1, A.shape[1])
    L = _choice(source, 1, 2, 3, 7)
    made = _choice(source, "least", "random", "positive", "rank one")
    if made == "least":
        net = linear_network(A, L).network
    elif made == "positive":
        net = positive_linear_network(A.abs(), max(L, 2)).network
    elif made == "rank one":
        X = _normal(source, 6, 2)
        return Subject(
            rank_one(X, _normal(source, 6, 2), 6).network.requires_grad_(False), X, _normal(source, 6, 2), 0.01
        )
    else:
        net = FullyConnected(_dims(source), 1.0, 0.0, dtype=torch.float64, generator=source)
    subject = _with_data(source, net)
    return subject.replace(X=subject.X.abs()) if made == "positive" else subject


def _trained(source):
    """To a stationary point, or stopped on the way."""
    dims = [_choice(source, 1, 2, 3), *([_choice(source, 3, 6)] * _choice(source, 1, 2, 3)), _choice(source, 1, 2)]
    net = FullyConnected(
        dims, _choice(source, 0.0, 0.0, 0.2, 1.0), _choice(source, 0.0, 1.0), dtype=torch.float64, generator=source
    )
    X = _normal(source, _choice(source, 5, 20), dims[0])
    Y = torch.cat([X.sin().sum(1, keepdim=True), X.abs().sum(1, keepdim=True)], 1)[:, : dims[-1]]
    ridge = _choice(source, 1e-3, 1e-2, 0.1)
    phases = _choice(source, None, None, [Phase("lbfgs", 5)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isthmus.ConvergenceWarning)
        isthmus.train(net, X, Y, ridge=ridge, phases=phases)
    return Subject(net.requires_grad_(False), X, Y, ridge)


def _collapsed(source):
    """Nothing is left of a layer, or only its biases, or so little that outputs are constant up to rounding."""
    subject = _random(source)
    net = subject.net
    ell = int(torch.randint(len(net.Ws), (1,), generator=source))
    net.weights[ell].data *= _choice(source, 0.0, 1e-300, 1e-16, 1e-8)
    if _choice(source, True, False):
        for W in net.weights:
            W.data[: len(W) // 2] = 0.0
    if _choice(source, True, False):
        return subject.replace(
            X=subject.X[:1].expand(4, -1).clone(), Y=None if subject.Y is None else subject.Y[:1].expand(4, -1)
        )
    return subject


def _leaky(source):
    bias = _choice(source, 0.0, 1.0)
    made = _choice(source, "random", "flow", "moved flow")
    if made == "random":
        net = LeakyResNet(
            3,
            2,
            width=_choice(source, 4, 14),
            layers=_choice(source, 2, 4, 9),
            effective_depth=_choice(source, 0.0, 1.0, 1.5),
            bias=bias,
            dtype=torch.float64,
            generator=source,
        )
        X = _normal(source, _choice(source, 2, 20), 3)
        return Subject(net.requires_grad_(False), X, _normal(source, len(X), 2), 0.01)
    A, B = signed_start(seed=_choice(source, 77, 78, 79), bias=bias)
    # Near a start that is known to be integrable on so many steps.
    A = A * (1.0 + 0.05 * _normal(source, *A.shape))
    subject = as_subject(flow_network(A, B, _choice(source, 0.5, 1.0), _choice(source, 20, 40), bias=bias))
    if made == "moved flow":
        net = subject.net
        for W in net.Ws:
            W.data += _choice(source, 1e-6, 1e-4, 1e-2) * _normal(source, *W.shape)
    return subject
