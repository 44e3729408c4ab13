"""The verifier's engine: one ragged forward pass over all sessions, one verdict for each.

Runs on the engine thread; free of I/O, so that tests drive it event by event.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any, TypeAlias

from paceline.config import VerifierConfig
from paceline.errors import InvalidArgumentError, PacelineError, UnavailableError, describe_error
from paceline.logs import session_fields
from paceline.runtime.admission import AdmissionQueue
from paceline.runtime.emulated import device_counters
from paceline.runtime.engine_thread import FailureCount, LinkId, SessionKey
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.prefix_cache import PrefixCache
from paceline.runtime.runner import Runner
from paceline.runtime.scheduler import share_budget
from paceline.sampling.acceptance import Judgement
from paceline.telemetry.metrics import VerifierMetrics
from paceline.telemetry.tracing import Tracing
from paceline.types import (
    CloseSession,
    Credit,
    DraftBlock,
    OpenSession,
    PassTimings,
    SessionError,
    SetSpeculation,
    VerifierEvent,
    VerifierReply,
    WorkerInfo,
)
from verifier_service.feature_replies import prompt_features, with_features
from verifier_service.opening import open_session
from verifier_service.plan import PassPlan
from verifier_service.ragged_pass import Entry, run_pass
from verifier_service.session import VerifierSession
from verifier_service.traces import VerifierTraces

logger = logging.getLogger(__name__)

Replies: TypeAlias = list[tuple[LinkId, VerifierReply]]


class Verifier:
    """Judges the draft tails of many sessions together; decodes by itself without drafts."""

    def __init__(
        self,
        runner: Runner,
        config: VerifierConfig,
        info: WorkerInfo,
        grammar: GrammarEngine | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.metrics = VerifierMetrics()
        self.counters = self.metrics.counters
        self._runner = runner
        self._grammar = grammar
        self._config = config
        self._info = info
        self._sessions: dict[SessionKey, VerifierSession] = {}
        self._waiting: AdmissionQueue[SessionKey] = AdmissionQueue(
            runner.pool,
            max_waiting_s=config.runtime.max_waiting_s,
            max_waiting_sessions=config.runtime.max_waiting_sessions,
        )
        self._prefixes = PrefixCache(runner.pool, enabled=config.runtime.prefix_reuse)
        self._turn = itertools.count(1)
        self._failures = FailureCount()
        self._traces = VerifierTraces(tracing or Tracing("paceline-verifier"))

    # --- events -----------------------------------------------------------------------------

    def handle(self, link: LinkId, event: VerifierEvent, now: float) -> Replies:
        """Take one event. A wrong one ends its own session and touches no other."""
        replies = self._handle(link, event, now)
        return [*self._traces.take_farewells(), *replies]

    def _handle(self, link: LinkId, event: VerifierEvent, now: float) -> Replies:
        key = (link, event.session_id)
        try:
            if isinstance(event, OpenSession):
                self._open(key, event, now)
            elif isinstance(event, CloseSession):
                self._free(key)
            elif key in self._sessions:  # else a late event of a session that has ended
                self._apply(self._sessions[key], event, now)
            elif isinstance(event, DraftBlock):
                self.metrics.received(len(event.token_ids))
                self.metrics.discarded(len(event.token_ids), "ended")
        except PacelineError as error:
            return [self._fail(key, error)]
        except Exception as error:
            logger.exception("an event failed", extra=self._about(key))
            return [self._fail(key, error)]
        return []

    def _apply(self, session: VerifierSession, event: VerifierEvent, now: float) -> None:
        if isinstance(event, DraftBlock):
            session.add_block(event, now)
            self.metrics.received(len(event.token_ids))
        elif isinstance(event, Credit):
            session.grant(event.committed_limit)
        elif isinstance(event, SetSpeculation):
            patience_us = event.patience_us
            patience_s = None if patience_us is None else patience_us / 1e6
            session.set_speculation(
                enabled=event.enabled,
                patience_s=patience_s,
                max_drafts=event.max_drafts_per_pass,
            )

    def _open(self, key: SessionKey, opening: OpenSession, now: float) -> None:
        if key in self._sessions:
            raise InvalidArgumentError("session_id", f"{opening.session_id} is already open")
        session = open_session(opening, self._runner, self._config, self._grammar)
        keys = (
            ()
            if session.computes_all
            else self._prefixes.keys(opening.token_ids, salt=opening.cache_salt)
        )
        self._waiting.enter(key, opening.max_length, now, prefix=keys)
        self._sessions[key] = session
        self._traces.open(key, opening, now)
        self._admit()

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
        self._waiting.leave(key)
        if session is not None:
            self._count_discarded(session)
            waiting = len(session.tail) + session.outcomes.num_tokens
            self.metrics.discarded(waiting, "ended")
            if session.table is not None:
                session.table.free()
        self._admit()

    def _admit(self) -> None:
        for key, table in self._waiting.admit():
            session = self._sessions[key]
            session.table = table
            session.num_reused = table.length
            self._prefixes.count_reused(table.length)

    # --- the step ---------------------------------------------------------------------------

    def next_step_at(self, now: float) -> float | None:
        """The earliest time at which a session is ready or gives up waiting."""
        times = [session.ready_at(now) for session in self._sessions.values()]
        times.append(self._waiting.next_expiry())
        return min((at for at in times if at is not None), default=None)

    def step(self, now: float) -> Replies:
        """Schedule, run, judge, commit."""
        replies: Replies = [self._fail(key, refusal) for key, refusal in self._waiting.expire(now)]
        entries = self._schedule(now)
        if entries:
            replies += self._run(entries, now)
        return [*self._traces.take_farewells(), *replies]

    def _schedule(self, now: float) -> list[Entry]:
        """Decoding sessions first, least recently served first; prompts share what is left."""
        decodes: list[tuple[SessionKey, VerifierSession, PassPlan]] = []
        prefills: list[tuple[SessionKey, VerifierSession, PassPlan]] = []
        for key, session in sorted(self._sessions.items(), key=lambda item: item[1].last_served):
            self._adopt_prefix(session)
            plan = session.plan(now)
            if plan is not None:
                (decodes if plan.num_uncached == 1 else prefills).append((key, session, plan))
        decode_grants, prefill_grants = share_budget(
            [plan.num_inputs for _, _, plan in decodes],
            [plan.num_inputs for _, _, plan in prefills],
            self._config.runtime.max_batch_tokens,
        )
        wanted = zip(decodes + prefills, decode_grants + prefill_grants, strict=True)
        entries = []
        for (key, session, plan), granted in wanted:
            if granted:
                session.last_served = next(self._turn)
                entries.append(Entry(key, session, plan, plan.chunk_of(granted)))
        return entries

    def _adopt_prefix(self, session: VerifierSession) -> None:
        """Take over what others have cached of this one's tokens since it was admitted.

        The rows of a prompt whose log-probabilities are asked for must be computed.
        """
        if session.table is not None and not session.computes_all:
            salt = session.opening.cache_salt
            session.num_reused += self._prefixes.adopt(session.table, session.tokens, salt=salt)

    def _publish_prefix(self, session: VerifierSession) -> None:
        """Offer a session's full pages to later ones: all that they hold is committed."""
        assert session.table is not None
        salt = session.opening.cache_salt
        self._prefixes.publish(session.table, session.tokens, session.num_cached, salt=salt)

    def _run(self, entries: list[Entry], now: float) -> Replies:
        """One pass; if it fails, each session alone, so that a bad one hurts no other."""
        try:
            replies = self._pass(entries, now)
        except Exception as error:
            for entry in entries:
                entry.session.roll_back(entry.plan)
            if len(entries) > 1:
                return [reply for entry in entries for reply in self._run([entry], now)]
            logger.exception("a pass failed", extra=self._about(entries[0].key))
            if not isinstance(error, PacelineError):
                self._failures.failed(error)
                error = UnavailableError(f"verification failed: {describe_error(error)[1]}")
            return [self._fail(entries[0].key, error)]
        self._failures.succeeded()
        return replies

    def _pass(self, entries: list[Entry], now: float) -> Replies:
        if self._traces:
            self._traces.pass_begins(entry.key for entry in entries)
        result = run_pass(self._runner, entries, with_probs=self._with_probs(entries))
        timings = result.timings
        self.metrics.passed(seconds=result.seconds, rows=timings.rows, sessions=timings.sessions)
        self._prefixes.count_computed(result.num_prompt_tokens)
        for entry in entries:
            if not entry.is_complete:
                self._publish_prefix(entry.session)
        replies: Replies = [(key[0], read) for key, read in result.prompt_logprobs]
        replies += prompt_features(entries, result)
        for entry, judgement in result.judged:
            queue_us = entry.session.waited_us(now)
            committed = self._commit(entry, judgement, replace(timings, queue_us=queue_us))
            replies.append((committed[0], with_features(committed[1], entry, judgement, result)))
        self._traces.pass_ends(timings)
        return replies

    def _with_probs(self, entries: list[Entry]) -> set[SessionKey]:
        """The sessions that are traced so closely that they tell the target's probabilities."""
        if not self._traces:
            return set()
        return {entry.key for entry in entries if self._traces.asks_for_probs(entry.key)}

    def _commit(
        self, entry: Entry, judgement: Judgement | PacelineError, timings: PassTimings
    ) -> tuple[LinkId, VerifierReply]:
        if isinstance(judgement, PacelineError):
            entry.session.distrust(judgement)
            return self._fail(entry.key, entry.session.explained(judgement))
        if judgement.path is not None and entry.session.table is not None:
            self._runner.keep(entry.session.table, len(entry.session.tokens), judgement.path)
        verdict = entry.session.commit(entry.plan, judgement, timings)
        if entry.session.is_stuck:
            problem = "what must come next cannot be spelt with the model's tokens"
            return self._fail(entry.key, InvalidArgumentError("grammar", problem))
        self._publish_prefix(entry.session)
        self.metrics.judged(verdict)
        self._count_discarded(entry.session)
        if self._traces:
            self._traces.judged(entry.key, verdict)
        if verdict.finish_reason is not None:
            self._free(entry.key)
        return entry.key[0], verdict

    def _about(self, key: SessionKey) -> dict[str, Any]:
        session = self._sessions.get(key)
        return session_fields(key[1], {} if session is None else session.opening.trace_context)

    def _count_discarded(self, session: VerifierSession) -> None:
        for reason, num_tokens in session.discards.take_by_reason().items():
            self.metrics.discarded(num_tokens, reason)

    # --- looking in -------------------------------------------------------------------------

    def describe(self) -> WorkerInfo:
        """What this worker is and how full; called from the event loop."""
        pool = self._runner.pool
        return replace(
            self._info,
            kv_page_size=pool.page_size,
            kv_pages_total=pool.num_pages,
            kv_pages_used=pool.used_pages,
            kv_pages_reserved=pool.reserved_pages,
            live_sessions=len(self._sessions),
            waiting_sessions=len(self._waiting),
            counters=self.counters | self._prefixes.counters | device_counters(self._runner),
        )
