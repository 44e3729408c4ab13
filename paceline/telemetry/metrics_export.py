"""How metrics leave a process: a Prometheus endpoint, OTLP, both or neither."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from paceline.config import TelemetryConfig
from paceline.telemetry.endpoint import MetricsEndpoint
from paceline.telemetry.otlp import http_endpoint, protocol_of_environment

logger = logging.getLogger(__name__)

METER = "paceline"
STOP_TIMEOUT_S = 2.0
"""How long the last export may take: a collector that does not answer holds up no stop."""
EXPORT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class MetricsExport:
    """Running exporters. `meter` makes the instruments that they show."""

    meter: Meter = field(default_factory=lambda: NoOpMeter(METER))
    address: str = ""
    """`HOST:PORT` of the Prometheus endpoint, with the real port; empty without one."""
    end: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Export what is left, for at most `STOP_TIMEOUT_S`, and close. Blocks."""
        self.end()


def start_metrics(config: TelemetryConfig, *, service: str) -> MetricsExport:
    """Begin to export; blocks for name look-ups.

    Nothing is global: services that share a process have one each. Raises `ConfigError` naming
    the setting.
    """
    metrics = config.metrics
    if metrics.listen is None and not metrics.otlp:
        return MetricsExport()
    registry = CollectorRegistry()
    readers: list[MetricReader] = []
    endpoint: MetricsEndpoint | None = None
    if metrics.listen is not None:
        endpoint = MetricsEndpoint.open(metrics, registry)
        readers.append(
            PrometheusMetricReader(
                disable_target_info=True, scope_info_enabled=False, registry=registry
            )
        )
    try:
        if metrics.otlp:
            readers.append(PeriodicExportingMetricReader(_otlp_exporter(config)))
    except BaseException:
        if endpoint is not None:
            endpoint.close()
        raise
    provider = MeterProvider(
        metric_readers=readers,
        resource=Resource.create({"service.name": f"paceline-{service}"}),
        # an exemplar would look for a span at every value
        exemplar_filter=AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )

    def end() -> None:
        if endpoint is not None:
            endpoint.close()
        provider.shutdown(timeout_millis=STOP_TIMEOUT_S * 1e3)

    address = "" if endpoint is None else endpoint.address
    if address:
        logger.info("metrics at http://%s/metrics", address)
    return MetricsExport(provider.get_meter(METER), address, end)


def _otlp_exporter(config: TelemetryConfig) -> MetricExporter:
    """What is unset is filled by the standard OTEL_* variables, which the exporters read."""
    endpoint = config.metrics.endpoint or config.traces.endpoint
    # imported here: most processes need not spend the time
    if (config.traces.protocol or protocol_of_environment("metrics")) == "http":
        from opentelemetry.exporter.otlp.proto.http import metric_exporter as http  # noqa: PLC0415

        url = None if endpoint is None else http_endpoint(endpoint, "metrics")
        return http.OTLPMetricExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S)
    from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc  # noqa: PLC0415

    return grpc.OTLPMetricExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
