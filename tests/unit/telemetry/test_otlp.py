"""Where OTLP goes: one setting for spans and metrics, each at its own path."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.telemetry.otlp import Signal, http_endpoint, protocol_of_environment


@pytest.mark.parametrize(
    ("endpoint", "signal", "expected"),
    [
        ("http://c:4318", "traces", "http://c:4318/v1/traces"),
        ("http://c:4318/", "metrics", "http://c:4318/v1/metrics"),
        ("http://c:4318/v1/traces", "traces", "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces", "metrics", "http://c:4318/v1/metrics"),
        ("http://c:4318/v1/metrics", "metrics", "http://c:4318/v1/metrics"),
        ("https://c/otlp/v1/traces/", "metrics", "https://c/otlp/v1/metrics"),
        ("https://c/api/push", "metrics", "https://c/api/push/v1/metrics"),
        ("https://c/api/push", "traces", "https://c/api/push"),
    ],
)
def test_a_signal_has_its_own_path(endpoint: str, signal: Signal, expected: str) -> None:
    assert http_endpoint(endpoint, signal) == expected


def test_a_protocol_that_nobody_speaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert protocol_of_environment("metrics") == "grpc"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert protocol_of_environment("metrics") == "http"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "thrift")
    assert protocol_of_environment("traces") == "http"
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: 'thrift'"):
        protocol_of_environment("metrics")
