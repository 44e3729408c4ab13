"""Spans of the drafter: one `draft` a block, told with what became of its tokens."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from paceline.telemetry.recorder import Recorder
from paceline.telemetry.span import Attribute
from paceline.telemetry.tracing import Tracing
from paceline.telemetry.worker_traces import Key, WorkerTrace, WorkerTraces
from paceline.types import DraftBlock, OpenSession


@dataclass(slots=True)
class _SentBlock:
    """A block on its way to a verdict."""

    block: DraftBlock
    started_ns: int
    ended_ns: int
    num_accepted: int = 0

    @property
    def base(self) -> int:
        return self.block.base + self.num_accepted

    @property
    def end(self) -> int:
        return self.block.base + len(self.block.token_ids)


class DrafterTrace(WorkerTrace):
    """One traced session: a block's span waits until it is known which of its tokens were kept."""

    def __init__(self, recorder: Recorder, opening: OpenSession, opened_ns: int) -> None:
        super().__init__(recorder, opening, opened_ns)
        self._drafting_ns = 0
        self._sent: deque[_SentBlock] = deque()
        self._epoch = opening.epoch
        self._committed = len(opening.token_ids)

    def drafts(self, started_ns: int) -> None:
        """A step began that drew tokens: it may be the first of a block."""
        if not self._drafting_ns:
            self._drafting_ns = started_ns

    def sent(self, block: DraftBlock) -> None:
        """A block is on its way."""
        started_ns, self._drafting_ns = self._drafting_ns, 0
        self._epoch = block.epoch
        if block.token_ids and self.records_blocks:
            now = time.time_ns()
            self._sent.append(_SentBlock(block, started_ns or now, now))

    def advanced(self, valid: int, committed: int, *, num_unsent_lost: int) -> None:
        """`committed` tokens are final; of the sequence before, the first `valid` hold.

        `num_unsent_lost` are tokens that were drawn for a block that will not be.
        """
        while self._sent:
            first = self._sent[0]
            first.num_accepted += max(0, min(valid, committed, first.end) - first.base)
            if first.base < first.end <= valid:
                break  # the rest may still be accepted
            self._add(self._sent.popleft())
        if num_unsent_lost and self.records_blocks:
            self._add_unsent(committed, num_unsent_lost)
            self._drafting_ns = 0
        self._committed = committed

    def close(self, error: str) -> None:
        while self._sent:  # what nobody asked for any more is waste
            self._add(self._sent.popleft())
        super().close(error)

    def _add(self, sent: _SentBlock) -> None:
        if not self.thinning.starts_new():
            return
        block = sent.block
        attributes = _attributes(block.epoch, block.base, len(block.token_ids), sent.num_accepted)
        attributes["paceline.draft.state"] = block.state.value
        attributes["paceline.draft_ms"] = block.draft_us / 1e3
        attributes["paceline.kv_length"] = block.kv_length
        self.recorder.add("draft", sent.started_ns, sent.ended_ns, attributes)

    def _add_unsent(self, base: int, num_tokens: int) -> None:
        if not self.thinning.starts_new():
            return
        now = time.time_ns()
        attributes = _attributes(self._epoch, base, num_tokens, 0)
        attributes["paceline.draft.state"] = "unsent"
        self.recorder.add("draft", self._drafting_ns or now, now, attributes)


class DrafterTraces(WorkerTraces[DrafterTrace]):
    """The traced sessions of the drafter."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(tracing, DrafterTrace)
        self._step_ns = 0

    def step_begins(self) -> None:
        """A step asks the drafter for proposals."""
        self._step_ns = time.time_ns()

    def proposed(self, key: Key, *, num_draws: int, is_pending: bool, is_waiting: bool) -> None:
        """What the step brought a session."""
        trace = self.get(key)
        if trace is None or is_waiting:
            return
        trace.work_begins(self._step_ns)
        if num_draws:
            trace.drafts(self._step_ns)
        if not is_pending and not trace.is_prefilled:
            trace.prefill_ends(time.time_ns())


def _attributes(epoch: int, base: int, num_tokens: int, num_accepted: int) -> dict[str, Attribute]:
    return {
        "paceline.epoch": epoch,
        "paceline.base": base,
        "paceline.draft.tokens": num_tokens,
        "paceline.draft.accepted": num_accepted,
        "paceline.draft.discarded": num_tokens - num_accepted,
    }
