"""The pipeline of one generation: drafts flow to the verifier, verdicts to drafter and client.

The drafter runs ahead by up to a window; nothing here waits for a round trip. When a worker is
lost, the session goes on: without drafts, or on another verifier from its committed tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from orchestrator.affinity import Demand
from orchestrator.answer_trace import AnswerTrace
from orchestrator.feature_flow import FeatureFlow, asks_for_features
from orchestrator.pacing import Pacing
from orchestrator.relay_settings import RelaySettings
from orchestrator.router import DrafterWorker, Router, VerifierWorker
from orchestrator.session import Session
from orchestrator.window_controller import WindowController, WindowPlan
from orchestrator.worker import WorkerSession
from paceline.errors import InvalidArgumentError, PacelineError, UnavailableError, describe_error
from paceline.features import Features
from paceline.logs import context_fields
from paceline.rpc.status import error_from_code
from paceline.sampling.params import SamplingParams
from paceline.types import (
    Advance,
    Credit,
    DraftBlock,
    DrafterEvent,
    DrafterReply,
    OpenSession,
    PromptFeatures,
    PromptLogprobs,
    SessionError,
    SessionSpans,
    SetSpeculation,
    TokenLogprobs,
    Verdict,
    VerifierEvent,
    VerifierReply,
)

logger = logging.getLogger(__name__)

MAX_REOPENINGS = 3
"""Attempts to go on after a verifier failed, without a token committed in between."""
BLOCK_FIELDS = frozenset({"base", "token_ids", "draft_probs", "parents"})
RETRIED_CODES = frozenset({"UNAVAILABLE", "ABORTED", "CANCELLED"})


def _nothing() -> None:
    pass


def is_about_a_block(error: PacelineError) -> bool:
    """Whether a verifier refused a draft block, and not the request itself."""
    return isinstance(error, InvalidArgumentError) and error.field in BLOCK_FIELDS


class Relay:
    """Keeps drafter and verifier in step for one session; used on the event loop only."""

    def __init__(
        self,
        router: Router,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        settings: RelaySettings,
        trace: AnswerTrace | None = None,
    ) -> None:
        self.session = Session(prompt_length=len(prompt), tokens=list(prompt))
        self.drafter_answered = False
        """Whether a drafter has taken part, if only to say that it has nothing to propose."""
        self._had_drafter = False
        self.first_token_s: float | None = None
        """Seconds from `start` to the first committed token."""
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._features = FeatureFlow()
        self._sends_features = False
        """Whether the verifier's session was opened to send features."""
        self._trace = trace
        self.trace_id = "" if trace is None else trace.trace_id
        """Of the request's trace; empty if it is not traced."""
        self._router = router
        self._demand = Demand(
            len(prompt) + sampling.max_tokens, settings.cache_key, settings.prefix_keys
        )
        self.seed = sampling.seed
        self._sampling = sampling
        self._settings = settings
        self._verifier: WorkerSession[VerifierEvent, VerifierReply] | None = None
        self._pacing: Pacing | None = None
        self._drafter: WorkerSession[DrafterEvent, DrafterReply] | None = None
        self._verdicts: asyncio.Queue[Verdict | PacelineError] = asyncio.Queue()
        self._committed_limit = len(prompt) + settings.commit_credit
        self._lost_verifier: VerifierWorker | None = None
        self._reopenings = 0
        self._reopening: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] = _nothing
        self._is_over = False
        self._is_counted = False
        self._started = 0.0
        self._about: dict[str, Any] = {}

    @property
    def window(self) -> int | None:
        """The present speculation window; None while no drafter takes part."""
        if self._drafter is None:
            return None
        return self._settings.window if self._pacing is None else self._pacing.plan.window

    # --- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the session on both workers, which prefill at the same time.

        Raises `UnavailableError` if no verifier is connected. Without a drafter the verifier
        decodes by itself.
        """
        self._started = time.monotonic()
        self._about = context_fields()
        verifier = self._router.verifier(self._demand)
        self._router.count_session(1)
        self._is_counted = True
        self._open_drafter(verifier)
        self._open_verifier(verifier)
        self._set_patience()
        self._stop_listening = self._router.listen(self._follow_router)

    async def verdicts(self) -> AsyncIterator[Verdict]:
        """Verdicts as they come, the last with a finish reason. Raises `PacelineError`."""
        while True:
            item = await self._verdicts.get()
            if isinstance(item, PacelineError):
                raise item
            yield item
            if item.finish_reason is not None:
                return

    def take_prompt_logprobs(self) -> list[TokenLogprobs]:
        """Of the prompt's ids from the second on: whole once a verdict has come, then gone."""
        taken, self._prompt_logprobs = self._prompt_logprobs, []
        return taken

    def taken(self, num_tokens: int) -> None:
        """The client has taken so many tokens in all; lets the verifier go on that far ahead."""
        limit = self.session.prompt_length + num_tokens + self._settings.commit_credit
        if limit - self._committed_limit >= self._settings.commit_credit // 4:
            self._committed_limit = limit  # one that is opened in the meantime hears it then
            if self._verifier is not None:
                self._send_verifier(Credit(self._verifier.session_id, limit))

    def close(self) -> None:
        """Free the session on both workers, whatever state it is in. Idempotent."""
        if self._reopening is not None:
            self._reopening.cancel()
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._stop_listening()
        self._stop_listening = _nothing
        if self._is_counted:
            self._is_counted = False
            self._router.count_session(-1)
        if self._verifier is not None or self._drafter is not None:
            self._demand = self._demand.grown(self.session.tokens)
        if self._verifier is not None:
            self._router.served_by(self._verifier.worker, self._demand)
            self._verifier.close()
            self._verifier = None
        if self._drafter is not None:
            self._router.served_by(self._drafter.worker, self._demand)
            self._drafter.close()
            self._drafter = None

    # --- the pipeline -----------------------------------------------------------------------

    def _on_draft(self, reply: DrafterReply, num_bytes: int) -> None:
        self.session.counts.bytes_drafter += num_bytes
        if isinstance(reply, SessionError):
            self._on_drafter_lost(error_from_code(reply.code, reply.message))
            return
        if isinstance(reply, SessionSpans):
            return
        self.drafter_answered = True
        is_taken = self.session.takes(reply) and self._verifier is not None
        if self._trace is not None:
            self._trace.drafted(reply, is_taken=is_taken)
        if is_taken and self._verifier is not None:
            if self._pacing is not None:
                self._pacing.drafted(reply, self._committed_at(reply), time.monotonic())
            self._send_verifier(replace(reply, session_id=self._verifier.session_id))
        else:
            self.session.counts.dropped += len(reply.token_ids)

    def _on_verdict(self, reply: VerifierReply, num_bytes: int) -> None:
        self.session.counts.bytes_verifier += num_bytes
        if isinstance(reply, SessionError):
            self._on_verifier_lost(error_from_code(reply.code, reply.message))
            return
        if isinstance(reply, SessionSpans):
            return
        if isinstance(reply, PromptLogprobs):
            repeated = len(self._prompt_logprobs) + 1 - reply.base  # by a reopening, in any chunks
            self._prompt_logprobs += reply.logprobs[repeated:]
            return
        if isinstance(reply, PromptFeatures):
            self._tell_features(reply.features)
            return
        if self.first_token_s is None:
            self.first_token_s = time.monotonic() - self._started
        self.session.commit(reply)
        self._reopenings = 0
        if self._trace is not None:
            self._trace.judged(reply)
        if reply.finish_reason is not None:
            self._tell_last(reply)
            self._end()
        elif self._drafter is not None:
            self._advance_drafter(reply)
        self._verdicts.put_nowait(reply)

    def _committed_at(self, block: DraftBlock) -> list[int]:
        """Tokens committed at a block's positions before it came."""
        return self.session.tokens[block.base : block.base + len(block.token_ids)]

    def _advance_drafter(self, verdict: Verdict) -> None:
        """Tell the drafter what became final, and how far to speculate from here."""
        assert self._drafter is not None
        advance = Advance(
            self._drafter.session_id,
            verdict.epoch,
            verdict.base,
            verdict.token_ids,
            features=self._features.fresh(verdict.features),
        )
        if self._pacing is not None:
            now = time.monotonic()
            live = 1 if self._verifier is None else self._verifier.worker.num_sessions
            before, plan = self._pacing.plan, self._pacing.judged(verdict, live, now)
            if plan != before:
                advance = replace(
                    advance,
                    window=plan.window,
                    num_speculative_tokens=plan.num_speculative_tokens,
                )
                self._set_speculation()
            self._pacing.advanced(len(self.session.tokens), now)
        self._send_drafter(advance)

    def _tell_features(self, features: Features) -> None:
        """Of tokens that the drafter has been told already."""
        fresh = self._features.fresh(features)
        if self._drafter is not None and fresh is not None:
            length = len(self.session.tokens)
            session_id, epoch = self._drafter.session_id, self.session.epoch
            self._send_drafter(Advance(session_id, epoch, length, (), features=fresh))

    def _asks_for_features(self, verifier: VerifierWorker) -> bool:
        """Whether the session's drafter drafts from this verifier's features."""
        return self._drafter is not None and asks_for_features(
            self._drafter.worker.info, verifier.info
        )

    def _tell_last(self, verdict: Verdict) -> None:
        """What a generation ends with is final too: the drafter keeps it for the next turn, and its
        spans say which drafts were kept."""
        if self._drafter is not None:
            session_id = self._drafter.session_id
            advance = Advance(session_id, verdict.epoch, verdict.base, verdict.token_ids, window=0)
            self._send_drafter(advance)

    def _set_patience(self) -> None:
        """Tell a verifier that knows of the drafter already, if the plan has a patience."""
        if self._pacing is not None and self._pacing.plan.patience_s is not None:
            self._set_speculation()

    def _set_speculation(self) -> None:
        if self._verifier is not None:
            patience_s = None if self._pacing is None else self._pacing.plan.patience_s
            patience_us = None if patience_s is None else int(patience_s * 1e6)
            self._send_verifier(
                SetSpeculation(
                    self._verifier.session_id,
                    enabled=self._drafter is not None,
                    patience_us=patience_us,
                )
            )

    def _send_verifier(self, event: VerifierEvent) -> None:
        if self._verifier is not None:
            self.session.counts.bytes_verifier += self._verifier.send(event)

    def _send_drafter(self, event: DrafterEvent) -> None:
        if self._drafter is not None:
            self.session.counts.bytes_drafter += self._drafter.send(event)

    def _opening(self, session_id: int, epoch: int, worker: VerifierWorker) -> OpenSession:
        info = worker.info
        assert info is not None, "a connected worker has described itself"
        return self._settings.opening(
            self.session,
            self._sampling,
            info,
            session_id=session_id,
            epoch=epoch,
            committed_limit=self._committed_limit,
            speculation=self._drafter is not None,
        )

    def _traced(self, session: WorkerSession[Any, Any], opening: OpenSession) -> OpenSession:
        """The opening of a worker's session, with the trace's context if there is a trace."""
        if self._trace is None:
            return opening
        return replace(opening, trace_context=self._trace.opened(session))

    # --- the drafter comes and goes ---------------------------------------------------------

    def _follow_router(self) -> None:
        """A drafter may have come back, or the load may allow drafts no more, or again."""
        if self._drafter is not None and not self._router.allows_drafts:
            self._drop_drafter()
        else:
            self._attach_drafter()

    def _drop_drafter(self) -> None:
        """Go on without drafts until the load is lower."""
        assert self._drafter is not None
        self._drafter.close()
        self._drafter = self._pacing = None
        self._set_speculation()

    def _attach_drafter(self) -> None:
        """Resume drafting when a drafter is there."""
        if self._is_over or self._drafter is not None or self._verifier is None:
            return
        if self._open_drafter(self._verifier.worker):
            self._set_speculation()

    def _open_drafter(self, verifier: VerifierWorker) -> bool:
        """Open the session on a drafter, if speculation is on and one is connected."""
        worker: DrafterWorker | None = self._router.drafter(self._demand)
        if not self._settings.speculation or worker is None:
            return False
        self._router.served_by(worker, self._demand)
        epoch = self.session.begin_epoch() if self._had_drafter else self.session.epoch
        self._had_drafter = True
        self._drafter = worker.open_session(
            self._on_draft, self._on_drafter_lost, num_tokens=self._demand.num_tokens
        )
        opening = self._opening(self._drafter.session_id, epoch, verifier)
        self._features.restart()
        if self._asks_for_features(verifier) and (self._verifier is None or self._sends_features):
            opening = replace(opening, features=True)
        self._send_drafter(self._traced(self._drafter, opening))
        self._start_pacing(verifier)
        if self._pacing is not None:  # the opening's window is the limit, not where to start
            self._restart_drafter(epoch)
        return True

    def _start_pacing(self, verifier: VerifierWorker) -> None:
        """Begin with what is known of this verifier and drafter."""
        settings = self._settings
        if not settings.adaptive or self._drafter is None:
            return
        experience = self._router.experience(verifier, self._drafter.worker)
        start = WindowPlan(settings.num_speculative_tokens, settings.start_window, patience_s=None)
        controller = WindowController(
            experience,
            max_window=settings.window,
            start=start,
            sessions=verifier.num_sessions + (self._verifier is None),
            is_deterministic=self._sampling.is_deterministic,
        )
        self._pacing = Pacing(controller, experience.cost)

    def _restart_drafter(self, epoch: int) -> None:
        """Tell the drafter to draft from the committed tokens in this epoch."""
        if self._drafter is None:
            return
        advance = Advance(self._drafter.session_id, epoch, len(self.session.tokens), ())
        if self._pacing is not None:
            plan = self._pacing.plan
            advance = replace(
                advance,
                window=plan.window,
                num_speculative_tokens=plan.num_speculative_tokens,
            )
        self._send_drafter(advance)

    def _on_drafter_lost(self, error: PacelineError) -> None:
        """Go on without drafts. A session that the drafter refuses is not offered again."""
        logger.debug("a session goes on without drafts: %s", error, extra=self._about)
        if self._trace is not None:
            self._trace.lost("drafter", error)
        self._drafter = None
        if not isinstance(error, UnavailableError):
            self._settings = replace(self._settings, speculation=False)
        self._pacing = None
        self._set_speculation()

    # --- the verifier is lost and replaced --------------------------------------------------

    def _open_verifier(self, worker: VerifierWorker) -> None:
        self._verifier = worker.open_session(
            self._on_verdict, self._on_verifier_lost, num_tokens=self._demand.num_tokens
        )
        self._router.served_by(worker, self._demand)
        opening = self._opening(self._verifier.session_id, self.session.epoch, worker)
        self._sends_features = self._asks_for_features(worker)
        opening = replace(opening, features=self._sends_features)
        self._send_verifier(self._traced(self._verifier, opening))

    def _on_verifier_lost(self, error: PacelineError) -> None:
        """Go on elsewhere from the committed tokens, or tell the client why not."""
        if self._verifier is not None:
            self._lost_verifier = self._verifier.worker
        self._verifier = None
        if self._is_over:
            return
        if self._trace is not None:
            self._trace.lost("verifier", error)
        if self.session.counts.drafted and self._drafter and is_about_a_block(error):
            # A faulty drafter costs the session its drafts, not its life.
            logger.warning("a session goes on without its drafter: %s", error, extra=self._about)
            self._drafter.close()
            self._drafter = self._pacing = None
            self._settings = replace(self._settings, speculation=False)
        elif error.code not in RETRIED_CODES or self._reopenings >= MAX_REOPENINGS:
            self._fail(error)
            return
        self._reopenings += 1
        self._reopening = asyncio.create_task(self._reopen(error))

    async def _reopen(self, reason: PacelineError) -> None:
        try:
            worker = await self._router.wait_for_verifier(
                self._settings.failover_timeout_s, self._demand, avoid=self._lost_verifier
            )
            epoch = self.session.begin_epoch()
            self.session.counts.reopenings += 1
            self._open_verifier(worker)
        except PacelineError as error:
            self._fail(UnavailableError(f"{reason}; {error}"))
            return
        except Exception as error:  # its client waits for an answer, whatever it is
            logger.exception("a session could not be reopened", extra=self._about)
            self._fail(PacelineError(describe_error(error)[1]))
            return
        if self._drafter is not None:  # its outstanding drafts went to a verifier that is gone
            self._start_pacing(worker)
            self._set_patience()
            self._restart_drafter(epoch)
        else:
            self._attach_drafter()

    def _fail(self, error: PacelineError) -> None:
        self._end()
        self._verdicts.put_nowait(error)
