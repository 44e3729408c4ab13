"""What one generation sends to its workers, and how it goes on when one of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from worker_fakes import VERIFIER_INFO, VOCAB, FakeWorker, rest

from orchestrator.relay import Relay
from orchestrator.relay_settings import RelaySettings
from orchestrator.router import Router
from orchestrator.verifier_side import MAX_REOPENINGS
from paceline.errors import (
    InvalidArgumentError,
    PacelineError,
    ResourceExhaustedError,
    UnavailableError,
)
from paceline.sampling.params import SamplingParams
from paceline.types import (
    Advance,
    CloseSession,
    Credit,
    DraftBlock,
    DrafterState,
    FinishReason,
    OpenSession,
    Origin,
    PassTimings,
    PromptLogprobs,
    SessionError,
    SetSpeculation,
    TokenLogprobs,
    Verdict,
)

PROMPT = (1, 2, 3)
SAMPLING = SamplingParams(temperature=0, max_tokens=50)
SETTINGS = RelaySettings(
    speculation=True,
    window=8,
    num_speculative_tokens=4,
    draft_top_k=0,
    commit_credit=16,
    failover_timeout_s=0.0,
    reproducible=False,
)
DOWN = UnavailableError("down")


def gone(worker: FakeWorker) -> None:
    """Lose a worker for good."""
    worker.lose(*[DOWN] * 99)


class RelayBench:
    """A relay over workers whose every word the test says."""

    def __init__(self) -> None:
        self.verifiers = [FakeWorker(name=name) for name in "vw"]
        self.drafter = FakeWorker("drafter")
        self.router = Router(self.verifiers, [self.drafter])
        self.verifier_id = self.drafter_id = 0

    async def connect(self, *, drafter: bool = True) -> RelayBench:
        await self.verifiers[0].start()
        if drafter:
            await self.drafter.start()
        return self

    def start(self, **settings: Any) -> Relay:
        relay = Relay(self.router, PROMPT, SAMPLING, replace(SETTINGS, **settings))
        relay.start()
        return relay

    def heard_by(self, worker: FakeWorker) -> list[Any]:
        """What a worker was sent since the last call; remembers the id of a session opened."""
        sent = worker.link.take()
        for event in sent:
            if isinstance(event, OpenSession):
                setattr(self, f"{worker.role}_id", event.session_id)
        return sent

    def draft(
        self,
        base: int,
        *token_ids: int,
        epoch: int = 0,
        state: DrafterState = DrafterState.RUNNING,
    ) -> DraftBlock:
        block = DraftBlock(self.drafter_id, epoch, base, token_ids, None, base, state, base, 50)
        self.drafter.link.reply(block)
        return block

    def verdict(
        self, base: int, *token_ids: int, epoch: int = 0, worker: int = 0, **changes: Any
    ) -> Verdict:
        verdict = Verdict(
            session_id=self.verifier_id,
            epoch=epoch,
            base=base,
            token_ids=token_ids,
            accepted_length=0,
            next_origin=Origin.AUTOREGRESSIVE,
            num_judged=0,
            finish_reason=None,
            logprobs=(),
            kv_length=base,
            timings=PassTimings(0, 0, 0, 0, 0),
            num_discarded=0,
        )
        verdict = replace(verdict, **changes)
        self.verifiers[worker].link.reply(verdict)
        return verdict

    def fail(self, role: str, code: str, message: str = "refused") -> None:
        worker = self.drafter if role == "drafter" else self.verifiers[0]
        worker.link.reply(SessionError(getattr(self, f"{role}_id"), code, message))


@pytest.fixture
async def bench() -> AsyncIterator[RelayBench]:
    bench = await RelayBench().connect()
    yield bench
    await bench.router.close()


async def outcome(relay: Relay) -> PacelineError:
    """The error that ends a generation."""
    with pytest.raises(PacelineError) as caught:
        async for _ in relay.verdicts():
            pass
    return caught.value


# --- the pipeline ---------------------------------------------------------------------------------


async def test_both_workers_are_opened_with_the_same_complete_session(bench: RelayBench) -> None:
    """DESIGN 3.1."""
    bench.start()
    (to_verifier,) = bench.heard_by(bench.verifiers[0])
    (to_drafter,) = bench.heard_by(bench.drafter)
    assert to_verifier == OpenSession(
        session_id=bench.verifier_id,
        token_ids=PROMPT,
        prompt_length=3,
        sampling=SAMPLING,
        window=8,
        num_speculative_tokens=4,
        draft_top_k=0,
        committed_limit=3 + 16,
        speculation=True,
        epoch=0,
        eos_token_ids=VERIFIER_INFO.eos_token_ids,
        vocab_size=VOCAB,
    )
    assert replace(to_drafter, session_id=0, speculation=True) == replace(to_verifier, session_id=0)


async def test_blocks_go_to_the_verifier_under_its_own_session_id(bench: RelayBench) -> None:
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.verifier_id = 1
    block = bench.draft(3, 5, 6)
    assert bench.heard_by(bench.verifiers[0]) == [replace(block, session_id=1)]
    assert relay.session.counts.drafted == 2


async def test_blocks_of_an_older_epoch_are_not_relayed(bench: RelayBench) -> None:
    """E08: dropped wherever they are met."""
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.verdict(3, 4, epoch=2)
    bench.draft(3, 5, epoch=1)
    assert bench.heard_by(bench.verifiers[0]) == []
    assert relay.session.counts.drafted == 1
    bench.draft(4, 5, epoch=2)
    assert len(bench.heard_by(bench.verifiers[0])) == 1


async def test_verdicts_go_to_the_drafter_and_the_client(bench: RelayBench) -> None:
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    first = bench.verdict(3, 4)
    second = bench.verdict(4, 5, 6, epoch=1)
    assert bench.heard_by(bench.drafter) == [
        Advance(bench.drafter_id, 0, 3, (4,)),
        Advance(bench.drafter_id, 1, 4, (5, 6)),
    ]
    verdicts = relay.verdicts()
    assert [await anext(verdicts), await anext(verdicts)] == [first, second]
    assert relay.session.tokens == [1, 2, 3, 4, 5, 6]
    assert relay.first_token_s is not None


async def test_the_last_verdict_closes_both_sides_once(bench: RelayBench) -> None:
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    last = bench.verdict(3, 4, finish_reason=FinishReason.STOP)
    relay.close()
    relay.close()
    assert bench.heard_by(bench.verifiers[0]) == [CloseSession(bench.verifier_id)]
    assert bench.heard_by(bench.drafter) == [
        Advance(bench.drafter_id, 0, 3, (4,), window=0),  # its pages may serve the next turn
        CloseSession(bench.drafter_id),
    ]
    assert [verdict async for verdict in relay.verdicts()] == [last]
    assert bench.router._listeners == []


@pytest.mark.parametrize("speculation", [True, False])
async def test_closing_frees_both_sides_once_and_late_replies_change_nothing(
    bench: RelayBench, speculation: bool
) -> None:
    """G01, E08."""
    relay = bench.start(speculation=speculation)
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    relay.close()
    bench.draft(3, 5)
    bench.verdict(3, 4)
    bench.fail("verifier", "UNAVAILABLE")
    relay.close()
    assert bench.heard_by(bench.verifiers[0]) == [CloseSession(bench.verifier_id)]
    expected = [CloseSession(bench.drafter_id)] if speculation else []
    assert bench.heard_by(bench.drafter) == expected
    assert relay.session.tokens == [1, 2, 3]
    gone(bench.verifiers[0])
    gone(bench.drafter)
    await rest()
    assert relay._verdicts.empty()
    assert bench.router._listeners == []


async def test_without_speculation_no_drafter_is_opened(bench: RelayBench) -> None:
    relay = bench.start(speculation=False)
    (opening,) = bench.heard_by(bench.verifiers[0])
    assert not opening.speculation
    assert bench.heard_by(bench.drafter) == []
    bench.drafter.lose()
    await bench.drafter.is_back()
    assert bench.heard_by(bench.drafter) == []
    assert not relay.had_drafter


async def test_without_a_verifier_a_start_fails_at_once() -> None:
    """H01."""
    bench = RelayBench()
    relay = Relay(bench.router, PROMPT, SAMPLING, SETTINGS)
    with pytest.raises(UnavailableError, match="no verifier is connected"):
        relay.start()
    relay.close()
    assert bench.router._listeners == []


async def test_bytes_are_counted_both_ways(bench: RelayBench) -> None:
    """The fakes say 10 bytes for what is sent and 5 for what is heard."""
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.draft(3, 5)
    bench.verdict(3, 4)
    counts = relay.session.counts
    assert (counts.bytes_drafter, counts.bytes_verifier) == (10 + 5 + 10, 10 + 10 + 5)


# --- credit ---------------------------------------------------------------------------------------


async def test_credit_is_granted_in_quarters_as_the_client_takes(bench: RelayBench) -> None:
    relay = bench.start()
    bench.heard_by(bench.verifiers[0])
    for count in range(1, 9):
        relay.taken(count)
    assert bench.heard_by(bench.verifiers[0]) == [
        Credit(bench.verifier_id, 3 + 4 + 16),
        Credit(bench.verifier_id, 3 + 8 + 16),
    ]


async def test_what_is_taken_while_no_verifier_is_there_counts_for_the_next(
    bench: RelayBench,
) -> None:
    """D07: else the new one would wait for a credit that nobody grants any more."""
    relay = bench.start(failover_timeout_s=30)
    bench.heard_by(bench.verifiers[0])
    bench.verdict(3, *[4] * 16)
    gone(bench.verifiers[0])
    relay.taken(16)
    await bench.verifiers[1].start()
    await rest()
    (opening, *_) = bench.heard_by(bench.verifiers[1])
    assert opening.committed_limit == 3 + 16 + 16
    relay.close()


# --- the drafter comes and goes -------------------------------------------------------------------


async def test_a_generation_starts_without_a_drafter_and_takes_one_that_comes() -> None:
    """H02."""
    bench = await RelayBench().connect(drafter=False)
    relay = bench.start()
    (opening,) = bench.heard_by(bench.verifiers[0])
    assert not opening.speculation
    assert not relay.had_drafter
    bench.verdict(3, 4)
    await bench.drafter.start()
    (opening,) = bench.heard_by(bench.drafter)
    assert (opening.token_ids, opening.prompt_length) == ((1, 2, 3, 4), 3)
    assert bench.heard_by(bench.verifiers[0]) == [SetSpeculation(bench.verifier_id, enabled=True)]
    bench.draft(4, 5)
    assert relay.had_drafter
    await bench.router.close()


@pytest.mark.parametrize("reproducible", [False, True])
async def test_the_load_takes_no_drafts_from_a_session_that_is_to_be_reproducible(
    bench: RelayBench, reproducible: bool
) -> None:
    """A06, E04: without drafts other random numbers would decide."""
    bench.router = Router(bench.verifiers, [bench.drafter], max_drafting_sessions=2)
    first = bench.start(reproducible=reproducible)
    others = [bench.start() for _ in range(2)]
    later = bench.start(reproducible=reproducible)
    assert first._drafts.is_open is later._drafts.is_open is reproducible
    assert not any(other._drafts.is_open for other in others)
    for relay in (first, later, *others):
        relay.close()


async def test_a_drafter_that_was_there_to_the_end_has_taken_part(bench: RelayBench) -> None:
    """H08: an answer may end before its first draft."""
    relay = bench.start()
    bench.heard_by(bench.verifiers[0])
    bench.verdict(3, 4, finish_reason=FinishReason.LENGTH)
    assert relay.had_drafter
    lost = bench.start()
    bench.heard_by(bench.verifiers[0])
    bench.drafter.lose()
    bench.verdict(3, 4, finish_reason=FinishReason.LENGTH)
    assert not lost.had_drafter


async def test_a_refused_block_costs_the_session_its_drafter_only(bench: RelayBench) -> None:
    """DESIGN 3.7: the drafter is an accelerator, never a dependency."""
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.verdict(3, 4)
    bench.draft(4, 5, 6)
    bench.heard_by(bench.verifiers[0])
    bench.fail("verifier", "INVALID_ARGUMENT", "token_ids: 99 is outside the vocabulary of 11")
    await rest()
    (opening,) = bench.heard_by(bench.verifiers[0])
    assert (opening.token_ids, opening.speculation) == ((1, 2, 3, 4), False)
    assert bench.heard_by(bench.drafter)[-1] == CloseSession(bench.drafter_id)
    bench.fail("verifier", "INVALID_ARGUMENT", "token_ids: the request itself is wrong")
    with pytest.raises(InvalidArgumentError):
        [verdict async for verdict in relay.verdicts()]


async def test_a_lost_drafter_is_done_without_until_it_is_back(bench: RelayBench) -> None:
    """H02: then speculation resumes in an epoch that nobody can have reached."""
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.draft(3, 5, 6, epoch=3)
    bench.heard_by(bench.verifiers[0])
    old_id = bench.drafter_id
    bench.drafter.lose()
    assert bench.heard_by(bench.verifiers[0]) == [SetSpeculation(bench.verifier_id, enabled=False)]
    bench.verdict(3, 4, epoch=4)
    await bench.drafter.is_back()
    (opening,) = bench.heard_by(bench.drafter)
    assert bench.drafter_id != old_id
    assert opening.token_ids == (1, 2, 3, 4)
    assert opening.epoch == relay.session.epoch == 7
    assert bench.heard_by(bench.verifiers[0]) == [SetSpeculation(bench.verifier_id, enabled=True)]
    bench.drafter_id, new_id = old_id, bench.drafter_id
    bench.draft(4, 9, epoch=7)  # E08: late, from the dead session
    assert bench.heard_by(bench.verifiers[0]) == []
    bench.drafter_id = new_id
    bench.draft(4, 9, epoch=7)
    assert len(bench.heard_by(bench.verifiers[0])) == 1


async def test_another_drafter_takes_over_at_once() -> None:
    """H02."""
    bench = await RelayBench().connect()
    second = await FakeWorker("drafter", name="e").start()
    bench.router.drafters = [bench.drafter, second]
    bench.start()
    bench.heard_by(bench.verifiers[0])
    gone(bench.drafter)
    (opening,) = bench.heard_by(second)
    assert opening.epoch == 2
    assert bench.heard_by(bench.verifiers[0]) == [
        SetSpeculation(bench.verifier_id, enabled=False),
        SetSpeculation(bench.verifier_id, enabled=True),
    ]
    await second.close()
    await bench.router.close()


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL"])
async def test_a_session_that_the_drafter_refuses_is_not_offered_again(
    bench: RelayBench, code: str
) -> None:
    """D04: its answer goes on without drafts."""
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.fail("drafter", code)
    assert bench.heard_by(bench.verifiers[0]) == [SetSpeculation(bench.verifier_id, enabled=False)]
    bench.drafter.lose()
    await bench.drafter.is_back()
    assert bench.heard_by(bench.drafter) == []
    bench.verdict(3, 4)
    assert bench.heard_by(bench.drafter) == []
    assert relay.session.tokens[-1] == 4


# --- the verifier is lost -------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "CANCELLED"])
async def test_a_failed_session_is_reopened_from_its_committed_tokens(
    bench: RelayBench, code: str
) -> None:
    """D07: both sides go on from there in a fresh epoch."""
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.verdict(3, 4, 5, epoch=1)
    bench.draft(5, 6, 7, epoch=1)
    old_id = bench.verifier_id
    bench.heard_by(bench.verifiers[0])
    bench.heard_by(bench.drafter)
    bench.fail("verifier", code)
    bench.draft(7, 8, epoch=1)  # nobody is there to judge it
    await rest()
    (opening,) = bench.heard_by(bench.verifiers[0])
    assert opening.session_id != old_id
    assert (opening.token_ids, opening.prompt_length) == ((1, 2, 3, 4, 5), 3)
    assert (opening.epoch, opening.speculation) == (5, True)
    assert bench.heard_by(bench.drafter) == [Advance(bench.drafter_id, 5, 5, ())]
    bench.verifier_id, new_id = old_id, bench.verifier_id
    bench.verdict(5, 9)  # E08: late, from the dead session
    assert relay.session.tokens == [1, 2, 3, 4, 5]
    bench.verifier_id = new_id
    bench.verdict(5, 6, epoch=5)
    assert relay.session.tokens == [1, 2, 3, 4, 5, 6]
    relay.close()


async def test_a_lost_verifier_is_replaced_by_another(bench: RelayBench) -> None:
    """H01: its sessions go on where they were."""
    await bench.verifiers[1].start()
    relay = bench.start(failover_timeout_s=10)
    gone(bench.verifiers[0])
    await rest()
    (opening,) = bench.heard_by(bench.verifiers[1])
    assert opening.token_ids == PROMPT
    relay.close()
    assert bench.heard_by(bench.verifiers[1]) == [CloseSession(bench.verifier_id)]


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL"])
async def test_what_another_verifier_would_not_cure_is_told_at_once(
    bench: RelayBench, code: str
) -> None:
    relay = bench.start()
    for worker in (bench.verifiers[0], bench.drafter):
        bench.heard_by(worker)
    bench.fail("verifier", code, "token_ids: wrong")
    error = await outcome(relay)
    assert error.code == code
    assert str(error) == "token_ids: wrong"
    assert bench.heard_by(bench.verifiers[0]) == [], "it has freed the session itself"
    assert bench.heard_by(bench.drafter) == [CloseSession(bench.drafter_id)]
    await rest()
    relay.close()
    assert bench.heard_by(bench.drafter) == bench.heard_by(bench.verifiers[0]) == []


async def test_a_session_that_fails_again_and_again_is_given_up(bench: RelayBench) -> None:
    """D07: after three reopenings without a token; tokens in between begin a new count."""
    relay = bench.start()
    length = 3
    for _ in range(2):
        for _ in range(MAX_REOPENINGS):
            bench.heard_by(bench.verifiers[0])
            bench.fail("verifier", "UNAVAILABLE", "out of memory")
            await rest()
        bench.heard_by(bench.verifiers[0])
        bench.verdict(length, 4, epoch=relay.session.epoch)
        length += 1
    for _ in range(MAX_REOPENINGS + 1):
        assert relay._verifier.worker is not None
        bench.heard_by(bench.verifiers[0])
        bench.fail("verifier", "UNAVAILABLE", "out of memory")
        await rest()
    assert relay._verifier.worker is None
    error = await outcome(relay)
    assert (error.code, str(error)) == ("UNAVAILABLE", "out of memory")
    assert relay.session.tokens == [1, 2, 3, 4, 4]


async def test_without_another_verifier_the_client_hears_both_reasons(bench: RelayBench) -> None:
    """H01: within the failover time."""
    relay = bench.start(failover_timeout_s=0.01)
    bench.heard_by(bench.drafter)
    gone(bench.verifiers[0])
    error = await asyncio.wait_for(outcome(relay), 10)
    assert isinstance(error, UnavailableError)
    assert str(error).startswith("verifier v:1 is lost: the process is gone; no verifier is")
    assert bench.heard_by(bench.drafter) == [CloseSession(bench.drafter_id)]


async def test_a_verifier_that_is_back_in_time_goes_on(bench: RelayBench) -> None:
    """H01: a restart within the failover time is not seen by the client."""
    relay = bench.start(failover_timeout_s=30)
    bench.verifiers[0].lose()
    await bench.verifiers[0].is_back()
    (opening,) = bench.heard_by(bench.verifiers[0])
    assert opening.token_ids == PROMPT
    relay.close()


async def test_closing_while_a_verifier_is_waited_for_opens_nothing(bench: RelayBench) -> None:
    """G01."""
    relay = bench.start(failover_timeout_s=30)
    bench.heard_by(bench.drafter)
    gone(bench.verifiers[0])
    await rest()
    relay.close()
    await bench.verifiers[1].start()
    await rest()
    assert bench.heard_by(bench.verifiers[1]) == []
    assert bench.heard_by(bench.drafter) == [CloseSession(bench.drafter_id)]
    assert relay._verdicts.empty()


async def test_losing_both_workers_at_once_resumes_with_both(bench: RelayBench) -> None:
    """H01, H02."""
    relay = bench.start(failover_timeout_s=30)
    bench.heard_by(bench.verifiers[0])
    bench.drafter.lose()
    bench.verifiers[0].lose()
    await bench.drafter.is_back()
    await bench.verifiers[0].is_back()
    await rest()
    to_verifier, to_drafter = bench.heard_by(bench.verifiers[0]), bench.heard_by(bench.drafter)
    assert [type(event) for event in to_drafter] == [OpenSession]
    assert isinstance(to_verifier[0], OpenSession)
    speculating = to_verifier[0].speculation or SetSpeculation(bench.verifier_id, enabled=True)
    assert speculating is True or speculating in to_verifier
    assert to_drafter[0].epoch >= to_verifier[0].epoch
    relay.close()


async def test_the_prompts_logprobs_are_whole_after_a_reopening_in_its_midst(
    bench: RelayBench,
) -> None:
    """D07: the next verifier may read the prompt in chunks of other sizes."""
    relay = Relay(bench.router, tuple(range(9)), SAMPLING, SETTINGS)
    relay.start()

    def read(start: int, stop: int) -> None:
        rows = tuple(TokenLogprobs(-float(i)) for i in range(start, stop))
        bench.verifiers[0].link.reply(PromptLogprobs(bench.verifier_id, start, rows))

    bench.heard_by(bench.verifiers[0])
    read(1, 3)
    read(3, 4)
    bench.fail("verifier", "UNAVAILABLE")
    await rest()
    bench.heard_by(bench.verifiers[0])
    read(1, 6)
    read(6, 9)
    bench.verdict(9, 4)
    assert [row.logprob for row in relay.take_prompt_logprobs()] == [-float(i) for i in range(1, 9)]
    assert relay.take_prompt_logprobs() == []
    relay.close()


async def test_errors_keep_their_kind_and_field(bench: RelayBench) -> None:
    relay = bench.start()
    bench.heard_by(bench.verifiers[0])
    bench.fail("verifier", "INVALID_ARGUMENT", "max_tokens: too many")
    error = await outcome(relay)
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "max_tokens"
    assert not isinstance(error, ResourceExhaustedError)


@pytest.mark.parametrize("turns", range(5))
async def test_a_client_that_leaves_as_another_verifier_is_found_leaves_nothing_open(
    bench: RelayBench, turns: int
) -> None:
    """What is opened then would be closed by nobody."""
    relay = bench.start()
    await bench.verifiers[1].start()
    bench.verifiers[0].lose()
    for _ in range(turns):
        await asyncio.sleep(0)
    relay.close()
    await rest()
    assert bench.verifiers[1].num_sessions == 0
    assert bench.drafter.num_sessions == 0


async def test_a_drafter_that_cannot_be_told_costs_the_session_its_drafts_only(
    bench: RelayBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it was: the others, and who follows the health, hear what has changed."""
    relay, other = bench.start(), bench.start()
    bench.drafter.lose()
    send = bench.drafter.send

    def faulty(event: Any) -> int:
        if isinstance(event, OpenSession) and not caplog.text.count("goes on without drafts"):
            raise ValueError("an epoch out of range")
        return send(event)

    monkeypatch.setattr(bench.drafter, "send", faulty)
    await bench.drafter.is_back()
    assert not relay._drafts.is_open
    assert other._drafts.is_open
    relay.close()
    other.close()
    assert bench.drafter.num_sessions == 0
