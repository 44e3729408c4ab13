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
    """The URL that a signal is posted to: with its standard path, where there is none or the other
    signal's."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    others = [f"/{other}" for name, other in _PATHS.items() if name != signal]
    if not path or any(path.endswith(other) for other in others):
        for other in others:
            path = path.removesuffix(other)
        path = f"{path}/{_PATHS[signal]}"
    return urlunsplit(parts._replace(path=path))
