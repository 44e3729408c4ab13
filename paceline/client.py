"""The Python client: tokens as they are committed, or a whole text at once.

It needs neither torch nor Ray nor transformers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from paceline.client_span import CallSpan, Metadata
from paceline.client_values import (
    Chunk,
    GenerateFields,
    GenerateResult,
    ServiceStatus,
    Stats,
    Token,
)
from paceline.config import GrpcConfig, SecurityConfig
from paceline.errors import InvalidArgumentError, PacelineError
from paceline.generation import TopLogprob, TraceSpan, Usage, WorkerStatus
from paceline.rpc.channel import open_channel
from paceline.rpc.codec.client import decode_response, decode_status, encode_generate
from paceline.rpc.credentials import load_credentials
from paceline.rpc.status import error_from_rpc
from protos import orchestrator_pb2, orchestrator_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = [
    "DEFAULT_ADDRESS",
    "Chunk",
    "Client",
    "GenerateFields",
    "GenerateResult",
    "ServiceStatus",
    "Stats",
    "Token",
    "TopLogprob",
    "TraceSpan",
    "Usage",
    "WorkerStatus",
]

DEFAULT_ADDRESS = "127.0.0.1:50050"


class Client:
    """A client of one orchestrator.

        async with Client() as client:
            async for chunk in client.generate(prompt="Once", max_tokens=50):
                print(chunk.text, end="")

        print(Client().generate_text(prompt="Once", max_tokens=50).text)

    The keywords of `generate` and `generate_text` are those of `GenerateFields`. `timeout_s`
    bounds each call. Failures are `PacelineError`s. The channel belongs to the event loop in which
    the client was entered.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        security: SecurityConfig | None = None,
        grpc_config: GrpcConfig | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._address = address
        self._security = security or SecurityConfig()
        self._grpc_config = grpc_config or GrpcConfig()
        self._timeout_s = timeout_s
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        if self._channel is not None:
            raise RuntimeError("this client is open already")
        credentials = load_credentials(self._security)
        self._channel = open_channel(self._address, credentials, self._grpc_config)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls still running are cancelled."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    def generate(self, **fields: Unpack[GenerateFields]) -> AsyncGenerator[Chunk, None]:
        """Stream a generation; the last chunk has `finish_reason`, `usage` and `stats`.

        Leaving the iteration early, by `aclose`, `break` or cancellation, cancels the generation.
        Raises `TypeError` for an unknown keyword, at once.
        """
        request = encode_generate(**fields)
        return self._stream(request, CallSpan(self._address))

    def generate_text(self, **fields: Unpack[GenerateFields]) -> GenerateResult:
        """Generate and wait for the whole result: the blocking form of `generate`.

        It needs no open client and runs an event loop and a channel of its own, so it may be called
        from any thread that has no running loop; `RuntimeError` otherwise.
        """
        if (fields.get("n") or 1) > 1:
            raise InvalidArgumentError("n", "use generate_texts for several answers")
        return self.generate_texts(**fields)[0]

    def generate_texts(self, **fields: Unpack[GenerateFields]) -> list[GenerateResult]:
        """The same for a request of `n` answers, in the order of their index."""
        request = encode_generate(**fields)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._collect(request))
        raise RuntimeError("generate_texts blocks; inside an event loop use generate")

    async def status(self) -> ServiceStatus:
        """What the orchestrator serves, and its workers."""
        call = self._stub().Status(orchestrator_pb2.StatusRequest(), timeout=self._timeout_s)
        try:
            return decode_status(await call)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def _collect(self, request: orchestrator_pb2.GenerateRequest) -> list[GenerateResult]:
        own = Client(
            self._address,
            security=self._security,
            grpc_config=self._grpc_config,
            timeout_s=self._timeout_s,
        )
        async with own:
            span = CallSpan(self._address)
            return GenerateResult.all_of([chunk async for chunk in own._stream(request, span)])

    async def _stream(
        self, request: orchestrator_pb2.GenerateRequest, span: CallSpan
    ) -> AsyncGenerator[Chunk, None]:
        with span:
            async with aclosing(self._chunks(request, span.metadata())) as chunks:
                async for chunk in chunks:
                    span.received(chunk)
                    yield chunk

    async def _chunks(
        self, request: orchestrator_pb2.GenerateRequest, metadata: Metadata
    ) -> AsyncGenerator[Chunk, None]:
        call = self._stub().Generate(request, timeout=self._timeout_s, metadata=metadata)
        finished = False
        try:
            async for message in call:
                chunk = decode_response(message)
                finished = chunk.finish_reason is not None
                yield chunk
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            # No effect on a call that has ended.
            call.cancel()
        if not finished:
            raise PacelineError("the stream ended without an outcome")

    def _stub(self) -> orchestrator_pb2_grpc.OrchestratorStub:
        if self._channel is None:
            raise RuntimeError("the client is not open; use it in `async with`")
        return orchestrator_pb2_grpc.OrchestratorStub(self._channel)
