"""Starts the verifier service: loads the target model, then serves it."""

from __future__ import annotations

from paceline.config import Config
from paceline.rpc.codec.verifier import VERIFIER_LINK
from paceline.rpc.worker import WorkerCore, WorkerService, start_worker
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.short_thread import in_short_thread
from paceline.runtime.tokenizer import Tokenizer
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
    return await serve(config, verifier, loaded.tokenizer, tracing)


async def serve(
    config: Config, verifier: Verifier, tokenizer: Tokenizer, tracing: Tracing | None = None
) -> WorkerService:
    """Serve a verifier whose model is loaded already; `tracing`, if given, ends with it."""
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
    )
