"""Drafting with a model over a paged pool: prefill, rollback, room, and seeded sessions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from drafter_harness import PROMPT, VOCAB, drafted, model_bench, only_error, opening
from support.pipeline import Pipeline, outputs, reference

from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import CloseSession, DrafterState, SessionError

DRAFT = hashed_script(VOCAB, seed=5)


def runner(**options: int) -> ScriptedRunner:
    return ScriptedRunner(DRAFT, vocab_size=VOCAB, **options)


def test_greedy_drafts_are_the_models_own_continuation() -> None:
    bench = model_bench(runner())
    bench.post(opening())
    replies = bench.run()
    assert drafted(replies) == reference(DRAFT, PROMPT, 8)
    assert [block.draft_probs for block in replies] == [None, None], "point masses"
    assert [block.kv_length for block in replies] == [6, 10]


def test_rollback_keeps_the_cache_of_the_tokens_that_agree() -> None:
    bench = model_bench(runner())
    bench.post(opening())
    right = reference(DRAFT, PROMPT, 8)
    bench.run()
    wrong = (right[3] + 1) % VOCAB
    bench.advance(*right[:3], wrong, epoch=1)
    table = bench.drafter._tables[1, 1]
    assert table.length == 6
    replies = bench.run()
    assert drafted(replies) == reference(DRAFT, [*PROMPT, *right[:3], wrong], 8)
    assert bench.drafter._runner.passes[10 - 2][0][0] == 1, "only the new token is computed"


def test_sessions_step_together() -> None:
    bench = model_bench(runner())
    for session_id in (1, 2, 3):
        bench.post(opening(session_id, token_ids=(session_id,) * session_id))
    replies = bench.run()
    assert len(bench.drafter._runner.passes) == 8
    for session_id in (1, 2, 3):
        expected = reference(DRAFT, (session_id,) * session_id, 8)
        assert drafted(replies, session_id) == expected


@pytest.mark.parametrize("budget", [1, 3, 7, 64])
def test_prompts_are_prefilled_in_chunks(budget: int) -> None:
    """E06: a long prompt does not hold up the drafting of others."""
    bench = model_bench(runner(), max_batch_tokens=budget)
    bench.post(opening(1))
    bench.run()
    long = tuple(i % VOCAB for i in range(100))
    bench.post(opening(2, token_ids=long))
    bench.advance(*reference(DRAFT, PROMPT, 8))
    replies = bench.run()
    assert drafted(replies, 2) == reference(DRAFT, long, 8)
    first = next(i for i, reply in enumerate(replies) if reply.session_id == 2)
    if budget > 1:
        assert {reply.session_id for reply in replies[:first]} == {1}


@pytest.mark.parametrize("prompt", [(4,), PROMPT, tuple(range(10)) * 3])
def test_a_reproducible_session_prefills_and_waits_for_the_first_token(
    prompt: tuple[int, ...],
) -> None:
    """A06: a draft for the token that the prefill decides would void others by chance."""
    bench = model_bench(runner(), max_batch_tokens=8)
    bench.post(opening(token_ids=prompt, reproducible=True))
    (block,) = bench.run()
    assert (block.token_ids, block.state) == ((), DrafterState.PAUSED)
    assert block.kv_length == len(prompt) - 1
    bench.advance(7)
    bench.drafter._runner.passes.clear()
    assert drafted(bench.run()) == reference(DRAFT, [*prompt, 7], 8)
    assert bench.drafter._runner.passes[0] == [(2, 1)], "the prompt was cached already"


def test_a_reopened_reproducible_session_drafts_at_once() -> None:
    bench = model_bench(runner())
    bench.post(opening(token_ids=(*PROMPT, 4), prompt_length=3, reproducible=True))
    assert drafted(bench.run()) == reference(DRAFT, (*PROMPT, 4), 8)


def small(session_id: int, num_tokens: int = 16) -> object:
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens - 1)
    return opening(session_id, token_ids=(session_id,), sampling=sampling)


def test_a_full_pool_pauses_the_session_until_another_is_released() -> None:
    """D08: the verifier is told once, and decodes without waiting or a round trip a token."""
    bench = model_bench(runner(num_pages=4))
    bench.post(small(1))  # type: ignore[arg-type]
    bench.post(small(2))  # type: ignore[arg-type]
    replies = bench.run()
    assert bench.engine.describe().waiting_sessions == 1
    assert drafted(replies, 1)
    (told,) = [reply for reply in replies if reply.session_id == 2]
    assert (told.token_ids, told.state, told.kv_length) == ((), DrafterState.ENDED, 0)
    bench.advance(5, session_id=2)
    assert not [reply for reply in bench.run() if reply.session_id == 2]
    bench.post(CloseSession(1))
    assert bench.engine.describe().waiting_sessions == 0
    bench.advance(6, session_id=2)
    assert drafted(bench.run(), 2) == reference(DRAFT, (2, 5, 6), 8)


def test_a_session_that_can_never_fit_is_refused() -> None:
    bench = model_bench(runner(num_pages=4))
    error = only_error(bench.post(small(1, 17)))  # type: ignore[arg-type]
    assert error.code == "INVALID_ARGUMENT"


def test_only_the_drafters_own_context_is_reserved() -> None:
    """D04: a prompt beyond it reserves that much, and ends drafting."""
    bench = model_bench(runner(num_pages=4, context_length=16))
    bench.post(opening(token_ids=(1,) * 40))
    (block,) = bench.run()
    assert (block.token_ids, block.state) == ((), DrafterState.ENDED)
    assert bench.engine.describe().kv_pages_used == 0


@pytest.mark.parametrize("token_id", [-1, VOCAB])
def test_prompt_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    """E07: no placeholder reaches the model."""
    bench = model_bench(runner())
    error = only_error(bench.post(opening(token_ids=(1, token_id), vocab_size=20)))
    assert error.code == "INVALID_ARGUMENT"
    assert error.message.startswith(f"token_ids: {token_id} ")
    assert bench.engine.describe().live_sessions == 0


def test_ids_that_the_target_lacks_are_never_drafted() -> None:
    """C01: a wider draft head proposes nothing above the target's vocabulary."""

    def prefers_padding(history: Sequence[int]) -> torch.Tensor:
        logits = hashed_script(16, seed=5)(history).clone()
        logits[VOCAB:] = 50.0
        return logits

    bench = model_bench(ScriptedRunner(prefers_padding, vocab_size=16))
    bench.post(opening())
    bench.post(opening(2, sampling=SamplingParams(max_tokens=50)))
    replies = bench.run()
    for session_id in (1, 2):
        assert len(drafted(replies, session_id)) == 8
        assert max(drafted(replies, session_id)) < VOCAB
    probs = [reply.draft_probs for reply in replies if reply.session_id == 2]
    assert {part.probs.shape[1] for part in probs} == {VOCAB}


def test_draft_top_k_cuts_what_is_sampled_from_and_sent() -> None:
    bench = model_bench(runner())
    bench.post(opening(draft_top_k=3, sampling=SamplingParams(max_tokens=50)))
    for block in bench.run():
        assert block.draft_probs.ids.shape == (4, 3)
        block.draft_probs.check(VOCAB)
        kept = block.draft_probs.prob_of(torch.tensor(block.token_ids))
        assert bool((kept > 0).all())


def test_a_pass_that_fails_once_costs_a_session_no_more_than_itself() -> None:
    """The failing session errors; the others draft what they would have drafted."""

    def script(history: Sequence[int]) -> torch.Tensor:
        if history[0] == 2 and len(history) == 5:
            raise RuntimeError("out of memory")
        return DRAFT(history)

    bench = model_bench(ScriptedRunner(script, vocab_size=VOCAB))
    for session_id in (1, 2, 3):
        bench.post(opening(session_id, token_ids=(session_id,)))
    replies = bench.run()
    (error,) = [reply for reply in replies if isinstance(reply, SessionError)]
    assert (error.session_id, error.code) == (2, "UNAVAILABLE")
    for session_id in (1, 3):
        assert drafted(replies, session_id) == reference(DRAFT, (session_id,), 8)
    for session_id in (1, 3):
        bench.post(CloseSession(session_id))
    assert bench.engine.describe().kv_pages_used == 0


def test_fifty_sessions_in_a_row_all_speculate() -> None:
    """D08: 40-token prompts through a pool of 100 tokens, nothing is left behind."""
    target = hashed_script(VOCAB, seed=1)
    pipeline = Pipeline(
        ScriptedRunner(target, vocab_size=VOCAB, num_pages=25),
        ScriptedRunner(target, vocab_size=VOCAB, num_pages=25),
    )
    assert pipeline.drafter is not None
    for turn in range(50):
        prompt = [(turn + i) % VOCAB for i in range(40)]
        relay = pipeline.open(prompt, SamplingParams(temperature=0, max_tokens=12))
        if turn % 3 == 2:  # some are cancelled on the way
            for _ in range(turn % 10):
                pipeline.hops()[0]()
            relay.close()
            pipeline.run()
            continue
        pipeline.run()
        assert relay.session.counts.accepted > 0
        assert outputs(relay) == reference(target, prompt, 12)
    for engine in (pipeline.drafter.engine, pipeline.verifier_engine):
        described = engine.describe()
        assert described.live_sessions == described.waiting_sessions == 0
        assert described.kv_pages_used == 0
