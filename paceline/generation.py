"""The values of the client API: what a call asks for, and what its answer is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.sampling.params import DraftProbsFormat, SamplingParams
from paceline.types import FinishReason, Origin, WorkerInfo


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One `Generate` request as it was sent; None is "not given", "" and () too.

    `sampling` is complete: absent fields have taken their defaults.
    """

    prompt: str
    messages: Sequence[Mapping[str, str]]
    token_ids: Sequence[int]
    sampling: SamplingParams
    gives_max_tokens: bool
    gives_seed: bool
    speculation: bool | None
    window: int | None
    num_speculative_tokens: int | None
    num_outcome_tokens: int | None
    stop: Sequence[str]
    include_stop_in_output: bool
    bad_words: Sequence[str]
    draft_probs: DraftProbsFormat | None = None
    n: int | None = None
    guided_json: str = ""
    guided_regex: str = ""
    guided_choice: Sequence[str] = ()
    return_spans: bool = False
    cache_salt: str = ""
    prompt_cache_key: str = ""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """An alternative to a delivered token."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class OutputToken:
    """A delivered token: `text` is what it adds, perhaps nothing. The prompt's have no origin."""

    id: int
    text: str
    origin: Origin | None
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `completion_tokens` are the ids delivered.

    `cached_prompt_tokens` of the prompt were in the verifier's KV cache already.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Raw counts and times of one generation; see `SpeculationStats` in `orchestrator.proto`."""

    speculation: str
    drafted: int
    judged: int
    accepted: int
    passes: int
    mean_acceptance_length: float
    bytes_drafter: int
    bytes_verifier: int
    time_to_first_token_ms: float
    total_ms: float
    draft_ms: float
    verify_ms: float
    queue_ms: float
    seed: int
    epochs: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a generation ended."""

    finish_reason: FinishReason
    usage: Usage
    stats: SpeculationStats


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A live answer; see `SessionStatus` in `orchestrator.proto`."""

    session: str
    peer: str
    age_ms: int
    prompt_tokens: int
    completion_tokens: int
    drafted: int
    judged: int
    accepted: int
    window: int


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span of a request's trace; the names are in `docs/tracing.md`.

    Ids are hexadecimal, `parent_id` is empty for the first span of a trace. Times are Unix time in
    nanoseconds by the clock of the machine that made the span.
    """

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as the orchestrator sees it."""

    role: str
    address: str
    is_connected: bool
    detail: str
    info: WorkerInfo | None
