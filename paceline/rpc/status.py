"""Paceline errors ↔ gRPC statuses. One table serves calls, streams and `SessionError`s alike."""

from __future__ import annotations

import grpc
import grpc.aio

from paceline.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    PacelineError,
    ResourceExhaustedError,
    SessionLostError,
    StartupError,
    UnauthenticatedError,
    UnavailableError,
    describe_error,
)
from paceline.types import SessionError, SessionId

# A subclass that shares its parent's code comes back as the parent: the wire knows codes only.
_CLASSES: dict[str, type[PacelineError]] = {
    error_class.code: error_class
    for error_class in (
        PacelineError,
        ResourceExhaustedError,
        UnavailableError,
        SessionLostError,
        UnauthenticatedError,
        DeadlineExceededError,
        CancelledError,
        StartupError,
    )
}


def status_of(error: PacelineError) -> grpc.StatusCode:
    """The status that a client sees for this error."""
    return grpc.StatusCode[error.code]


def error_from_code(code_name: str, message: str) -> PacelineError:
    """The error that a status code's name and its message stand for.

    A code without a class of its own gives a plain `PacelineError` whose message names the code.
    """
    if code_name == InvalidArgumentError.code:
        field, separator, problem = message.partition(": ")
        return InvalidArgumentError(*((field, problem) if separator else ("request", message)))
    if code_name in _CLASSES:
        return _CLASSES[code_name](message)
    return PacelineError(f"{code_name}: {message}")


def error_from_rpc(error: grpc.aio.AioRpcError) -> PacelineError:
    """The error that a failed call stands for."""
    return error_from_code(error.code().name, error.details() or "no details given")


def session_error(session_id: SessionId, error: BaseException) -> SessionError:
    """The failure of one session in a link; an unexpected exception becomes INTERNAL."""
    code, message = describe_error(error)
    return SessionError(session_id, code, message)
