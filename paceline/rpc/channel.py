"""Channels to a service: limits, keepalive, TLS, and the bearer token on every call."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from paceline.config import GrpcConfig
from paceline.rpc.credentials import Credentials
from paceline.rpc.limits import channel_options

TOKEN_HEADER = "authorization"


def open_channel(address: str, credentials: Credentials, limits: GrpcConfig) -> grpc.aio.Channel:
    """A channel that belongs to the running event loop and must be closed on it.

    It connects with the first call, and again by itself after a break. Raises `RuntimeError`
    outside a loop.
    """
    # grpc would bind the channel to whatever loop it finds, and fail at the first call.
    asyncio.get_running_loop()
    channel_credentials = credentials.channel_credentials()
    options: list[tuple[str, Any]] = [*channel_options(limits)]
    if channel_credentials is not None and credentials.server_name is not None:
        options.append(("grpc.ssl_target_name_override", credentials.server_name))
    channel = (
        grpc.aio.insecure_channel(address, options=options)
        if channel_credentials is None
        else grpc.aio.secure_channel(address, channel_credentials, options=options)
    )
    return channel if credentials.token is None else _TokenChannel(channel, credentials.token)


class _TokenChannel(grpc.aio.Channel):
    """A channel whose every call carries the token as metadata.

    Not grpc's call credentials, which plain text on loopback refuses, and not its interceptors,
    which put a queue and a task of their own into each stream.
    """

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._channel = channel
        self._metadata = ((TOKEN_HEADER, f"Bearer {token}"),)

    async def __aenter__(self) -> grpc.aio.Channel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._channel.__aexit__(exc_type, exc_val, exc_tb)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.stream_stream(*args, **kwargs))

    def _with_token(self, method: Any) -> Any:
        def call(*args: Any, metadata: Any = (), **kwargs: Any) -> Any:
            return method(*args, metadata=(*(metadata or ()), *self._metadata), **kwargs)

        return call
