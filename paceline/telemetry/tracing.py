"""Tracing of one service: which requests, how finely, and where their spans go.

A value that the service's parts are given; nothing here is global, since several services may
share a process.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.config import TracesConfig
from paceline.telemetry.level import Level
from paceline.telemetry.recorder import Recorder, new_trace_id
from paceline.telemetry.span import Span
from paceline.telemetry.trace_context import TraceContext, parse_context

FLUSH_S = 3.0
"""How long a stop waits for the collector."""


class Exports(Protocol):
    """Where spans go, and which."""

    def samples(self, parent: TraceContext | None, trace_id: int) -> bool:
        """Whether a new request's spans are for it."""
        ...

    def export(self, span: Span) -> None:
        """Take a span. Never blocks; any thread."""
        ...

    def stop(self, timeout_s: float) -> None:
        """Send what is queued for at most `timeout_s`. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Tracing:
    """How a service traces. `exports` None: spans go to nobody but a caller who asks for them."""

    service: str
    level: Level = Level.OFF
    max_token_spans: int = 512
    record_text: bool = False
    exports: Exports | None = None

    def request(self, carrier: Mapping[str, str], *, returns_spans: bool) -> TraceContext | None:
        """The context of a new request whose caller sent `carrier`; None: it is not traced.

        Its `parent_id` is the caller's span, 0 without one.
        """
        if self.exports is None and not returns_spans:
            return None
        parent = parse_context(carrier)
        trace_id = new_trace_id() if parent is None else parent.trace_id
        is_sampled = self.exports is not None and self.exports.samples(parent, trace_id)
        if not is_sampled and not returns_spans:
            return None
        context = parent or TraceContext(trace_id, parent_id=0, is_sampled=False)
        return replace(
            context,
            is_sampled=is_sampled,
            # who asks for spans wants to see what there is
            level=Level.TOKEN if returns_spans else self.level,
            returns_spans=returns_spans,
        )

    def recorder(self, context: TraceContext) -> Recorder:
        """What makes the spans of a session."""
        export = None if self.exports is None else self.exports.export
        return Recorder(self.service, context, export)

    async def stop(self) -> None:
        """Send what is queued, for at most `FLUSH_S`."""
        if self.exports is not None:
            await asyncio.to_thread(self.exports.stop, FLUSH_S)


def start_tracing(config: TracesConfig, role: str) -> Tracing:
    """Tracing of the service `role` as configured. Raises `ConfigError`.

    `OTEL_SDK_DISABLED` switches it off whatever the configuration says.
    """
    service = f"paceline-{role}"
    level = Level.named(config.level)
    tracing = Tracing(service, level, config.max_token_spans, config.record_text)
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if level is Level.OFF or disabled:
        return tracing
    from paceline.telemetry.span_export import SpanExports  # noqa: PLC0415  (the SDK, if at all)

    exports = SpanExports(config, service=service, instance_id=str(uuid.uuid4()))
    return replace(tracing, exports=exports)
