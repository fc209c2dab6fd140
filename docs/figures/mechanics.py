"""The figure and the numbers of the page "How to read the mechanics": ``python docs/figures/mechanics.py``.

Trains a linear leaky ResNet on a map of rank 3, whose minima have no kinks, draws its mechanics, and trains one with
ReLUs on two hidden variables, whose minima have. Writes ``mechanics.png`` and ``mechanics.json`` here, in some minutes.
"""

from pathlib import Path

import torch

import isthmus
from isthmus.files import write_atomic, write_json
from isthmus.plotting.style import render

HERE = Path(__file__).parent
RIDGE = 1e-3
KINKS = (0.0, 1e-3, 1e-2)


def gaussian(source, *shapes):
    """Draws of these shapes."""
    return [torch.randn(*shape, generator=source, dtype=torch.float64) for shape in shapes]


def linear():
    """A trained linear network of rank 3, and its data."""
    source = torch.Generator().manual_seed(0)
    X, A, B = gaussian(source, (300, 8), (8, 3), (3, 6))
    options = {"slope": 1.0, "dtype": torch.float64, "generator": source}
    net = isthmus.LeakyResNet(8, 6, width=16, layers=30, effective_depth=5.0, **options)
    Y = X @ A @ B / 4
    return net, X, Y, isthmus.train(net, X, Y, ridge=RIDGE)


def rectified():
    """A trained network with ReLUs: six outputs of two hidden variables."""
    source = torch.Generator().manual_seed(0)
    X, A, B = gaussian(source, (100, 6), (6, 2), (2, 6))
    Z = X @ torch.linalg.qr(A).Q
    Y = (Z + 0.5 * Z.abs()) @ B
    Y = (Y - Y.mean(0)) / Y.std()
    options = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(0)}
    net = isthmus.LeakyResNet(6, 6, width=12, layers=10, effective_depth=4.0, **options)
    return net, X, Y, isthmus.train(net, X, Y, ridge=RIDGE)


def main():
    """Train, look, draw."""
    net, X, Y, result = linear()
    found = isthmus.mechanics(net, X, Y, ridge=RIDGE)
    print(result.state, result.cost, found, sep="\n")
    print(found.to_frame()[["identity_cost", "hamiltonian", "kinetic", "residual"]].iloc[[0, 14, 29]])
    write_atomic(HERE / "mechanics.png", render(found.plot()))
    linear_cost = result.cost
    net, X, Y, result = rectified()
    residuals = [isthmus.mechanics(net, X, Y, ridge=RIDGE, kinks=kinks).residual for kinks in KINKS]
    print(result.state, dict(zip(KINKS, residuals)))
    told = {"training": result.state, "kinks": list(KINKS), "residuals": residuals}
    write_json(HERE / "mechanics.json", {"linear": {"cost": linear_cost, **found.summary()}, "rectified": told})


if __name__ == "__main__":
    main()
