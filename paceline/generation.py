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
    stop: Sequence[str]
    include_stop_in_output: bool
    bad_words: Sequence[str]
    draft_probs: DraftProbsFormat | None = None
    n: int | None = None
    guided_json: str = ""
    guided_regex: str = ""
    guided_choice: Sequence[str] = ()
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
    """Token counts; `completion_tokens` are the ids delivered."""

    prompt_tokens: int
    completion_tokens: int


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
class WorkerStatus:
    """A worker as the orchestrator sees it."""

    role: str
    address: str
    is_connected: bool
    detail: str
    info: WorkerInfo | None
