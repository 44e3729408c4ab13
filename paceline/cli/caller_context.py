"""The trace that a command runs in, as OpenTelemetry has programs pass it on: `TRACEPARENT` and
`TRACESTATE` of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

VARIABLES = ("traceparent", "tracestate")


@contextmanager
def caller_context(environment: Mapping[str, str]) -> Iterator[None]:
    """Make the caller's span current; nothing where the environment names none."""
    carrier = {name: environment[name.upper()] for name in VARIABLES if name.upper() in environment}
    token = context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
