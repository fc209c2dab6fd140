"""What jacobian.py and ntk.py share: random networks, the sides in turn, memory in processes of their own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _bench import arguments, compare, interleaved, peak_megabytes, spread, version
from torch import Tensor

from isthmus import FullyConnected

COLUMNS = (
    "size",
    "dtype",
    "side",
    "seconds",
    "quartiles",
    "samples timed",
    "times ours",
    "interval",
    "p",
    "difference",
    "peak MB",
)


@dataclass(frozen=True)
class Setting:
    """One size of the problem: depth L, width w, d inputs and outputs, N samples."""

    samples: int
    depth: int
    width: int
    d: int
    dtype: str = "float64"

    @property
    def label(self) -> str:
        """As in a table."""
        return f"L={self.depth} w={self.width} d={self.d} N={self.samples}"

    def problem(self) -> tuple[FullyConnected, Tensor]:
        """A random network and data."""
        generator = torch.Generator().manual_seed(0)
        dtype = getattr(torch, self.dtype)
        net = FullyConnected([self.d, *[self.width] * (self.depth - 1), self.d], dtype=dtype, generator=generator)
        X = torch.randn(self.samples, self.d, generator=generator, dtype=torch.float64).to(dtype)
        return net, X


@dataclass(frozen=True)
class Side:
    """One way to the result.

    Attributes
    ----------
    prepare : callable
        (net, X) → a function without arguments; what it does beforehand is not timed.
    share : callable
        (net, X) → how many of the samples are timed; the seconds are multiplied up. All by default.
    distribution : str, optional
        What must be installed.
    """

    prepare: Callable[[FullyConnected, Tensor], Callable[[], Tensor]]
    share: Callable[[FullyConnected, Tensor], int] = lambda net, X: len(X)  # noqa: ARG005
    distribution: str | None = None

    @property
    def present(self) -> bool:
        """Whether it can run here."""
        return self.distribution is None or version(self.distribution) != "absent"


def parse(description: str, sides: Mapping[str, Side]) -> argparse.Namespace | None:
    """The options; None after this process has run one side once for its memory."""
    parser = arguments(description)
    parser.add_argument("--memory-of", choices=list(sides), help=argparse.SUPPRESS)
    parser.add_argument("sizes", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of is None:
        return options
    samples, depth, width, d = map(int, options.sizes[:4])
    setting = Setting(samples, depth, width, d, options.sizes[4])
    net, X = setting.problem()
    side = sides[options.memory_of]
    side.prepare(net, X[: side.share(net, X)])()
    return None


def difference(found: Tensor, truth: Tensor) -> float:
    """Largest relative difference of a sample, or that of the totals where a side gives a total."""
    truth = truth.sum() if found.ndim == 0 else truth[: len(found)]
    scale = truth.abs() if truth.ndim < 2 else truth.abs().amax(tuple(range(1, truth.ndim)), keepdim=True)
    return float(((found.double() - truth.double()).abs() / scale.double()).max())


def measured(
    script: str, setting: Setting, sides: Mapping[str, Side], options: argparse.Namespace, repeats: int
) -> list[dict[str, Any]]:
    """Rows of all sides on one size; the first is ours, and differences are from it."""
    net, X = setting.problem()
    here = {name: side for name, side in sides.items() if side.present}
    parts = {name: side.share(net, X) for name, side in here.items()}
    for side in here.values():
        side.prepare(net, X[:3])()  # loads what is loaded lazily
    candidates = {name: side.prepare(net, X[: parts[name]]) for name, side in here.items()}
    seconds, results = interleaved(candidates, options.repeats or repeats, warm=0)
    seconds = {name: [s * len(X) / parts[name] for s in taken] for name, taken in seconds.items()}
    ours = next(iter(sides))
    rows = []
    for name, side in sides.items():
        row: dict[str, Any] = {"size": setting.label, "dtype": setting.dtype, "side": name}
        rows.append(row)
        if not side.present:
            row["side"] = f"{name}: not installed, skipped"
            continue
        s = spread(seconds[name])
        row |= {"seconds": s["median"], "quartiles": [s["low"], s["high"]], "samples timed": parts[name]}
        if name != ours:
            c = compare(seconds, ours, name)
            row |= {"times ours": c.ratio, "interval": [c.low, c.high], "p": c.p}
            row["difference"] = difference(results[name], results[ours])
        # To start a process takes longer than all else of a quick run: there, ours alone.
        if name == ours or not options.quick:
            row["peak MB"] = round(peak_megabytes(_command(script, name, setting, options)))
    return rows


def _command(script: str, name: str, setting: Setting, options: argparse.Namespace) -> Sequence[str]:
    sizes = [setting.samples, setting.depth, setting.width, setting.d, setting.dtype]
    return [sys.executable, script, "--memory-of", name, "--threads", str(options.threads), *map(str, sizes)]
