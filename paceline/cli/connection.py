"""The options by which every command reaches its orchestrator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from paceline.client import DEFAULT_ADDRESS, Client
from paceline.config import SecurityConfig, split_address

_PANEL = "Connection"

Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", rich_help_panel=_PANEL, help="The orchestrator.")
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="S", rich_help_panel=_PANEL, help="Give up after S seconds."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=_PANEL, help="File with the bearer token."),
]
TlsCaFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=_PANEL, help="Roots to trust; asks for TLS."),
]
TlsCertFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=_PANEL, help="Client certificate, for mTLS."),
]
TlsKeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=_PANEL, help="Key of the client certificate."),
]

TlsServerName = Annotated[
    str | None,
    typer.Option(metavar="NAME", rich_help_panel=_PANEL, help="Whom the certificate names."),
]

ADDRESS = DEFAULT_ADDRESS


def make_client(
    address: str,
    *,
    timeout: float | None,
    token_file: Path | None,
    tls_ca_file: Path | None,
    tls_cert_file: Path | None,
    tls_key_file: Path | None,
    tls_server_name: str | None,
) -> Client:
    """A client from the options above. Raises `typer.BadParameter` for one that cannot be."""
    try:
        is_peer = split_address(address)[1] > 0
    except ValueError as error:
        raise typer.BadParameter(f"--address: {error}") from error
    if not is_peer:
        raise typer.BadParameter(f"--address: {address!r}: port 0 is no address to connect to")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise typer.BadParameter(f"--timeout {timeout:g}: must be above 0")
    try:
        security = SecurityConfig(
            token_file=token_file,
            tls_ca_file=tls_ca_file,
            tls_cert_file=tls_cert_file,
            tls_key_file=tls_key_file,
            tls_server_name=tls_server_name,
        )
    except ValidationError as error:
        raise typer.BadParameter("--tls-cert-file and --tls-key-file go together") from error
    return Client(address, security=security, timeout_s=timeout)


def standard_input() -> str:
    """All of it as text. Raises `typer.BadParameter` if it is none."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8: {error}") from error
