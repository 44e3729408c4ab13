from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftProbsFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_PROBS_FORMAT_UNSPECIFIED: _ClassVar[DraftProbsFormat]
    DRAFT_PROBS_FORMAT_SPARSE: _ClassVar[DraftProbsFormat]
    DRAFT_PROBS_FORMAT_DENSE: _ClassVar[DraftProbsFormat]
    DRAFT_PROBS_FORMAT_NONE: _ClassVar[DraftProbsFormat]
DRAFT_PROBS_FORMAT_UNSPECIFIED: DraftProbsFormat
DRAFT_PROBS_FORMAT_SPARSE: DraftProbsFormat
DRAFT_PROBS_FORMAT_DENSE: DraftProbsFormat
DRAFT_PROBS_FORMAT_NONE: DraftProbsFormat

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "messages", "token_ids", "sampling", "speculation", "window", "num_speculative_tokens", "stop", "include_stop_in_output", "bad_words", "draft_probs", "n", "guided_json", "guided_regex", "guided_choice", "prompt_cache_key", "cache_salt", "num_outcome_tokens", "return_spans")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    GUIDED_JSON_FIELD_NUMBER: _ClassVar[int]
    GUIDED_REGEX_FIELD_NUMBER: _ClassVar[int]
    GUIDED_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTCOME_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_SPANS_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    speculation: bool
    window: int
    num_speculative_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    include_stop_in_output: bool
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    draft_probs: DraftProbsFormat
    n: int
    guided_json: str
    guided_regex: str
    guided_choice: _containers.RepeatedScalarFieldContainer[str]
    prompt_cache_key: str
    cache_salt: str
    num_outcome_tokens: int
    return_spans: bool
    def __init__(self, prompt: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., speculation: _Optional[bool] = ..., window: _Optional[int] = ..., num_speculative_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., include_stop_in_output: _Optional[bool] = ..., bad_words: _Optional[_Iterable[str]] = ..., draft_probs: _Optional[_Union[DraftProbsFormat, str]] = ..., n: _Optional[int] = ..., guided_json: _Optional[str] = ..., guided_regex: _Optional[str] = ..., guided_choice: _Optional[_Iterable[str]] = ..., prompt_cache_key: _Optional[str] = ..., cache_salt: _Optional[str] = ..., num_outcome_tokens: _Optional[int] = ..., return_spans: _Optional[bool] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("tokens", "outcome", "index", "prompt_tokens", "spans")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    outcome: Outcome
    index: int
    prompt_tokens: _containers.RepeatedCompositeFieldContainer[Token]
    spans: _containers.RepeatedCompositeFieldContainer[_common_pb2.Span]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., index: _Optional[int] = ..., prompt_tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[_common_pb2.Span, _Mapping]]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "text", "origin", "logprob", "top_logprobs")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    origin: _common_pb2.Origin
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., origin: _Optional[_Union[_common_pb2.Origin, str]] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("id", "text", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    logprob: float
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("finish_reason", "usage", "stats")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _common_pb2.FinishReason
    usage: Usage
    stats: SpeculationStats
    def __init__(self, finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., stats: _Optional[_Union[SpeculationStats, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("speculation", "drafted", "judged", "accepted", "passes", "mean_acceptance_length", "bytes_drafter", "bytes_verifier", "time_to_first_token_ms", "total_ms", "draft_ms", "verify_ms", "queue_ms", "seed", "epochs")
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BYTES_DRAFTER_FIELD_NUMBER: _ClassVar[int]
    BYTES_VERIFIER_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
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
    def __init__(self, speculation: _Optional[str] = ..., drafted: _Optional[int] = ..., judged: _Optional[int] = ..., accepted: _Optional[int] = ..., passes: _Optional[int] = ..., mean_acceptance_length: _Optional[float] = ..., bytes_drafter: _Optional[int] = ..., bytes_verifier: _Optional[int] = ..., time_to_first_token_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., draft_ms: _Optional[float] = ..., verify_ms: _Optional[float] = ..., queue_ms: _Optional[float] = ..., seed: _Optional[int] = ..., epochs: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("workers", "live_sessions", "model", "context_length", "counters", "sessions")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LIVE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    live_sessions: int
    model: str
    context_length: int
    counters: _containers.ScalarMap[str, int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionStatus]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., live_sessions: _Optional[int] = ..., model: _Optional[str] = ..., context_length: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., sessions: _Optional[_Iterable[_Union[SessionStatus, _Mapping]]] = ...) -> None: ...

class SessionStatus(_message.Message):
    __slots__ = ("session", "peer", "age_ms", "prompt_tokens", "completion_tokens", "drafted", "judged", "accepted", "window")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    session: str
    peer: str
    age_ms: int
    prompt_tokens: int
    completion_tokens: int
    drafted: int
    judged: int
    accepted: int
    window: int
    def __init__(self, session: _Optional[str] = ..., peer: _Optional[str] = ..., age_ms: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., drafted: _Optional[int] = ..., judged: _Optional[int] = ..., accepted: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("role", "address", "connected", "detail", "description")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    role: str
    address: str
    connected: bool
    detail: str
    description: _common_pb2.WorkerDescription
    def __init__(self, role: _Optional[str] = ..., address: _Optional[str] = ..., connected: _Optional[bool] = ..., detail: _Optional[str] = ..., description: _Optional[_Union[_common_pb2.WorkerDescription, _Mapping]] = ...) -> None: ...
