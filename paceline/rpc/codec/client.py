"""The client's side of `orchestrator.proto`: requests from keyword fields, answers to values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from paceline.client_values import Chunk, GenerateFields, ServiceStatus, Stats, Token
from paceline.errors import InvalidArgumentError, PacelineError
from paceline.generation import SessionStatus, TopLogprob, Usage, WorkerStatus
from paceline.rpc.codec.describe import decode_worker_info
from paceline.rpc.codec.enums import (
    EnumT,
    decode_finish_reason,
    decode_origin,
    encode_acceptance,
    encode_draft_probs_format,
)
from paceline.rpc.codec.sampling import SCALARS, extend_field, set_field
from paceline.rpc.codec.spans import decode_span
from paceline.sampling.params import Acceptance, DraftProbsFormat
from protos import common_pb2, orchestrator_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SESSION_FIELDS = fields(SessionStatus)
_REQUEST_SCALARS = (
    "prompt",
    "speculation",
    "window",
    "num_speculative_tokens",
    "num_outcome_tokens",
    "n",
    "include_stop_in_output",
    "return_spans",
    "prompt_cache_key",
)


def encode_generate(**given: Unpack[GenerateFields]) -> orchestrator_pb2.GenerateRequest:
    """The request message; None leaves a field absent.

    Raises `TypeError` naming a keyword that is none of `GenerateFields`, and
    `InvalidArgumentError` naming a field whose value no wire type can hold.
    """
    unknown = set(given) - set(GenerateFields.__annotations__)
    if unknown:
        raise TypeError(f"unknown generation parameter: {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    message = orchestrator_pb2.GenerateRequest()
    for name in _REQUEST_SCALARS:
        if name in values:
            set_field(message, name, values[name])
    extend_field(message, "token_ids", values.get("token_ids", ()))
    for entry in values.get("messages", ()):
        _add_message(message, entry)
    if isinstance(values.get("guided_json"), Mapping):
        values["guided_json"] = json.dumps(values["guided_json"], ensure_ascii=False)
    for name in ("guided_json", "guided_regex", "cache_salt"):
        if name in values:
            set_field(message, name, values[name])
    for name in ("stop", "bad_words", "guided_choice"):
        strings = values.get(name, ())
        extend_field(message, name, [strings] if isinstance(strings, str) else strings)
    for name in ("guided_json", "guided_regex", "guided_choice", "cache_salt"):
        if name in values and not getattr(message, name):  # the wire would read "not given"
            raise InvalidArgumentError(name, "must not be empty")
    if "draft_probs" in values:
        wanted = _member(DraftProbsFormat, "draft_probs", values["draft_probs"])
        message.draft_probs = encode_draft_probs_format(wanted)
    message.sampling.CopyFrom(_encode_sampling(values))
    return message


def decode_response(message: orchestrator_pb2.GenerateResponse) -> Chunk:
    """One response, the last with its outcome."""
    tokens = tuple(_decode_token(token) for token in message.tokens)
    prompt_tokens = tuple(_token(token, "prompt") for token in message.prompt_tokens)
    if not message.HasField("outcome"):
        return Chunk(tokens, index=message.index, prompt_tokens=prompt_tokens)
    outcome = message.outcome
    reason = decode_finish_reason(outcome.finish_reason)
    if reason is None:
        raise PacelineError("the server's outcome has no finish reason")
    usage = Usage(**{field.name: getattr(outcome.usage, field.name) for field in fields(Usage)})
    stats = Stats(**{field.name: getattr(outcome.stats, field.name) for field in fields(Stats)})
    spans = tuple(decode_span(span) for span in message.spans)
    return Chunk(tokens, reason.value, usage, stats, message.index, prompt_tokens, spans)


def decode_status(message: orchestrator_pb2.StatusResponse) -> ServiceStatus:
    """The answer to `Status`."""
    workers = tuple(
        WorkerStatus(
            worker.role,
            worker.address,
            worker.connected,
            worker.detail,
            decode_worker_info(worker.description) if worker.HasField("description") else None,
        )
        for worker in message.workers
    )
    sessions = tuple(
        SessionStatus(**{field.name: getattr(session, field.name) for field in _SESSION_FIELDS})
        for session in message.sessions
    )
    return ServiceStatus(
        message.model,
        message.context_length,
        message.live_sessions,
        workers,
        dict(message.counters),
        sessions,
    )


def _encode_sampling(values: Mapping[str, Any]) -> common_pb2.SamplingParams:
    message = common_pb2.SamplingParams()
    for name in SCALARS:
        if name in values:
            set_field(message, name, values[name])
    bias = values.get("logit_bias", ())
    for entry in bias.items() if isinstance(bias, Mapping) else bias:
        _add_bias(message, entry)
    extend_field(message, "allowed_token_ids", values.get("allowed_token_ids", ()))
    extend_field(message, "stop_token_ids", values.get("stop_token_ids", ()))
    for sequence in values.get("bad_words_token_ids", ()):
        try:
            message.bad_words_token_ids.add().token_ids.extend(sequence)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError("bad_words_token_ids", str(error)) from error
    if "acceptance" in values:
        message.acceptance = encode_acceptance(
            _member(Acceptance, "acceptance", values["acceptance"])
        )
    return message


def _add_bias(message: common_pb2.SamplingParams, entry: Any) -> None:
    try:
        token_id, bias = entry
        message.logit_bias.add(token_id=token_id, bias=bias)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError("logit_bias", f"{entry!r}: {error}") from error


def _add_message(message: orchestrator_pb2.GenerateRequest, entry: Any) -> None:
    if not isinstance(entry, Mapping) or set(entry) != {"role", "content"}:
        problem = f"each needs role and content and nothing else, got {entry!r}"
        raise InvalidArgumentError("messages", problem)
    try:
        message.messages.add(role=entry["role"], content=entry["content"])
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError("messages", str(error)) from error


def _member(kind: type[EnumT], field: str, value: Any) -> EnumT:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidArgumentError(field, f"{value!r} is none of {known}") from None


def _decode_token(token: orchestrator_pb2.Token) -> Token:
    origin = decode_origin(token.origin)
    if origin is None:
        raise PacelineError(f"the server's token {token.id} has no origin")
    return _token(token, origin.value)


def _token(token: orchestrator_pb2.Token, origin: str) -> Token:
    return Token(
        id=token.id,
        text=token.text,
        logprob=token.logprob if token.HasField("logprob") else None,
        top_logprobs=_decode_top(token.top_logprobs),
        origin=origin,
    )


def _decode_top(entries: Iterable[orchestrator_pb2.TopLogprob]) -> tuple[TopLogprob, ...]:
    return tuple(TopLogprob(entry.id, entry.text, entry.logprob) for entry in entries)
