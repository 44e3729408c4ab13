"""What the workers count, read through OpenTelemetry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metrics import Meters
from support.pipeline import worker_info

from paceline.telemetry.instruments import Instruments
from paceline.telemetry.metrics import (
    DISCARD_REASONS,
    NUM_POSITIONS,
    DrafterMetrics,
    VerifierMetrics,
    by_position,
    export_worker,
)
from paceline.types import Origin, PassTimings, Verdict


def verdict(judged: int, accepted: int, *, queue_us: int = 0) -> Verdict:
    return Verdict(
        session_id=1,
        epoch=0,
        base=3,
        token_ids=tuple(range(accepted + 1)),
        accepted_length=accepted,
        next_origin=Origin.BONUS,
        num_judged=judged,
        finish_reason=None,
        logprobs=(),
        kv_length=3,
        timings=PassTimings(queue_us, 0, 0, 0, 0),
        num_discarded=0,
    )


@given(st.lists(st.integers(0, 40), max_size=20))
@settings(derandomize=True)
def test_positions_are_summed_up_as_if_each_token_had_been_counted(lengths: list[int]) -> None:
    expected = dict.fromkeys([*map(str, range(1, NUM_POSITIONS)), f"{NUM_POSITIONS}+"], 0)
    for length in lengths:
        for position in range(1, length + 1):
            expected[str(position) if position < NUM_POSITIONS else f"{NUM_POSITIONS}+"] += 1
    counts = {length: lengths.count(length) for length in set(lengths)}
    assert by_position(counts) == expected
    assert sum(by_position(counts).values()) == sum(lengths)


def test_a_verifier_shows_what_its_passes_did() -> None:
    meters, metrics = Meters(), VerifierMetrics()
    metrics.export(meters.meter)
    metrics.received(9)
    metrics.passed(seconds=0.02, rows=7, sessions=2)
    metrics.judged(verdict(4, 2, queue_us=500_000))
    metrics.judged(verdict(1, 1, queue_us=1_000_000))
    metrics.discarded(3, "rejected")
    assert meters.values("paceline.verifier.passes") == {"": 1}
    assert meters.values("paceline.verifier.queue") == {"": 1.5}
    assert meters.values("paceline.verifier.draft_tokens") == {"": 9}
    assert meters.values("paceline.verifier.committed_tokens") == {"": 5}
    judged = meters.values("paceline.verifier.judged_tokens")
    accepted = meters.values("paceline.verifier.accepted_tokens")
    assert [judged[str(i)] for i in range(1, 6)] == [2, 1, 1, 1, 0]
    assert [accepted[str(i)] for i in range(1, 6)] == [2, 1, 0, 0, 0]
    expected = dict.fromkeys(DISCARD_REASONS, 0) | {"rejected": 3}
    assert meters.values("paceline.verifier.discarded_tokens") == expected
    for name in ("duration", "rows", "sessions"):
        assert meters.count(f"paceline.verifier.pass.{name}") == 1
    (point,) = meters.metrics()["paceline.verifier.pass.rows"].data.data_points
    assert point.sum == 7


def test_a_drafter_shows_what_its_steps_did() -> None:
    meters, metrics = Meters(), DrafterMetrics()
    metrics.export(meters.meter)
    metrics.stepped(seconds=0.001, sessions=3)
    metrics.sent(4)
    metrics.sent(0)
    metrics.rolled_back(2)
    assert meters.values("paceline.drafter.steps") == {"": 1}
    assert meters.values("paceline.drafter.blocks") == {"": 2}
    assert meters.values("paceline.drafter.draft_tokens") == {"": 4}
    assert meters.values("paceline.drafter.rolled_back_tokens") == {"": 2}
    assert meters.count("paceline.drafter.step.duration") == 1
    assert meters.count("paceline.drafter.step.sessions") == 1


@pytest.mark.parametrize("metrics", [VerifierMetrics(), DrafterMetrics()])
def test_every_counter_is_there_before_anything_happens(
    metrics: VerifierMetrics | DrafterMetrics,
) -> None:
    """So that the first event is a change that a rate can see."""
    meters = Meters()
    metrics.export(meters.meter)
    for name, metric in meters.metrics().items():
        assert all(point.value == 0 for point in metric.data.data_points), name
    assert len(meters.metrics()) >= 4


def test_what_was_counted_before_the_export_is_not_lost() -> None:
    meters, metrics = Meters(), DrafterMetrics()
    metrics.sent(4)
    metrics.export(meters.meter)
    assert meters.values("paceline.drafter.draft_tokens") == {"": 4}


def test_without_an_export_the_counters_still_count() -> None:
    metrics = VerifierMetrics()
    metrics.passed(seconds=0.1, rows=3, sessions=1)
    metrics.judged(verdict(2, 1))
    assert metrics.counters == {
        "passes": 1,
        "rows": 3,
        "draft_tokens": 2,
        "accepted_tokens": 1,
        "committed_tokens": 2,
    }


def test_how_full_and_busy_a_worker_is_is_read_when_asked() -> None:
    meters = Meters()
    info = replace(worker_info("verifier", 5), kv_pages_total=8, live_sessions=2)
    export_worker(meters.meter, "verifier", describe=lambda: info, busy_s=lambda: 1.5)
    info = replace(info, kv_pages_used=3, waiting_sessions=1, counters={"prefix_tokens_reused": 48})
    assert meters.values("paceline.verifier.kv.used_pages") == {"": 3}
    assert meters.values("paceline.verifier.kv.total_pages") == {"": 8}
    assert meters.values("paceline.verifier.live_sessions") == {"": 2}
    assert meters.values("paceline.verifier.waiting_sessions") == {"": 1}
    assert meters.values("paceline.verifier.engine.busy") == {"": 1.5}
    assert meters.values("paceline.verifier.prefix.reused_tokens") == {"": 48}
    assert "paceline.verifier.prefix.computed_tokens" not in meters.metrics()


def test_units_follow_the_convention() -> None:
    """Seconds and bytes as UCUM writes them; everything counted in braces."""
    meters = Meters()
    make = Instruments(meters.meter, "x")
    metrics = VerifierMetrics()
    metrics.export(meters.meter)
    metrics.passed(seconds=1, rows=1, sessions=1)
    make.histogram("h", "s", "", (1.0,)).record(2.0)
    units = {metric.unit for metric in meters.metrics().values()}
    assert all(unit in ("s", "By") or unit == f"{{{unit[1:-1]}}}" for unit in units)
