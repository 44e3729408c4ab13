"""TLS, tokens and message limits, the same for every channel."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from paceline.config.section import Section


class SecurityConfig(Section):
    """TLS and tokens, by file only. All services and the client use the same names."""

    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None
    """Roots that a caller trusts; when a server has it too, callers must show a certificate."""
    tls_server_name: str | None = Field(default=None, min_length=1)
    """Name that a caller asks of a server's certificate, in place of the host that it dials: pods
    and cloud machines have addresses that no certificate can list."""
    token_file: Path | None = None
    """Bearer token that every call must carry."""

    @model_validator(mode="after")
    def _pair(self) -> SecurityConfig:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        return self


class GrpcConfig(Section):
    """Transport limits, the same on both ends of every channel."""

    max_message_bytes: int = Field(default=64 * 1024 * 1024, ge=4 * 1024 * 1024, lt=2**31)
    """At least gRPC's own default of 4 MiB, which a vocabulary table of a large model needs."""
    keepalive_s: float = Field(default=10.0, ge=0.001, le=86_400)
    keepalive_timeout_s: float = Field(default=5.0, ge=0.001, le=86_400)
