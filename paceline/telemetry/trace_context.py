"""The context that travels with a request: W3C trace context, and what is asked of workers.

https://www.w3.org/TR/trace-context/ says how `traceparent` is written and read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.telemetry.level import Level

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
LEVEL = "paceline-level"
RETURN = "paceline-return-spans"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a span belongs: its trace, the span above it, and what is made of it.

    `is_sampled`: the spans go to the collector. `returns_spans`: they go back to the caller.
    """

    trace_id: int
    parent_id: int
    is_sampled: bool
    state: str = ""
    level: Level = Level.OFF
    returns_spans: bool = False

    def carrier(self) -> dict[str, str]:
        """The context as it travels in `OpenSession`."""
        flags = _SAMPLED if self.is_sampled else 0
        carrier = {
            TRACEPARENT: f"00-{self.trace_id:032x}-{self.parent_id:016x}-{flags:02x}",
            LEVEL: self.level.name.lower(),
        }
        if self.state:
            carrier[TRACESTATE] = self.state
        if self.returns_spans:
            carrier[RETURN] = "1"
        return carrier


def parse_context(carrier: Mapping[str, str]) -> TraceContext | None:
    """The context of a carrier; None without a valid `traceparent`, as W3C has it."""
    match = _TRACEPARENT.fullmatch(carrier.get(TRACEPARENT, "").strip())
    if match is None:
        return None
    version, trace_id, parent_id, flags, rest = match.groups()
    has_future_fields = rest is not None
    if version == "ff" or (version == "00" and has_future_fields):
        return None
    if not int(trace_id, 16) or not int(parent_id, 16):
        return None
    level = carrier.get(LEVEL, "off").upper()
    return TraceContext(
        trace_id=int(trace_id, 16),
        parent_id=int(parent_id, 16),
        is_sampled=bool(int(flags, 16) & _SAMPLED),
        state=carrier.get(TRACESTATE, ""),
        level=Level[level] if level in Level.__members__ else Level.OFF,
        returns_spans=carrier.get(RETURN) == "1",
    )
