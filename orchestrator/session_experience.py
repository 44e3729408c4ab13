"""What one session has seen of its drafts, beside what all sessions have learnt."""

from __future__ import annotations

from orchestrator.estimates import MEMORY_OFFERS, AcceptanceEstimate, Experience
from orchestrator.pipeline_rate import Conditions
from paceline.outcomes import MAX_SESSIONS_AHEAD

USUAL_TRIALS = 20.0
"""What others know counts for so many trials as long as a session is one of several."""


class SessionExperience:
    """Estimates that begin with those of others, and add to them; `conditions` is what they say.

    `is_deterministic` says whether the target's tokens do not depend on drafts, `in_turns` whether
    both workers compute on one device. Behind other outcomes `outcome_tokens` are drafted ahead.
    """

    def __init__(
        self, shared: Experience, *, is_deterministic: bool, in_turns: bool, outcome_tokens: int
    ) -> None:
        self.acceptance = AcceptanceEstimate.beginning_with(shared.acceptance)
        self._shared = shared
        self._is_deterministic = is_deterministic
        self._in_turns = in_turns
        self._agreement = AcceptanceEstimate.beginning_with(shared.agreement)
        self._offers = AcceptanceEstimate.beginning_with(shared.offers, memory_trials=MEMORY_OFFERS)
        self._outcomes = AcceptanceEstimate.beginning_with(shared.outcomes)
        self._late_outcomes = AcceptanceEstimate.beginning_with(shared.late_outcomes)
        self._outcome_tokens = outcome_tokens
        self._round_trip_s: float | None = None

    def saw_offer(self, *, num_tokens: int) -> None:
        """The drafter has answered with so many tokens."""
        for estimate in (self._offers, self._shared.offers):
            estimate.update(judged=1, accepted=int(num_tokens > 0))

    def saw_round_trip(self, seconds: float) -> None:
        """Time on the wire and in queues to both workers and back."""
        self._round_trip_s = seconds
        self._shared.round_trip_s.update(seconds)

    def saw_rejection(self, *, finds_drafts: bool, late: bool) -> None:
        """A draft was rejected; whether drafts behind the token that came were there already, or
        came later."""
        for estimate in (self._outcomes, self._shared.outcomes):
            estimate.update(judged=1, accepted=int(finds_drafts))
        for estimate in (self._late_outcomes, self._shared.late_outcomes):
            estimate.update(judged=1, accepted=int(late))

    def saw_overtaken(self, *, compared: int, agreed: int) -> None:
        """Drafts came after the verifier had gone on alone; so many agreed with its tokens first.

        Of a deterministic target that is acceptance. Of a sampled one it is less: two draws agree
        with probability sum(target x draft), drafts are accepted with sum(min(target, draft)).
        """
        mine, shared = self.acceptance, self._shared.acceptance
        if not self._is_deterministic:
            mine, shared = self._agreement, self._shared.agreement
        for estimate in (mine, shared):
            estimate.update(judged=compared, accepted=agreed)

    def saw_judged(self, *, judged: int, accepted: int) -> None:
        """Drafts were judged."""
        self.acceptance.update(judged=judged, accepted=accepted)
        self._shared.acceptance.update(judged=judged, accepted=accepted)
        self._agreement.cap(self.acceptance.value)
        self._shared.agreement.cap(self._shared.acceptance.value)

    def draft_s(self, sessions: int) -> float | None:
        """Of a token, as it would be drafted now."""
        alone, beside = self._shared.draft_s.value, self._shared.draft_beside_s.value
        return beside if self._in_turns and sessions > 1 and beside is not None else alone

    def conditions(self, sessions: int) -> Conditions:
        """What a plan is judged by, where so many share the verifier."""
        acceptance = self._value(self.acceptance, self._shared.acceptance, sessions)
        agreement = acceptance
        if not self._is_deterministic:
            agreement = self._value(self._agreement, self._shared.agreement, sessions)
        round_trip_s = self._round_trip_s or self._shared.round_trip_s.value or 0.0
        return Conditions(
            acceptance=min(max(acceptance, agreement), 0.999),
            agreement=min(agreement, 0.999),
            draft_s=self.draft_s(sessions) or 0.0,
            round_trip_s=round_trip_s,
            sessions=sessions,
            cost=self._shared.cost.curve(),
            offers=self._offers.value,
            outcomes=self._outcomes.value,
            late_outcomes=self._late_outcomes.value,
            outcome_tokens=self._outcome_tokens if sessions <= MAX_SESSIONS_AHEAD else 0,
        ).rounded()

    @staticmethod
    def _value(own: AcceptanceEstimate, shared: AcceptanceEstimate, sessions: int) -> float:
        """Of its own; in company, where a plan that follows chance costs the others too, what is
        usual counts as much."""
        if sessions == 1:
            return own.value
        usual = min(shared.trials, USUAL_TRIALS)
        return (own.value * own.trials + shared.value * usual) / (own.trials + usual)
