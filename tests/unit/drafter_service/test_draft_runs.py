"""Several tokens in one step: the same blocks as a token a step, and given up when disturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from drafter_harness import PROMPT, VOCAB, DrafterBench, drafted, only_error, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import reference, worker_info

from drafter_service.cascade import CascadeDrafter
from drafter_service.model import ModelDrafter
from drafter_service.ngram_reader import NgramReader
from paceline.config import CascadeConfig, NgramConfig, RuntimeConfig, TreeConfig
from paceline.runtime.runner import Chunk
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import DrafterState

DRAFT = hashed_script(VOCAB, seed=5)


def bench_of(
    undisturbed: Callable[[], bool] = lambda: True,
    runner: ScriptedRunner | None = None,
    **options: Any,
) -> DrafterBench:
    """An engine over a model that goes on within a step while that holds."""
    drafter = ModelDrafter(
        runner or ScriptedRunner(DRAFT, vocab_size=VOCAB),
        RuntimeConfig(),
        worker_info("model", VOCAB),
        **options,
    )
    drafter.draw_while(undisturbed)
    return DrafterBench(drafter)


def never() -> bool:
    return False


def so_often(count: int) -> Callable[[], bool]:
    """Undisturbed when asked so many times, and never again."""
    left = iter([True] * count)
    return lambda: next(left, False)


def test_a_step_draws_a_whole_block() -> None:
    bench = bench_of()
    bench.post(opening())
    (block,) = bench.step()
    assert list(block.token_ids) == reference(DRAFT, PROMPT, 4)
    assert block.kv_length == len(PROMPT) + 3
    assert bench.engine.counters["steps"] == 4, "of a token each, as they are counted"


def test_what_arrives_ends_the_run_and_loses_nothing() -> None:
    bench = bench_of(so_often(2))
    bench.post(opening())
    assert bench.step() == []
    assert bench.session().num_unsent == 2
    bench.advance(*reference(DRAFT, PROMPT, 1))
    (block, _) = bench.run()
    assert block.base == len(PROMPT) + 1
    assert list(block.token_ids) == reference(DRAFT, PROMPT, 5)[1:]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    window=st.integers(1, 9),
    length=st.integers(1, 5),
    acceptance=st.sampled_from([None, *Acceptance]),
    min_confidence=st.sampled_from([0.0, 0.3]),
    prompts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
)
def test_runs_change_no_block(
    *,
    data: st.DataObject,
    window: int,
    length: int,
    acceptance: Acceptance | None,
    min_confidence: float,
    prompts: Sequence[int],
) -> None:
    """Whatever ends them: several sessions, rejections, drafts that are sampled, early ends."""
    temperature = 0.0 if acceptance is None else 1.0
    sampling = SamplingParams(
        temperature=temperature, max_tokens=50, seed=3, acceptance=acceptance or Acceptance.COUPLED
    )
    sizes = {"window": window, "num_speculative_tokens": length}
    seeded = data.draw(st.randoms(use_true_random=False))
    benches = [
        bench_of(never, min_confidence=min_confidence),
        bench_of(lambda: bool(seeded.random() < 0.7), min_confidence=min_confidence),
    ]
    for number, size in enumerate(prompts, start=1):
        token_ids = tuple(range(size))
        for bench in benches:
            bench.post(opening(number, token_ids=token_ids, sampling=sampling, **sizes))
    for _ in range(4):
        alone, together = ([_told(reply) for reply in bench.run()] for bench in benches)
        assert sorted(alone) == sorted(together)
        for number in range(1, len(prompts) + 1):
            session = benches[0].session(number)
            right = session.tokens[session.committed :]
            accepted = right[: data.draw(st.integers(0, len(right)))]
            wrong = [(right[len(accepted)] + 1) % VOCAB] if len(accepted) < len(right) else []
            epoch = session.epoch + bool(wrong)
            for bench in benches:
                bench.advance(*accepted, *wrong, epoch=epoch, session_id=number)


def _told(block: Any) -> tuple[Any, ...]:
    """All of a block but its times and what the drafter had read."""
    probs = block.draft_probs
    numbers = () if probs is None else tuple(probs.own_probs(block.token_ids))
    return (
        block.session_id,
        block.epoch,
        block.base,
        block.token_ids,
        block.state.value,
        numbers,
    )


def test_a_doubtful_draft_ends_the_run() -> None:
    def script(history: Sequence[int]) -> torch.Tensor:
        logits = torch.zeros(VOCAB)
        if len(history) != len(PROMPT) + 2:  # sure, but of the third draft
            logits[7] = 20.0
        return logits

    bench = bench_of(runner=ScriptedRunner(script, vocab_size=VOCAB), min_confidence=0.5)
    bench.post(opening())
    (block,) = bench.run()
    assert len(block.token_ids) == 3
    assert block.state is DrafterState.UNSURE


class Breaking(ScriptedRunner):
    """Fails in the passes that are named."""

    def __init__(self, *broken: int) -> None:
        super().__init__(DRAFT, vocab_size=VOCAB)
        self.broken = broken

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        if len(self.passes) in self.broken:
            self.passes.append([])
            raise RuntimeError("out of memory")
        return super().forward(chunks)


def test_a_pass_that_fails_ends_the_run_and_the_next_step_goes_on() -> None:
    bench = bench_of(runner=Breaking(2))
    bench.post(opening())
    assert bench.step() == []
    assert drafted(bench.run()) == reference(DRAFT, PROMPT, 8)


def test_a_pass_that_fails_again_is_told() -> None:
    bench = bench_of(runner=Breaking(2, 3))
    bench.post(opening())
    assert "drafting failed" in only_error([*bench.step(), *bench.step()]).message


def test_logits_that_are_no_numbers_end_a_run_and_are_told() -> None:
    def script(history: Sequence[int]) -> torch.Tensor:
        value = float("nan") if len(history) == len(PROMPT) + 2 else 1.0
        return torch.full((VOCAB,), value)

    bench = bench_of(runner=ScriptedRunner(script, vocab_size=VOCAB))
    bench.post(opening())
    assert bench.step() == []
    assert bench.session().num_unsent == 2
    assert "not finite" in only_error(bench.step()).message


@pytest.mark.parametrize("limit", [0, 4])
def test_a_prompt_in_prefill_is_no_run(limit: int) -> None:
    bench = bench_of()
    bench.drafter._budget = 8
    bench.post(opening(token_ids=tuple(i % VOCAB for i in range(20)), reproducible=not limit))
    assert bench.step() == []
    assert len(bench.drafter._runner.passes) == 1


def test_a_tree_grows_a_level_a_step() -> None:
    bench = bench_of(tree=TreeConfig(max_children=2))
    bench.post(opening())
    assert bench.step() == []
    assert len(bench.drafter._runner.passes) == 1


def test_where_a_drafter_copies_as_well_each_token_is_its_choice() -> None:
    model = ModelDrafter(
        ScriptedRunner(DRAFT, vocab_size=VOCAB), RuntimeConfig(), worker_info("model", VOCAB)
    )
    cascade = CascadeDrafter(NgramReader(NgramConfig(), None), model, CascadeConfig())
    bench = DrafterBench(cascade)
    bench.post(opening())
    bench.step()
    assert bench.session().num_unsent <= 1
