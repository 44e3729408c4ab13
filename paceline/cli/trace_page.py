"""A timeline as a picture: an SVG that stands alone, and an HTML page around it.

Neither has scripts or asks the network for anything. Colours follow the reader's light or dark.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from paceline.cli.trace_text import notes, split_line, summed, ticks
from paceline.client_values import Token
from paceline.timeline import Bar, Lane, Mark, Timeline

_WIDTH, _LEFT, _RIGHT = 1200, 130, 20
_LANE, _BAR, _AXIS = 26, 18, 30
_TOKEN_W, _TOKEN_H = 3, 5

# XML has no place for these, not even as references.
_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_LIGHT = """
  --ground: #ffffff; --ink: #1f2328; --grid: #d8dee4; --faint: #6e7781;
  --prefill: #4078c0; --draft: #2da44e; --waste: #cf222e; --wire: #a475f9; --queue: #8c959f;
  --verify: #1b8a9e; --lost: #82071e;
  --accepted: #2da44e; --recovered: #bf8700; --bonus: #1b8a9e; --other: #57606a;"""
_DARK = """
  --ground: #0d1117; --ink: #e6edf3; --grid: #30363d; --faint: #8b949e;
  --prefill: #6cb6ff; --draft: #3fb950; --waste: #f85149; --wire: #bc8cff; --queue: #6e7681;
  --verify: #39c5cf; --lost: #ff7b72;
  --accepted: #3fb950; --recovered: #e3b341; --bonus: #39c5cf; --other: #adbac7;"""
_ORIGINS = ("accepted", "recovered", "bonus")
_KINDS = ("prefill", "draft", "waste", "wire", "queue", "verify", "lost")


def _style(root: str) -> str:
    """The sheet of a document whose root element is `root`."""
    fills = "\n".join(f".{name} {{ fill: var(--{name}); }}" for name in (*_KINDS, *_ORIGINS))
    return f"""
{root} {{ color-scheme: light dark;{_LIGHT} }}
@media (prefers-color-scheme: dark) {{ {root} {{{_DARK} }} }}
svg {{ background: var(--ground); font: 13px system-ui, sans-serif; }}
svg text {{ fill: var(--ink); }} svg .tick {{ fill: var(--faint); font-size: 11px; }}
svg line {{ stroke: var(--grid); }}
rect {{ fill: var(--other); stroke: var(--ground); stroke-width: 0.5; }}
rect:hover {{ stroke: var(--ink); stroke-width: 1.5; }}
{fills}
"""


def svg(timeline: Timeline, *, title: str, styled: bool = True) -> str:
    """One `rect` a bar and a token, each with its own words as a tooltip.

    Without `styled` the page around it must have the style.
    """
    stacks = _stacks(timeline.marks)
    deepest = max((row + 1 for _, row in stacks), default=0)
    tokens_top = _AXIS + _LANE * len(timeline.lanes)
    bottom = tokens_top + max(_LANE, deepest * _TOKEN_H + 8)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 4}" '
        f'role="img" aria-label="{_escaped(title)}">'
    ]
    if styled:
        parts.append(f"<style>{_style('svg')}</style>")
    parts += [f"<title>{_escaped(title)}</title>", *_grid(timeline, bottom)]
    for row, lane in enumerate(timeline.lanes):
        top = _AXIS + _LANE * row
        parts += [_label(lane.name, top), *_lane(lane, timeline, top)]
    if timeline.marks:
        parts.append(_label("tokens", tokens_top))
        parts += [_token(mark, timeline, tokens_top + row * _TOKEN_H) for mark, row in stacks]
    return "\n".join([*parts, "</svg>", ""])


def page(timeline: Timeline, *, title: str, tokens: Sequence[Token] = ()) -> str:
    """The picture, the answer coloured by origin, and the sums, as one HTML file."""
    rows = "".join(
        f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in summed(lane, timeline))}</tr>\n"
        for lane in timeline.lanes
    )
    said = "".join(f"<p>{_escaped(note)}</p>\n" for note in notes(timeline))
    answer = "".join(
        f'<span class="{_origin(token.origin)}" title="{_escaped(token.origin)}">'
        f"{_escaped(token.text)}</span>"
        for token in tokens
        if token.text
    )
    split = f"<p>{_escaped(split_line(timeline))}</p>" if timeline.marks else ""
    inks = "\n".join(f"pre .{name} {{ color: var(--{name}); }}" for name in _ORIGINS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{_escaped(title)}</title>
<style>{_style(":root")}
body {{ background: var(--ground); color: var(--ink); font: 15px system-ui, sans-serif;
  margin: 1.5em auto; max-width: 1280px; padding: 0 1em; }}
svg {{ width: 100%; height: auto; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
td, th {{ padding: 0.1em 1em 0.1em 0; text-align: right; font-variant-numeric: tabular-nums; }}
td:first-child, th:first-child {{ text-align: left; }}
{inks}
</style>
</head>
<body>
<h1>{_escaped(title)}</h1>
{said}{svg(timeline, title=title, styled=False)}
{split}
<table>
<tr><th>lane</th><th>bars</th><th>tokens</th><th>total ms</th><th>of the time</th></tr>
{rows}</table>
<pre>{answer}</pre>
</body>
</html>
"""


def _grid(timeline: Timeline, bottom: int) -> list[str]:
    parts = []
    for tick in ticks(timeline.start_ms, timeline.end_ms, 12):
        x = _x(tick, timeline)
        parts += [
            f'<line x1="{x:.2f}" y1="{_AXIS - 6}" x2="{x:.2f}" y2="{bottom}"/>',
            f'<text class="tick" x="{x:.2f}" y="{_AXIS - 12}" text-anchor="middle">'
            f"{tick:.10g} ms</text>",
        ]
    return parts


def _label(name: str, top: int) -> str:
    return f'<text x="8" y="{top + 13}">{_escaped(name)}</text>'


def _lane(lane: Lane, timeline: Timeline, top: int) -> list[str]:
    kind = lane.name.split()[0]
    return [_rect(bar, timeline, top, kind) for bar in lane.bars]


def _rect(bar: Bar, timeline: Timeline, top: int, kind: str) -> str:
    x, end = _x(bar.start_ms, timeline), _x(bar.end_ms, timeline)
    words = f"{bar.detail}\n{bar.duration_ms:.2f} ms, from {bar.start_ms:.2f} ms"
    return _titled(
        f'class="{kind}" x="{x:.2f}" y="{top}" width="{max(1.0, end - x):.2f}" height="{_BAR}"',
        words,
    )


def _token(mark: Mark, timeline: Timeline, top: int) -> str:
    x = _x(mark.at_ms, timeline) - _TOKEN_W / 2
    words = f"{mark.detail}\ndelivered at {mark.at_ms:.2f} ms"
    kind = _origin(mark.origin)
    return _titled(
        f'class="{kind}" x="{x:.2f}" y="{top}" width="{_TOKEN_W}" height="{_TOKEN_H}"', words
    )


def _titled(attributes: str, words: str) -> str:
    return f"<rect {attributes}><title>{_escaped(words)}</title></rect>"


def _stacks(marks: Sequence[Mark]) -> list[tuple[Mark, int]]:
    """Each mark and its row: tokens that came together stand below each other."""
    found: list[tuple[Mark, int]] = []
    for mark in marks:
        together = found and found[-1][0].at_ms == mark.at_ms
        found.append((mark, found[-1][1] + 1 if together else 0))
    return found


def _x(at_ms: float, timeline: Timeline) -> float:
    share = (at_ms - timeline.start_ms) / (timeline.duration_ms or 1.0)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _origin(origin: str) -> str:
    return origin if origin in _ORIGINS else "other"


def _escaped(text: str) -> str:
    return html.escape(_FORBIDDEN.sub("\ufffd", text))
