"""A client-facing server that says what it is told: no model, no workers, real gRPC.

It runs on gRPC's own threads, so that blocking clients and commands may call it from the test.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from protos import common_pb2, orchestrator_pb2, orchestrator_pb2_grpc

STATS: dict[str, Any] = {
    "speculation": "on",
    "drafted": 9,
    "judged": 8,
    "accepted": 6,
    "passes": 3,
    "mean_acceptance_length": 3.0,
    "bytes_drafter": 100,
    "bytes_verifier": 200,
    "time_to_first_token_ms": 12.0,
    "total_ms": 500.0,
    "draft_ms": 30.0,
    "verify_ms": 60.0,
    "queue_ms": 1.0,
    "seed": 2**63 + 7,
    "epochs": 2,
}
TOKENS = (
    orchestrator_pb2.Token(id=10, text="One", origin=common_pb2.ORIGIN_PREFILL),
    orchestrator_pb2.Token(id=11, text=" <two", origin=common_pb2.ORIGIN_ACCEPTED),
    orchestrator_pb2.Token(id=12, text="", origin=common_pb2.ORIGIN_RECOVERED),
    orchestrator_pb2.Token(id=13, text="> 😀\n", origin=common_pb2.ORIGIN_BONUS),
    orchestrator_pb2.Token(id=14, text="[end]", origin=common_pb2.ORIGIN_AUTOREGRESSIVE),
)
TEXT = "One <two> 😀\n[end]"
ORIGINS = ["prefill", "accepted", "recovered", "bonus", "autoregressive"]


def outcome(num_tokens: int = len(TOKENS)) -> orchestrator_pb2.GenerateResponse:
    return orchestrator_pb2.GenerateResponse(
        outcome=orchestrator_pb2.Outcome(
            finish_reason=common_pb2.FINISH_REASON_LENGTH,
            usage=orchestrator_pb2.Usage(
                prompt_tokens=3, completion_tokens=num_tokens, cached_prompt_tokens=2
            ),
            stats=orchestrator_pb2.SpeculationStats(**STATS),
        )
    )


def script() -> list[orchestrator_pb2.GenerateResponse]:
    """TOKENS in two messages, then the outcome."""
    return [
        orchestrator_pb2.GenerateResponse(tokens=TOKENS[:2]),
        orchestrator_pb2.GenerateResponse(tokens=TOKENS[2:]),
        outcome(),
    ]


@dataclass
class ScriptedOrchestrator(orchestrator_pb2_grpc.OrchestratorServicer):
    """Plays `responses`; then fails with `error`, or goes on for ever when `endless`."""

    responses: Sequence[orchestrator_pb2.GenerateResponse] = field(default_factory=script)
    error: tuple[grpc.StatusCode, str] | None = None
    endless: bool = False
    status: orchestrator_pb2.StatusResponse = field(default_factory=orchestrator_pb2.StatusResponse)
    requests: list[orchestrator_pb2.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        # First of all: where the call ends while this waits to be asked, it never runs again.
        if self.endless and not context.add_callback(self.cancelled.set):
            self.cancelled.set()
        yield from self.responses
        if self.error is not None:
            context.abort(*self.error)
        if self.endless:
            while not self.cancelled.wait(0.01):
                yield orchestrator_pb2.GenerateResponse(tokens=TOKENS[:1])

    def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.error is not None:
            context.abort(*self.error)
        return self.status


@contextmanager
def serving(orchestrator: ScriptedOrchestrator) -> Iterator[ScriptedOrchestrator]:
    """Serve on a free port, which `address` then names."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        orchestrator_pb2_grpc.add_OrchestratorServicer_to_server(orchestrator, server)
        orchestrator.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield orchestrator
        finally:
            server.stop(None).wait()
