"""Both workers take over what earlier sessions cached, and no output shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from support.pipeline import Pipeline, outputs, reference, verdicts, worker_info

from drafter_service.model import ModelDrafter
from paceline.config import RuntimeConfig, VerifierConfig
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.runtime.synthetic import AcceptanceSchedule, SyntheticLaw, SyntheticRunner
from paceline.sampling.params import Acceptance, SamplingParams

VOCAB = 11
PAGE = 4
TARGET = hashed_script(VOCAB, seed=1)
OTHER = hashed_script(VOCAB, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=14)
LONG = [i * i % VOCAB for i in range(17)]


def half_right(history: Sequence[int]) -> torch.Tensor:
    """Agrees with the target at some positions."""
    return TARGET(history) if sum(history[-2:]) % 3 else OTHER(history)


def pipeline_of(
    *,
    reuse: bool = True,
    budget: int = 512,
    num_pages: int = 256,
    draft_pages: int = 256,
    draft_context: int = 4096,
) -> Pipeline:
    runtime = RuntimeConfig(prefix_reuse=reuse, max_batch_tokens=budget)
    return Pipeline(
        ScriptedRunner(TARGET, vocab_size=VOCAB, num_pages=num_pages, page_size=PAGE),
        ScriptedRunner(
            half_right,
            vocab_size=VOCAB,
            num_pages=draft_pages,
            page_size=PAGE,
            context_length=draft_context,
        ),
        verifier_config=VerifierConfig(draft_patience_ms=10, runtime=runtime),
        runtime=runtime,
    )


def counters(pipeline: Pipeline) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The verifier's and the drafter's."""
    assert pipeline.drafter is not None
    return pipeline.verifier_engine.describe().counters, pipeline.drafter.engine.describe().counters


def computed(pipeline: Pipeline) -> tuple[int, int]:
    verifier, drafter = counters(pipeline)
    return verifier["prefix_tokens_computed"], drafter["prefix_tokens_computed"]


def generated(
    pipeline: Pipeline, prompt: Sequence[int], sampling: SamplingParams = GREEDY
) -> list[int]:
    """A whole generation, and nothing of it left behind."""
    relay = pipeline.open(prompt, sampling)
    pipeline.run()
    check(pipeline)
    return outputs(relay)


def check(pipeline: Pipeline) -> None:
    """Nobody is there, and the books are right."""
    assert pipeline.drafter is not None
    for engine in (pipeline.verifier_engine, pipeline.drafter.engine):
        described = engine.describe()
        assert described.live_sessions == described.kv_pages_used == 0
    for runner in (pipeline.target, pipeline.drafter.engine._drafter._runner):
        runner.pool.check_integrity()
        assert runner.pool.available_pages == runner.pool.num_pages


COUPLED = SamplingParams(temperature=1, seed=5, acceptance=Acceptance.COUPLED, max_tokens=14)


@pytest.mark.parametrize(
    ("sampling", "max_tokens", "budget"),
    [
        pytest.param(GREEDY, 11, 5, id="greedy 11"),
        pytest.param(GREEDY, 12, 512, id="greedy 12"),
        pytest.param(GREEDY, 14, 5, id="greedy 14"),
        pytest.param(COUPLED, 12, 5, id="coupled 12"),
        pytest.param(COUPLED, 13, 512, id="coupled 13"),
    ],
)
def test_six_turns_recompute_no_more_than_a_page_and_the_new_turn(
    sampling: SamplingParams, max_tokens: int, budget: int
) -> None:
    """A06, E06: on both workers; and each answer is the one that a cold worker gives."""
    sampling = replace(sampling, max_tokens=max_tokens)
    warm, cold = pipeline_of(budget=budget), pipeline_of(reuse=False, budget=budget)
    conversation = LONG[:9]
    num_new = len(conversation)
    for turn in range(6):
        before = computed(warm)
        relay = warm.open(conversation, sampling)
        warm.run()
        cached = verdicts(relay)[0].cached_prompt_tokens
        check(warm)
        answer = outputs(relay)
        assert answer == generated(cold, conversation, sampling)
        by_verifier, by_drafter = (
            now - then for now, then in zip(computed(warm), before, strict=True)
        )
        assert by_verifier == len(conversation) - cached
        assert by_verifier <= PAGE + num_new
        assert by_drafter <= PAGE + num_new
        if turn:
            assert cached >= len(conversation) - num_new - PAGE
        new_turn = [(turn + 3 * i) % VOCAB for i in range(5)]
        conversation = conversation + answer + new_turn
        num_new = len(new_turn)
    assert counters(cold)[0]["prefix_tokens_reused"] == 0


@pytest.mark.parametrize("last_first", [False, True])
def test_a_prompt_cancelled_at_any_point_serves_the_next_one_right(last_first: bool) -> None:
    """G08: 17 ids, cancelled after each single event of the whole generation, then sent again
    with three more; in two orders of what happens on the two sides."""
    wanted = reference(TARGET, [*LONG, 4, 9, 4], GREEDY.max_tokens)
    reused = set()
    for num_hops in range(1000):
        pipeline = pipeline_of(budget=8)
        relay = pipeline.open(LONG, GREEDY)
        for _ in range(num_hops):
            possible = pipeline.hops()
            if not possible:
                break
            possible[-1 if last_first else 0]()
        is_over = not pipeline.hops()
        relay.close()
        pipeline.run()
        check(pipeline)
        assert generated(pipeline, [*LONG, 4, 9, 4]) == wanted, num_hops
        reused.add(counters(pipeline)[0]["prefix_tokens_reused"])
        if is_over:
            break
    assert reused == {0, 8, 16}, "cancelled before, within and after the prefill"


def test_one_of_two_that_share_a_prefix_may_be_cancelled_or_rolled_back() -> None:
    """The other reads its pages on and on; drafts that are wrong all along change none of them."""
    for num_hops in range(0, 60, 3):
        pipeline = pipeline_of()
        generated(pipeline, LONG)
        staying = pipeline.open([*LONG, 1, 2], GREEDY)
        leaving = pipeline.open([*LONG, 1, 3], GREEDY)
        for _ in range(num_hops):
            if pipeline.hops():
                pipeline.hops()[-1]()
        leaving.close()
        third = pipeline.open([*LONG, 1, 2], GREEDY)
        pipeline.run()
        wanted = reference(TARGET, [*LONG, 1, 2], GREEDY.max_tokens)
        assert outputs(staying) == outputs(third) == wanted
        check(pipeline)


def test_what_rests_in_the_cache_never_keeps_a_session_waiting() -> None:
    """D08: fifty prompts of 40 ids through drafts of 100 tokens of room: each one speculates."""
    pipeline = pipeline_of(num_pages=25, draft_pages=25)
    assert pipeline.drafter is not None
    for turn in range(50):
        prompt = [*LONG[:10], *((turn * i) % VOCAB for i in range(30))]
        relay = pipeline.open(prompt, GREEDY)
        assert pipeline.verifier_engine.describe().waiting_sessions == 0
        pipeline.run()
        assert relay.session.counts.accepted > 0
        assert outputs(relay) == reference(TARGET, prompt, GREEDY.max_tokens)
        check(pipeline)
    for found in counters(pipeline):
        assert found["prefix_pages_evicted"] > 100
        assert found["prefix_tokens_reused"] >= 49 * 8, "the common beginning is used again"


def test_sessions_of_a_common_prefix_fit_where_two_of_their_own_would_not() -> None:
    """Each needs ten of twelve pages, and eight of them are the same."""
    prompt = [*LONG, *LONG[:16]]
    sampling = replace(GREEDY, max_tokens=7)
    pipeline = pipeline_of(num_pages=12, draft_pages=12)
    assert pipeline.drafter is not None
    first = pipeline.open(prompt, sampling)
    while not (outputs(first) and pipeline.drafter.engine.describe().kv_pages_used > 8):
        pipeline.hops()[-1]()
    second = pipeline.open(prompt, sampling)
    while pipeline.verifier.events or pipeline.drafter.events:
        pipeline.hops()[0]()
    for engine in (pipeline.verifier_engine, pipeline.drafter.engine):
        described = engine.describe()
        assert (described.live_sessions, described.waiting_sessions) == (2, 0)
    pipeline.run()
    assert outputs(first) == outputs(second) == reference(TARGET, prompt, 7)
    check(pipeline)


def test_a_drafter_of_shorter_context_reuses_what_fits() -> None:
    """D04: turns grow past the drafter's 40 tokens; then the verifier goes on without it."""
    pipeline = pipeline_of(draft_context=40)
    conversation = list(LONG)
    drafted = []
    for _ in range(3):
        relay = pipeline.open(conversation, GREEDY)
        pipeline.run()
        answer = outputs(relay)
        assert answer == reference(TARGET, conversation, GREEDY.max_tokens)
        drafted.append(relay.session.counts.drafted)
        conversation = conversation + answer + [1, 2]
        check(pipeline)
    assert drafted[0] > drafted[1] > drafted[2] == 0
    assert counters(pipeline)[1]["prefix_tokens_reused"] > 0


def test_logprobs_of_the_prompt_are_computed_and_not_skipped() -> None:
    """The rows that are asked for are there; what follows may reuse the pages."""
    pipeline = pipeline_of()
    generated(pipeline, LONG)
    asking = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=0)
    relay = pipeline.open(LONG, asking)
    pipeline.run()
    assert len(relay.take_prompt_logprobs()) == len(LONG) - 1
    assert verdicts(relay)[0].cached_prompt_tokens == 0
    plain = pipeline.open(LONG, GREEDY)
    pipeline.run()
    assert verdicts(plain)[0].cached_prompt_tokens == 16


def test_a_synthetic_pair_reuses_as_a_real_one_does() -> None:
    """Its slots hold states that later ones are made from, so that a wrong page shows."""

    def law(acceptance: AcceptanceSchedule | None) -> SyntheticLaw:
        return SyntheticLaw(seed=3, num_plain_ids=64, vocab_size=64, acceptance=acceptance)

    def runner(acceptance: AcceptanceSchedule | None) -> SyntheticRunner:
        return SyntheticRunner(law(acceptance), context_length=512, num_pages=64, page_size=PAGE)

    target, draft = runner(None), runner(AcceptanceSchedule(0.7))
    drafter = ModelDrafter(draft, RuntimeConfig(), worker_info("model", 64))
    pipeline = Pipeline(target, drafter)  # type: ignore[arg-type]
    prompt = list(range(30))
    for turn in range(4):
        relay = pipeline.open(prompt, SamplingParams(temperature=0, max_tokens=20))
        pipeline.run()
        tokens = list(prompt)
        for _ in range(20):
            tokens.append(law(None).favourite(law(None).states(tokens)[-1]))
        assert outputs(relay) == tokens[len(prompt) :]
        assert (verdicts(relay)[0].cached_prompt_tokens > 0) == (turn > 0)
        prompt = [*tokens, turn]
    assert draft.pool.resting_pages > 10
