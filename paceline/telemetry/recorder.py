"""Makes the spans of one session in one service, and gives them to whom they are for."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from paceline.generation import TraceSpan
from paceline.telemetry.level import Level
from paceline.telemetry.span import Attributes, Span, SpanLink, cut, returned
from paceline.telemetry.trace_context import TraceContext

MAX_RETURNED_SPANS = 4096
"""Spans of one session that a service hands back."""


def new_span_id() -> int:
    """Random and not 0; not from `random`, which a program may have seeded."""
    return secrets.randbits(64) or 1


def new_trace_id() -> int:
    """Random and not 0."""
    return secrets.randbits(128) or 1


def wall_ns(at: float | None = None) -> int:
    """Unix time in nanoseconds, now or when `time.monotonic()` was `at`, in the past."""
    now = time.time_ns()
    return now if at is None else now - max(0, int((time.monotonic() - at) * 1e9))


class Recorder:
    """The spans of one session; used by one thread.

    Each span goes to `export`, if the trace is sampled, and into `collected`, if the caller asked
    for spans back.
    """

    def __init__(
        self, service: str, context: TraceContext, export: Callable[[Span], None] | None
    ) -> None:
        self.context = context
        self.collected: list[TraceSpan] = []
        self._service = service
        self._export = export if context.is_sampled else None

    @property
    def level(self) -> Level:
        return self.context.level

    def add(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        *,
        span_id: int = 0,
        error: str = "",
        links: tuple[SpanLink, ...] = (),
        is_request: bool = False,
    ) -> None:
        """Record a finished span: the session's own (`is_request`) or one below it.

        A start after the end, which clocks can make of little, becomes the end.
        """
        context = self.context
        span = Span(
            name,
            context.trace_id,
            span_id or new_span_id(),
            context.parent_id,
            min(start_ns, end_ns),
            end_ns,
            attributes,
            cut(error),
            links,
            is_request,
        )
        if self._export is not None:
            self._export(span)
        if context.returns_spans and len(self.collected) < MAX_RETURNED_SPANS:
            self.collected.append(returned(span, self._service))
