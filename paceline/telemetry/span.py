"""A span as a value: made when it has ended, so that none can be left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from paceline.generation import TraceSpan

Attribute: TypeAlias = str | int | float | bool | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, Attribute]

MAX_TEXT = 400
"""Characters that one attribute keeps, so that a span stays below 8 KB."""


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Another span that has to do with one, in this trace or in another."""

    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span. Ids are integers, `parent_id` 0 is none; times are Unix nanoseconds.

    `error` is what went wrong; empty is nothing. `is_request`: it answers a call from outside.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str = ""
    links: tuple[SpanLink, ...] = ()
    is_request: bool = False


def returned(span: Span, service: str) -> TraceSpan:
    """The span as it goes back to a caller."""
    attributes = {
        key: ",".join(value) if isinstance(value, tuple) else value
        for key, value in span.attributes.items()
    }
    if span.error:
        attributes["error.message"] = span.error
    return TraceSpan(
        name=span.name,
        service=service,
        trace_id=f"{span.trace_id:032x}",
        span_id=f"{span.span_id:016x}",
        parent_id=f"{span.parent_id:016x}" if span.parent_id else "",
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        attributes=attributes,
    )


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """At most `limit` characters of a text."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
