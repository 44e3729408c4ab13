"""The client-facing gRPC service."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import grpc.aio

from orchestrator.ledger import Ledger
from orchestrator.merge import merge
from orchestrator.relay import Relay
from orchestrator.reply import Reply
from orchestrator.request import GenerationRequest, complete_request
from orchestrator.request_trace import RequestTrace, request_trace
from orchestrator.router import Router
from orchestrator.worker import Worker
from paceline.config import OrchestratorConfig
from paceline.errors import PacelineError, ResourceExhaustedError
from paceline.generation import WorkerStatus
from paceline.rpc.codec.orchestrator import (
    decode_generate,
    encode_outcome,
    encode_session_status,
    encode_tokens,
    encode_worker_status,
)
from paceline.rpc.codec.spans import carrier_of, encode_spans
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import SamplingParams
from paceline.telemetry.orchestrator_metrics import OrchestratorMetrics, OrchestratorState
from paceline.telemetry.tracing import Tracing
from paceline.waiting import within
from protos import orchestrator_pb2, orchestrator_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE_NAME = "paceline.v1.Orchestrator"
MAX_STATUSES = 256
"""Live answers that a `Status` answer names."""
STATUS_TIMEOUT_S = 2.0
"""Who asks because a worker hangs should hear which one before it gives up asking."""


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
        metrics: OrchestratorMetrics,
        tracing: Tracing | None = None,
    ) -> None:
        self.num_sessions = 0
        self._metrics = metrics
        self._ledger = Ledger(metrics)
        self._router = router
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._config = config
        self._max_message_bytes = max_message_bytes
        self._tracing = tracing or Tracing("paceline-orchestrator")
        self._traces: set[RequestTrace] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        orchestrator_pb2_grpc.add_OrchestratorServicer_to_server(self, server)

    async def Generate(  # noqa: N802  (gRPC's spelling)
        self,
        request: orchestrator_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        metadata = carrier_of(context.invocation_metadata())
        peer = context.peer()
        with request_trace(
            self._tracing, metadata, self._traces, returns_spans=request.return_spans
        ) as trace:
            async with aclosing(self._generate(request, peer, trace)) as responses:
                async for response in responses:
                    if trace is not None and trace.ends_with(
                        is_outcome=response.HasField("outcome")
                    ):
                        spans = await trace.returned()
                        limit = self._max_message_bytes // 2
                        response.spans.extend(encode_spans(spans, max_bytes=limit))
                    with self._patience():
                        yield response
                    if trace is not None and response.tokens:
                        trace.delivered(response.index, [token.text for token in response.tokens])

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Cancel the call of a client that does not take a response: it holds KV pages meanwhile.

        A response is taken once the transport has room for it.
        """
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call as a task"
        limit_s = self._config.slow_client_timeout_s
        timer = asyncio.get_running_loop().call_later(limit_s, self._give_up, task)
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self, call: asyncio.Task[Any]) -> None:
        logger.warning(
            "no response was taken for %g s, the call ends (orchestrator.slow_client_timeout_s)",
            self._config.slow_client_timeout_s,
        )
        call.cancel()

    def end_traces(self) -> None:
        """End the traces of requests that a stop has cut off: what ends them may come too late."""
        for trace in list(self._traces):
            trace.end("CANCELLED: the server has stopped")

    async def _generate(
        self, request: orchestrator_pb2.GenerateRequest, peer: str, trace: RequestTrace | None
    ) -> AsyncGenerator[orchestrator_pb2.GenerateResponse, None]:
        self._metrics.peers["client"].received(request.ByteSize())
        with self._ledger.admission():
            self._check_room(1)  # nothing is tokenised for one that is refused in any case
            generation = await self._decode(request, trace)
            num_answers = generation.num_answers
            self._check_room(num_answers)
        self.num_sessions += num_answers
        answers = merge(
            [self._answer(generation, index, peer, trace) for index in range(num_answers)],
            at_once=self._num_at_once(generation),
        )
        try:
            async with aclosing(answers):
                async for response in answers:
                    self._metrics.peers["client"].sent(response.ByteSize())
                    yield response
        finally:
            self.num_sessions -= num_answers

    def _check_room(self, num_answers: int) -> None:
        if self.num_sessions + num_answers > self._config.max_sessions:
            raise ResourceExhaustedError(
                f"{self.num_sessions} sessions are live, the limit is {self._config.max_sessions}"
            )

    def _num_at_once(self, generation: GenerationRequest) -> int:
        """How many answers of a request the KV pools have room for: the others begin when one of
        these has ended, rather than wait for pages that their own siblings hold."""
        num_tokens = len(generation.prompt) + generation.sampling.max_tokens
        infos = [worker.info for worker in self._router.verifiers if worker.info is not None]
        return max(
            1,
            sum(
                info.kv_pages_total // -(-num_tokens // info.kv_page_size)
                for info in infos
                if info.kv_page_size
            ),
        )

    async def _decode(
        self, request: orchestrator_pb2.GenerateRequest, trace: RequestTrace | None
    ) -> GenerationRequest:
        defaults = SamplingParams(
            seed=secrets.randbits(64), acceptance=self._config.speculation.acceptance
        )
        call = decode_generate(request, defaults=defaults)
        target = self._router.verifier().info
        assert target is not None, "a connected worker has described itself"
        generation = await asyncio.to_thread(
            complete_request,
            call,
            tokenizer=self._tokenizer,
            grammar=self._grammar,
            target=target,
            config=self._config,
            max_message_bytes=self._max_message_bytes,
        )
        if trace is not None:
            trace.completed(call, generation, target.model)
        return generation

    async def _answer(
        self, generation: GenerationRequest, index: int, peer: str, request: RequestTrace | None
    ) -> AsyncGenerator[orchestrator_pb2.GenerateResponse, None]:
        sampling = generation.answer_sampling(index)
        trace = None if request is None else request.answer(index, sampling.max_tokens)
        relay = Relay(self._router, generation.prompt, sampling, generation.settings, trace)
        reply = Reply(generation, self._tokenizer)
        with self._ledger.answer(generation, relay, reply, peer=peer) as account:
            try:
                relay.start()
                async for verdict in relay.verdicts():
                    for piece in reply.prompt_tokens(relay.take_prompt_logprobs()):
                        yield encode_tokens((), index=index, prompt_tokens=piece)
                        await asyncio.sleep(0)  # let the others have their turn
                    tokens = reply.add(verdict)
                    account.delivers(tokens)
                    if trace is not None:
                        trace.taken(verdict, tokens)
                    if tokens:
                        yield encode_tokens(tokens, index=index)
                    if reply.finish_reason is not None:
                        break
                    relay.taken(reply.num_taken)
                relay.close()  # a stop string ends the work before the client hears of it
                outcome = reply.outcome(relay)
                if request is not None:
                    request.finished(index, outcome)
                yield encode_outcome(outcome, index=index)
            finally:
                relay.close()

    def state(self) -> OrchestratorState:
        """How things are now; called from any thread."""
        roles: dict[str, Sequence[Worker[Any, Any]]] = {
            "verifier": self._router.verifiers,
            "drafter": self._router.drafters,
        }
        return OrchestratorState(
            live_sessions=self.num_sessions,
            workers={role: len(workers) for role, workers in roles.items()},
            connected_workers={
                role: sum(worker.is_connected for worker in workers)
                for role, workers in roles.items()
            },
        )

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
            counters=self._metrics.counters,
            sessions=[encode_session_status(one) for one in self._ledger.statuses(MAX_STATUSES)],
        )


async def _status(worker: Worker[Any, Any]) -> WorkerStatus:
    info, detail = worker.info, "draining" if worker.is_draining else worker.problem
    if worker.is_connected:
        try:
            info = await within(worker.describe(), STATUS_TIMEOUT_S)
        except asyncio.TimeoutError:
            detail = f"did not say within {STATUS_TIMEOUT_S:g} s how it is"
        except PacelineError as error:
            detail = str(error)
    return WorkerStatus(worker.role, worker.address, worker.is_connected, detail, info)
