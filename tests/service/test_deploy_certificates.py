"""The certificates that docs/deploy.md says how to make: mutual TLS between all services, by a name
that is no address.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.services import collect, scripted

from paceline.client import Client
from paceline.config import SecurityConfig, parse_config
from paceline.errors import PacelineError, StartupError, UnavailableError
from paceline.rpc.probe import health_of
from paceline.runtime.scripted import ScriptedRunner, hashed_script

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
FIELDS: dict[str, Any] = {"token_ids": [1, 2], "max_tokens": 8, "temperature": 0}


def section() -> str:
    text = PAGE.read_text()
    return text[text.index("## TLS and tokens") : text.index("## Several machines")]


@pytest.fixture(scope="module")
def secrets_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's commands make, run as they stand."""
    folder = tmp_path_factory.mktemp("deploy")
    script = re.findall(r"^```sh\n(.*?)^```", section(), flags=re.MULTILINE | re.DOTALL)[0]
    subprocess.run(
        ["sh", "-eu", "-c", script], cwd=folder, check=True, capture_output=True, timeout=60
    )
    return folder / "deploy" / "secrets"


def security(folder: Path, **changes: str) -> dict[str, str]:
    """The page's own section, with the files where they were made."""
    block = re.findall(r"^```yaml\n(.*?)^```", section(), flags=re.MULTILINE | re.DOTALL)[0]
    shown: dict[str, str] = yaml.safe_load(block)["security"]
    moved = {
        key: value.replace("/etc/paceline/secrets", str(folder)) for key, value in shown.items()
    }
    return {**moved, **changes}


def models() -> tuple[ScriptedRunner, ScriptedRunner]:
    target, draft = [ScriptedRunner(hashed_script(50), vocab_size=50) for _ in range(2)]
    return target, draft


def test_the_commands_make_what_is_copied_and_nothing_that_can_sign(secrets_dir: Path) -> None:
    made = {path.name for path in secrets_dir.iterdir()}
    assert made == {"ca.crt", "tls.crt", "tls.key", "token", "ray-token"}
    for path in secrets_dir.iterdir():
        assert path.stat().st_mode & 0o007 == 0


async def test_they_secure_every_service_and_the_probe(
    secrets_dir: Path, byte_tokenizer_dir: Path
) -> None:
    settings = security(secrets_dir)
    async with scripted(*models(), tokenizer=byte_tokenizer_dir, security=settings) as stack:
        assert (await stack.generate(**FIELDS)).stats.accepted > 0
        for service in (stack.orchestrator, *stack.verifiers, *stack.drafters):
            health = await health_of(service.address, stack.config, timeout_s=20)
            assert health == "SERVING"
            open_probe = parse_config({}, source="test")
            assert "UNAVAILABLE" in await health_of(service.address, open_probe, timeout_s=5)


async def test_a_client_needs_certificate_and_token_and_a_name_that_is_certified(
    secrets_dir: Path, byte_tokenizer_dir: Path
) -> None:
    settings = security(secrets_dir)
    async with scripted(*models(), tokenizer=byte_tokenizer_dir, security=settings) as stack:
        port = stack.orchestrator.address.rpartition(":")[2]
        by_address = {key: value for key, value in settings.items() if key != "tls_server_name"}
        for host, wanted, refused in (
            ("localhost", by_address, None),
            ("127.0.0.1", by_address, None),
            ("127.0.0.1", {**settings, "tls_server_name": "elsewhere"}, UnavailableError),
            ("localhost", {"tls_ca_file": settings["tls_ca_file"]}, UnavailableError),
            (
                "localhost",
                {k: v for k, v in by_address.items() if k != "token_file"},
                PacelineError,
            ),
        ):
            credentials = SecurityConfig.model_validate(wanted)
            async with Client(f"{host}:{port}", security=credentials, timeout_s=10) as client:
                if refused is None:
                    assert len((await collect(client, **FIELDS)).token_ids) == 8
                else:
                    with pytest.raises(refused):
                        await collect(client, **FIELDS)


async def test_an_orchestrator_trusts_no_worker_of_another_name(
    secrets_dir: Path, byte_tokenizer_dir: Path
) -> None:
    """Although the address that it dials stands in the certificate."""
    settings = security(secrets_dir, tls_server_name="elsewhere")
    sections = {"security": settings, "orchestrator": {"connect_timeout_s": 3}}
    with pytest.raises(StartupError):
        async with scripted(*models(), tokenizer=byte_tokenizer_dir, **sections):
            pass
