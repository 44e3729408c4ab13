"""Runs a fake drafter through `run_service`, as a `__main__` would; the first argument says how."""

import asyncio
import sys

from rpc_fakes import Running, running_drafter

from paceline.config import Config
from paceline.errors import ModelLoadError
from paceline.rpc.main import run_service


class Service:
    """What a real start function returns."""

    def __init__(self, drafter: Running) -> None:
        self.address = drafter.shell.address
        self._drafter = drafter

    async def stop(self, grace_s: float) -> None:
        sys.stderr.write(f"stopping with {grace_s:g} s\n")
        if MODE == "stuck":
            await asyncio.Event().wait()
        await self._drafter.shell.stop(grace_s)


class FailingService(Service):
    async def wait(self) -> None:
        raise ZeroDivisionError("the engine died")


async def start(config: Config) -> Service:
    if MODE == "startup-error":
        raise ModelLoadError("cannot load\nthe model: no such directory")
    if MODE == "slow-start":
        sys.stderr.write("starting\n")
        sys.stderr.flush()
        await asyncio.Event().wait()
    context = running_drafter(listen=config.drafter.listen)
    drafter = await context.__aenter__()
    return (FailingService if MODE == "dies" else Service)(drafter)


MODE = sys.argv[1]
raise SystemExit(run_service("drafter", start, sys.argv[2:]))
