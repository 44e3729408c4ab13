"""What a worker loads: a model over its KV pool, the tokenizer of its ids, what they are."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config import AnyModelConfig, ModelConfig, RuntimeConfig, SyntheticModelConfig
from paceline.errors import ConfigError, ModelLoadError
from paceline.runtime.draft_vocabulary import FILE_NAME, DraftVocabulary
from paceline.runtime.emulated import EmulatedRunner
from paceline.runtime.model_source import find_beside, resolve_source
from paceline.runtime.pass_cost import PassCost
from paceline.runtime.runner import Runner
from paceline.runtime.synthetic import AcceptanceSchedule, SyntheticLaw, SyntheticRunner
from paceline.runtime.synthetic_tokenizer import SPECIAL_TOKENS
from paceline.runtime.tokenizer import Tokenizer
from paceline.types import WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """A model ready to serve."""

    runner: Runner
    tokenizer: Tokenizer
    info: WorkerInfo


def load_worker_model(kind: str, model: AnyModelConfig, runtime: RuntimeConfig) -> WorkerModel:
    """Load tokenizer and model; takes seconds. Raises `StartupError` naming the setting, for a
    drafter of a reduced vocabulary too: see `load_draft_model`."""
    if isinstance(model, SyntheticModelConfig):
        return _make_synthetic(kind, model, runtime)
    return _load_pretrained(kind, model, runtime)


def _load_pretrained(kind: str, model: ModelConfig, runtime: RuntimeConfig) -> WorkerModel:
    # slow imports that a synthetic model does without
    from paceline.runtime.device import device_of  # noqa: PLC0415
    from paceline.runtime.loader import load_model  # noqa: PLC0415
    from paceline.runtime.runner_factory import build_runner  # noqa: PLC0415

    _check_is_whole(model)
    tokenizer = Tokenizer.load(model.path, model.revision)
    loaded = load_model(model)
    runner = build_runner(loaded, runtime, vocab_size=tokenizer.vocab_size)
    device = device_of(loaded.device)
    info = WorkerInfo(
        kind=kind,
        model=model.name,
        dtype=loaded.dtype,
        quantization=loaded.quantization,
        device=loaded.device,
        device_id=device.id,
        device_share=device.share,
        vocab_size=runner.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        context_length=runner.context_length,
        eos_token_ids=loaded.eos_token_ids,
        feature_size=runner.feature_size if kind == "verifier" else 0,
    )
    return WorkerModel(runner, tokenizer, info)


def _check_is_whole(model: ModelConfig) -> None:
    directory = find_beside(resolve_source(model.path, model.revision), FILE_NAME)
    if directory is not None:
        target = DraftVocabulary.read(directory).target_name
        raise ModelLoadError(
            f"model.path: {model.path} is a drafter made for {target}, which knows some of its ids"
            f" only ({FILE_NAME}); it can be drafter.model, and no verifier's"
        )


def _make_synthetic(kind: str, model: SyntheticModelConfig, runtime: RuntimeConfig) -> WorkerModel:
    tokenizer = Tokenizer.load(model.path)
    if runtime.kv_tokens < runtime.page_size:
        raise ConfigError(
            f"runtime.kv_tokens: {runtime.kv_tokens} is less than one page of"
            f" runtime.page_size {runtime.page_size}"
        )
    runner = SyntheticRunner(
        synthetic_law(model),
        context_length=model.context_length,
        num_pages=runtime.kv_tokens // runtime.page_size,
        page_size=runtime.page_size,
    )
    cost = pass_cost(model)
    assert tokenizer.eos_token_id is not None, "every synthetic vocabulary has one"
    info = WorkerInfo(
        kind=kind,
        model=model.path,
        dtype="float32",
        quantization="none",
        device=model.device,
        vocab_size=runner.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        context_length=runner.context_length,
        eos_token_ids=(tokenizer.eos_token_id,),
    )
    emulated = EmulatedRunner(runner, cost) if cost != PassCost(0.0) else runner
    return WorkerModel(emulated, tokenizer, info)


def synthetic_law(model: SyntheticModelConfig) -> SyntheticLaw:
    """The law of a synthetic model. Raises `ConfigError` for rates that no pair can have."""
    acceptance = None
    if model.acceptance is not None:
        acceptance = AcceptanceSchedule(model.acceptance, model.acceptance_changes)
    return SyntheticLaw(
        seed=model.seed,
        num_plain_ids=model.vocab_size - len(SPECIAL_TOKENS),
        vocab_size=model.vocab_size,
        acceptance=acceptance,
        second_guess=model.second_guess,
        third_guess=model.third_guess,
    )


def pass_cost(model: SyntheticModelConfig) -> PassCost:
    """What a pass of a synthetic model takes."""
    return PassCost(
        base_s=model.base_ms / 1e3,
        per_token_s=model.per_token_ms / 1e3,
        per_session_s=model.per_session_ms / 1e3,
        knee_tokens=model.knee_tokens,
    )
