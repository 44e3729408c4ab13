"""The verifier's side of one generation: opened, told what to judge, lost and replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from orchestrator.affinity import Demand
from orchestrator.relay_settings import RelaySettings
from orchestrator.router import Router, VerifierWorker
from orchestrator.session import Session
from orchestrator.window_plan import WindowPlan
from orchestrator.worker import WorkerSession
from paceline.errors import InvalidArgumentError, PacelineError, UnavailableError, describe_error
from paceline.types import (
    Credit,
    DraftBlock,
    OpenSession,
    SetSpeculation,
    VerifierEvent,
    VerifierReply,
)

logger = logging.getLogger(__name__)

MAX_REOPENINGS = 3
"""Attempts to go on after a verifier failed, without a token committed in between."""
RETRIED_CODES = frozenset({"UNAVAILABLE", "ABORTED", "CANCELLED"})
BLOCK_FIELDS = frozenset({"base", "token_ids", "draft_probs", "parents", "outcome"})


def is_about_a_block(error: PacelineError) -> bool:
    """Whether a verifier refused a draft block, and not the request itself."""
    return isinstance(error, InvalidArgumentError) and error.field in BLOCK_FIELDS


class VerifierSide:
    """A generation's session on a verifier, and on another one when that is lost.

    `on_reply` and `on_lost` hear what the verifier says; whoever listens calls `lost`.
    Where another is looked for, `on_found` opens the session there, and `on_failed` hears that
    there is none.
    """

    def __init__(
        self,
        router: Router,
        session: Session,
        settings: RelaySettings,
        *,
        on_reply: Callable[[VerifierReply, int], None],
        on_lost: Callable[[PacelineError], None],
        on_found: Callable[[VerifierWorker], None],
        on_failed: Callable[[PacelineError], None],
    ) -> None:
        self.sends_features = False
        """Whether the session was opened to send features."""
        self.committed_limit = session.prompt_length + settings.commit_credit
        """Committed length, prompt included, that the client has asked for so far."""
        self._router = router
        self._session = session
        self._settings = settings
        self._worker: WorkerSession[VerifierEvent, VerifierReply] | None = None
        self._lost_worker: VerifierWorker | None = None
        self._reopenings = 0
        self._search: asyncio.Task[None] | None = None
        self._told: SetSpeculation | None = None
        """What this worker heard last of how to speculate."""
        self._was_opening = False
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._on_found = on_found
        self._on_failed = on_failed

    @property
    def worker(self) -> VerifierWorker | None:
        """Who judges; None before the start, after the end, and while another one is looked for."""
        return None if self._worker is None else self._worker.worker

    # --- it comes and goes ------------------------------------------------------------------

    def open(
        self,
        worker: VerifierWorker,
        demand: Demand,
        opening: Callable[[WorkerSession[VerifierEvent, VerifierReply], int], OpenSession],
        *,
        features: bool,
    ) -> None:
        """Open the session; `opening` makes what the worker is told, of its session and an epoch.

        Raises `UnavailableError` if it is not connected.
        """
        self._worker = worker.open_session(
            self._on_reply, self._on_lost, num_tokens=demand.num_tokens
        )
        self._router.served_by(worker, demand)
        self.sends_features = features
        self._told, self._was_opening = None, False
        self._send(replace(opening(self._worker, self._session.epoch), features=features))

    def lost(self) -> None:
        """The verifier is gone, or has freed the session."""
        if self._worker is not None:
            self._lost_worker = self._worker.worker
        self._worker = None

    def committed(self) -> None:
        """It goes on well: a loss later on is another matter."""
        self._reopenings = 0

    def may_try_another(self, error: PacelineError) -> bool:
        """Whether the error is one that another verifier may not have."""
        return error.code in RETRIED_CODES and self._reopenings < MAX_REOPENINGS

    def find_another(self, reason: PacelineError, demand: Demand) -> None:
        """Look for a verifier to go on with, in the background."""
        self._reopenings += 1
        self._search = asyncio.create_task(self._find(reason, demand))

    async def _find(self, reason: PacelineError, demand: Demand) -> None:
        try:
            self._on_found(
                await self._router.wait_for_verifier(
                    self._settings.failover_timeout_s, demand, avoid=self._lost_worker
                )
            )
        except PacelineError as error:
            self._on_failed(UnavailableError(f"{reason}; {error}"))
        except Exception as error:  # its client waits for an answer, whatever it is
            logger.exception("a session could not be reopened")
            self._on_failed(PacelineError(describe_error(error)[1]))

    def end(self, demand: Demand) -> None:
        """Free the session, whose KV stays there for another turn. Idempotent."""
        if self._worker is not None:
            self._router.served_by(self._worker.worker, demand)
            self._worker.close()
            self._worker = None

    def stop_looking(self) -> None:
        """Nobody waits for another verifier any more."""
        if self._search is not None:
            self._search.cancel()

    # --- what it is told --------------------------------------------------------------------

    def judge(self, block: DraftBlock) -> None:
        """A draft block to verify. What was copied is of no interest to it."""
        if self._worker is not None:
            self._send(replace(block, session_id=self._worker.session_id, copied=()))

    def let_run_ahead(self, num_taken: int) -> None:
        """The client has taken so many tokens in all; one that is opened later hears it then."""
        credit = self._settings.commit_credit
        limit = self._session.prompt_length + num_taken + credit
        if limit - self.committed_limit < credit // 4:
            return
        self.committed_limit = limit
        if self._worker is not None:
            self._send(Credit(self._worker.session_id, limit))

    def expect_drafts(self, plan: WindowPlan | None, *, enabled: bool) -> None:
        """Whether drafts will come, and by what plan; None leaves the rest to its configuration."""
        if self._worker is None:
            return
        told = SetSpeculation(self._worker.session_id, enabled=enabled)
        if plan is not None:
            patience_us = None if plan.patience_s is None else int(plan.patience_s * 1e6)
            told = replace(told, patience_us=patience_us, max_drafts_per_pass=plan.max_judged)
        # what is about to open, or just has, ends what the verifier knows of the drafter
        is_opening = plan is not None and plan.is_about_to_open
        if told != self._told or is_opening or self._was_opening:
            self._told, self._was_opening = told, is_opening
            self._send(told)

    def _send(self, event: VerifierEvent) -> None:
        assert self._worker is not None
        self._session.counts.bytes_verifier += self._worker.send(event)
