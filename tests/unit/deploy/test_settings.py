"""Configurations load, and environment variables are ones that somebody reads."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest
from support.deploy_files import DEPLOY, ROOT, compose, container_of, pod_groups

from orchestrator.cluster_members import members_of
from paceline.config import load_config

CONFIGS = sorted((DEPLOY / "config").glob("*.yaml"))
# Who reads which variable; the module's source must name it.
READERS = {
    "HF_HOME": "huggingface_hub.constants",
    "HF_TOKEN": "huggingface_hub.utils._auth",
    "HF_HUB_OFFLINE": "huggingface_hub.constants",
    "RAY_USAGE_STATS_ENABLED": "ray._common.usage.usage_constants",
    "RAY_AUTH_MODE": "ray._private.authentication.authentication_token_setup",
    "RAY_AUTH_TOKEN_PATH": "ray._private.runtime_env.image_uri",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "opentelemetry.sdk.environment_variables",
}
# Read by the shell, Python, NVIDIA's container toolkit and Grafana, whose sources are not here.
ELSEWHERE = re.compile(
    r"PATH|PYTHONUNBUFFERED|PIP_(DISABLE_PIP_VERSION_CHECK|ROOT_USER_ACTION)"
    r"|NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES)"
    r"|GF_(AUTH|SECURITY|ANALYTICS)_[A-Z_]+"
)


def variables() -> Iterator[str]:
    for service in compose()["services"].values():
        yield from service.get("environment", {})
    for group in pod_groups().values():
        yield from (variable["name"] for variable in container_of(group)["env"])
    yield from re.findall(
        r"([A-Z][A-Z_]+)=", (DEPLOY / "ray" / "environment.sh").read_text().replace("# export", "")
    )
    dockerfile = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"^ENV (.*)$", dockerfile, flags=re.MULTILINE):
        yield from re.findall(r"([A-Z][A-Z_]+)=", line)
    yield "HF_HUB_OFFLINE"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_loads_and_could_be_placed(path: object) -> None:
    config = load_config(CONFIGS[[*CONFIGS].index(path)])  # type: ignore[arg-type]
    assert members_of(config)
    assert config.telemetry.metrics.listen == "0.0.0.0:9464"


def test_there_is_a_configuration_for_each_way_to_deploy() -> None:
    names = {path.name for path in CONFIGS}
    assert names == {"container.yaml", "compose.yaml", "compose-cuda.yaml", "cluster.yaml"}


@pytest.mark.parametrize("name", sorted(set(variables())))
def test_every_environment_variable_is_read_by_somebody(name: str) -> None:
    if ELSEWHERE.fullmatch(name) is None:
        assert name in inspect.getsource(importlib.import_module(READERS[name]))


def test_no_file_of_deploy_holds_a_secret() -> None:
    suspicious = re.compile(
        r"BEGIN [A-Z ]*PRIVATE KEY|(password|token|secret)\s*[:=]\s*[\"']?[A-Za-z0-9+/]{16,}"
        r"|hf_[A-Za-z0-9]{10,}|AKIA[A-Z0-9]{16}",
        re.IGNORECASE,
    )
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and not {"secrets", "ca"} & set(path.relative_to(DEPLOY).parts):
            assert suspicious.search(path.read_text()) is None, path
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"deploy/ca/", "deploy/secrets/"} <= set(ignored)


def test_only_a_cluster_of_several_machines_needs_secrets() -> None:
    for path in CONFIGS:
        security = load_config(path).security
        complete = None not in (
            security.tls_cert_file,
            security.tls_ca_file,
            security.tls_server_name,
            security.token_file,
        )
        assert complete == (path.name == "cluster.yaml")
