"""The client-facing gRPC service."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from orchestrator.merge import merge
from orchestrator.relay import Relay
from orchestrator.reply import Reply
from orchestrator.request import GenerationRequest, complete_request
from orchestrator.router import Router
from orchestrator.worker import Worker
from paceline.config import OrchestratorConfig
from paceline.errors import PacelineError, ResourceExhaustedError
from paceline.generation import WorkerStatus
from paceline.rpc.codec.orchestrator import (
    decode_generate,
    encode_outcome,
    encode_tokens,
    encode_worker_status,
)
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import SamplingParams
from protos import orchestrator_pb2, orchestrator_pb2_grpc

SERVICE_NAME = "paceline.v1.Orchestrator"


class OrchestratorServicer(orchestrator_pb2_grpc.OrchestratorServicer):
    """`Generate` and `Status`."""

    def __init__(
        self,
        router: Router,
        tokenizer: Tokenizer,
        grammar: GrammarEngine,
        config: OrchestratorConfig,
        *,
        max_message_bytes: int,
    ) -> None:
        self.num_sessions = 0
        self._router = router
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._config = config
        self._max_message_bytes = max_message_bytes

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        orchestrator_pb2_grpc.add_OrchestratorServicer_to_server(self, server)

    async def Generate(  # noqa: N802  (gRPC's spelling)
        self,
        request: orchestrator_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        generation = await self._decode(request)
        num_answers = generation.num_answers
        if self.num_sessions + num_answers > self._config.max_sessions:
            raise ResourceExhaustedError(
                f"{self.num_sessions} sessions are live, the limit is {self._config.max_sessions}"
            )
        self.num_sessions += num_answers
        answers = merge([self._answer(generation, index) for index in range(num_answers)])
        try:
            async with aclosing(answers):
                async for response in answers:
                    yield response
        finally:
            self.num_sessions -= num_answers

    async def _decode(self, request: orchestrator_pb2.GenerateRequest) -> GenerationRequest:
        defaults = SamplingParams(
            seed=secrets.randbits(64), acceptance=self._config.speculation.acceptance
        )
        call = decode_generate(request, defaults=defaults)
        target = self._router.verifier().info
        assert target is not None, "a connected worker has described itself"
        return await asyncio.to_thread(
            complete_request,
            call,
            tokenizer=self._tokenizer,
            grammar=self._grammar,
            target=target,
            config=self._config,
            max_message_bytes=self._max_message_bytes,
        )

    async def _answer(
        self, generation: GenerationRequest, index: int
    ) -> AsyncGenerator[orchestrator_pb2.GenerateResponse, None]:
        sampling = generation.answer_sampling(index)
        relay = Relay(self._router, generation.prompt, sampling, generation.settings)
        reply = Reply(generation, self._tokenizer)
        try:
            relay.start()
            async for verdict in relay.verdicts():
                prompt_tokens = reply.prompt_tokens(relay.take_prompt_logprobs())
                tokens = reply.add(verdict)
                if tokens or prompt_tokens:
                    yield encode_tokens(tokens, index=index, prompt_tokens=prompt_tokens)
                if reply.finish_reason is not None:
                    break
                relay.taken(reply.num_taken)
            relay.close()  # a stop string ends the work before the client hears of it
            yield encode_outcome(reply.outcome(relay), index=index)
        finally:
            relay.close()

    async def Status(  # noqa: N802
        self, request: orchestrator_pb2.StatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> orchestrator_pb2.StatusResponse:
        workers = await asyncio.gather(*(_status(worker) for worker in self._router.workers))
        target = next((w.info for w in self._router.verifiers if w.info is not None), None)
        return orchestrator_pb2.StatusResponse(
            workers=[encode_worker_status(worker) for worker in workers],
            live_sessions=self.num_sessions,
            model="" if target is None else target.model,
            context_length=0 if target is None else target.context_length,
        )


async def _status(worker: Worker[Any, Any]) -> WorkerStatus:
    info, detail = worker.info, "draining" if worker.is_draining else worker.problem
    if worker.is_connected:
        try:
            info = await worker.describe()
        except PacelineError as error:
            detail = str(error)
    return WorkerStatus(worker.role, worker.address, worker.is_connected, detail, info)
