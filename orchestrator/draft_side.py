"""The drafter's side of one generation: opened, told what becomes final, lost and replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from orchestrator.affinity import Demand
from orchestrator.feature_flow import FeatureFlow, asks_for_features
from orchestrator.outcomes import worthwhile
from orchestrator.pacing import Pacing
from orchestrator.relay_settings import RelaySettings
from orchestrator.router import Router, VerifierWorker
from orchestrator.session import Session
from orchestrator.window_plan import WindowPlan
from orchestrator.worker import WorkerSession
from paceline.errors import PacelineError
from paceline.features import Features
from paceline.sampling.params import SamplingParams
from paceline.types import (
    Advance,
    DraftBlock,
    DrafterEvent,
    DrafterReply,
    DrafterState,
    OpenSession,
    Verdict,
)

MAX_UNTOLD = 64
"""Tokens that a drafter may be behind while its window is closed. It reads them in one go when the
window opens; each message would take a core from the verifier where they share the CPUs."""


@dataclass(frozen=True, slots=True)
class Rethink:
    """How far to speculate after a verdict, to be decided at once or, if it may, a little later.

    `decide` tells the drafter what has changed, and returns whether anything has. It comes before
    whatever is heard of the session next.
    """

    decide: Callable[[], bool]
    may_wait: bool


class _Heard(NamedTuple):
    """A verdict, the sessions that its verifier had, and when it came."""

    verdict: Verdict
    live_sessions: int
    at: float


class DraftSide:
    """A generation's session on a drafter, while it has one.

    `on_reply` and `on_lost` hear what the drafter says; whoever listens calls `lost`.
    """

    def __init__(
        self,
        router: Router,
        session: Session,
        sampling: SamplingParams,
        settings: RelaySettings,
        *,
        on_reply: Callable[[DrafterReply, int], None],
        on_lost: Callable[[PacelineError], None],
    ) -> None:
        self._router = router
        self._session = session
        self._is_deterministic = sampling.is_deterministic
        self._settings = settings
        self._is_wanted = settings.speculation
        self._had_one = False
        self._worker: WorkerSession[DrafterEvent, DrafterReply] | None = None
        self._opening: OpenSession | None = None
        """What a drafter that was opened has yet to hear."""
        self._outcome_tokens = 0
        """Which it was asked to draft ahead behind other outcomes."""
        self._pacing: Pacing | None = None
        self._said_nothing = False
        self._untold: tuple[int, ...] = ()
        """Committed last; a drafter whose window is closed need not hear of it at once."""
        self._features = FeatureFlow()
        self._on_reply = on_reply
        self._on_lost = on_lost

    # --- what it is like --------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a drafter takes part."""
        return self._worker is not None

    @property
    def window(self) -> int | None:
        """The present speculation window; None while no drafter takes part."""
        if self._worker is None:
            return None
        return self._settings.window if self._pacing is None else self._pacing.plan.window

    @property
    def plan(self) -> WindowPlan | None:
        """How it drafts at present; None where that does not change by itself."""
        return None if self._pacing is None else self._pacing.plan

    @property
    def is_as_configured(self) -> bool:
        """Whether the verifier need not hear of a plan, since it has nothing to do by it."""
        plan = self.plan
        return plan is None or (plan.patience_s is None and plan.max_judged is None)

    def asks_for_features(self, verifier: VerifierWorker) -> bool:
        """Whether the drafter drafts from this verifier's features."""
        return self._worker is not None and asks_for_features(
            self._worker.worker.info, verifier.info
        )

    # --- it comes and goes ------------------------------------------------------------------

    def open(
        self,
        verifier: VerifierWorker,
        demand: Demand,
        opening: Callable[[WorkerSession[DrafterEvent, DrafterReply], int], OpenSession],
        *,
        may_have_features: bool,
    ) -> bool:
        """Open a session on a drafter, if speculation is on and one is connected.

        It hears of it, and of the plan, by `begin`. `opening` makes what it is told, of its session
        and an epoch.
        """
        # other numbers decide without drafts: the load must not change what a seed gives
        worker = self._router.drafter(demand, at_any_load=self._settings.reproducible)
        if not self._is_wanted or worker is None:
            return False
        self._router.served_by(worker, demand)
        epoch = self._session.begin_epoch() if self._had_one else self._session.epoch
        self._had_one = True
        self._worker = worker.open_session(
            self._on_reply, self._on_lost, num_tokens=demand.num_tokens
        )
        self._features.restart()
        told = opening(self._worker, epoch)
        assert worker.info is not None, "a connected worker has described itself"
        assert verifier.info is not None
        self._outcome_tokens = told.num_outcome_tokens
        if worker.info.competes_with(verifier.info):  # it has no time while the target computes
            self._outcome_tokens = 0
        elif self._settings.adaptive:
            known = self._router.experience(verifier, worker)
            self._outcome_tokens = worthwhile(known, told.num_outcome_tokens)
        told = replace(told, num_outcome_tokens=self._outcome_tokens)
        if may_have_features and self.asks_for_features(verifier):
            told = replace(told, features=True)
        self._opening = told
        return True

    def begin(self, verifier: VerifierWorker) -> None:
        """Have a drafter that was opened start. The verifier has been opened by then, on which the
        first token waits."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        self._send(opening)
        self._start_pacing(verifier)
        if self._pacing is not None:  # the opening's window is the limit, not where to start
            self._tell_plan(opening.epoch)

    def go_on(self, verifier: VerifierWorker, epoch: int) -> None:
        """Draft from the committed tokens in this epoch, for a verifier that replaces another:
        what was outstanding went to one that is gone."""
        self._start_pacing(verifier)
        self._tell_plan(epoch)

    def lost(self) -> None:
        """The drafter is gone, or has freed the session."""
        self._worker = self._pacing = self._opening = None
        self._untold, self._said_nothing = (), False

    def close(self) -> None:
        """Free the session on the drafter. Idempotent."""
        if self._worker is not None:
            self._worker.close()
        self.lost()

    def end(self, demand: Demand) -> None:
        """The same at the end of the generation, whose KV stays there for another turn."""
        if self._worker is not None:
            self._router.served_by(self._worker.worker, demand)
        self.close()

    def refuse(self) -> None:
        """Ask no drafter again."""
        self._is_wanted = False

    def _start_pacing(self, verifier: VerifierWorker) -> None:
        """Begin with what is known of this verifier and drafter."""
        drafter = None if self._worker is None else self._worker.worker
        if not self._settings.adaptive or drafter is None:
            return
        assert drafter.info is not None, "a connected worker has described itself"
        assert verifier.info is not None
        self._pacing = Pacing.between(
            drafter.info,
            verifier.info,
            self._router.experience(verifier, drafter),
            self._settings,
            sessions=verifier.num_sessions,
            is_deterministic=self._is_deterministic,
            outcome_tokens=self._outcome_tokens,
        )

    def _tell_plan(self, epoch: int) -> None:
        if self._worker is not None:
            self._send(self._with_plan(self._news(epoch, len(self._session.tokens))))

    def _news(self, epoch: int, base: int, token_ids: tuple[int, ...] = ()) -> Advance:
        """That these tokens follow `base`, and what it was not told of before, which is told so."""
        assert self._worker is not None
        untold, self._untold = self._untold, ()
        return Advance(self._worker.session_id, epoch, base - len(untold), (*untold, *token_ids))

    def is_old_news(self, block: DraftBlock) -> bool:
        """Whether a block says only that there is nothing to propose, and need not be passed on.

        The verifier waits for none and has heard so before, or is to wait for what comes next; a
        message a token would take a core from it where they share them.
        """
        is_nothing = not block.token_ids and block.state is DrafterState.PAUSED
        said_before, self._said_nothing = self._said_nothing, is_nothing
        if self._pacing is None or not is_nothing:
            return False
        plan = self._pacing.plan  # one that opens has yet to be asked for what it shall wait for
        return plan.is_about_to_open or (said_before and plan.patience_s == 0.0)

    # --- what it is told --------------------------------------------------------------------

    def relayed(self, block: DraftBlock, committed: list[int], now: float) -> None:
        """A block goes on to the verifier; `committed` are the tokens at its positions so far."""
        if self._pacing is not None:
            self._pacing.drafted(block, committed, now)

    def advance(self, verdict: Verdict, *, live_sessions: int, now: float) -> Rethink | None:
        """Tell it what became final; returns how to find out how far to speculate from here.

        A session alone with a drafter that has a device of its own waits for what it is told, and
        hears it before that is thought over.
        """
        advance = replace(
            self._news(verdict.epoch, verdict.base, verdict.token_ids),
            features=self._features.fresh(verdict.features),
        )
        pacing = self._pacing
        if pacing is None:
            self._send(advance)
            return None
        is_urgent = live_sessions == 1 and not pacing.in_turns and pacing.plan.window > 0
        if is_urgent:
            self._tell(advance, pacing, now)
        heard = _Heard(verdict, live_sessions, now)
        untold = None if is_urgent else advance
        return Rethink(lambda: self._rethink(pacing, heard, untold), may_wait=is_urgent)

    def _rethink(self, pacing: Pacing, heard: _Heard, advance: Advance | None) -> bool:
        """Decide how far to speculate after a verdict, and tell the drafter, together with what it
        was not told of the verdict; whether anything changed."""
        if pacing is not self._pacing:  # it was lost meanwhile
            return False
        before = pacing.plan
        plan = pacing.judged(heard.verdict, heard.live_sessions, heard.at)
        if advance is None:
            if plan.drafting != before.drafting:
                news = self._news(heard.verdict.epoch, len(self._session.tokens))
                self._send(self._with_plan(news))
            return plan != before
        is_closed = not before.window and not plan.window
        if is_closed and advance.features is None and len(advance.token_ids) < MAX_UNTOLD:
            self._untold = advance.token_ids
            return plan != before
        if plan.drafting != before.drafting:
            advance = self._with_plan(advance)
        self._tell(advance, pacing, heard.at)
        return plan != before

    def _tell(self, advance: Advance, pacing: Pacing, now: float) -> None:
        pacing.advanced(len(self._session.tokens), now)
        self._send(advance)

    def tell_features(self, features: Features) -> None:
        """Of tokens that it has been told already."""
        fresh = self._features.fresh(features)
        if self._worker is not None and fresh is not None:
            news = self._news(self._session.epoch, len(self._session.tokens))
            self._send(replace(news, features=fresh))

    def tell_last(self, verdict: Verdict) -> None:
        """What a generation ends with is final too: the drafter keeps it for the next turn, and its
        spans say which drafts were kept."""
        if self._worker is not None:
            news = self._news(verdict.epoch, verdict.base, verdict.token_ids)
            self._send(replace(news, window=0))

    def _with_plan(self, advance: Advance) -> Advance:
        if self._pacing is None:
            return advance
        plan = self._pacing.plan
        return replace(
            advance,
            window=plan.window,
            num_speculative_tokens=plan.num_speculative_tokens,
            draw_window=plan.draw_window,
            num_drawn_tokens=plan.num_drawn_tokens,
            min_confidence=plan.min_confidence,
            min_copy_confidence=plan.min_copy_confidence,
        )

    def _send(self, event: DrafterEvent) -> None:
        if self._worker is not None:
            self._session.counts.bytes_drafter += self._worker.send(event)
