"""A request's spans as lanes: what lies where, what is summed, and clocks that differ."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from support.spans import DRAFTER, ORCHESTRATOR, alone, draft, drafted, span, token, verify

from paceline.timeline import Bar, Lane, Outside, Split, Timeline


def stretches(timeline: Timeline, name: str) -> list[tuple[float, float, int]]:
    """Start, end and tokens of a lane's bars."""
    (lane,) = [lane for lane in timeline.lanes if lane.name == name]
    return [(bar.start_ms, bar.end_ms, bar.num_tokens) for bar in lane.bars]


def test_each_span_lies_in_its_lane_in_ms_from_the_requests_start() -> None:
    timeline = Timeline.of(drafted())
    assert (timeline.start_ms, timeline.end_ms) == (0.0, 100.0)
    assert stretches(timeline, "prefill drafter") == [(8, 18, 17)]
    assert stretches(timeline, "prefill verifier") == [(6, 26, 17)]
    assert stretches(timeline, "verify") == [(6, 26, 1), (55, 75, 6), (76, 94, 1)]
    assert timeline.outside == Outside()  # a session may outlive its request


def test_a_block_is_divided_into_what_was_kept_and_what_was_thrown_away() -> None:
    timeline = Timeline.of(drafted())
    assert stretches(timeline, "draft") == [(30, 40, 4), (40, 42.5, 1)]
    assert stretches(timeline, "waste") == [(42.5, 50, 3), (50, 60, 2)]
    details = {lane.name: [bar.detail for bar in lane.bars] for lane in timeline.lanes}
    assert details["draft"][1] == "block at 8 of epoch 0: 1 of 4 tokens kept"
    assert details["waste"][1].endswith("2 of 2 tokens thrown away unsent")


def test_wire_lies_at_the_start_of_a_tokens_latency_and_of_the_first_after_prepare() -> None:
    assert stretches(Timeline.of(drafted()), "wire") == [(2, 7, 0), (30, 32, 0), (80, 84, 0)]


def test_queueing_is_for_a_session_on_each_worker_and_before_each_pass() -> None:
    assert stretches(Timeline.of(drafted()), "queue") == [(5, 6, 0), (5, 8, 0), (50, 55, 0)]


def test_every_token_is_a_mark_at_its_delivery_with_its_origin_and_text() -> None:
    timeline = Timeline.of(drafted()[::-1], ["One", " <two"])  # in whatever order they came
    origins = ["prefill", *["accepted"] * 5, "recovered", "autoregressive"]
    assert [mark.origin for mark in timeline.marks] == origins
    assert [mark.at_ms for mark in timeline.marks] == [30.0, *[80.0] * 6, 98.0]
    assert timeline.marks[0].detail == (
        "token 0 prefill 'One': wire 5.0 + verify 20.0 + emit 5.0 ms"
    )
    assert "' <two'" in timeline.marks[1].detail


def test_the_split_is_of_the_mean_tokens_latency() -> None:
    split = Timeline.of(drafted()).split
    assert split == Split(draft=20 / 8, wire=11 / 8, queue=5 / 8, verify=52 / 8, emit=10 / 8)
    assert split.total == pytest.approx(98 / 8)


def test_tokens_that_share_a_span_count_each() -> None:
    shared = span(ORCHESTRATOR, "token", 30, 90, token__index=1, token__count=3, verify_ms=60.0)
    root = replace(alone()[0], attributes={"paceline.token_spans.left_out": 2})
    timeline = Timeline.of([root, *alone()[1:], shared])
    assert timeline.num_tokens == 4
    assert timeline.marks[1].origin == ""
    assert timeline.marks[1].detail == "tokens 1 to 3: verify 60.0 ms"
    assert timeline.split.verify == pytest.approx(80 / 4)
    assert timeline.num_left_out == 2


def test_without_a_drafter_its_lanes_are_absent() -> None:
    timeline = Timeline.of(alone())
    names = [lane.name for lane in timeline.lanes]
    assert names == ["prefill verifier", "wire", "queue", "verify"]


def test_a_request_without_tokens_has_no_split() -> None:
    timeline = Timeline.of([span(ORCHESTRATOR, "generate", 0, 5)])
    assert (timeline.duration_ms, timeline.lanes, timeline.marks) == (5.0, (), ())
    assert timeline.split == Split()


def test_no_spans_are_an_empty_timeline() -> None:
    assert Timeline.of([]) == Timeline()
    assert Timeline().split == Split()


def test_a_lost_worker_has_a_lane_with_the_error() -> None:
    lost = span(ORCHESTRATOR, "lost", 40, 52, role="verifier")
    lost = replace(lost, attributes={**lost.attributes, "error.message": "the link broke"})
    timeline = Timeline.of([*alone(), lost])
    (lane,) = [lane for lane in timeline.lanes if lane.name == "lost"]
    assert lane.bars == (Bar(40.0, 52.0, 0, "verifier lost: the link broke"),)


def test_a_worker_whose_clock_differs_is_cut_to_the_request_and_told() -> None:
    early, late = draft(-30, -20, 4, 4, 4), verify(90, 107.5, tokens=1)
    timeline = Timeline.of([*alone(), early, late])
    assert timeline.outside == Outside(num_spans=2, before_ms=30.0, after_ms=7.5)
    assert stretches(timeline, "draft") == [(0, 0, 4)]
    assert stretches(timeline, "verify")[-1] == (90, 100, 1)


def test_less_than_a_millisecond_outside_is_cut_without_a_word() -> None:
    timeline = Timeline.of([*alone(), draft(-0.9, 10, 4, 2, 2), draft(90, 101, 8, 2, 2)])
    assert timeline.outside == Outside()
    assert stretches(timeline, "draft") == [(0, 10, 2), (90, 100, 2)]


def test_overlapping_bars_are_summed_each_and_cover_once() -> None:
    lane = Lane(
        "queue", (Bar(0, 10, 0, ""), Bar(2, 5, 0, ""), Bar(8, 12, 0, ""), Bar(20, 30, 0, ""))
    )
    assert lane.total_ms == 27.0
    assert lane.covered_ms(0, 100) == 22.0
    assert lane.covered_ms(4, 25) == 13.0


def test_a_stretch_cuts_bars_and_keeps_the_tokens_delivered_within() -> None:
    part = Timeline.of(drafted()).between(41, 81)
    assert (part.start_ms, part.end_ms) == (41, 81)
    assert stretches(part, "draft") == [(41, 42.5, 1)]
    assert stretches(part, "verify") == [(55, 75, 6), (76, 81, 1)]
    assert "prefill verifier" not in [lane.name for lane in part.lanes]
    assert part.num_tokens == 6
    assert part.split.total == pytest.approx(50 / 6)


def test_a_stretch_beyond_the_request_is_refused_with_its_length() -> None:
    with pytest.raises(ValueError, match=r"the request took 100\.0 ms"):
        Timeline.of(drafted()).between(100, 200)


def test_several_answers_share_the_lanes_and_no_token_takes_anothers_text() -> None:
    other = token(0, 0, 40, "prefill", verify=20.0)
    other = replace(other, attributes={**other.attributes, "paceline.answer": 1})
    timeline = Timeline.of([*alone(), other], ["One"])
    assert [("'One'" in mark.detail) for mark in timeline.marks] == [True, False]


def test_a_timeline_needs_neither_torch_nor_grpc() -> None:
    code = (
        "import json, sys, paceline.timeline; "
        "print(json.dumps([m for m in ('torch', 'grpc', 'rich') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_attributes_of_an_unknown_kind_draw_nothing_wrong() -> None:
    odd = span(DRAFTER, "draft", 30, 40, draft__tokens="four", draft__accepted=0)
    names = [lane.name for lane in Timeline.of([*alone(), odd]).lanes]
    assert "draft" not in names
    assert "waste" not in names
