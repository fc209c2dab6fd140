"""A sweep in a process of its own, which the tests kill: F-bn-1 made small, on the local engine."""

from __future__ import annotations

import sys
from pathlib import Path

#: Depths 4 … 30, three seeds: the sweep of the figure, with networks that train in a second.
GRID, SEEDS = {"depth": "4:30:2"}, 3
CONFIGURATIONS = 14 * SEEDS


def drive(folder: Path) -> None:
    from isthmus import sweep
    from isthmus.experiments.bottleneck2023._norm_and_depth import NormAndDepth

    base = NormAndDepth.single(quick=True).replace(adam_steps=400, steps=300)
    found = sweep(base, GRID, seeds=SEEDS, out=folder, workers=2, together=1)
    print(found)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
