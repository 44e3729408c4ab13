"""The trace of one answer as its relay and reply see it: blocks, verdicts, deliveries, losses."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.outcomes import Outcomes
from orchestrator.token_spans import DeliveredToken, TokenSpans, VerdictNote
from orchestrator.worker import WorkerSession
from paceline.errors import PacelineError
from paceline.generation import OutputToken, TraceSpan
from paceline.telemetry.level import Level
from paceline.telemetry.recorder import Recorder
from paceline.telemetry.span import Attribute
from paceline.telemetry.thinning import Thinning
from paceline.telemetry.worker_traces import MAX_BLOCK_SPANS
from paceline.tree_shape import TreeShape
from paceline.types import DraftBlock, SessionSpans, Verdict
from paceline.waiting import within


@dataclass(slots=True)
class _Block:
    """A block that was passed on to the verifier."""

    base: int
    end: int
    draft_ns: int
    probs: list[float] | None
    token_ids: tuple[int, ...]
    tree: TreeShape | None
    epoch: int = 0

    def differs_at(self, position: int, token_id: int) -> bool:
        """Whether a chain has another token at a position."""
        if self.tree is not None or not self.base <= position < self.end:
            return False
        return self.token_ids[position - self.base] != token_id

    def place(self, position: int, verdict: Verdict) -> int:
        """Which of its tokens is the one that a verdict accepted at a position."""
        if self.tree is None:
            return position - self.base
        # what was final before lies on the chain before the first branch
        known = self.token_ids[: max(0, verdict.base - self.base)]
        new = verdict.token_ids[max(0, self.base - verdict.base) :]
        path = self.tree.walk(self.token_ids, (*known, *new))
        return path[position - self.base]


@dataclass(frozen=True, slots=True)
class _Delivery:
    """Tokens that go to the client in one response, and the verdict that let them."""

    tokens: list[DeliveredToken]
    note: VerdictNote
    waited_since_ns: int


class AnswerTrace:
    """One answer's spans; used on the event loop only."""

    def __init__(self, recorder: Recorder, tokens: TokenSpans, *, max_tokens: int) -> None:
        self.num_discarded = 0
        """Draft tokens that were dropped unjudged, here or at the verifier."""
        self._recorder = recorder
        self._tokens = tokens
        self._thinning = Thinning(MAX_BLOCK_SPANS, expected=max_tokens)
        self._blocks: deque[_Block] = deque()
        self._outcomes: Outcomes[_Block] = Outcomes()
        self._void_epoch: int | None = None  # whose drafts are wrong from some position on
        self._arrived: deque[VerdictNote] = deque()
        self._undelivered: deque[DeliveredToken] = deque()
        self._deliveries: deque[_Delivery] = deque()
        self._waiting_since_ns = time.time_ns()
        self._verifier_lost: tuple[int, str] | None = None
        self._open: dict[tuple[int, int], Callable[[], None]] = {}
        self._all_returned = asyncio.Event()
        self._spans: list[TraceSpan] = []

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return f"{self._recorder.context.trace_id:032x}"

    @property
    def num_token_spans_left_out(self) -> int:
        return self._tokens.num_left_out

    @property
    def num_block_spans_left_out(self) -> int:
        return self._thinning.num_left_out

    # --- what the relay sees ----------------------------------------------------------------

    def opened(self, session: WorkerSession[Any, Any]) -> dict[str, str]:
        """A session is opened on a worker; returns the context that goes with it."""
        self._end_failover()
        if self._recorder.context.returns_spans:
            key = (id(session.worker), session.session_id)
            self._open[key] = session.expect_spans(lambda reply: self._on_spans(key, reply))
        return self._recorder.context.carrier()

    def drafted(self, block: DraftBlock, committed: Sequence[int], *, is_taken: bool) -> None:
        """A block came, and was passed on or dropped.

        `committed` are the tokens already committed at its positions.
        """
        length = len(block.token_ids)
        if not is_taken:
            self.num_discarded += length
        if self._recorder.level < Level.BLOCK or not length:
            return
        if is_taken:
            probs = None
            if self._recorder.level >= Level.TOKEN and block.draft_probs is not None:
                probs = block.draft_probs.own_probs(block.token_ids)
            draft_ns = block.draft_us * 1000
            end = block.base + length
            tree, epoch = block.tree, block.epoch
            noted = _Block(block.base, end, draft_ns, probs, block.token_ids, tree, epoch)
            if block.outcome is not None:
                self._follow(self._outcomes.add(block, noted))
            elif self._void_epoch is None or epoch > self._void_epoch:
                self._passed_on(noted, committed)
            return
        if self._thinning.starts_new():
            now = time.time_ns()
            attributes: dict[str, Attribute] = {
                "paceline.epoch": block.epoch,
                "paceline.base": block.base,
                "paceline.draft.discarded": length,
            }
            self._recorder.add("discard", now, now, attributes)

    def _passed_on(self, block: _Block, committed: Sequence[int]) -> None:
        """A block that goes on with the line, unless it came too late for that."""
        for position, token_id in enumerate(committed, block.base):
            if block.differs_at(position, token_id):
                self._begin_epoch(block.epoch, position, token_id)
                return
        self._blocks.append(block)

    def _begin_epoch(self, void: int, position: int, token_id: int) -> None:
        """The verifier goes on from a token in place of the draft in an epoch that is void then."""
        self._void_epoch = void
        self._blocks.clear()
        self._follow(self._outcomes.epoch_begins(void + 1, position + 1, token_id))

    def _follow(self, block: _Block | None) -> None:
        """The next one that is to be judged."""
        if block is not None:
            self._blocks.append(block)

    def judged(self, verdict: Verdict) -> None:
        """A verdict came."""
        self.num_discarded += verdict.num_discarded
        if self._recorder.level >= Level.BLOCK:
            self._arrived.append(self._note(verdict))

    def lost(self, role: str, error: PacelineError) -> None:
        """A worker, or its part of this session, is gone, and with it the blocks on their way."""
        self._blocks.clear()
        self._outcomes.clear()
        self._void_epoch = None
        now = time.time_ns()
        if role == "verifier":
            self._end_failover()
            self._verifier_lost = (now, str(error))
        else:
            self._recorder.add("lost", now, now, {"paceline.role": role}, error=str(error))

    def _end_failover(self) -> None:
        """Record for how long there was no verifier, if there was none."""
        lost, self._verifier_lost = self._verifier_lost, None
        if lost is not None:
            started_ns, error = lost
            attributes = {"paceline.role": "verifier"}
            self._recorder.add("lost", started_ns, time.time_ns(), attributes, error=error)

    def _note(self, verdict: Verdict) -> VerdictNote:
        """What is known of a verdict's tokens from the blocks that it judged."""
        end = verdict.base + len(verdict.token_ids)
        judged_end = verdict.base + verdict.num_judged
        blocks: list[int | None] = [None] * len(verdict.token_ids)
        probs: list[float | None] = [None] * len(verdict.token_ids)
        draft_ns = 0
        for block in self._blocks:
            if block.base >= judged_end:
                break
            draft_ns, block.draft_ns = draft_ns + block.draft_ns, 0
            last = min(block.end, verdict.base + verdict.accepted_length)
            for position in range(max(block.base, verdict.base), last):
                blocks[position - verdict.base] = block.base
                if block.probs is not None:
                    place = block.place(position, verdict)
                    probs[position - verdict.base] = block.probs[place]
        is_rejected = verdict.accepted_length < verdict.num_judged
        while self._blocks and (is_rejected or self._blocks[0].end <= end):
            self._blocks.popleft()
        if is_rejected:
            self._follow(self._outcomes.epoch_begins(verdict.epoch, end, verdict.token_ids[-1]))
        elif self._blocks and (wrong := self._blocks[0]).differs_at(end - 1, verdict.token_ids[-1]):
            self._begin_epoch(wrong.epoch, end - 1, verdict.token_ids[-1])
        self._outcomes.committed(end)
        return VerdictNote(verdict, time.time_ns(), draft_ns, tuple(blocks), tuple(probs))

    # --- what the reply sees ----------------------------------------------------------------

    def taken(self, verdict: Verdict, tokens: Sequence[OutputToken]) -> None:
        """The reply took a verdict, and `tokens` are what it may deliver now."""
        if not self._arrived:
            return
        note = self._arrived.popleft()
        self._undelivered.extend(
            DeliveredToken(note, index, "") for index in range(len(verdict.token_ids))
        )
        going = [self._undelivered.popleft() for _ in tokens]
        going = [
            DeliveredToken(token.note, token.index, output.text)
            for token, output in zip(going, tokens, strict=True)
        ]
        waited_since_ns, self._waiting_since_ns = self._waiting_since_ns, time.time_ns()
        delivery = _Delivery(going, note, waited_since_ns)
        if going:
            self._deliveries.append(delivery)
        else:
            self._add_relay(delivery, self._waiting_since_ns)

    def delivered(self, at_ns: int) -> None:
        """The oldest response with tokens has reached the client."""
        if not self._deliveries:
            return
        delivery = self._deliveries.popleft()
        if self._recorder.level >= Level.TOKEN:
            self._tokens.delivered(delivery.tokens, at_ns)
        self._add_relay(delivery, at_ns)

    def _add_relay(self, delivery: _Delivery, ended_ns: int) -> None:
        if not self._thinning.starts_new():
            return
        note, started_ns = delivery.note, delivery.waited_since_ns
        verdict = note.verdict
        waited_ns = max(0, note.arrived_ns - started_ns)
        attributes: dict[str, Attribute] = {
            "paceline.epoch": verdict.epoch,
            "paceline.base": verdict.base,
            "paceline.tokens": len(delivery.tokens),
            "paceline.judged": verdict.num_judged,
            "paceline.accepted": verdict.accepted_length,
            "paceline.discarded": verdict.num_discarded,
            "paceline.wait_ms": waited_ns / 1e6,
            "paceline.emit_ms": (ended_ns - max(started_ns, note.arrived_ns)) / 1e6,
        }
        self._recorder.add("relay", started_ns, ended_ns, attributes)

    def close(self) -> None:
        """The answer is over, however."""
        self._end_failover()
        self._tokens.flush()

    # --- spans that come back ---------------------------------------------------------------

    def _on_spans(self, key: tuple[int, int], reply: SessionSpans) -> None:
        self._spans += reply.spans
        if reply.is_last:
            self._open.pop(key, None)
            self._all_returned.set()

    async def returned(self, timeout_s: float) -> list[TraceSpan]:
        """The workers' spans, once all have come or the time is over."""

        async def wait() -> None:
            while self._open:
                self._all_returned.clear()
                await self._all_returned.wait()

        try:
            await within(wait(), timeout_s)
        except asyncio.TimeoutError:
            pass
        finally:
            self.forget()
        return self._spans

    def forget(self) -> None:
        """Wait for no more spans."""
        waiting, self._open = self._open, {}
        for stop_listening in waiting.values():
            stop_listening()
