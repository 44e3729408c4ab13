"""The addresses that a member of a deployment comes to listen on."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.cluster_launch import Launch, with_listen, with_metrics_listen
from orchestrator.cluster_members import Member, Role
from paceline.config import Config, parse_config

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


@pytest.mark.parametrize(
    ("listen", "expose", "expected"),
    [
        ("127.0.0.1:9464", False, "127.0.0.1:9464"),
        ("127.0.0.1:9464", True, f"{NODE}:9464"),
        ("0.0.0.0:9464", True, "0.0.0.0:9464"),
    ],
)
def test_members_of_one_machine_may_try_many_ports_for_their_metrics(
    listen: str, expose: bool, expected: str
) -> None:
    config = parse_config({"telemetry": {"metrics": {"listen": listen}}}, source="test")
    metrics = with_metrics_listen(config, NODE, expose=expose).telemetry.metrics
    assert (metrics.listen, metrics.port_tries) == (expected, 64)


def test_metrics_that_are_off_stay_off() -> None:
    assert with_metrics_listen(Config(), NODE, expose=True) == Config()


MODEL = {"kind": "model", "model": {"path": "m"}}


@pytest.mark.parametrize(
    ("sections", "expose", "shared"),
    [
        ({"drafter": MODEL}, False, True),
        ({"drafter": MODEL}, True, False),
        ({"drafter": {"kind": "ngram"}}, False, False),
        ({"drafter": MODEL, "cluster": {"verifier": {"num_gpus": 1}}}, False, False),
    ],
    ids=["two models, one machine", "several machines", "one model", "a GPU"],
)
def test_cpus_are_shared_by_two_models_of_one_machine(
    sections: dict[str, Any], expose: bool, shared: bool
) -> None:
    config = parse_config(sections, source="test")
    member = Member(Role.VERIFIER, 0, num_cpus=0.5, num_gpus=0)
    assert Launch(config, "module:start", member, expose).shares_cpus == shared
