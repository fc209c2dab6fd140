"""Do trainings end at stationary points? Twelve of them, with the residual at kinks, the kind of point and the loss.

    python benchmarks/stationary.py [--quick] [--only WORD ...] [--seconds S] [--json]
                                    [--checkpoints FOLDER] [--out benchmarks/results/stationary.json]

Each is trained twice from the same weights: until its loss is flat, and on to a stationary point. Times are the
processor's, certificates included. ``--only`` runs those whose names contain one of the words and keeps the other rows
of ``--out``; when and at which commit each row was measured is in the details. ``--seconds`` ends a training after so
long, by the clock; where it was ended its state is "budget", or "flat" where the loss no longer falls. With
``--checkpoints`` it goes on there the next time, and its processor time is not known.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import torch
from _bench import Gate, arguments, provenance, report
from _trainings import TRAININGS, Training

from isthmus.files import read_json
from isthmus.measures._stationarity import KINK_TOLERANCE, STATIONARY
from isthmus.training import TrainingResult, minimise

QUESTION = "Do trainings end at certified stationary points, at no higher loss than where it is flat?"
COLUMNS = ("training", "parameters", "in effect", "state", "r", "at kinks", "plain gradient", "loss", "flat loss")
COLUMNS += ("least eigenvalue/2λ", "kind", "steps", "s", "flat s")

#: Parameters in effect up to which a point must be stationary; the residual that all but one reach; what the loss may
#: be above that of the flat end.
SMALL, NEAR, ABOVE = 5000, 0.02, 1.001


def measured(training: Training, seconds: float | None, folder: Path | None) -> dict[str, Any]:
    """A row of the table; the training that is to end stationary ends after so many seconds at the latest."""
    net, X, Y = training.make()

    def end(finish: str, **further: Any) -> tuple[TrainingResult, float]:
        began, own = time.process_time(), copy.deepcopy(net)
        options: dict[str, Any] = {"ridge": training.ridge, "loss": training.loss, "finish": finish}
        return minimise(own, X, Y, **options, **further), time.process_time() - began

    place = None if folder is None else folder / training.name
    resumed = place is not None and place.exists()
    (flat, flat_seconds), (result, taken) = end("flat"), end("stationary", max_seconds=seconds, checkpoint=place)
    found = result.stationarity
    assert found is not None
    row = {"training": training.name, "parameters": sum(p.numel() for p in net.parameters())}
    row |= {"in effect": found.parameters, "state": result.state, "r": found.residual}
    row |= {"at kinks": len(found.multipliers), "plain gradient": found.gradient, "loss": result.loss}
    row |= {"flat loss": flat.loss, "least eigenvalue/2λ": found.least_eigenvalue / (2.0 * training.ridge)}
    return row | {"kind": found.kind, "steps": result.steps, "s": None if resumed else taken, "flat s": flat_seconds}


def gates(rows: list[dict[str, Any]]) -> list[Gate]:
    """What is wanted of all twelve; fewer rows meet no gate on a number of them."""
    complete = len(rows) == len(TRAININGS)
    small = [row for row in rows if row["in effect"] <= SMALL]
    reached = sum(row["r"] <= STATIONARY for row in small)
    near, above = sum(row["r"] <= NEAR for row in rows), max(row["loss"] / row["flat loss"] for row in rows)
    few = f"of {len(rows)} measured, trainings with at most {SMALL} parameters in effect"
    few += f" at r ≤ {STATIONARY:g}, τ = {KINK_TOLERANCE:g}"
    return [
        Gate(few, reached, f"all {len(small)}, and at least 7", complete and reached == len(small) and reached >= 7),
        Gate(f"of {len(rows)} measured, trainings at r ≤ {NEAR:g}", near, "at least 11", near >= 11),
        Gate("largest ratio of the loss to that of the flat end", above, f"at most {ABOVE:g}", above <= ABOVE),
    ]


def kept(path: Path | None) -> dict[str, Any]:
    """Rows by name and when they were measured, of an earlier run."""
    if path is None or not path.exists():
        return {}
    document = read_json(path)
    return {row["training"]: (row, document["details"]["measured"][row["training"]]) for row in document["rows"]}


def main() -> None:
    """Run and show the table."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="trainings with a word in their names")
    parser.add_argument("--seconds", type=float, help="end each training after so long")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="go on from what is there")
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = [t for t in TRAININGS if not options.only or any(word in t.name for word in options.only)]
    chosen = chosen[:1] if options.quick else chosen
    about = provenance((), quick=options.quick)
    origin = {name: about[name] for name in ("date", "commit", "processor")}
    new = {t.name: (measured(t, options.seconds, options.checkpoints), origin) for t in chosen}
    # Read last: several of these may run at once.
    found = (kept(options.out) if options.only else {}) | new
    rows = [found[t.name][0] for t in TRAININGS if t.name in found]
    ended = sum(row["state"] == "stationary" for row in rows)
    higher = sum(row["loss"] > row["flat loss"] for row in rows)
    report(
        options,
        name="stationary",
        question=QUESTION,
        answer=f"{ended} of {len(rows)} trainings end stationary; {higher} at a higher loss than where it is flat.",
        columns=COLUMNS,
        rows=rows,
        gates=gates(rows),
        details={"measured": {row["training"]: found[row["training"]][1] for row in rows}},
    )


if __name__ == "__main__":
    main()
