"""The command tree and its entry point."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from paceline import __version__
from paceline.cli.bench import bench
from paceline.cli.distill import EPILOG as DISTILL_EPILOG
from paceline.cli.distill import distill
from paceline.cli.generate import generate
from paceline.cli.run import EXIT_ERROR
from paceline.cli.scale import scale
from paceline.cli.status import status
from paceline.cli.top import top
from paceline.cli.trace import trace
from paceline.cli.up import up

app = typer.Typer(
    name="paceline",
    help="Lossless distributed speculative decoding: a drafter guesses, a verifier checks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=DISTILL_EPILOG)(distill)
app.command()(generate)
app.command()(scale)
app.command()(status)
app.command()(top)
app.command()(trace)
app.command()(up)
app.add_typer(bench)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Exits 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C."""
    try:
        try:
            app(prog_name="paceline")
        finally:
            sys.stdout.flush()
    except OSError as error:
        about = error.filename or "standard output"
        sys.stderr.write(f"paceline: error: {about}: {error.strerror or error}\n")
        # what could not be written would be tried again at the end of the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_ERROR) from error
