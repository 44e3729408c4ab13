"""The files of `deploy/`, and whether the commands in them are ones that the code understands."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from paceline.cli.app import app
from paceline.rpc import main as service_main
from paceline.rpc import probe

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONFIG_IN_CONTAINER = "/etc/paceline/paceline.yaml"
SERVICE_MODULES = {
    "drafter_service": "drafter",
    "verifier_service": "verifier",
    "orchestrator": "orchestrator",
}

_REDIRECTION = re.compile(r"\s\d?>>?\s*\S+")
_OPERATORS = {";", "&&", "||", "&", "|", "do", "done", "then", "fi", "{", "}"}
_PREFIXES = {"until", "if", "exec", "!", "sudo"}


def documents(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text()))


def document(path: Path) -> Any:
    """The one document of a YAML file."""
    (only,) = documents(path)
    return only


def simple_commands(script: str) -> list[list[str]]:
    """The commands of a shell script of the kind that stands in manifests: words, `&&`, `;`, loops
    and redirections; no nested quoting.
    """
    lexer = shlex.shlex(_REDIRECTION.sub("", script), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in _OPERATORS:
            commands.append([])
        elif commands[-1] or word not in _PREFIXES:
            commands[-1].append(word)
    return [command for command in commands if command]


def is_ours(command: Sequence[str]) -> bool:
    """Whether `check` knows the program."""
    name = Path(command[0]).name
    return name in ("paceline", "ray") or (name == "python" and command[1] == "-m")


def check(command: Sequence[str]) -> None:
    """Fail unless program, subcommand, flags and their values are understood. Runs nothing."""
    name, arguments = Path(command[0]).name, list(command[1:])
    match name:
        case "paceline":
            _parse_click(typer.main.get_command(app), arguments)
        case "ray":
            from ray.scripts.scripts import cli

            _parse_click(cli, arguments)
        case "python":
            _check_module(arguments[1], arguments[2:])
        case _:
            raise AssertionError(f"unknown program: {shlex.join(command)}")


def _check_module(module: str, arguments: Sequence[str]) -> None:
    assert importlib.util.find_spec(module) is not None, module
    if module in SERVICE_MODULES:
        assert importlib.util.find_spec(f"{module}.__main__") is not None
        service_main._parse(SERVICE_MODULES[module], arguments)
    elif module == probe.__name__:
        probe._parse(arguments)
    else:
        assert module in ("venv", "pip"), module


def _parse_click(command: Any, arguments: list[str]) -> None:
    """For click's commands and typer's, which are their own classes."""
    while hasattr(command, "get_command"):
        name, *arguments = arguments
        found = command.get_command(None, name)
        assert found is not None, f"{name}: no such command"
        command = found
    command.make_context(command.name, arguments)


# --- compose ------------------------------------------------------------------------------------


def compose() -> Any:
    return document(DEPLOY / "compose.yaml")


def compose_scripts() -> Iterator[tuple[str, str]]:
    """Service and shell script of each of our containers."""
    for name, service in compose()["services"].items():
        match service.get("command"):
            case ["sh", "-c", script]:
                yield name, script


# --- KubeRay ------------------------------------------------------------------------------------


def ray_cluster() -> Any:
    return document(DEPLOY / "kuberay" / "cluster.yaml")


def pod_groups() -> dict[str, Any]:
    """Head and worker groups of the RayCluster, by name."""
    spec = ray_cluster()["spec"]
    return {
        "head": spec["headGroupSpec"],
        **{group["groupName"]: group for group in spec["workerGroupSpecs"]},
    }


def container_of(group: Mapping[str, Any]) -> Any:
    (container,) = group["template"]["spec"]["containers"]
    return container


def generated_ray_start(name: str, group: Mapping[str, Any]) -> str:
    """The `ray start` command that KubeRay makes of a group's parameters."""
    parameters = {"block": "true", "metrics-export-port": "8080", **group["rayStartParams"]}
    flags = [
        f"--{key}" if value == "true" else f"--{key}={value}" for key, value in parameters.items()
    ]
    role = "--head" if name == "head" else "--address=paceline-head-svc:6379"
    return " ".join(["ray start", role, *flags])


def resources_flag(command: Sequence[str]) -> dict[str, float]:
    """The custom resources that a `ray start` command offers."""
    for index, word in enumerate(command):
        if word == "--resources":
            return dict(json.loads(command[index + 1]))
        if word.startswith("--resources="):
            return dict(json.loads(word.partition("=")[2]))
    return {}
