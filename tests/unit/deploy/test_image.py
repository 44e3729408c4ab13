"""The Dockerfile: pinned, small, without root, and every command and path in it is real."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import sys

import pytest
from support.deploy_files import CONFIG_IN_CONTAINER, DEPLOY, ROOT, check

from paceline.config import load_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCKERFILE = DEPLOY / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Name and arguments, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    text = text.replace("\\\n", " ")
    return [
        (name, rest.strip())
        for name, _, rest in (line.strip().partition(" ") for line in text.splitlines() if line)
    ]


def last(name: str) -> str:
    return [rest for found, rest in instructions() if found == name][-1]


def copied() -> list[str]:
    """What the image takes from the repository."""
    sources: list[str] = []
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            sources += shlex.split(rest)[:-1]
    return sources


def test_every_base_image_is_pinned_to_a_python_that_we_support() -> None:
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert len(bases) == 2
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    least = int(requires.removeprefix(">=3."))
    for base in bases:
        found = re.fullmatch(r"python:3\.(\d+)-slim-[a-z]+", base)
        assert found is not None, base
        assert int(found[1]) >= least


def test_it_runs_as_a_number_that_is_not_root() -> None:
    assert last("USER") == "10001:10001"
    assert all(name != "USER" or rest != "root" for name, rest in instructions())


@pytest.mark.parametrize("source", copied())
def test_what_it_copies_exists_and_is_in_the_build_context(source: str) -> None:
    assert (ROOT / source).exists()
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert f"!{source}" in lines


def test_the_build_context_lets_in_nothing_that_does_not_exist_and_no_secrets() -> None:
    allowed = [
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert allowed == [path for path in allowed if (ROOT / path).exists()]
    for secret in ("deploy/secrets/tls.key", "deploy/ca/ca.key", ".git/config", ".venv/bin/python"):
        assert not [path for path in allowed if fnmatch.fnmatch(secret, f"{path}*")]


def test_every_package_of_the_project_is_in_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.removesuffix("*") for name in packages} <= set(copied())
    assert project["project"]["readme"] in copied()
    assert set(project["project"]["license-files"]) <= set(copied())


def test_dependencies_come_from_the_constraints() -> None:
    pips = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert len(pips) == 3
    for rest in pips:
        assert "-c constraints.txt" in rest or "--no-deps" in rest
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "serve" in extras["optional-dependencies"]
    assert '".[serve]"' in pips[0]
    (default,) = [rest for name, rest in instructions() if rest.startswith("EXAMPLE_MODEL=")]
    makefile = (ROOT / "Makefile").read_text()
    assert default.removeprefix("EXAMPLE_MODEL=") in makefile


def test_what_it_runs_and_its_health_check_are_real() -> None:
    command = json.loads(last("CMD"))
    check(command)
    assert command[:2] == ["paceline", "up"]
    options, _, probe = last("HEALTHCHECK").partition(" CMD ")
    check(json.loads(probe))
    assert json.loads(probe)[3] == "orchestrator"
    timeout = re.search(r"--timeout=(\d+)s", options)
    assert timeout is not None
    # the probe gives up by itself, and says why
    assert int(timeout[1]) > 3
    assert command[-1] == json.loads(probe)[-1] == CONFIG_IN_CONTAINER


def test_its_own_configuration_serves_beyond_the_container_on_the_ports_that_it_exposes() -> None:
    (source,) = [path for path in copied() if path.startswith("deploy/")]
    config = load_config(ROOT / source)
    assert config.orchestrator.listen == "0.0.0.0:50050"
    assert config.cluster.ray_address == "local"
    metrics = config.telemetry.metrics.listen
    assert metrics is not None
    listens = (config.orchestrator.listen, config.drafter.listen, config.verifier.listen, metrics)
    assert last("EXPOSE").split() == [address.rpartition(":")[2] for address in listens]
