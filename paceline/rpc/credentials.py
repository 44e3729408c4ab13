"""Certificates and the bearer token, read once from the files that the configuration names."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from paceline.config import SecurityConfig
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM bytes and the token; None where the configuration names no file."""

    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ca: bytes | None = None
    token: str | None = field(default=None, repr=False)
    server_name: str | None = None
    """What a server's certificate must be for, where it is not the host that is dialled."""

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """What a caller uses; None for plain text.

        A CA or a certificate asks for TLS; without a CA the system's roots are trusted.
        """
        if self.ca is None and self.cert is None:
            return None
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """What a server uses; None for plain text. With a CA, callers must show a certificate.

        Raises `ConfigError` for a CA without a certificate: callers would speak TLS to it in vain.
        """
        if self.cert is None or self.key is None:
            if self.ca is not None:
                raise ConfigError(
                    "security.tls_cert_file: a server needs it when security.tls_ca_file is set"
                )
            return None
        return grpc.ssl_server_credentials(
            [(self.key, self.cert)],
            root_certificates=self.ca,
            require_client_auth=self.ca is not None,
        )


NO_CREDENTIALS = Credentials()


def load_credentials(security: SecurityConfig) -> Credentials:
    """Read the files. Raises `ConfigError` naming the key of one that cannot be used."""
    _check_pem(security)
    return Credentials(
        cert=_read("tls_cert_file", security.tls_cert_file),
        key=_read("tls_key_file", security.tls_key_file),
        ca=_read("tls_ca_file", security.tls_ca_file),
        token=_read_token(security.token_file),
        server_name=security.tls_server_name,
    )


def _read(key: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"security.{key}: cannot read {path}: {error.strerror}") from error
    if not data.strip():
        raise ConfigError(f"security.{key}: {path} is empty")
    return data


def _check_pem(security: SecurityConfig) -> None:
    """gRPC itself would blame the port, or the peer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # what is strong enough is not decided here
    cert, key, ca = security.tls_cert_file, security.tls_key_file, security.tls_ca_file
    with contextlib.suppress(OSError):  # of files that cannot be read: see _read
        if ca is not None and ca.read_bytes().strip():
            try:
                context.load_verify_locations(cafile=str(ca))
            except ssl.SSLError as error:
                raise ConfigError(
                    f"security.tls_ca_file: {ca} holds no PEM certificate ({error.reason})"
                ) from error
        if cert is not None and key is not None:
            try:
                context.load_cert_chain(str(cert), str(key), password="")
            except ssl.SSLError as error:
                raise ConfigError(
                    f"security.tls_cert_file, security.tls_key_file: {cert} and {key} are no PEM"
                    f" certificate and its unencrypted key ({error.reason})"
                ) from error


def _read_token(path: Path | None) -> str | None:
    data = _read("token_file", path)
    if data is None:
        return None
    # The token becomes an HTTP/2 header value, which knows visible ASCII only.
    token = data.strip().decode("ascii", errors="replace")
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"security.token_file: {path} must hold one line of visible ASCII")
    return token
