"""Spans of the verifier: one `verify` a session and pass, and the `pass` that served them all."""

from __future__ import annotations

import time
from collections.abc import Iterable

from paceline.telemetry.level import Level
from paceline.telemetry.recorder import new_span_id
from paceline.telemetry.span import Attribute, SpanLink
from paceline.telemetry.tracing import Tracing
from paceline.telemetry.worker_traces import Key, WorkerTrace, WorkerTraces
from paceline.types import PassTimings, Verdict

MAX_LINKS = 16
"""Sessions that a `pass` names; how many there were is among its attributes."""


class VerifierTraces(WorkerTraces[WorkerTrace]):
    """The traced sessions, and the pass that runs.

    The `pass` span lies in the trace of the first traced session that it judged. The others are
    linked with it, since a span has one parent only.
    """

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(tracing, WorkerTrace)
        self._pass_ns = 0
        self._judged_ns = 0
        self._pass_id = 0
        self._owner: WorkerTrace | None = None
        self._links: list[SpanLink] = []

    def asks_for_probs(self, key: Key) -> bool:
        """Whether the session's token spans shall tell the target's probabilities."""
        trace = self.get(key)
        return trace is not None and trace.recorder.level >= Level.TOKEN

    def pass_begins(self, keys: Iterable[Key]) -> None:
        """A pass begins that takes something of these sessions."""
        self._pass_ns = time.time_ns()
        self._judged_ns = 0
        self._owner = None
        self._links = []
        for key in keys:
            trace = self.get(key)
            if trace is not None:
                trace.work_begins(self._pass_ns)

    def judged(self, key: Key, verdict: Verdict) -> None:
        """The pass gave this session a verdict."""
        trace = self.get(key)
        if trace is None:
            return
        if not self._judged_ns:  # the same instant for all of them
            self._judged_ns = time.time_ns()
        if not trace.records_blocks:
            if not trace.is_prefilled:
                trace.prefill_ends(self._judged_ns)
            return
        if self._owner is None:
            self._owner, self._pass_id = trace, new_span_id()
        owner = self._owner.recorder.context
        to_pass = (SpanLink(owner.trace_id, self._pass_id),)
        if not trace.is_prefilled:
            trace.prefill_ends(self._judged_ns, links=to_pass)
        if not trace.thinning.starts_new():
            return
        span_id = new_span_id()
        if len(self._links) < MAX_LINKS:
            self._links.append(SpanLink(trace.recorder.context.trace_id, span_id))
        trace.recorder.add(
            "verify",
            self._pass_ns,
            self._judged_ns,
            _verify_attributes(verdict),
            span_id=span_id,
            links=to_pass,
        )

    def pass_ends(self, timings: PassTimings) -> None:
        """The pass is over."""
        owner, self._owner = self._owner, None
        if owner is None or not self._links:
            return
        attributes: dict[str, Attribute] = {
            "paceline.pass.rows": timings.rows,
            "paceline.pass.sessions": timings.sessions,
            "paceline.forward_ms": timings.forward_us / 1e3,
            "paceline.judge_ms": timings.judge_us / 1e3,
        }
        owner.recorder.add(
            "pass",
            self._pass_ns,
            self._judged_ns,
            attributes,
            span_id=self._pass_id,
            links=tuple(self._links),
        )


def _verify_attributes(verdict: Verdict) -> dict[str, Attribute]:
    timings = verdict.timings
    attributes: dict[str, Attribute] = {
        "paceline.epoch": verdict.epoch,
        "paceline.base": verdict.base,
        "paceline.tokens": len(verdict.token_ids),
        "paceline.judged": verdict.num_judged,
        "paceline.accepted": verdict.accepted_length,
        "paceline.discarded": verdict.num_discarded,
        "paceline.kv_length": verdict.kv_length,
        "paceline.queue_ms": timings.queue_us / 1e3,
        "paceline.forward_ms": timings.forward_us / 1e3,
        "paceline.judge_ms": timings.judge_us / 1e3,
        "paceline.pass.rows": timings.rows,
        "paceline.pass.sessions": timings.sessions,
    }
    if verdict.next_origin is not None:
        attributes["paceline.next_origin"] = verdict.next_origin.value
    return attributes
