"""The `__main__` of a service: arguments, configuration, signals, exit codes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from paceline.config import Config, load_config, with_listen
from paceline.errors import PacelineError
from paceline.logs import LEVELS, setup_logging

_LOGGER = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_STARTUP = 2

GRACE_S = 10.0
"""How long running calls may take to end after the first signal."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunningService(Protocol):
    """A started service."""

    @property
    def address(self) -> str:
        """`HOST:PORT` that it listens on."""

    async def stop(self, grace_s: float) -> None:
        """End it; running calls get `grace_s` seconds."""


@runtime_checkable
class SelfEnding(Protocol):
    """A service that may end by itself, e.g. when its engine fails."""

    async def wait(self) -> None:
        """Return or raise when it has ended."""


Start = Callable[[Config], Awaitable[RunningService]]


def run_service(name: str, start: Start, argv: Sequence[str] | None = None) -> int:
    """Run one service until SIGINT or SIGTERM and return the process's exit code.

    `name` is its section in the configuration. 0: stopped by a signal; 2: could not start, with
    one line that says why; 1: ended by itself. A second signal ends the process at once.
    """
    arguments = _parse(name, argv)
    try:
        config = load_config(arguments.config)
        logs = config.telemetry.logs
        setup_logging(arguments.log_level or logs.level, logs.format)
        if arguments.listen is not None:
            config = with_listen(config, name, arguments.listen)
    except PacelineError as error:
        return _report(error)
    return asyncio.run(_run(name, start, config))


def _parse(name: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"{name}_service" if name != "orchestrator" else name,
        description=f"Run one Paceline {name}.",
    )
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="YAML configuration")
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"instead of {name}.listen")
    parser.add_argument("--log-level", choices=LEVELS, help="instead of telemetry.logs.level")
    return parser.parse_args(argv)


async def _run(name: str, start: Start, config: Config) -> int:
    asked_to_stop = _stop_on_signals()
    starting = asyncio.ensure_future(start(config))
    stopped = asyncio.create_task(asked_to_stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await _cancel(starting)
            return EXIT_OK
        try:
            service = starting.result()
        except PacelineError as error:
            return _report(error)
        sys.stderr.write(f"{name} listening on {service.address}\n")
        sys.stderr.flush()
        return await _serve(service, stopped)
    finally:
        await _cancel(stopped)


async def _serve(service: RunningService, stopped: asyncio.Task[bool]) -> int:
    waits: set[asyncio.Future[Any]] = {stopped}
    if isinstance(service, SelfEnding):
        waits.add(asyncio.ensure_future(service.wait()))
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    code = EXIT_OK
    for task in done - {stopped}:
        code = EXIT_FAILED
        _LOGGER.error("the service ended by itself", exc_info=task.exception())
    await service.stop(GRACE_S if code == EXIT_OK else 0.0)
    for task in waits - {stopped}:
        await _cancel(task)
    return code


def _stop_on_signals() -> asyncio.Event:
    """An event that the first signal sets; the second ends the process there and then."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def handle(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number)
    return asked


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _report(error: PacelineError) -> int:
    message = " ".join(str(error).split())
    sys.stderr.write(f"paceline: error: {message}\n")
    return EXIT_STARTUP
