"""How far to speculate: block length and window of one session, down to none.

Chosen to maximise expected committed tokens per second of the verifier's time, from running
estimates of acceptance, draft time, pass time and round trip.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.estimates import AcceptanceEstimate, Mean, PassCost

GAIN_TO_SWITCH = 1.03
"""A plan is left for one that is better by this factor; less is noise."""
MIN_PROBE_TOKENS = 8
MAX_PROBE_TOKENS = 512
PROBE_LENGTH = 2
MAX_BLOCK = 16
PROBE_TOKENS = 8
"""Tokens after which a probe that was never judged is given up."""
PROBE_SHARE = 0.01
"""Part of the time that probing may cost while speculation does not pay."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Block length and window to draft with; a window of 0 drafts nothing.

    `patience_s` is how long the verifier waits for drafts before it decodes by itself; None is as
    it is configured.
    """

    num_speculative_tokens: int
    window: int
    patience_s: float | None


NO_SPECULATION = WindowPlan(1, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a plan is judged by. Times in seconds, `draft_s` for one token."""

    acceptance: float
    draft_s: float
    round_trip_s: float
    sessions: int
    """How many share the verifier's passes."""
    cost: PassCost


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Committed tokens of a pass over so many drafts and a bonus: (1 - a^(m+1)) / (1 - a)."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return float((1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance))


def plain_rate(conditions: Conditions) -> float:
    """Tokens per second of a session without drafts."""
    return 1.0 / conditions.cost.seconds(conditions.sessions)


def rate(conditions: Conditions, block: int, ahead: int) -> float:
    """Tokens per second with blocks of `block`, while `ahead` more are drafted during a pass.

    A renewal process over passes. After a rejection the verifier waits for a block: draft time,
    round trip and pass, for E(block) tokens. If everything was accepted and the draft made ahead
    agrees with the bonus (probability a^(m+1)), the next pass has `ahead` drafts waiting and
    takes the pass alone, for E(ahead) tokens; else it starts anew.
    """
    a = conditions.acceptance
    per_session = conditions.sessions
    restart_pass = conditions.cost.seconds(per_session * (block + 1))
    restart_s = block * conditions.draft_s + conditions.round_trip_s + restart_pass
    tokens, seconds = expected_tokens(a, block), restart_s
    if ahead:
        steady_pass = conditions.cost.seconds(per_session * (ahead + 1))
        steady_s = max(steady_pass, ahead * conditions.draft_s)
        stays = a ** (ahead + 1)
        visits = a ** (block + 1) / (1.0 - stays) if stays < 1.0 else 1e6
        tokens += visits * expected_tokens(a, ahead)
        seconds += visits * steady_s
    return tokens / seconds


def patience(conditions: Conditions, block: int) -> float | None:
    """How long a block may take before the verifier goes on alone; unknown without a round trip."""
    if not conditions.round_trip_s:
        return None
    return 3.0 * (block * conditions.draft_s + conditions.round_trip_s) + 0.002


def best_plan(conditions: Conditions, *, max_window: int) -> tuple[float, WindowPlan]:
    """The plan of the highest rate, and that rate; `NO_SPECULATION` if drafts do not pay."""
    best_rate, best = plain_rate(conditions), NO_SPECULATION
    for block in range(1, min(MAX_BLOCK, max_window) + 1):
        drafted_in_pass = conditions.cost.seconds(conditions.sessions * (block + 1))
        reach = int((drafted_in_pass + conditions.round_trip_s) / max(conditions.draft_s, 1e-6))
        for ahead in {0, min(reach, max_window - block, block), min(reach, max_window - block)}:
            found = rate(conditions, block, max(ahead, 0))
            if found > best_rate:
                window = min(max_window, block + 2 * max(ahead, 0))
                best_rate, best = found, WindowPlan(block, window, patience(conditions, block))
    return best_rate, best


def probe_interval(conditions: Conditions) -> float:
    """Tokens between two probes, so that they cost `PROBE_SHARE` of the time.

    A probe costs the session its wait, and every session of the pass the rows that it adds.
    """
    wait_s = PROBE_LENGTH * conditions.draft_s + conditions.round_trip_s
    plain_s = conditions.cost.seconds(conditions.sessions)
    probing_s = conditions.cost.seconds(conditions.sessions * (1 + PROBE_LENGTH))
    affordable = (wait_s + probing_s - plain_s) / (PROBE_SHARE * plain_s)
    return min(max(affordable, MIN_PROBE_TOKENS), MAX_PROBE_TOKENS)


class WindowController:
    """Adapts one session's speculation; pure bookkeeping, driven by the relay."""

    def __init__(self, cost: PassCost, *, max_window: int, start: WindowPlan) -> None:
        self.plan = start
        self._cost = cost
        self._max_window = max_window
        self._acceptance = AcceptanceEstimate()
        self._draft_s = Mean()
        self._round_trip_s: float | None = None
        self._sessions = 1
        self._off_tokens = 0

    def saw_block(self, *, num_tokens: int, draft_s: float) -> None:
        """A block has come from the drafter."""
        if num_tokens:
            self._draft_s.update(draft_s / num_tokens)

    def saw_round_trip(self, seconds: float) -> None:
        """Time on the wire and in queues to both workers and back, at best."""
        self._round_trip_s = seconds

    def saw_drafts(self, *, judged: int, accepted: int) -> None:
        """So many drafts were compared with the target's own tokens, and so many agreed first."""
        if judged:
            self._acceptance.update(judged=judged, accepted=accepted)

    def saw_verdict(self, *, judged: int, accepted: int, committed: int, sessions: int) -> None:
        """A verdict has come; `plan` is what to go on with."""
        self._sessions = sessions
        self.saw_drafts(judged=judged, accepted=accepted)
        self._decide(committed, judged)

    def _decide(self, committed: int, judged: int) -> None:
        if self._draft_s.value is None or not self._cost.is_known:
            return  # nothing is known of the drafter yet: go on as started
        conditions = Conditions(
            acceptance=min(self._acceptance.value, 0.999),
            draft_s=self._draft_s.value,
            round_trip_s=self._round_trip_s or 0.0,
            sessions=self._sessions,
            cost=self._cost,
        )
        found_rate, found = best_plan(conditions, max_window=self._max_window)
        if found is NO_SPECULATION:
            self.plan = self._probe(conditions, committed, judged)
            return
        self._off_tokens = 0
        if self.plan.window <= PROBE_LENGTH or found_rate > GAIN_TO_SWITCH * self.rate(conditions):
            self.plan = found

    def rate(self, conditions: Conditions) -> float:
        """Tokens per second that the present plan gives under these conditions."""
        if not self.plan.window:
            return plain_rate(conditions)
        block = self.plan.num_speculative_tokens
        return rate(conditions, block, max(0, (self.plan.window - block) // 2))

    def _probe(self, conditions: Conditions, committed: int, judged: int) -> WindowPlan:
        """No speculation, but a short block now and then, as often as it is cheap."""
        self._off_tokens += committed
        if self.plan.window:  # verdicts already on their way when a probe began know nothing of it
            if self.plan.window == PROBE_LENGTH and not judged and self._off_tokens < PROBE_TOKENS:
                return self.plan
            self._off_tokens = 0
            return NO_SPECULATION
        if self._off_tokens < probe_interval(conditions):
            return NO_SPECULATION
        self._off_tokens = 0
        return WindowPlan(PROBE_LENGTH, PROBE_LENGTH, patience(conditions, PROBE_LENGTH))
