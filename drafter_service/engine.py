"""The drafter's engine: keeps every session's window full, all sessions stepping together.

Runs on the engine thread; free of I/O, so that tests drive it event by event.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any, TypeAlias

from drafter_service.branching import Branching
from drafter_service.drafter import Drafter, Proposal, ProposeRequest, TakesFeatures
from drafter_service.session import DraftSession
from drafter_service.traces import DrafterTraces
from paceline.errors import InvalidArgumentError, PacelineError, UnavailableError, describe_error
from paceline.features import Features
from paceline.logs import session_fields
from paceline.runtime.engine_thread import FailureCount, LinkId, SessionKey
from paceline.telemetry.metrics import DrafterMetrics
from paceline.telemetry.tracing import Tracing
from paceline.types import (
    Advance,
    CloseSession,
    DrafterEvent,
    DrafterReply,
    OpenSession,
    SessionError,
    WorkerInfo,
)

logger = logging.getLogger(__name__)

Replies: TypeAlias = list[tuple[LinkId, DrafterReply]]


class DrafterEngine:
    """Many sessions over one `Drafter`."""

    def __init__(self, drafter: Drafter, tracing: Tracing | None = None) -> None:
        self.metrics = DrafterMetrics()
        self.counters = self.metrics.counters
        self._drafter = drafter
        self._branching = Branching(drafter)
        self._sessions: dict[SessionKey, DraftSession] = {}
        self._failures = FailureCount()
        self._traces = DrafterTraces(tracing or Tracing("paceline-drafter"))

    # --- events -----------------------------------------------------------------------------

    def handle(self, link: LinkId, event: DrafterEvent, now: float) -> Replies:
        """Take one event. A wrong one ends its own session and touches no other."""
        replies = self._handle(link, event, now)
        return [*self._traces.take_farewells(), *replies]

    def _handle(self, link: LinkId, event: DrafterEvent, now: float) -> Replies:
        key = (link, event.session_id)
        try:
            if isinstance(event, OpenSession):
                self._open(key, event, now)
            elif isinstance(event, CloseSession):
                self._free(key)
            elif key in self._sessions:  # else a late event of a session that has ended
                self._advance(self._sessions[key], event)
        except PacelineError as error:
            return [self._fail(key, error)]
        except Exception as error:
            logger.exception("an event failed", extra=self._about(key))
            return [self._fail(key, error)]
        return []

    def _open(self, key: SessionKey, opening: OpenSession, now: float) -> None:
        if key in self._sessions:
            raise InvalidArgumentError("session_id", f"{opening.session_id} is already open")
        if not opening.token_ids or min(opening.window, opening.num_speculative_tokens) < 1:
            raise InvalidArgumentError("token_ids", "the prompt is empty or the window is below 1")
        if opening.num_outcome_tokens < 0:
            raise InvalidArgumentError("num_outcome_tokens", "it is below 0")
        session = DraftSession(key, opening, context_length=self._drafter.context_length)
        self._drafter.reserve(key, opening)
        self._sessions[key] = session
        self._traces.open(key, opening, now)
        self._branching.make_room()

    def _advance(self, session: DraftSession, event: Advance) -> None:
        rest: Advance | None = event
        while rest is not None:
            step, rest = session.step_of(rest)
            self._take_step(session, step)

    def _take_step(self, session: DraftSession, event: Advance) -> None:
        """Take an advance in which at most one outcome comes true, with its last token."""
        length, branches = len(session.tokens), session.branches
        valid, outcome, gone, num_lost = session.advance(event)
        self._branching.prune(gone)
        num_nodes_valid = 0
        if branches is not None:
            num_nodes_valid = num_nodes = len(branches.draws)
            if session.branches is None:
                committed = session.tokens[: session.committed]
                num_nodes_valid = branches.num_true(committed) if valid == branches.base else 0
                self.metrics.rolled_back(num_nodes - num_nodes_valid)
        trace = self._traces.get(session.key)
        if trace is not None:
            trace.advanced(valid + num_nodes_valid, session.committed, num_unsent_lost=num_lost)
        if valid < length:
            self.metrics.rolled_back(length - valid)
        has_grafted = outcome is not None and self._branching.graft(session, outcome)
        if valid < length and not has_grafted:
            self._drafter.rollback(session.key, valid)
        if outcome is not None:
            self.metrics.came_true()
            if trace is not None and outcome.is_full:
                trace.sent(self._branching.block(session, outcome))
        if event.features is not None:
            self._take_features(session, event.features)

    def _take_features(self, session: DraftSession, features: Features) -> None:
        if not (session.opening.features and isinstance(self._drafter, TakesFeatures)):
            raise InvalidArgumentError("features", "the session was not opened with them")
        if features.end >= session.committed:
            raise InvalidArgumentError(
                "features",
                f"positions up to {features.end} of {session.committed} committed tokens",
            )
        self._drafter.take_features(session.key, features)

    def close_link(self, link: LinkId) -> None:
        """Free all sessions of a link."""
        for key in [key for key in self._sessions if key[0] == link]:
            self._free(key, UnavailableError("the link has ended"))
        self._traces.take_farewells()  # nobody is left to hear them

    def fail_all(self, error: Exception) -> Replies:
        """Answer every session with an error and free it."""
        replies: Replies = [self._fail(key, error) for key in list(self._sessions)]
        return [*self._traces.take_farewells(), *replies]

    def _fail(self, key: SessionKey, error: Exception) -> tuple[LinkId, SessionError]:
        self._free(key, error)
        return key[0], SessionError(key[1], *describe_error(error))

    def _free(self, key: SessionKey, error: Exception | None = None) -> None:
        self._traces.close(key, error)
        session = self._sessions.pop(key, None)
        if session is not None:
            self._branching.forget(session)
        # what failed, or lost its link, may have left nothing worth keeping
        committed = session.tokens[: session.committed] if session and error is None else ()
        self._drafter.release(key, committed)

    # --- the step ---------------------------------------------------------------------------

    def next_step_at(self, now: float) -> float | None:
        """Now, if a session wants to draft."""
        is_active = any(session.is_active for session in self._sessions.values())
        return now if is_active or self._branching.has_work else None

    def step(self, now: float) -> Replies:
        """One proposal for every session with room in its window; blocks that became full."""
        asked: list[ProposeRequest] = []
        replies: Replies = []
        num_sessions = len(self._sessions)
        ahead = self._branching.is_on(num_sessions)
        for session in self._sessions.values():
            request = session.request(ahead=ahead)
            if request is not None:
                asked.append(request)
            elif session.is_active:
                replies += self._take_block(session, found_nothing=False)
        if asked or not replies:  # a block that is ready goes out first
            self._branching.begin(num_sessions=num_sessions)
            asked += self._branching.requests()
        if asked:
            replies += self._run(asked)
        return [*self._traces.take_farewells(), *replies]

    def _run(self, asked: list[ProposeRequest]) -> Replies:
        """One drafting step; if it fails, each session alone, so that a bad one hurts no other."""
        started = time.perf_counter()
        if self._traces:
            self._traces.step_begins()
        try:
            proposals = self._drafter.propose(asked)
        except Exception as error:
            if len(asked) > 1:
                return [reply for request in asked for reply in self._run([request])]
            if asked[0].key not in self._sessions:
                logger.debug("an outcome is not drafted ahead: %s", error)
                self._branching.give_up(asked[0].key)
                return []
            logger.exception("drafting failed", extra=self._about(asked[0].key))
            if not isinstance(error, PacelineError):
                self._failures.failed(error)
                error = UnavailableError(f"drafting failed: {describe_error(error)[1]}")
            return [self._fail(asked[0].key, error)]
        self._failures.succeeded()
        seconds = time.perf_counter() - started
        num_steps = max(proposal.num_steps for proposal in proposals)
        num_sessions = sum(request.key in self._sessions for request in asked)
        self.metrics.stepped(seconds=seconds, sessions=num_sessions, steps=num_steps)
        reads = any(map(self._reads_much, asked, proposals))
        draw_s = None if reads else seconds
        return [
            reply
            for request, proposal in zip(asked, proposals, strict=True)
            for reply in self._take(request.key, proposal, draw_s)
        ]

    def _reads_much(self, request: ProposeRequest, proposal: Proposal) -> bool:
        """Whether a step read more than a block: its time is not that of a draft token."""
        session = self._sessions.get(request.key)
        return session is not None and proposal.num_read > 1 + session.num_drawn_tokens

    def _take(self, key: SessionKey, proposal: Proposal, seconds: float | None) -> Replies:
        session = self._sessions.get(key)
        if session is None:  # a branch
            block = self._branching.take(key, proposal)
            if block is None:
                return []
            self.metrics.sent(len(block.token_ids))
            return [(key[0], block)]
        if self._traces:
            self._traces.proposed(
                session.key,
                num_draws=len(proposal.draws),
                is_pending=proposal.is_pending or proposal.error is not None,
                is_waiting=proposal.is_waiting,
            )
        if proposal.error is not None:
            return [self._fail(session.key, proposal.error)]
        session.add(
            proposal.draws,
            seconds,
            proposal.tree,
            is_copied=proposal.is_copied,
            confidences=proposal.confidences,
        )
        found_nothing = not proposal.draws and not proposal.is_pending
        return self._take_block(
            session,
            found_nothing=found_nothing,
            is_waiting=proposal.is_waiting,
            ends=proposal.ends_block,
        )

    def _take_block(
        self,
        session: DraftSession,
        *,
        found_nothing: bool,
        is_waiting: bool = False,
        ends: bool = False,
    ) -> Replies:
        kv_length = self._drafter.kv_length(session.key)
        block = session.take_block(
            found_nothing=found_nothing, is_waiting=is_waiting, ends=ends, kv_length=kv_length
        )
        if block is None:
            return []
        self.metrics.sent(len(block.token_ids))
        trace = self._traces.get(session.key)
        if trace is not None:
            trace.sent(block)
        self._branching.sent(session, block.base, len(block.token_ids))
        return [(session.key[0], block)]

    def _about(self, key: SessionKey) -> dict[str, Any]:
        session = self._sessions.get(key)
        return session_fields(key[1], {} if session is None else session.opening.trace_context)

    # --- looking in -------------------------------------------------------------------------

    def describe(self) -> WorkerInfo:
        """What this worker is and how full; called from the event loop."""
        described = self._drafter.describe()
        return replace(
            described,
            live_sessions=len(self._sessions),
            counters={**described.counters, **self.counters},
        )
