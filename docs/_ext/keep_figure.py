"""Keep Runs in the documentation: ``python docs/_ext/keep_figure.py runs/figures/F-rank-1 [more folders]``.

Writes ``docs/figures/ID.png`` and ``docs/figures/ID.json`` for each: status, parameters, outcomes, minutes, the arrays
that are small or judged by as numbers, and where they come from. ``make figures`` ends with it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from isthmus import Run
from isthmus.experiments import find_experiment
from isthmus.files import write_json

FIGURES = Path(__file__).parent.parent / "figures"
#: Entries up to which an array counts as small.
SMALL = 64


class Asked(Mapping):
    """Arrays that remember which of them were asked for."""

    def __init__(self, arrays):
        self.arrays, self.names = arrays, set()

    def __getitem__(self, name):
        self.names.add(name)
        return self.arrays[name]

    def __iter__(self):
        return iter(self.arrays)

    def __len__(self):
        return len(self.arrays)


def judged_by(run: Run) -> set[str]:
    """The arrays that the outcomes are read from: with them a later version can judge the Run again."""
    asked = Asked(run.arrays)
    find_experiment(run.experiment)(**run.parameters).outcomes(asked)
    return asked.names


def numbers(run: Run) -> dict[str, object]:
    """Arrays that are small or judged by, with six digits; NaN and infinities, which JSON has not, as text."""

    def plain(value):
        if isinstance(value, list):
            return [plain(one) for one in value]
        if isinstance(value, float):
            return float(f"{value:.6g}") if np.isfinite(value) else str(value)
        return value

    needed = judged_by(run)
    return {
        name: plain(array.tolist())
        for name, array in sorted(run.arrays.items())
        if array.size <= SMALL or name in needed
    }


def keep(folder: str) -> None:
    run = Run.read(folder)
    name = run.experiment
    if not name.startswith("F-"):
        return  # an experiment, but no figure of a paper
    source = {k: v for k, v in run.provenance.items() if k not in ("sha256", "command")}
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / f"{name}.png").write_bytes(run.figures["figure.png"])
    write_json(
        FIGURES / f"{name}.json",
        {
            "experiment": name,
            "key": run.key,
            "status": run.status,
            "minutes": round(float(run.provenance["seconds"]) / 60.0, 1),
            "parameters": dict(run.parameters),
            "outcomes": [vars(outcome) for outcome in run.outcomes],
            "numbers": numbers(run),
            "provenance": source,
        },
    )
    print(f"kept {name}.png and {name}.json: {run.status}")


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        keep(folder)
