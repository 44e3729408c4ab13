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
FREE_ROWS = 1.02
"""Passes full of drafts that take no longer cost the others nothing."""
CHEAP_ROWS = 1.1
"""Rows beyond those that a plan reckons with may lengthen a pass so much."""
MIN_PROBE_TOKENS = 8
MAX_PROBE_TOKENS = 512
PROBE_LENGTH = 2
PROBE_SHARE = 0.01
"""Part of the time that probing may cost while speculation does not pay."""
MAX_PATIENCE_S = 1.0
"""Whatever was measured: a stall is no round trip."""
BLOCKS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LENGTHS_AHEAD = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
"""What is tried."""
MAX_BLOCK = max(BLOCKS)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Block length and window to draft with; a window of 0 drafts nothing.

    `patience_s` is how long the verifier waits for drafts before it decodes by itself: 0 rides
    along in every pass, None is as it is configured. `ahead` are the drafts that a pass should
    find when everything before was accepted, and `max_judged` the most that it judges (None: all
    that it finds), since what there is no time to wait for may be there already where drafts take
    none. Where a drafter copies and has a model besides, `draw_window` and `num_drawn_tokens` are
    window and block length of what the model draws. One that is about to open is the verifier's to
    know, which shall wait after the pass that it has begun; the drafter hears of it with the next
    verdict.
    """

    num_speculative_tokens: int
    window: int
    patience_s: float | None
    ahead: int = 0
    max_judged: int | None = None
    draw_window: int | None = None
    num_drawn_tokens: int | None = None
    is_about_to_open: bool = False

    @property
    def drafting(self) -> tuple[int, int, int | None, int | None]:
        """The drafter's part: window and block length, and those of what a model draws."""
        own = self.window, self.num_speculative_tokens
        return *own, self.draw_window, self.num_drawn_tokens


NO_SPECULATION = WindowPlan(1, 0, 0.0)


def rate(conditions: Conditions, plan: WindowPlan) -> float:
    """Tokens per second of a session with this plan."""
    if not plan.window:
        return plain_rate(conditions)
    kind = riding_rate if plan.patience_s == 0.0 else waiting_rate
    return kind(conditions, plan.num_speculative_tokens, plan.ahead)


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
    conditions: Conditions, *, max_window: int, in_turns: bool = False, gain: float | None = None
) -> tuple[float, WindowPlan]:
    """The plan of the highest rate, and that rate; `NO_SPECULATION` if drafts do not pay.

    Workers that compute `in_turns` draft nothing during a pass: both would slow down.
    `gain` is the factor below which drafts are not worth it; None decides by the load.
    """
    plain = plain_rate(conditions)
    rows_are_free = conditions.pass_s(1 + MAX_BLOCK) <= FREE_ROWS * conditions.pass_s(1)
    if gain is None:
        gain = GAIN_TO_SPECULATE if conditions.sessions == 1 or rows_are_free else GAIN_IN_COMPANY
    best_rate, best = gain * plain, NO_SPECULATION
    for plan in _plans(conditions, 0 if in_turns else max_window, max_window):
        found = rate(conditions, plan)
        if found > best_rate:
            best_rate, best = found, plan
    if not best.window:
        return plain, best
    return best_rate, replace(best, max_judged=most_judged(conditions, best))


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
    for block in (block for block in BLOCKS if block <= max_window):
        wait_s = patience(conditions, block)
        in_pass = int(conditions.pass_s(block + 1) / max(conditions.draft_s, 1e-6))
        reach = min(in_pass + on_the_way, max_window - block, most_ahead)
        for ahead in {*(n for n in LENGTHS_AHEAD if n < reach), max(0, reach)}:
            waiting = min(max_window, block + 2 * ahead)
            plans.append(WindowPlan(block, waiting, wait_s, ahead))
            if 0 < ahead <= in_pass:
                # the drafts that are judged, as many ahead, the bonus's, those on the way
                riding = min(max_window, max(block, 2 * ahead + 1 + on_the_way))
                plans.append(WindowPlan(block, riding, 0.0, ahead))
    return plans


def probe_interval(conditions: Conditions, *, in_turns: bool = False) -> float:
    """Tokens between two probes, so that they cost `PROBE_SHARE` of the time.

    A probe rides along: it costs the rows that it adds to a pass. Where workers compute `in_turns`
    its drafting counts too, and what the drafter was not told before has to be read, which takes
    about as long again.
    """
    plain_s = conditions.pass_s(1)
    probe_s = conditions.pass_s(1 + PROBE_LENGTH) - plain_s
    if in_turns:
        probe_s = 2 * (probe_s + conditions.block_arrives_s(PROBE_LENGTH))
    affordable = probe_s / (PROBE_SHARE * plain_s)
    return min(max(affordable, MIN_PROBE_TOKENS), MAX_PROBE_TOKENS)
