"""The standard health service, asked by a client."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.config import GrpcConfig, SecurityConfig
from paceline.errors import UnavailableError
from paceline.rpc.channel import open_channel
from paceline.rpc.credentials import load_credentials
from paceline.rpc.status import error_from_rpc

_SERVING = health_pb2.HealthCheckResponse.SERVING


async def wait_serving(
    address: str, *, security: SecurityConfig | None = None, timeout_s: float
) -> None:
    """Return once the server says that it serves.

    Raises `DeadlineExceededError` after `timeout_s`, `UnavailableError` where nothing listens or
    a server is on its way out.
    """
    channel = open_channel(address, load_credentials(security or SecurityConfig()), GrpcConfig())
    try:
        stub = health_pb2_grpc.HealthStub(channel)
        async for response in stub.Watch(health_pb2.HealthCheckRequest(), timeout=timeout_s):
            if response.status == _SERVING:
                return
        raise UnavailableError(f"the server at {address} is shutting down")
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    finally:
        await channel.close(None)
