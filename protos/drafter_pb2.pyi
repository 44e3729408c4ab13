from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DrafterEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DrafterEvent, _Mapping]]] = ...) -> None: ...

class DrafterEvent(_message.Message):
    __slots__ = ("session_id", "open", "advance", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    open: _common_pb2.OpenSession
    advance: Advance
    close: _common_pb2.CloseSession
    def __init__(self, session_id: _Optional[int] = ..., open: _Optional[_Union[_common_pb2.OpenSession, _Mapping]] = ..., advance: _Optional[_Union[Advance, _Mapping]] = ..., close: _Optional[_Union[_common_pb2.CloseSession, _Mapping]] = ...) -> None: ...

class Advance(_message.Message):
    __slots__ = ("epoch", "base", "token_ids", "window", "num_speculative_tokens", "draw_window", "num_drawn_tokens", "min_confidence", "min_copy_confidence", "features")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAW_WINDOW_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAWN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_COPY_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    base: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    window: int
    num_speculative_tokens: int
    draw_window: int
    num_drawn_tokens: int
    min_confidence: float
    min_copy_confidence: float
    features: _common_pb2.Features
    def __init__(self, epoch: _Optional[int] = ..., base: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., window: _Optional[int] = ..., num_speculative_tokens: _Optional[int] = ..., draw_window: _Optional[int] = ..., num_drawn_tokens: _Optional[int] = ..., min_confidence: _Optional[float] = ..., min_copy_confidence: _Optional[float] = ..., features: _Optional[_Union[_common_pb2.Features, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[DrafterReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[DrafterReply, _Mapping]]] = ...) -> None: ...

class DrafterReply(_message.Message):
    __slots__ = ("session_id", "block", "error", "spans")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    block: _common_pb2.DraftBlock
    error: _common_pb2.SessionError
    spans: _common_pb2.SessionSpans
    def __init__(self, session_id: _Optional[int] = ..., block: _Optional[_Union[_common_pb2.DraftBlock, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.SessionError, _Mapping]] = ..., spans: _Optional[_Union[_common_pb2.SessionSpans, _Mapping]] = ...) -> None: ...
