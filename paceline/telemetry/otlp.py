"""Where OTLP goes and how, for spans and metrics alike: as is set, else as `OTEL_*` has it."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from paceline.errors import ConfigError

Signal = Literal["traces", "metrics"]
_PATHS = {"traces": "v1/traces", "metrics": "v1/metrics"}


def protocol_of_environment(signal: Signal) -> Literal["grpc", "http"]:
    """As the `OTEL_*` variables have it. Raises `ConfigError` naming the one that cannot be."""
    for variable in (
        f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ):
        named = os.environ.get(variable, "").strip().lower()
        if named == "http/protobuf":
            return "http"
        if named == "grpc":
            return "grpc"
        if named:
            raise ConfigError(f"{variable}: {named!r} is neither grpc nor http/protobuf")
    return "grpc"


def http_endpoint(endpoint: str, signal: Signal) -> str:
    """The URL that a signal is posted to.

    That of traces is taken as it is, with the standard path where it has none. Metrics go below it,
    or beside the spans where it is the path of those.
    """
    parts = urlsplit(endpoint)
    path, own = parts.path.rstrip("/"), f"/{_PATHS[signal]}"
    other = f"/{_PATHS['metrics' if signal == 'traces' else 'traces']}"
    if path.endswith(other):
        path = path.removesuffix(other) + own
    elif not path or (signal == "metrics" and not path.endswith(own)):
        path += own
    return urlunsplit(parts._replace(path=path))
