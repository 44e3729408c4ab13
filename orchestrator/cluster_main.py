"""`paceline up`: run a deployment on Ray until a signal, and say what runs where."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.cluster import ENTRY_POINTS, Cluster
from orchestrator.cluster_control import ask
from orchestrator.cluster_launch import Placed
from orchestrator.cluster_members import Role
from paceline.client import Client
from paceline.config import Config
from paceline.errors import PacelineError
from paceline.types import WorkerInfo

STATUS_TIMEOUT_S = 5.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def up(
    config: Config,
    *,
    reread: Callable[[], Config] | None = None,
    entry_points: Mapping[Role, str] = ENTRY_POINTS,
) -> int:
    """Run a deployment until SIGINT or SIGTERM. Returns the process's exit code: 0 after a signal,
    2 when it could not start. Where no address is configured, RAY_ADDRESS counts, read here once.

    On SIGHUP the numbers of replicas become those of `reread()`; but on a terminal, which sends it
    when it is closed, it is one more signal to stop.
    """
    console = Console(soft_wrap=True, highlight=False)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    config = _with_ray_address(config, os.environ.get("RAY_ADDRESS"))
    try:
        asyncio.run(_run(config, None if sys.stdin.isatty() else reread, entry_points, console))
    except PacelineError as error:
        errors.print(f"[red]paceline: error:[/red] {escape(str(error))}")
        if error.__cause__ is not None and type(error.__cause__) is RuntimeError:
            errors.print(escape(str(error.__cause__)))
        return 2
    return 0


def _with_ray_address(config: Config, from_environment: str | None) -> Config:
    if config.cluster.ray_address is not None or not from_environment:
        return config
    cluster = config.cluster.model_copy(update={"ray_address": from_environment})
    return config.model_copy(update={"cluster": cluster})


async def _run(
    config: Config,
    reread: Callable[[], Config] | None,
    entry_points: Mapping[Role, str],
    console: Console,
) -> None:
    signalled, hung_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, signalled.set)
    loop.add_signal_handler(signal.SIGHUP, (signalled if reread is None else hung_up).set)

    def report(line: str) -> None:
        console.print(escape(line))

    cluster = Cluster(config, entry_points=entry_points, report=report)
    reloading: asyncio.Task[None] | None = None
    starting = asyncio.ensure_future(cluster.start())
    stopping = asyncio.ensure_future(signalled.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.is_set():
            starting.result()
            workers = await _workers_of(cluster.orchestrator_address, config)
            console.print(table_of(cluster.placed, workers, config))
            console.print(
                f"ready at {cluster.orchestrator_address}: "
                f"paceline generate --address {cluster.orchestrator_address} PROMPT"
            )
            if reread is not None:
                reloading = asyncio.create_task(_reload(cluster, reread, hung_up, report))
            await stopping
        console.print("stopping")
    finally:
        # what they began is undone before the rest is taken down
        tasks = [task for task in (stopping, starting, reloading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.stop()


async def _reload(
    cluster: Cluster,
    reread: Callable[[], Config],
    hung_up: asyncio.Event,
    report: Callable[[str], None],
) -> None:
    """Reload at every SIGHUP; a file that is wrong, or cannot be carried out, changes nothing."""
    while True:
        await hung_up.wait()
        hung_up.clear()
        try:
            report(f"reloaded: {await cluster.reload(await asyncio.to_thread(reread))}")
        except PacelineError as error:
            report(f"reload: {error}")


def table_of(placed: Sequence[Placed], workers: Mapping[str, WorkerInfo], config: Config) -> Table:
    """What runs where, one row an actor. `workers` is what the workers say of themselves, by
    address; the configuration speaks for one that did not answer.
    """
    table = Table("service", "node", "address", "reserved", "model", "device", box=None)
    for column in table.columns:
        column.overflow = "fold"
    for one in placed:
        member = one.member
        reserved = ", ".join(f"{name} {amount:g}" for name, amount in member.demand.items())
        model, device = _model_of(member.role, workers.get(one.address), config)
        table.add_row(member.label, one.node, one.address, reserved or "nothing", model, device)
    return table


def scale(config: Config, wish: Mapping[str, int], *, timeout_s: float | None) -> str:
    """Have the deployment of `config`'s namespace changed to so many replicas, by role name; says
    what was done. Blocks. Raises `PacelineError`: what the limit is, what room there is, or that
    there is no such deployment.
    """
    config = _with_ray_address(config, os.environ.get("RAY_ADDRESS"))
    answer = ask(
        {Role(role): replicas for role, replicas in wish.items()},
        ray_address=config.cluster.ray_address,
        namespace=config.cluster.namespace,
        timeout_s=timeout_s,
    )
    wanted = ", ".join(f"{role.value} {replicas}" for role, replicas in answer.replicas.items())
    return f"{answer.text}\nreplicas: {wanted}"


async def _workers_of(address: str, config: Config) -> dict[str, WorkerInfo]:
    client = Client(
        address,
        security=config.security,
        grpc_config=config.grpc,
        timeout_s=STATUS_TIMEOUT_S,
    )
    try:
        async with client:
            status = await client.status()
    except PacelineError:
        return {}
    return {worker.address: worker.info for worker in status.workers if worker.info is not None}


def _model_of(role: Role, info: WorkerInfo | None, config: Config) -> tuple[str, str]:
    """The model and the device of an actor's service."""
    if role is Role.ORCHESTRATOR:
        return "", ""
    if info is not None:
        form = ", ".join(filter(None, (info.dtype, info.quantization.replace("none", ""))))
        return f"{info.model or info.kind}{f' ({form})' if info.model else ''}", info.device
    model = config.verifier.model if role is Role.VERIFIER else config.drafter.model
    if model is None or (role is Role.DRAFTER and not config.drafter.has_model):
        return config.drafter.kind, ""
    return model.path, model.device
