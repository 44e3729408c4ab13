"""The drafter's gRPC face."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from paceline.rpc.worker import WorkerCore
from paceline.types import DrafterEvent, DrafterReply
from protos import common_pb2, drafter_pb2, drafter_pb2_grpc

SERVICE_NAME = "paceline.v1.Drafter"


class DrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """`Draft` links, and what the drafter is."""

    def __init__(self, core: WorkerCore[DrafterEvent, DrafterReply]) -> None:
        self._core = core

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        drafter_pb2_grpc.add_DrafterServicer_to_server(self, server)

    async def Draft(  # noqa: N802  (gRPC's spelling)
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        await self._core.serve(request_iterator, context)

    async def Describe(  # noqa: N802
        self, request: common_pb2.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> common_pb2.WorkerDescription:
        return self._core.describe()

    async def Vocabulary(  # noqa: N802
        self, request: common_pb2.VocabularyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> common_pb2.VocabularyResponse:
        return self._core.vocabulary()
