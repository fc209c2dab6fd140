"""Verbs about a network: diagnose, mechanics, verify, compress, convert."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus._html import number
from isthmus.cli.base import UNDETERMINED, AsJson
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
    layers_of,
    own_network,
    saved_object,
)
from isthmus.cli.screen import console, print_items, print_json, print_result, print_table, print_tables, table, text

if TYPE_CHECKING:
    from torch import nn

    from isthmus.claims import Claim, Verdicts
    from isthmus.compression import Certificate
    from isthmus.diagnosis import Diagnosis


# ---- `isthmus diagnose`: from a file of weights and a file of data to the isthmus of a network and a folder about it


_DIAGNOSE = "diagnose"


class Loss(StrEnum):
    """What the network was trained on."""

    mse = "mse"
    cross_entropy = "cross_entropy"


def diagnose_command(
    data: Annotated[
        Path, typer.Option(metavar="X", help="Inputs: NPY of any axes (integers are tokens), CSV, Parquet or NPZ.")
    ],
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="File of isthmus.save, or the folder of a discovery.", show_default=False),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Your own class, or a function that makes the network."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help="Its state_dict; every tensor must match.")
    ] = None,
    y: Annotated[Path | None, typer.Option("--y", metavar="Y", help="Targets, row for row: adds the cost.")] = None,
    exclude: ExcludeInput = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    ridge: Annotated[
        float | None, typer.Option(metavar="λ", help="Weight decay of the training: how near a minimum is it?")
    ] = None,
    loss: Annotated[Loss, typer.Option(help="Of the targets.")] = Loss.mse,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="η", help="Of the training: do its steps stay at this minimum?")
    ] = None,
    training_batch: Annotated[
        int | None, typer.Option(metavar="B", help="Samples of one training step. By default all.")
    ] = None,
    true_rank: Annotated[
        int | None, typer.Option(metavar="K", help="Of the task, as `isthmus discover` finds it: is it recovered?")
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Layers to look at; may be repeated. By default all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of sketches and random directions.")] = 0,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="No new measurement begins after these; 0 for no limit.")
    ] = 90.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the answer: absent, empty or a diagnosis, which is replaced. "
            "By default runs/diagnose-NAME.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What does a trained network really use? Where its isthmus is, how narrow, and how sure that is.

    The folder holds diagnosis.json, layers.csv, figure.png and report.html. Weights are read as numbers only: a
    pickle is refused. With --module, only what you name is imported, from the current folder too, and called without
    arguments.
    """
    from isthmus._progress import progress
    from isthmus._strict_json import dumps
    from isthmus.cli.diagnosis_folder import FOLDER, REPORT, write_diagnosis
    from isthmus.cli.screen import console, text
    from isthmus.diagnosis import diagnose

    if (model is None) == (module is None):
        raise typer.BadParameter("name either MODEL or --module PACKAGE.MODULE:FACTORY")
    if (module is None) != (weights is None):
        raise typer.BadParameter("--module and --weights go together")
    reading = Reading(decimal, exclude, na_values)
    check_reading(reading, {"--data": data}, y)
    name = Path(model.resolve() if model is not None else weights or "").stem
    shown = out or Path("runs") / f"diagnose-{name or 'network'}"
    folder = FOLDER.check(shown)
    # What a user's module prints must not end up in the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        saved = None if model is None else saved_object(_DIAGNOSE, model)
        net = own_network(_DIAGNOSE, str(module), Path(weights or "")) if model is None else layers_of(saved)
        X, targets = inputs_of(_DIAGNOSE, data, y, reading=reading, saved=saved)
        options = {"ridge": ridge, "loss": loss.value, "layers": layers or None, "seed": seed, "budget": budget or None}
        options |= {"learning_rate": learning_rate, "training_batch": training_batch, "true_rank": true_rank}
        found = diagnose(net, X, targets, **options, progress=progress)
        origin = {"data": data.name, "targets": None if y is None else y.name, "module": module}
        origin |= reading.record
        origin["weights"] = (model or weights or Path()).name
        document = {**found.to_dict(), "origin": origin}
        write_diagnosis(folder, found, document)
    if as_json:
        print(dumps(_DIAGNOSE, document, indent=2))
    else:
        print_diagnosis(found, shown)
        console().print(text(f"look at it: isthmus open {shown} ({shown / REPORT}, one file to share)"))
    if found.verdict == "undetermined":
        raise typer.Exit(UNDETERMINED)


def print_diagnosis(found: Diagnosis, folder: Path) -> None:
    """Show a Diagnosis; ``folder`` is where it was written."""
    from isthmus.cli.diagnosis_folder import FILES

    out = console()
    print_result(out, found)
    tables = {one.key: one for one in found.tables()}
    if "layers" in tables:
        out.print()
        print_table(out, tables["layers"], "← the isthmus")
        legend = "?: unclear; dimensions: of centred representations; W: weights, J: Jacobian; negative: ‖[Z]₋‖²/‖Z‖²"
        out.print(text(legend), style="dim")
    for key in ("effective", "factors", "agreement-numbers"):
        if key in tables:
            out.print()
            print_table(out, tables[key])
    out.print()
    out.print(text(_whole(found)))
    for one in (found.minimum, found.stability):
        if one is not None:
            out.print(text(one.sentence))
    if found.left_out:
        out.print()
        out.print(text("within the budget:"), style="dim")
        print_items(out, found.left_out)
    if found.notes:
        out.print()
        out.print(text("how it was done:"), style="dim")
        print_items(out, found.notes)
    out.print()
    out.print(text(f"kept in {folder}: {', '.join(FILES)}"))


def _whole(found: Diagnosis) -> str:
    """Numbers of the whole network in one line."""
    numbers, legend = found.whole, [f"{found.samples} samples", f"{found.whole['parameters']} parameters"]
    shown = {
        "norm_squared": "‖θ‖²",
        "norm_per_depth": "‖θ‖²/L",
        "cost": "cost",
        "unexplained": "unexplained share of the variance",
        "criticality": "‖∇‖/‖2λθ‖ (0 at a minimum)",
        "layer_imbalance": "imbalance of the layers",
        "output_depth": "effective depth by the outputs",
    }
    legend += [f"{label} {number(numbers[key])}" for key, label in shown.items() if numbers.get(key) is not None]
    return " · ".join(legend)


# ---- `isthmus mechanics`: the energies, Hamiltonian and criticality of a leaky ResNet on its data, step by step


_MECHANICS = "mechanics"
#: Steps in the table on the terminal; of more, evenly spaced ones.
_ROWS = 40


def mechanics_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File of isthmus.save that holds a LeakyResNet.")],
    data: Annotated[
        Path,
        typer.Option(metavar="X", help="Inputs: NPY, CSV, Parquet, or NPZ with X and Y.", show_default=False),
    ],
    ridge: Annotated[
        float, typer.Option(metavar="λ", help="Weight decay of the training; the paper's λ/2L̃.", show_default=False)
    ],
    y: Annotated[
        Path | None, typer.Option("--y", metavar="Y", help="Targets, row for row; needed but for an NPZ with both.")
    ] = None,
    exclude: ExcludeInput = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    loss: Annotated[Loss, typer.Option(help="Of the targets.")] = Loss.mse,
    effective_depth: Annotated[
        float | None,
        typer.Option(metavar="L̃", help="That a plain ResNet is read with; by default what its outputs amount to."),
    ] = None,
    gamma_share: Annotated[
        float, typer.Option(metavar="γ₀", help="γ as a share of ‖K‖, of the stable energies.")
    ] = 1e-3,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="Residual and spread of 𝓗 up to which it is conserved.")
    ] = 0.05,
    kinks: Annotated[
        float, typer.Option(metavar="SHARE", help="Above 0: neurons so near 0 may have any derivative from 0 to 1.")
    ] = 0.0,
    out: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Is a leaky ResNet at a solution? Its energies and Hamiltonian along the path, and the rank they tell.

    The state is conserved, not yet critical, drifting or not applicable; exit code 1 unless it is conserved. The JSON
    is what `isthmus report` takes.
    """
    from isthmus.measures import mechanics

    check_paths({"MODEL": file_of(model), "--data": data, "--y": y}, {"--out": out})
    check_page("--out", out)
    reading = Reading(decimal, exclude, na_values)
    check_reading(reading, {"--data": data}, y)
    with contextlib.redirect_stdout(sys.stderr):
        saved = saved_object(_MECHANICS, model)
        X, Y = inputs_of(_MECHANICS, data, y, reading=reading, saved=saved)
        if Y is None:
            raise typer.BadParameter("--y is needed: momenta are gradients of the cost")
        options = {"loss": loss.value, "gamma_share": gamma_share, "tolerance": tolerance, "kinks": kinks}
        options["effective_depth"] = effective_depth
        found = mechanics(layers_of(saved), X, Y, ridge=ridge, **options)

    def show() -> None:
        print_result(console(), found)
        print_tables(console(), found, limit=_ROWS)
        if found.arrays is not None:
            said = f"{found.samples} samples · L̃ {found.effective_depth:g} · path length {found.arrays.path_length:.4g}"
            console().print(text(f"{said} · spread of 𝓗 {found.spread:.2g} of its median"))

    give(_MECHANICS, found, out, show, as_json=as_json)
    if found.state != "conserved":
        raise typer.Exit(UNDETERMINED)


# ---- `isthmus verify`: the theorems, on a network of yours or each on its own sample


_VERIFY = "verify"


def verify_command(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="File of isthmus.save. Without it each claim runs on its own sample."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="X", help="Inputs of MODEL: NPY, CSV, Parquet or NPZ.", show_default=False)
    ] = None,
    y: Annotated[Path | None, typer.Option("--y", metavar="Y", help="Targets: for claims about minimisers.")] = None,
    exclude: ExcludeInput = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    ridge: Annotated[
        float | None, typer.Option(metavar="λ", help="Weight decay of the training: for claims about minimisers.")
    ] = None,
    loss: Annotated[Loss, typer.Option(help="Of the targets.")] = Loss.mse,
    k: Annotated[int | None, typer.Option("--k", metavar="K", help="Rank at which bounds with k are judged.")] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What only you know, such as noise=0.1, tangents=T.npy or f=net.safetensors; may be repeated.",
        ),
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only these claims; an id or a glob, may be repeated.")
    ] = None,
    out: ReportFile = None,
    list_: Annotated[bool, typer.Option("--list", help="List the claims and what they assume.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do the theorems hold? Both sides of each, its hypotheses checked, and the margin that is left.

    A claim whose hypotheses are not met says nothing: "not applicable", and why. Exit code 1 if one fails.
    """
    from isthmus._progress import progress
    from isthmus.claims import verify, verify_samples
    from isthmus.claims._verify import chosen

    if list_:
        claims = chosen(_VERIFY, claim)
        if as_json:
            print_json([one.to_dict() for one in claims])
        else:
            _print_claims(claims)
        return
    if (model is None) != (data is None):
        raise typer.BadParameter("MODEL and --data go together; without both each claim runs on its own sample")
    if model is None and (known or k is not None):
        raise typer.BadParameter("--known and --k are about MODEL; without it each claim runs on its own sample")
    read = {"MODEL": None if model is None else file_of(model), "--data": data, "--y": y}
    check_paths(read, {"--out": out})
    check_page("--out", out)
    reading = Reading(decimal, exclude, na_values)
    check_reading(reading, {"--data": data}, y)
    with contextlib.redirect_stdout(sys.stderr):
        if model is None or data is None:
            found = verify_samples(claim, progress=progress)
        else:
            saved = saved_object(_VERIFY, model)
            X, targets = inputs_of(_VERIFY, data, y, reading=reading, saved=saved)
            options = {"ridge": ridge, "loss": loss.value, "known": _known(known or []), "k": k}
            found = verify(layers_of(saved), X, targets, **options, claims=claim, progress=progress)
    give(_VERIFY, found, out, lambda: print_verdicts(found), as_json=as_json)
    if found.failed:
        raise typer.Exit(UNDETERMINED)


def _known(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE as Python values: numbers, true and false, arrays of NPY files, networks of isthmus.save, or words."""
    import numpy as np
    import torch

    values: dict[str, Any] = {}
    for one in given:
        name, equals, text_ = one.partition("=")
        if not equals or not name or not text_:
            raise typer.BadParameter(f"--known must be NAME=VALUE, such as noise=0.1: {one!r}")
        path = Path(text_)
        if path.suffix == ".npy":
            try:
                values[name] = torch.from_numpy(np.load(path, allow_pickle=False))
            except (OSError, ValueError) as error:
                raise typer.BadParameter(f"--known {name}: {path} cannot be read as an array ({error})") from None
        elif path.suffix == ".safetensors":
            values[name] = saved_object(_VERIFY, path)
        elif text_ in ("true", "false"):
            values[name] = text_ == "true"
        else:
            values[name] = _number(text_)
    return values


def _number(text_: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text_)
    return text_


def _print_claims(claims: list[Claim]) -> None:
    rows = table("claim", "in words", "statement", "assumes", "source")
    for one in claims:
        source = f"{one.paper} {one.where}"
        rows.add_row(*map(text, (one.id, one.title, one.statement, "; ".join(one.hypotheses), source)))
    console().print(rows)


def print_verdicts(found: Verdicts) -> None:
    """Show what the claims said: those that apply with both sides, the others by cause, and what it comes to."""
    from isthmus.claims._base import CAUSES
    from isthmus.claims._verify import shortened

    out = console()
    print_result(out, found)
    print_tables(out, found, reading=True)
    for cause, groups in found.silent.items():
        out.print()
        out.print(text(f"{CAUSES[cause]}:", "bold"))
        if cause == "kind":
            out.print(text(f"  {shortened([one for ids in groups.values() for one in ids])}"))
            continue
        for what, ids in groups.items():
            out.print(text(f"  {shortened(ids)}: {what}"))
    if found.closing:
        out.print()
        out.print(text(found.closing, "bold"))


# ---- `isthmus compress`: from a saved network to a smaller file of it, and a certificate of where the two are equal


_COMPRESS = "compress"


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
        saved = saved_object(_COMPRESS, model)
        net, notes = network_in(saved)
        X, X2 = (
            None if path is None else inputs_of(_COMPRESS, path, reading=reading, saved=saved)[0]
            for path in (data, check)
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

    give(_COMPRESS, found, report, show, as_json=as_json)


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
        fail(_COMPRESS, must, f"a {type(saved).__name__}", "Other modules go to isthmus.compress in Python.")
    if saved.rank == 0:
        fail(_COMPRESS, "the discovery must have a rank above 0", f"rank {saved.rank}", "Its outputs are constant.")
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


# ---- `isthmus convert`


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A state_dict saved with torch.save.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The safetensors file to write.")],
    slope: Annotated[float, typer.Option(help="Slope of the activation below 0: 0 ReLU, 1 linear.")] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="Only the tensors, whatever they are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a PyTorch state_dict into a safetensors file that isthmus.load reads."""
    from isthmus.networks._reading import convert_state_dict

    check_paths({"SOURCE": source}, {"TARGET": target})
    done = convert_state_dict(source, target, slope=slope, raw=raw)
    if as_json:
        print_json(
            {
                "source": str(done.source),
                "target": str(done.target),
                "kind": done.kind,
                "layers": list(done.layers),
                "dims": done.dims,
                "parameters": done.parameters,
            }
        )
        return
    what = done.kind if done.dims is None else f"{done.kind} {' → '.join(map(str, done.dims))}"
    console().print(text(f"wrote {done.target}: {what}, {done.parameters} parameters"))
