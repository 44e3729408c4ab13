"""`ray up` files: valid by Ray's own schema and code, closed to the world, and big enough."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from ray.autoscaler._private.util import prepare_config, validate_config
from support.deploy_files import DEPLOY, ROOT, check, document, is_ours, simple_commands

from orchestrator.cluster_members import members_of
from paceline.config import load_config

FILES = ("on-premises", "aws")
# What Amazon puts into a machine.
GPUS = {"m7i.xlarge": 0, "g6.xlarge": 1, "g6e.4xlarge": 1}


def loaded(name: str) -> Any:
    return document(DEPLOY / "ray" / f"{name}.yaml")


def commands(name: str) -> list[list[str]]:
    found: list[list[str]] = []
    for key, value in loaded(name).items():
        if key.endswith("_commands"):
            for script in value:
                found += simple_commands(script)
    return found


@pytest.mark.parametrize("name", FILES)
def test_ray_itself_accepts_it(name: str) -> None:
    """As `ray up` does, up to where it would need the machines."""
    prepared = prepare_config(loaded(name))
    validate_config(prepared)
    assert prepared["available_node_types"]


def test_rays_schema_does_refuse() -> None:
    wrong = {**loaded("aws"), "head_node_typ": "head"}
    with pytest.raises(Exception, match="head_node_typ"):
        validate_config(prepare_config(wrong))


@pytest.mark.parametrize("name", FILES)
def test_every_command_is_understood(name: str) -> None:
    ours = [command for command in commands(name) if is_ours(command)]
    for command in ours:
        check(command)
    assert sum(command[:2] == ["ray", "start"] for command in ours) == 2
    known = {"test", "cd", "grep", "echo", ".", "ulimit", "mkdir", "ln", "apt-get", "python3"}
    others = {command[0] for command in commands(name) if not is_ours(command)}
    assert others <= known


@pytest.mark.parametrize("name", FILES)
def test_what_is_copied_exists_and_what_is_sourced_is_copied(name: str) -> None:
    config = loaded(name)
    home = f"/home/{config['auth']['ssh_user']}"
    assert config["file_mounts"].pop(f"{home}/src") == "."
    assert all(local == "deploy/secrets" for local in config["file_mounts"].values())
    assert {"deploy/ca", "deploy/secrets"} <= set(config["rsync_exclude"])
    sourced = {command[1] for command in commands(name) if command[0] == "."}
    assert sourced == {"~/src/deploy/ray/environment.sh"}
    assert (ROOT / "deploy" / "ray" / "environment.sh").is_file()
    installs = [command for command in commands(name) if "constraints.txt" in command]
    assert [command[-1] for command in installs] == [".[serve]"]


@pytest.mark.parametrize("name", FILES)
def test_every_node_sources_the_environment_before_it_starts_ray(name: str) -> None:
    config = loaded(name)
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert len(config[key]) == 2
        for script in config[key]:
            assert script.startswith(". ~/src/deploy/ray/environment.sh && ")


def test_the_cloud_has_no_port_open_to_the_world() -> None:
    """Ray's own security group lets the internet try SSH; each node type names another."""
    for node_type in loaded("aws")["available_node_types"].values():
        assert node_type["node_config"]["SecurityGroupIds"]
        assert node_type["node_config"]["MetadataOptions"] == {"HttpTokens": "required"}
        for disk in node_type["node_config"]["BlockDeviceMappings"]:
            assert disk["Ebs"]["Encrypted"] is True
    assert "security_group" not in loaded("aws")["provider"]


def test_the_fixed_ports_are_told_apart_and_stand_on_the_page() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert "6379 (head), 6380 to 6384, 52365, 20000 to 20999" in page
    starts = [command for command in commands("on-premises") if command[:2] == ["ray", "start"]]
    for start in starts:
        flags = dict(word[2:].split("=", 1) for word in start[2:] if "=" in word)
        ports = {int(value) for key, value in flags.items() if key.endswith("-port")}
        assert ports - {6379} == {*range(6380, 6385), 52365, 20000, 20999}
    assert starts[0][2:4] == ["--head", "--port=6379"]
    assert "--address=$RAY_HEAD_IP:6379" in starts[1]


def test_the_configuration_fits_on_the_machines_of_the_cloud() -> None:
    types = loaded("aws")["available_node_types"]
    rooms = [
        {**node_type["resources"], "GPU": GPUS[node_type["node_config"]["InstanceType"]]}
        for name, node_type in types.items()
        for _ in range(1 if name == "head" else node_type["min_workers"])
    ]
    for member in members_of(load_config(DEPLOY / "config" / "cluster.yaml")):
        wanted = {name: amount for name, amount in member.demand.items() if name != "CPU"}
        room = next(
            room
            for room in rooms
            if all(room.get(resource, 0) >= amount for resource, amount in wanted.items())
        )
        for resource, amount in wanted.items():
            room[resource] -= amount
    assert sum(t.get("max_workers", 0) for t in types.values()) == loaded("aws")["max_workers"]


def test_on_premises_the_configuration_asks_for_what_the_file_tells_to_write() -> None:
    provider = loaded("on-premises")["provider"]
    members = members_of(load_config(DEPLOY / "config" / "cluster.yaml"))
    workers = [member for member in members if "orchestrator" not in member.resources]
    assert len(provider["worker_ips"]) == len(workers)
    page = (ROOT / "docs" / "deploy.md").read_text()
    for member in workers:
        (resource,) = member.resources
        assert f'`{{"{resource}": 1}}`' in page
    (start,) = [c for c in commands("on-premises") if c[:3] == ["ray", "start", "--head"]]
    assert '--resources={"orchestrator": 4}' in start
    assert '"$(cat /etc/paceline/resources.json)"' in shlex.join(
        loaded("on-premises")["worker_start_ray_commands"]
    )
