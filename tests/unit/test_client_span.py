"""The client's own span, made through OpenTelemetry's API with the program's provider."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from support.otlp_receiver import ClientTrace
from support.scripted_orchestrator import ScriptedOrchestrator, script, serving
from typer.testing import CliRunner

from paceline import client_span
from paceline.cli.app import app
from paceline.client import Client
from paceline.errors import PacelineError
from paceline.telemetry.trace_context import parse_context


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The program's provider, without making it everybody's."""
    found = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(client_span.trace, "get_tracer", provider.get_tracer)
    yield found
    provider.shutdown()


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


async def test_a_call_has_a_client_span_whose_context_travels(
    exporter: InMemorySpanExporter,
) -> None:
    with serving(ScriptedOrchestrator()) as server:
        async with Client(server.address) as client:
            with ClientTrace(5):
                stream = client.generate(prompt="x")
            assert len([chunk async for chunk in stream]) == 3
    span = only(exporter)
    assert span.kind is SpanKind.CLIENT
    assert span.parent is not None
    assert span.context.trace_id == span.parent.trace_id == 5
    sent = parse_context(server.metadata[0])
    assert sent is not None
    assert (sent.trace_id, sent.parent_id) == (5, span.context.span_id)
    assert span.status.is_unset
    about = span.attributes or {}
    assert about["gen_ai.usage.output_tokens"] == 5
    assert about["gen_ai.response.finish_reasons"] == ("length",)
    assert about["server.port"] == int(server.address.rpartition(":")[2])


async def test_without_a_provider_the_callers_context_still_travels_and_nothing_without_one() -> (
    None
):
    with serving(ScriptedOrchestrator()) as server:
        async with Client(server.address) as client:
            with ClientTrace(6):
                stream = client.generate(prompt="x")
            assert [chunk async for chunk in stream]
            assert [chunk async for chunk in client.generate(prompt="x")]
    assert server.metadata[0]["traceparent"] == f"00-{6:032x}-{6:016x}-01"
    assert "traceparent" not in server.metadata[1]


async def test_a_stream_that_is_left_or_fails_ends_its_span_with_a_status(
    exporter: InMemorySpanExporter,
) -> None:
    import grpc

    with serving(ScriptedOrchestrator(responses=script()[:1], endless=True)) as server:
        async with Client(server.address) as client:
            stream = client.generate(prompt="x")
            await anext(stream)
            await stream.aclose()
    failing = ScriptedOrchestrator(error=(grpc.StatusCode.UNAVAILABLE, "gone"))
    with serving(failing) as server:
        async with Client(server.address) as client:
            with pytest.raises(PacelineError):
                async for _ in client.generate(prompt="x"):
                    pass
    left, failed = exporter.get_finished_spans()
    assert (left.attributes or {})["error.type"] == "CANCELLED"
    assert (failed.attributes or {})["error.type"] == "UNAVAILABLE"
    assert not left.status.is_ok
    assert "gone" in (failed.status.description or "")


def test_the_blocking_calls_have_it_too(exporter: InMemorySpanExporter) -> None:
    with serving(ScriptedOrchestrator()) as server, ClientTrace(8):
        Client(server.address).generate_text(prompt="x")
    assert only(exporter).context.trace_id == 8


def test_a_command_belongs_to_the_trace_that_its_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{9:032x}-{10:016x}-01")
    with serving(ScriptedOrchestrator()) as server:
        CliRunner().invoke(app, ["generate", "hi", "--address", server.address])
        monkeypatch.delenv("TRACEPARENT")
        CliRunner().invoke(app, ["generate", "hi", "--address", server.address])
    assert server.metadata[0]["traceparent"] == f"00-{9:032x}-{10:016x}-01"
    assert "traceparent" not in server.metadata[1]
