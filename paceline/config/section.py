"""The base of every section, and addresses as the file writes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

MAX_PORT = 65535


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets. Raises `ValueError`."""
    host, separator, port = address.rpartition(":")
    if not separator or not host:
        raise ValueError(f"{address!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: write an IPv6 host in brackets")
    if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise ValueError(f"{address!r}: the port must be a number from 0 to {MAX_PORT}")
    return host, int(port)


def _listen_address(address: str) -> str:
    split_address(address)
    return address


def _peer_address(address: str) -> str:
    if split_address(address)[1] == 0:
        raise ValueError(f"{address!r}: port 0 is no address to connect to")
    return address


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""`HOST:PORT` to bind; port 0 lets the system choose."""
PeerAddress = Annotated[str, AfterValidator(_peer_address)]
"""`HOST:PORT` to connect to."""


class Section(BaseModel):
    """Base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
