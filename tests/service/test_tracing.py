"""Tracing over the wire: real services, a real collector."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.otlp_receiver import ClientTrace, Receiver, otlp_grpc, otlp_http
from support.services import Stack, collect, running, service_process, take, until
from support.traced import (
    PROMPT,
    by_name,
    check_durations,
    check_trace,
    only,
    traced_pair,
)

from paceline.client import Client, GenerateResult

SETTINGS: dict[str, Any] = {"token_ids": PROMPT, "window": 8, "num_speculative_tokens": 4}


async def traced(stack: Stack, number: int, **fields: Any) -> GenerateResult:
    """A generation inside the caller's trace `number`."""
    with ClientTrace(number):
        stream = stack.client.generate(**{**SETTINGS, **fields})
    return GenerateResult.of([chunk async for chunk in stream])


def checked(receiver: Receiver, number: int, result: GenerateResult) -> None:
    spans = receiver.traces()[f"{number:032x}"]
    check_trace(spans, result, parent_id=f"{number:016x}")


async def test_one_request_is_one_trace_over_three_processes_and_sigterm_loses_nothing(
    tmp_path: Path,
) -> None:
    """J01, J07: right parents, token spans and splits; the batch is sent though all end at once."""
    async with AsyncExitStack() as cleanup:
        receiver = await cleanup.enter_async_context(otlp_grpc())
        base = traced_pair(receiver.endpoint)
        processes = []
        for module in ("verifier_service", "drafter_service"):
            process = service_process(module, base, tmp_path)
            processes.append(await cleanup.enter_async_context(process))
        verifier, drafter = [await process.wait_listening() for process in processes]
        section = {
            **base["orchestrator"],
            "connect_timeout_s": 30.0,
            "verifiers": [verifier],
            "drafters": [drafter],
        }
        process = await cleanup.enter_async_context(
            service_process("orchestrator", {**base, "orchestrator": section}, tmp_path)
        )
        processes.append(process)
        async with Client(await process.wait_listening()) as client:
            with ClientTrace(7):
                stream = client.generate(**SETTINGS, max_tokens=40, temperature=1.0, seed=5)
            result = GenerateResult.of([chunk async for chunk in stream])
        for process in reversed(processes):
            process.process.terminate()
        assert [await process.wait() for process in processes] == [0, 0, 0]
        checked(receiver, 7, result)
        spans = receiver.spans
        assert len({span.instance for span in spans}) == 3
        accepted = [t for t in by_name(spans, "token") if "paceline.block" in t.attributes]
        bases = {span.attributes["paceline.base"] for span in by_name(spans, "draft")}
        assert {token.attributes["paceline.block"] for token in accepted} <= bases
        for token in accepted:
            assert 0 < token.attributes["paceline.token.draft_prob"] <= 1
            assert 0 < token.attributes["paceline.token.target_prob"] <= 1


async def test_requests_that_run_together_never_mix() -> None:
    """J01, J09: eight at once, in passes that serve several; each trace has its own spans only."""
    async with otlp_grpc() as receiver, running(traced_pair(receiver.endpoint)) as stack:
        fields: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
        running_together = [
            traced(stack, n, **{**fields, "token_ids": [*PROMPT, n]}) for n in range(1, 9)
        ]
        results = await asyncio.gather(*running_together)
        await receiver.until(lambda: len(receiver.named("session")) == 16)
        await receiver.until(lambda: len(receiver.named("generate")) == 8)
        traces = receiver.traces()
        assert len(traces) == 8
        passes = {span.span_id: span for span in receiver.named("pass")}
        for number, result in enumerate(results, start=1):
            spans = traces[f"{number:032x}"]
            root = only(spans, "generate")
            assert root.parent_id == f"{number:016x}"
            assert {s.parent_id for s in spans if s is not root} == {root.span_id}
            tokens = by_name(spans, "token")
            assert [t.attributes["paceline.token.id"] for t in tokens] == result.token_ids
            check_durations(tokens, root)
            assert len(by_name(spans, "verify")) == result.stats.passes
            for verify in by_name(spans, "verify"):
                ((trace_id, span_id),) = verify.links
                assert passes[span_id].trace_id == trace_id
                assert (verify.trace_id, verify.span_id) in passes[span_id].links
        shared = [span for span in passes.values() if len(span.links) > 1]
        assert any(len({trace for trace, _ in span.links}) > 1 for span in shared)


async def test_cancelled_streams_leave_no_open_span_and_nothing_in_the_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """G01 with tracing on: fifty of them, each at another point of its life."""
    document = traced_pair(None, target_ms=1.0)
    async with otlp_grpc() as receiver:
        document["telemetry"]["traces"]["endpoint"] = receiver.endpoint
        async with running(document) as stack:
            with caplog.at_level(logging.WARNING):
                for number in range(1, 51):
                    with ClientTrace(number):
                        stream = stack.client.generate(**SETTINGS, max_tokens=500, temperature=0)
                    await take(stream, number % 4 or 1)
                    await stream.aclose()
                await until(stack.is_idle, what="everything is freed")
        assert not caplog.records, caplog.text
        traces = receiver.traces()
        assert len(traces) == 50
        for spans in traces.values():
            root = only(spans, "generate")
            assert root.error.startswith("CANCELLED")
            assert root.attributes["error.type"] == "CANCELLED"
            assert len(by_name(spans, "session")) == len(by_name(spans, "queue")) == 2
            assert {span.parent_id for span in spans if span is not root} == {root.span_id}


@pytest.mark.parametrize("level", ["request", "block", "token"])
async def test_a_level_says_how_fine_the_spans_are(level: str) -> None:
    """And a stop, without a signal, sends what is queued (J07)."""
    async with otlp_http() as receiver:
        document = traced_pair(receiver.endpoint, level=level, protocol="http")
        async with running(document) as stack:
            result = await traced(stack, 3, max_tokens=20, temperature=0)
    names = {span.name for span in receiver.spans}
    outline = {"generate", "prepare", "queue", "prefill", "session"}
    blocks = {"relay", "draft", "verify", "pass"}
    expected = outline | (blocks if level != "request" else set())
    expected |= {"token"} if level == "token" else set()
    assert names - {"discard"} == expected
    assert only(receiver.spans, "generate").attributes["paceline.level"] == level
    assert result.stats.drafted > 0


async def test_a_caller_decides_whether_its_request_is_sampled_and_the_ratio_where_it_did_not() -> (
    None
):
    async with otlp_grpc() as receiver:
        async with running(traced_pair(receiver.endpoint, sampling_ratio=0.0)) as stack:
            await collect(stack.client, **SETTINGS, max_tokens=4)
            with ClientTrace(4, is_sampled=False):
                stream = stack.client.generate(**SETTINGS, max_tokens=4)
            await take(stream, 1)
            await stream.aclose()
            await traced(stack, 5, max_tokens=4)
        assert set(receiver.traces()) == {f"{5:032x}"}


async def test_a_long_answer_stays_small_and_says_what_was_left_out() -> None:
    """J08: 2,000 tokens from 2,000; every span below 8 KB and 40 attributes."""
    async with otlp_grpc() as receiver:
        document = traced_pair(
            receiver.endpoint,
            acceptance=1.0,
            target_ms=0.0,
            draft_ms=0.0,
            record_text=True,
            max_token_spans=128,
        )
        async with running(document) as stack:
            result = await traced(
                stack,
                9,
                token_ids=PROMPT * 100,
                max_tokens=2000,
                temperature=0,
                window=32,
                num_speculative_tokens=16,
            )
    spans = receiver.spans
    root = only(spans, "generate")
    tokens = sorted(by_name(spans, "token"), key=lambda s: s.start_ns)
    tokens.sort(key=lambda span: span.attributes["paceline.token.index"])
    assert len(tokens) <= 128
    assert sum(t.attributes.get("paceline.token.count", 1) for t in tokens) == 2000
    assert root.attributes["paceline.token_spans.left_out"] == 2000 - len(tokens)
    check_durations(tokens, root)
    assert root.attributes["gen_ai.usage.input_tokens"] == 2000
    assert root.attributes["gen_ai.usage.output_tokens"] == 2000
    assert len(spans) < 128 + 5 * result.stats.passes + 20
    drafts = [span.attributes for span in by_name(spans, "draft")]
    wasted = {
        about["paceline.draft.state"] for about in drafts if about["paceline.draft.discarded"]
    }
    assert wasted <= {"unsent"}, "all are right, and the fate of the last ones is known too"
    assert max(span.num_bytes for span in spans) < 8192
    assert max(len(span.attributes) for span in spans) < 40


async def test_text_is_recorded_only_when_switched_on() -> None:
    for record_text in (False, True):
        async with otlp_grpc() as receiver:
            document = traced_pair(receiver.endpoint, record_text=record_text)
            async with running(document) as stack:
                result = await stack.generate(prompt="the secret", max_tokens=30, temperature=0)
        recorded = repr([span.attributes for span in receiver.spans])
        assert ("the secret" in recorded) is record_text
        keys = {key for span in receiver.spans for key in span.attributes}
        texts = {"gen_ai.input.messages", "gen_ai.output.messages", "paceline.token.text"}
        assert texts & keys == (texts if record_text else set())
        if record_text:
            written = [
                s.attributes["paceline.token.text"] for s in by_name(receiver.spans, "token")
            ]
            assert "".join(written) == result.text


async def test_several_answers_share_a_trace_and_their_tokens_name_them() -> None:
    async with otlp_grpc() as receiver:
        async with running(traced_pair(receiver.endpoint)) as stack:
            stream = stack.client.generate(**SETTINGS, max_tokens=8, temperature=1.0, n=3)
            results = GenerateResult.all_of([chunk async for chunk in stream])
        (spans,) = receiver.traces().values()
        for index, result in enumerate(results):
            own = [s for s in by_name(spans, "token") if s.attributes["paceline.answer"] == index]
            assert [s.attributes["paceline.token.id"] for s in own] == result.token_ids
        root = only(spans, "generate")
        assert root.attributes["gen_ai.request.choice.count"] == 3
        assert root.attributes["gen_ai.usage.output_tokens"] == 24
        assert len(root.attributes["gen_ai.response.finish_reasons"]) == 3
