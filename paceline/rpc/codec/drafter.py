"""The drafter's link on the wire: `DrafterEvent` towards the worker, `DrafterReply` back."""

from __future__ import annotations

from typing import Any

from paceline.errors import InvalidArgumentError
from paceline.rpc.codec.blocks import decode_block, encode_block
from paceline.rpc.codec.features import decode_features, encode_features
from paceline.rpc.codec.sessions import (
    decode_open,
    decode_session_error,
    encode_open,
    encode_session_error,
)
from paceline.rpc.codec.spans import decode_session_spans, encode_session_spans
from paceline.rpc.wire import Direction, LinkWire
from paceline.types import (
    Advance,
    CloseSession,
    DraftBlock,
    DrafterEvent,
    DrafterReply,
    OpenSession,
    SessionSpans,
)
from protos import common_pb2, drafter_pb2


def encode_drafter_event(event: DrafterEvent) -> drafter_pb2.DrafterEvent:
    message = drafter_pb2.DrafterEvent(session_id=event.session_id)
    match event:
        case OpenSession():
            message.open.CopyFrom(encode_open(event))
        case Advance():
            message.advance.CopyFrom(
                drafter_pb2.Advance(
                    epoch=event.epoch,
                    base=event.base,
                    token_ids=event.token_ids,
                    window=event.window,
                    num_speculative_tokens=event.num_speculative_tokens,
                    draw_window=event.draw_window,
                    num_drawn_tokens=event.num_drawn_tokens,
                    min_confidence=event.min_confidence,
                    min_copy_confidence=event.min_copy_confidence,
                    features=encode_features(event.features),
                )
            )
        case CloseSession():
            message.close.CopyFrom(common_pb2.CloseSession())
    return message


def decode_drafter_event(message: drafter_pb2.DrafterEvent) -> DrafterEvent:
    """Raises `InvalidArgumentError` naming the field of a malformed event."""
    session_id = message.session_id
    match message.WhichOneof("event"):
        case "open":
            return decode_open(session_id, message.open)
        case "advance":
            advance = message.advance
            return Advance(
                session_id,
                advance.epoch,
                advance.base,
                tuple(advance.token_ids),
                window=_optional(advance, "window"),
                num_speculative_tokens=_optional(advance, "num_speculative_tokens"),
                draw_window=_optional(advance, "draw_window"),
                num_drawn_tokens=_optional(advance, "num_drawn_tokens"),
                min_confidence=_optional(advance, "min_confidence"),
                min_copy_confidence=_optional(advance, "min_copy_confidence"),
                features=decode_features(advance.features)
                if advance.HasField("features")
                else None,
            )
        case "close":
            return CloseSession(session_id)
        case _:
            raise InvalidArgumentError("event", "not set, or of an unknown kind")


def _optional(advance: drafter_pb2.Advance, field: str) -> Any:
    return getattr(advance, field) if advance.HasField(field) else None


def encode_drafter_reply(reply: DrafterReply) -> drafter_pb2.DrafterReply:
    if isinstance(reply, DraftBlock):
        return drafter_pb2.DrafterReply(session_id=reply.session_id, block=encode_block(reply))
    if isinstance(reply, SessionSpans):
        return drafter_pb2.DrafterReply(
            session_id=reply.session_id, spans=encode_session_spans(reply)
        )
    return drafter_pb2.DrafterReply(session_id=reply.session_id, error=encode_session_error(reply))


def decode_drafter_reply(message: drafter_pb2.DrafterReply) -> DrafterReply:
    """Raises `InvalidArgumentError` naming the field of a malformed reply."""
    match message.WhichOneof("reply"):
        case "block":
            return decode_block(message.session_id, message.block)
        case "spans":
            return decode_session_spans(message.session_id, message.spans)
        case "error":
            return decode_session_error(message.session_id, message.error)
        case _:
            raise InvalidArgumentError("reply", "not set, or of an unknown kind")


DRAFTER_LINK: LinkWire[DrafterEvent, DrafterReply] = LinkWire(
    events=Direction(
        encode=encode_drafter_event,
        decode=decode_drafter_event,
        batch_type=drafter_pb2.DraftRequest,
        field="events",
        malformed_code="INVALID_ARGUMENT",
    ),
    replies=Direction(
        encode=encode_drafter_reply,
        decode=decode_drafter_reply,
        batch_type=drafter_pb2.DraftResponse,
        field="replies",
        malformed_code="INTERNAL",
    ),
)
