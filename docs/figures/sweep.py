"""The figure of the page "How to read a sweep": ``python docs/figures/sweep.py [FOLDER]``, some minutes on one core.

Sweeps the quick variant of F-bn-1 over depth and ridge with three seeds, and writes ``sweep.png`` and ``sweep.json``
here. FOLDER keeps the runs, so that a second call computes nothing; by default they are thrown away.
"""

import sys
import tempfile
from pathlib import Path

import isthmus
from isthmus.files import write_atomic, write_json
from isthmus.measures import estimate_costs
from isthmus.plotting.style import render
from isthmus.plotting.sweeps import draw_sweep, gather, pieces

HERE = Path(__file__).parent
GRID = {"depth": "4:22:3", "ridge": "2e-3:1.8e-2:log3"}
SEEDS, STEPS, SHOWN = 3, 600, 0.006


def main(folder):
    """Sweep, draw, write down."""
    found = isthmus.sweep(
        "F-bn-1", GRID, seeds=SEEDS, base={"steps": STEPS}, quick=True, workers=1, out=folder, progress=True
    )
    print(found, *found.problems, found.summary().to_string(), sep="\n")
    title = "F-bn-1, quick variant: which rank for which depth and ridge"
    figure = draw_sweep(found.frame, found.names, estimate_costs, title=title, where={"ridge": SHOWN})
    write_atomic(HERE / "sweep.png", render(figure))
    isthmus.save_report(found, Path(folder) / "report.html")
    write_json(HERE / "sweep.json", numbers(found))


def numbers(found):
    """What the page says in words."""
    gathered = gather(found.frame, found.names)
    several = [one for one in gathered.settings if one.measured > 1]
    slopes = []
    for at, parts in pieces(gathered, "depth", estimate_costs):
        for piece in parts:
            if piece.drawn:
                R0 = [float(f"{value:.4g}") for value in (piece.fit.R0.value, piece.fit.R0.low, piece.fit.R0.high)]
                slopes.append({"at": gathered.where(at), "rank": piece.rank, "R0": R0, "state": piece.fit.state})
    return {
        "experiment": found.experiment,
        "grid": GRID,
        "seeds": SEEDS,
        "states": found.counts,
        "problems": list(found.problems),
        "settings": {gathered.where(one.at): one.told for one in gathered.settings},
        "agree": [sum(one.agreement == 1 for one in several), len(several)],
        "slopes": slopes,
        "seconds": round(float(found.frame["seconds"].sum()), 1),
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place) / "sweep")
