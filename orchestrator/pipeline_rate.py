"""Committed tokens per second that a session can expect of a plan: renewal models of the pipeline.

Two ways to meet a verdict that voided the drafts. *Waiting*, the verifier lets the session's next
block come, and nobody else is kept: right for a session that has the verifier to itself and drafts
that come soon. *Riding*, it never waits: the session takes part in every pass, with drafts or
without, and drafts that arrive later are still good if they agree with what was committed
meanwhile. Riding never costs a session a pass, however far away or slow its drafter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.estimates import CostCurve, coarse_curve, rounded, rounded_curve

LEAST_PASS_S = 1e-5
JITTER = 0.3
"""By what part of a pass a block comes sooner or later than expected, where many share them."""
BLOCK_OVERHEAD_S = 0.0003
"""What sending a block costs its drafter, and reading it the verifier; among plans alike it favours
longer blocks. With 32 sessions that rode along in every pass one took 41 to 45 ms, and 33 where
they decoded plainly or waited for blocks of 4."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a plan is judged by. Times in seconds, `draft_s` for one token."""

    acceptance: float
    agreement: float
    """Probability that a draft token equals what was committed in its place without looking at it:
    the acceptance rate of a greedy or coupled target, less for one that is sampled."""
    draft_s: float
    round_trip_s: float
    sessions: int
    """How many share the verifier's passes."""
    cost: CostCurve
    offers: float = 1.0
    """Probability that the drafter has anything to propose when it is asked: less than 1 where it
    copies."""
    outcomes: float = 0.0
    """Probability that, after a rejection, drafts behind the token that came are there already."""
    late_outcomes: float = 0.0
    """And that they are not yet, but on their way."""
    outcome_tokens: int = 0
    """How many those are."""

    def token_s(self, block: int) -> float:
        """Time of a draft token in blocks of this length."""
        return self.draft_s + BLOCK_OVERHEAD_S / block

    def block_arrives_s(self, block: int) -> float:
        """From a verdict to the verifier's having a new block."""
        return block * self.token_s(block) + self.round_trip_s

    def pass_s(self, rows: float) -> float:
        """Of a pass in which each session has so many rows."""
        return max(self.cost.seconds(self.sessions * rows), LEAST_PASS_S)

    def messages_s(self, num_blocks: float) -> float:
        """What the others' blocks take of a verifier that reads and answers them between passes,
        while each session sends so many."""
        return (self.sessions - 1) * num_blocks * BLOCK_OVERHEAD_S

    def rounded(self) -> Conditions:
        """These within a few per cent: near enough for the same plan, few enough to remember.

        Coarser in company, where each session has conditions of its own, and a search for each of
        them would hold up the messages of all.
        """
        is_alone = self.sessions == 1
        steps = 50 if is_alone else 20
        return Conditions(
            acceptance=round(steps * self.acceptance) / steps,
            agreement=round(steps * self.agreement) / steps,
            draft_s=rounded(self.draft_s, 1.04 if is_alone else 1.2),
            round_trip_s=rounded(self.round_trip_s, 1.1 if is_alone else 1.4),
            sessions=round(rounded(self.sessions, 1.2)) if self.sessions > 8 else self.sessions,
            cost=rounded_curve(self.cost) if is_alone else coarse_curve(self.cost),
            offers=round(steps * self.offers) / steps,
            outcomes=round(20 * self.outcomes) / 20,
            late_outcomes=round(20 * self.late_outcomes) / 20,
            outcome_tokens=self.outcome_tokens,
        )


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Committed tokens of a pass over so many drafts and a bonus: (1 - a^(m+1)) / (1 - a)."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return float((1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance))


def plain_rate(conditions: Conditions) -> float:
    """Without drafts."""
    return 1.0 / conditions.pass_s(1)


def waiting_rate(conditions: Conditions, block: int, ahead: int) -> float:
    """Blocks of `block`, `ahead` more drafted during a pass; the verifier waits for a block.

    After a rejection: draft time, round trip and pass, for E(block) tokens. If everything was
    accepted and the draft made ahead agrees with the bonus, the next pass has `ahead` drafts
    waiting and takes the pass alone, for E(ahead) tokens; else it starts anew. In company the
    verifier is busy while the session waits, so that it waits for whole passes.
    """
    pass_s = conditions.pass_s(block + 1)
    wait_s = conditions.block_arrives_s(block)
    if conditions.sessions > 1:
        wait_s = _passes_begun(wait_s / pass_s) * pass_s
    tokens, seconds = expected_tokens(conditions.acceptance, block), wait_s + pass_s
    sent = 1.0
    if ahead:
        # what the bonus takes the place of has to be drafted too
        drafting_s = (ahead + 1) * conditions.token_s(block)
        visits = _rides(conditions, block, ahead)
        tokens += visits * expected_tokens(conditions.acceptance, ahead)
        seconds += visits * max(conditions.pass_s(ahead + 1), drafting_s)
        sent += visits
    seconds += conditions.messages_s(sent)
    share = min(conditions.outcomes + conditions.late_outcomes, 1.0)
    tokens, seconds = _with_outcomes(conditions, share, tokens, seconds, block=block, then=ahead)
    # the verifier waits as well to hear that there is nothing, and decodes alone
    offers = conditions.offers
    in_vain_s = conditions.round_trip_s + conditions.pass_s(1)
    return (offers * tokens + 1.0 - offers) / (offers * seconds + (1.0 - offers) * in_vain_s)


def _passes_begun(passes: float) -> float:
    """In a time of so many passes: the next whole number, on average over times that vary."""
    whole = round(passes)
    into = (passes - whole + JITTER) / (2.0 * JITTER)
    return max(1.0, whole + min(max(into, 0.0), 1.0))


def riding_rate(conditions: Conditions, block: int, ahead: int) -> float:
    """Blocks of `block`, at most `ahead` drafts judged by a pass; the verifier never waits.

    After a rejection the first block needs `lag` passes to come. They commit a token each, and if
    the block agrees with all of them the rest of what has come by then is judged by the next pass,
    and so on as in `waiting_rate`; else the same again.
    """
    arrives_s = conditions.block_arrives_s(block)
    token_s = conditions.token_s(block)
    rows, found = 1.0, 0.0
    for _ in range(3):  # rows decide the time of a pass, and it decides how many drafts come
        pass_s = conditions.pass_s(rows)
        lag = max(1, math.ceil(arrives_s / pass_s))
        blocks = int((lag * pass_s - conditions.round_trip_s) / (block * token_s))
        first = min(ahead, max(blocks * block - lag, 0))
        # all but the bonus's own, and on average half a block that is not sent yet
        then = min(ahead, max(0, int(pass_s / token_s - 1 - (block - 1) / 2)))
        caught = conditions.offers * conditions.agreement**lag if first else 0.0
        visits = _rides(conditions, first, then) if then else 0.0
        tokens = lag + caught * (
            expected_tokens(conditions.acceptance, first)
            + visits * expected_tokens(conditions.acceptance, then)
        )
        passes = lag + caught * (1.0 + visits)
        rows = (lag + caught * (first + 1 + visits * (then + 1))) / passes
        sent = lag + caught * (1.0 + visits) * max(1.0, then / block)
        seconds = passes * conditions.pass_s(rows) + conditions.messages_s(sent)
        if conditions.pass_s(conditions.outcome_tokens + 1) < arrives_s:
            then = 0  # the verifier goes on before the drafter knows of it
        tokens, seconds = _with_outcomes(
            conditions, conditions.outcomes, tokens, seconds, block=block, then=then
        )
        found = tokens / seconds
    return found


def _with_outcomes(
    conditions: Conditions, share: float, tokens: float, seconds: float, *, block: int, then: int
) -> tuple[float, float]:
    """Tokens and time from a rejection to the next, if a share find their next drafts made ahead.

    Those of a run that does not are given. The other one begins at once, with a pass over the
    `outcome_tokens`, or when they have been drafted: the drafter has begun with them when the pass
    before had. It goes on as in `waiting_rate`, with `then` drafts in each further pass.
    """
    num_drafts = conditions.outcome_tokens
    if not num_drafts or not share:
        return tokens, seconds
    pass_s = conditions.pass_s(num_drafts + 1)
    drafting_s = num_drafts * conditions.token_s(block)
    own_tokens = expected_tokens(conditions.acceptance, num_drafts)
    own_s = max(pass_s, drafting_s)
    if then:
        visits = _rides(conditions, num_drafts, then)
        # the drafter has to hear of it before it drafts what comes next
        goes_on = conditions.acceptance**num_drafts * conditions.agreement
        own_s += goes_on * max(0.0, conditions.block_arrives_s(block) - pass_s)
        own_tokens += visits * expected_tokens(conditions.acceptance, then)
        own_s += visits * max(conditions.pass_s(then + 1), (then + 1) * conditions.token_s(block))
    return (
        (1.0 - share) * tokens + share * own_tokens,
        (1.0 - share) * seconds + share * own_s,
    )


def _rides(conditions: Conditions, first: int, then: int) -> float:
    """Expected passes over `then` drafts, after one over `first`."""
    goes_on = conditions.acceptance**first * conditions.agreement
    stays = conditions.acceptance**then * conditions.agreement
    return goes_on / (1.0 - stays) if stays < 1.0 else 1e6
