from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[VerifierEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[VerifierEvent, _Mapping]]] = ...) -> None: ...

class VerifierEvent(_message.Message):
    __slots__ = ("session_id", "open", "block", "credit", "speculation", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    open: _common_pb2.OpenSession
    block: _common_pb2.DraftBlock
    credit: Credit
    speculation: SetSpeculation
    close: _common_pb2.CloseSession
    def __init__(self, session_id: _Optional[int] = ..., open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., block: _Optional[_Union[_common_pb2.DraftBlock, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., speculation: _Optional[_Union[SetSpeculation, _Mapping]] = ..., close: _Optional[_Union[_common_pb2.CloseSession, _Mapping]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("committed_limit",)
    COMMITTED_LIMIT_FIELD_NUMBER: _ClassVar[int]
    committed_limit: int
    def __init__(self, committed_limit: _Optional[int] = ...) -> None: ...

class SetSpeculation(_message.Message):
    __slots__ = ("enabled", "patience_us", "max_drafts_per_pass")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_US_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_PER_PASS_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    patience_us: int
    max_drafts_per_pass: int
    def __init__(self, enabled: _Optional[bool] = ..., patience_us: _Optional[int] = ..., max_drafts_per_pass: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[VerifierReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[VerifierReply, _Mapping]]] = ...) -> None: ...

class VerifierReply(_message.Message):
    __slots__ = ("session_id", "verdict", "error", "prompt_logprobs", "prompt_features", "spans")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    verdict: Verdict
    error: _common_pb2.SessionError
    prompt_logprobs: PromptLogprobs
    prompt_features: PromptFeatures
    spans: _common_pb2.SessionSpans
    def __init__(self, session_id: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.SessionError, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., prompt_features: _Optional[_Union[PromptFeatures, _Mapping]] = ..., spans: _Optional[_Union[_common_pb2.SessionSpans, _Mapping]] = ...) -> None: ...

class PromptFeatures(_message.Message):
    __slots__ = ("features",)
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    features: _common_pb2.Features
    def __init__(self, features: _Optional[_Union[_common_pb2.Features, _Mapping]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("base", "logprobs")
    BASE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    base: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, base: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("epoch", "base", "token_ids", "accepted_length", "next_origin", "num_judged", "finish_reason", "logprobs", "kv_length", "timings", "num_discarded", "target_probs", "cached_prompt_tokens", "features")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NEXT_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    NUM_JUDGED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    KV_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_DISCARDED_FIELD_NUMBER: _ClassVar[int]
    TARGET_PROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    base: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted_length: int
    next_origin: _common_pb2.Origin
    num_judged: int
    finish_reason: _common_pb2.FinishReason
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    kv_length: int
    timings: PassTimings
    num_discarded: int
    target_probs: _containers.RepeatedScalarFieldContainer[float]
    cached_prompt_tokens: int
    features: _common_pb2.Features
    def __init__(self, epoch: _Optional[int] = ..., base: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., accepted_length: _Optional[int] = ..., next_origin: _Optional[_Union[_common_pb2.Origin, str]] = ..., num_judged: _Optional[int] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., kv_length: _Optional[int] = ..., timings: _Optional[_Union[PassTimings, _Mapping]] = ..., num_discarded: _Optional[int] = ..., target_probs: _Optional[_Iterable[float]] = ..., cached_prompt_tokens: _Optional[int] = ..., features: _Optional[_Union[_common_pb2.Features, _Mapping]] = ...) -> None: ...

class PassTimings(_message.Message):
    __slots__ = ("queue_us", "forward_us", "judge_us", "rows", "sessions")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    JUDGE_US_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    forward_us: int
    judge_us: int
    rows: int
    sessions: int
    def __init__(self, queue_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., judge_us: _Optional[int] = ..., rows: _Optional[int] = ..., sessions: _Optional[int] = ...) -> None: ...
