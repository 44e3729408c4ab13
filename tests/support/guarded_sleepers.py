"""A benchmark that never ends: it starts processes, prints their ids, and waits to be stopped."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import typer

from paceline.bench import guardian, processes
from paceline.bench.processes import ProcessGroup
from paceline.cli.bench_options import run_report
from paceline.cli.run import exits

SLEEPER = ("-c", "import time; time.sleep(600)")
STUBBORN = (
    "-c",
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "sys.stderr.write('x listening on here\\n'); sys.stderr.flush(); time.sleep(600)",
)


async def work() -> Any:
    async with ProcessGroup() as group:
        first = await group.start("sleeper", SLEEPER)
        ended = await group.start("sleeper", SLEEPER)
        stubborn = await group.start("stubborn", STUBBORN)
        await stubborn.wait_address()
        await group.stop(ended)
        assert group._guardian is not None
        sys.stdout.write(f"{first.pid} {stubborn.pid} {group._guardian.pid} {group._folder}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    processes.STOP_TIMEOUT_S = guardian.GRACE_S = 0.5
    try:
        with exits():
            run_report(work())
    except typer.Exit as end:
        sys.exit(end.exit_code)
