"""`isthmus convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.base import AsJson
from isthmus.cli.given import check_paths
from isthmus.cli.screen import console, print_json, text


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
