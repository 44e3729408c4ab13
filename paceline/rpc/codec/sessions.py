"""Session events that both workers speak: opening a session, and its failure."""

from __future__ import annotations

from paceline.errors import InvalidArgumentError
from paceline.rpc.codec.sampling import decode_complete_sampling, encode_sampling
from paceline.types import OpenSession, SessionError, SessionId
from protos import common_pb2


def encode_open(event: OpenSession) -> common_pb2.OpenSession:
    return common_pb2.OpenSession(
        token_ids=event.token_ids,
        prompt_length=event.prompt_length,
        sampling=encode_sampling(event.sampling),
        window=event.window,
        num_speculative_tokens=event.num_speculative_tokens,
        draft_top_k=event.draft_top_k,
        committed_limit=event.committed_limit,
        speculation=event.speculation,
        epoch=event.epoch,
        eos_token_ids=event.eos_token_ids,
        vocab_size=event.vocab_size,
        reproducible=event.reproducible,
        grammar=event.grammar,
        cache_salt=event.cache_salt,
        features=event.features,
        trace_context=dict(event.trace_context),
        num_outcome_tokens=event.num_outcome_tokens,
    )


def decode_open(session_id: SessionId, message: common_pb2.OpenSession) -> OpenSession:
    """Raises `InvalidArgumentError` for wrong or incomplete sampling parameters."""
    if not message.HasField("sampling"):
        raise InvalidArgumentError("sampling", "must be given")
    return OpenSession(
        session_id=session_id,
        token_ids=tuple(message.token_ids),
        prompt_length=message.prompt_length,
        sampling=decode_complete_sampling(message.sampling),
        window=message.window,
        num_speculative_tokens=message.num_speculative_tokens,
        draft_top_k=message.draft_top_k,
        committed_limit=message.committed_limit,
        speculation=message.speculation,
        epoch=message.epoch,
        eos_token_ids=tuple(message.eos_token_ids),
        vocab_size=message.vocab_size,
        reproducible=message.reproducible,
        grammar=message.grammar,
        cache_salt=message.cache_salt,
        features=message.features,
        trace_context=dict(message.trace_context),
        num_outcome_tokens=message.num_outcome_tokens,
    )


def encode_session_error(error: SessionError) -> common_pb2.SessionError:
    return common_pb2.SessionError(code=error.code, message=error.message)


def decode_session_error(session_id: SessionId, message: common_pb2.SessionError) -> SessionError:
    return SessionError(session_id, message.code, message.message)
