"""Which worker is remembered for a prefix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.affinity import BLOCK_TOKENS, AffinityMap, Demand, prefix_keys

SYSTEM = tuple(range(3 * BLOCK_TOKENS))
ids = st.lists(st.integers(0, 2), max_size=4)


def anyone(worker: str) -> bool:
    return True


def demand_of(*token_ids: int, cache_key: str = "") -> Demand:
    return Demand(len(token_ids), cache_key, prefix_keys(token_ids))


def blocks(values: list[int]) -> list[int]:
    """A whole block of each value, so that few values make many common prefixes."""
    return [value for value in values for _ in range(BLOCK_TOKENS)]


@settings(derandomize=True)
@given(ids, ids)
def test_two_prompts_have_as_many_keys_in_common_as_whole_blocks(
    one: list[int], other: list[int]
) -> None:
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    first, second = prefix_keys(blocks(one)), prefix_keys([*blocks(other), 7])
    assert first[:common] == second[:common]
    assert not set(first[common:]) & set(second[common:])
    assert (len(first), len(second)) == (len(one), len(other))


@settings(derandomize=True)
@given(ids, st.integers(0, 4), st.integers(0, BLOCK_TOKENS - 1))
def test_a_prompt_that_grew_has_the_keys_of_the_whole(
    values: list[int], cut: int, odd: int
) -> None:
    whole = [*blocks(values), *range(odd)]
    start = demand_of(*whole[: cut * BLOCK_TOKENS])
    assert start.grown(whole).prefix == prefix_keys(whole)


def test_the_worker_that_knows_the_longest_prefix_is_found() -> None:
    """A conversation goes where its last turn was, not where the system prompt was last."""
    affinity: AffinityMap[str] = AffinityMap()
    turn = (*SYSTEM, *[9] * BLOCK_TOKENS)
    affinity.remember(demand_of(*turn), "a")
    affinity.remember(demand_of(*SYSTEM), "b")
    assert affinity.find(demand_of(*turn, 1, 2), anyone) == "a"
    assert affinity.find(demand_of(*SYSTEM, *[8] * BLOCK_TOKENS), anyone) == "b"
    assert affinity.find(demand_of(*SYSTEM[:BLOCK_TOKENS]), anyone) == "b"
    assert affinity.find(demand_of(*SYSTEM[: BLOCK_TOKENS - 1]), anyone) is None
    assert affinity.find(demand_of(5, *SYSTEM), anyone) is None


def test_a_worker_that_cannot_be_used_yields_to_one_that_knows_less() -> None:
    affinity: AffinityMap[str] = AffinityMap()
    affinity.remember(demand_of(*SYSTEM), "a")
    affinity.remember(demand_of(*SYSTEM[:BLOCK_TOKENS]), "b")
    assert affinity.find(demand_of(*SYSTEM), lambda worker: worker != "a") == "b"
    assert affinity.find(demand_of(*SYSTEM), lambda worker: False) is None


def test_the_clients_key_goes_before_the_prefix_and_an_unknown_one_leaves_it_to_the_prefix() -> (
    None
):
    affinity: AffinityMap[str] = AffinityMap()
    affinity.remember(demand_of(1, cache_key="chat-7"), "a")
    affinity.remember(demand_of(*SYSTEM), "b")
    assert affinity.find(demand_of(*SYSTEM, cache_key="chat-7"), anyone) == "a"
    assert affinity.find(demand_of(*SYSTEM, cache_key="chat-8"), anyone) == "b"


@pytest.mark.parametrize("max_entries", [1, 3, 5])
def test_the_map_is_bounded_and_forgets_what_was_longest_unused(max_entries: int) -> None:
    affinity: AffinityMap[str] = AffinityMap(max_entries)
    for number in range(10):
        affinity.remember(demand_of(cache_key=str(number)), "a")
        assert len(affinity) <= max_entries
    found = [n for n in range(10) if affinity.find(demand_of(cache_key=str(n)), anyone)]
    assert found == list(range(10 - max_entries, 10))


def test_of_one_prompt_its_beginning_is_forgotten_last() -> None:
    affinity: AffinityMap[str] = AffinityMap(2)
    affinity.remember(demand_of(*SYSTEM), "a")
    assert affinity.find(demand_of(*SYSTEM[: 2 * BLOCK_TOKENS]), anyone) == "a"
    assert affinity.find(Demand(prefix=prefix_keys(SYSTEM)[2:]), anyone) is None


def test_a_worker_that_lost_its_kv_is_forgotten() -> None:
    affinity: AffinityMap[str] = AffinityMap()
    affinity.remember(demand_of(*SYSTEM), "a")
    affinity.remember(demand_of(cache_key="k"), "b")
    affinity.forget(lambda worker: worker == "a")
    assert affinity.find(demand_of(*SYSTEM), anyone) is None
    assert affinity.find(demand_of(cache_key="k"), anyone) == "b"
