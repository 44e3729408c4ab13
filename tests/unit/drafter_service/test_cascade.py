"""The cascade: who drafts what, by which evidence, and that neither's state is ever behind."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drafter_harness import PROMPT, VOCAB, DrafterBench, drafted, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import Pipeline, cascade_of, outputs, reference

from drafter_service.cascade import CascadeDrafter
from drafter_service.evidence import MODEL_PRIOR, Estimates, Evidence
from drafter_service.ngram_index import NgramIndex
from drafter_service.ngram_reader import TOKENS_A_STEP
from paceline.config import RuntimeConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import Advance, CloseSession, DrafterState

DRAFT = hashed_script(VOCAB, seed=5)
LOOP = (1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3)


def cascade(
    script: Callable[[Sequence[int]], torch.Tensor] = DRAFT,
    *,
    margin: float = 0.1,
    sizes: tuple[int, int] = (2, 4),
    vocab: int = VOCAB,
    budget: int = 512,
    **options: int,
) -> CascadeDrafter:
    return cascade_of(
        ScriptedRunner(script, vocab_size=vocab, **options),
        *sizes,
        margin=margin,
        runtime=RuntimeConfig(max_batch_tokens=budget),
    )


def passes(drafter: CascadeDrafter) -> list[list[tuple[int, int]]]:
    model: Any = drafter._model
    found: list[list[tuple[int, int]]] = model._runner.passes
    return found


def test_a_text_that_repeats_itself_is_copied_without_a_pass() -> None:
    drafter = cascade()
    bench = DrafterBench(drafter)
    bench.post(opening(token_ids=LOOP))
    replies = bench.run()
    assert drafted(replies) == [4, 1, 2, 3, 4, 1, 2, 3]
    assert [reply.draft_probs for reply in replies] == [None, None]
    assert passes(drafter) == []
    counters = bench.engine.describe().counters
    assert (counters["copied_tokens"], counters["drawn_tokens"]) == (8, 0)


def test_a_text_that_does_not_is_the_models() -> None:
    bench = DrafterBench(cascade())
    bench.post(opening(window=3))
    assert drafted(bench.run()) == reference(DRAFT, PROMPT, 3)
    assert bench.engine.describe().counters["drawn_tokens"] == 3


def test_the_model_reads_in_one_chunk_what_was_copied() -> None:
    """Its next draft is what it would be had it drafted all along."""
    drafter = cascade(margin=1.0)
    bench = DrafterBench(drafter)
    bench.post(opening(window=4))
    right = reference(DRAFT, PROMPT, 4)
    bench.run()
    bench.advance(*right, *LOOP, epoch=1)
    assert drafted(bench.run()) == [4, 1, 2, 3]
    before = len(passes(drafter))
    bench.advance(4, 1, 9, epoch=2)
    tokens = tuple(bench.session().tokens)
    assert drafted(bench.run())[0] == reference(DRAFT, tokens, 1)[0]
    assert passes(drafter)[before][0][0] == len(LOOP) + 4, "the copied, and what was not cached"


def mixed_block(top_k: int) -> Any:
    """A block that the model begins and copying goes on with."""

    def script(history: Sequence[int]) -> torch.Tensor:
        row = torch.zeros(VOCAB)
        row[(3, 5, 6)[len(history) % 3]] = 1.0 if len(history) != 8 else 60.0
        return row

    bench = DrafterBench(cascade(script, sizes=(3, 4)))
    text = (1, 2, 6, 4, 7, 9, 1, 2)
    sampled = SamplingParams(max_tokens=50)
    bench.post(opening(token_ids=text, sampling=sampled, draft_top_k=top_k, window=4))
    (block,) = bench.run()
    assert block.token_ids == (6, 4, 7, 9)
    return block.draft_probs


@pytest.mark.parametrize("top_k", [0, 3])
def test_each_token_of_a_mixed_block_has_the_law_it_was_drafted_by(top_k: int) -> None:
    probs = mixed_block(top_k)
    assert (probs.ids is None) == (top_k == 0)
    probs.check(VOCAB)
    rows = [probs.dense_row(i, VOCAB) for i in range(4)]
    assert 0.99 < float(rows[0][6]) <= 1
    assert [int(row.argmax()) for row in rows] == [6, 4, 7, 9]
    assert all(
        torch.equal(row, torch.eye(VOCAB)[i]) for row, i in zip(rows[1:], (4, 7, 9), strict=True)
    )


def test_copying_that_fails_gives_way_to_the_model_and_comes_back_when_it_is_right() -> None:
    """By acceptance alone; copying that is not chosen is judged all the same."""
    evidence = Evidence(0, window=1)
    index = NgramIndex(range(2, 5), may_come=lambda token, position: True, undo_depth=1)

    def commit(*token_ids: int, right: bool | None = None) -> Estimates:
        for token_id in token_ids:
            if right is not None:
                evidence.drew(len(index.tokens), token_id if right else -1)
            index.append(token_id)
        return evidence.at_end(index)

    assert Estimates().prefer_copy(3, 0.1)
    assert not Estimates().prefer_copy(2, 0.1)
    numbers = random.Random(3)
    found = commit(*(numbers.randrange(3) for _ in range(60)), right=True)
    assert not found.prefer_copy(3, 0.1)
    assert found.model > 0.9
    found = commit(*(1, 2, 3, 4, 5, 6, 7, 8, 9) * 8, right=False)
    assert found.prefer_copy(8, 0.1)
    assert found.model < 0.2
    found = commit(*(1, 2, 3, 4, 5, 6, 7, 8, 9) * 30)
    assert found.model == pytest.approx(MODEL_PRIOR, abs=0.01), "it may try again"


def test_what_counts_at_a_position_does_not_depend_on_how_far_drafting_had_gone() -> None:
    """Tokens younger than the window count for nothing, before a rollback and after it."""

    def run(ahead: int) -> list[Estimates]:
        evidence = Evidence(2, window=4)
        index = NgramIndex(range(1, 2), may_come=lambda token, position: True, undo_depth=5)
        seen = []
        for token_id in (7, 7, 7, 3, 7, 7, 3, 3, 7, 7):
            evidence.drew(len(index.tokens), 7)
            for _ in range(ahead):
                index.append(7)
                evidence.drew(len(index.tokens), 7)
                evidence.at_end(index)
            length = len(index.tokens) - ahead
            index.truncate(length)
            evidence.rollback(length)
            index.append(token_id)
            seen.append(evidence.at_end(index))
        return seen

    expected = run(0)
    assert [estimates.trials[0] > 0 for estimates in expected] == [False] * 6 + [True] * 4
    assert expected[-1].trials[0] > expected[6].trials[0] > 0
    for ahead in (1, 2, 3, 4):
        assert run(ahead) == expected


def test_drafts_that_followed_a_wrong_token_are_no_evidence() -> None:
    evidence = Evidence(0, window=2)
    index = NgramIndex(range(1, 2), may_come=lambda token, position: True, undo_depth=2)
    for position in range(3):
        evidence.drew(position, 5)
    evidence.rollback(1)  # the draft at 1 was judged wrong, the one behind it was not judged
    for token_id in (5, 6, 5, 5, 5):
        index.append(token_id)
    estimates = evidence.at_end(index)
    assert estimates.trials[0] == pytest.approx(0.97 * 0.97 + 0.97)
    assert estimates.hits[0] == pytest.approx(0.97 * 0.97)


def test_after_a_rejection_the_model_drafts_from_the_text_that_was_committed() -> None:
    bench = DrafterBench(cascade())
    bench.post(opening(window=4))
    right = reference(DRAFT, PROMPT, 4)
    assert drafted(bench.run()) == right
    wrong = (right[1] + 1) % VOCAB
    bench.advance(right[0], wrong, epoch=1)
    text = (*PROMPT, right[0], wrong)
    assert drafted(bench.run()) == reference(DRAFT, text, 4)


def test_copying_goes_on_beyond_the_models_context() -> None:
    """D04."""
    bench = DrafterBench(cascade(context_length=16))
    bench.post(opening(token_ids=(1, 2, 3, 4) * 8))
    assert drafted(bench.run()) == [1, 2, 3, 4, 1, 2, 3, 4]
    bench.post(opening(2, token_ids=(*range(VOCAB), 5, 5, 4, 4, 3, 3, 2, 2)))
    (block,) = [reply for reply in bench.run() if reply.session_id == 2]
    assert (block.token_ids, block.state) == ((), DrafterState.PAUSED)
    bench.post(opening(3, token_ids=(*range(VOCAB), 5, 4)))
    replies = bench.run()
    assert len(drafted(replies, 3)) == 3, "the model's, as far as its context goes"


def test_a_session_without_room_for_its_kv_copies_whatever_matches() -> None:
    drafter = cascade(num_pages=4)
    bench = DrafterBench(drafter)
    for session_id, prompt in ((1, (1,)), (2, (1, 2, 9, 1, 2))):
        short = SamplingParams(temperature=0, max_tokens=16 - len(prompt))
        bench.post(opening(session_id, token_ids=prompt, sampling=short))
    replies = bench.run()
    assert bench.engine.describe().waiting_sessions == 1
    assert drafted(replies, 2)[:3] == [9, 1, 2]
    bench.post(CloseSession(1))
    assert bench.engine.describe().waiting_sessions == 0
    bench.post(CloseSession(2))
    assert bench.engine.describe().kv_pages_used == 0


def test_a_drafted_end_ends_the_draft_whoever_drafted_it() -> None:
    """B06."""
    bench = DrafterBench(cascade())
    end = reference(DRAFT, PROMPT, 3)[2]
    bench.post(opening(eos_token_ids=(end,)))
    (block,) = bench.run()
    assert block.token_ids[-1] == end
    assert len(block.token_ids) <= 3
    bench.post(opening(2, token_ids=(*LOOP, 4, 1, 2), eos_token_ids=(4,)))
    assert drafted(bench.run(), 2) == [3, 4]


def test_a_reproducible_session_prefills_its_model_while_it_waits() -> None:
    drafter = cascade()
    bench = DrafterBench(drafter)
    bench.post(opening(reproducible=True))
    (block,) = bench.run()
    assert (block.token_ids, block.kv_length) == ((), len(PROMPT) - 1)


def shapes(replies: Sequence[Any]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Base, length, what was copied."""
    return [(block.base, len(block.token_ids), block.copied) for block in replies]


def plan(drafter: DrafterBench, *token_ids: int, **changes: int) -> None:
    session = drafter.session()
    drafter.post(Advance(1, session.epoch, session.committed, token_ids, **changes))


def test_a_block_says_what_was_copied_and_takes_the_time_of_the_rest() -> None:
    bench = DrafterBench(cascade(sizes=(3, 4)))
    text = (1, 2, 3, 4, 5, 1, 2, 3)
    bench.post(opening(token_ids=text))
    first = bench.run()[0]
    assert (first.copied, first.draft_us) == ((0, 1, 2, 3), 0)
    assert first.token_ids == (4, 5, 1, 2)
    bench.advance(7, epoch=1)
    drawn = bench.run()[0]
    assert drawn.copied == ()
    assert drawn.draft_us > 0


def test_the_model_draws_no_further_than_its_window_and_copying_goes_on() -> None:
    drafter = cascade(margin=1.0)
    bench = DrafterBench(drafter)
    bench.post(opening(num_speculative_tokens=8))
    plan(bench, draw_window=2, num_drawn_tokens=2)
    assert shapes(bench.run()) == [(3, 2, ())], "and says that nothing follows"
    plan(bench, *LOOP)
    copied = tuple(range(8))
    assert shapes(bench.run()) == [(14, 8, copied)], "beyond what the model may draw"


def test_a_model_that_may_not_draw_reads_nothing_and_whatever_matches_is_copied() -> None:
    drafter = cascade(margin=0.0, sizes=(1, 4))
    bench = DrafterBench(drafter)
    bench.post(opening(token_ids=(1, 2, 7, 8, 1)))
    plan(bench, draw_window=0)
    assert drafted(bench.run())[:3] == [2, 7, 8], "a match of one, which the model would beat"
    plan(bench, 9, 6)
    assert shapes(bench.run()) == [(7, 0, ())]
    assert passes(drafter) == []
    assert bench.engine.describe().counters["drawn_tokens"] == 0
    plan(bench, draw_window=4, num_drawn_tokens=4)
    assert shapes(bench.run())[0] == (7, 4, ())


def test_a_block_of_drawn_tokens_is_sent_when_it_has_as_many_as_is_said() -> None:
    bench = DrafterBench(cascade())
    bench.post(opening())
    plan(bench, num_speculative_tokens=8, draw_window=6, num_drawn_tokens=3)
    assert shapes(bench.run()) == [(3, 3, ()), (6, 3, ())]
    plan(bench, num_speculative_tokens=2)
    plan(bench, draw_window=8)
    assert shapes(bench.run()) == [(9, 2, ())], "a new length of a block is that of both"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_in_any_order_of_events_the_output_is_the_targets(data: st.DataObject) -> None:
    """Greedy, several sessions at once, rollbacks at every place, contexts shorter than the text:
    the model's cache never misses or repeats a token, or its runner would refuse the pass."""
    order = data.draw(st.integers(1, 2))
    target = hashed_script(4, seed=data.draw(st.integers(0, 3)), order=order)
    same = data.draw(st.booleans())
    drafter = cascade(
        target if same else hashed_script(4, seed=9, order=order),
        margin=data.draw(st.sampled_from([0.0, 0.1, 1.0])),
        sizes=(1, data.draw(st.integers(1, 4))),
        vocab=4,
        budget=data.draw(st.sampled_from([3, 512])),
        context_length=data.draw(st.sampled_from([12, 256])),
    )
    pipeline = Pipeline(ScriptedRunner(target, vocab_size=4), drafter)
    window = data.draw(st.sampled_from([1, 4, 12]))
    prompts = [[1, 2, 3, 1, 2], [0], [3, 3, 3, 2]][: data.draw(st.integers(1, 3))]
    sampling = SamplingParams(temperature=0, max_tokens=25)
    relays = [pipeline.open(prompt, sampling, window=window) for prompt in prompts]
    shuffled = random.Random(data.draw(st.integers(0, 1000)))
    changes = data.draw(st.booleans())
    engine: Any = pipeline.drafter and pipeline.drafter.engine
    while possible := pipeline.hops():
        shuffled.choice(possible)()
        for session in engine._sessions.values() if changes else ():
            session._plan = replace(
                session._plan,
                draw_window=shuffled.choice((0, 1, 3, 12)),
                min_confidence=shuffled.choice((0.0, 0.0, 0.4)),
                min_copy_confidence=shuffled.choice((0.0, 0.0, 0.2)),
            )
    pipeline.run()
    for prompt, relay in zip(prompts, relays, strict=True):
        assert outputs(relay) == reference(target, prompt, 25)


def test_reading_a_long_prompt_for_what_can_be_copied_is_no_time_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a step for each part of the prompt, and gives no token to divide by."""
    clock = itertools.count()
    monkeypatch.setattr(
        "drafter_service.engine.time", SimpleNamespace(perf_counter=lambda: float(next(clock)))
    )
    prompt = tuple(random.Random(3).choices(range(1, VOCAB), k=5 * TOKENS_A_STEP))
    bench = DrafterBench(cascade(sizes=(8, 9), context_length=8 * TOKENS_A_STEP, num_pages=4096))
    bench.post(opening(token_ids=prompt, window=4))
    blocks = bench.run()
    drawn = sum(len(block.token_ids) - len(block.copied) for block in blocks)
    assert drawn
    assert sum(block.draft_us for block in blocks) <= 1e6 * drawn
