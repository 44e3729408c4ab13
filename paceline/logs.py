"""Logging of a process: lines of text or of JSON on stderr, set up once in a `__main__`.

A line says which session and trace it belongs to where that is known: from `set_context`, or from
the `fields` of the record itself. Prompts and answers are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from pythonjsonlogger.json import JsonFormatter

LEVELS = ("debug", "info", "warning", "error")

LogFormat: TypeAlias = Literal["text", "json"]

_CONTEXT: ContextVar[Mapping[str, Any]] = ContextVar(
    "paceline_log_context", default=MappingProxyType({})
)


def setup_logging(level: str = "info", log_format: LogFormat = "text") -> None:
    """Send every record of `level` and above to stderr, replacing earlier handlers.

    Raises `ValueError` for a level that is not in `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def set_context(**names: str) -> None:
    """What the running task's further lines belong to: `session`, `trace_id`; "" is unknown."""
    _CONTEXT.set({name: value for name, value in names.items() if value})


def fields(**values: Any) -> dict[str, Any]:
    """The `extra` argument of a logging call: values that stand on their own; None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def session_fields(session: int, trace_context: Mapping[str, str]) -> dict[str, Any]:
    """The `extra` argument of a worker's logging call about a session on one of its links."""
    parts = trace_context.get("traceparent", "").split("-")
    return fields(session=session, trace_id=parts[1] if len(parts) == 4 else None)


def context_fields() -> dict[str, Any]:
    """What the running task's lines belong to, as the `extra` of calls made outside of it."""
    return fields(**_CONTEXT.get())


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {**_CONTEXT.get(), **getattr(record, "fields", {})}


class _TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: message name=value …`, on one line but for a traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's spelling)
        pairs = (f" {name}={_shown(value)}" for name, value in _fields_of(record).items())
        return super().formatMessage(record) + "".join(pairs)


def _shown(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(char.isspace() for char in text) else text


class _JsonFormatter(JsonFormatter):
    """One object a line."""

    def __init__(self) -> None:
        super().__init__(
            ["levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp="time",
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        own = log_data.pop("fields", {})
        # names of the line itself are never taken over
        return super().process_log_record({**log_data, **_CONTEXT.get(), **own, **log_data})
