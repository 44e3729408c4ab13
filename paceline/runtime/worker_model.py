"""What a worker loads: a model over its KV pool, the tokenizer of its ids, what they are."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import ModelConfig, RuntimeConfig
from paceline.runtime.loader import load_model
from paceline.runtime.runner import Runner
from paceline.runtime.runner_factory import build_runner
from paceline.runtime.tokenizer import Tokenizer
from paceline.types import WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """A model ready to serve."""

    runner: Runner
    tokenizer: Tokenizer
    info: WorkerInfo


def load_worker_model(kind: str, model: ModelConfig, runtime: RuntimeConfig) -> WorkerModel:
    """Load tokenizer and model; takes seconds. Raises `ModelLoadError` naming the setting."""
    tokenizer = Tokenizer.load(model.path, model.revision)
    loaded = load_model(model)
    runner = build_runner(loaded, runtime, vocab_size=tokenizer.vocab_size)
    info = WorkerInfo(
        kind=kind,
        model=model.path,
        dtype=loaded.dtype,
        quantization=loaded.quantization,
        device=loaded.device,
        vocab_size=runner.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        context_length=runner.context_length,
        eos_token_ids=loaded.eos_token_ids,
    )
    return WorkerModel(runner, tokenizer, info)
