"""Prompt lookup: what it copies, from where, and what it never copies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from drafter_harness import DrafterBench, drafted, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import Pipeline, outputs, reference

from drafter_service.drafter import ProposeRequest
from drafter_service.ngram import NgramDrafter
from paceline.config import NgramConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import DrafterState

KEY = (1, 1)


def drafter(smallest: int = 1, largest: int = 3) -> NgramDrafter:
    ngram = NgramDrafter(NgramConfig(min_match=smallest, max_match=largest))
    ngram.reserve(KEY, opening())
    return ngram


def propose(
    ngram: NgramDrafter, token_ids: Sequence[int], limit: int = 4, banned: Sequence[int] = ()
) -> list[int]:
    sampling = SamplingParams(bad_words_token_ids=tuple((i,) for i in banned))
    request = ProposeRequest(KEY, opening(sampling=sampling), list(token_ids), 0, limit)
    (proposal,) = ngram.propose([request])
    assert proposal.error is None
    assert not proposal.is_pending
    assert all(draw.probs is None for draw in proposal.draws), "point masses"
    return [draw.token_id for draw in proposal.draws]


def naive(
    token_ids: Sequence[int], smallest: int, largest: int, limit: int, banned: Sequence[int] = ()
) -> list[int]:
    """The continuation of the latest earlier occurrence of the longest suffix, by scanning."""
    for size in range(largest, smallest - 1, -1):
        suffix = list(token_ids[-size:])
        for start in range(len(token_ids) - size - 1, -1, -1):
            if list(token_ids[start : start + size]) == suffix and size < len(token_ids):
                copied = list(token_ids[start + size : start + size + limit])
                stop = next((i for i, t in enumerate(copied) if t in banned), None)
                return copied[:stop]
    return []


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert propose(drafter(), [1, 2, 9, 5, 2, 7, 1, 2], limit=1) == [9]
    assert propose(drafter(largest=1), [1, 2, 9, 5, 2, 7, 1, 2], limit=1) == [7]


def test_the_latest_of_equal_matches_wins() -> None:
    assert propose(drafter(), [1, 2, 8, 1, 2, 9, 1, 2], limit=1) == [9]


def test_a_match_shorter_than_the_smallest_is_none() -> None:
    assert propose(drafter(smallest=2), [1, 5, 2, 1]) == []
    assert propose(drafter(smallest=2), [1, 2, 5, 1, 2]) == [5, 1, 2]


@pytest.mark.parametrize("limit", range(5))
def test_no_more_is_copied_than_asked(limit: int) -> None:
    """F01."""
    assert propose(drafter(), [1, 2, 3, 4, 1, 2, 3], limit) == [4, 1, 2, 3][:limit]


def test_a_match_next_to_the_end_copies_what_there_is() -> None:
    """F02: it ends with the text, EOS or not."""
    assert propose(drafter(), [5, 7, 7]) == [7]
    assert propose(drafter(), [7]) == []


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [([1, 2, 8, 3, 1, 2], []), ([1, 2, 3, 8, 1, 2], [3]), ([8, 3, 4, 8], [3, 4])],
)
def test_banned_ids_are_never_copied(token_ids: list[int], expected: list[int]) -> None:
    """F04: neither is what stands behind them."""
    assert propose(drafter(), token_ids, banned=[8]) == expected


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_index_finds_what_a_scan_finds(data: st.DataObject) -> None:
    """After any appends and rollbacks."""
    smallest = data.draw(st.integers(1, 3))
    largest = smallest + data.draw(st.integers(0, 2))
    ngram = drafter(smallest, largest)
    tokens: list[int] = [data.draw(st.integers(0, 2))]
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            length = data.draw(st.integers(1, len(tokens)))
            ngram.rollback(KEY, length)
            del tokens[length:]
        tokens += data.draw(st.lists(st.integers(0, 2), max_size=6))
        limit = data.draw(st.integers(0, 5))
        banned = data.draw(st.sampled_from([(), (1,)]))
        expected = naive(tokens, smallest, largest, limit, banned)
        assert propose(ngram, tokens, limit, banned) == expected


def test_sessions_have_their_own_texts_and_are_forgotten() -> None:
    ngram = drafter()
    ngram.reserve((2, 1), opening())
    propose(ngram, [1, 2, 3, 1, 2])
    request = ProposeRequest((2, 1), opening(), [1, 2], 0, 4)
    assert list(ngram.propose([request])[0].draws) == []
    ngram.release(KEY)
    ngram.release(KEY)
    assert list(ngram._indexes) == [(2, 1)]


def test_the_engine_pauses_it_where_nothing_matches() -> None:
    bench = DrafterBench(drafter(smallest=2))
    bench.post(opening(token_ids=(1, 2, 3)))
    (block,) = bench.run()
    assert (block.token_ids, block.state) == ((), DrafterState.PAUSED)
    bench.advance(1, 2)
    assert drafted(bench.run()) == [3, 1, 2, 3, 1, 2, 3, 1], "drafts are text to copy from, too"


@pytest.mark.parametrize("max_tokens", range(1, 5))
def test_a_lookup_never_makes_the_output_longer(max_tokens: int) -> None:
    """F01: prompt 1 2 3 4 1 2 3."""
    script = hashed_script(5, seed=2)
    pipeline = Pipeline(ScriptedRunner(script, vocab_size=5), drafter())
    prompt = [1, 2, 3, 4, 1, 2, 3]
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    relay = pipeline.open(prompt, sampling, num_speculative_tokens=3)
    pipeline.run()
    assert outputs(relay) == reference(script, prompt, max_tokens)


@pytest.mark.parametrize("smallest", range(1, 9))
def test_a_banned_id_in_the_prompt_is_neither_drafted_nor_emitted(smallest: int) -> None:
    """F02, F04: the same ids for every n-gram size, as without drafts; no end id is set."""
    script = hashed_script(10, seed=3, order=1)
    prompt = [8, 1, 2, 8, 1, 2]
    sampling = SamplingParams(temperature=0, max_tokens=15, bad_words_token_ids=((8,),))
    ngram = NgramDrafter(NgramConfig(min_match=smallest, max_match=smallest + 1))
    sent: list[int] = []
    pipeline = Pipeline(ScriptedRunner(script, vocab_size=10), ngram)
    assert pipeline.drafter is not None
    relay = pipeline.open(prompt, sampling, num_speculative_tokens=3)
    while possible := pipeline.hops():
        sent += [t for reply in pipeline.drafter.replies for t in getattr(reply, "token_ids", ())]
        possible[0]()
    pipeline.run()
    alone = Pipeline(ScriptedRunner(script, vocab_size=10), None)
    expected = alone.open(prompt, sampling)
    alone.run()
    assert outputs(relay) == outputs(expected)
    assert 8 not in outputs(relay)
    assert 8 not in sent
