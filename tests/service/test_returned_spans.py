"""`return_spans`: a request's spans come back with its last response, without any collector."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from support.otlp_receiver import ClientTrace, ReceivedSpan, otlp_grpc
from support.services import running
from support.traced import PROMPT, SERVICES, check_trace, traced_pair

from orchestrator.request_trace import RETURN_TIMEOUT_S
from paceline.client import GenerateResult, TraceSpan
from paceline.telemetry.worker_traces import WorkerTraces

SETTINGS: dict[str, Any] = {"token_ids": PROMPT, "window": 8, "num_speculative_tokens": 4}


def as_received(span: TraceSpan) -> ReceivedSpan:
    """The same span as a collector would have it, where it says as much."""
    attributes = dict(span.attributes)
    if "gen_ai.response.finish_reasons" in attributes:
        reasons: Any = str(attributes["gen_ai.response.finish_reasons"]).split(",")
        attributes["gen_ai.response.finish_reasons"] = reasons
    return ReceivedSpan(
        span.name,
        span.service,
        "",
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.start_ns,
        span.end_ns,
        attributes,
        [],
        "",
        0,
    )


async def test_spans_come_back_though_tracing_is_off_and_to_that_request_alone() -> None:
    async with running(traced_pair(None, level="off")) as stack:
        plain = await stack.generate(**SETTINGS, max_tokens=30, temperature=0)
        result = await stack.generate(
            **SETTINGS, max_tokens=30, temperature=1.0, seed=2, return_spans=True
        )
        assert await stack.is_idle()
    assert plain.spans == ()
    spans = [as_received(span) for span in result.spans]
    assert {span.service for span in spans} == SERVICES
    names = Counter(span.name for span in spans)
    assert names["token"] == 30
    assert names["verify"] == names["pass"] == names["relay"] == result.stats.passes
    (root,) = [span for span in spans if span.name == "generate"]
    assert root.parent_id == ""
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    kept = [s.attributes for s in spans if s.name == "draft"]
    assert sum(about["paceline.draft.accepted"] for about in kept) >= result.stats.accepted


async def test_what_comes_back_is_what_the_collector_gets() -> None:
    """The same objects serve both; a trace that its caller did not sample goes back only."""
    async with (
        otlp_grpc() as receiver,
        running(traced_pair(receiver.endpoint, level="request")) as stack,
    ):
        results = []
        for number, is_sampled in ((1, True), (2, False)):
            with ClientTrace(number, is_sampled=is_sampled):
                stream = stack.client.generate(
                    **SETTINGS, max_tokens=20, temperature=0, return_spans=True
                )
            results.append(GenerateResult.of([chunk async for chunk in stream]))
    assert set(receiver.traces()) == {f"{1:032x}"}
    check_trace(receiver.spans, results[0], parent_id=f"{1:016x}")
    sent = {(span.span_id, span.name, span.start_ns, span.end_ns) for span in receiver.spans}
    returned = {(span.span_id, span.name, span.start_ns, span.end_ns) for span in results[0].spans}
    assert returned == sent
    assert {span.trace_id for span in results[1].spans} == {f"{2:032x}"}
    names = [{span.name for span in spans} for spans in (results[1].spans, receiver.spans)]
    assert names[0] - {"discard"} == names[1] - {"discard"}


async def test_the_last_response_of_several_answers_has_the_spans_of_all() -> None:
    async with running(traced_pair(None, level="off")) as stack:
        stream = stack.client.generate(**SETTINGS, max_tokens=6, n=3, return_spans=True)
        chunks = [chunk async for chunk in stream]
    assert all(not chunk.spans for chunk in chunks[:-1])
    names = Counter(span.name for span in chunks[-1].spans)
    assert names["token"] == 18
    assert names["session"] == 6
    assert names["generate"] == 1


async def test_workers_that_send_no_spans_delay_the_answer_by_no_more_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WorkerTraces, "take_farewells", lambda self: [])
    async with running(traced_pair(None, level="off")) as stack:
        started = asyncio.get_running_loop().time()
        result = await stack.generate(**SETTINGS, max_tokens=3, return_spans=True)
        waited = asyncio.get_running_loop().time() - started
        assert await stack.is_idle()
    assert RETURN_TIMEOUT_S <= waited < 10.0
    assert {span.service for span in result.spans} == {"paceline-orchestrator"}
