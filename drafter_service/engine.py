"""The drafter's engine: keeps every session's window full, all sessions stepping together.

Runs on the engine thread; free of I/O, so that tests drive it event by event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from drafter_service.drafter import Drafter, Forks, Proposal, ProposeRequest, TakesFeatures
from drafter_service.outcomes import Outcome
from drafter_service.session import DraftSession
from drafter_service.traces import DrafterTraces
from paceline.errors import InvalidArgumentError, PacelineError, UnavailableError, describe_error
from paceline.features import Features
from paceline.logs import session_fields
from paceline.outcomes import MAX_SESSIONS_AHEAD
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
        self._forks = drafter if isinstance(drafter, Forks) else None
        self._branches: dict[SessionKey, tuple[DraftSession, Outcome]] = {}
        """The outcomes that are drafted ahead, by their own keys."""
        self._num_branches = 0
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
                session = self._sessions[key]
                for step in session.steps_of(event):
                    self._advance(session, step)
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
        session = DraftSession(key, opening, context_length=self._drafter.context_length)
        self._drafter.reserve(key, opening)
        self._sessions[key] = session
        self._traces.open(key, opening, now)

    def _advance(self, session: DraftSession, event: Advance) -> None:
        length, num_unsent = len(session.tokens), session.num_unsent
        branches = session.branches
        valid, outcome, gone = session.advance(event)
        self._prune(gone)
        num_nodes_valid = 0
        if branches is not None:
            num_nodes_valid = num_nodes = len(branches.draws)
            if session.branches is None:
                committed = session.tokens[: session.committed]
                num_nodes_valid = branches.num_true(committed) if valid == branches.base else 0
                self.metrics.rolled_back(num_nodes - num_nodes_valid)
        trace = self._traces.get(session.key)
        if trace is not None:
            lost = num_unsent - session.num_unsent
            trace.advanced(valid + num_nodes_valid, session.committed, num_unsent_lost=lost)
        if valid < length:
            self.metrics.rolled_back(length - valid)
        if outcome is not None:
            self._graft(session, outcome)
        elif valid < length:
            self._drafter.rollback(session.key, valid)
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
            self._prune(session.outcomes.clear())
        # what failed, or lost its link, may have left nothing worth keeping
        committed = session.tokens[: session.committed] if session and error is None else ()
        self._drafter.release(key, committed)

    # --- the step ---------------------------------------------------------------------------

    def next_step_at(self, now: float) -> float | None:
        """Now, if a session wants to draft."""
        is_active = any(session.is_active for session in self._sessions.values())
        return now if is_active or self._unfinished() else None

    def step(self, now: float) -> Replies:
        """One proposal for every session with room in its window; blocks that became full."""
        asked: list[ProposeRequest] = []
        replies: Replies = []
        ahead = self._drafts_ahead
        for session in self._sessions.values():
            request = session.request(ahead=ahead)
            if request is not None:
                asked.append(request)
            elif session.is_active:
                replies += self._take_block(session, found_nothing=False)
        if asked or not replies:  # a block that is ready goes out first
            asked += self._unfinished()
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
            if asked[0].key in self._branches:
                logger.debug("an outcome is not drafted ahead: %s", error)
                self._give_up(*self._branches[asked[0].key])
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
        if key in self._branches:
            return self._take_branch(*self._branches[key], proposal)
        session = self._sessions.get(key)
        if session is None:  # a branch whose session has failed in this very step
            return []
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
        if block.token_ids and self._drafts_ahead:
            self._branch_at(session, range(block.base, block.base + len(block.token_ids)))
        return [(session.key[0], block)]

    # --- other outcomes ---------------------------------------------------------------------

    @property
    def _drafts_ahead(self) -> bool:
        """Whether there is time to draft other outcomes ahead."""
        return self._forks is not None and len(self._sessions) <= MAX_SESSIONS_AHEAD

    def _branch_at(self, session: DraftSession, positions: Iterable[int]) -> None:
        """Draft from now on for the case that a draft at these positions is rejected."""
        for position in positions:
            self._num_branches += 1
            key = (session.key[0], -self._num_branches)
            outcome = session.outcome_of(position, key)
            if outcome is None or self._forks is None:
                continue
            if self._forks.fork(session.key, key, position, session.num_outcome_tokens + 1):
                session.outcomes.add(outcome)
                self._branches[key] = session, outcome

    def _unfinished(self) -> list[ProposeRequest]:
        """What is still to be drawn for outcomes."""
        return [
            outcome.request(session.opening, session.tokens)
            for session, outcome in self._branches.values()
            if not outcome.is_full and session.num_outcome_tokens
        ]

    def _take_branch(self, session: DraftSession, outcome: Outcome, proposal: Proposal) -> Replies:
        """Draws behind an outcome; the block that they fill."""
        outcome.add(proposal.draws)
        if outcome.is_full:
            block = session.block_of(outcome, kv_length=self._drafter.kv_length(outcome.key))
            self.metrics.sent(len(block.token_ids))
            return [(session.key[0], block)]
        if proposal.error is not None or not (proposal.draws or proposal.is_pending):
            self._give_up(session, outcome)
        return []

    def _graft(self, session: DraftSession, outcome: Outcome) -> None:
        """An outcome has come true, and is the session's own line from now on."""
        assert self._forks is not None
        self._forks.graft(session.key, outcome.key)
        del self._branches[outcome.key]
        self.metrics.came_true()
        if not outcome.is_full:
            return
        trace = self._traces.get(session.key)
        if trace is not None:
            trace.sent(session.block_of(outcome, kv_length=self._drafter.kv_length(session.key)))
        self._branch_at(session, range(outcome.base, outcome.base + len(outcome.draws)))

    def _give_up(self, session: DraftSession, outcome: Outcome) -> None:
        session.outcomes.drop(outcome)
        self._prune([outcome])

    def _prune(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            del self._branches[outcome.key]
            if self._forks is not None:
                self._forks.prune(outcome.key)

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
