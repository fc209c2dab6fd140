"""Singular values of every weight of a network: ours beside WeightWatcher's.

    python benchmarks/spectra.py [--quick] [--out benchmarks/results/spectra.json]

Same networks, same process, one thread, one side after the other in each repeat. WeightWatcher (`pip install
weightwatcher==0.7.7`) is timed on its layer iterator and its SVD alone, the calls that its `analyze()` makes, without
the power-law fits. Each side's values are compared with `numpy.linalg.svd` in float64 of the matrices that it used:
ours are filters unfolded to (out, in·k), WeightWatcher's are one matrix for each position of a kernel. Without
WeightWatcher the peer is skipped, and the output says so. With ``--out`` the table is also written beside this file as
spectra.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import logging
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.diagnosis.weight_spectra import weight_spectrum
from isthmus.diagnosis.weights import weighted_layers
from isthmus.files import write_json

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
    import weightwatcher  # pyright: ignore[reportMissingImports]  (no extra of ours)
    from weightwatcher.constants import DEFAULT_PARAMS  # pyright: ignore[reportMissingImports]

    watcher = weightwatcher.WeightWatcher(model=net)
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


def peer_version() -> str | None:
    """Of WeightWatcher, None when it is not there."""
    try:
        return importlib.metadata.version("weightwatcher")
    except importlib.metadata.PackageNotFoundError:
        return None


def difference(answers: list[Answer]) -> float:
    """Largest |ŝ − s| / s₁ against NumPy in float64."""
    worst = 0.0
    for A, values in answers:
        truth = np.sort(np.linalg.svd(A.astype(np.float64), compute_uv=False).ravel())[::-1]
        if len(truth) != len(values):
            return float("nan")
        worst = max(worst, float(np.abs(truth - values).max() / truth[0]))
    return worst


def quietly(function: Callable[[nn.Module], Any], net: nn.Module) -> tuple[float, Any]:
    """Seconds and result, without what the peer prints and warns."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        result = function(net)
        return time.perf_counter() - start, result


def run(name: str, net: nn.Module, repeats: int, with_peer: bool) -> dict[str, Any]:
    """Both sides on one network, in turn."""
    sides = {"ours": ours, **({"peer": peer} if with_peer else {})}
    for function in sides.values():
        quietly(function, nn.Sequential(nn.Linear(64, 64)))  # loads what is loaded lazily
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    found: dict[str, Any] = {}
    for _ in range(repeats):
        for side, function in sides.items():
            taken, (layers, answers) = quietly(function, net)
            seconds[side].append(taken)
            found[side] = (layers, answers)
    row: dict[str, Any] = {"network": name, "parameters": sum(1 for _ in net.parameters()), "repeats": repeats}
    for side, (layers, answers) in found.items():
        row[side] = {
            "seconds": statistics.median(seconds[side]),
            "range": [min(seconds[side]), max(seconds[side])],
            "layers": layers,
            "values": sum(len(values) for _, values in answers),
            "difference": difference(answers),
        }
    if with_peer:
        row["ratio"] = statistics.median(b / a for a, b in zip(seconds["ours"], seconds["peer"]))
    return row


def table(document: dict[str, Any]) -> str:
    """The Markdown page."""
    peer_name = document["peer"]
    about_peer = (
        f"Peer: {peer_name}, its SVD alone without fits." if peer_name else "The peer is absent and was skipped."
    )
    lines = [
        "# Spectra of weights",
        "",
        "Written by `python benchmarks/spectra.py --out benchmarks/results/spectra.json`; one thread, medians of",
        f"{document['rows'][0]['repeats']} interleaved repeats [least, most]. {about_peer}",
        "Ours computes in float64 whatever the dtype of the weights. Difference: the largest |ŝ − s|/s₁ against NumPy",
        "in float64, each side on the matrices it used. The peer cuts a filter into one matrix for each position of",
        "the kernel; through SciPy it calls the LAPACK routine that NumPy calls, hence its zeros. Layers: the entries",
        "that a side shows (ours also norms); values: the singular values it gave. The peer gives none for the query,",
        "key and value of `nn.MultiheadAttention`.",
        document["remark"],
        "",
        "| network | side | s | layers | values | difference |",
        "|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        for side, shown in (("ours", "isthmus"), ("peer", "WeightWatcher")):
            if side in row:
                r = row[side]
                low, high = r["range"]
                lines.append(
                    f"| {row['network']} | {shown} | {r['seconds']:.2f} [{low:.2f}, {high:.2f}] | {r['layers']} "
                    f"| {r['values']} | {r['difference']:.0e} |"
                )
    if document["peer"]:
        ratios = "; ".join(f"{row['network']}: {row['ratio']:.2f}" for row in document["rows"])
        lines += ["", f"Seconds of the peer over ours (median of the paired ratios): {ratios}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run and show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small networks, for a smoke test")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--remark", default="", help="a sentence about the circumstances, for the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # The peer imports pyplot and logs every layer.
    os.environ.setdefault("MPLBACKEND", "Agg")
    logging.disable(logging.WARNING)
    version = peer_version()
    document = {
        "benchmark": "spectra",
        "peer": version and f"WeightWatcher {version}",
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "machine": platform.machine(),
        "threads": 1,
        "quick": options.quick,
        "remark": options.remark,
        "rows": [
            run(name, net, 2 if options.quick else 5, version is not None)
            for name, net in networks(options.quick).items()
        ],
    }
    print(table(document))
    if options.out:
        write_json(options.out, document)
        if not options.quick:
            Path(__file__).with_suffix(".md").write_text(table(document), encoding="utf-8")


if __name__ == "__main__":
    main()
