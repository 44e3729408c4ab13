"""From spans as values to a collector: OpenTelemetry's SDK, its queue and its exporters.

The only file that knows the SDK; nothing imports it while tracing is off. The standard `OTEL_*`
variables hold for what the configuration leaves open (`docs/tracing.md` lists them).
"""

from __future__ import annotations

import logging
import os
import threading
import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from paceline.config import TracesConfig
from paceline.telemetry.otlp import http_endpoint, protocol_of_environment
from paceline.telemetry.span import Span
from paceline.telemetry.trace_context import TraceContext

_LOGGER = logging.getLogger(__name__)

SCOPE = "paceline"
QUEUE_SIZE = 8192
"""Spans that wait at most; the oldest give way."""
EXPORT_EVERY_MS = 1000
WARN_EVERY_S = 60.0
ABORT_S = 0.5
"""How long an export that is told to end may take to do so."""

_NOISY_LOGGERS = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)


class SpanExports:
    """One service's way to the collector. `export` never blocks; a thread of its own sends."""

    def __init__(self, config: TracesConfig, *, service: str, instance_id: str) -> None:
        """Starts the sending thread, as the SDK has it. Raises `ConfigError`."""
        limit_warnings()
        environment = OTELResourceDetector().detect().attributes
        own = {"service.name": service, "service.instance.id": instance_id}
        self._resource = Resource.create({**own, **environment})
        ratio = config.sampling_ratio
        # without a sampler the SDK's provider takes OTEL_TRACES_SAMPLER
        sampler = None if ratio is None else ParentBasedTraceIdRatio(ratio)
        provider = TracerProvider(sampler=sampler, resource=self._resource, shutdown_on_exit=False)
        self._sampler = provider.sampler
        self._scope = InstrumentationScope(SCOPE)
        self._exporter = _exporter(config)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=_unless_set("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SIZE),
            schedule_delay_millis=_unless_set("OTEL_BSP_SCHEDULE_DELAY", EXPORT_EVERY_MS),
        )

    def samples(self, parent: TraceContext | None, trace_id: int) -> bool:
        """Whether a request's spans go to the collector: as its caller decided, or by the ratio."""
        context = None
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
            # not its state: no sampler here reads it, and a malformed one would be logged
            above = SpanContext(trace_id, parent.parent_id, True, flags)
            context = set_span_in_context(NonRecordingSpan(above))
        decision = self._sampler.should_sample(context, trace_id, "generate", SpanKind.SERVER)
        return bool(decision.decision.is_sampled())

    def export(self, span: Span) -> None:
        """Queue a span. Any thread."""
        self._processor.on_end(self._readable(span))

    def _readable(self, span: Span) -> ReadableSpan:
        flags = TraceFlags(TraceFlags.SAMPLED)
        context = SpanContext(span.trace_id, span.span_id, False, flags)
        parent = None
        if span.parent_id:
            parent = SpanContext(span.trace_id, span.parent_id, span.is_request, flags)
        status = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET)
        return ReadableSpan(
            span.name,
            context,
            parent,
            self._resource,
            span.attributes,
            links=[
                Link(SpanContext(link.trace_id, link.span_id, False, flags)) for link in span.links
            ],
            kind=SpanKind.SERVER if span.is_request else SpanKind.INTERNAL,
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def stop(self, timeout_s: float) -> None:
        """Send what is queued for at most `timeout_s`, then give up what is left. Blocks."""
        # the SDK's own shutdown waits half a minute, and longer where a call hangs
        flushing = threading.Thread(
            target=self._processor.shutdown, name="paceline-trace-flush", daemon=True
        )
        flushing.start()
        flushing.join(timeout_s)
        if flushing.is_alive():
            _LOGGER.warning("spans were lost: the collector did not take them in %g s", timeout_s)
            threading.Thread(target=self._exporter.shutdown, daemon=True).start()
            flushing.join(ABORT_S)


def _unless_set(variable: str, default: int) -> int | None:
    """None where the variable speaks: the SDK reads it."""
    return None if os.environ.get(variable) else default


def _exporter(config: TracesConfig) -> SpanExporter:
    protocol = config.protocol or protocol_of_environment("traces")
    endpoint = config.endpoint
    if protocol == "grpc":
        return GrpcExporter(endpoint=endpoint)
    return HttpExporter(endpoint=None if endpoint is None else http_endpoint(endpoint, "traces"))


class OncePerInterval(logging.Filter):
    """Lets one record of each kind through in `interval_s`: a collector that is down is one
    problem and not one a batch."""

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._last: dict[tuple[str, object], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.name, record.msg)
        now = time.monotonic()
        if now - self._last.get(kind, float("-inf")) < self._interval_s:
            return False
        self._last[kind] = now
        return True


def limit_warnings() -> None:
    """Limit what the SDK and its exporters log. Idempotent."""
    for name in _NOISY_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, OncePerInterval) for known in logger.filters):
            logger.addFilter(OncePerInterval(WARN_EVERY_S))
