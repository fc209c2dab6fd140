"""`isthmus demo`: a discovery of which the truth is known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.base import AsJson
from isthmus.cli.discover import finish_discovery, run_discovery
from isthmus.cli.screen import console, text

if TYPE_CHECKING:
    import numpy as np

#: The task: a random teacher whose latents are not given to anybody.
TASK: dict[str, Any] = {
    "d_in": 30,
    "rank": 5,
    "d_out": 30,
    "relu_latents": True,
    "samples": 1500,
    "noise": 0.03,
    "seed": 0,
}
#: How it is discovered, beyond the default.
OPTIONS: dict[str, Any] = {"seed": 0}
#: Share of the variance that must be explained both ways for two sets of coordinates to be the same.
SAME = 0.95


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the answer.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Watch hidden variables being found: 30 outputs that depend on 30 inputs through five of them, a minute.

    Nobody tells the network the five. Writes the same folder as `isthmus discover`.
    """
    import pandas as pd

    from isthmus.cli.discovery_folder import FOLDER
    from isthmus.problems import teacher
    from isthmus.report.discovery_page import samples_of

    folder = FOLDER.check(out)
    task = teacher(**TASK)
    if not as_json:
        what = f"{len(task.X)} samples of {TASK['d_in']} inputs and {TASK['d_out']} outputs, {TASK['noise']:.0%} noise"
        how = "The outputs are a random network's, computed through a few hidden variables. How many?"
        console().print(text(f"Task: {what}. {how}\nThe discovery is told neither their number nor their values.\n"))
    found = run_discovery(context, task.X, task.Y, OPTIONS, folder, out, restart=False)
    both = [_explained(A, B) for A, B in ((task.latents, found.coordinates), (found.coordinates, task.latents))]
    truth = {"rank": task.rank, "found_from_true": both[0], "true_from_found": both[1]}
    origin = {"file": None, "problem": "teacher", "parameters": TASK, "rows_read": len(task.X)}
    found = dataclasses.replace(found, notes=(f"a random teacher of rank {task.rank}, made by isthmus", *found.notes))
    rows = pd.DataFrame({"row": range(len(task.X))})
    ending = None
    try:
        samples = samples_of(found, task.X, task.Y) | _truth(task.latents, found.coordinates)
        finish_discovery(context, found, folder, out, origin, rows, samples, as_json=as_json, more={"truth": truth})
    except typer.Exit as undetermined:
        ending = undetermined
    if not as_json:
        _print_truth(found.rank, task.rank, both)
    if ending is not None:
        raise ending


def _recovered(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """B as a smooth function of A on held-out rows; NaN on the others, and everywhere if A has no column."""
    import numpy as np
    from sklearn.kernel_ridge import KernelRidge

    guess = np.full(B.shape, np.nan)
    if 0 in (A.shape[1], B.shape[1]):
        return guess
    # Rows are independent: the last quarter is as good as any other.
    train = np.arange(len(A)) < 3 * len(A) // 4
    centre, scale = B[train].mean(axis=0), np.maximum(B[train].std(axis=0), 1e-12)
    A = (A - A[train].mean(axis=0)) / np.maximum(A[train].std(axis=0), 1e-12)
    # Its stub has the type of the default for that of the argument.
    smooth = KernelRidge(alpha=0.01, kernel="rbf", gamma=0.15 / A.shape[1])  # pyright: ignore[reportArgumentType]
    guess[~train] = centre + scale * smooth.fit(A[train], (B[train] - centre) / scale).predict(A[~train])
    return guess


def _explained(A: np.ndarray, B: np.ndarray) -> float:
    """R² of B as a smooth function of A on held-out rows, the worst column of B; 0 where there is no column."""
    import numpy as np

    guess = _recovered(A, B)
    held = np.isfinite(guess).all(axis=1)
    if 0 in guess.shape or not held.any():
        return 0.0
    left = ((guess - B)[held] ** 2).sum(axis=0) / ((B[held] - B[held].mean(axis=0)) ** 2).sum(axis=0)
    return float(1.0 - left.max())


def _truth(latents: np.ndarray, coordinates: np.ndarray) -> dict[str, np.ndarray]:
    """Columns for the report: each hidden variable, and what the coordinates say about it."""
    from isthmus.plotting.figure import thinned

    rows = thinned(len(latents))
    both = {"true": latents[rows], "recovered": _recovered(coordinates, latents)[rows]}
    return {f"{kind}:hidden {j}": values[:, j] for kind, values in both.items() for j in range(latents.shape[1])}


def _print_truth(rank: int, true_rank: int, both: list[float]) -> None:
    out = console()
    right = rank == true_rank
    out.print()
    sentence = f"The truth: {true_rank} hidden variables. " + ("Right." if right else f"Found {rank}.")
    out.print(text(sentence, "bold green" if right else "bold yellow"))
    sentence = "The coordinates are not the true ones"
    if right and min(both) >= SAME:
        sentence = "The coordinates found are the true ones in other words"
    elif right and both[1] >= SAME:
        sentence = "The true variables follow from the coordinates found, which say a little more"
    numbers = f"found from true R² = {both[0]:.3f}, true from found R² = {both[1]:.3f}"
    out.print(text(f"{sentence}: {numbers} (smooth regression, held out, the worst of them)."))
