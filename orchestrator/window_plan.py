"""Plans of speculation, and the best one: block length, window, and how long the verifier waits.

The best commits the most tokens per second of the verifier's time that the renewal models expect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from orchestrator.pipeline_rate import Conditions, plain_rate, riding_rate, waiting_rate

GAIN_TO_SPECULATE = 1.02
"""A drafter is called for no less."""
GAIN_IN_COMPANY = 1.05
"""The same where others pay for the rows of the drafts: what a row costs is known less well."""
GAIN_IN_TURNS, GAIN_TO_GO_ON_IN_TURNS = 1.04, 1.01
"""What is asked to begin with, and while speculation is under way, of a drafter that computes
between the passes of the verifier, on the same device: the first block comes after much reading."""
GAIN_BESIDE, GAIN_TO_GO_ON_BESIDE = 1.08, 1.04
"""The same of copying beside the passes of such a device, whose messages are in no estimate: on two
cores a pass took 45 to 48 ms while the drafter was told of every token, and 42 while it was not."""
GAIN_BY_CONFIDENCE = 1.08
"""By which blocks that end where the drafter is unsure do better in turns than those of the best
length: 5 to 8 % along 62 greedy texts of SmolLM2 with the drafter that ships."""
FREE_ROWS = 1.02
"""Passes full of drafts that take no longer cost the others nothing."""
CHEAP_ROWS = 1.1
"""Rows beyond those that a plan reckons with may lengthen a pass so much."""
MIN_PROBE_TOKENS = 8
MAX_PROBE_TOKENS = 512
PROBE_LENGTH = 2
PROBE_SHARE = 0.01
"""Part of the time that probing may cost while speculation does not pay."""
MOST_COPY_CONFIDENCE = 0.15
"""Long runs are right more often than the acceptance by size of match says: of limits from 0.04 to
0.3 those up to 0.15 did alike along those texts."""
PROBE_SHARE_IN_HOPE = 0.05
"""The same of workers that take turns, as long as it may well pay after all: what is known of the
drafter rests on few drafts. Along those texts it took 2 % off the time of all."""
MAX_PATIENCE_S = 1.0
"""Whatever was measured: a stall is no round trip."""
BLOCKS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LENGTHS_AHEAD = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
"""What is tried."""
BLOCKS_IN_COMPANY = (1, 2, 4, 8, 16)
LENGTHS_AHEAD_IN_COMPANY = (0, 2, 4, 8, 16)
"""The same where each session has conditions of its own."""
MAX_BLOCK = max(BLOCKS)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Block length and window to draft with; a window of 0 drafts nothing.

    `patience_s` is how long the verifier waits for drafts before it decodes by itself: 0 rides
    along in every pass, None is as it is configured. `ahead` are the drafts that a pass should
    find when everything before was accepted, and `max_judged` the most that it judges (None: all
    that it finds), since what there is no time to wait for may be there already where drafts take
    none. Where a drafter copies and has a model besides, `draw_window` and `num_drawn_tokens` are
    window and block length of what the model draws. A block ends sooner where a model's confidence
    in all of it falls below `min_confidence`, or that of what is copied below
    `min_copy_confidence`; `usual_block` is then the length that would be best without regard to
    it. One that is about to open is the verifier's to know, which shall wait
    after the pass that it has begun; the drafter hears of it with the next verdict.
    """

    num_speculative_tokens: int
    window: int
    patience_s: float | None
    ahead: int = 0
    max_judged: int | None = None
    draw_window: int | None = None
    num_drawn_tokens: int | None = None
    min_confidence: float = 0.0
    min_copy_confidence: float = 0.0
    usual_block: int | None = None
    is_about_to_open: bool = False

    @property
    def drafting(self) -> tuple[int, int, int | None, int | None, float, float]:
        """The drafter's part: window and block length, those of what a model draws, and the least
        confidence in either source."""
        own = self.window, self.num_speculative_tokens
        drawn = self.draw_window, self.num_drawn_tokens
        return *own, *drawn, self.min_confidence, self.min_copy_confidence


NO_SPECULATION = WindowPlan(1, 0, 0.0)


def rate(conditions: Conditions, plan: WindowPlan) -> float:
    """Tokens per second of a session with this plan."""
    if not plan.window:
        return plain_rate(conditions)
    kind = riding_rate if plan.patience_s == 0.0 else waiting_rate
    return kind(conditions, plan.num_speculative_tokens, plan.ahead)


def rows_are_free(conditions: Conditions) -> bool:
    """Whether a pass full of drafts takes about as long as a plain one."""
    return conditions.pass_s(1 + MAX_BLOCK) <= FREE_ROWS * conditions.pass_s(1)


def patience(conditions: Conditions, block: int) -> float | None:
    """How long a block may take before the verifier goes on alone; unknown without a round trip."""
    if not conditions.round_trip_s:
        return None
    expected_s = block * conditions.draft_s + conditions.round_trip_s
    longest_s = 3.0 * expected_s + 0.002
    # roughly: the verifier need not hear of each small change
    return min(2.0 ** math.ceil(math.log2(longest_s)), MAX_PATIENCE_S)


@lru_cache(maxsize=4096)
def best_plan(
    conditions: Conditions,
    *,
    max_window: int,
    in_turns: bool = False,
    gain: float | None = None,
    by_confidence: bool = False,
    copies: bool = False,
) -> tuple[float, WindowPlan]:
    """The plan of the highest rate, and that rate; `NO_SPECULATION` if drafts do not pay.

    Workers that compute `in_turns` draft nothing during a pass: both would slow down. Blocks then
    may end `by_confidence`, as those of a drafter that `copies` do where rows cost something.
    `gain` is the factor below which drafts are not worth it; None decides by the load.
    """
    plain = plain_rate(conditions)
    if gain is None:
        is_cheap = conditions.sessions == 1 or rows_are_free(conditions)
        gain = GAIN_TO_SPECULATE if is_cheap else GAIN_IN_COMPANY
    by_confidence = by_confidence and in_turns
    asked = gain * plain
    best_rate, best = asked / (GAIN_BY_CONFIDENCE if by_confidence else 1.0), NO_SPECULATION
    for plan in _plans(conditions, 0 if in_turns else max_window, max_window):
        found = rate(conditions, plan)
        if found > best_rate:
            best_rate, best = found, plan
    if not best.window:
        return plain, best
    if by_confidence:
        best = ended_by_confidence(conditions, best, best_rate, max_window)
        if not best.min_confidence and best_rate <= asked:
            return plain, NO_SPECULATION
    elif copies:
        least = least_copy_confidence(conditions, best_rate)
        best = replace(best, min_copy_confidence=least)
    return best_rate, replace(best, max_judged=most_judged(conditions, best))


def ended_by_confidence(
    conditions: Conditions, plan: WindowPlan, found: float, max_window: int
) -> WindowPlan:
    """A plan of longer blocks, gone on with while a draft is worth its time at this rate."""
    block = plan.num_speculative_tokens
    longer = min(2 * block + 1, max_window, MAX_BLOCK)
    least = least_confidence(conditions, found, draft_s=conditions.draft_s)
    if not least or longer == block:
        return plan
    return replace(
        plan,
        num_speculative_tokens=longer,
        window=longer,
        patience_s=patience(conditions, longer),
        min_confidence=least,
        min_copy_confidence=least_copy_confidence(conditions, found),
        usual_block=block,
    )


def least_copy_confidence(conditions: Conditions, found: float) -> float:
    """The same of copies, which take no time, but no more than is sure to pay."""
    return min(least_confidence(conditions, found, draft_s=0.0), MOST_COPY_CONFIDENCE)


def least_confidence(conditions: Conditions, found: float, *, draft_s: float) -> float:
    """In all drafts before a further one that is worth its drafting and its row, at this rate.

    If they are right with probability p it commits p times the acceptance rate. To 0.05.
    """
    row_s = (conditions.pass_s(1 + MAX_BLOCK) - conditions.pass_s(1)) / MAX_BLOCK
    least = (draft_s + row_s) * found / max(conditions.acceptance, 1e-3)
    return min(round(20 * least) / 20, 0.9)


def most_judged(conditions: Conditions, plan: WindowPlan) -> int | None:
    """By one pass: as many as the plan's rate reckons with. None, all of them, where a pass over a
    whole window takes hardly longer."""
    most = 1 + max(plan.num_speculative_tokens, plan.ahead)  # the last one in place of a bonus
    longest_s = conditions.pass_s(1 + plan.window)
    return None if longest_s <= CHEAP_ROWS * conditions.pass_s(most) else most


def _plans(conditions: Conditions, most_ahead: int, max_window: int) -> list[WindowPlan]:
    """All that are worth a try."""
    plans = []
    on_the_way = math.ceil(conditions.round_trip_s / max(conditions.draft_s, 1e-6))
    is_alone = conditions.sessions == 1
    blocks = BLOCKS if is_alone else BLOCKS_IN_COMPANY
    lengths = LENGTHS_AHEAD if is_alone else LENGTHS_AHEAD_IN_COMPANY
    for block in (block for block in blocks if block <= max_window):
        wait_s = patience(conditions, block)
        in_pass = int(conditions.pass_s(block + 1) / max(conditions.draft_s, 1e-6))
        reach = min(in_pass + on_the_way, max_window - block, most_ahead)
        for ahead in {*(n for n in lengths if n < reach), max(0, reach)}:
            waiting = min(max_window, block + 2 * ahead)
            plans.append(WindowPlan(block, waiting, wait_s, ahead))
            if 0 < ahead <= in_pass:
                # the drafts that are judged, as many ahead, the bonus's, those on the way
                riding = min(max_window, max(block, 2 * ahead + 1 + on_the_way))
                plans.append(WindowPlan(block, riding, 0.0, ahead))
    return plans


def probe_interval(
    conditions: Conditions, *, in_turns: bool = False, share: float = PROBE_SHARE
) -> float:
    """Tokens between two probes, so that they cost that share of the time.

    A probe rides along: it costs the rows that it adds to a pass. Where workers compute `in_turns`
    its drafting counts too, and what the drafter was not told before has to be read, which takes
    about as long again.
    """
    plain_s = conditions.pass_s(1)
    probe_s = conditions.pass_s(1 + PROBE_LENGTH) - plain_s
    if in_turns:
        probe_s = 2 * (probe_s + conditions.block_arrives_s(PROBE_LENGTH))
    affordable = probe_s / (share * plain_s)
    return min(max(affordable, MIN_PROBE_TOKENS), MAX_PROBE_TOKENS)
