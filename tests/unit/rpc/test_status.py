"""Errors keep their kind over the wire."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from paceline.errors import InvalidArgumentError, PacelineError, SessionLostError, StartupError
from paceline.rpc.status import error_from_code, error_from_rpc, session_error, status_of


def every_error_class() -> list[type[PacelineError]]:
    classes, queue = [], [PacelineError]
    while queue:
        current = queue.pop()
        classes.append(current)
        queue.extend(current.__subclasses__())
    return classes


def make(error_class: type[PacelineError]) -> PacelineError:
    if issubclass(error_class, InvalidArgumentError):
        return error_class("top_p", "must be at most 1: got 2")
    return error_class("what went wrong")


@pytest.mark.parametrize("error_class", every_error_class())
def test_every_error_has_a_status_and_comes_back_as_its_kind(
    error_class: type[PacelineError],
) -> None:
    error = make(error_class)
    status = status_of(error)
    assert status is not grpc.StatusCode.OK
    back = error_from_rpc(
        grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), details=str(error))
    )
    assert str(back) == str(error)
    assert back.code == error.code
    # The four kinds of start-up error share a status and come back as their common parent.
    expected = StartupError if issubclass(error_class, StartupError) else error_class
    assert type(back) is expected


def test_an_invalid_argument_comes_back_with_its_field() -> None:
    error = error_from_code("INVALID_ARGUMENT", "top_p: must be at most 1: got 2")
    assert isinstance(error, InvalidArgumentError)
    assert error.field == "top_p"
    assert str(error) == "top_p: must be at most 1: got 2"
    assert str(error_from_code("INVALID_ARGUMENT", "bad")) == "request: bad"


def test_a_code_without_a_class_of_its_own_stays_readable() -> None:
    error = error_from_code("UNIMPLEMENTED", "Method not found!")
    assert type(error) is PacelineError
    assert str(error) == "UNIMPLEMENTED: Method not found!"


def test_an_unexpected_exception_tells_a_client_its_class_only() -> None:
    assert session_error(4, SessionLostError("gone")).code == "ABORTED"
    error = session_error(4, KeyError("secret"))
    assert (error.session_id, error.code) == (4, "INTERNAL")
    assert "secret" not in error.message


def test_an_endless_message_is_cut_to_what_a_trailer_carries() -> None:
    assert len(session_error(1, PacelineError("x" * 100_000)).message) < 2000
