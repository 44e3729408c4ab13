"""Prompt lookup: what it copies, from where, and what it never copies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from drafter_harness import DrafterBench, drafted, opening
from support.pipeline import Pipeline, outputs, reference

from drafter_service.drafter import ProposeRequest
from drafter_service.ngram import NgramDrafter
from drafter_service.ngram_reader import TOKENS_A_STEP
from paceline.config import NgramConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import DrafterState

KEY = (1, 1)


def drafter(smallest: int = 1, largest: int = 3, **settings: Any) -> NgramDrafter:
    ngram = NgramDrafter(NgramConfig(min_match=smallest, max_match=largest, **settings))
    ngram.reserve(KEY, opening())
    return ngram


def request(
    token_ids: Sequence[int], limit: int = 4, *, key: tuple[int, int] = KEY, committed: int = 0
) -> ProposeRequest:
    return ProposeRequest(key, opening(), list(token_ids), 0, limit, committed)


def propose(ngram: NgramDrafter, token_ids: Sequence[int], limit: int = 4) -> list[int]:
    (proposal,) = ngram.propose([request(token_ids, limit)])
    assert proposal.error is None
    assert not proposal.is_pending
    assert all(draw.probs is None for draw in proposal.draws), "point masses"
    return [draw.token_id for draw in proposal.draws]


def propose_for(sampling: SamplingParams, token_ids: Sequence[int], **fields: Any) -> list[int]:
    """What a session of these parameters is proposed."""
    opened = opening(token_ids=tuple(token_ids), sampling=sampling, **fields)
    ngram = NgramDrafter(NgramConfig(min_match=1, max_match=3))
    ngram.reserve(KEY, opened)
    (proposal,) = ngram.propose([ProposeRequest(KEY, opened, list(token_ids), 0, 4)])
    return [draw.token_id for draw in proposal.draws]


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert propose(drafter(), [1, 2, 9, 5, 2, 7, 1, 2], limit=1) == [9]
    assert propose(drafter(largest=1), [9, 5, 2, 7, 2], limit=1) == [7]


def test_the_most_frequent_of_equal_matches_wins_and_then_the_latest() -> None:
    assert propose(drafter(), [1, 2, 8, 1, 2, 9, 1, 2], limit=1) == [9]
    assert propose(drafter(), [2, 8, 5, 2, 8, 5, 5, 2, 9, 2], limit=1) == [8]


def test_a_place_that_goes_on_agreeing_is_followed_beyond_the_longest_n_gram() -> None:
    text = [1, 2, 3, 7, 2, 3, 9, 2, 3, 9, 1, 2, 3]
    assert propose(drafter(smallest=2, largest=2), text, limit=1) == [7]
    assert propose(drafter(smallest=2, largest=2), [*text[:-3], 5, 2, 3], limit=1) == [9]


def test_a_match_shorter_than_the_smallest_is_none() -> None:
    assert propose(drafter(smallest=2), [1, 5, 2, 1]) == []
    assert propose(drafter(smallest=2), [1, 2, 5, 1, 2]) == [5, 1, 2, 5]


@pytest.mark.parametrize("limit", range(5))
def test_no_more_is_copied_than_asked(limit: int) -> None:
    """F01."""
    assert propose(drafter(), [1, 2, 3, 4, 1, 2, 3], limit) == [4, 1, 2, 3][:limit]


def test_a_match_next_to_the_end_copies_what_it_has_just_copied() -> None:
    """F02: EOS or not."""
    assert propose(drafter(), [5, 7, 7]) == [7, 7, 7, 7]
    assert propose(drafter(), [7]) == []


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 8, 3, 1, 2], []),
        ([1, 2, 3, 8, 1, 2], [3]),
        ([8, 3, 4, 8], [3, 4]),
        ([1, 2, 8, 5, 2, 4, 1, 2], [4, 1, 2, 4]),
    ],
)
def test_banned_ids_are_never_copied(token_ids: list[int], expected: list[int]) -> None:
    """F04: neither is what stands behind them; another continuation takes their place."""
    assert propose_for(SamplingParams(bad_words_token_ids=((8,),)), token_ids) == expected


def test_only_allowed_ids_and_those_of_the_vocabulary_are_copied() -> None:
    text = [1, 2, 7, 1, 2]
    assert propose_for(SamplingParams(allowed_token_ids=(1, 2)), text) == []
    assert propose_for(SamplingParams(), text, vocab_size=7) == []


def test_a_drafted_end_ends_that_draft_and_nothing_else() -> None:
    """B06."""
    text = (1, 2, 3, 9, 1, 2)
    bench = DrafterBench(drafter())
    bench.post(opening(token_ids=text, eos_token_ids=(9,)))
    (block,) = bench.run()
    assert (block.token_ids, block.state) == ((3, 9), DrafterState.PAUSED)
    bench.advance(3)
    assert drafted(bench.run()) == [], "the end is still to be judged"
    bench.advance(1, 2, epoch=1)
    assert drafted(bench.run())[:3] == [3, 1, 2], "the end was rejected, the session lives on"
    ignored = SamplingParams(ignore_eos=True)
    assert propose_for(ignored, text, eos_token_ids=(9,)) == [3, 9, 1, 2]


def test_no_end_is_drafted_before_the_fewest_tokens_are_out() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=(9,))
    assert propose_for(params, (1, 2, 9, 1, 2)) == []
    assert propose_for(params, (1, 2, 3, 4, 9, 1, 2)) == [3, 4, 9]


class CountingDict(dict[Any, Any]):
    """Counts look-ups and changes."""

    operations = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.operations += 1
        return super().get(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.operations += 1
        super().__setitem__(key, value)

    def pop(self, key: Any, default: Any = None) -> Any:
        self.operations += 1
        return super().pop(key, default)


@pytest.mark.parametrize("kind", ["random", "one token", "loop"])
def test_the_work_of_a_token_does_not_grow_with_the_text(kind: str) -> None:
    """Reading, drafting and rolling back, counted in accesses to the index."""
    numbers = random.Random(1)
    script = {
        "random": lambda i: numbers.randrange(50),
        "one token": lambda i: 5,
        "loop": lambda i: i % 7,
    }
    ngram = drafter(smallest=2, largest=4)
    table = CountingDict()
    ngram._reader._readings[KEY].index._table._after = table
    tokens = [script[kind](i) for i in range(500)]
    work = []
    for _ in range(6):
        for _ in range(100):
            copied = propose(ngram, tokens, limit=4)
            tokens += copied
            ngram.rollback(KEY, len(tokens) - len(copied) // 2)
            del tokens[len(tokens) - len(copied) // 2 :]
            tokens += [script[kind](len(tokens) + i) for i in range(3)]
        work.append(table.operations / len(tokens))
    # 3 sizes, each looked up, noted (a look-up and a change) and perhaps undone; twice the tokens
    assert max(work) < 3 * 4 * 3
    assert work[-1] < 1.3 * work[1]


def test_a_long_text_is_read_in_steps() -> None:
    """E06: it does not hold up others."""
    ngram = drafter()
    long = [*range(TOKENS_A_STEP), *range(10)]
    (first,) = ngram.propose([request(long)])
    assert first.is_pending
    assert not first.draws
    (second,) = ngram.propose([request(long)])
    assert second.is_pending is False
    assert [draw.token_id for draw in second.draws] == [10], "the ids of the vocabulary"


def test_all_candidates_are_there_for_drafts_that_branch() -> None:
    ngram = drafter(smallest=2)
    match = ngram.candidates(request([1, 2, 8, 1, 2, 9, 1, 2, 9, 3, 1, 2]))
    assert match is not None
    assert match.size == 2
    assert [(option.token_id, option.times) for option in match.options] == [(9, 2), (8, 1)]
    assert ngram.candidates(request([*range(5), 7])) is None


def test_a_step_that_failed_leaves_no_drafts_behind() -> None:
    ngram = drafter()
    text = [1, 2, 3, 4, 1, 2]
    assert propose(ngram, text) == [3, 4, 1, 2]
    assert propose(ngram, text) == [3, 4, 1, 2], "asked again, since nobody took the first"


def test_sessions_have_their_own_texts_and_are_forgotten() -> None:
    ngram = drafter()
    ngram.reserve((2, 1), opening())
    propose(ngram, [1, 2, 3, 1, 2])
    assert list(ngram.propose([request([1, 2], key=(2, 1))])[0].draws) == []
    ngram.release(KEY)
    ngram.release(KEY)
    assert list(ngram._reader._readings) == [(2, 1)]


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
