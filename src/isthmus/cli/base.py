"""What all commands share: the application, exit codes, the options of every verb."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from isthmus import __version__

UNDETERMINED, USAGE, BAD_DATA, BUG, INTERRUPTED = 1, 2, 3, 70, 130

_CODES = "Exit codes: 0 answer · 1 undetermined or fails · 2 usage · 3 bad data · 130 interrupted · 70 a bug."

_SUMMARY = "The bottleneck rank of deep networks: discover, diagnose, compress, verify, reproduce."


class _PlainFlags:
    """A flag takes no value: no type is shown beside it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Those of the command, the help and completion among them."""
        parameters = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A subcommand whose help ends with its examples."""


class _Group(_PlainFlags, TyperGroup):
    pass


app = typer.Typer(
    name="isthmus",
    cls=_Group,
    help=_SUMMARY,
    epilog=f"Example:  isthmus demo\n\n{_CODES}",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"isthmus {__version__}")
        raise typer.Exit


@app.callback(help=_SUMMARY)
def isthmus(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of all commands."""
    # `main` made this dictionary and reads it if something goes wrong.
    context.ensure_object(dict)["debug"] = debug
