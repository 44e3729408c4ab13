"""Drafts for other outcomes: the very block that would be drafted later, made ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from drafter_harness import PROMPT, VOCAB, CountingDrafter, DrafterBench, model_bench, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import worker_info

from drafter_service.model import ModelDrafter
from drafter_service.outcomes import Spliced
from paceline.config import RuntimeConfig, TreeConfig
from paceline.errors import PacelineError
from paceline.outcomes import MAX_SESSIONS_AHEAD
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import Advance, DraftBlock, DrafterState, OpenSession, SessionError

DRAFT = hashed_script(VOCAB, seed=5)
RULES = {
    "greedy": SamplingParams(temperature=0, max_tokens=50),
    "coupled": SamplingParams(acceptance=Acceptance.COUPLED, seed=3, max_tokens=50),
    "rejection": SamplingParams(acceptance=Acceptance.REJECTION, seed=3, max_tokens=50),
    "block": SamplingParams(acceptance=Acceptance.BLOCK, seed=3, max_tokens=50),
    "penalties": SamplingParams(
        seed=3, max_tokens=50, repetition_penalty=1.3, bad_words_token_ids=((4, 5), (7, 1, 2))
    ),
}


def runner(**options: Any) -> ScriptedRunner:
    return ScriptedRunner(DRAFT, vocab_size=VOCAB, **options)


def ahead(num_tokens: int = 4, **changes: Any) -> OpenSession:
    """A session for which other outcomes are drafted ahead."""
    return opening(num_outcome_tokens=num_tokens, draft_top_k=5, **changes)


def split(replies: Sequence[Any]) -> tuple[list[DraftBlock], list[DraftBlock]]:
    """Blocks of the line itself, and those for other outcomes."""
    blocks = [reply for reply in replies if isinstance(reply, DraftBlock)]
    assert len(blocks) == len(replies)
    own = [block for block in blocks if block.outcome is None]
    return own, [block for block in blocks if block.outcome is not None]


def tokens_of(blocks: Sequence[DraftBlock]) -> list[int]:
    return [token_id for block in blocks for token_id in block.token_ids]


def as_rejected(session_id: int, drafts: Sequence[int], outcome: DraftBlock) -> Advance:
    """What the drafter hears when the verifier says an outcome's token in place of its draft."""
    base = len(PROMPT)
    kept = drafts[: outcome.base - 1 - base]
    assert outcome.outcome is not None
    return Advance(session_id, outcome.epoch, base, (*kept, outcome.outcome))


@pytest.mark.parametrize("rule", RULES)
def test_a_block_made_ahead_is_the_one_that_would_be_drafted_later(rule: str) -> None:
    """Its tokens and the numbers that they were drawn from, for each position and every rule."""
    bench = model_bench(runner())
    bench.post(ahead(sampling=RULES[rule]))
    own, others = split(bench.run())
    drafts = tokens_of(own)
    positions = [len(PROMPT) + i + 1 for i in range(8)]
    assert sorted(block.base for block in others) == sorted(2 * positions)
    assert len({(block.base, block.outcome) for block in others}) == 16, "two a position"
    for block in others:
        later = model_bench(runner())
        later.post(opening(sampling=RULES[rule], draft_top_k=5))
        later.run()
        later.post(as_rejected(1, drafts, block))
        first = split(later.run())[0][0]
        assert (block.epoch, block.base, block.token_ids) == (
            first.epoch,
            first.base,
            first.token_ids,
        )
        assert block.outcome != drafts[block.base - 1 - len(PROMPT)]
        if first.draft_probs is None or block.draft_probs is None:
            assert first.draft_probs is block.draft_probs
        else:
            assert torch.equal(block.draft_probs.probs, first.draft_probs.probs)


@pytest.mark.parametrize("position", range(8))
def test_the_line_goes_on_behind_the_outcome_that_came(position: int) -> None:
    """As if all of it had been drafted then; what was made for the others is gone."""
    bench, plain = model_bench(runner()), model_bench(runner())
    bench.post(ahead())
    plain.post(opening())
    own, others = split(bench.run())
    plain.run()
    event = as_rejected(1, tokens_of(own), others[position])
    for each in (bench, plain):
        each.post(event)
    assert bench.session().tokens[-4:] == list(others[position].token_ids)
    after, _ = split(bench.run())
    expected, _ = split(plain.run())
    sent = [*others[position].token_ids, *tokens_of(after)]
    assert sent == tokens_of(expected)
    assert after[0].base == others[position].base + 4
    assert bench.engine.counters["outcomes_used"] == 1
    bench.drafter._runner.pool.check_integrity()


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    num_steps=st.integers(1, 14),
    position=st.integers(0, 7),
    which=st.integers(0, 1),
    at_once=st.booleans(),
    num_tokens=st.integers(1, 8),
)
def test_what_was_not_finished_is_gone_on_with(
    num_steps: int, position: int, which: int, at_once: bool, num_tokens: int
) -> None:
    """Whenever the verdict comes, what follows is what a drafter without outcomes would send."""
    bench = model_bench(runner())
    if at_once:
        bench.drafter.draw_while(lambda: True)
    bench.post(ahead(num_tokens))
    replies = [reply for _ in range(num_steps) for reply in bench.step()]
    own, others = split(replies)
    drafts = tokens_of(own)
    base = len(PROMPT) + position + 1
    known = [each.token_id for each in bench.session().outcomes if each.base == base]
    if not known:  # no draft was sent there, or just now
        return
    token_id = known[min(which, len(known) - 1)]
    event = Advance(1, 1, len(PROMPT), (*drafts[:position], token_id))
    bench.post(event)
    bench.drafter._runner.pool.check_integrity()
    ready = [block for block in others if (block.base, block.outcome) == (base, token_id)]
    after, _ = split(bench.run())
    plain = model_bench(runner())
    plain.post(opening())
    plain.run()
    plain.post(event)
    expected, _ = split(plain.run())
    assert [*tokens_of(ready), *tokens_of(after)] == tokens_of(expected)
    assert all(block.epoch == 1 for block in after)


def test_the_difference_is_seen_in_the_epoch_that_goes_on_too() -> None:
    """The verifier decoded alone, and meets the drafts later: both sides begin the next epoch with
    the same token, and an advance that tells of more goes on behind it."""
    bench = model_bench(runner())
    bench.post(ahead())
    own, others = split(bench.run())
    drafts, block = tokens_of(own), others[2]
    head = as_rejected(1, drafts, block)
    told = replace(head, epoch=0, token_ids=(*head.token_ids, *block.token_ids[:2]))
    bench.post(told)
    assert bench.session().epoch == 1
    assert bench.session().committed == block.base + 2
    assert bench.session().tokens[block.base :] == list(block.token_ids)
    after, _ = split(bench.run())
    assert after[0].base == block.base + 4


def test_one_advance_may_tell_of_several_that_came_in_turn() -> None:
    """Drafted ahead in turn as well: each is behind the one before."""
    bench = model_bench(runner())
    bench.post(ahead())
    own, others = split(bench.run())
    first = others[0]
    bench.post(replace(as_rejected(1, tokens_of(own), first), epoch=0))
    _, behind = split(bench.run())
    second = next(block for block in behind if block.base == first.base + 1)
    bench = model_bench(runner())
    bench.post(ahead())
    bench.run()
    told = (first.outcome, second.outcome, *second.token_ids[:1])
    (step, rest) = bench.session().step_of(Advance(1, 0, len(PROMPT), told))  # type: ignore[arg-type]
    assert (step.token_ids, rest) == ((first.outcome,), replace(step, base=4, token_ids=told[1:]))
    assert bench.post(Advance(1, 0, len(PROMPT), told)) == []  # type: ignore[arg-type]
    assert bench.session().epoch == 2
    assert bench.session().committed == len(PROMPT) + 3
    after, _ = split(bench.run())
    assert after[0].epoch == 2
    bench.session().check_integrity()
    bench.drafter._runner.pool.check_integrity()


def test_an_epoch_from_elsewhere_brings_no_outcome() -> None:
    """Another verifier has none of what was sent: it begins further ahead."""
    bench = model_bench(runner())
    bench.post(ahead())
    own, others = split(bench.run())
    event = as_rejected(1, tokens_of(own), others[0])
    bench.post(replace(event, epoch=2))
    after, _ = split(bench.run())
    assert after[0].base == others[0].base
    assert bench.engine.counters["outcomes_used"] == 0


def test_a_block_says_how_the_drafter_will_be() -> None:
    bench = model_bench(runner())
    bench.post(ahead(3))
    _, others = split(bench.run())
    assert {block.state for block in others} == {DrafterState.RUNNING}
    assert all(block.known_committed == block.base for block in others)
    bench = model_bench(runner())
    bench.post(ahead(9))
    _, others = split(bench.run())
    assert {len(block.token_ids) for block in others} == {8}, "no more than the window"
    assert {block.state for block in others} == {DrafterState.PAUSED}


def test_nothing_is_drafted_past_the_length_that_could_pay() -> None:
    """The last token is always the verifier's own."""
    bench = model_bench(runner())
    bench.post(ahead(8, sampling=SamplingParams(temperature=0, max_tokens=6)))
    own, others = split(bench.run())
    end = len(PROMPT) + 6 - 1
    assert len(tokens_of(own)) == 5
    assert sorted((block.base, len(block.token_ids)) for block in others) == sorted(
        2 * [(base, end - base) for base in range(len(PROMPT) + 1, end)]
    )


@pytest.mark.parametrize(
    "changes",
    [{"reproducible": True}, {"num_outcome_tokens": 0}, {"features": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_some_sessions_have_none(changes: dict[str, Any]) -> None:
    """What is there in time must not shape reproducible output."""
    bench = model_bench(runner())
    bench.post(replace(ahead(), **changes))
    _, others = split(bench.run())
    assert others == []
    assert len(bench.engine._branching) == 0


@pytest.mark.parametrize(
    "options", [{"tree": TreeConfig(max_children=2)}, {"min_confidence": 0.05}], ids=str
)
def test_drafters_that_branch_or_end_blocks_draft_none_ahead(options: dict[str, Any]) -> None:
    drafter = ModelDrafter(runner(), RuntimeConfig(), worker_info("model", VOCAB), **options)
    bench = DrafterBench(drafter)
    bench.post(ahead())
    _, others = split(bench.run())
    assert others == []


def test_a_kind_without_branches_drafts_as_ever() -> None:
    bench = DrafterBench(CountingDrafter(at_once=4))
    bench.post(ahead())
    own, others = split(bench.run())
    assert (len(tokens_of(own)), others) == (8, [])


def test_many_sessions_have_none() -> None:
    """Drafting for each of them matters more, whatever has come true of those before."""
    bench = model_bench(runner())
    bench.post(ahead())
    own, others = split(bench.run())
    assert others
    for session_id in range(2, MAX_SESSIONS_AHEAD + 2):
        bench.post(ahead(session_id=session_id))
    bench.post(as_rejected(1, tokens_of(own), others[0]))
    assert bench.engine.counters["outcomes_used"] == 1
    _, others = split(bench.run())
    assert others == []
    assert len(bench.engine._branching) == 0


def test_dense_distributions_are_not_made_ahead() -> None:
    """They are too much to send in vain."""
    bench = model_bench(runner())
    bench.post(replace(ahead(sampling=RULES["rejection"]), draft_top_k=0))
    _, others = split(bench.run())
    assert others == []


def test_fewer_than_none_is_no_number_of_tokens() -> None:
    bench = model_bench(runner())
    (error,) = bench.post(ahead(-1))
    assert (error.code, error.message[:18]) == ("INVALID_ARGUMENT", "num_outcome_tokens")


def test_a_session_that_waits_for_room_gets_that_of_the_branches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was sent holds all the same, and is computed again when it comes."""
    small = runner(num_pages=35, page_size=4)  # 14 of them for each session
    bench, plain = model_bench(small), model_bench(runner())
    bench.post(ahead())
    plain.post(opening())
    own, others = split(bench.run())
    plain.run()
    assert small.pool.available_pages < 14
    bench.post(opening(session_id=2))
    assert small.pool.reserved_pages == 28
    assert len(bench.engine._branching) == 0
    event = as_rejected(1, tokens_of(own), others[3])
    for each in (bench, plain):
        each.post(event)
    after = [reply for reply in bench.run() if reply.session_id == 1]
    expected, _ = split(plain.run())
    mine, _ = split(after)
    assert [*others[3].token_ids, *tokens_of(mine)] == tokens_of(expected)
    assert not caplog.records, "branches begin where there is something to fork from"
    small.pool.check_integrity()


def test_what_is_lost_of_the_line_is_told_and_not_what_takes_its_place() -> None:
    bench = model_bench(runner())
    bench.post(ahead(8, window=16))
    for _ in range(7):  # a block of four is sent, and three tokens of the next are not
        bench.step()
    first, _ = (each for each in bench.session().outcomes if each.base == len(PROMPT) + 1)
    assert bench.session().num_unsent == 3
    advanced = bench.session().advance(Advance(1, 1, len(PROMPT), (first.token_id,)))
    assert advanced.outcome is first
    assert advanced.num_unsent_lost == 3
    assert bench.session().num_unsent == len(first.draws) > 0


def test_without_room_there_are_fewer() -> None:
    """Sessions go before: what forks take is what is left, and comes back."""
    small = runner(num_pages=16, page_size=4)  # 14 of them are the session's
    bench = model_bench(small)
    bench.post(ahead())
    own, others = split(bench.run())
    assert len(tokens_of(own)) == 8
    assert len(others) < 8
    bench.post(as_rejected(1, tokens_of(own), others[0]))
    small.pool.check_integrity()
    bench.run()
    bench.engine.close_link(1)
    small.pool.check_integrity()
    assert (small.pool.used_pages, small.pool.available_pages) == (0, 16)
    assert len(bench.engine._branching) == 0


@pytest.mark.parametrize("how", ["close", "fail", "link"])
def test_the_end_of_a_session_is_the_end_of_its_branches(how: str) -> None:
    bench = model_bench(runner())
    bench.post(ahead())
    for _ in range(6):
        bench.step()
    assert len(bench.engine._branching)
    if how == "fail":
        bench.engine.fail_all(RuntimeError("over"))
    else:
        bench.engine.close_link(1)
    assert len(bench.engine._branching) == 0
    assert bench.drafter._tables == {}
    assert bench.drafter._runner.pool.used_pages == 0
    assert bench.engine.next_step_at(0.0) is None


def test_forks_that_fail_cost_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    model = runner()
    bench = model_bench(model)

    def fork(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "fork", fork)
    bench.post(ahead())
    own, others = split(bench.run())
    assert (len(tokens_of(own)), others) == (8, [])


def failing_at(bad: Callable[[Sequence[int]], bool]) -> ScriptedRunner:
    """A model that fails on some sequences."""

    def script(history: Sequence[int]) -> torch.Tensor:
        if bad(history):
            raise PacelineError("the device is on fire")
        return DRAFT(history)

    return ScriptedRunner(script, vocab_size=VOCAB)


def test_a_branch_that_fails_costs_no_session() -> None:
    probe = model_bench(runner())
    probe.post(ahead())
    own, others = split(probe.run())
    bad = others[1]
    tokens = (*PROMPT, *tokens_of(own)[: bad.base - 1 - len(PROMPT)], bad.outcome)
    bench = model_bench(failing_at(lambda history: tuple(history[: len(tokens)]) == tokens))
    bench.post(ahead())
    replies = bench.run()
    assert not any(isinstance(reply, SessionError) for reply in replies)
    mine, found = split(replies)
    assert tokens_of(mine) == tokens_of(own)
    assert [block.base for block in found] == [b.base for b in others if b is not bad]
    bench.drafter._runner.pool.check_integrity()


def test_a_spliced_sequence_reads_like_the_list() -> None:
    head, tail = list(range(10)), [20, 21, 22]
    whole = [*head[:7], *tail]
    spliced = Spliced(head, 7, tail)
    assert len(spliced) == 10
    assert list(spliced) == whole
    assert [spliced[i] for i in range(-10, 10)] == [whole[i] for i in range(-10, 10)]
    for start in range(11):
        for stop in range(11):
            assert spliced[start:stop] == whole[start:stop]
    assert spliced[-3:] == whole[-3:]
    assert torch.tensor(spliced).tolist() == whole
    with pytest.raises(IndexError):
        spliced[10]
