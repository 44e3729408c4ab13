"""Spans on the wire: from the workers to the orchestrator, and to a client that asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.generation import TraceSpan
from paceline.types import SessionId, SessionSpans
from protos import common_pb2

AttributeValue = str | int | float | bool

_OVERHEAD = 6  # tag and length of an entry


def carrier_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """The text entries of a call's metadata, in which W3C trace context travels."""
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def encode_span(span: TraceSpan) -> common_pb2.Span:
    return common_pb2.Span(
        name=span.name,
        service=span.service,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        start_unix_ns=span.start_ns,
        end_unix_ns=span.end_ns,
        attributes={key: _encode_value(value) for key, value in span.attributes.items()},
    )


def encode_spans(spans: Iterable[TraceSpan], *, max_bytes: int) -> list[common_pb2.Span]:
    """As many of the first as `max_bytes` hold."""
    messages = []
    for message in map(encode_span, spans):
        max_bytes -= message.ByteSize() + _OVERHEAD
        if max_bytes < 0:
            break
        messages.append(message)
    return messages


def decode_span(message: common_pb2.Span) -> TraceSpan:
    return TraceSpan(
        name=message.name,
        service=message.service,
        trace_id=message.trace_id,
        span_id=message.span_id,
        parent_id=message.parent_span_id,
        start_ns=message.start_unix_ns,
        end_ns=message.end_unix_ns,
        attributes=_decode_attributes(message.attributes),
    )


def encode_session_spans(reply: SessionSpans) -> common_pb2.SessionSpans:
    return common_pb2.SessionSpans(
        spans=[encode_span(span) for span in reply.spans], is_last=reply.is_last
    )


def decode_session_spans(session_id: SessionId, message: common_pb2.SessionSpans) -> SessionSpans:
    return SessionSpans(
        session_id, tuple(decode_span(span) for span in message.spans), message.is_last
    )


def _encode_value(value: AttributeValue) -> common_pb2.AttributeValue:
    match value:
        case bool():  # before int, of which it is one
            return common_pb2.AttributeValue(flag=value)
        case int():
            return common_pb2.AttributeValue(integer=value)
        case float():
            return common_pb2.AttributeValue(number=value)
        case str():
            return common_pb2.AttributeValue(text=value)


def _decode_attributes(
    attributes: Mapping[str, common_pb2.AttributeValue],
) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    for key, value in attributes.items():
        kind = value.WhichOneof("value")
        if kind is not None:  # a kind that a later version knows is left out
            found[key] = getattr(value, kind)
    return found
