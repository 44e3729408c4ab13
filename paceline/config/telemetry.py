"""What is traced, counted and logged, and where it goes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paceline.config.section import ListenAddress, Section


class TracesConfig(Section):
    """Spans of every request, sent by OTLP. The standard `OTEL_*` variables fill what is unset."""

    level: Literal["off", "request", "block", "token"] = "off"
    """How fine: a request's outline, every draft block and pass, every committed token."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]")
    """Where the collector listens, e.g. `http://jaeger:4317`; unset takes OTEL_EXPORTER_OTLP_*."""
    protocol: Literal["grpc", "http"] | None = None
    """OTLP over gRPC (port 4317) or over HTTP (port 4318); unset takes OTEL_*, else gRPC."""
    sampling_ratio: float | None = Field(default=None, ge=0, le=1)
    """Share of the requests traced where the client has not decided; unset takes
    OTEL_TRACES_SAMPLER, else all."""
    max_token_spans: int = Field(default=512, ge=0, le=100_000)
    """Token spans of an answer; beyond it several tokens share one, and the request's span says how
    many have none of their own."""
    record_text: bool = False
    """Whether spans carry prompt and answer."""


class MetricsConfig(Section):
    """Raw counters and histograms: a Prometheus endpoint per process, OTLP besides."""

    listen: ListenAddress | None = None
    """Where `/metrics` is served, e.g. `127.0.0.1:9464`; unset serves none."""
    port_tries: int = Field(default=1, ge=1, le=1024)
    """How many ports may be tried, from that of `listen` on, until one is free. With Ray, where
    several members share a machine, at least 64."""
    otlp: bool = False
    """Whether metrics go to a collector by OTLP, every OTEL_METRIC_EXPORT_INTERVAL (60 s)."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/]")
    """That collector, if it is another than that of `traces`; its protocol is the same."""


class LogsConfig(Section):
    """Logs on standard error, each line with the trace and session it belongs to."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class TelemetryConfig(Section):
    """See `docs/tracing.md` and `docs/operations.md`."""

    traces: TracesConfig = TracesConfig()
    metrics: MetricsConfig = MetricsConfig()
    logs: LogsConfig = LogsConfig()
