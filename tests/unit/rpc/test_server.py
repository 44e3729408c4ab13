"""The server shell: ports, health, reflection, TLS, tokens, stopping."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rpc_fakes import INFO, LIMITS, SERVICE, Peer, connected, open_session, running_drafter

from paceline.config import SecurityConfig
from paceline.errors import ConfigError, UnauthenticatedError, UnavailableError
from paceline.rpc.channel import open_channel
from paceline.rpc.codec.describe import decode_worker_info
from paceline.rpc.credentials import NO_CREDENTIALS, Credentials, load_credentials
from paceline.rpc.health import wait_serving
from paceline.rpc.server import ServerShell
from protos import common_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
TOKEN = Credentials(token="s3cret")


async def describe(stub: Any) -> None:
    message = await stub.Describe(common_pb2.DescribeRequest(), timeout=5)
    assert decode_worker_info(message) == INFO


async def check(address: str, service: str = "", credentials: Credentials = NO_CREDENTIALS) -> Any:
    async with open_channel(address, credentials, LIMITS) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        return (await stub.Check(request, timeout=5)).status


def empty_shell(listen: str, credentials: Credentials = NO_CREDENTIALS) -> ServerShell:
    return ServerShell(listen, {}, credentials=credentials, limits=LIMITS)


# Ports


async def test_port_zero_gives_a_real_address() -> None:
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:
        host, port = drafter.shell.address.rsplit(":", 1)
        assert host == "127.0.0.1"
        assert int(port) > 0
        await describe(stub)


async def test_a_port_in_use_is_refused_and_named() -> None:
    async with running_drafter() as drafter:
        address = drafter.shell.address
        second = empty_shell(address)
        with pytest.raises(ConfigError, match=f"^listen: {address} is already in use$"):
            await second.start()
        await second.stop(0.0)


async def test_a_port_in_use_by_something_else_is_refused_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"^listen: {address} is already in use$"):
            await empty_shell(address).start()
        wildcard = address.replace("127.0.0.1", "0.0.0.0")
        with pytest.raises(ConfigError, match="already in use"):
            await empty_shell(wildcard).start()


async def test_a_port_is_free_again_at_once_after_a_stop() -> None:
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:
        address = drafter.shell.address
        await describe(stub)
    async with running_drafter(listen=address) as again, connected(again.shell.address) as stub:
        await describe(stub)


@pytest.mark.parametrize(
    ("listen", "problem"),
    [
        ("203.0.113.7:0", "cannot bind|not an address of this machine"),
        ("203.0.113.7:50099", "is not an address of this machine"),
        ("no-such-host.invalid:0", "unknown host"),
        ("nonsense", "is not HOST:PORT"),
    ],
)
async def test_an_address_that_cannot_be_bound_is_refused_with_the_reason(
    listen: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"^listen: .*({problem})"):
        await empty_shell(listen).start()


# Health and reflection


async def test_health_follows_set_serving_for_the_server_and_each_service() -> None:
    async with running_drafter() as drafter:
        address = drafter.shell.address
        assert [await check(address, name) for name in ("", SERVICE)] == [SERVING] * 2
        await drafter.shell.set_serving(serving=False)
        assert [await check(address, name) for name in ("", SERVICE)] == [NOT_SERVING] * 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(address, "no.such.Service")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_server_is_not_serving_until_told() -> None:
    shell = empty_shell("127.0.0.1:0")
    await shell.start()
    assert await check(shell.address) == NOT_SERVING
    await shell.stop(0.0)


async def test_reflection_lists_the_services() -> None:
    async with (
        running_drafter() as drafter,
        open_channel(drafter.shell.address, NO_CREDENTIALS, LIMITS) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {s.name for s in (await call.read()).list_services_response.service}
        await call.done_writing()
    assert {SERVICE, "grpc.health.v1.Health"} <= names


# Tokens


async def test_the_token_opens_calls_and_links_and_its_absence_does_not() -> None:
    """On loopback, without TLS."""
    async with running_drafter(credentials=TOKEN) as drafter:
        address = drafter.shell.address
        async with connected(address, credentials=TOKEN) as stub:
            await describe(stub)
            peer = Peer(stub)
            await peer.link.start(5)
            peer.link.send(open_session(1))
            await peer.heard(1)
            await peer.link.close()
        for wrong in (NO_CREDENTIALS, Credentials(token="s3cre"), Credentials(token="s3cret!")):
            async with connected(address, credentials=wrong) as stub:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await describe(stub)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                peer = Peer(stub)
                with pytest.raises(UnauthenticatedError):
                    await peer.link.start(5)
                assert peer.reasons == []
        assert len(drafter.engine.handles) == 1
        assert await check(address) == SERVING


async def test_reflection_needs_the_token() -> None:
    async with (
        running_drafter(credentials=TOKEN) as drafter,
        open_channel(drafter.shell.address, NO_CREDENTIALS, LIMITS) as channel,
    ):
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_callers_own_metadata_travels_beside_the_token() -> None:
    async with running_drafter(credentials=TOKEN) as drafter:
        seen: list[Any] = []

        async def look(context: Any) -> None:
            seen.extend(context.invocation_metadata())

        drafter.servicer.fail = look
        async with connected(drafter.shell.address, credentials=TOKEN) as stub:
            await stub.Describe(common_pb2.DescribeRequest(), metadata=(("x-mine", "1"),))
        assert ("x-mine", "1") in seen
        assert ("authorization", "Bearer s3cret") in seen


def test_secrets_do_not_show_in_a_representation() -> None:
    assert "s3cret" not in repr(TOKEN)
    assert "KEY" not in repr(Credentials(key=b"KEY"))


# TLS


def make_certificate(issuer: Any, name: str) -> tuple[Any, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    issuer_name, issuer_key = (subject, key) if issuer is None else (issuer[0].subject, issuer[1])
    alternative_names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, cert.pem, key.pem, token."""
    folder = tmp_path_factory.mktemp("tls")
    ca = make_certificate(None, "test ca")
    certificate, key = make_certificate(ca, "test")
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca[0].public_bytes(pem))
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "token").write_text("s3cret\n")
    return folder


@pytest.fixture(scope="module")
def everything(files: Path) -> Credentials:
    return load_credentials(
        SecurityConfig(
            tls_cert_file=files / "cert.pem",
            tls_key_file=files / "key.pem",
            tls_ca_file=files / "ca.pem",
            token_file=files / "token",
        )
    )


async def test_tls_needs_only_the_root_on_the_callers_side(everything: Credentials) -> None:
    server = replace(everything, ca=None)
    caller = Credentials(ca=everything.ca, token=everything.token)
    async with (
        running_drafter(credentials=server) as drafter,
        connected(drafter.shell.address, credentials=caller) as stub,
    ):
        await describe(stub)
        async with connected(drafter.shell.address, credentials=TOKEN) as plain:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await describe(plain)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_with_a_root_on_the_server_callers_must_show_a_certificate(
    everything: Credentials,
) -> None:
    async with running_drafter(credentials=everything) as drafter:
        address = drafter.shell.address
        async with connected(address, credentials=everything) as stub:
            await describe(stub)
            peer = Peer(stub)
            await peer.link.start(5)
            await peer.link.close()
        without = Credentials(ca=everything.ca, token=everything.token)
        async with connected(address, credentials=without) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await describe(stub)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_root_without_a_certificate_is_refused_by_a_server(
    everything: Credentials,
) -> None:
    shell = empty_shell("127.0.0.1:0", Credentials(ca=everything.ca))
    with pytest.raises(ConfigError, match=r"^security\.tls_cert_file: "):
        await shell.start()


def test_files_that_cannot_be_used_name_their_key(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(ConfigError, match=r"^security\.tls_ca_file: cannot read .*missing"):
        load_credentials(SecurityConfig(tls_ca_file=tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"^security\.token_file: .* is empty"):
        load_credentials(SecurityConfig(token_file=empty))
    for text in ("two words", "two\nlines", "café"):
        (tmp_path / "token").write_text(text)
        with pytest.raises(ConfigError, match=r"^security\.token_file: .*visible ASCII"):
            load_credentials(SecurityConfig(token_file=tmp_path / "token"))


def test_files_that_are_no_pem_name_their_key(tmp_path: Path, files: Path) -> None:
    """gRPC would blame the port, or the peer."""
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"^security\.tls_ca_file: .*bad\.pem holds no PEM"):
        load_credentials(SecurityConfig(tls_ca_file=bad))
    for cert, key in ((bad, files / "key.pem"), (files / "cert.pem", bad)):
        with pytest.raises(ConfigError, match=r"^security\.tls_cert_file, security\.tls_key_file"):
            load_credentials(SecurityConfig(tls_cert_file=cert, tls_key_file=key))


async def test_a_certificate_that_is_none_is_a_clear_error() -> None:
    shell = empty_shell("127.0.0.1:0", Credentials(cert=b"junk", key=b"junk"))
    with pytest.raises(ConfigError):
        await shell.start()


@pytest.mark.parametrize(
    ("listen", "given", "missing"),
    [
        ("0.0.0.0:0", set(), "without TLS and a token"),
        ("0.0.0.0:0", {"token"}, "without TLS"),
        ("0.0.0.0:0", {"tls"}, "without a token"),
        ("0.0.0.0:0", {"tls", "token"}, None),
        ("127.0.0.1:0", set(), None),
        ("localhost:0", set(), None),
    ],
)
async def test_listening_beyond_this_machine_unprotected_is_warned_of(
    listen: str,
    given: set[str],
    missing: str | None,
    everything: Credentials,
    caplog: pytest.LogCaptureFixture,
) -> None:
    credentials = Credentials(
        cert=everything.cert if "tls" in given else None,
        key=everything.key if "tls" in given else None,
        token="t" if "token" in given else None,
    )
    shell = empty_shell(listen, credentials)
    with caplog.at_level(logging.WARNING):
        await shell.start()
    await shell.stop(0.0)
    if missing is None:
        assert caplog.text == ""
    else:
        assert missing in caplog.text


# Stopping


async def test_a_stop_waits_for_running_calls_and_refuses_new_ones() -> None:
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def linger(context: Any) -> None:
            entered.set()
            await leave.wait()

        drafter.servicer.fail = linger
        running = asyncio.create_task(describe(stub))
        await entered.wait()
        stopping = asyncio.create_task(drafter.shell.stop(grace_s=30))
        await drafter.shell.draining.wait()
        await asyncio.sleep(0.05)
        assert not stopping.done()
        async with connected(drafter.shell.address) as late:
            with pytest.raises(grpc.aio.AioRpcError):
                await describe(late)
        leave.set()
        await running
        await asyncio.wait_for(stopping, 2)


async def test_a_call_out_of_grace_is_cancelled() -> None:
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:

        async def linger(context: Any) -> None:
            entered.set()
            await asyncio.Event().wait()

        entered = asyncio.Event()
        drafter.servicer.fail = linger
        running = asyncio.create_task(describe(stub))
        await entered.wait()
        began = time.monotonic()
        await drafter.shell.stop(grace_s=0.1)
        assert time.monotonic() - began < 2
        with pytest.raises(grpc.aio.AioRpcError):
            await running


async def test_a_health_watcher_hears_of_the_stop_and_does_not_hold_it_up() -> None:
    async with (
        running_drafter() as drafter,
        open_channel(drafter.shell.address, NO_CREDENTIALS, LIMITS) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        await asyncio.wait_for(drafter.shell.stop(grace_s=30), 2)
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is grpc.aio.EOF


async def test_a_watcher_who_was_told_or_left_holds_up_no_stop() -> None:
    async with (
        running_drafter() as drafter,
        open_channel(drafter.shell.address, NO_CREDENTIALS, LIMITS) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        told = stub.Watch(health_pb2.HealthCheckRequest())
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="no.such.Service"))
        left = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await told.read()).status == (await left.read()).status == SERVING
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        await drafter.shell.set_serving(serving=False)
        assert (await told.read()).status == NOT_SERVING
        left.cancel()
        await asyncio.wait_for(drafter.shell.stop(grace_s=30), 2)


async def test_who_waits_for_a_server_on_its_way_out_hears_so() -> None:
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def linger(context: Any) -> None:
            entered.set()
            await leave.wait()

        drafter.servicer.fail = linger
        running = asyncio.create_task(describe(stub))
        await entered.wait()
        stopping = asyncio.create_task(drafter.shell.stop(grace_s=30))
        await drafter.shell.draining.wait()
        with pytest.raises(UnavailableError, match="shutting down"):
            await wait_serving(drafter.shell.address, timeout_s=30)
        leave.set()
        await running
        await stopping


async def test_stopping_twice_is_harmless() -> None:
    async with running_drafter() as drafter:
        await asyncio.gather(drafter.shell.stop(1), drafter.shell.stop(0))
        await drafter.shell.stop(0)
