"""What a drafting step costs beside a step of the target, and the speedup that follows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk, Runner

CONTEXT_TOKENS = 128
REPEATS = 25
MAX_BLOCK = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of passes of one session after `CONTEXT_TOKENS` tokens, in ms.

    `verify_ms[i]` is a pass of the target over `i + 1` tokens.
    """

    draft_ms: float
    verify_ms: tuple[float, ...]

    @property
    def target_ms(self) -> float:
        """One token of the target."""
        return self.verify_ms[0]

    @property
    def ratio(self) -> float:
        """A drafting step in steps of the target."""
        return self.draft_ms / self.target_ms


def measure(target: Runner, draft: Runner) -> Cost:
    """Time both on the same cores, taking turns, so that a disturbance meets them alike."""
    with_target = _Passes(target)
    with_draft = _Passes(draft)
    try:
        draft_s: list[float] = []
        verify_s: list[list[float]] = [[] for _ in range(MAX_BLOCK + 1)]
        for _ in range(REPEATS):
            for number, seconds in enumerate(verify_s, start=1):
                seconds.append(with_target.seconds(number))
                draft_s.append(with_draft.seconds(1))
    finally:
        with_target.table.free()
        with_draft.table.free()
    return Cost(
        round(1e3 * statistics.median(draft_s), 3),
        tuple(round(1e3 * statistics.median(seconds), 3) for seconds in verify_s),
    )


def predicted_speedup(by_depth: Sequence[float], cost: Cost) -> tuple[float, int]:
    """Greedy tokens a second over those without a drafter, and the block length that is best.

    A round of `n` drafts commits `1 + Σ by_depth[:n]` tokens (Leviathan et al. 2023, arXiv
    2211.17192, with measured depths instead of a constant rate) and takes `n` drafting steps and
    one pass of the target over `n + 1` tokens, one after the other.
    """
    found = []
    for number in range(1, min(len(by_depth), len(cost.verify_ms) - 1) + 1):
        tokens = 1 + sum(by_depth[:number])
        ms = number * cost.draft_ms + cost.verify_ms[number]
        found.append((tokens * cost.target_ms / ms, number))
    speedup, number = max(found)
    return round(speedup, 3), number


class _Passes:
    """A session of made-up tokens."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.table: PageTable = runner.pool.open_table(CONTEXT_TOKENS + MAX_BLOCK + 1)

    def seconds(self, number: int) -> float:
        """One pass over so many new tokens; the first fills the context."""
        if not self.table.length:
            ids = [position % self._runner.vocab_size for position in range(CONTEXT_TOKENS)]
            self._runner.forward([Chunk(self.table, ids, 1)])
        started = time.perf_counter()
        logits = self._runner.forward([Chunk(self.table, [1] * number, number)])
        logits.argmax(dim=1).tolist()  # waits for the device
        seconds = time.perf_counter() - started
        self.table.truncate(CONTEXT_TOKENS)
        return seconds
