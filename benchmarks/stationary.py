"""Do trainings end at stationary points? Twelve of them, with the residual at kinks, the kind of point and the loss.

``python benchmarks/stationary.py [--quick] [NAME …]``: those whose names contain one of the words, or all; with
``--quick`` the first alone.
"""

from __future__ import annotations

import sys
import time

from _trainings import TRAININGS

from isthmus.training import minimise

if __name__ == "__main__":
    print(
        f"{'training':36} {'params':>7} {'live':>6} {'state':>10} {'r':>8} {'kinks':>6} {'plain':>6} "
        f"{'loss':>9} {'flat loss':>9} {'least ev/2λ':>11} {'s':>6} {'flat s':>6}  kind"
    )
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    chosen = [one for one in TRAININGS if not words or any(word in one.name for word in words)]
    for training in chosen[:1] if "--quick" in sys.argv else chosen:
        losses = []
        for finish in ("flat", "stationary"):
            net, X, Y = training.make()
            began = time.perf_counter()
            result = minimise(net, X, Y, ridge=training.ridge, loss=training.loss, finish=finish)
            losses.append((result.loss, time.perf_counter() - began))
        found = result.stationarity
        assert found is not None
        count = sum(p.numel() for p in net.parameters())
        print(
            f"{training.name:36} {count:7} {found.parameters:6} {result.state:>10} {found.residual:8.1e} "
            f"{len(found.multipliers):6} {found.gradient:6.2f} {losses[1][0]:9.6f} {losses[0][0]:9.6f} "
            f"{found.least_eigenvalue / (2 * training.ridge):11.1e} {losses[1][1]:6.1f} {losses[0][1]:6.1f}  "
            f"{found.kind}",
            flush=True,
        )
