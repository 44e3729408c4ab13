"""The collector is down, or a black hole: requests, logs and exits are as if nothing were."""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.otlp_receiver import black_hole, otlp_grpc
from support.services import PATIENCE_S, running, service_process
from support.traced import PROMPT, traced_pair

from paceline.client import Client
from paceline.telemetry import tracing
from paceline.telemetry.span_export import ABORT_S

SETTINGS: dict[str, Any] = {
    "token_ids": PROMPT,
    "max_tokens": 12,
    "temperature": 0,
    "window": 8,
    "num_speculative_tokens": 4,
}
CLOSED_PORT = "http://127.0.0.1:1"


@asynccontextmanager
async def closed_port() -> Any:
    yield CLOSED_PORT


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("collector", [closed_port, black_hole])
async def test_requests_go_on_and_little_is_logged(
    collector: Any, protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """J05: twenty requests, the answers of tracing off; a stop is bounded."""
    monkeypatch.setattr(tracing, "FLUSH_S", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # no thread outlives the test
    async with running(traced_pair(None, level="off")) as stack:
        wanted = (await stack.generate(**SETTINGS)).token_ids
    async with AsyncExitStack() as cleanup:
        endpoint = await cleanup.enter_async_context(collector())
        with caplog.at_level(logging.WARNING):
            async with running(traced_pair(endpoint, protocol=protocol)) as stack:
                for _ in range(20):
                    assert (await stack.generate(**SETTINGS)).token_ids == wanted
                ending = time.perf_counter()
            elapsed = time.perf_counter() - ending
    assert elapsed < 3 * (0.2 + ABORT_S) + 5.0
    assert len(caplog.records) <= 8, caplog.text


async def test_a_full_queue_drops_spans_and_never_blocks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """J05: many more spans than a tiny queue holds, and nobody to take them."""
    monkeypatch.setattr(tracing, "FLUSH_S", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # no thread outlives the test
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    async with black_hole() as endpoint, running(traced_pair(endpoint)) as stack:
        with caplog.at_level(logging.WARNING):
            for _ in range(10):
                assert len((await stack.generate(**SETTINGS)).token_ids) == 12
    assert len([r for r in caplog.records if "Queue full" in r.getMessage()]) <= 3


async def test_a_service_ends_in_time_with_a_black_hole_for_a_collector(tmp_path: Path) -> None:
    """J05, J07: as a process, by SIGTERM, with spans that nobody took."""
    async with AsyncExitStack() as cleanup:
        endpoint = await cleanup.enter_async_context(black_hole())
        receiver = await cleanup.enter_async_context(otlp_grpc())
        workers = await cleanup.enter_async_context(running(traced_pair(receiver.endpoint)))
        base = traced_pair(endpoint)
        section = {
            **base["orchestrator"],
            "connect_timeout_s": 30.0,
            "verifiers": [worker.address for worker in workers.verifiers],
            "drafters": [worker.address for worker in workers.drafters],
        }
        process = await cleanup.enter_async_context(
            service_process("orchestrator", {**base, "orchestrator": section}, tmp_path)
        )
        async with Client(await process.wait_listening()) as client:
            async for _ in client.generate(**SETTINGS):
                pass
        process.process.terminate()
        ending = time.perf_counter()
        assert await process.wait() == 0
        assert time.perf_counter() - ending < min(PATIENCE_S, tracing.FLUSH_S + ABORT_S + 10.0)
        warnings = [line for line in process.lines if "WARNING" in line or "ERROR" in line]
        assert 1 <= len(warnings) <= 6, process.lines
        assert any("spans were lost" in line for line in warnings)
        assert not any("Traceback" in line for line in process.lines)
