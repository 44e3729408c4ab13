"""How one step's token budget is shared."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime.scheduler import PREFILL_SHARE, share_budget

WANTED = st.lists(st.integers(1, 40), max_size=8)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(decodes=WANTED, prefills=WANTED, budget=st.integers(1, 100))
def test_grants_keep_to_the_budget_and_always_make_progress(
    decodes: list[int], prefills: list[int], budget: int
) -> None:
    decode_grants, prefill_grants = share_budget(decodes, prefills, budget)
    for wanted, granted in zip(decodes, decode_grants, strict=True):
        assert granted in (0, wanted), "a decoding session gets all it asks for or nothing"
    for wanted, granted in zip(prefills, prefill_grants, strict=True):
        assert 0 <= granted <= wanted
    total = sum(decode_grants) + sum(prefill_grants)
    assert total > 0 or not (decodes or prefills)
    if total > budget:  # then one decoding session alone is above what decoding may have
        assert [granted for granted in decode_grants if granted] == [decodes[0]]
        assert decodes[0] > budget - budget // PREFILL_SHARE
    reserved = min(sum(prefills), budget // PREFILL_SHARE)
    assert sum(prefill_grants) >= reserved, "prompts make progress under any load"
    if decodes:
        assert decode_grants[0] == decodes[0], "and so does the least recently served session"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(prefills=st.lists(st.integers(1, 40), min_size=1, max_size=8), budget=st.integers(1, 100))
def test_prompts_share_by_max_min_fairness(prefills: list[int], budget: int) -> None:
    """E06: a short prompt is not held up by a long one."""
    _, grants = share_budget([], prefills, budget)
    assert sum(grants) == min(budget, sum(prefills))
    for wanted, granted in zip(prefills, grants, strict=True):
        if granted < wanted:  # then nobody has more than it, up to the rounding of one token
            assert granted >= max(grants) - 1


def test_without_prompts_decoding_has_the_whole_budget() -> None:
    assert share_budget([5, 5, 5, 5], [], 20) == ([5, 5, 5, 5], [])


def test_decoding_leaves_waiting_prompts_a_share() -> None:
    assert share_budget([5, 5, 5, 5], [100], 20) == ([5, 5, 5, 0], [5])


def test_a_small_decode_fits_where_a_large_one_did_not() -> None:
    assert share_budget([8, 8, 2], [], 10) == ([8, 0, 2], [])


def test_what_decoding_leaves_goes_to_prompts() -> None:
    """E06: chunks are as large as they can be without holding up a decoding session."""
    assert share_budget([1, 1], [2000], 64) == ([1, 1], [62])
    assert share_budget([], [10, 2000, 30], 64) == ([], [10, 27, 27])


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_tiny_budget_still_serves_someone(budget: int) -> None:
    assert share_budget([7], [7], budget)[0] == [7]
    assert share_budget([], [7], budget) == ([], [budget])


def test_nothing_wanted_is_nothing_granted() -> None:
    assert share_budget([], [], 64) == ([], [])
