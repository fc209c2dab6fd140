"""Keep a Run's figure and numbers in the documentation: ``python docs/_ext/keep_figure.py runs/F-rank-1 [NAME]``.

Writes ``docs/figures/NAME.png`` and ``docs/figures/NAME.json`` (parameters, outcomes, provenance), NAME being the
experiment's id unless given.
"""

import sys
from pathlib import Path

from isthmus import Run
from isthmus.files import write_json

FIGURES = Path(__file__).parent.parent / "figures"


def keep(folder: str, name: str | None = None) -> None:
    run = Run.read(folder)
    name = name or run.experiment
    source = {k: v for k, v in run.provenance.items() if k != "sha256"}
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / f"{name}.png").write_bytes(run.figures["figure.png"])
    write_json(
        FIGURES / f"{name}.json",
        {
            "experiment": run.experiment,
            "key": run.key,
            "status": run.status,
            "parameters": dict(run.parameters),
            "outcomes": [vars(outcome) for outcome in run.outcomes],
            "provenance": source,
        },
    )
    print(f"kept {name}.png and {name}.json")


if __name__ == "__main__":
    keep(*sys.argv[1:])
