"""A timeline as lines of text: lanes of block characters over a time axis, and their sums."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from paceline.cli.paint import STYLES
from paceline.timeline import Lane, Mark, Outside, Timeline

MIN_WIDTH = 40
MAX_STACK = 6
"""Tokens that one column shows; a last one tells by "+" that there are more."""

LANE_STYLES = {
    "prefill drafter": "blue",
    "prefill verifier": "blue",
    "draft": "green",
    "waste": "red",
    "wire": "magenta",
    "queue": "bright_black",
    "verify": "cyan",
    "lost": "bold red",
}
LETTERS = {"prefill": "P", "accepted": "a", "recovered": "r", "bonus": "b", "autoregressive": "."}
SHARED = "*"
"""The letter of tokens that share a mark."""

_HEIGHTS = " ▁▂▃▄▅▆▇█"
_MARGIN = 18
"""Columns before the first of the time, the border among them."""


def drawing(timeline: Timeline, width: int) -> RenderableType:
    """The whole drawing, `width` columns wide.

    Each column is an equal part of the time. The height of a block says how much of it the lane was
    busy; what was busy at all shows at least the lowest.
    """
    columns = max(width, MIN_WIDTH) - _MARGIN
    lines = [*_lane_lines(timeline, columns), *_token_lines(timeline, columns)]
    parts: list[RenderableType] = [*lines, *_axis(timeline, columns), Text()]
    if timeline.marks:
        parts += [_letters(timeline), Text()]
    parts += [_sums(timeline), Text()]
    if timeline.marks:
        parts.append(Text(split_line(timeline), overflow="fold"))
    parts += [Text(note, style="yellow", overflow="fold") for note in notes(timeline)]
    return Group(*parts)


def split_line(timeline: Timeline) -> str:
    """Where the mean latency of a token went."""
    split = timeline.split
    parts = " + ".join(f"{part} {ms:.2f}" for part, ms in split.items())
    return f"mean token latency {split.total:.2f} ms = {parts}"


def notes(timeline: Timeline) -> Iterator[str]:
    """What one must know to read the drawing right."""
    outside = timeline.outside
    if outside.num_spans:
        yield _outside(outside)
    if timeline.num_left_out:
        yield (
            f"{timeline.num_left_out} spans were left out by the services: "
            "lanes may have gaps, and tokens share marks"
        )


def summed(lane: Lane, timeline: Timeline) -> tuple[str, str, str, str, str]:
    """Name, bars, tokens, total ms and share of the time of a lane, as text."""
    covered_ms = lane.covered_ms(timeline.start_ms, timeline.end_ms)
    share = covered_ms / timeline.duration_ms if timeline.duration_ms > 0 else 0.0
    tokens = str(lane.num_tokens) if lane.num_tokens else ""
    return lane.name, str(len(lane.bars)), tokens, f"{lane.total_ms:.1f}", f"{share:.0%}"


def ticks(start_ms: float, end_ms: float, most: int) -> list[float]:
    """Round times in a stretch, at most `most` and one more, each 1, 2 or 5 × 10ⁿ apart."""
    if end_ms <= start_ms:
        return [start_ms]
    least = (end_ms - start_ms) / max(1, most)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)
    first, last = math.ceil(start_ms / step - 1e-9), math.floor(end_ms / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _outside(outside: Outside) -> str:
    parts = []
    if outside.before_ms > 0.0:
        parts.append(f"up to {outside.before_ms:.1f} ms before its start")
    if outside.after_ms > 0.0:
        parts.append(f"up to {outside.after_ms:.1f} ms after its end")
    reason = "the machines' clocks differ"
    if outside.before_ms == 0.0:
        reason += ", or a worker went on after the answer"
    one = outside.num_spans == 1
    subject = "1 span lies" if one else f"{outside.num_spans} spans lie"
    cut = "was cut" if one else "were cut"
    return f"{subject} outside the request, {' and '.join(parts)}, and {cut}: {reason}"


def _lane_lines(timeline: Timeline, columns: int) -> Iterator[Text]:
    for lane in timeline.lanes:
        cells = Text(_blocks(lane, timeline, columns), style=LANE_STYLES[lane.name])
        yield _line(lane.name, cells)


def _blocks(lane: Lane, timeline: Timeline, columns: int) -> str:
    """One character a column."""
    busy, begun = [0.0] * columns, [0] * columns
    per_column = timeline.duration_ms / columns or 1.0
    reached = 0.0
    for bar in lane.bars:  # in order of start: what overlaps with those before counts once
        start = (bar.start_ms - timeline.start_ms) / per_column
        end = (bar.end_ms - timeline.start_ms) / per_column
        begun[min(int(start), columns - 1)] = 1  # however short it is, it is seen
        start, reached = max(start, reached), max(end, reached)
        for column in range(int(start), min(math.ceil(end), columns)):
            busy[column] += min(end, column + 1) - max(start, column)
    levels = (min(8, math.ceil(part * 8 - 1e-6)) for part in busy)
    return "".join(_HEIGHTS[max(pair)] for pair in zip(levels, begun, strict=True))


def _token_lines(timeline: Timeline, columns: int) -> Iterator[Text]:
    """Tokens by their origin's letter, those of one column below each other."""
    stacks: list[list[str]] = [[] for _ in range(columns)]
    for mark in timeline.marks:
        column = min(_column(mark.at_ms, timeline, columns), columns - 1)
        stacks[column] += [mark.origin] * mark.num_tokens
    height = min(MAX_STACK, max(map(len, stacks)))
    for row in range(height):
        cells = Text()
        for stack in stacks:
            if row == MAX_STACK - 1 and len(stack) > MAX_STACK:
                cells.append("+")
            elif row < len(stack):
                cells.append(LETTERS.get(stack[row], SHARED), _style(stack[row]))
            else:
                cells.append(" ")
        yield _line("tokens" if row == 0 else "", cells)


def _column(at_ms: float, timeline: Timeline, columns: int) -> int:
    duration_ms = timeline.duration_ms
    return int((at_ms - timeline.start_ms) / duration_ms * columns) if duration_ms > 0 else 0


def _style(origin: str) -> Style:
    return STYLES.get(origin, Style.null())


def _line(name: str, cells: Text) -> Text:
    cells.rstrip()
    return Text.assemble((f"{name:<{_MARGIN - 2}} ", "bold"), "│", cells, no_wrap=True)


def _axis(timeline: Timeline, columns: int) -> Iterator[Text]:
    marks, labels = ["─"] * columns, [" "] * columns
    free = 0
    for tick in ticks(timeline.start_ms, timeline.end_ms, columns // 10):
        column = min(_column(tick, timeline, columns), columns - 1)
        label = f"{tick:.10g}"
        place = min(column, columns - len(label))
        marks[column] = "┬"
        if place >= free:
            labels[place : place + len(label)] = label
            free = place + len(label) + 1
    yield Text(f"{'':<{_MARGIN - 1}}└{''.join(marks)}", no_wrap=True)
    yield Text(f"{'ms':>{_MARGIN - 2}}  {''.join(labels)}".rstrip(), no_wrap=True)


def _letters(timeline: Timeline) -> Text:
    """How many tokens of each origin, which is what the letters mean too."""
    counts = _counts(timeline.marks)
    text = Text(f"{timeline.num_tokens} tokens", overflow="fold")
    for origin in (*LETTERS, ""):
        if counts[origin]:
            text.append(" · ")
            text.append(LETTERS.get(origin, SHARED), _style(origin))
            text.append(f" {origin or 'sharing a mark'} {counts[origin]}")
    return text


def _counts(marks: Sequence[Mark]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for mark in marks:
        counts[mark.origin] += mark.num_tokens
    return counts


def _sums(timeline: Timeline) -> Table:
    table = Table("lane", box=None, pad_edge=False)
    for header in ("bars", "tokens", "total ms", "of the time"):
        table.add_column(header, justify="right")
    for lane in timeline.lanes:
        table.add_row(*summed(lane, timeline))
    return table
