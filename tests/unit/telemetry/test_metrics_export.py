"""The Prometheus endpoint and the exporters: where they listen, how they fail, how they end."""

from __future__ import annotations

import socket
import time
import urllib.error
from collections.abc import Iterator

import pytest
from support.metrics import fetch, receiving

import paceline.telemetry.metrics_export
from paceline.config import MetricsConfig, TelemetryConfig, TracesConfig
from paceline.errors import ConfigError
from paceline.telemetry.instruments import Instruments, one
from paceline.telemetry.metrics_export import EXPORT_TIMEOUT_S, MetricsExport, start_metrics


def config(listen: str | None = "127.0.0.1:0", **metrics: object) -> TelemetryConfig:
    return TelemetryConfig(metrics=MetricsConfig(listen=listen, **metrics))  # type: ignore[arg-type]


def count(export: MetricsExport) -> None:
    Instruments(export.meter, "verifier").counter("things", "{thing}", "Things.", lambda: one(3))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_metrics_that_are_off_open_nothing_and_cost_nothing() -> None:
    export = start_metrics(TelemetryConfig(), service="verifier")
    count(export)
    assert export.address == ""
    export.stop()


def test_the_endpoint_serves_metrics_and_nothing_else() -> None:
    export = start_metrics(config(), service="verifier")
    try:
        count(export)
        text = fetch(export.address)
        assert "# TYPE paceline_verifier_things_total counter" in text
        assert "\npaceline_verifier_things_total 3.0\n" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(export.address, "/")
    finally:
        export.stop()


def test_two_exports_in_one_process_do_not_meet() -> None:
    first, second = (start_metrics(config(), service=name) for name in ("a", "b"))
    try:
        count(first)
        assert "things" in fetch(first.address)
        assert "things" not in fetch(second.address)
    finally:
        first.stop()
        second.stop()


def test_a_stop_frees_the_port() -> None:
    export = start_metrics(config(), service="verifier")
    address = export.address
    export.stop()
    with pytest.raises(urllib.error.URLError):
        fetch(address)
    start_metrics(config(address), service="verifier").stop()


def test_a_taken_port_is_an_error_that_names_the_setting(taken: int) -> None:
    with pytest.raises(ConfigError) as caught:
        start_metrics(config(f"127.0.0.1:{taken}"), service="verifier")
    message = str(caught.value)
    assert message.startswith(f"telemetry.metrics.listen: cannot bind 127.0.0.1:{taken}: ")
    assert "in use" in message


def test_an_unknown_host_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"^telemetry\.metrics\.listen: cannot bind nowhere\."):
        start_metrics(config("nowhere.invalid:9464"), service="verifier")


def test_members_of_one_machine_take_the_next_free_port() -> None:
    first = start_metrics(config(), service="verifier")
    port = int(first.address.rpartition(":")[2])
    second = start_metrics(config(first.address, port_tries=64), service="drafter")
    try:
        assert port < int(second.address.rpartition(":")[2]) < port + 64
    finally:
        first.stop()
        second.stop()


def test_an_ipv6_address_is_written_in_brackets() -> None:
    export = start_metrics(config("[::1]:0"), service="verifier")
    try:
        assert export.address.startswith("[::1]:")
        fetch(export.address)
    finally:
        export.stop()


def test_a_stop_sends_the_last_metrics_by_otlp() -> None:
    with receiving() as receiver:
        export = start_metrics(
            config(None, otlp=True, endpoint=f"http://{receiver.address}"), service="verifier"
        )
        count(export)
        export.stop()
        metric = receiver.last("paceline-verifier")["paceline.verifier.things"]
    assert metric.unit == "{thing}"
    assert metric.sum.is_monotonic
    (point,) = metric.sum.data_points
    assert point.as_int == 3


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("answers", [False, True])
def test_a_collector_that_is_not_there_or_says_nothing_holds_up_no_stop(
    protocol: str, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J05. It is closed, or a socket that takes connections and never answers."""
    monkeypatch.setattr(paceline.telemetry.metrics_export, "STOP_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1] if answers else 1}"
        export = start_metrics(
            TelemetryConfig(
                traces=TracesConfig(endpoint=endpoint, protocol=protocol),  # type: ignore[arg-type]
                metrics=MetricsConfig(otlp=True),
            ),
            service="verifier",
        )
        count(export)
        started = time.monotonic()
        export.stop()
        assert time.monotonic() - started < EXPORT_TIMEOUT_S
