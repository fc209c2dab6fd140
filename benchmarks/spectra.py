"""Singular values of every weight of a network: ours beside WeightWatcher's and NumPy's.

    python benchmarks/spectra.py [--quick] [--json] [--repeats N] [--out benchmarks/results/spectra.json]

Same networks, same process, same threads, the sides in turn. WeightWatcher is timed on its layer iterator and its SVD
alone, the calls that its `analyze()` makes, without the power-law fits; `numpy.linalg.svd` without vectors on the
matrices that ours uses, in float64, without looking for them. Each side's values are compared with those of
`numpy.linalg.svd` with vectors in float64, another algorithm (divide and conquer), of the matrices that it used: ours
are filters unfolded to (out, in·k), WeightWatcher's are one matrix for each position of a kernel. A peer that is not
installed is skipped, and the table says so. With ``--out`` in benchmarks/results the table is also written beside this
file as spectra.md.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _bench import arguments, compare, interleaved, report, shown, spread, version
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from isthmus.diagnosis import weight_spectrum, weighted_layers
from isthmus.files import write_atomic

HERE = Path(__file__).resolve().parent
QUESTION = "How fast are the singular values of every weight of a network, and how exact?"
OURS, NUMPY, WATCHER = "isthmus", "numpy.linalg.svd", "WeightWatcher"
COLUMNS = ("network", "side", "seconds", "quartiles", "times ours", "interval", "p", "layers", "values", "difference")
#: A matrix as it was used, and the singular values that were given for it.
Answer = tuple[np.ndarray, np.ndarray]


class Block(nn.Module):
    """Two 3×3 convolutions and a way around them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around = nn.Conv2d(before, after, 1, bias=False)

    def forward(self, X: Tensor) -> Tensor:
        """Residual block."""
        inner = self.norms[1](self.second(torch.relu(self.norms[0](self.first(X)))))
        return torch.relu(inner + self.around(X))


def networks(quick: bool) -> dict[str, nn.Module]:
    """The networks, small ones if ``quick``."""
    width, large = (64, 128) if quick else (512, 2048)
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    return {
        f"MLP 10×{width}": nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(10)]),
        "small ResNet": nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), Block(64, 64), Block(64, 128), Block(128, 256), nn.Linear(256, 100)
        ),
        f"transformer encoder 2×{width}": nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False),
        f"one layer {large}×{large}": nn.Sequential(nn.Linear(large, large)),
    }


def ours(net: nn.Module) -> tuple[int, list[Answer]]:
    """Layers listed, and the values of every part."""
    layers = weighted_layers(net)
    parts = [part for layer in layers for part in layer.parts]
    return len(layers), [(part.matrix().numpy(), weight_spectrum(part).values.numpy()) for part in parts]


def peer(net: nn.Module) -> tuple[int, list[Answer]]:
    """WeightWatcher's iterator and SVD; its eigenvalues are the squares of ours."""
    import weightwatcher  # pyright: ignore[reportMissingImports]  (an extra)
    from weightwatcher.constants import DEFAULT_PARAMS  # pyright: ignore[reportMissingImports]

    watcher: Any = weightwatcher.WeightWatcher(model=net)
    params = DEFAULT_PARAMS.copy()
    answers: list[Answer] = []
    layers = 0
    for layer in watcher.make_layer_iterator(model=net, params=params):
        if layer.skipped or not layer.has_weights:
            continue
        layers += 1
        watcher.apply_esd(layer, params)
        stack = np.stack([np.asarray(W) for W in layer.Wmats])
        answers.append((stack, np.sqrt(np.sort(np.asarray(layer.evals, dtype=np.float64))[::-1])))
    return layers, answers


def plain(net: nn.Module) -> Callable[[], tuple[int, list[Answer]]]:
    """NumPy on the matrices of ours, found beforehand."""
    layers = weighted_layers(net)
    matrices = [part.matrix().numpy().astype(np.float64) for layer in layers for part in layer.parts]
    return lambda: (len(layers), [(A, np.linalg.svd(A, compute_uv=False)) for A in matrices])


def difference(answers: list[Answer]) -> float:
    """Largest |ŝ − s| / s₁ against NumPy's SVD with vectors, in float64."""
    worst = 0.0
    for A, values in answers:
        truth = np.sort(np.linalg.svd(A.astype(np.float64))[1].ravel())[::-1]
        if len(truth) != len(values):
            return float("nan")
        worst = max(worst, float(np.abs(truth - values).max() / truth[0]))
    return worst


def quietly(function: Callable[[], Any]) -> Callable[[], Any]:
    """The same without what a peer prints and warns."""

    def run() -> Any:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function()

    return run


def run(name: str, net: nn.Module, repeats: int) -> list[dict[str, Any]]:
    """Rows of all sides on one network."""
    sides = {OURS: lambda: ours(net), NUMPY: plain(net)}
    if version("weightwatcher") != "absent":
        sides[WATCHER] = lambda: peer(net)
        quietly(lambda: peer(nn.Sequential(nn.Linear(64, 64))))()  # loads what is loaded lazily
    seconds, found = interleaved({side: quietly(function) for side, function in sides.items()}, repeats)
    rows = []
    for side, (layers, answers) in found.items():
        s = spread(seconds[side])
        row = {"network": name, "side": side, "seconds": s["median"], "quartiles": [s["low"], s["high"]]}
        if side != OURS:
            c = compare(seconds, OURS, side)
            row |= {"times ours": c.ratio, "interval": [c.low, c.high], "p": c.p}
        values = sum(len(values) for _, values in answers)
        rows.append(row | {"layers": layers, "values": values, "difference": difference(answers)})
    if WATCHER not in sides:
        rows.append({"network": name, "side": f"{WATCHER}: not installed, skipped"})
    return rows


def table(rows: list[dict[str, Any]], threads: int, repeats: int, remark: str) -> str:
    """The Markdown page."""
    lines = [
        "# Spectra of weights",
        "",
        f"Written by `python benchmarks/spectra.py --out benchmarks/results/spectra.json`; threads: {threads}; medians",
        f"of {repeats} interleaved repeats, and quartiles. WeightWatcher {version('weightwatcher')}: its SVD alone,",
        f"without fits; NumPy {version('numpy')}: its SVD alone.",
        "Ours computes in float64 whatever the dtype of the weights. Difference: the largest |ŝ − s|/s₁ against",
        "NumPy's SVD with vectors in float64, each side on the matrices it used. WeightWatcher cuts a filter into one",
        "matrix for each position of the kernel. Layers: the entries that a side shows (ours also norms); values: the",
        "singular values it gave. WeightWatcher gives none for the query, key and value of `nn.MultiheadAttention`.",
        *([remark] if remark else []),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    lines += [f"| {' | '.join(shown(row.get(column)) for column in COLUMNS)} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run and show the table."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--remark", default="", help="a sentence about the circumstances, for the page")
    options = parser.parse_args()
    # NumPy and SciPy bring a BLAS of their own, which PyTorch's setting does not reach.
    threadpool_limits(options.threads)
    torch.set_num_threads(options.threads)
    # WeightWatcher imports pyplot and logs every layer.
    os.environ.setdefault("MPLBACKEND", "Agg")
    logging.disable(logging.WARNING)
    repeats = options.repeats or (2 if options.quick else 7)
    rows = [row for name, net in networks(options.quick).items() for row in run(name, net, repeats)]
    told = []
    for side in (WATCHER, NUMPY):
        own = [row for row in rows if row["side"] == side]
        if own:
            ratios = [row["times ours"] for row in own]
            apart = max(row["difference"] for row in own)
            range_of = f"{min(ratios):.2f} to {max(ratios):.2f}"
            told.append(f"{side} takes {range_of} times as long as ours (off by {apart:.0e} at most)")
    worst = max(row["difference"] for row in rows if row["side"] == OURS)
    answer = f"{'; '.join(told)}; ours is off by {worst:.0e} of the largest singular value at most."
    peers = ("weightwatcher",)
    report(options, name="spectra", question=QUESTION, answer=answer, columns=COLUMNS, rows=rows, peers=peers)
    if options.out and not options.quick and options.out.resolve().parent == HERE / "results":
        write_atomic(HERE / "spectra.md", table(rows, options.threads, repeats, options.remark).encode())


if __name__ == "__main__":
    main()
