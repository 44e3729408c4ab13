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
from functools import partial
from typing import Any

from orchestrator.affinity import Demand
from orchestrator.answer_trace import AnswerTrace
from orchestrator.draft_side import DraftSide, Rethink
from orchestrator.relay_settings import RelaySettings
from orchestrator.router import Router, VerifierWorker
from orchestrator.session import Session
from orchestrator.verifier_side import VerifierSide, is_about_a_block
from orchestrator.worker import WorkerSession
from paceline.errors import PacelineError, UnavailableError
from paceline.logs import context_fields
from paceline.rpc.status import error_from_code
from paceline.sampling.params import SamplingParams
from paceline.types import (
    DraftBlock,
    DrafterReply,
    OpenSession,
    PromptFeatures,
    PromptLogprobs,
    SessionError,
    SessionSpans,
    TokenLogprobs,
    Verdict,
    VerifierReply,
)

logger = logging.getLogger(__name__)

DECIDES_AFTER_S = 0.001
"""After a verdict, of which drafter and client are told meanwhile, a plan may be thought over: the
search for another can take as long."""


def _nothing() -> None:
    pass


def _later(delay_s: float, work: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, work)


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
        self.had_drafter = False
        """Whether a drafter has taken part: has answered, if only to say that it has nothing to
        propose, or was there to the end."""
        self.first_token_s: float | None = None
        """Seconds from `start` to the first committed token."""
        self._prompt_logprobs: list[TokenLogprobs] = []
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
        self._verifier = VerifierSide(
            router,
            self.session,
            settings,
            on_reply=self._on_verdict,
            on_lost=self._on_verifier_lost,
            on_found=self._reopen,
            on_failed=self._fail,
        )
        self._drafts = DraftSide(
            router,
            self.session,
            sampling,
            settings,
            on_reply=self._on_draft,
            on_lost=self._on_drafter_lost,
        )
        self._verdicts: asyncio.Queue[Verdict | PacelineError] = asyncio.Queue()
        self._stop_listening: Callable[[], None] = _nothing
        self._rethink: Rethink | None = None
        """What is to be decided once the last verdict has left for drafter and client."""
        self._later = _later
        self._is_over = False
        self._is_counted = False
        self._started = 0.0
        self._about: dict[str, Any] = {}

    @property
    def window(self) -> int | None:
        """The present speculation window; None while no drafter takes part."""
        return self._drafts.window

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
        self._drafts.begin(verifier)
        if not self._drafts.is_as_configured:
            self._set_speculation()
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
        self._verifier.let_run_ahead(num_tokens)

    def close(self) -> None:
        """Free the session on both workers, whatever state it is in. Idempotent."""
        self._verifier.stop_looking()
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._stop_listening()
        self._stop_listening = _nothing
        if self._is_counted:
            self._is_counted = False
            self._router.count_session(-1)
        self.had_drafter |= self._drafts.is_open
        if self._verifier.worker is not None or self._drafts.is_open:
            self._demand = self._demand.grown(self.session.tokens)
        self._verifier.end(self._demand)
        self._drafts.end(self._demand)

    # --- the pipeline -----------------------------------------------------------------------

    def _on_draft(self, reply: DrafterReply, num_bytes: int) -> None:
        self._decide()
        self.session.counts.bytes_drafter += num_bytes
        if isinstance(reply, SessionError):
            self._on_drafter_lost(error_from_code(reply.code, reply.message))
            return
        if isinstance(reply, SessionSpans):
            return
        self.had_drafter = True
        is_taken = self.session.takes(reply) and self._verifier.worker is not None
        committed = self._committed_at(reply)
        if self._trace is not None:
            self._trace.drafted(reply, committed, is_taken=is_taken)
        if is_taken:
            self._drafts.relayed(reply, committed, time.monotonic())
            if not self._drafts.is_old_news(reply):
                self._verifier.judge(reply)
        else:
            self.session.counts.dropped += len(reply.token_ids)

    def _on_verdict(self, reply: VerifierReply, num_bytes: int) -> None:
        self._decide()
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
            self._drafts.tell_features(reply.features)
            return
        if self.first_token_s is None:
            self.first_token_s = time.monotonic() - self._started
        self.session.commit(reply)
        self._verifier.committed()
        if self._trace is not None:
            self._trace.judged(reply)
        if reply.finish_reason is not None:
            self._drafts.tell_last(reply)
            self._end()
        elif self._drafts.is_open:
            self._advance_drafter(reply)
        self._verdicts.put_nowait(reply)
        if self._rethink is not None:
            self._later(DECIDES_AFTER_S, self._decide)

    def _committed_at(self, block: DraftBlock) -> list[int]:
        """Tokens committed at a block's positions before it came."""
        return self.session.tokens[block.base : block.base + len(block.token_ids)]

    def _advance_drafter(self, verdict: Verdict) -> None:
        """Tell the drafter what became final, and both workers how to speculate from here."""
        verifier = self._verifier.worker
        live = 1 if verifier is None else verifier.num_sessions
        self._rethink = self._drafts.advance(verdict, live_sessions=live, now=time.monotonic())
        if self._rethink is not None and not self._rethink.may_wait:
            self._decide()

    def _decide(self) -> None:
        """Decide how to go on after the last verdict, if that is still to be decided."""
        rethink, self._rethink = self._rethink, None
        if rethink is not None and not self._is_over and rethink.decide():
            self._set_speculation()

    def _set_speculation(self) -> None:
        self._verifier.expect_drafts(self._drafts.plan, enabled=self._drafts.is_open)

    # --- a worker's session -----------------------------------------------------------------

    def _opening(
        self, session: WorkerSession[Any, Any], epoch: int, verifier: VerifierWorker
    ) -> OpenSession:
        """What either worker is told at first, with the trace's context if there is a trace."""
        info = verifier.info
        assert info is not None, "a connected worker has described itself"
        opening = self._settings.opening(
            self.session,
            self._sampling,
            info,
            session_id=session.session_id,
            epoch=epoch,
            committed_limit=self._verifier.committed_limit,
            speculation=self._drafts.is_open,
        )
        if self._trace is None:
            return opening
        return replace(opening, trace_context=self._trace.opened(session))

    def _open_verifier(self, worker: VerifierWorker) -> None:
        self._verifier.open(
            worker,
            self._demand,
            partial(self._opening, verifier=worker),
            features=self._drafts.asks_for_features(worker),
        )

    def _open_drafter(self, verifier: VerifierWorker) -> bool:
        """Open the session on a drafter, if there is one to draft for this verifier."""
        is_first = self._verifier.worker is None
        return self._drafts.open(
            verifier,
            self._demand,
            partial(self._opening, verifier=verifier),
            may_have_features=is_first or self._verifier.sends_features,
        )

    # --- the drafter comes and goes ---------------------------------------------------------

    def _follow_router(self) -> None:
        """A drafter may have come back, or the load may allow drafts no more, or again."""
        may_draft = self._router.allows_drafts or self._settings.reproducible
        try:
            if self._drafts.is_open and not may_draft:
                self._drop_drafter()
            else:
                self._attach_drafter()
        except Exception:  # the others must hear it too, and this one can go on without drafts
            logger.exception("a session goes on without drafts", extra=self._about)
            self._drafts.close()
            self._drafts.refuse()

    def _drop_drafter(self) -> None:
        """Go on without drafts until the load is lower."""
        self._drafts.close()
        self._set_speculation()

    def _attach_drafter(self) -> None:
        """Resume drafting when a drafter is there."""
        verifier = self._verifier.worker
        if self._is_over or self._drafts.is_open or verifier is None:
            return
        if self._open_drafter(verifier):
            self._drafts.begin(verifier)
            self._set_speculation()

    def _on_drafter_lost(self, error: PacelineError) -> None:
        """Go on without drafts. A session that the drafter refuses is not offered again."""
        logger.debug("a session goes on without drafts: %s", error, extra=self._about)
        if self._trace is not None:
            self._trace.lost("drafter", error)
        self._drafts.lost()
        if not isinstance(error, UnavailableError):
            self._drafts.refuse()
        self._set_speculation()

    # --- the verifier is lost and replaced --------------------------------------------------

    def _on_verifier_lost(self, error: PacelineError) -> None:
        """Go on elsewhere from the committed tokens, or tell the client why not."""
        self._verifier.lost()
        if self._is_over:
            return
        if self._trace is not None:
            self._trace.lost("verifier", error)
        if self.session.counts.drafted and self._drafts.is_open and is_about_a_block(error):
            # A faulty drafter costs the session its drafts, not its life.
            logger.warning("a session goes on without its drafter: %s", error, extra=self._about)
            self._drafts.close()
            self._drafts.refuse()
        elif not self._verifier.may_try_another(error):
            self._fail(error)
            return
        self._verifier.find_another(error, self._demand)

    def _reopen(self, worker: VerifierWorker) -> None:
        """Go on from the committed tokens."""
        if self._is_over:
            return
        epoch = self.session.begin_epoch()
        self.session.counts.reopenings += 1
        self._open_verifier(worker)
        if not self._drafts.is_open:
            self._attach_drafter()
            return
        self._drafts.go_on(worker, epoch)
        if not self._drafts.is_as_configured:
            self._set_speculation()

    def _fail(self, error: PacelineError) -> None:
        self._end()
        self._verdicts.put_nowait(error)
