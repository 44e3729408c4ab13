"""Starts the drafter service: loads what drafts, then serves it."""

from __future__ import annotations

import asyncio

from drafter_service.drafter import Drafter
from drafter_service.engine import DrafterEngine
from drafter_service.model import ModelDrafter
from drafter_service.ngram import NgramDrafter
from drafter_service.servicer import SERVICE_NAME, DrafterServicer
from paceline.config import Config, DrafterConfig
from paceline.rpc.codec.drafter import DRAFTER_LINK
from paceline.rpc.worker import WorkerCore, WorkerService, start_worker
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.runtime.worker_model import load_worker_model
from paceline.telemetry.tracing import start_tracing


async def start(config: Config) -> WorkerService:
    """Load and serve. Raises `StartupError` when the configuration cannot be served."""
    drafter, tokenizer = await asyncio.to_thread(load_drafter, config.drafter)
    return await serve(config, drafter, tokenizer)


async def serve(config: Config, drafter: Drafter, tokenizer: Tokenizer | None) -> WorkerService:
    """Serve a drafter that is loaded already."""
    tracing = start_tracing(config.telemetry.traces, "drafter")
    core = WorkerCore(
        DrafterEngine(drafter, tracing),
        tokenizer,
        wire=DRAFTER_LINK,
        max_message_bytes=config.grpc.max_message_bytes,
    )
    return await start_worker(
        config,
        config.drafter.listen,
        core,
        service=SERVICE_NAME,
        add_to_server=DrafterServicer(core).add_to,
        tracing=tracing,
    )


def load_drafter(config: DrafterConfig) -> tuple[Drafter, Tokenizer | None]:
    """What drafts, and the tokenizer that its ids come from (None: any ids)."""
    if config.kind == "ngram":
        return NgramDrafter(config.ngram), None
    assert config.model is not None, "validated by DrafterConfig"
    loaded = load_worker_model("model", config.model, config.runtime)
    grammar = GrammarEngine(loaded.tokenizer)
    grammar.prepare()
    drafter = ModelDrafter(loaded.runner, config.runtime, loaded.info, grammar)
    return drafter, loaded.tokenizer
