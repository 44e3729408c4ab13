"""How every command runs: one event loop, one line an error, and Ctrl-C that cleans up."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

from paceline.cli.caller_context import caller_context
from paceline.errors import PacelineError

T = TypeVar("T")

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


@contextmanager
def exits() -> Iterator[None]:
    """Turn failures into exit codes: 1 with `paceline: error: CODE: message`, 130 for Ctrl-C."""
    try:
        yield
    except PacelineError as error:
        message = " ".join(str(error).split())
        sys.stderr.write(f"paceline: error: {error.code}: {message}\n")
        raise typer.Exit(EXIT_ERROR) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from interrupt


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; on Ctrl-C it is cancelled first, so that its calls are too.

    Its calls belong to the trace that the environment names (`TRACEPARENT`), if any.
    """
    with exits(), caller_context(os.environ):
        return asyncio.run(work)
