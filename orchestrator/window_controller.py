"""How far to speculate: follows one session and changes its plan, down to no speculation at all.

From running estimates of acceptance, draft time, pass time and round trip.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orchestrator.confidence_trust import ConfidenceTrust, DrawnBlock
from orchestrator.estimates import Experience
from orchestrator.pipeline_rate import Conditions
from orchestrator.session_experience import SessionExperience
from orchestrator.window_plan import (
    GAIN_BESIDE,
    GAIN_IN_TURNS,
    GAIN_TO_GO_ON_BESIDE,
    GAIN_TO_GO_ON_IN_TURNS,
    MAX_PROBE_TOKENS,
    NO_SPECULATION,
    PROBE_LENGTH,
    PROBE_SHARE,
    PROBE_SHARE_IN_HOPE,
    WindowPlan,
    best_plan,
    least_copy_confidence,
    most_judged,
    patience,
    probe_interval,
    rate,
    rows_are_free,
)

GAIN_TO_SWITCH = 1.03
"""A plan is left for one that is better by this factor; less is noise."""
GAIN_TO_SWITCH_IN_COMPANY = 1.1
"""Others pay for the messages that a change takes."""
FIRST_PROBE_TOKENS = 4
FIRST_BLOCKS = 3
"""Whose times decide at first where drafting cannot be timed in passing: one may be any."""
FIRST_TRY_TOKENS = 64
"""A drafter of which nothing was heard for so long is asked for less, and less often."""
PROBE_TOKENS = 8
"""Tokens, beyond those that drafts take to come, after which a probe without news is given up."""
READING_S = 0.25
"""The verifier waits so much longer for the first block, before which the drafter may have much to
read: one that reads beside a pass slows down both."""


class WindowController:
    """Adapts one session's speculation; pure bookkeeping, driven by the relay.

    It begins with what other sessions have learnt; while nobody knows anything, with `start` if the
    session is alone and without drafts in company.
    `is_deterministic` says whether the target's tokens do not depend on drafts, `in_turns` whether
    both workers compute on one device: the verifier then reads the prompt before the drafter does,
    nothing is drafted beside a pass while the session is alone, a window opens a pass after the
    verifier has heard of it, and a pair that nobody knows begins with short blocks. `on_one_device`
    says that they share one though this source of drafts takes no time of it; one that `copies`
    takes none anywhere. Behind other outcomes `outcome_tokens` are drafted ahead.
    """

    def __init__(
        self,
        experience: Experience,
        *,
        max_window: int,
        start: WindowPlan,
        sessions: int = 1,
        is_deterministic: bool = True,
        in_turns: bool = False,
        on_one_device: bool = False,
        copies: bool = False,
        outcome_tokens: int = 0,
    ) -> None:
        self.plan = start
        self._shared = experience
        self._max_window = max_window
        self._is_deterministic = is_deterministic
        self._in_turns = in_turns
        self._copies = copies
        self._on_one_device = on_one_device or in_turns
        self._seen = SessionExperience(
            experience,
            is_deterministic=is_deterministic,
            in_turns=in_turns,
            outcome_tokens=0 if self._on_one_device else outcome_tokens,
        )
        self._trust = ConfidenceTrust()
        self._block = DrawnBlock()
        self._sessions = sessions
        self._off_tokens = 0
        self._has_news = False
        self._has_heard = False
        """Whether an answer has come since the last verdict."""
        self._probe = NO_SPECULATION
        self._opening: WindowPlan | None = None
        """What holds from the next verdict on: the verifier has been told to wait for it."""
        self._is_overtaken = False
        """Whether the verifier of a pair that takes turns has gone on without the drafts."""
        if in_turns:  # the verifier reads the prompt first
            self.plan = NO_SPECULATION
        elif self._is_known(sessions):
            self.plan = NO_SPECULATION  # it has not begun
            self.plan = self._first_plan(sessions)
        elif sessions > 1:  # passes full of drafts that nobody knows would cost all of them
            self.plan = NO_SPECULATION

    def saw_offer(self, *, num_tokens: int, num_copied: int = 0) -> None:
        """The drafter has answered with so many tokens, `num_copied` or not; none where it has
        nothing to propose."""
        self.heard()
        self._seen.saw_offer(num_tokens=num_tokens)
        if not num_tokens:  # a probe has its answer: to ask on would cost messages at every token
            self._has_news = True

    def heard(self) -> None:
        """The drafter has answered, whatever it said: it is not silent."""
        self._has_heard = True

    def saw_block(self, *, num_tokens: int, draft_s: float, is_unsure: bool = False) -> None:
        """A block has come from the drafter; whether it ended because that was unsure."""
        if not num_tokens:
            return
        self._block = DrawnBlock(num_tokens, is_unsure)
        is_beside = self._is_overtaken or (self._in_turns and self._sessions > 1)
        estimate = self._shared.draft_beside_s if is_beside else self._shared.draft_s
        estimate.update(draft_s / num_tokens)
        self._shared.failed_tries = 0
        self.heard()

    def saw_round_trip(self, seconds: float) -> None:
        """Time on the wire and in queues to both workers and back."""
        self._seen.saw_round_trip(seconds)

    def saw_rejection(self, *, finds_drafts: bool, late: bool) -> None:
        """A draft was rejected; whether drafts behind the token that came were there already, or
        came later."""
        self._seen.saw_rejection(finds_drafts=finds_drafts, late=late)

    def saw_overtaken(self, *, compared: int, agreed: int, copied: Collection[int] = ()) -> None:
        """Drafts came after the verifier had gone on alone; so many agreed with it first."""
        if compared:
            self._has_news = True
            self._seen.saw_overtaken(compared=compared, agreed=agreed)

    def saw_verdict(
        self,
        *,
        judged: int,
        accepted: int,
        committed: int,
        sessions: int,
        copied: Collection[int] = (),
        is_plain: bool | None = None,
    ) -> None:
        """A verdict has come; `plan` is what to go on with.

        Drafts are judged alike, `copied` or not: one source is all that there is, unless `is_plain`
        says whether there were none of any source.
        """
        block, self._block = self._block, DrawnBlock()
        if judged:
            self._trust.saw(self.plan, block, judged=judged, accepted=accepted)
            self._has_news = True
            self._seen.saw_judged(judged=judged, accepted=accepted)
        was_closed = not self.plan.window
        self._sessions = sessions
        went_alone = not judged if is_plain is None else is_plain
        self._is_overtaken = self._in_turns and not was_closed and went_alone
        opening, self._opening = self._opening, None
        if opening is not None:
            self.plan = opening if self._takes_turns(sessions) else NO_SPECULATION
        if opening is None or not self.plan.window:
            self._plan(committed, sessions)
            if was_closed and self.plan.window and self._takes_turns(sessions):
                self._announce()
        self._has_heard = False

    def _first_plan(self, sessions: int) -> WindowPlan:
        """What holds until the first verdict: where drafts pay, and the drafter has a device of its
        own, what the session before found last, since a search takes a millisecond, for which the
        first token would wait.

        Nothing in company where rows cost something: others may come before that verdict, as in a
        burst, and drafts that paid for a few would keep all of them from their first tokens."""
        if sessions > 1 and not rows_are_free(self._seen.conditions(sessions)):
            return NO_SPECULATION
        known = self._shared.last_plans.get(self._kind(sessions))
        if known is None or not known.window or self._gain(sessions) is not None:
            return self._best(self._seen.conditions(sessions))[1]
        return known

    def _kind(self, sessions: int) -> tuple[bool, bool, int]:
        """Sessions of which each may begin as the last one went on."""
        return sessions > 1, self._is_deterministic, self._max_window

    def _announce(self) -> None:
        """Have the verifier wait after the pass that it has begun, and only then the drafter read
        and draft: the device is then the drafter's alone."""
        patience_s = self.plan.patience_s
        wait_s = None if patience_s is None else patience_s + READING_S
        self._opening = replace(self.plan, patience_s=wait_s)
        if self.plan is self._probe:
            self._probe = self._opening
        self.plan = replace(NO_SPECULATION, patience_s=wait_s, is_about_to_open=True)

    def _plan(self, committed: int, sessions: int) -> None:
        if self._is_known(sessions):
            self._decide(self._seen.conditions(sessions), committed)
        else:
            self._try(committed, sessions)

    def _try(self, committed: int, sessions: int) -> None:
        """Nothing is known of the drafter yet. One whose drafts are all overtaken before they are
        sent would never be known, and compute for ever: it is then asked for single tokens."""
        self._off_tokens = 0 if self._has_heard else self._off_tokens + committed
        failed, takes_turns = self._shared.failed_tries, self._takes_turns(sessions)
        if self.plan.window and not (takes_turns and self.plan.ahead):
            if self._off_tokens >= FIRST_TRY_TOKENS:
                self._shared.failed_tries += 1
                self._off_tokens, self.plan = 0, NO_SPECULATION
            return
        self._shared.off_tokens += committed
        is_due = self._off_tokens >= min(FIRST_PROBE_TOKENS << 3 * failed, MAX_PROBE_TOKENS)
        is_due = is_due or self._shared.off_tokens >= MAX_PROBE_TOKENS  # sessions may be short
        if is_due or (takes_turns and not failed):
            self._shared.off_tokens = 0
            self._start_probe(1 if failed else PROBE_LENGTH, None if takes_turns else 0.0)

    def _start_probe(self, length: int, patience_s: float | None) -> None:
        length = min(length, self._max_window)
        self.plan = self._probe = WindowPlan(length, length, patience_s, max_judged=length)
        self._off_tokens, self._has_news = 0, False

    def _is_known(self, sessions: int) -> bool:
        """Whether both workers were measured, and passes about as small as plain ones."""
        if not self._shared.cost.is_known or self._seen.draft_s(sessions) is None:
            return False
        if self._takes_turns(sessions) and self._shared.draft_s.num_samples < FIRST_BLOCKS:
            return False
        return sessions == 1 or self._shared.cost.least_rows <= 1.5 * sessions

    def _decide(self, conditions: Conditions, committed: int) -> None:
        best_rate, best = self._best(conditions)
        self._shared.last_plans[self._kind(conditions.sessions)] = best
        if best is NO_SPECULATION:
            self.plan = self._without_drafts(conditions, committed)
            return
        self._off_tokens = 0
        is_kept = self.plan.ahead and not self._takes_turns(conditions.sessions)
        gain = GAIN_TO_SWITCH if conditions.sessions == 1 else GAIN_TO_SWITCH_IN_COMPANY
        if not is_kept or best_rate > gain * rate(conditions, self.plan):
            self.plan = best
        else:  # what it waits for may take longer by now, and rows cost more
            wait_s = self.plan.patience_s
            if wait_s != 0.0:
                wait_s = patience(conditions, self.plan.num_speculative_tokens)
            self.plan = replace(
                self.plan,
                patience_s=wait_s,
                max_judged=most_judged(conditions, self.plan),
                min_copy_confidence=least_copy_confidence(conditions, best_rate)
                if self._copies
                else 0.0,
            )

    def _best(self, conditions: Conditions) -> tuple[float, WindowPlan]:
        return best_plan(
            conditions,
            max_window=self._max_window,
            in_turns=self._takes_turns(conditions.sessions),
            gain=self._gain(conditions.sessions),
            by_confidence=self._in_turns
            and self._trust.holds(conditions.draft_s / conditions.pass_s(1)),
            copies=self._copies,
        )

    def _gain(self, sessions: int) -> float | None:
        """What drafts must gain where both workers share a device and the session is alone."""
        if not self._on_one_device or sessions > 1:
            return None
        begin, go_on = (
            (GAIN_IN_TURNS, GAIN_TO_GO_ON_IN_TURNS)
            if self._in_turns
            else (GAIN_BESIDE, GAIN_TO_GO_ON_BESIDE)
        )
        return go_on if self.plan.window and self.plan is not self._probe else begin

    def _may_pay(self, conditions: Conditions) -> bool:
        """Whether drafts would, were they better than they seem by a standard error."""
        hoped = min(conditions.acceptance + self._seen.acceptance.standard_error, 0.999)
        at_best = replace(conditions, acceptance=hoped, agreement=hoped).rounded()
        return self._best(at_best)[1] is not NO_SPECULATION

    def _takes_turns(self, sessions: int) -> bool:
        """In company the device is busy with the others anyway, and each pass takes what it does
        beside a draft."""
        return self._in_turns and sessions == 1

    def _without_drafts(self, conditions: Conditions, committed: int) -> WindowPlan:
        """No speculation, but a short block now and then, as often as it is cheap.

        Short sessions probe for those after them: one of them does at least every
        `MAX_PROBE_TOKENS` of all together.
        """
        self._off_tokens += committed
        self._shared.off_tokens += committed
        takes_turns = self._takes_turns(conditions.sessions)
        if self.plan.window:
            on_the_way = conditions.block_arrives_s(PROBE_LENGTH) / conditions.pass_s(1)
            is_late = self._off_tokens >= PROBE_TOKENS + 2 * on_the_way
            if self.plan is self._probe and not self._has_news and not is_late:
                return self.plan
            self._off_tokens = 0
            return NO_SPECULATION
        may_pay = takes_turns and self._may_pay(conditions)
        is_due = self._off_tokens >= probe_interval(
            conditions,
            in_turns=self._in_turns,
            share=PROBE_SHARE_IN_HOPE if may_pay else PROBE_SHARE,
        )
        if not is_due and self._shared.off_tokens < MAX_PROBE_TOKENS:
            return NO_SPECULATION
        self._shared.off_tokens = 0
        self._start_probe(PROBE_LENGTH, patience(conditions, PROBE_LENGTH) if takes_turns else 0.0)
        return self._probe
