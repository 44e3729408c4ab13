"""How busy a worker is taken to be, and which one is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import worker_info

from orchestrator.load import AFFINITY_SESSIONS, AFFINITY_SHARE, Report, choose, room_tokens

INFO = replace(worker_info("verifier", 11), kv_page_size=16, kv_pages_total=10)


@dataclass
class Busy:
    load: int
    room_tokens: float = math.inf


workers = st.lists(
    st.builds(Busy, st.integers(0, 40), st.sampled_from([0.0, 50.0, math.inf])), max_size=5
)


def test_what_others_keep_there_is_what_is_there_less_what_is_ours() -> None:
    info = replace(INFO, live_sessions=5, kv_pages_reserved=6)
    assert Report.of(info, own_sessions=2, own_tokens=40) == Report(3, 56, 160)
    assert Report.of(info, own_sessions=9, own_tokens=999) == Report(0, 0, 160), "never below 0"


def test_room_is_what_nobody_has_and_none_where_sessions_wait() -> None:
    report = Report(other_sessions=1, other_tokens=60, total_tokens=160)
    assert room_tokens(report, own_tokens=40) == 60
    assert room_tokens(replace(report, is_full=True), own_tokens=40) == 0
    assert room_tokens(Report(other_sessions=7), own_tokens=10**9) == math.inf, "no pool"
    assert Report.of(replace(INFO, waiting_sessions=1), own_sessions=0, own_tokens=0).is_full


def test_room_goes_before_load_and_load_before_order() -> None:
    full, busy, idle = Busy(0, 10), Busy(3, 100), Busy(1, 100)
    assert choose([full, busy, idle], 50) is idle
    assert choose([full, busy], 50) is busy
    assert choose([full, busy], 10) is full
    assert choose([Busy(2, 0), full], 50) is full, "without room anywhere the queue is shortest"
    assert choose([busy, other := Busy(3, 100)], 50) is busy, f"the first of equals, not {other}"
    assert choose([], 50) is None


@pytest.mark.parametrize(
    ("least", "favourite", "is_taken"),
    [(0, 4, True), (0, 5, False), (10, 14, True), (10, 15, False), (40, 50, True), (40, 51, False)],
)
def test_a_prefix_is_worth_four_sessions_or_a_quarter_more(
    least: int, favourite: int, is_taken: bool
) -> None:
    idle, knowing = Busy(least), Busy(favourite)
    assert choose([idle, knowing], 1, knowing) is (knowing if is_taken else idle)


def test_a_favourite_without_room_is_left_alone() -> None:
    idle, knowing = Busy(2, 100), Busy(0, 10)
    assert choose([idle, knowing], 50, knowing) is idle


@settings(derandomize=True)
@given(workers, st.integers(0, 100), st.integers(-1, 4))
def test_whatever_the_favourite_the_choice_has_room_if_any_has_and_is_never_much_busier(
    several: list[Busy], num_tokens: int, index: int
) -> None:
    favourite = several[index] if 0 <= index < len(several) else None
    chosen = choose(several, num_tokens, favourite)
    if chosen is None:
        assert not several
        return
    fitting = [worker for worker in several if worker.room_tokens >= num_tokens]
    assert not fitting or chosen.room_tokens >= num_tokens
    least = min(worker.load for worker in fitting or several)
    assert chosen.load <= least + max(AFFINITY_SESSIONS, AFFINITY_SHARE * least)
    if favourite is None:
        assert chosen.load == least
