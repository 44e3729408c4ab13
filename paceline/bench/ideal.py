"""The emulated pair, and what it could do at best: the simulator with the very same accepted and
rejected drafts that were measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from paceline.bench.grid import Point
from paceline.config import Config, SyntheticModelConfig, parse_config
from paceline.outcomes import MAX_SESSIONS_AHEAD
from paceline.runtime.synthetic import SyntheticLaw
from paceline.runtime.worker_model import pass_cost, synthetic_law
from paceline.simulation.scenario import OtherGuess, Outcome, Scenario, SimulationResult
from paceline.simulation.simulator import simulate

PROMPT_LENGTH = 16
BLOCKS = (1, 2, 3, 4, 6, 8, 12)
WINDOWS = (4, 8, 12, 16, 24, 32)
"""What is tried for the best setting."""
WAITING_BLOCKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
_SEARCH_TOKENS = 1000
"""Of one simulated session while a setting is searched; shared out among many."""
_PLAIN_IDS = 100
"""Prompts are made of ids below, which every synthetic vocabulary has."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a request speculates: not at all, adaptively, or with this block length and window."""

    kind: str
    """`plain`, `adaptive`, `fixed` or `stop-and-wait`."""
    block: int = 0
    window: int = 0
    ahead: int = 0
    """Draft tokens behind each other outcome; what adapts has the server's default."""

    def fields(self) -> dict[str, Any]:
        """Of a request."""
        if self.kind == "plain":
            return {"speculation": False}
        if self.kind == "adaptive":
            return {}
        return {
            "num_speculative_tokens": self.block,
            "window": self.window,
            "num_outcome_tokens": self.ahead,
        }


PLAIN = Setting("plain")
ADAPTIVE = Setting("adaptive")


def emulated_document(
    point: Point,
    *,
    max_tokens: int,
    prompt_length: int = PROMPT_LENGTH,
    acceptance_changes: Sequence[tuple[int, float]] = (),
) -> dict[str, Any]:
    """The configuration of a point: a synthetic pair on emulated devices."""
    pair = {"kind": "synthetic", "vocab_size": 128, "seed": 1}
    drafter = {
        **pair,
        "base_ms": point.draft_ms,
        "acceptance": point.acceptance,
        "second_guess": point.second_guess,
        "third_guess": point.third_guess,
        "acceptance_changes": [list(change) for change in acceptance_changes],
    }
    target = {**pair, "base_ms": point.verify_ms, "knee_tokens": point.knee_tokens}
    # a page more for each session, since its last one is not full
    room = point.concurrency * (prompt_length + max_tokens + 64)
    runtime = {"kv_tokens": max(32_768, room)}
    return {
        "verifier": {"model": target, "runtime": runtime},
        "drafter": {"kind": "model", "model": drafter, "runtime": runtime},
        "orchestrator": {"emulated_delay_ms": {"verifier": point.round_trip_ms / 2}},
    }


def prompts_of(point: Point, *, seed: int, repeat: int, length: int = PROMPT_LENGTH) -> list[Any]:
    """Token ids for every session of a repeat, none like another."""
    draw = random.Random(f"{seed} {repeat}")
    return [[draw.randrange(_PLAIN_IDS) for _ in range(length)] for _ in range(point.concurrency)]


def scenario_of(
    config: Config,
    *,
    num_tokens: int,
    setting: Setting,
    num_sessions: int = 1,
    prompt_length: int = PROMPT_LENGTH,
) -> Scenario:
    """What the configuration would be without software. Adaptive settings have no scenario."""
    assert setting.kind != "adaptive"
    target, draft = config.verifier.model, config.drafter.model
    assert isinstance(target, SyntheticModelConfig)
    assert isinstance(draft, SyntheticModelConfig)
    delay = config.orchestrator.emulated_delay_ms
    return Scenario(
        verify=pass_cost(target),
        draft=pass_cost(draft),
        num_speculative_tokens=max(setting.block, 1),
        window=max(setting.window, 1),
        max_tokens=num_tokens,
        prompt_length=prompt_length,
        num_sessions=num_sessions,
        verifier_delay_s=delay.verifier / 1e3,
        drafter_delay_s=delay.drafter / 1e3,
        speculation=setting.kind != "plain",
        draft_patience_s=config.verifier.draft_patience_ms / 1e3,
        max_drafts_per_pass=config.verifier.max_drafts_per_pass,
        max_batch_tokens=config.verifier.runtime.max_batch_tokens,
        num_outcome_tokens=setting.ahead,
    )


class Drafts(NamedTuple):
    """Which drafts are right, and where they are not, which of the drafter's other guesses is."""

    is_right: Outcome
    right_other: OtherGuess


@dataclass(frozen=True)
class Ideal:
    """The simulator for one point."""

    point: Point

    @property
    def config(self) -> Config:
        """What the point's document says."""
        return parse_config(emulated_document(self.point, max_tokens=1), source="benchmark")

    @property
    def ahead(self) -> int:
        """Draft tokens behind each other outcome as the server has it by default; 0 where a drafter
        has too many sessions to draft ahead."""
        if self.point.concurrency > MAX_SESSIONS_AHEAD:
            return 0
        return self.config.orchestrator.speculation.num_outcome_tokens

    def run(self, setting: Setting, num_tokens: int, drafts: Drafts) -> SimulationResult:
        """The course of all sessions under a setting, with these drafts right and those wrong."""
        scenario = scenario_of(
            self.config,
            num_tokens=num_tokens,
            setting=setting,
            num_sessions=self.point.concurrency,
        )
        return simulate(scenario, acceptance=drafts.is_right, right_other=drafts.right_other)

    def speed(self, setting: Setting) -> float:
        """Tokens a second that are to be expected."""
        return _expected_speed(self.point, setting)

    def best_window(self, block: int, ahead: int = 0) -> Setting:
        """The best window for a block length, with so many drafts behind other outcomes."""
        windows = [block, *(window for window in WINDOWS if window > block)]
        tried = [Setting("fixed", block, window, ahead) for window in windows]
        return max(tried, key=self.speed)

    def best_waiting(self) -> Setting:
        """The best block length of stop and wait: a window of one block."""
        tried = [Setting("stop-and-wait", block, block) for block in WAITING_BLOCKS]
        return max(tried, key=self.speed)

    def best(self, ahead: int = 0) -> Setting:
        """The best of all, plain decoding included."""
        fixed = [self.best_window(block, ahead) for block in BLOCKS]
        return max([PLAIN, self.best_waiting(), *fixed], key=self.speed)


@lru_cache(maxsize=4096)
def _expected_speed(point: Point, setting: Setting) -> float:
    num_tokens = max(_SEARCH_TOKENS // point.concurrency, 60)
    ideal = Ideal(point)
    scenario = scenario_of(
        ideal.config, num_tokens=num_tokens, setting=setting, num_sessions=point.concurrency
    )
    coins = _coins(point.concurrency, PROMPT_LENGTH + num_tokens)

    def right_other(session: int, position: int) -> int | None:
        for which, rate in enumerate((point.second_guess, point.third_guess)):
            # other digits of the same number are as good as another coin
            if coins[session][position] * 1e5 ** (which + 1) % 1.0 < rate:
                return which
        return None

    return simulate(
        scenario,
        acceptance=lambda session, position: coins[session][position] < point.acceptance,
        right_other=right_other,
    ).tokens_per_second


@lru_cache(maxsize=8)
def _coins(num_sessions: int, length: int) -> list[list[float]]:
    """Uniform numbers by session and position: every setting meets the same luck."""
    return [
        [draw.random() for _ in range(length)]
        for draw in (random.Random(session) for session in range(num_sessions))
    ]


def draft_law(config: Config) -> SyntheticLaw:
    """The law of the configured drafter, which knows where it agrees with the target."""
    draft = config.drafter.model
    assert isinstance(draft, SyntheticModelConfig)
    return synthetic_law(draft)


def right_drafts(law: SyntheticLaw, outputs: Sequence[Sequence[int]]) -> Drafts:
    """Which drafts agree with what each session said; `outputs` are prompts and answers, whole."""
    states = [law.states(tokens) for tokens in outputs]
    return Drafts(
        lambda session, position: law.agrees(states[session][position - 1], position),
        lambda session, position: law.right_other(states[session][position - 1], position),
    )


def round_overheads(
    arrivals: Sequence[tuple[float, int]], ideal: Sequence[tuple[float, int]]
) -> list[float]:
    """Seconds by which each round took longer than in the ideal, the prompt's left out.

    Both are (time, tokens) of every verdict. A round counts where it begins and ends at the same
    number of committed tokens in both.
    """
    known = {count: (index, at) for index, (count, at) in enumerate(_boundaries(ideal))}
    found = []
    for (before, begun), (after, ended) in pairwise(_boundaries(arrivals)):
        first, last = known.get(before), known.get(after)
        if first is not None and last is not None and last[0] == first[0] + 1:
            found.append((ended - begun) - (last[1] - first[1]))
    return found


def _boundaries(verdicts: Sequence[tuple[float, int]]) -> list[tuple[int, float]]:
    """(committed tokens, when they were reached) after each verdict."""
    totals = accumulate(count for _, count in verdicts)
    return list(zip(totals, (at for at, _ in verdicts), strict=True))
