"""What a model drafter keeps of a session for later ones, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from drafter_harness import VOCAB, DrafterBench, drafted, model_bench, only_error, opening
from support.pipeline import reference

from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.types import CloseSession, SessionError

DRAFT = hashed_script(VOCAB, seed=5)
PROMPT = tuple(i * i % VOCAB for i in range(16))  # four pages


def bench_of(script: object = DRAFT, **options: int) -> DrafterBench:
    return model_bench(ScriptedRunner(script, vocab_size=VOCAB, **options))  # type: ignore[arg-type]


def resting(bench: DrafterBench) -> int:
    pool = bench.drafter._runner.pool
    pool.check_integrity()
    return int(pool.resting_pages)


def test_drafts_in_the_cache_are_not_offered_before_they_are_committed() -> None:
    """G08: 16 + 8 tokens are cached but for the last; the first 19 are committed."""
    bench = bench_of()
    bench.post(opening(token_ids=PROMPT))
    drafts = drafted(bench.run())
    assert len(drafts) == 8
    bench.advance(*drafts[:3])
    bench.post(CloseSession(1))
    assert resting(bench) == 4
    bench.post(opening(2, token_ids=(*PROMPT, *drafts[:3], 5)))
    assert drafted(bench.run(), 2) == reference(DRAFT, (*PROMPT, *drafts[:3], 5), 8)
    assert bench.engine.describe().counters["prefix_tokens_reused"] == 16


def test_a_token_that_has_to_be_fed_again_lies_in_no_page_of_others() -> None:
    """A drafter told to start anew at the committed length needs its last token's row once more,
    and that token ends a page."""
    bench = bench_of()
    bench.post(opening(token_ids=PROMPT))
    first = drafted(bench.run())
    bench.advance(epoch=1)
    bench.post(opening(2, token_ids=(*PROMPT, 1)))
    replies = bench.run()
    assert drafted(replies, 1) == first == reference(DRAFT, PROMPT, 8)
    assert drafted(replies, 2) == reference(DRAFT, (*PROMPT, 1), 8)
    table = bench.drafter._tables[1, 1]
    assert table.sealed_length == 12


def test_the_last_page_is_completed_for_the_next_turn() -> None:
    """The drafter has never fed its last draft, nor what the verifier said after it."""
    bench = bench_of()
    bench.post(opening(token_ids=PROMPT[:3]))
    drafts = drafted(bench.run())
    bench.advance(*drafts, 7, 7)  # 13 tokens committed, 10 of them cached
    passes = len(bench.drafter._runner.passes)
    bench.post(CloseSession(1))
    assert bench.drafter._runner.passes[passes:] == [[(2, 0)]]
    assert resting(bench) == 3
    bench.post(opening(2, token_ids=(*PROMPT[:3], *drafts, 7, 7)))
    assert drafted(bench.run(), 2) == reference(DRAFT, (*PROMPT[:3], *drafts, 7, 7), 8)
    assert bench.engine.describe().counters["prefix_tokens_reused"] == 12


def test_a_page_that_cannot_be_completed_costs_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = False
    bench = bench_of()
    forward = bench.drafter._runner.forward

    def broken(chunks: object) -> torch.Tensor:
        if failing:
            raise RuntimeError("out of memory")
        result: torch.Tensor = forward(chunks)
        return result

    bench.drafter._runner.forward = broken
    bench.post(opening(token_ids=PROMPT[:3]))
    drafts = drafted(bench.run())
    bench.advance(*drafts, 7, 7)
    failing = True
    assert bench.post(CloseSession(1)) == []
    assert "could not be completed" in caplog.text
    assert resting(bench) == 2
    assert bench.engine.describe().kv_pages_used == 0


def test_a_session_that_went_wrong_leaves_nothing_new_behind() -> None:
    """An advance that does not fit ends it: what its tokens are is not known."""
    bench = bench_of()
    bench.post(opening(token_ids=PROMPT[:3]))
    drafts = drafted(bench.run())
    bench.advance(*drafts)
    assert only_error(bench.advance(VOCAB)).code == "INVALID_ARGUMENT"
    assert resting(bench) == 0


def test_pages_of_a_model_whose_logits_are_nan_are_found_no_more() -> None:
    broken = False

    def script(history: Sequence[int]) -> torch.Tensor:
        return DRAFT(history) * float("nan") if broken else DRAFT(history)

    bench = bench_of(script)
    bench.post(opening(token_ids=PROMPT))
    bench.run()
    bench.post(CloseSession(1))
    assert resting(bench) == 4
    broken = True
    bench.post(opening(2, token_ids=PROMPT))
    assert isinstance(only_error(bench.run()), SessionError)
    assert resting(bench) == 1, "all but the one that it did not read"


def test_a_prompt_above_the_drafters_context_takes_no_page() -> None:
    """D04: it is never drafted for, so nothing is held for it."""
    bench = bench_of(context_length=16)
    bench.post(opening(token_ids=PROMPT[:8]))
    bench.run()
    bench.post(CloseSession(1))
    bench.post(opening(2, token_ids=PROMPT))
    bench.run()
    assert bench.engine.describe().kv_pages_used == 0
    assert resting(bench) > 0
