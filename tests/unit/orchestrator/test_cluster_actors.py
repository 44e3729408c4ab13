"""How a hosted service's errors come home, and what Ray says of its end."""

import pickle

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from orchestrator.cluster_actors import Failure, reason_of
from paceline.errors import InvalidArgumentError, ModelLoadError, StartupError


def test_an_error_with_a_constructor_of_its_own_comes_back_whole() -> None:
    failure: Failure = pickle.loads(
        pickle.dumps(Failure.of(InvalidArgumentError("top_p", "is above 1")))
    )
    error = failure.error()
    assert type(error) is InvalidArgumentError
    assert (str(error), error.field) == ("top_p: is above 1", "top_p")


def test_a_startup_error_comes_back_as_its_class() -> None:
    error = Failure.of(ModelLoadError("no such file: m.gguf")).error()
    assert type(error) is ModelLoadError
    assert str(error) == "no such file: m.gguf"
    assert error.__cause__ is None


def test_a_fault_of_ours_comes_back_with_its_trace() -> None:
    try:
        raise ZeroDivisionError("oops")
    except ZeroDivisionError as fault:
        error = Failure.of(fault).error()
    assert type(error) is StartupError
    assert str(error) == "ZeroDivisionError: oops"
    assert "test_cluster_actors.py" in str(error.__cause__)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tpid: 3\nThe actor is dead "
            "because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
            "detail: Worker exits with code 2. End of file. Some common causes include: (1) …",
            "Worker exits with code 2. End of file",
        ),
        (
            "The actor died.\n\tpid: 3\nThe actor is dead because it was killed by `ray.kill`.",
            "was killed by `ray.kill`",
        ),
        ("The actor is unavailable.\nmore", "The actor is unavailable."),
    ],
)
def test_rays_report_of_a_death_becomes_one_line(text: str, reason: str) -> None:
    error = ActorDiedError()
    error.error_msg = text
    assert reason_of(error) == reason
    assert reason_of(ActorUnavailableError("no route", None)).count("\n") == 0
