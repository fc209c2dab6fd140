"""The command line: thin, one short function per verb, a file for each or for those that belong together.

Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.

Exit codes: 0 answer; 1 undetermined, or a claim or outcome fails; 2 usage; 3 bad data; 130 interrupted;
70 a bug of ours.
"""

from __future__ import annotations

from isthmus.cli.base import Command, app
from isthmus.cli.demo import demo
from isthmus.cli.discover import discover_command
from isthmus.cli.network import compress_command, convert, diagnose_command, mechanics_command, verify_command
from isthmus.cli.predict import predict, transform
from isthmus.cli.report import open, report, serve_command  # noqa: A004 - the verb
from isthmus.cli.reproduce import reproduce
from isthmus.cli.runs import runs_command
from isthmus.cli.shell import main
from isthmus.cli.sweep import sweep_command

__all__ = ["app", "main"]

# In the order of the help, each with its example.
for _verb, _example in (
    (demo, "Example:  isthmus demo --out runs/demo"),
    (
        discover_command,
        "Examples:  isthmus discover trajectories.csv --target 'y*'\n\n"
        "isthmus discover cells.parquet --target growth --target 'protein_*' --group patient --missing median\n\n"
        "isthmus discover arrays.npz --json",
    ),
    (
        diagnose_command,
        "Examples:  isthmus diagnose net.safetensors --data X.npy --y Y.npy\n\n"
        "isthmus diagnose --module networks.small:build --weights weights.safetensors --data images.npy",
    ),
    (
        compress_command,
        "Examples:  isthmus compress net.safetensors --out small.safetensors\n\n"
        "isthmus compress net.safetensors --data X.npy --tolerance 0.01 --check X2.npy --out small.safetensors",
    ),
    (
        mechanics_command,
        "Examples:  isthmus mechanics leaky.safetensors --data X.npy --y Y.npy --ridge 0.001\n\n"
        "isthmus mechanics leaky.safetensors --data X.npy --y Y.npy --ridge 0.001 --out mechanics.html",
    ),
    (
        verify_command,
        "Examples:  isthmus verify --list\n\n"
        "isthmus verify --claim 'C-bn-*'\n\n"
        "isthmus verify net.safetensors --data X.npy --y Y.npy --ridge 0.01",
    ),
    (transform, "Example:  isthmus transform runs/discover-cells new.csv --out coordinates.csv"),
    (predict, "Example:  isthmus predict runs/discover-cells new.csv --out predicted.csv"),
    (
        reproduce,
        "Examples:  isthmus reproduce --list\n\n"
        "isthmus reproduce E-linear --list\n\n"
        "isthmus reproduce E-linear --set depths=2,4,8,16,32 --out runs/mine",
    ),
    (
        sweep_command,
        "Examples:  isthmus sweep F-bn-1 --set depth=4:30:2 --set ridge=1e-4:1e-1:log7 --seeds 3\n\n"
        "isthmus sweep --data data.csv --target 'y*' --set depth=4:12:4 --set resolution=0.001,0.01,0.1",
    ),
    (runs_command, "Example:  isthmus runs runs/sweep-F-bn-1 --state done --where 'rank>2' --sort norm"),
    (report, "Example:  isthmus report runs/demo --out report.html"),
    (open, "Example:  isthmus open runs/demo"),
    (serve_command, "Example:  isthmus serve runs --open"),
    (convert, "Example:  isthmus convert weights.pt network.safetensors --slope 0.1"),
):
    app.command(_verb.__name__.removesuffix("_command"), cls=Command, epilog=_example)(_verb)
