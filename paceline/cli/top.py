"""`paceline top`: workers, sessions and rates of a running deployment, as they change."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paceline.cli import connection
from paceline.cli.run import run
from paceline.cli.top_figures import Figures, WorkerFigures, figures
from paceline.client import Client
from paceline.errors import PacelineError

MAX_SESSIONS = 20
"""Sessions that a frame lists, the oldest first."""
_PIPED_WIDTH = 200
_NOTHING = "–"

Show = Callable[[Figures, str], None]


def top(  # noqa: PLR0917  (typer's parameters are named options)
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="S", help="Seconds from frame to frame.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one frame, then exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object a frame.")] = False,
    address: connection.Address = connection.ADDRESS,
    timeout: connection.Timeout = 10.0,
    token_file: connection.TokenFile = None,
    tls_ca_file: connection.TlsCaFile = None,
    tls_cert_file: connection.TlsCertFile = None,
    tls_key_file: connection.TlsKeyFile = None,
    tls_server_name: connection.TlsServerName = None,
) -> None:
    """Watch workers, sessions, acceptance, tokens/s and KV use. Ctrl-C ends it."""
    client = connection.make_client(
        address,
        timeout=timeout,
        token_file=token_file,
        tls_ca_file=tls_ca_file,
        tls_cert_file=tls_cert_file,
        tls_key_file=tls_key_file,
        tls_server_name=tls_server_name,
    )
    is_live = sys.stdout.isatty() and not once and not as_json
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    live = Live(console=console, screen=True, auto_refresh=False) if is_live else None

    def show(figures: Figures, problem: str) -> None:
        if as_json:
            sys.stdout.write(json.dumps(asdict(figures), ensure_ascii=False) + "\n")
            sys.stdout.flush()
        elif live is not None:
            live.update(frame(figures, address, problem), refresh=True)
        else:
            console.print(frame(figures, address, problem))

    surroundings: AbstractContextManager[object] = nullcontext() if live is None else live
    run(_watch(client, show, surroundings, interval_s=interval, once=once))


async def _watch(
    client: Client,
    show: Show,
    surroundings: AbstractContextManager[object],
    *,
    interval_s: float,
    once: bool,
) -> None:
    """Ask every `interval_s`; a later answer that fails leaves the last frame, with the reason."""
    async with client:
        before = await client.status()
        with surroundings:
            if not once:
                show(figures(before, before), "")
            while True:
                await asyncio.sleep(interval_s)
                try:
                    after = await client.status()
                except PacelineError as error:
                    if once:
                        raise
                    show(figures(before, before), str(error))
                    continue
                show(figures(before, after), "")
                if once:
                    return
                before = after


def frame(figures: Figures, address: str, problem: str = "") -> RenderableType:
    """One frame: a line of totals, the workers, the sessions."""
    totals = (
        f"{figures.live_sessions} live, {figures.waiting_sessions} waiting",
        f"{_number(figures.tokens_per_s)} tokens/s",
        f"{_number(figures.requests_per_s)} requests/s",
        f"acceptance {_percent(figures.acceptance_rate)}",
        f"window {_number(figures.window)}",
    )
    parts: list[RenderableType] = [
        Text(f"{address}  {figures.model}", style="bold"),
        Text(" · ".join(totals)),
    ]
    if problem:
        parts.append(Text(f"no answer: {problem}", style="red"))
    parts.append(_workers(figures))
    if figures.sessions:
        parts.append(_sessions(figures))
    return Group(*parts)


def _workers(figures: Figures) -> Table:
    headers = ("role", "address", "state", "model", "device", "KV pages", "sessions")
    table = Table(*headers, box=None)
    for header in ("passes/s", "busy"):
        table.add_column(header, justify="right")
    for worker in figures.workers:
        table.add_row(*(escape(cell) for cell in _worker_row(worker)))
    return table


def _worker_row(worker: WorkerFigures) -> tuple[str, ...]:
    return (
        worker.role,
        worker.address,
        "connected" if worker.connected else worker.detail or "not connected",
        worker.model,
        worker.device,
        f"{worker.kv_pages_used}/{worker.kv_pages_total}",
        f"{worker.live_sessions} live, {worker.waiting_sessions} waiting",
        _number(worker.passes_per_s),
        _percent(worker.busy),
    )


def _sessions(figures: Figures) -> Table:
    table = Table("session", "client", box=None)
    for header in ("age", "prompt", "tokens", "acceptance", "window"):
        table.add_column(header, justify="right")
    for session in figures.sessions[:MAX_SESSIONS]:
        accepted = session.accepted / session.judged if session.judged else None
        table.add_row(
            session.session,
            escape(session.peer),
            f"{session.age_ms / 1e3:.1f} s",
            str(session.prompt_tokens),
            str(session.completion_tokens),
            _percent(accepted),
            str(session.window) if session.window else _NOTHING,
        )
    hidden = figures.live_sessions - min(len(figures.sessions), MAX_SESSIONS)
    if hidden > 0:
        table.caption = f"and {hidden} more"
    return table


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.0%}"
