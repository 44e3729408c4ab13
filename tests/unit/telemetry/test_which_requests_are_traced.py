"""Which requests are traced, how finely, and what the environment has to say."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from paceline.config import TracesConfig
from paceline.errors import ConfigError
from paceline.telemetry import span_export as export
from paceline.telemetry.level import Level
from paceline.telemetry.recorder import MAX_RETURNED_SPANS, Recorder
from paceline.telemetry.span import MAX_TEXT, Span
from paceline.telemetry.span_export import OncePerInterval, SpanExports, limit_warnings
from paceline.telemetry.trace_context import TraceContext
from paceline.telemetry.tracing import Tracing, start_tracing

CALLER = {"traceparent": f"00-{1:032x}-{2:016x}-01"}
UNSAMPLED = {"traceparent": f"00-{1:032x}-{2:016x}-00"}
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's environment says."""
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def started() -> Iterator[Any]:
    """Starts tracing; what was started is stopped, unsent."""
    exports: list[Any] = []

    def start(**traces: Any) -> Tracing:
        config = TracesConfig(**{"level": "block", "endpoint": NOWHERE, **traces})
        tracing = start_tracing(config, "verifier")
        exports.append(tracing.exports)
        return tracing

    yield start
    for one in exports:
        if one is not None:
            one.stop(0.0)


def test_nothing_is_traced_while_it_is_off() -> None:
    tracing = start_tracing(TracesConfig(), "verifier")
    assert tracing.request(CALLER, returns_spans=False) is None


def test_a_request_that_asks_for_its_spans_is_traced_at_the_finest_level_and_not_exported() -> None:
    context = start_tracing(TracesConfig(), "verifier").request(CALLER, returns_spans=True)
    assert context is not None
    assert context.level is Level.TOKEN
    assert not context.is_sampled
    assert (context.trace_id, context.parent_id) == (1, 2)


def test_the_sdk_is_not_even_imported_while_tracing_is_off() -> None:
    program = (
        "import sys, paceline.client, verifier_service.traces, drafter_service.traces\n"
        "from paceline.config import TracesConfig\n"
        "from paceline.telemetry.tracing import start_tracing\n"
        "start_tracing(TracesConfig(), 'verifier')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.')"
        " and name.split('.')[1] in ('sdk', 'exporter')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("ratio", "decided"), [(0.0, False), (1.0, True)])
def test_the_ratio_decides_where_the_caller_did_not(
    started: Any, ratio: float, decided: bool
) -> None:
    tracing = started(sampling_ratio=ratio)
    new = tracing.request({}, returns_spans=False)
    assert (new is not None) is decided
    assert tracing.request(CALLER, returns_spans=False) is not None
    assert tracing.request(UNSAMPLED, returns_spans=False) is None
    if new is not None:
        assert new.parent_id == 0


def test_a_ratio_samples_about_so_many(started: Any) -> None:
    tracing = started(sampling_ratio=0.25)
    sampled = sum(tracing.request({}, returns_spans=False) is not None for _ in range(2000))
    assert 400 < sampled < 600


def test_the_standard_sampler_variable_holds_where_no_ratio_is_set(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    assert started().request({}, returns_spans=False) is None
    assert started(sampling_ratio=1.0).request({}, returns_spans=False) is not None


def test_the_sdk_may_be_disabled_by_its_variable(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert started().exports is None


def test_the_environment_names_the_service_and_adds_to_it(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    resource = started().exports._resource.attributes
    assert resource["service.name"] == "mine"
    assert resource["deployment.environment.name"] == "lab"
    monkeypatch.delenv("OTEL_SERVICE_NAME")
    resource = started().exports._resource.attributes
    assert resource["service.name"] == "paceline-verifier"
    assert resource["service.instance.id"]


@pytest.mark.parametrize(
    ("endpoint", "sent_to"),
    [
        ("http://jaeger:4318", "http://jaeger:4318/v1/traces"),
        ("http://jaeger:4318/", "http://jaeger:4318/v1/traces"),
        ("http://proxy/otlp/v1/traces", "http://proxy/otlp/v1/traces"),
    ],
)
def test_the_path_of_an_http_collector_is_added_where_none_is_given(
    started: Any, endpoint: str, sent_to: str
) -> None:
    exporter = started(endpoint=endpoint, protocol="http").exports._exporter
    assert exporter._endpoint == sent_to


def test_the_protocol_may_come_from_the_environment_and_a_wrong_one_is_named(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert isinstance(started().exports._exporter, export.HttpExporter)
    assert isinstance(started(protocol="grpc").exports._exporter, export.GrpcExporter)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        started()


@pytest.mark.parametrize("endpoint", ["jaeger:4317", "ftp://jaeger", "http://"])
def test_an_endpoint_without_a_scheme_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="endpoint"):
        TracesConfig(endpoint=endpoint)


def test_one_problem_is_one_line_a_minute_and_logger() -> None:
    limit = OncePerInterval(3600.0)
    record = logging.makeLogRecord({"name": "a", "msg": "Failed to export %s"})
    other = logging.makeLogRecord({"name": "a", "msg": "Queue full"})
    assert [limit.filter(r) for r in (record, record, other, record)] == [True, False, True, False]


def test_limiting_the_libraries_twice_limits_them_once() -> None:
    limit_warnings()
    limit_warnings()
    filters = logging.getLogger("opentelemetry.sdk._shared_internal").filters
    assert sum(isinstance(one, OncePerInterval) for one in filters) == 1


def test_a_recorder_returns_a_bounded_number_of_spans_of_a_bounded_size() -> None:
    context = TraceContext(1, 2, is_sampled=False, returns_spans=True)
    recorder = Recorder("service", context, None)
    for _ in range(MAX_RETURNED_SPANS + 10):
        recorder.add("span", 5, 3, {}, error="x" * 10_000)
    assert len(recorder.collected) == MAX_RETURNED_SPANS
    span = recorder.collected[0]
    assert len(str(span.attributes["error.message"])) == MAX_TEXT
    assert span.start_ns == span.end_ns == 3


def test_a_trace_that_is_not_sampled_goes_to_no_collector() -> None:
    exported: list[Span] = []
    for is_sampled in (False, True):
        context = TraceContext(1, 2, is_sampled=is_sampled)
        Recorder("service", context, exported.append).add("span", 1, 2, {"a": 1})
    assert [span.name for span in exported] == ["span"]


def test_exports_are_readable_spans_of_the_sdk(started: Any) -> None:
    exports: SpanExports = started().exports
    span = Span("generate", 1, 3, 2, 10, 20, {"a": ("b",)}, error="broken", is_request=True)
    readable = exports._readable(span)
    assert (readable.name, readable.start_time, readable.end_time) == ("generate", 10, 20)
    assert readable.parent is not None
    assert readable.parent.is_remote
    assert readable.status.description == "broken"
    assert exports._readable(Span("x", 1, 3, 0, 1, 2, {})).parent is None
