"""The drafter's spans: a block's span says which of its tokens were kept and which were waste."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from drafter_harness import PROMPT, VOCAB, DrafterBench, opening

from drafter_service.drafter import Proposal
from paceline.errors import UnavailableError
from paceline.generation import TraceSpan
from paceline.sampling.draw import Draw
from paceline.telemetry.level import Level
from paceline.telemetry.trace_context import TraceContext
from paceline.tree_shape import ROOT, TreeShape
from paceline.types import CloseSession, SessionError, SessionSpans

CONTEXT = TraceContext(1, 2, is_sampled=False, level=Level.BLOCK, returns_spans=True).carrier()
BASE = len(PROMPT)


def spans_of(replies: Sequence[Any]) -> list[TraceSpan]:
    """What came back; the replies say which is the last."""
    found = [reply for reply in replies if isinstance(reply, SessionSpans)]
    assert [reply.is_last for reply in found] == [False] * (len(found) - 1) + [True]
    return [span for reply in found for span in reply.spans]


def fates(spans: Sequence[TraceSpan]) -> list[tuple[Any, ...]]:
    """(base, tokens, accepted, discarded, state) of each draft."""
    keys = ("base", "draft.tokens", "draft.accepted", "draft.discarded", "draft.state")
    return [
        tuple(span.attributes[f"paceline.{key}"] for key in keys)
        for span in spans
        if span.name == "draft"
    ]


def traced_bench(**changes: Any) -> DrafterBench:
    bench = DrafterBench()
    bench.post(opening(trace_context=CONTEXT, **changes))
    return bench


def right(*positions: int) -> tuple[int, ...]:
    """What the counting drafter drafts there."""
    return tuple(position % VOCAB for position in positions)


def test_an_accepted_block_is_accepted_whole() -> None:
    bench = traced_bench()
    bench.run()
    bench.advance(*right(3, 4, 5, 6))
    bench.advance(*right(7, 8, 9, 10))
    spans = spans_of(bench.post(CloseSession(1)))
    assert fates(spans) == [(3, 4, 4, 0, "running"), (7, 4, 4, 0, "paused")]


def test_a_rejection_wastes_the_rest_of_its_block_and_all_blocks_after_it() -> None:
    bench = traced_bench()
    bench.run()
    bench.advance(*right(3, 4), 0, epoch=1)
    spans = spans_of(bench.post(CloseSession(1)))
    assert fates(spans)[:2] == [(3, 4, 2, 2, "running"), (7, 4, 0, 4, "paused")]


def test_a_block_may_be_accepted_in_two_parts() -> None:
    bench = traced_bench()
    bench.run()
    bench.advance(*right(3, 4))
    bench.advance(*right(5, 6, 7))
    bench.advance(0, epoch=1)
    spans = spans_of(bench.post(CloseSession(1)))
    assert fates(spans)[:2] == [(3, 4, 4, 0, "running"), (7, 4, 1, 3, "paused")]


def test_tokens_drawn_for_a_block_that_was_never_sent_are_waste_too() -> None:
    bench = traced_bench()
    bench.step()
    bench.step()
    bench.advance(0)
    spans = spans_of(bench.post(CloseSession(1)))
    assert [fate[1:] for fate in fates(spans)] == [(2, 0, 2, "unsent")]


def test_what_is_outstanding_at_the_end_was_for_nothing() -> None:
    bench = traced_bench()
    bench.run()
    spans = spans_of(bench.post(CloseSession(1)))
    assert fates(spans) == [(3, 4, 0, 4, "running"), (7, 4, 0, 4, "paused")]
    names = [span.name for span in spans]
    assert names[:2] == ["queue", "prefill"]
    assert names[-1] == "session"
    assert {span.parent_id for span in spans} == {f"{2:016x}"}


def test_a_session_that_waits_for_room_is_queued_until_it_ends() -> None:
    bench = DrafterBench()
    bench.drafter.answer = lambda request: Proposal(is_waiting=True)
    bench.post(opening(trace_context=CONTEXT))
    bench.step()
    spans = spans_of(bench.post(CloseSession(1)))
    assert [span.name for span in spans] == ["queue", "session"]


def test_a_session_that_fails_returns_its_spans_before_the_error() -> None:
    bench = traced_bench()
    bench.drafter.answer = lambda request: Proposal(error=UnavailableError("no luck"))
    *spans, error = bench.step()
    assert isinstance(error, SessionError)
    messages = [span.attributes.get("error.message") for span in spans_of(spans)]
    assert messages == [None, "no luck", "no luck"]  # queue, prefill, session


def test_a_link_that_ends_leaves_no_trace_open_and_nobody_is_told() -> None:
    bench = traced_bench()
    bench.run()
    bench.engine.close_link(1)
    assert not bench.engine._traces
    assert bench.engine._traces.take_farewells() == []


def test_a_session_that_nobody_traces_costs_no_trace() -> None:
    unsampled = TraceContext(1, 2, is_sampled=True, level=Level.TOKEN).carrier()
    for context in ({}, unsampled, {"traceparent": "nonsense"}):
        bench = DrafterBench()
        bench.post(opening(trace_context=context))
        assert not bench.engine._traces
        bench.run()
        assert bench.post(CloseSession(1)) == []


def tree_bench() -> DrafterBench:
    """One token, then two branches of one and two, drafted once."""
    bench = traced_bench()
    draws = [Draw(token, None) for token in (1, 2, 3, 4)]
    proposals = [Proposal(draws, tree=TreeShape((ROOT, 0, 0, 2))), Proposal()]
    bench.drafter.answer = lambda request: proposals.pop(0) if proposals else Proposal()
    bench.run()
    return bench


@pytest.mark.parametrize(
    ("verdict", "accepted"), [((1, 3, 4, 9), 3), ((1, 2, 9), 2), ((1, 9), 1), ((9,), 0)]
)
def test_of_a_tree_the_path_was_kept_and_the_rest_was_waste(
    verdict: tuple[int, ...], accepted: int
) -> None:
    bench = tree_bench()
    bench.advance(*verdict, epoch=1)
    spans = spans_of(bench.post(CloseSession(1)))
    assert fates(spans)[0] == (3, 4, accepted, 4 - accepted, "paused")


def test_what_leads_to_the_branches_may_be_kept_before_them() -> None:
    bench = tree_bench()
    bench.advance(1)
    bench.advance(3, 9, epoch=1)
    spans = spans_of(bench.post(CloseSession(1)))
    assert fates(spans)[0] == (3, 4, 2, 2, "paused")


def test_branches_that_were_overtaken_are_waste_even_where_they_were_right() -> None:
    bench = tree_bench()
    bench.advance(1, 3)
    spans = spans_of(bench.post(CloseSession(1)))
    assert fates(spans)[0][:2] == (3, 4)
    assert bench.engine.metrics._num_rolled_back >= 2
