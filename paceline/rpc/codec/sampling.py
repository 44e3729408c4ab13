"""`SamplingParams` on the wire, in the client's partial form and the workers' complete one."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from paceline.errors import InvalidArgumentError
from paceline.rpc.codec.enums import decode_acceptance, encode_acceptance
from paceline.sampling.params import (
    MAX_ENTRIES,
    SamplingParams,
    check_banned_ids,
    check_count,
)
from protos import common_pb2

# Optional fields that have the same name, type and meaning in the message and in the value.
SCALARS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "max_tokens",
    "ignore_eos",
    "seed",
    "logprobs",
    "prompt_logprobs",
)

_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}

# Absent means "not asked for", so these alone may be absent from the complete message.
_OPTIONAL = ("logprobs", "prompt_logprobs")


def encode_sampling(params: SamplingParams) -> common_pb2.SamplingParams:
    """The complete message: every field present, `logprobs` only when asked for.

    Raises `InvalidArgumentError` naming the field whose value no wire type can hold.
    """
    message = common_pb2.SamplingParams(acceptance=encode_acceptance(params.acceptance))
    for name in SCALARS:
        value = getattr(params, name)
        if value is not None:
            set_field(message, name, value)
    try:
        for token_id, bias in params.logit_bias:
            message.logit_bias.add(token_id=token_id, bias=bias)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError("logit_bias", str(error)) from error
    extend_field(message, "allowed_token_ids", params.allowed_token_ids)
    extend_field(message, "stop_token_ids", params.stop_token_ids)
    for sequence in params.bad_words_token_ids:
        extend_field(message.bad_words_token_ids.add(), "token_ids", sequence)
    return message


def decode_sampling(
    message: common_pb2.SamplingParams, *, defaults: SamplingParams
) -> SamplingParams:
    """A client's parameters; an absent field takes the value that it has in `defaults`.

    Repeated fields are taken as sent. Raises `InvalidArgumentError` naming the field.
    """
    for name in MAX_ENTRIES:  # before anything is made of them
        check_count(name, len(getattr(message, name)))
    check_banned_ids(sum(len(sequence.token_ids) for sequence in message.bad_words_token_ids))
    values: dict[str, Any] = {
        name: getattr(message, name) if message.HasField(name) else getattr(defaults, name)
        for name in SCALARS
    }
    return SamplingParams(
        **values,
        logit_bias=tuple((entry.token_id, entry.bias) for entry in message.logit_bias),
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words_token_ids=tuple(
            tuple(sequence.token_ids) for sequence in message.bad_words_token_ids
        ),
        stop_token_ids=tuple(message.stop_token_ids),
        acceptance=decode_acceptance(message.acceptance) or defaults.acceptance,
    )


def decode_complete_sampling(message: common_pb2.SamplingParams) -> SamplingParams:
    """A worker's parameters. A default filled in by one worker alone would break losslessness,
    so an absent field raises `InvalidArgumentError`; only the log-probabilities may be.
    """
    for name in SCALARS:
        if name not in _OPTIONAL and not message.HasField(name):
            raise InvalidArgumentError(name, "must be given")
    if message.acceptance == common_pb2.ACCEPTANCE_UNSPECIFIED:
        raise InvalidArgumentError("acceptance", "must be given")
    return decode_sampling(message, defaults=SamplingParams())


def set_field(message: Any, name: str, value: Any) -> None:
    """Set a scalar; a value outside the wire's type is the caller's error, named by field."""
    try:
        setattr(message, name, value)
    except (ValueError, TypeError) as error:
        raise _unfit(message, name, [value], error) from error


def extend_field(message: Any, name: str, values: Any) -> None:
    """Fill a repeated scalar; as `set_field`."""
    try:
        getattr(message, name).extend(values)
    except (ValueError, TypeError) as error:
        raise _unfit(message, name, values, error) from error


def _unfit(message: Any, name: str, values: Any, error: Exception) -> InvalidArgumentError:
    """The wire's own words for a value of a wrong type; the limits for a number beyond them."""
    limits = _LIMITS.get(message.DESCRIPTOR.fields_by_name[name].cpp_type)
    if limits is not None and isinstance(values, list | tuple):
        for value in values:
            if isinstance(value, int) and not limits[0] <= value <= limits[1]:
                return InvalidArgumentError(name, f"{value} is not from {limits[0]} to {limits[1]}")
    return InvalidArgumentError(name, str(error))
