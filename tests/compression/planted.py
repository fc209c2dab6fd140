"""Networks with redundancy planted in them: what was added, so that a test can ask for all of it back."""

from __future__ import annotations

import torch

from isthmus import FullyConnected


def minimal(dims, *, slope=0.0, bias=1.0, X=None, seed=0):
    """A random network without redundancy: on X, if given, every neuron is on at some samples and off at others."""
    draw = torch.Generator().manual_seed(seed)
    Ws, bs = [], []
    A = X
    for i, (n, m) in enumerate(zip(dims, dims[1:])):
        W = torch.randn(m, n, dtype=torch.float64, generator=draw) * (2.0 / n) ** 0.5
        b = 0.3 * torch.randn(m, dtype=torch.float64, generator=draw)
        if A is not None:
            Z = A @ W.mT
            if i + 2 < len(dims):
                # A threshold between two samples near the middle of them.
                ordered = Z.sort(0).values
                b = -(ordered[len(Z) // 2 - 1] + ordered[len(Z) // 2]) / 2 if bias else torch.zeros(m)
            A = torch.where(Z + b > 0, Z + b, slope * (Z + b))
        Ws.append(W)
        bs.append(b / bias if bias else b)
    return FullyConnected.from_weights(Ws, bs if bias else None, slope=slope, bias=bias)


def plant(net, kinds, *, X=None, count=2, seed=0):
    """``net`` with ``count`` neurons of each kind added to every hidden layer, in random places: the same function.

    Kinds: "silent" (no input), "unheard" (no output), "copy", "scaled", "constant"; and on X "never" (below zero) and
    "always": a group of ``count`` + 1 neurons above zero whose linear parts cancel. With a slope below zero those that
    are never above zero are such a group too.
    """
    draw = torch.Generator().manual_seed(seed)
    Ws = [W.detach().clone() for W in net.Ws]
    bs = [b.detach().clone() for b in net.bs] or [torch.zeros(len(W), dtype=torch.float64) for W in Ws]
    inputs = [None] * len(Ws) if X is None else net.trace(X).activations

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    # From the last layer to the first: what is planted keeps the pre-activations of all that comes after.
    for i in reversed(range(len(Ws) - 1)):
        W, b, V, A = Ws[i], bs[i], Ws[i + 1], inputs[i]
        n = len(W)
        for kind in kinds:
            # Of the size of the others: what cancels should not drown what stays in rounding.
            rows, biases, out = 0.5 * normal(count, W.shape[1]), normal(count), 0.5 * normal(len(V), count)
            if kind == "silent":
                rows, biases = 0 * rows, (-biases.abs() if net.bias > 0 and net.slope == 0 else 0 * biases)
            elif kind == "unheard":
                out = 0 * out
            elif kind in ("copy", "scaled"):
                size = 1.0 + normal(count).abs() if kind == "scaled" else torch.ones(count, dtype=torch.float64)
                for j, place in enumerate(torch.randint(n, (count,), generator=draw).tolist()):
                    share = float(torch.rand(1, generator=draw))
                    rows[j], biases[j] = size[j] * W[place], size[j] * b[place]
                    out[:, j] = share * V[:, place] / size[j]
                    V[:, place] = (1 - share) * V[:, place]
            elif kind == "constant":
                rows, biases = 0 * rows, biases.abs() + 0.1
                bs[i + 1] = bs[i + 1] - out @ biases
            elif kind == "never" and net.slope == 0.0:
                biases = -(rows @ A.mT).amax(1) / net.bias - 0.5
            elif kind in ("always", "never"):
                parts = 0.5 + torch.rand(count + 1, dtype=torch.float64, generator=draw)
                rows = torch.cat([rows, -(parts[:-1] @ rows)[None] / parts[-1]])
                Z = rows @ A.mT
                biases = 0.5 - Z.amin(1) / net.bias if kind == "always" else -0.5 - Z.amax(1) / net.bias
                out = 0.5 * normal(len(V), 1) * parts
                bs[i + 1] = bs[i + 1] - (1.0 if kind == "always" else net.slope) * (out @ biases)
            W, b, V = torch.cat([W, rows]), torch.cat([b, biases]), torch.cat([V, out], 1)
        places = torch.randperm(len(W), generator=draw)
        Ws[i], bs[i], Ws[i + 1] = W[places], b[places], V[:, places]
    return FullyConnected.from_weights(Ws, bs if net.bias else None, slope=net.slope, bias=net.bias)
