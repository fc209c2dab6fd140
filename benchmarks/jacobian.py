"""Input Jacobians of every sample: ours beside ``torch.func``.

    python benchmarks/jacobian.py [--quick] [--json] [--repeats N] [--out benchmarks/results/jacobian.json]

``isthmus.measures.jacobian`` against ``vmap(jacrev)`` and ``vmap(jacfwd)`` of the same network, all samples at once and
in chunks of samples (``chunk_size`` 50, as people do when memory runs out); float64, the same threads, in turn in
one process. Peak memory is that of processes of their own, PyTorch and the network included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from _bench import report, shown
from _measured import COLUMNS, Setting, Side, measured, parse
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from isthmus import FullyConnected
from isthmus._forward_mode import load_forward_mode
from isthmus.measures import jacobian

CHUNK = 50
QUESTION = "How fast are the Jacobians of a network at every sample, and how much memory do they take?"
FULL = (Setting(500, 10, 100, 50), Setting(1000, 25, 200, 20))
QUICK = (Setting(60, 6, 50, 5),)


def ours(net: FullyConnected, X: Tensor) -> Callable[[], Tensor]:
    """The product of weights and masks, from the narrower end."""
    return lambda: jacobian(net, X)


def peer(
    transform: Callable[..., Callable[..., Tensor]], chunk_size: int | None = None
) -> Callable[[FullyConnected, Tensor], Callable[[], Tensor]]:
    """``vmap`` of a transform of ``torch.func``."""

    def prepare(net: FullyConnected, X: Tensor) -> Callable[[], Tensor]:
        load_forward_mode()
        # A plain stack of layers: no cost of ours in theirs. Its weights need no graph.
        module = net.to_torch().requires_grad_(False)
        batched = vmap(transform(module), chunk_size=chunk_size)

        def run() -> Tensor:
            with torch.no_grad():
                return batched(X)

        return run

    return prepare


OURS = "isthmus"
SIDES = {
    OURS: Side(ours),
    "vmap(jacrev)": Side(peer(jacrev)),
    f"vmap(jacrev), chunks of {CHUNK}": Side(peer(jacrev, CHUNK)),
    "vmap(jacfwd)": Side(peer(jacfwd)),
    f"vmap(jacfwd), chunks of {CHUNK}": Side(peer(jacfwd, CHUNK)),
}


def main() -> None:
    """Command line."""
    options = parse(__doc__ or "", SIDES)
    if options is None:
        return
    rows, told = [], []
    for setting in QUICK if options.quick else FULL:
        found = measured(__file__, setting, SIDES, options, 3 if options.quick else 9)
        rows += found
        mine, best = found[0], min(found[1:], key=lambda row: row["times ours"])
        told.append(
            f"at {setting.label} ours takes {mine['seconds']:.3g} s and {mine['peak MB']} MB, the fastest peer, "
            f"{best['side']}, {best['times ours']:.3g} times as long and {shown(best.get('peak MB'))} MB "
            f"(relative difference {best['difference']:.0e})"
        )
    answer = "; ".join(told)
    answer = f"{answer[0].upper()}{answer[1:]}."
    report(options, name="jacobian", question=QUESTION, answer=answer, columns=COLUMNS, rows=rows)


if __name__ == "__main__":
    main()
