"""The bearer token, checked on every call but health checks, which probes make without secrets."""

from __future__ import annotations

import hmac
from typing import Any

import grpc
import grpc.aio

from paceline.errors import UnauthenticatedError
from paceline.rpc.channel import TOKEN_HEADER
from paceline.rpc.handlers import HEALTH_PREFIX, Continuation, wrap_handler


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without the right token; installed inside `StatusInterceptor`."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or str(handler_call_details.method).startswith(HEALTH_PREFIX):
            return handler
        if self._is_authentic(handler_call_details):
            return handler
        return wrap_handler(handler, _Refusal)

    def _is_authentic(self, details: grpc.HandlerCallDetails) -> bool:
        metadata: Any = details.invocation_metadata or ()
        shown = [value for key, value in metadata if key == TOKEN_HEADER]
        # Constant time, so that answers do not tell how much of a guess was right.
        return len(shown) == 1 and hmac.compare_digest(_as_bytes(shown[0]), self._expected)


class _Refusal:
    """Stands around a handler and never lets a call in."""

    def __init__(self, _context: Any) -> None:
        pass

    async def __aenter__(self) -> None:
        raise UnauthenticatedError("missing or wrong token")

    async def __aexit__(self, *_exc_info: object) -> None:
        pass


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
