"""What becomes of a question to a worker whose connection is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from paceline.config import GrpcConfig
from paceline.errors import UnavailableError
from paceline.rpc.credentials import NO_CREDENTIALS
from paceline.rpc.worker_client import WorkerClient, connect_verifier
from protos import verifier_pb2_grpc


class HungVerifier(verifier_pb2_grpc.VerifierServicer):
    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[WorkerClient[Any, Any], asyncio.Task[Any]]]:
    """A client, and a question of it that the worker leaves unanswered."""
    server, hung = grpc.aio.server(), HungVerifier()
    verifier_pb2_grpc.add_VerifierServicer_to_server(hung, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = connect_verifier(f"127.0.0.1:{port}", NO_CREDENTIALS, GrpcConfig(), timeout_s=60)
    question = asyncio.create_task(client.describe())
    await asyncio.wait_for(hung.asked.wait(), 10)
    yield client, question
    await client.close()
    await server.stop(None)


async def test_a_question_fails_as_unavailable_when_the_connection_is_closed() -> None:
    """A worker that is taken away must not cancel whoever asks how it is."""
    async with asking() as (client, question):
        await client.close()
        with pytest.raises(UnavailableError, match="closed"):
            await question
        with pytest.raises(UnavailableError, match="closed"):
            await client.describe()


async def test_the_asker_can_be_cancelled_all_the_same() -> None:
    async with asking() as (_, question):
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
