"""Asks a running service whether it serves: `python -m paceline.rpc.probe orchestrator -c FILE`.

For the health checks of containers and pods. It makes the standard `grpc.health.v1` call, with the
TLS and the token of the configuration, so that it works where a plain gRPC probe cannot.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.config import Config, load_config, split_address
from paceline.errors import ConfigError, PacelineError
from paceline.rpc.channel import open_channel
from paceline.rpc.credentials import load_credentials

EXIT_SERVING = 0
EXIT_NOT_SERVING = 1
EXIT_USAGE = 2

SERVICES = ("drafter", "verifier", "orchestrator")
DEFAULT_TIMEOUT_S = 3.0

_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}


def main(argv: Sequence[str] | None = None) -> int:
    """Probe once and say the status. Returns the exit code: 0 when the service serves, 1 when it
    does not or cannot be reached, 2 for settings that cannot work.
    """
    arguments = _parse(argv)
    try:
        config = load_config(arguments.config)
        address = address_of(arguments.target, config)
        status = asyncio.run(health_of(address, config, timeout_s=arguments.timeout))
    except PacelineError as error:
        sys.stderr.write(f"paceline: error: {' '.join(str(error).split())}\n")
        return EXIT_USAGE
    sys.stdout.write(f"{address}: {status}\n")
    return EXIT_SERVING if status == "SERVING" else EXIT_NOT_SERVING


def address_of(target: str, config: Config) -> str:
    """Where to ask: `target` itself, or where the service of that name listens, seen from its own
    machine. Raises `ConfigError` for neither.
    """
    address: str = getattr(config, target).listen if target in SERVICES else target
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise ConfigError(f"{error}, nor one of {', '.join(SERVICES)}") from error
    if port == 0:
        raise ConfigError(f"{target}: port 0 says nothing about where it listens")
    if host in _LOOPBACK_OF:
        return f"{_LOOPBACK_OF[host]}:{port}"
    return address


async def health_of(address: str, config: Config, *, timeout_s: float) -> str:
    """SERVING, another status of `grpc.health.v1`, or a gRPC status code with its reason.

    Raises `ConfigError` for credentials that cannot be read.
    """
    credentials = load_credentials(config.security)
    async with open_channel(address, credentials, config.grpc) as channel:
        try:
            response = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {' '.join((error.details() or '').split())}"
    status: str = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return status


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.rpc.probe",
        description="Ask a service for its health: exit code 0 when it serves.",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help=f"one of {', '.join(SERVICES)}, where the file says that it listens, or HOST:PORT",
    )
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="YAML configuration")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
