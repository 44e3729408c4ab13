"""A caller's view of one worker: its unary calls, and links to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from paceline.config import GrpcConfig
from paceline.errors import PacelineError, UnavailableError
from paceline.rpc.channel import open_channel
from paceline.rpc.client_link import ClientLink
from paceline.rpc.codec.describe import decode_worker_info
from paceline.rpc.codec.drafter import DRAFTER_LINK
from paceline.rpc.codec.verifier import VERIFIER_LINK
from paceline.rpc.credentials import Credentials
from paceline.rpc.status import error_from_rpc
from paceline.rpc.wire import LinkWire
from paceline.types import (
    DrafterEvent,
    DrafterReply,
    SessionError,
    VerifierEvent,
    VerifierReply,
    WorkerInfo,
)
from protos import common_pb2
from protos.drafter_pb2_grpc import DrafterStub
from protos.verifier_pb2_grpc import VerifierStub

E = TypeVar("E")
R = TypeVar("R")

CLOSED = "the connection to the worker was closed"


@dataclass(frozen=True, slots=True)
class VocabularyTable:
    """A worker's id -> string table as UTF-8 bytes by id, and its special ids."""

    tokens: list[bytes]
    special_token_ids: Mapping[str, int]


class WorkerClient(Generic[E, R]):
    """A channel to one worker. Make it inside the running event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        stub: Any,
        link_method: str,
        wire: LinkWire[E, R],
        *,
        max_message_bytes: int,
        timeout_s: float,
        delay_s: float = 0.0,
    ) -> None:
        self._channel = channel
        self._stub = stub
        self._link_method = link_method
        self._wire = wire
        self._max_message_bytes = max_message_bytes
        self._timeout_s = timeout_s
        self._delay_s = delay_s
        self._is_closed = False

    async def describe(self) -> WorkerInfo:
        """Ask the worker what it is and how full. Raises `PacelineError`."""
        return decode_worker_info(await self._call("Describe", common_pb2.DescribeRequest()))

    async def vocabulary(self) -> VocabularyTable:
        """The worker's id -> string table. Raises `PacelineError`."""
        response = await self._call("Vocabulary", common_pb2.VocabularyRequest())
        return VocabularyTable(list(response.tokens), dict(response.special_token_ids))

    async def open_link(
        self,
        on_reply: Callable[[R | SessionError, int], None],
        on_closed: Callable[[PacelineError | None], None],
    ) -> ClientLink[E, R]:
        """A started link; see `ClientLink`. Raises `PacelineError` if the worker refuses it."""
        link: ClientLink[E, R] = ClientLink(
            getattr(self._stub, self._link_method),
            wire=self._wire,
            on_reply=on_reply,
            on_closed=on_closed,
            max_message_bytes=self._max_message_bytes,
            delay_s=self._delay_s,
        )
        await link.start(self._timeout_s)
        return link

    async def close(self) -> None:
        """End the channel; what is being asked fails with `UnavailableError`."""
        self._is_closed = True
        await self._channel.close(None)

    async def _call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        except grpc.aio.UsageError as error:  # gRPC's word for a channel that was closed before
            raise UnavailableError(CLOSED) from error
        except asyncio.CancelledError as error:  # and for one that is closed meanwhile
            if not self._is_closed or _is_cancelled():
                raise
            raise UnavailableError(CLOSED) from error


def _is_cancelled() -> bool:
    """Whether the running task itself is to end; Python 3.10 cannot tell."""
    task = asyncio.current_task()
    return task is not None and getattr(task, "cancelling", lambda: 0)() > 0


def connect_drafter(
    address: str,
    credentials: Credentials,
    limits: GrpcConfig,
    *,
    timeout_s: float,
    delay_s: float = 0.0,
) -> WorkerClient[DrafterEvent, DrafterReply]:
    """A client of the drafter at `address`; nothing is sent yet. `delay_s`: see `ClientLink`."""
    channel = open_channel(address, credentials, limits)
    return WorkerClient(
        channel,
        DrafterStub(channel),
        "Draft",
        DRAFTER_LINK,
        max_message_bytes=limits.max_message_bytes,
        timeout_s=timeout_s,
        delay_s=delay_s,
    )


def connect_verifier(
    address: str,
    credentials: Credentials,
    limits: GrpcConfig,
    *,
    timeout_s: float,
    delay_s: float = 0.0,
) -> WorkerClient[VerifierEvent, VerifierReply]:
    """A client of the verifier at `address`; nothing is sent yet. `delay_s`: see `ClientLink`."""
    channel = open_channel(address, credentials, limits)
    return WorkerClient(
        channel,
        VerifierStub(channel),
        "Verify",
        VERIFIER_LINK,
        max_message_bytes=limits.max_message_bytes,
        timeout_s=timeout_s,
        delay_s=delay_s,
    )
