"""The standard health service, served: its watchers hear of a stop before the server is gone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from grpc_health.v1 import health, health_pb2


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc,name-defined]
    """Health by service name. After `enter_graceful_shutdown` a watcher that was told SERVING is
    told NOT_SERVING, and then its call ends."""

    def __init__(self) -> None:
        super().__init__()
        self._stopping = False
        self._trusting: set[_Watcher] = set()
        self._all_told = asyncio.Event()
        self._all_told.set()

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> None:
        watcher = _Watcher(context, self)
        # A handler that returns has not yet been sent its status; grpc calls back when it has.
        context.add_done_callback(lambda _context: self.forget(watcher))
        with contextlib.suppress(_Told):
            await super().Watch(request, watcher)

    async def enter_graceful_shutdown(self) -> None:
        """Say NOT_SERVING of everything, for good."""
        self._stopping = True
        await super().enter_graceful_shutdown()

    async def wait_told(self) -> None:
        """Return once no watcher believes that the server serves; meant for after a shutdown."""
        await self._all_told.wait()

    def trust(self, watcher: _Watcher) -> None:
        """A watcher believes that the server serves."""
        self._trusting.add(watcher)
        self._all_told.clear()

    def forget(self, watcher: _Watcher) -> None:
        """A watcher has left, or knows better by now."""
        self._trusting.discard(watcher)
        if not self._trusting:
            self._all_told.set()

    @property
    def stopping(self) -> bool:
        """Whether the shutdown has begun."""
        return self._stopping


class _Told(Exception):  # noqa: N818  (a way out of the library's endless loop, no error)
    """A watcher has heard of the stop."""


class _Watcher:
    """A watch's context, which keeps what its client was told last."""

    def __init__(self, context: Any, servicer: HealthServicer) -> None:
        self._context = context
        self._servicer = servicer

    async def write(self, response: health_pb2.HealthCheckResponse) -> None:
        serving = response.status == health_pb2.HealthCheckResponse.SERVING
        if serving:
            self._servicer.trust(self)
        await self._context.write(response)
        if self._servicer.stopping and not serving:
            raise _Told
        if not serving:
            self._servicer.forget(self)
