"""Starts the verifier service: loads the target model, then serves it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from paceline.config import Config, ModelConfig
from paceline.rpc.codec.verifier import VERIFIER_LINK
from paceline.rpc.worker import WorkerCore, WorkerService, start_worker
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.short_thread import in_short_thread
from paceline.runtime.tokenizer import Tokenizer
from paceline.runtime.warm_up import warm_up
from paceline.runtime.worker_model import load_worker_model
from paceline.telemetry.tracing import Tracing, start_tracing
from verifier_service.servicer import SERVICE_NAME, VerifierServicer
from verifier_service.verifier import Verifier


async def start(config: Config) -> WorkerService:
    """Load and serve. Raises `StartupError` when the configuration cannot be served."""
    section = config.verifier
    loaded = await in_short_thread(load_worker_model, "verifier", section.model, section.runtime)
    grammar = GrammarEngine(loaded.tokenizer)
    await in_short_thread(grammar.prepare)
    tracing = start_tracing(config.telemetry.traces, "verifier")
    verifier = Verifier(loaded.runner, section, loaded.info, grammar, tracing)
    warms_up = isinstance(section.model, ModelConfig)
    return await serve(
        config,
        verifier,
        loaded.tokenizer,
        tracing,
        warm_up=partial(warm_up, loaded.runner) if warms_up else None,
    )


async def serve(
    config: Config,
    verifier: Verifier,
    tokenizer: Tokenizer,
    tracing: Tracing | None = None,
    *,
    warm_up: Callable[[], None] | None = None,
) -> WorkerService:
    """Serve a verifier whose model is loaded already; `tracing`, if given, ends with it.

    `warm_up` is run by the engine's thread before the first request.
    """
    core = WorkerCore(
        verifier,
        tokenizer,
        wire=VERIFIER_LINK,
        max_message_bytes=config.grpc.max_message_bytes,
    )
    return await start_worker(
        config,
        config.verifier.listen,
        core,
        service=SERVICE_NAME,
        add_to_server=VerifierServicer(core).add_to,
        tracing=tracing,
        warm_up=warm_up,
    )
