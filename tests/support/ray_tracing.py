"""What `ray.init(_tracing_startup_hook=…)` is given: Ray's own tracing, into nowhere."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider


def start() -> None:
    """Called by Ray in the driver and in every worker."""
    trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
