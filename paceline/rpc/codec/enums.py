"""Enumerations on the wire. Number 0 means unspecified; each caller says what that stands for."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from paceline.errors import InvalidArgumentError
from paceline.sampling.params import Acceptance, DraftProbsFormat
from paceline.types import DrafterState, FinishReason, Origin
from protos import common_pb2, orchestrator_pb2

EnumT = TypeVar("EnumT", bound=enum.Enum)

_ACCEPTANCES = {
    Acceptance.REJECTION: common_pb2.ACCEPTANCE_REJECTION,
    Acceptance.BLOCK: common_pb2.ACCEPTANCE_BLOCK,
    Acceptance.COUPLED: common_pb2.ACCEPTANCE_COUPLED,
}
_DRAFT_PROBS_FORMATS = {
    DraftProbsFormat.SPARSE: orchestrator_pb2.DRAFT_PROBS_FORMAT_SPARSE,
    DraftProbsFormat.DENSE: orchestrator_pb2.DRAFT_PROBS_FORMAT_DENSE,
    DraftProbsFormat.NONE: orchestrator_pb2.DRAFT_PROBS_FORMAT_NONE,
}
_ORIGINS = {
    Origin.PREFILL: common_pb2.ORIGIN_PREFILL,
    Origin.ACCEPTED: common_pb2.ORIGIN_ACCEPTED,
    Origin.RECOVERED: common_pb2.ORIGIN_RECOVERED,
    Origin.BONUS: common_pb2.ORIGIN_BONUS,
    Origin.AUTOREGRESSIVE: common_pb2.ORIGIN_AUTOREGRESSIVE,
}
_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}
_DRAFTER_STATES = {
    DrafterState.RUNNING: common_pb2.DRAFTER_STATE_RUNNING,
    DrafterState.PAUSED: common_pb2.DRAFTER_STATE_PAUSED,
    DrafterState.ENDED: common_pb2.DRAFTER_STATE_ENDED,
    DrafterState.UNSURE: common_pb2.DRAFTER_STATE_UNSURE,
}


def encode_acceptance(value: Acceptance) -> common_pb2.Acceptance:
    return _ACCEPTANCES[value]


def decode_acceptance(number: int, *, field: str = "acceptance") -> Acceptance | None:
    """None when unspecified. Raises `InvalidArgumentError` for an unknown number."""
    return _decode(_ACCEPTANCES, number, field)


def encode_draft_probs_format(value: DraftProbsFormat) -> orchestrator_pb2.DraftProbsFormat:
    return _DRAFT_PROBS_FORMATS[value]


def decode_draft_probs_format(
    number: int, *, field: str = "draft_probs"
) -> DraftProbsFormat | None:
    return _decode(_DRAFT_PROBS_FORMATS, number, field)


def encode_origin(value: Origin | None) -> common_pb2.Origin:
    return common_pb2.ORIGIN_UNSPECIFIED if value is None else _ORIGINS[value]


def decode_origin(number: int, *, field: str = "origin") -> Origin | None:
    """None when unspecified. Raises `InvalidArgumentError` for an unknown number."""
    return _decode(_ORIGINS, number, field)


def encode_finish_reason(value: FinishReason | None) -> common_pb2.FinishReason:
    return common_pb2.FINISH_REASON_UNSPECIFIED if value is None else _FINISH_REASONS[value]


def decode_finish_reason(number: int, *, field: str = "finish_reason") -> FinishReason | None:
    """None when unspecified. Raises `InvalidArgumentError` for an unknown number."""
    return _decode(_FINISH_REASONS, number, field)


def encode_drafter_state(value: DrafterState) -> common_pb2.DrafterState:
    return _DRAFTER_STATES[value]


def decode_drafter_state(number: int, *, field: str = "state") -> DrafterState:
    """Raises `InvalidArgumentError` for an unknown number and for unspecified."""
    state = _decode(_DRAFTER_STATES, number, field)
    if state is None:
        raise InvalidArgumentError(field, "must be given")
    return state


def _decode(table: Mapping[EnumT, int], number: int, field: str) -> EnumT | None:
    if number == 0:
        return None
    for value, known in table.items():
        if known == number:
            return value
    raise InvalidArgumentError(field, f"unknown value {number}")
