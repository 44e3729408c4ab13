"""The client's own span of a call, through OpenTelemetry's API: the provider is the program's, and
without one this costs nothing and does nothing.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paceline.client_values import Chunk
from paceline.errors import PacelineError

Metadata: TypeAlias = tuple[tuple[str, str], ...]

SCOPE = "paceline.client"


class CallSpan:
    """The span of one call, below the span that is current where it is made.

    It begins when entered and ends when left, on cancellation too. It is nobody's current span: a
    stream is read in whatever context its reader has.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._parent = otel_context.get_current()
        self._span = trace.INVALID_SPAN
        self._num_chunks = 0
        self._is_whole = False

    def __enter__(self) -> None:
        host, _, port = self._address.rpartition(":")
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc",
            "server.address": host or self._address,
        }
        if host and port.isdigit():
            attributes["server.port"] = int(port)
        tracer = trace.get_tracer(SCOPE)
        self._span = tracer.start_span(
            "paceline.generate", self._parent, kind=SpanKind.CLIENT, attributes=attributes
        )

    def metadata(self) -> Metadata:
        """W3C trace context for the call; empty outside any trace."""
        carrier: dict[str, str] = {}
        context = trace.set_span_in_context(self._span, self._parent)
        TraceContextTextMapPropagator().inject(carrier, context)
        return tuple(carrier.items())

    def received(self, chunk: Chunk) -> None:
        """Note what came."""
        self._num_chunks += 1
        if chunk.usage is not None and chunk.finish_reason is not None:
            self._is_whole = True
            self._span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": chunk.usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": chunk.usage.completion_tokens,
                    "gen_ai.response.finish_reasons": [chunk.finish_reason],
                }
            )

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._span.set_attribute("paceline.chunks", self._num_chunks)
        if exc_value is not None and not (self._is_whole and isinstance(exc_value, GeneratorExit)):
            code = exc_value.code if isinstance(exc_value, PacelineError) else "CANCELLED"
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR, f"{code}: {exc_value}"))
        self._span.end()
