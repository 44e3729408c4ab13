"""Whatever the drafter, window and order of events, greedy output is the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import Pipeline, cascade_of, outputs, reference, verdicts

from drafter_service.drafter import Drafter
from drafter_service.ngram import NgramDrafter
from paceline.config import NgramConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import SamplingParams
from paceline.types import FinishReason

VOCAB = 11
TARGET = hashed_script(VOCAB, seed=1)


def half_right(history: Sequence[int]) -> torch.Tensor:
    """Agrees with the target at some positions."""
    return (
        TARGET(history) if hash(tuple(history[-2:])) % 2 else hashed_script(VOCAB, seed=2)(history)
    )


def always_wrong(history: Sequence[int]) -> torch.Tensor:
    """WRONG: never the target's choice."""
    return -TARGET(history)


DRAFTERS: dict[str, Callable[[], ScriptedRunner | Drafter | None]] = {
    "oracle": lambda: ScriptedRunner(TARGET, vocab_size=VOCAB),
    "half right": lambda: ScriptedRunner(half_right, vocab_size=VOCAB),
    "wrong": lambda: ScriptedRunner(always_wrong, vocab_size=VOCAB),
    "ngram": lambda: NgramDrafter(NgramConfig(min_match=1, max_match=3)),
    "cascade": lambda: cascade_of(ScriptedRunner(half_right, vocab_size=VOCAB), 1, 3),
    "none": lambda: None,
}


@pytest.mark.parametrize("window", [1, 4, 12])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_output_equals_the_target_alone(name: str, window: int) -> None:
    """A01, E07: no draft token is committed without having been the target's choice."""
    pipeline = Pipeline(ScriptedRunner(TARGET, vocab_size=VOCAB), DRAFTERS[name]())
    relay = pipeline.open([1, 2, 3], SamplingParams(temperature=0, max_tokens=60), window=window)
    pipeline.run()
    assert outputs(relay) == reference(TARGET, [1, 2, 3], 60)
    if name == "wrong":
        assert relay.session.counts.accepted == 0
    if name == "oracle":
        counts = relay.session.counts
        assert counts.judged == counts.accepted > 25
    assert pipeline.target.pool.used_pages == 0


@pytest.mark.parametrize("num_speculative_tokens", range(1, 9))
def test_an_accepted_end_id_ends_the_output_there(num_speculative_tokens: int) -> None:
    """B01: the rest of the block is dropped, whatever the block length."""
    full = reference(TARGET, [1, 2, 3], 40)
    end = full[4]
    pipeline = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB),
        ScriptedRunner(TARGET, vocab_size=VOCAB),
        eos_token_ids=[end],
    )
    shape = {"num_speculative_tokens": num_speculative_tokens}
    relay = pipeline.open([1, 2, 3], SamplingParams(temperature=0, max_tokens=40), **shape)
    ignoring = pipeline.open(
        [1, 2, 3], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), **shape
    )
    pipeline.run()
    assert outputs(relay) == full[: full.index(end) + 1]
    assert verdicts(relay)[-1].finish_reason is FinishReason.STOP
    assert outputs(ignoring) == full
    assert verdicts(ignoring)[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_exactly_max_tokens_are_committed(max_tokens: int) -> None:
    """B03: a block is never charged beyond the cap."""
    pipeline = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB), ScriptedRunner(TARGET, vocab_size=VOCAB)
    )
    relay = pipeline.open([1, 2], SamplingParams(temperature=0, max_tokens=max_tokens))
    pipeline.run()
    assert outputs(relay) == reference(TARGET, [1, 2], max_tokens)
    assert sum(len(verdict.token_ids) for verdict in verdicts(relay)) == max_tokens


def test_a_drafted_end_id_that_is_rejected_ends_nothing() -> None:
    """B06, B07: only the target's end ids, and only once committed, end the session."""
    end = 7
    full = reference(TARGET, [5], 60, ends=[end])

    def drafts_the_end(history: Sequence[int]) -> torch.Tensor:
        logits = TARGET(history).clone()
        if len(history) % 3 == 0:
            logits[end] = 100.0
        return logits

    pipeline = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB),
        ScriptedRunner(drafts_the_end, vocab_size=VOCAB),
        eos_token_ids=[end],
    )
    relay = pipeline.open([5], SamplingParams(temperature=0, max_tokens=60))
    pipeline.run()
    assert outputs(relay) == full


def test_sessions_of_one_batch_do_not_mix() -> None:
    """E01, E02: rows with and without drafts, accepting different counts, keep their own."""
    pipeline = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB), ScriptedRunner(half_right, vocab_size=VOCAB)
    )
    prompts = [[1, 2, 3], [4] * 9, [5, 6] * 8 + [1], [9]]
    relays = [
        pipeline.open(
            prompt,
            SamplingParams(temperature=0, max_tokens=40),
            window=1 + 3 * index,
            speculation=index % 2 == 0,
        )
        for index, prompt in enumerate(prompts)
    ]
    pipeline.run()
    for prompt, relay in zip(prompts, relays, strict=True):
        assert outputs(relay) == reference(TARGET, prompt, 40)


def test_a_drafter_with_a_shorter_context_stops_drafting_there() -> None:
    """D04: speculation ends for that session; its answer, and its neighbours' drafts, go on."""
    pipeline = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB),
        ScriptedRunner(TARGET, vocab_size=VOCAB, context_length=32),
    )
    sampling = SamplingParams(temperature=0, max_tokens=30)
    too_long = pipeline.open([1] * 40, sampling)
    reaching = pipeline.open([2] * 28, sampling)
    short = pipeline.open([3], sampling)
    pipeline.run()
    assert outputs(too_long) == reference(TARGET, [1] * 40, 30)
    assert too_long.session.counts.drafted == 0
    assert outputs(reaching) == reference(TARGET, [2] * 28, 30)
    assert 0 < reaching.session.counts.drafted <= 4
    assert outputs(short) == reference(TARGET, [3], 30)
    assert short.session.counts.accepted > 10


def test_speculation_off_makes_no_drafts() -> None:
    """The request's own switch."""
    pipeline = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB), ScriptedRunner(TARGET, vocab_size=VOCAB)
    )
    sampling = SamplingParams(temperature=0, max_tokens=20)
    relay = pipeline.open([1], sampling, speculation=False)
    pipeline.run()
    assert relay.session.counts.drafted == 0
    assert outputs(relay) == reference(TARGET, [1], 20)


def test_the_verifier_never_runs_past_its_credit() -> None:
    """A slow reader stops the work instead of filling memory."""
    pipeline = Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB), ScriptedRunner(TARGET, vocab_size=VOCAB)
    )
    sampling = SamplingParams(temperature=0, max_tokens=50)
    relay = pipeline.open([1], sampling, commit_credit=8)
    pipeline.run()
    assert len(outputs(relay)) == 8
    taken = 0
    while len(outputs(relay)) < 50:
        taken = len(outputs(relay))
        relay.taken(taken)
        pipeline.run()
        assert taken < len(outputs(relay)) <= taken + 8
    assert outputs(relay) == reference(TARGET, [1], 50)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), window=st.integers(1, 9), block=st.integers(1, 5))
def test_ngram_drafts_of_any_size_leave_the_output_unchanged(
    data: st.DataObject, window: int, block: int
) -> None:
    """F01, F02, F04: lookups copy what the prompt holds, the target decides."""
    prompt = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    smallest = data.draw(st.integers(1, 4))
    max_tokens = data.draw(st.integers(1, 20))
    ngram = NgramDrafter(NgramConfig(min_match=smallest, max_match=smallest + 2))
    loop = hashed_script(4, seed=3, order=1)
    pipeline = Pipeline(ScriptedRunner(loop, vocab_size=4), ngram)
    relay = pipeline.open(
        prompt,
        SamplingParams(temperature=0, max_tokens=max_tokens),
        window=window,
        num_speculative_tokens=block,
    )
    pipeline.run()
    assert outputs(relay) == reference(loop, prompt, max_tokens)
