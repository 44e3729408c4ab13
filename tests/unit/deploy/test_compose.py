"""compose: a document of known keys, and a cluster on which `paceline up` fits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from support.deploy_files import (
    CONFIG_IN_CONTAINER,
    DEPLOY,
    check,
    compose,
    compose_scripts,
    document,
    is_ours,
    resources_flag,
    simple_commands,
)

from orchestrator.cluster_members import Role, members_of
from paceline.config import Config, load_config

NODES = ("drafter", "verifier", "orchestrator")
# By the operator.
MADE_LATER = ("./secrets",)
FILES = ("compose.yaml", "compose.cuda.yaml", "compose.tls.yaml")


class Part(BaseModel):
    """The subset of the compose specification that is used here; other keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


class Build(Part):
    context: str | None = None
    dockerfile: str | None = None
    args: dict[str, str] = Field(default_factory=dict)


class Health(Part):
    test: list[str]
    interval: str
    timeout: str
    retries: int
    start_period: str
    start_interval: str | None = None


class Dependency(Part):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]
    required: bool = True


class Device(Part):
    driver: str
    device_ids: list[str]
    capabilities: list[str]


class Reservations(Part):
    devices: list[Device]


class Resources(Part):
    reservations: Reservations


class Deploy(Part):
    resources: Resources


class Service(Part):
    image: str | None = None
    build: Build | None = None
    user: str | None = None
    init: bool = False
    restart: Literal["unless-stopped"] | None = None
    stop_grace_period: str | None = None
    shm_size: str | None = None
    cap_drop: list[str] = Field(default_factory=list)
    security_opt: list[str] = Field(default_factory=list)
    environment: dict[str, str] = Field(default_factory=dict)
    volumes: list[str] = Field(default_factory=list)
    command: list[str] | None = None
    healthcheck: Health | None = None
    ports: list[str] = Field(default_factory=list)
    depends_on: dict[str, Dependency] = Field(default_factory=dict)
    deploy: Deploy | None = None


class Compose(Part):
    name: str | None = None
    services: dict[str, Service]
    volumes: dict[str, None] = Field(default_factory=dict)


def parsed(name: str) -> Compose:
    data = {key: value for key, value in document(DEPLOY / name).items() if key[:2] != "x-"}
    return Compose.model_validate(data)


def our_config() -> Config:
    return load_config(DEPLOY / "config" / "compose.yaml")


@pytest.mark.parametrize("name", FILES)
def test_every_key_is_one_that_compose_knows(name: str) -> None:
    assert parsed(name).services


def test_an_override_changes_services_that_exist() -> None:
    base = parsed("compose.yaml").services
    for name in FILES[1:]:
        for service, changed in parsed(name).services.items():
            assert service in base
            assert changed.command is None


@pytest.mark.parametrize("service", parsed("compose.yaml").services)
def test_every_service_is_pinned_unprivileged_and_health_checked(service: str) -> None:
    found = parsed("compose.yaml").services[service]
    assert found.image is not None
    tag = found.image.rpartition(":")[2]
    assert re.search(r"\d+\.\d+\.\d+", tag), found.image
    assert found.cap_drop == ["ALL"]
    assert found.security_opt == ["no-new-privileges:true"]
    assert found.healthcheck is not None
    assert found.restart == "unless-stopped"


@pytest.mark.parametrize("service", NODES)
def test_our_containers_run_as_the_images_user_under_an_init(service: str) -> None:
    found = parsed("compose.yaml").services[service]
    assert found.user == "10001:10001"
    # Ray leaves processes behind that somebody must reap, and signals must get through `sh`
    assert found.init
    assert found.build is not None
    assert (DEPLOY / str(found.build.context) / str(found.build.dockerfile)).is_file()


def test_ports_are_published_on_loopback_and_are_the_codes_defaults() -> None:
    services = parsed("compose.yaml").services
    published = {name: service.ports for name, service in services.items() if service.ports}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    port = Config().orchestrator.listen.rpartition(":")[2]
    assert published["orchestrator"] == [f"127.0.0.1:{port}:{port}"]
    assert not {"drafter", "verifier"} & set(published)


def test_every_dependency_and_volume_exists_and_dependencies_are_health_checked() -> None:
    composed = parsed("compose.yaml")
    for service in composed.services.values():
        for name, dependency in service.depends_on.items():
            assert name in composed.services
            if dependency.condition == "service_healthy":
                assert composed.services[name].healthcheck is not None
        for volume in service.volumes:
            source = volume.partition(":")[0]
            assert source.startswith("./") or source in composed.volumes


def test_answers_end_before_their_workers_go() -> None:
    """Compose stops in reverse order of dependence."""
    services = parsed("compose.yaml").services
    assert {"drafter", "verifier"} <= set(services["orchestrator"].depends_on)
    assert not services["drafter"].depends_on
    assert not services["verifier"].depends_on
    # they wait for the head by themselves instead
    for name, script in compose_scripts():
        if name != "orchestrator":
            assert script.startswith("until ray health-check --address orchestrator:6379 ")


@pytest.mark.parametrize("name", FILES)
def test_every_mounted_file_exists(name: str) -> None:
    for service in parsed(name).services.values():
        for volume in service.volumes:
            source = volume.partition(":")[0]
            if source.startswith("./") and source not in MADE_LATER:
                assert (DEPLOY / source).exists(), source


@pytest.mark.parametrize(("service", "script"), list(compose_scripts()))
def test_every_command_is_understood(service: str, script: str) -> None:
    commands = simple_commands(script)
    ours = [command for command in commands if is_ours(command)]
    for command in ours:
        check(command)
    assert [command for command in commands if command not in ours] in ([], [["sleep", "1"]])
    assert any(command[:2] == ["ray", "start"] for command in ours)


@pytest.mark.parametrize("service", NODES)
def test_the_health_check_probes_the_service_that_the_container_is_for(service: str) -> None:
    found = parsed("compose.yaml").services[service]
    assert found.healthcheck is not None
    kind, *command = found.healthcheck.test
    assert kind == "CMD"
    check(command)
    assert command[3] == service
    assert command[-1] == CONFIG_IN_CONTAINER
    (mount,) = [volume for volume in found.volumes if CONFIG_IN_CONTAINER in volume]
    assert load_config(DEPLOY / Path(mount.partition(":")[0])) == our_config()


@pytest.mark.parametrize("config", ["compose.yaml", "compose-cuda.yaml"])
def test_each_service_fits_on_its_own_container_and_on_no_other(config: str) -> None:
    offered: dict[str, dict[str, Any]] = {}
    for name, script in compose_scripts():
        for command in simple_commands(script):
            if command[:2] == ["ray", "start"]:
                offered[name] = resources_flag(command)
    if "cuda" in config:
        for name, service in parsed("compose.cuda.yaml").services.items():
            if service.deploy is not None:
                (device,) = service.deploy.resources.reservations.devices
                offered[name]["GPU"] = len(device.device_ids)
    settings = load_config(DEPLOY / "config" / config)
    for member in members_of(settings):
        wanted = {name: amount for name, amount in member.demand.items() if name != "CPU"}
        fitting = [
            name
            for name, resources in offered.items()
            if all(resources.get(resource, 0) >= amount for resource, amount in wanted.items())
        ]
        assert fitting == [member.role.value]
    assert {member.role for member in members_of(settings)} == set(Role)


@pytest.mark.parametrize("config", ["compose.yaml", "compose-cuda.yaml"])
def test_services_listen_where_other_containers_and_prometheus_reach_them(config: str) -> None:
    settings = load_config(DEPLOY / "config" / config)
    for role in Role:
        listen = getattr(settings, role.value).listen
        default = getattr(Config(), role.value).listen
        assert listen == default.replace("127.0.0.1", "0.0.0.0")
    assert settings.telemetry.metrics.listen == "0.0.0.0:9464"
    # the workers' nodes join after the head has started
    assert settings.cluster.place_timeout_s >= 300
    assert settings.cluster.ray_address == "auto"


def test_spans_go_to_the_jaeger_beside_it() -> None:
    traces = our_config().telemetry.traces
    assert traces.level == "token"
    assert traces.endpoint == "http://jaeger:4317"
    assert traces.protocol == "grpc"
    jaeger = parsed("compose.yaml").services["jaeger"]
    assert jaeger.image is not None
    assert jaeger.image.startswith("jaegertracing/jaeger:2.")
    assert jaeger.ports == ["127.0.0.1:16686:16686"]


def test_ray_asks_for_a_token_that_the_head_makes_and_the_nodes_share() -> None:
    scripts = dict(compose_scripts())
    assert scripts["orchestrator"].startswith("ray get-auth-token --generate ")
    for name in NODES:
        service = compose()["services"][name]
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert "ray-token:/home/paceline/.ray" in service["volumes"]
    assert "/home/paceline/.ray" in (DEPLOY / "Dockerfile").read_text()


def test_the_secrets_are_mounted_where_the_configuration_of_a_cluster_looks() -> None:
    security = load_config(DEPLOY / "config" / "cluster.yaml").security
    assert security.token_file is not None
    for service in parsed("compose.tls.yaml").services.values():
        assert service.volumes == [f"./secrets:{security.token_file.parent}:ro"]
