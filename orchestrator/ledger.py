"""The answers that are being generated: each is counted as it goes, and ends as one log line."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from orchestrator.relay import Relay
from orchestrator.reply import Reply
from orchestrator.request import GenerationRequest
from paceline.errors import PacelineError
from paceline.generation import OutputToken, SessionStatus
from paceline.logs import fields, set_context
from paceline.telemetry.orchestrator_metrics import OrchestratorMetrics
from paceline.types import FinishReason

logger = logging.getLogger(__name__)


class Ledger:
    """Every live answer of one orchestrator."""

    def __init__(self, metrics: OrchestratorMetrics) -> None:
        self.metrics = metrics
        self._accounts: dict[str, Account] = {}

    def statuses(self, limit: int) -> list[SessionStatus]:
        """The oldest live answers, at most `limit`."""
        oldest = list(self._accounts.values())[:limit]
        return [account.status() for account in oldest]

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Count a request that is refused in here, before it has a session."""
        try:
            yield
        except PacelineError as error:
            self.metrics.refused(error.code)
            raise

    @contextmanager
    def answer(
        self, request: GenerationRequest, relay: Relay, reply: Reply, *, peer: str
    ) -> Iterator[Account]:
        """One answer's life; however it is left, it is counted and logged once."""
        session = secrets.token_hex(8)
        trace_id = relay.trace_id
        set_context(session=session, trace_id=trace_id)
        account = Account(
            self.metrics, request, relay, reply, session=session, trace_id=trace_id, peer=peer
        )
        self._accounts[session] = account
        error_code = ""
        reason: FinishReason | None = None
        try:
            yield account
            reason = reply.finish_reason
        except (asyncio.CancelledError, GeneratorExit):
            reason = FinishReason.CANCELLED
            raise
        except Exception as error:
            error_code = error.code if isinstance(error, PacelineError) else "INTERNAL"
            raise
        finally:
            del self._accounts[session]
            account.end(reason or FinishReason.ERROR, error_code)


class Account:
    """What one answer has come to so far."""

    def __init__(
        self,
        metrics: OrchestratorMetrics,
        request: GenerationRequest,
        relay: Relay,
        reply: Reply,
        *,
        session: str,
        trace_id: str,
        peer: str,
    ) -> None:
        self._trace_id = trace_id
        self._metrics = metrics
        self._relay = relay
        self._reply = reply
        self._session = session
        self._peer = peer
        self._prompt_tokens = len(request.prompt)
        self._num_answered = 0
        self._started = time.monotonic()
        self._first: float | None = None
        self._last = self._started
        self._told = (0, 0, 0)
        metrics.began(self._prompt_tokens)

    def delivers(self, tokens: Sequence[OutputToken]) -> None:
        """A verdict came, and these tokens go to the client now; there may be none yet."""
        now = time.monotonic()
        if not self._num_answered and self._relay.first_token_s is not None:
            self._metrics.first_token(self._relay.first_token_s)
        self._num_answered += 1
        if (window := self._relay.window) is not None:
            self._metrics.judged(window)
        self._tell()
        if not tokens:
            return
        for token in tokens:
            if token.origin is not None:
                self._metrics.delivered(token.origin)
        if self._first is None:
            self._first = now
        else:
            self._metrics.waited(now - self._last)
        self._last = now

    def _tell(self) -> None:
        """Count what the relay has counted since the last time."""
        counts = self._relay.session.counts
        told = (counts.drafted, counts.dropped, counts.reopenings)
        if told != self._told:
            before, self._told = self._told, told
            drafted, dropped, reopened = (a - b for a, b in zip(told, before, strict=True))
            self._metrics.speculated(drafted=drafted, dropped=dropped, reopened=reopened)

    def end(self, reason: FinishReason, error_code: str) -> None:
        """It is over: count and log it."""
        self._tell()
        seconds = time.monotonic() - self._started
        counts = self._relay.session.counts
        num_tokens = self._reply.num_delivered
        per_token_s = None
        if self._first is not None and num_tokens > 1:
            per_token_s = (self._last - self._first) / (num_tokens - 1)
        self._metrics.ended(
            reason, seconds=seconds, queue_s=counts.queue_us / 1e6, per_token_s=per_token_s
        )
        first_token_s = self._relay.first_token_s
        logger.info(
            "request ended",
            extra=fields(
                session=self._session,
                trace_id=self._trace_id or None,
                finish_reason=reason.value,
                error=error_code or None,
                peer=self._peer,
                prompt_tokens=self._prompt_tokens,
                completion_tokens=num_tokens,
                first_token_ms=None if first_token_s is None else round(first_token_s * 1e3, 3),
                total_ms=round(seconds * 1e3, 3),
                drafted=counts.drafted,
                judged=counts.judged,
                accepted=counts.accepted,
                passes=counts.passes,
            ),
        )

    def status(self) -> SessionStatus:
        """How it stands now."""
        counts = self._relay.session.counts
        return SessionStatus(
            session=self._session,
            peer=self._peer,
            age_ms=int((time.monotonic() - self._started) * 1e3),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._reply.num_delivered,
            drafted=counts.drafted,
            judged=counts.judged,
            accepted=counts.accepted,
            window=self._relay.window or 0,
        )
