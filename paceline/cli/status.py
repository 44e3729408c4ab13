"""`paceline status`: what an orchestrator serves, and its workers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.cli import connection
from paceline.cli.run import run
from paceline.client import Client
from paceline.client_values import ServiceStatus
from paceline.generation import WorkerStatus

_PIPED_WIDTH = 200
"""Columns where there is no terminal to ask."""


def status(  # noqa: PLR0917  (typer's parameters are named options)
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    address: connection.Address = connection.ADDRESS,
    timeout: connection.Timeout = 10.0,
    token_file: connection.TokenFile = None,
    tls_ca_file: connection.TlsCaFile = None,
    tls_cert_file: connection.TlsCertFile = None,
    tls_key_file: connection.TlsKeyFile = None,
    tls_server_name: connection.TlsServerName = None,
) -> None:
    """Show the orchestrator's model and workers."""
    client = connection.make_client(
        address,
        timeout=timeout,
        token_file=token_file,
        tls_ca_file=tls_ca_file,
        tls_cert_file=tls_cert_file,
        tls_key_file=tls_key_file,
        tls_server_name=tls_server_name,
    )
    answer = run(_ask(client))
    if as_json:
        sys.stdout.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    console.print(
        f"{escape(answer.model)}: context {answer.context_length} tokens, "
        f"{answer.live_sessions} live sessions"
    )
    console.print(_table(answer))


async def _ask(client: Client) -> ServiceStatus:
    async with client:
        return await client.status()


def _table(answer: ServiceStatus) -> Table:
    headers = ("role", "address", "state", "model", "weights", "device", "KV pages", "sessions")
    table = Table(*headers, box=None)
    for worker in answer.workers:
        table.add_row(*(escape(cell) for cell in _row(worker)))
    return table


def _row(worker: WorkerStatus) -> tuple[str, ...]:
    state = worker.detail or ("connected" if worker.is_connected else "not connected")
    info = worker.info
    if info is None:
        return (worker.role, worker.address, state)
    return (
        worker.role,
        worker.address,
        state,
        info.model or info.kind,
        info.dtype if info.quantization in ("", "none") else info.quantization,
        info.device,
        f"{info.kv_pages_used}/{info.kv_pages_total}",
        f"{info.live_sessions} live, {info.waiting_sessions} waiting",
    )
