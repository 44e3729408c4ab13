"""A progress bar on standard error, where that is a terminal; silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance: TypeAlias = Callable[[str], None]
"""Called after each step with what comes next."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """A bar of `total` steps."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(title, total=total)

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=f"{title}: {what}")

        yield advance
