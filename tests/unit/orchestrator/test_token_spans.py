"""Token spans: latencies without gaps, splits that add up, a cap that loses no time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.token_spans import PARTS, DeliveredToken, TokenSpans, VerdictNote, split_ns
from paceline.generation import TraceSpan
from paceline.telemetry.level import Level
from paceline.telemetry.recorder import Recorder
from paceline.telemetry.trace_context import TraceContext
from paceline.types import Origin, PassTimings, Verdict

MS = 1_000_000
START = 10**18


def verdict(*token_ids: int, accepted: int = 0, **timings: int) -> Verdict:
    given_timings: dict[str, Any] = {"queue_us": 0, "forward_us": 0, "judge_us": 0, **timings}
    return Verdict(
        session_id=1,
        epoch=0,
        base=5,
        token_ids=token_ids,
        accepted_length=accepted,
        next_origin=Origin.BONUS,
        num_judged=accepted,
        finish_reason=None,
        logprobs=(),
        kv_length=0,
        timings=PassTimings(rows=1, sessions=1, **given_timings),
        num_discarded=0,
    )


def note(given_verdict: Verdict, arrived_ns: int, draft_ns: int = 0) -> VerdictNote:
    nothing = (None,) * len(given_verdict.token_ids)
    return VerdictNote(given_verdict, arrived_ns, draft_ns, nothing, nothing)


def test_the_parts_are_laid_backwards_from_the_delivery() -> None:
    judged = verdict(1, queue_us=2000, forward_us=3000, judge_us=1000)
    split = split_ns(note(judged, START + 18 * MS, draft_ns=5 * MS), START, START + 20 * MS)
    assert dict(zip(PARTS, split, strict=True)) == {
        "draft": 5 * MS,
        "wire": 7 * MS,
        "queue": 2 * MS,
        "verify": 4 * MS,
        "emit": 2 * MS,
    }


def test_what_happened_before_the_last_delivery_is_not_counted_again() -> None:
    """A pass of 30 ms, 24 of them while the token before was still on its way."""
    judged = verdict(1, queue_us=9000, forward_us=30_000)
    split = split_ns(note(judged, START + 6 * MS, draft_ns=50 * MS), START, START + 6 * MS)
    assert dict(zip(PARTS, split, strict=True)) == {
        "draft": 0,
        "wire": 0,
        "queue": 0,
        "verify": 6 * MS,
        "emit": 0,
    }


def test_a_token_held_for_its_text_was_emitted_all_the_while() -> None:
    split = split_ns(note(verdict(1), START - 5 * MS), START, START + 3 * MS)
    assert dict(zip(PARTS, split, strict=True))["emit"] == 3 * MS


durations = st.integers(0, 10**9)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    total=durations,
    arrived=st.integers(-(10**9), 10**9),
    draft=durations,
    queue=st.integers(0, 10**6),
    forward=st.integers(0, 10**6),
    prepared=durations,
)
def test_every_split_is_a_partition(
    *, total: int, arrived: int, draft: int, queue: int, forward: int, prepared: int
) -> None:
    judged = verdict(1, queue_us=queue, forward_us=forward)
    split = split_ns(note(judged, START + arrived, draft), START, START + total, prepared)
    assert sum(split) == total
    assert min(split) >= 0


def spans_of(deliveries: list[tuple[int, int]], max_spans: int) -> tuple[list[TraceSpan], int]:
    """(tokens, time in ms) a delivery; returns the token spans, and how many were left out."""
    context = TraceContext(1, 2, False, level=Level.TOKEN, returns_spans=True)
    recorder = Recorder("orchestrator", context, None)
    total = sum(count for count, _ in deliveries)
    spans = TokenSpans(
        recorder,
        started_ns=START,
        max_spans=max_spans,
        max_tokens=total,
        answer=None,
        record_text=False,
    )
    for count, at_ms in deliveries:
        judged = verdict(*range(count), accepted=count - 1)
        arrived = note(judged, START + at_ms * MS)
        tokens = [DeliveredToken(arrived, index, "") for index in range(count)]
        spans.delivered(tokens, START + at_ms * MS)
    spans.flush()
    return recorder.collected, spans.num_left_out


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    max_spans=st.integers(1, 300),
)
def test_spans_cover_the_stream_whatever_the_cap(counts: list[int], max_spans: int) -> None:
    deliveries = [(count, 7 * (index + 1)) for index, count in enumerate(counts)]
    spans, left_out = spans_of(deliveries, max_spans)
    assert len(spans) <= max_spans
    assert left_out == sum(counts) - len(spans)
    assert spans[0].start_ns == START
    assert spans[-1].end_ns == START + deliveries[-1][1] * MS
    assert all(left.end_ns == right.start_ns for left, right in pairwise(spans))
    assert sum(int(s.attributes.get("paceline.token.count", 1)) for s in spans) == sum(counts)
    for span in spans:
        parts = sum(float(span.attributes[f"paceline.{part}_ms"]) for part in PARTS)
        assert abs(parts - (span.end_ns - span.start_ns) / MS) < 1e-6


def test_a_cap_of_zero_makes_no_token_spans_and_counts_them() -> None:
    assert spans_of([(3, 1), (2, 2)], 0) == ([], 5)


def test_tokens_of_a_verdict_after_the_first_take_no_time() -> None:
    spans, _ = spans_of([(1, 5), (3, 9)], 100)
    assert [(s.end_ns - s.start_ns) // MS for s in spans] == [5, 4, 0, 0]
    origins = [span.attributes["paceline.token.origin"] for span in spans]
    assert origins == ["bonus", "accepted", "accepted", "bonus"]
