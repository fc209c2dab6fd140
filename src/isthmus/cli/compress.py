"""`isthmus compress`: from a saved network to a smaller file of it, and a certificate of where the two are equal."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.base import AsJson
from isthmus.cli.given import (
    Decimal,
    DecimalMark,
    ExcludeInput,
    NaValues,
    Reading,
    ReportFile,
    check_page,
    check_paths,
    check_reading,
    file_of,
    give,
    inputs_of,
    saved_object,
)
from isthmus.cli.screen import console, print_result, print_tables, text

if TYPE_CHECKING:
    from torch import nn

    from isthmus.compression import Certificate

_WHO = "compress"
#: Layers in the table on the terminal.
_ROWS = 40


def compress_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="File of isthmus.save: a network, an nn.Sequential or a Discovery; or the folder of a discovery.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="SMALL.safetensors", help="File for the smaller network.", show_default=False)
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="X", help="Inputs whose outputs are kept: NPY, CSV, Parquet or NPZ. Without: all inputs."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="Outputs on X may move by this share of the largest.")
    ] = 0.0,
    check: Annotated[
        Path | None, typer.Option(metavar="X2", help="Other inputs, on which the deviation is measured too.")
    ] = None,
    exclude: ExcludeInput = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    rebalance: Annotated[
        bool, typer.Option("--rebalance/--no-rebalance", help="Rescale neurons to the least norm.")
    ] = True,
    allow_larger_norm: Annotated[
        bool, typer.Option("--allow-larger-norm", help="Allow what saves parameters though the norm grows.")
    ] = False,
    report: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a network smaller, and say where it still computes the same: everywhere, on the data, within a tolerance.

    MODEL is read and never written. The answer may be that nothing can go: SMALL is then the network as it was. Of a
    discovery, encoder and decoder become one network. The JSON is the certificate, which `isthmus report` takes.
    """
    from isthmus import files
    from isthmus.compression import compress

    check_paths({"MODEL": file_of(model), "--data": data, "--check": check}, {"--out": out, "--report": report})
    check_page("--report", report)
    if tolerance > 0.0 and data is None:
        raise typer.BadParameter("--tolerance needs --data: the inputs on which outputs may move")
    reading = Reading(decimal, exclude, na_values)
    check_reading(reading, {"--data": data, "--check": check})
    with contextlib.redirect_stdout(sys.stderr):
        saved = saved_object(_WHO, model)
        net, notes = network_in(saved)
        X, X2 = (
            None if path is None else inputs_of(_WHO, path, reading=reading, saved=saved)[0] for path in (data, check)
        )
        options = {"tolerance": tolerance, "rebalance": rebalance, "allow_larger_norm": allow_larger_norm}
        found = compress(net, X, check=X2, **options)
        found = replace(found, certificate=replace(found.certificate, notes=(*found.certificate.notes, *notes)))
        files.save(found.network, out)

    def show() -> None:
        from torch import nn

        print_certificate(found.certificate)
        linear = [layer for layer in found.network.modules() if isinstance(layer, nn.Linear)]
        dims = [linear[0].in_features, *(layer.out_features for layer in linear)] if linear else []
        what = f"{type(found.network).__name__} {' → '.join(map(str, dims))}".strip()
        console().print(text(f"wrote {out}: {what}, {out.stat().st_size:,} bytes"))

    give(_WHO, found, report, show, as_json=as_json)


def network_in(saved: Any) -> tuple[nn.Module, list[str]]:
    """The network to compress in what a file held, h∘g of a discovery, and what to know about it."""
    from torch import nn

    from isthmus._checks import fail
    from isthmus.compression._compress import plain
    from isthmus.networks import FullyConnected, Network, Standardized

    if isinstance(saved, nn.Module) and not isinstance(plain(saved), Network):
        return saved, []
    from isthmus.discovery import Discovery

    if not isinstance(saved, Discovery):
        must = "MODEL must hold a network that PyTorch's own layers can make, or a Discovery"
        fail(_WHO, must, f"a {type(saved).__name__}", "Other modules go to isthmus.compress in Python.")
    if saved.rank == 0:
        fail(_WHO, "the discovery must have a rank above 0", f"rank {saved.rank}", "Its outputs are constant.")
    g: Any = saved.encoder
    h: Any = saved.decoder
    notes = ["encoder and decoder became one network: its outputs are kept, the coordinates between them are not"]
    if saved.fill is not None:
        notes.append("missing inputs are not filled in by the network as the discovery did: fill them in first")
    if saved.mending.limits:
        notes.append("gross outliers are not limited by the network as the discovery did: limit them first")
    if g.network.plain_layers() is None or h.plain_layers() is None:
        return nn.Sequential(*g.to_torch(), *h.to_torch()).eval(), notes
    return Standardized(FullyConnected.joined(g.network, h), g.shift, g.scale), notes


def print_certificate(found: Certificate) -> None:
    """Show a Certificate: the sentence, the layers, what it cost and saved, and where the two are equal."""
    out = console()
    print_result(out, found)
    print_tables(out, found, limit=_ROWS)
    out.print()
    kind = "random points" if found.domain == "everywhere" else "samples"
    if found.points:
        share = f"{found.deviation:.1e} of the largest output at {found.points:,} {kind}"
        out.print(text(f"equal: {found.domain}; largest deviation {share}"))
    else:
        out.print(text(f"equal: {found.domain}, bit for bit"))
    if found.elsewhere is not None:
        out.print(text(f"on the samples of --check: largest deviation {found.elsewhere:.1e} of the largest output"))
    for part, reason in found.untouched:
        out.print(text(f"untouched: {part}: {reason}"))
    for note in found.notes:
        out.print(text(f"note: {note}"))
