"""Starts the drafter service: loads what drafts, then serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drafter_service.cascade import CascadeDrafter
from drafter_service.corpus import load_corpus
from drafter_service.drafter import Drafter, DrawsRuns, WarmsUp
from drafter_service.engine import DrafterEngine
from drafter_service.model import ModelDrafter
from drafter_service.ngram import NGRAM_INFO, NgramDrafter
from drafter_service.ngram_reader import NgramReader
from drafter_service.servicer import SERVICE_NAME, DrafterServicer
from paceline.config import Config, DrafterConfig, ModelConfig, NgramConfig
from paceline.errors import ConfigError
from paceline.rpc.codec.drafter import DRAFTER_LINK
from paceline.rpc.worker import WorkerCore, WorkerService, start_worker
from paceline.runtime.draft_model import DraftModel, load_draft_model
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.short_thread import in_short_thread
from paceline.runtime.tokenizer import Tokenizer
from paceline.telemetry.tracing import start_tracing


async def start(config: Config) -> WorkerService:
    """Load and serve. Raises `StartupError` when the configuration cannot be served."""
    drafter, tokenizer = await in_short_thread(load_drafter, config.drafter)
    warm_up = None
    if isinstance(config.drafter.model, ModelConfig) and isinstance(drafter, WarmsUp):
        warm_up = drafter.warm_up
    return await serve(config, drafter, tokenizer, warm_up=warm_up)


async def serve(
    config: Config,
    drafter: Drafter,
    tokenizer: Tokenizer | None,
    *,
    warm_up: Callable[[], None] | None = None,
) -> WorkerService:
    """Serve a drafter that is loaded already; `warm_up` is run by the engine's thread before."""
    tracing = start_tracing(config.telemetry.traces, "drafter")
    core = WorkerCore(
        DrafterEngine(drafter, tracing),
        tokenizer,
        wire=DRAFTER_LINK,
        max_message_bytes=config.grpc.max_message_bytes,
    )
    if isinstance(drafter, DrawsRuns):
        drafter.draw_while(core.thread.has_no_mail)
    return await start_worker(
        config,
        config.drafter.listen,
        core,
        service=SERVICE_NAME,
        add_to_server=DrafterServicer(core).add_to,
        tracing=tracing,
        warm_up=warm_up,
    )


def load_drafter(config: DrafterConfig) -> tuple[Drafter, Tokenizer | None]:
    """What drafts, and the tokenizer that its ids come from (None: any ids)."""
    if not config.has_model:
        return _load_ngram(config.ngram)
    assert config.model is not None, "validated by DrafterConfig"
    loaded = load_draft_model(config.kind, config.model, config.runtime)
    tokenizer = _tokenizer(config.ngram, loaded)
    grammar = None if tokenizer is None else GrammarEngine(tokenizer)
    if grammar is not None:
        grammar.prepare()
    drafter = ModelDrafter(
        loaded.runner,
        config.runtime,
        loaded.info,
        grammar,
        config.tree,
        columns=loaded.columns,
        min_confidence=config.min_confidence,
    )
    if config.kind == "model":
        return drafter, tokenizer
    reader = NgramReader(config.ngram, load_corpus(config.ngram, tokenizer))
    return CascadeDrafter(reader, drafter, config.cascade), tokenizer


def _tokenizer(config: NgramConfig, loaded: DraftModel) -> Tokenizer | None:
    """The model's, or the named one of its target. Raises `ConfigError` if a text needs one."""
    if loaded.tokenizer is not None:
        if config.tokenizer is not None:
            raise ConfigError(
                f"drafter.ngram.tokenizer: {config.tokenizer} is of no use, {loaded.info.model}"
                " has one"
            )
        return loaded.tokenizer
    if config.tokenizer is None:
        if config.has_text:
            raise ConfigError(
                f"drafter.ngram.tokenizer is required for the text of ngram.corpus"
                f" {config.corpus}: {loaded.info.model}, has none"
            )
        return None
    tokenizer = Tokenizer.load(config.tokenizer)
    if tokenizer.fingerprint != loaded.info.tokenizer_fingerprint:
        raise ConfigError(
            f"drafter.ngram.tokenizer: {config.tokenizer} has other ids than the target of"
            f" {loaded.info.model}"
        )
    return tokenizer


def _load_ngram(config: NgramConfig) -> tuple[Drafter, Tokenizer | None]:
    if config.tokenizer is None:
        return NgramDrafter(config, load_corpus(config, None)), None
    tokenizer = Tokenizer.load(config.tokenizer)
    info = replace(
        NGRAM_INFO,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
    )
    return NgramDrafter(config, load_corpus(config, tokenizer), info), tokenizer
