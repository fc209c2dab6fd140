"""The figure and the numbers of the page "How to compress": ``python docs/figures/compress.py``.

Trains a network of width 64 on six outputs of three hidden variables, compresses it without data, on its data and
within tolerances, and once more after every hidden neuron was split in two. Writes ``compress.png`` and
``compress.json`` here, in under a minute.
"""

from pathlib import Path

import torch

import isthmus
from isthmus.files import write_atomic, write_json
from isthmus.plotting.style import render

HERE = Path(__file__).parent
RIDGE = 1e-3
TOLERANCES = (0.001, 0.01, 0.05)
#: The one that is drawn.
DRAWN = 0.01


def task():
    """Inputs and outputs, 400 samples to train on and 400 to test on."""
    source = torch.Generator().manual_seed(0)
    X, A, B = (torch.randn(m, n, generator=source, dtype=torch.float64) for m, n in ((800, 10), (10, 3), (3, 6)))
    Z = X @ torch.linalg.qr(A).Q
    Y = (Z + 0.5 * Z.abs()) @ B
    return X, (Y - Y.mean(0)) / Y.std()


def trained(X, Y):
    """The network and how its training ended."""
    source = torch.Generator().manual_seed(0)
    net = isthmus.FullyConnected([10, 64, 64, 64, 64, 6], dtype=torch.float64, generator=source)
    return net, isthmus.train(net, X, Y, ridge=RIDGE)


def split(net):
    """The same function with every hidden neuron twice, each of them sending half, in units of its own."""
    source = torch.Generator().manual_seed(1)
    Ws, bs = [W.detach() for W in net.Ws], [b.detach() for b in net.bs]
    for i in range(len(Ws) - 1):
        scale = 0.5 + torch.rand(len(Ws[i]), dtype=torch.float64, generator=source)
        Ws[i] = torch.cat([Ws[i], scale[:, None] * Ws[i]])
        bs[i] = torch.cat([bs[i], scale * bs[i]])
        Ws[i + 1] = torch.cat([Ws[i + 1] / 2, Ws[i + 1] / (2 * scale)], 1)
    return isthmus.FullyConnected.from_weights(Ws, bs, slope=net.slope, bias=net.bias)


@torch.no_grad()
def error(net, X, Y):
    """Squared error relative to the outputs."""
    return float((net(X) - Y).square().sum() / Y.square().sum())


def main():
    """Train, compress in several ways, draw one of them."""
    X, Y = task()
    train, test = slice(0, 400), slice(400, 800)
    net, result = trained(X[train], Y[train])
    print(result.state, result.cost, error(net, X[test], Y[test]))
    ways = {
        "split in two": (split(net), {}),
        "no data": (net, {}),
        "on the data": (net, {"X": X[train]}),
        **{f"within {share:g}": (net, {"X": X[train], "tolerance": share}) for share in TOLERANCES},
    }
    rows = {}
    for name, (given, options) in ways.items():
        found = isthmus.compress(given, check=X[test], **options)
        content = {key: value for key, value in found.to_dict().items() if key != "layers"}
        rows[name] = {**content, "widths": [layer.after for layer in found.certificate.layers]}
        rows[name]["test_error"] = error(found.network, X[test], Y[test])
        print(
            f"{name}: {found.sentence} elsewhere {content['elsewhere']:.1e}, test error {rows[name]['test_error']:.2g}"
        )
        if options.get("tolerance") == DRAWN:
            write_atomic(HERE / "compress.png", render(found.plot()))
    training = {"state": result.state, "cost": result.cost, "test_error": error(net, X[test], Y[test])}
    write_json(HERE / "compress.json", {"training": training, "compressed": rows})


if __name__ == "__main__":
    main()
