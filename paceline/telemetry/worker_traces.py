"""The traces of a worker's sessions: queueing, prefill, and what the worker adds of its own.

Kept beside the sessions and used on the engine thread alone. While no session is traced it is
empty, and an engine asks for nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

from paceline.generation import TraceSpan
from paceline.telemetry.level import Level
from paceline.telemetry.recorder import Recorder, wall_ns
from paceline.telemetry.span import SpanLink
from paceline.telemetry.thinning import Thinning
from paceline.telemetry.trace_context import parse_context
from paceline.telemetry.tracing import Tracing
from paceline.types import OpenSession, SessionSpans

MAX_BLOCK_SPANS = 1024
"""Spans of blocks or passes that a worker makes of one session; beyond it they are thinned."""
SPANS_A_REPLY = 256

Key: TypeAlias = tuple[int, int]


class WorkerTrace:
    """One traced session on a worker. Its phases follow each other: queue, prefill, decoding."""

    def __init__(self, recorder: Recorder, opening: OpenSession, opened_ns: int) -> None:
        self.recorder = recorder
        self.opening = opening
        self.thinning = Thinning(MAX_BLOCK_SPANS, expected=opening.sampling.max_tokens)
        self._opened_ns = opened_ns
        self._prefill_ns = 0
        self._num_prefill_passes = 0
        self._is_prefilled = False

    @property
    def records_blocks(self) -> bool:
        return self.recorder.level >= Level.BLOCK

    @property
    def is_prefilled(self) -> bool:
        return self._is_prefilled

    def work_begins(self, started_ns: int) -> None:
        """A pass takes part of the session: the first one ends its queueing."""
        if self._is_prefilled:
            return
        if not self._prefill_ns:
            self._prefill_ns = started_ns
            self._add_queue(started_ns)
        self._num_prefill_passes += 1

    def prefill_ends(
        self, ended_ns: int, *, error: str = "", links: tuple[SpanLink, ...] = ()
    ) -> None:
        """The prompt has been read, or never will be."""
        self._is_prefilled = True
        attributes = {
            "paceline.prefill.tokens": len(self.opening.token_ids),
            "paceline.prefill.passes": self._num_prefill_passes,
        }
        self.recorder.add(
            "prefill", self._prefill_ns, ended_ns, attributes, error=error, links=links
        )

    def close(self, error: str) -> None:
        """The session is over: end what is open, and sum it up."""
        ended_ns = time.time_ns()
        if not self._prefill_ns:
            self._add_queue(ended_ns, error=error)
        elif not self._is_prefilled:
            self.prefill_ends(ended_ns, error=error)
        attributes = {
            "paceline.session.id": self.opening.session_id,
            "paceline.prompt_tokens": self.opening.prompt_length,
            "paceline.block_spans.left_out": self.thinning.num_left_out,
        }
        self.recorder.add("session", self._opened_ns, ended_ns, attributes, error=error)

    def _add_queue(self, ended_ns: int, *, error: str = "") -> None:
        attributes = {"paceline.prompt_tokens": self.opening.prompt_length}
        self.recorder.add("queue", self._opened_ns, ended_ns, attributes, error=error)


T = TypeVar("T", bound=WorkerTrace)


class WorkerTraces(Generic[T]):
    """The traced sessions of an engine by their key (link, session). False while there is none."""

    def __init__(self, tracing: Tracing, kind: type[T]) -> None:
        self._tracing = tracing
        self._kind = kind
        self._live: dict[Key, T] = {}
        self._ended: list[tuple[Key, Recorder]] = []

    def __bool__(self) -> bool:
        return bool(self._live)

    def get(self, key: Key) -> T | None:
        """The trace of a session, if it is traced."""
        return self._live.get(key)

    def open(self, key: Key, opening: OpenSession, now: float) -> None:
        """Begin to trace a session that arrived at `now`, if its trace context asks for it."""
        if not opening.trace_context:
            return
        context = parse_context(opening.trace_context)
        if context is None or context.level is Level.OFF:
            return
        if self._tracing.exports is None and not context.returns_spans:
            return
        self._live[key] = self._kind(self._tracing.recorder(context), opening, wall_ns(now))

    def close(self, key: Key, error: Exception | None = None) -> None:
        """The session is over; its spans go back if they were asked for."""
        trace = self._live.pop(key, None)
        if trace is None:
            return
        trace.close("" if error is None else str(error) or type(error).__name__)
        if trace.recorder.context.returns_spans:
            self._ended.append((key, trace.recorder))  # the pass that ended it may add its own

    def take_farewells(self) -> list[tuple[int, SessionSpans]]:
        """Replies with the spans of sessions that have ended since the last time."""
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        return [
            (link, reply)
            for (link, session_id), recorder in ended
            for reply in _replies(session_id, recorder.collected)
        ]


def _replies(session_id: int, spans: Sequence[TraceSpan]) -> list[SessionSpans]:
    starts = range(0, max(1, len(spans)), SPANS_A_REPLY)
    parts = [tuple(spans[start : start + SPANS_A_REPLY]) for start in starts]
    return [
        SessionSpans(session_id, part, is_last=index == len(parts) - 1)
        for index, part in enumerate(parts)
    ]
