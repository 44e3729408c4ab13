"""What the Python client takes and gives, as plain values: request fields, chunks, results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from paceline.generation import (
    SessionStatus,
    SpeculationStats,
    TopLogprob,
    TraceSpan,
    Usage,
    WorkerStatus,
)
from paceline.sampling.params import Acceptance, DraftProbsFormat

if TYPE_CHECKING:
    from typing_extensions import Self


class GenerateFields(TypedDict, total=False):
    """A generation request. Exactly one of `prompt`, `messages` and `token_ids` must be given.

    None, like absence, leaves a field to the server's default; the limits of the sampling
    parameters are those of `paceline.sampling.params.SamplingParams`.
    """

    prompt: str | None
    messages: Iterable[Mapping[str, str]] | None
    """`role` and `content` of each; rendered by the model's chat template."""
    token_ids: Iterable[int] | None
    """Sent to the model as they are."""
    speculation: bool | None
    window: int | None
    """Draft tokens that may be outstanding."""
    num_speculative_tokens: int | None
    num_outcome_tokens: int | None
    """Draft tokens made ahead for each rejection that may come; 0 makes none."""
    draft_probs: DraftProbsFormat | str | None
    """How much of the draft distributions travels: `sparse`, `dense` or `none`."""
    n: int | None
    """Answers to the same prompt; answer i has the seed `seed + i`."""
    stop: str | Iterable[str] | None
    """Strings that end the text; nothing of one is returned unless `include_stop_in_output`."""
    include_stop_in_output: bool | None
    bad_words: str | Iterable[str] | None
    """Strings that are never generated, by the tokens that commonly spell them."""
    guided_json: str | Mapping[str, Any] | None
    """A schema; the text is JSON that it admits. At most one of the three may be given."""
    guided_regex: str | None
    """The text matches this as a whole."""
    guided_choice: str | Iterable[str] | None
    """The text is one of these."""
    cache_salt: str | None
    """Cached prefixes are shared only among requests of the same salt."""
    prompt_cache_key: str | None
    """Requests of one key, up to 256 characters, go to the same workers while load permits, so that
    a common prefix is found in their caches; changes no output."""
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] | None
    allowed_token_ids: Iterable[int] | None
    bad_words_token_ids: Iterable[Iterable[int]] | None
    min_tokens: int | None
    max_tokens: int | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool | None
    seed: int | None
    logprobs: int | None
    """0 or more: each token's log-probability, and those of so many alternatives."""
    prompt_logprobs: int | None
    """0 or more: the same for the prompt's ids from the second on."""
    acceptance: Acceptance | str | None
    """`rejection`, `block` or `coupled`."""
    return_spans: bool | None
    """Whether the last chunk carries the request's spans, whatever tracing is configured."""


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token and what it adds to the text, maybe nothing.

    `origin` is "prefill", "accepted", "recovered", "bonus" or "autoregressive". `logprob` is None
    unless asked for.
    """

    id: int
    text: str
    logprob: float | None
    top_logprobs: tuple[TopLogprob, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class Stats(SpeculationStats):
    """What speculation did for one generation; see `SpeculationStats` in `orchestrator.proto`."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted / judged draft tokens; 0 without any."""
        return self.accepted / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one answer that arrived together; its last chunk also says how it ended.

    `finish_reason` is "stop", "length", "cancelled" or "error". `index` says which of the `n`
    answers this is. `prompt_tokens`, of origin "prompt", are the prompt's from the second on, in
    the first chunk if their log-probabilities were asked for. `spans` come in the very last chunk,
    if asked for.
    """

    tokens: tuple[Token, ...]
    finish_reason: str | None = None
    usage: Usage | None = None
    stats: Stats | None = None
    index: int = 0
    prompt_tokens: tuple[Token, ...] = ()
    spans: tuple[TraceSpan, ...] = ()

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """A whole generation. The token lists have one entry a token, in order."""

    text: str
    tokens: tuple[Token, ...]
    finish_reason: str
    usage: Usage
    stats: Stats
    prompt_tokens: tuple[Token, ...] = ()
    spans: tuple[TraceSpan, ...] = ()

    @classmethod
    def all_of(cls, chunks: Sequence[Chunk]) -> list[Self]:
        """Join the chunks of each answer, in the order of their index."""
        indexes = sorted({chunk.index for chunk in chunks})
        return [cls.of([chunk for chunk in chunks if chunk.index == i]) for i in indexes]

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Self:
        """Join one answer's chunks. Raises `ValueError` if the last has no outcome."""
        last = chunks[-1] if chunks else Chunk(())
        if last.finish_reason is None or last.usage is None or last.stats is None:
            raise ValueError("the chunks do not end with an outcome")
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        text = "".join(token.text for token in tokens)
        prompt_tokens = tuple(token for chunk in chunks for token in chunk.prompt_tokens)
        return cls(
            text, tokens, last.finish_reason, last.usage, last.stats, prompt_tokens, last.spans
        )

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def origins(self) -> list[str]:
        return [token.origin for token in self.tokens]

    @property
    def logprobs(self) -> list[float | None]:
        """None where not asked for."""
        return [token.logprob for token in self.tokens]


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What an orchestrator serves, and with which workers."""

    model: str
    context_length: int
    live_sessions: int
    workers: tuple[WorkerStatus, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    """Raw monotonic counters of the orchestrator; rates are made of two answers."""
    sessions: tuple[SessionStatus, ...] = ()
    """The oldest live ones."""
