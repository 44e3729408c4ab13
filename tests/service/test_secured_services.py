"""TLS with certificates on both sides, and a bearer token, from the client to the workers."""

from __future__ import annotations

import datetime
import ipaddress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.services import collect, scripted, settings

import orchestrator.service
from paceline.client import Client
from paceline.config import Config, SecurityConfig, parse_config
from paceline.errors import PacelineError, StartupError, UnauthenticatedError, UnavailableError
from paceline.rpc.credentials import load_credentials
from paceline.rpc.worker_client import connect_drafter, connect_verifier
from paceline.runtime.scripted import ScriptedRunner, hashed_script

FIELDS: dict[str, Any] = {"token_ids": [1, 2], "max_tokens": 10, "temperature": 0}


def models() -> tuple[ScriptedRunner, ScriptedRunner]:
    target, draft = [ScriptedRunner(hashed_script(50), vocab_size=50) for _ in range(2)]
    return target, draft


@pytest.fixture(scope="module")
def secrets_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate that is its own CA, its key, and two tokens."""
    folder = tmp_path_factory.mktemp("secrets")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "paceline test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "token").write_text("a-good-token\n")
    (folder / "other-token").write_text("another-token\n")
    return folder


def tls(folder: Path) -> dict[str, str]:
    return {
        "tls_cert_file": str(folder / "cert.pem"),
        "tls_key_file": str(folder / "key.pem"),
        "tls_ca_file": str(folder / "cert.pem"),
    }


async def refusal(address: str, **security: Any) -> PacelineError:
    """The error of a request with these credentials."""
    async with Client(address, security=SecurityConfig(**security), timeout_s=10) as client:
        with pytest.raises(PacelineError) as caught:
            await collect(client, **FIELDS)
        with pytest.raises(type(caught.value)):
            await client.status()
        return caught.value


async def test_the_right_credentials_work_end_to_end_and_no_others(
    secrets_dir: Path, byte_tokenizer_dir: Path
) -> None:
    token = {"token_file": str(secrets_dir / "token")}
    wrong = {"token_file": str(secrets_dir / "other-token")}
    security = tls(secrets_dir) | token
    async with scripted(*models(), tokenizer=byte_tokenizer_dir, security=security) as stack:
        result = await stack.generate(**FIELDS)
        assert len(result.token_ids) == 10
        assert result.stats.accepted > 0
        address = stack.orchestrator.address
        assert isinstance(await refusal(address, **tls(secrets_dir)), UnauthenticatedError)
        assert isinstance(await refusal(address, **tls(secrets_dir), **wrong), UnauthenticatedError)
        assert isinstance(await refusal(address, **token), UnavailableError)  # no TLS
        assert (await stack.generate(**FIELDS)).token_ids == result.token_ids


async def test_a_token_alone_guards_every_service(
    secrets_dir: Path, byte_tokenizer_dir: Path
) -> None:
    """The workers too: each has a port of its own."""
    security = {"token_file": str(secrets_dir / "token")}
    async with scripted(*models(), tokenizer=byte_tokenizer_dir, security=security) as stack:
        assert (await stack.generate(**FIELDS)).stats.accepted > 0
        assert isinstance(await refusal(stack.orchestrator.address), UnauthenticatedError)
        for name in ("token", "other-token", None):
            config = SecurityConfig(token_file=None if name is None else secrets_dir / name)
            credentials = load_credentials(config)
            for client in (
                connect_verifier(
                    stack.verifiers[0].address, credentials, Config().grpc, timeout_s=10
                ),
                connect_drafter(
                    stack.drafters[0].address, credentials, Config().grpc, timeout_s=10
                ),
            ):
                if name == "token":
                    assert (await client.describe()).vocab_size == 50
                else:
                    for call in (client.describe, client.vocabulary, partial(open_link, client)):
                        with pytest.raises(UnauthenticatedError):
                            await call()
                await client.close()


async def open_link(client: Any) -> None:
    await client.open_link(lambda *_: None, lambda _: None)


async def test_an_orchestrator_with_the_wrong_token_does_not_start(
    secrets_dir: Path, byte_tokenizer_dir: Path
) -> None:
    """At once: the token will not become right by waiting."""
    security = {"token_file": str(secrets_dir / "token")}
    async with scripted(*models(), tokenizer=byte_tokenizer_dir, security=security) as stack:
        document = settings(
            security={"token_file": str(secrets_dir / "other-token")},
            orchestrator={
                "verifiers": [stack.verifiers[0].address],
                "drafters": [],
                "connect_timeout_s": 300,
                "tokenizer": str(byte_tokenizer_dir),
            },
        )
        with pytest.raises(StartupError, match="cannot be used: missing or wrong token"):
            await orchestrator.service.start(parse_config(document, source="test"))
