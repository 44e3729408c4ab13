"""How far a stage is: a bar on a terminal; elsewhere lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars


class Bar:
    """One stage's progress, shown or not."""

    def __init__(self, bars: Bars | None, task: TaskID | None) -> None:
        self._bars = bars
        self._task = task

    def advance(self, number: int = 1) -> None:
        """So many more are done."""
        if self._bars is not None and self._task is not None and number:
            self._bars.advance(self._task, number)

    def note(self, text: str) -> None:
        """Show a figure beside the bar."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, note=text)


class Progress:
    """Reports to a stream, standard error as a rule; bars only where it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream, highlight=False)

    @contextmanager
    def bar(self, stage: str, total: int, unit: str) -> Iterator[Bar]:
        """A stage of `total` units."""
        started = time.monotonic()
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(unit),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            with Bars(*columns, console=self._console, transient=True) as bars:
                yield Bar(bars, bars.add_task(stage, total=total, note=""))
        else:
            yield Bar(None, None)
        self.say(f"{stage}: {total} {unit}, {time.monotonic() - started:.0f} s")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._console.is_terminal:
            self._console.print(line, markup=False)
        else:
            self._stream.write(line + "\n")
            self._stream.flush()
