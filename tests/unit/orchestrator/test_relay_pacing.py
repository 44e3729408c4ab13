"""What an adaptive window makes the relay say, from the opening on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from test_relay import RelayBench
from worker_fakes import rest

from orchestrator import relay as relay_module
from paceline.types import (
    Advance,
    DraftBlock,
    DrafterState,
    FinishReason,
    OpenSession,
    PassTimings,
    SetSpeculation,
)

ADAPTIVE: dict[str, Any] = {"adaptive": True, "start_window": 6, "window": 8}


@pytest.fixture
async def bench() -> AsyncIterator[RelayBench]:
    bench = await RelayBench().connect()
    yield bench
    await bench.router.close()


async def test_alone_it_starts_as_configured(bench: RelayBench) -> None:
    bench.start(**ADAPTIVE)
    opening, advance = bench.heard_by(bench.drafter)
    assert isinstance(opening, OpenSession)
    assert opening.window == 8, "the limit"
    assert (advance.window, advance.num_speculative_tokens, advance.token_ids) == (6, 4, ())
    (opened,) = bench.heard_by(bench.verifiers[0])
    assert isinstance(opened, OpenSession), "the configured patience holds"


async def test_in_company_nobody_waits_for_drafts_that_nobody_knows(bench: RelayBench) -> None:
    bench.start(**ADAPTIVE)
    bench.heard_by(bench.drafter)
    bench.heard_by(bench.verifiers[0])
    bench.start(**ADAPTIVE)
    _, advance = bench.heard_by(bench.drafter)
    assert isinstance(advance, Advance)
    assert advance.window == 0
    _, told = bench.heard_by(bench.verifiers[0])
    assert told == SetSpeculation(bench.verifier_id, enabled=True, patience_us=0)


async def test_a_reopened_session_tells_its_new_verifier_too(bench: RelayBench) -> None:
    await bench.verifiers[1].start()
    first = bench.start(failover_timeout_s=1.0, **ADAPTIVE)
    home = next(v for v in bench.verifiers if v.num_sessions == 1)
    other = next(v for v in bench.verifiers if v is not home)
    home.is_draining = True  # so that the second one opens elsewhere
    bench.start(failover_timeout_s=1.0, **ADAPTIVE)
    bench.heard_by(other)
    home.lose()
    await rest()
    opening, told = bench.heard_by(other)
    assert isinstance(opening, OpenSession)
    assert told == SetSpeculation(opening.session_id, enabled=True, patience_us=0)
    first.close()


async def test_without_adaptation_nothing_of_it_is_said(bench: RelayBench) -> None:
    bench.start()
    bench.start()
    sent = [*bench.heard_by(bench.drafter), *bench.heard_by(bench.verifiers[0])]
    assert all(isinstance(event, OpenSession) for event in sent)


async def test_while_its_window_is_closed_a_drafter_is_told_in_one_go_when_it_opens(
    bench: RelayBench,
) -> None:
    """In company nothing is drafted for four tokens, after which a probe is due."""
    bench.start(**ADAPTIVE)
    bench.start(**ADAPTIVE)
    bench.heard_by(bench.drafter)
    bench.heard_by(bench.verifiers[0])
    for base in (3, 4, 5):
        bench.verdict(base, base)
    assert bench.heard_by(bench.drafter) == []
    bench.verdict(6, 6)
    (advance,) = bench.heard_by(bench.drafter)
    assert isinstance(advance, Advance)
    assert (advance.base, advance.token_ids, advance.window) == (3, (3, 4, 5, 6), 2)


async def test_what_a_drafter_was_not_told_it_hears_at_the_end(bench: RelayBench) -> None:
    bench.start(**ADAPTIVE)
    bench.start(**ADAPTIVE)
    bench.heard_by(bench.drafter)
    bench.heard_by(bench.verifiers[0])
    bench.verdict(3, 3)
    bench.verdict(4, 4, 5, finish_reason=FinishReason.LENGTH)
    advance = bench.heard_by(bench.drafter)[0]
    assert advance == Advance(bench.drafter_id, 0, 3, (3, 4, 5), window=0)


@pytest.mark.parametrize("speaks_at_once", [False, True])
async def test_alone_a_drafter_hears_of_a_verdict_before_the_plan_is_thought_over(
    bench: RelayBench, monkeypatch: pytest.MonkeyPatch, *, speaks_at_once: bool
) -> None:
    """What changes follows, at the latest before the drafter's next word is heard."""
    monkeypatch.setattr(relay_module, "DECIDES_AFTER_S", 0.0)
    relay = bench.start(**ADAPTIVE)
    bench.heard_by(bench.drafter)
    bench.heard_by(bench.verifiers[0])
    timings = PassTimings(0, 30_000, 0, 5, 1)
    base, changes, told = 3, [], []
    for epoch in range(100):
        bench.draft(base, 7, 7, epoch=epoch)
        bench.heard_by(bench.verifiers[0])
        bench.verdict(base, 8, epoch=epoch + 1, timings=timings, num_judged=2)
        (advance,) = bench.heard_by(bench.drafter)
        assert advance == Advance(bench.drafter_id, epoch + 1, base, (8,))
        assert bench.heard_by(bench.verifiers[0]) == []
        base += 1
        if speaks_at_once:
            bench.draft(base, epoch=epoch + 1, state=DrafterState.PAUSED)
        else:
            await rest()
        for change in bench.heard_by(bench.drafter):
            assert (change.base, change.token_ids) == (base, ())
            changes.append(change.window)
        told += [e for e in bench.heard_by(bench.verifiers[0]) if isinstance(e, SetSpeculation)]
        if relay.window == 0:
            break
    assert changes[-1] == relay.window == 0, "none of its drafts is right"
    assert told[-1] == SetSpeculation(bench.verifier_id, enabled=True, patience_us=0)
    relay.close()


async def test_on_one_device_the_verifier_hears_first_that_a_window_opens(
    bench: RelayBench,
) -> None:
    """It waits after the pass that it has begun; till then the drafter shall not compute."""
    for worker in (bench.drafter, bench.verifiers[0]):
        assert worker.info is not None
        worker.info = replace(worker.info, device_id="one", device_share=1.0)
    relay = bench.start(**ADAPTIVE)
    bench.heard_by(bench.drafter)
    bench.heard_by(bench.verifiers[0])
    timings = PassTimings(0, 30_000, 0, 1, 1)
    bench.verdict(3, 3, timings=timings)
    (told,) = bench.heard_by(bench.verifiers[0])
    assert told == SetSpeculation(bench.verifier_id, enabled=True), "as long as is configured"
    assert bench.heard_by(bench.drafter) == []
    bench.draft(3, state=DrafterState.PAUSED)
    assert bench.heard_by(bench.verifiers[0]) == [], "it waits for another answer"
    bench.verdict(4, 4, timings=timings)
    (advance,) = bench.heard_by(bench.drafter)
    assert isinstance(advance, Advance)
    assert (advance.base, advance.token_ids, advance.window) == (3, (3, 4), 2)
    (told,) = bench.heard_by(bench.verifiers[0])
    assert told == SetSpeculation(bench.verifier_id, enabled=True, max_drafts_per_pass=2)
    bench.draft(5, 6, 7)
    bench.verdict(5, 6, 7, timings=timings, num_judged=2, accepted_length=2)
    assert bench.heard_by(bench.verifiers[0])[1:] == [], "nothing has changed"
    relay.close()


async def test_that_there_is_nothing_to_propose_is_passed_on_once_where_nobody_waits(
    bench: RelayBench,
) -> None:
    """Said again at every token it would take a core from the verifier that shares the CPUs."""
    bench.start(**ADAPTIVE)  # somebody else, so that this one's verifier does not wait
    relay = bench.start(**ADAPTIVE)
    bench.heard_by(bench.drafter)
    bench.heard_by(bench.verifiers[0])
    assert relay._drafts.plan is not None
    assert relay._drafts.plan.patience_s == 0.0
    paused = DrafterState.PAUSED
    first = bench.draft(3, state=paused)
    bench.verdict(3, 4)
    bench.draft(4, state=paused)
    heard = bench.heard_by(bench.verifiers[0])
    assert [event.base for event in heard if isinstance(event, DraftBlock)] == [first.base]
    found = bench.draft(4, 5, 6)
    again = bench.draft(6, state=paused)
    heard = bench.heard_by(bench.verifiers[0])
    blocks = [event for event in heard if isinstance(event, DraftBlock)]
    assert [block.token_ids for block in blocks] == [found.token_ids, again.token_ids]
    relay.close()
