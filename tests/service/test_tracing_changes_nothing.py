"""J02: calls end with the same statuses and chunks with tracing on and off, and so do losses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.otlp_receiver import Receiver, otlp_grpc
from support.services import running, take, until
from support.traced import PROMPT, by_name, only, traced_pair

from orchestrator.servicer import OrchestratorServicer
from paceline.errors import InvalidArgumentError, PacelineError, SessionLostError

SETTINGS: dict[str, Any] = {"token_ids": PROMPT, "window": 8, "num_speculative_tokens": 4}
LEVELS = ("off", "token")


async def outcomes(level: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a client sees of a whole answer, a refused one, and one that the server cancels."""
    tasks: list[asyncio.Task[Any]] = []
    generate = OrchestratorServicer.Generate

    async def noted(self: Any, request: Any, context: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        async for response in generate(self, request, context):
            yield response

    seen: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(OrchestratorServicer, "Generate", noted)
        document = traced_pair(receiver.endpoint, level=level, target_ms=5.0)
        async with running(document) as stack:
            whole = await stack.generate(**SETTINGS, max_tokens=30, temperature=1.0, seed=4)
            seen += [whole.token_ids, whole.finish_reason]
            with pytest.raises(InvalidArgumentError) as refused:
                await stack.generate(**SETTINGS, max_tokens=10**6)
            seen.append(str(refused.value))
            stream = stack.client.generate(**SETTINGS, max_tokens=400, temperature=0)
            await take(stream, 2)
            tasks[-1].cancel()
            with pytest.raises(SessionLostError) as cancelled:
                async for _ in stream:
                    pass
            seen.append(str(cancelled.value))
            await until(stack.is_idle)
    return seen


async def test_statuses_and_chunks_are_the_same_with_tracing_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G02 and J02; a cancelled or refused request has its span, with its status."""
    async with otlp_grpc() as receiver:
        seen = [await outcomes(level, receiver, monkeypatch) for level in LEVELS]
    assert seen[0] == seen[1]
    whole, refused, cancelled = sorted(receiver.named("generate"), key=lambda s: s.start_ns)
    assert whole.error == ""
    assert refused.error.startswith("INVALID_ARGUMENT: max_tokens")
    assert cancelled.error.startswith("CANCELLED")


async def test_a_lost_verifier_is_a_span_and_ends_all_others() -> None:
    """With nowhere to go the request fails; its trace says when and why, on both sides."""
    async with otlp_grpc() as receiver:
        document = traced_pair(
            receiver.endpoint, target_ms=5.0, sections={"orchestrator": {"failover_timeout_s": 0.1}}
        )
        async with running(document) as stack:
            stream = stack.client.generate(**SETTINGS, max_tokens=400, temperature=0)
            await take(stream, 2)
            await stack.verifiers[0].stop(0.0)
            with pytest.raises(PacelineError, match="is lost"):
                async for _ in stream:
                    pass
    (spans,) = receiver.traces().values()
    root = only(spans, "generate")
    assert root.error.startswith("UNAVAILABLE")
    lost = only(spans, "lost")
    assert lost.attributes == {"paceline.role": "verifier"}
    assert "is lost" in lost.error
    sessions = {span.service: span for span in by_name(spans, "session")}
    assert "link" in sessions["paceline-verifier"].error
    assert sessions["paceline-drafter"].error == ""


async def test_a_lost_drafter_leaves_its_mark_and_the_answer_goes_on() -> None:
    async with (
        otlp_grpc() as receiver,
        running(traced_pair(receiver.endpoint, target_ms=5.0)) as stack,
    ):
        stream = stack.client.generate(**SETTINGS, max_tokens=60, temperature=0)
        await take(stream, 2)
        await stack.drafters[0].stop(0.0)
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].finish_reason == "length"
    (spans,) = receiver.traces().values()
    assert only(spans, "generate").error == ""
    assert only(spans, "lost").attributes == {"paceline.role": "drafter"}
    assert len(by_name(spans, "token")) == 60


async def test_an_orchestrator_that_stops_ends_the_spans_of_what_it_cuts_off() -> None:
    """J07: without grace, in mid-stream."""
    async with (
        otlp_grpc() as receiver,
        running(traced_pair(receiver.endpoint, target_ms=5.0)) as stack,
    ):
        stream = stack.client.generate(**SETTINGS, max_tokens=400, temperature=0)
        await take(stream, 2)
        await stack.orchestrator.stop(0.0)
        with pytest.raises(PacelineError):
            async for _ in stream:
                pass
    (spans,) = receiver.traces().values()
    assert only(spans, "generate").error.startswith("CANCELLED")
    assert len(by_name(spans, "session")) == 2
