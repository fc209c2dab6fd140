"""The figures of the page "How to diagnose a network": ``python docs/figures/diagnosis.py``.

Trains a plain PyTorch network with weight decay on six outputs that depend on three hidden variables of ten inputs,
under a Monitor, diagnoses it, and writes ``diagnosis.png``, ``diagnosis_history.png`` and ``diagnosis.json`` here.
"""

from pathlib import Path

import torch
from torch import nn

import isthmus
from isthmus.files import write_atomic, write_json
from isthmus.plotting.style import render

HERE = Path(__file__).parent
STEPS, WEIGHT_DECAY = 4000, 1e-2


def task(samples=300):
    """y = h(g(x)): three hidden variables, six outputs."""
    source = torch.Generator().manual_seed(0)
    X = torch.randn(samples, 10, generator=source)
    A, B = torch.linalg.qr(torch.randn(10, 3, generator=source)).Q, torch.randn(3, 6, generator=source)
    Z = X @ A
    Y = (Z + 0.5 * Z.abs()) @ B
    return X, (Y - Y.mean(0)) / Y.std()


def network(width=32, depth=6):
    """Linear layers and ReLUs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inside = [part for _ in range(depth - 2) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(nn.Linear(10, width), nn.ReLU(), *inside, nn.Linear(width, 6))


def main():
    """Train under a Monitor, diagnose, draw."""
    X, Y = task()
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with isthmus.Monitor(net, X, every=100, Y=Y) as monitor:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = (net(X) - Y).square().sum(1).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            schedule.step()
    found = isthmus.diagnose(net, X, Y, ridge=WEIGHT_DECAY / 2)
    print(found.sentence, found.isthmus.reasons, monitor.history, f"overhead {monitor.overhead:.1%}", sep="\n")
    print(found.to_frame().to_string())
    write_atomic(HERE / "diagnosis.png", render(found.plot()))
    write_atomic(HERE / "diagnosis_history.png", render(monitor.history.plot()))
    last = monitor.history.snapshots[-1]
    numbers = {
        "sentence": found.sentence,
        "reasons": list(found.isthmus.reasons),
        "cost": found.whole["cost"],
        "dimensions": [layer.dimensions.rank for layer in found.layers if layer.dimensions is not None],
        "agreement": {one.name: one.to_dict()["value"] for one in found.agreement},
        "history": {"steps": len(monitor.history.steps), "norm_squared": last.norm_squared},
    }
    write_json(HERE / "diagnosis.json", numbers)


if __name__ == "__main__":
    main()
