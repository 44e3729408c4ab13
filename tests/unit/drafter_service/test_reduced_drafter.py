"""Drafting with a model of a reduced vocabulary: it is told target ids and answers in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from drafter_harness import PROMPT, VOCAB, DrafterBench, drafted, opening
from support.pipeline import Pipeline, outputs, reference, worker_info
from support.reduced_models import reduced_drafter, reduced_vocabulary

from paceline.config import TreeConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import CloseSession, DrafterState

KNOWN = (0, 2, 3, 5, 7, 10)
VOCABULARY = reduced_vocabulary(KNOWN, VOCAB)
NARROW = hashed_script(len(KNOWN), seed=5)


def wide(history: Sequence[int]) -> torch.Tensor:
    """What the drafter says, in the target's ids."""
    logits = torch.full((VOCAB,), float("-inf"))
    logits[list(KNOWN)] = NARROW([VOCABULARY.input_ids[token_id] for token_id in history])
    return logits


def bench_of(vocab_size: int = VOCAB) -> DrafterBench:
    runner = ScriptedRunner(NARROW, vocab_size=len(KNOWN))
    return DrafterBench(reduced_drafter(runner, VOCABULARY, worker_info("model", vocab_size)))


def test_drafts_are_the_models_own_in_target_ids() -> None:
    """Ids that it does not know are read as their neighbours, after a rollback too."""
    bench = bench_of()
    bench.post(opening(token_ids=(1, 4, 9)))
    right = reference(wide, (1, 4, 9), 8)
    assert drafted(bench.run()) == right
    bench.advance(*right[:2], 6, epoch=1)
    assert drafted(bench.run()) == reference(wide, [1, 4, 9, *right[:2], 6], 8)


def test_prefixes_that_the_model_reads_alike_are_not_taken_for_each_other() -> None:
    """1 is read as 0, yet pages are found by the target's ids."""
    bench = bench_of()
    bench.post(opening(token_ids=(0,) * 9))
    bench.run()
    bench.post(CloseSession(1))
    bench.post(opening(2, token_ids=(1,) * 9))
    assert drafted(bench.run(), 2) == reference(wide, (1,) * 9, 8)
    assert bench.engine.describe().counters["prefix_tokens_reused"] == 0


def test_a_last_page_is_completed_in_draft_ids() -> None:
    """Its tokens are ones that the drafter may not know."""
    bench = bench_of()
    bench.post(opening(token_ids=PROMPT))
    drafts = drafted(bench.run())
    bench.advance(*drafts, 9, 9)
    bench.post(CloseSession(1))
    text = (*PROMPT, *drafts, 9, 9)
    bench.post(opening(2, token_ids=text))
    assert drafted(bench.run(), 2) == reference(wide, text, 8)
    assert bench.engine.describe().counters["prefix_tokens_reused"] == 12


def test_where_none_of_its_ids_may_come_it_has_nothing_to_propose() -> None:
    """The session is not failed: elsewhere the drafter may know one."""
    bench = bench_of()
    allowed = SamplingParams(temperature=0, max_tokens=50, allowed_token_ids=(1, 4))
    bench.post(opening(sampling=allowed))
    (block,) = bench.run()
    assert (block.token_ids, block.state) == ((), DrafterState.PAUSED)
    end_first = SamplingParams(max_tokens=50, min_tokens=1, stop_token_ids=(2, 3, 5, 7, 10))
    bench.post(opening(2, sampling=end_first))
    assert drafted(bench.run(), 2)[0] == 0


def test_a_target_of_fewer_ids_is_offered_none_of_the_others() -> None:
    """C01."""
    bench = bench_of()
    for session_id, sampling in enumerate(
        (SamplingParams(temperature=0, max_tokens=50), SamplingParams(max_tokens=50)), start=1
    ):
        bench.post(opening(session_id, vocab_size=8, token_ids=(1, 2), sampling=sampling))
    replies = bench.run()
    assert max(drafted(replies, 1) + drafted(replies, 2)) < 8
    assert len(drafted(replies, 1)) == 8


def test_the_pipeline_gives_the_targets_own_text() -> None:
    target = hashed_script(VOCAB, seed=1)
    runner = ScriptedRunner(NARROW, vocab_size=len(KNOWN))
    drafter = reduced_drafter(runner, VOCABULARY, worker_info("model", VOCAB))
    pipeline = Pipeline(ScriptedRunner(target, vocab_size=VOCAB), drafter)
    relay = pipeline.open(PROMPT, SamplingParams(temperature=0, max_tokens=40))
    pipeline.run()
    assert outputs(relay) == reference(target, PROMPT, 40)
    assert relay.session.counts.drafted > 0


def test_its_trees_branch_among_the_ids_it_knows() -> None:
    """L03: more children than likely ids; and where none may come, a path ends."""
    runner = ScriptedRunner(NARROW, vocab_size=len(KNOWN))
    tree = TreeConfig(max_children=8, doubt=1.0)
    drafter = reduced_drafter(runner, VOCABULARY, worker_info("model", VOCAB), tree=tree)
    bench = DrafterBench(drafter)
    bench.post(opening(window=8, num_speculative_tokens=8))
    (block,) = bench.run()
    assert block.tree is not None
    assert set(block.token_ids) <= set(KNOWN)
    nothing = SamplingParams(temperature=0, max_tokens=50, allowed_token_ids=(1, 4))
    bench.post(opening(2, sampling=nothing))
    (empty,) = bench.run()
    assert (empty.token_ids, empty.state) == ((), DrafterState.PAUSED)


def test_the_pipeline_gives_the_targets_own_text_with_its_trees() -> None:
    target = hashed_script(VOCAB, seed=1)
    runner = ScriptedRunner(NARROW, vocab_size=len(KNOWN))
    tree = TreeConfig(max_children=3, doubt=1.0)
    drafter = reduced_drafter(runner, VOCABULARY, worker_info("model", VOCAB), tree=tree)
    pipeline = Pipeline(ScriptedRunner(target, vocab_size=VOCAB), drafter)
    relay = pipeline.open(PROMPT, SamplingParams(temperature=0, max_tokens=40))
    pipeline.run()
    assert outputs(relay) == reference(target, PROMPT, 40)
    assert relay.session.counts.accepted > 0
