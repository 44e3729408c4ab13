"""How a hosted service gets its address, and how its errors come home."""

import pickle
import socket
from collections.abc import Iterator

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from orchestrator.cluster_actors import Failure, Launch, reason_of, with_listen
from orchestrator.cluster_members import Member, Role
from paceline.config import Config, parse_config
from paceline.errors import InvalidArgumentError, ModelLoadError, StartupError

NODE = "192.0.2.7"


def launch_of(role: Role, *, index: int = 0, expose: bool = False, **options: object) -> Launch:
    config = parse_config({role.value: {"listen": options.pop("listen")}}, source="test")
    member = Member(role, index, num_cpus=0.5, num_gpus=0)
    return Launch(config, "module:start", member, expose=expose, **options)  # type: ignore[arg-type]


def listen_of(launch: Launch) -> str:
    config: Config = with_listen(launch, NODE)
    listen: str = getattr(config, launch.member.role.value).listen
    return listen


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_first_replica_takes_the_configured_port(free_port: int) -> None:
    listen = f"127.0.0.1:{free_port}"
    assert listen_of(launch_of(Role.VERIFIER, listen=listen)) == listen


def test_further_replicas_take_free_ports(free_port: int) -> None:
    launch = launch_of(Role.VERIFIER, index=1, listen=f"127.0.0.1:{free_port}", is_first=False)
    assert listen_of(launch) == "127.0.0.1:0"


def test_a_restarted_replica_takes_the_port_it_had(free_port: int) -> None:
    launch = launch_of(Role.DRAFTER, index=1, listen="127.0.0.1:50051", previous_port=free_port)
    assert listen_of(launch) == f"127.0.0.1:{free_port}"


def test_a_worker_whose_port_is_taken_takes_a_free_one(taken_port: int) -> None:
    launch = launch_of(Role.DRAFTER, listen=f"127.0.0.1:{taken_port}")
    assert listen_of(launch) == "127.0.0.1:0"


def test_an_orchestrator_keeps_its_port_so_that_a_taken_one_is_an_error(taken_port: int) -> None:
    listen = f"127.0.0.1:{taken_port}"
    assert listen_of(launch_of(Role.ORCHESTRATOR, listen=listen)) == listen


def test_on_several_machines_loopback_becomes_the_node() -> None:
    launch = launch_of(Role.ORCHESTRATOR, listen="127.0.0.1:50050", expose=True)
    assert listen_of(launch) == f"{NODE}:50050"


def test_an_address_of_the_users_choice_stays() -> None:
    launch = launch_of(Role.ORCHESTRATOR, listen="0.0.0.0:50050", expose=True)
    assert listen_of(launch) == "0.0.0.0:50050"


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
