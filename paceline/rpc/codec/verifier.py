"""The verifier's link on the wire: `VerifierEvent` towards the worker, `VerifierReply` back."""

from __future__ import annotations

from paceline.errors import InvalidArgumentError
from paceline.rpc.codec.blocks import clamp_us, decode_block, encode_block
from paceline.rpc.codec.enums import (
    decode_finish_reason,
    decode_origin,
    encode_finish_reason,
    encode_origin,
)
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
    CloseSession,
    Credit,
    DraftBlock,
    OpenSession,
    PassTimings,
    PromptFeatures,
    PromptLogprobs,
    SessionId,
    SessionSpans,
    SetSpeculation,
    TokenLogprobs,
    Verdict,
    VerifierEvent,
    VerifierReply,
)
from protos import common_pb2, verifier_pb2


def encode_verifier_event(event: VerifierEvent) -> verifier_pb2.VerifierEvent:
    message = verifier_pb2.VerifierEvent(session_id=event.session_id)
    match event:
        case OpenSession():
            message.open.CopyFrom(encode_open(event))
        case DraftBlock():
            message.block.CopyFrom(encode_block(event))
        case Credit():
            message.credit.CopyFrom(verifier_pb2.Credit(committed_limit=event.committed_limit))
        case SetSpeculation():
            message.speculation.CopyFrom(_encode_speculation(event))
        case CloseSession():
            message.close.CopyFrom(common_pb2.CloseSession())
    return message


def decode_verifier_event(message: verifier_pb2.VerifierEvent) -> VerifierEvent:
    """Raises `InvalidArgumentError` naming the field of a malformed event."""
    session_id = message.session_id
    match message.WhichOneof("event"):
        case "open":
            return decode_open(session_id, message.open)
        case "block":
            return decode_block(session_id, message.block)
        case "credit":
            return Credit(session_id, message.credit.committed_limit)
        case "speculation":
            return _decode_speculation(session_id, message.speculation)
        case "close":
            return CloseSession(session_id)
        case _:
            raise InvalidArgumentError("event", "not set, or of an unknown kind")


def _encode_speculation(event: SetSpeculation) -> verifier_pb2.SetSpeculation:
    patience_us = None if event.patience_us is None else clamp_us(event.patience_us)
    return verifier_pb2.SetSpeculation(
        enabled=event.enabled,
        patience_us=patience_us,
        max_drafts_per_pass=event.max_drafts_per_pass,
    )


def _decode_speculation(
    session_id: SessionId, message: verifier_pb2.SetSpeculation
) -> SetSpeculation:
    patience_us = message.patience_us if message.HasField("patience_us") else None
    max_drafts = message.max_drafts_per_pass if message.HasField("max_drafts_per_pass") else None
    if max_drafts == 0:
        raise InvalidArgumentError("max_drafts_per_pass", "0 is below 1")
    return SetSpeculation(session_id, message.enabled, patience_us, max_drafts)


def encode_verifier_reply(reply: VerifierReply) -> verifier_pb2.VerifierReply:
    if isinstance(reply, Verdict):
        return verifier_pb2.VerifierReply(
            session_id=reply.session_id, verdict=_encode_verdict(reply)
        )
    if isinstance(reply, SessionSpans):
        return verifier_pb2.VerifierReply(
            session_id=reply.session_id, spans=encode_session_spans(reply)
        )
    if isinstance(reply, PromptLogprobs):
        entries = [_encode_logprobs(entry) for entry in reply.logprobs]
        return verifier_pb2.VerifierReply(
            session_id=reply.session_id,
            prompt_logprobs=verifier_pb2.PromptLogprobs(base=reply.base, logprobs=entries),
        )
    if isinstance(reply, PromptFeatures):
        features = verifier_pb2.PromptFeatures(features=encode_features(reply.features))
        return verifier_pb2.VerifierReply(session_id=reply.session_id, prompt_features=features)
    return verifier_pb2.VerifierReply(
        session_id=reply.session_id, error=encode_session_error(reply)
    )


def decode_verifier_reply(message: verifier_pb2.VerifierReply) -> VerifierReply:
    """Raises `InvalidArgumentError` naming the field of a malformed reply."""
    match message.WhichOneof("reply"):
        case "verdict":
            return _decode_verdict(message.session_id, message.verdict)
        case "prompt_logprobs":
            found = message.prompt_logprobs
            entries = tuple(_decode_logprobs(entry) for entry in found.logprobs)
            return PromptLogprobs(message.session_id, found.base, entries)
        case "prompt_features":
            features = decode_features(message.prompt_features.features)
            return PromptFeatures(message.session_id, features)
        case "spans":
            return decode_session_spans(message.session_id, message.spans)
        case "error":
            return decode_session_error(message.session_id, message.error)
        case _:
            raise InvalidArgumentError("reply", "not set, or of an unknown kind")


def _encode_verdict(verdict: Verdict) -> verifier_pb2.Verdict:
    timings = verdict.timings
    return verifier_pb2.Verdict(
        epoch=verdict.epoch,
        base=verdict.base,
        token_ids=verdict.token_ids,
        accepted_length=verdict.accepted_length,
        next_origin=encode_origin(verdict.next_origin),
        num_judged=verdict.num_judged,
        finish_reason=encode_finish_reason(verdict.finish_reason),
        logprobs=[_encode_logprobs(entry) for entry in verdict.logprobs],
        kv_length=verdict.kv_length,
        timings=verifier_pb2.PassTimings(
            queue_us=clamp_us(timings.queue_us),
            forward_us=clamp_us(timings.forward_us),
            judge_us=clamp_us(timings.judge_us),
            rows=timings.rows,
            sessions=timings.sessions,
        ),
        num_discarded=verdict.num_discarded,
        target_probs=verdict.target_probs,
        cached_prompt_tokens=verdict.cached_prompt_tokens,
        features=encode_features(verdict.features),
    )


def _encode_logprobs(entry: TokenLogprobs) -> verifier_pb2.TokenLogprobs:
    return verifier_pb2.TokenLogprobs(
        logprob=entry.logprob,
        top_token_ids=entry.top_token_ids,
        top_logprobs=entry.top_logprobs,
    )


def _decode_verdict(session_id: SessionId, message: verifier_pb2.Verdict) -> Verdict:
    timings = message.timings
    return Verdict(
        session_id=session_id,
        epoch=message.epoch,
        base=message.base,
        token_ids=tuple(message.token_ids),
        accepted_length=message.accepted_length,
        next_origin=decode_origin(message.next_origin, field="next_origin"),
        num_judged=message.num_judged,
        finish_reason=decode_finish_reason(message.finish_reason),
        logprobs=tuple(_decode_logprobs(entry) for entry in message.logprobs),
        kv_length=message.kv_length,
        timings=PassTimings(
            queue_us=timings.queue_us,
            forward_us=timings.forward_us,
            judge_us=timings.judge_us,
            rows=timings.rows,
            sessions=timings.sessions,
        ),
        num_discarded=message.num_discarded,
        target_probs=tuple(message.target_probs),
        cached_prompt_tokens=message.cached_prompt_tokens,
        features=decode_features(message.features) if message.HasField("features") else None,
    )


def _decode_logprobs(entry: verifier_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(entry.logprob, tuple(entry.top_token_ids), tuple(entry.top_logprobs))


VERIFIER_LINK: LinkWire[VerifierEvent, VerifierReply] = LinkWire(
    events=Direction(
        encode=encode_verifier_event,
        decode=decode_verifier_event,
        batch_type=verifier_pb2.VerifyRequest,
        field="events",
        malformed_code="INVALID_ARGUMENT",
    ),
    replies=Direction(
        encode=encode_verifier_reply,
        decode=decode_verifier_reply,
        batch_type=verifier_pb2.VerifyResponse,
        field="replies",
        malformed_code="INTERNAL",
    ),
)
