"""The timeline of real requests: its lanes' sums are those that the answers' statistics tell."""

from __future__ import annotations

from typing import Any

import pytest
from support.services import running
from support.traced import PROMPT, traced_pair

from paceline.client import GenerateResult
from paceline.timeline import Lane, Timeline

SETTINGS: dict[str, Any] = {
    "token_ids": PROMPT,
    "window": 8,
    "num_speculative_tokens": 4,
    "temperature": 1.0,
    "seed": 2,
    "max_tokens": 40,
    "return_spans": True,
}
SLACK_MS = 0.01
"""For rounding: statistics are in whole microseconds."""


def lanes_of(timeline: Timeline) -> dict[str, Lane]:
    return {lane.name: lane for lane in timeline.lanes}


def check_tokens(timeline: Timeline, result: GenerateResult) -> None:
    """A mark a token, and a split that adds up to the stream."""
    assert [mark.origin for mark in timeline.marks] == result.origins
    stream_ms = timeline.split.total * timeline.num_tokens
    assert stream_ms == pytest.approx(timeline.marks[-1].at_ms, abs=1.0)
    wire_ms = timeline.split.wire * timeline.num_tokens
    assert lanes_of(timeline)["wire"].total_ms == pytest.approx(wire_ms, abs=1.0)


async def test_the_lanes_of_a_drafted_answer_agree_with_its_statistics() -> None:
    async with running(traced_pair(None, level="off")) as stack:
        result = await stack.generate(**SETTINGS)
    timeline, stats = Timeline.of(result.spans), result.stats
    lanes = lanes_of(timeline)
    check_tokens(timeline, result)
    assert set(lanes) >= {"prefill drafter", "prefill verifier", "draft", "waste", "verify"}
    assert timeline.num_left_out == 0

    verify = lanes["verify"]
    assert len(verify.bars) == stats.passes
    assert verify.num_tokens == len(result.tokens)
    # A span is the clock's time around what the statistics count of the pass.
    assert stats.verify_ms - SLACK_MS <= verify.total_ms <= timeline.duration_ms

    waits = [bar for bar in lanes["queue"].bars if "pass" in bar.detail]
    assert sum(bar.duration_ms for bar in waits) == pytest.approx(stats.queue_ms, abs=1.0)

    bars = [*lanes["draft"].bars, *lanes["waste"].bars]
    sent = [bar for bar in bars if not bar.detail.endswith("unsent")]
    assert sum(bar.num_tokens for bar in sent) == stats.drafted
    assert lanes["draft"].num_tokens >= stats.accepted
    drafting_ms = sum(bar.duration_ms for bar in sent)
    assert stats.draft_ms - 1.0 <= drafting_ms <= timeline.duration_ms


async def test_an_answer_without_speculation_has_no_lane_of_the_drafter() -> None:
    async with running(traced_pair(None, level="off")) as stack:
        result = await stack.generate(**SETTINGS, speculation=False)
    timeline = Timeline.of(result.spans)
    check_tokens(timeline, result)
    assert {"draft", "waste", "prefill drafter"}.isdisjoint(lanes_of(timeline))
    assert len(lanes_of(timeline)["verify"].bars) == result.stats.passes == 40
