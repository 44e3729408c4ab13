"""A collector for tests: OTLP over gRPC and over HTTP, as an exporter meets it on the wire."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc.aio
from opentelemetry.context import attach, detach
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

PATIENCE_S = 60.0


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived."""

    name: str
    service: str
    instance: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """(trace, span)"""
    error: str
    """Message of an error status; empty without."""
    num_bytes: int

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


class Receiver:
    """What has arrived. `endpoint` is what an exporter is told."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[ReceivedSpan] = []
        self.num_batches = 0

    def take(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        self.num_batches += 1
        for resource in request.resource_spans:
            about = {pair.key: value_of(pair.value) for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_received(span, about) for span in scope.spans]

    def traces(self) -> dict[str, list[ReceivedSpan]]:
        """Spans by trace, oldest first."""
        found: dict[str, list[ReceivedSpan]] = defaultdict(list)
        for span in sorted(self.spans, key=lambda span: (span.start_ns, span.end_ns)):
            found[span.trace_id].append(span)
        return dict(found)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    async def until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Wait until what has arrived fulfils a condition."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            now = asyncio.get_running_loop().time()
            assert now < deadline, [(span.service, span.name) for span in self.spans]
            await asyncio.sleep(0.02)


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(entry) for entry in value.array_value.values]
    return getattr(value, kind) if kind else None


def _received(span: Any, about: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        service=about["service.name"],
        instance=about["service.instance.id"],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes={pair.key: value_of(pair.value) for pair in span.attributes},
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        error=span.status.message if span.status.code == 2 else "",
        num_bytes=span.ByteSize(),
    )


class _Service(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._receiver.take(request)
        return trace_service_pb2.ExportTraceServiceResponse()


@asynccontextmanager
async def otlp_grpc() -> AsyncIterator[Receiver]:
    """A collector on gRPC."""
    receiver = Receiver()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Service(receiver), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    receiver.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        await server.stop(None)


@asynccontextmanager
async def otlp_http() -> AsyncIterator[Receiver]:
    """A collector on HTTP; answers only what is posted to `/v1/traces`."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_right = self.path == "/v1/traces"
            if is_right:
                receiver.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if is_right else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    receiver.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        await asyncio.to_thread(server.shutdown)
        thread.join()
        server.server_close()


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """The endpoint of a socket that takes connections and never says anything."""
    connections: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in connections:
            connection.close()
        await server.wait_closed()


class ClientTrace:
    """A span of the caller's own, current while entered: the client library sends it along."""

    def __init__(self, number: int, *, is_sampled: bool = True) -> None:
        self.trace_id = f"{number:032x}"
        self.span_id = f"{number:016x}"
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        self._context = SpanContext(number, number, False, flags)
        self._token: Any = None

    def __enter__(self) -> ClientTrace:
        self._token = attach(set_span_in_context(NonRecordingSpan(self._context)))
        return self

    def __exit__(self, *_: object) -> None:
        detach(self._token)
