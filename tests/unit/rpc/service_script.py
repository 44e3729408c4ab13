"""Runs an empty server through `run_service`, as a `__main__` would; argument one says how."""

import asyncio
import sys

from paceline.config import Config
from paceline.errors import ModelLoadError
from paceline.rpc.credentials import load_credentials
from paceline.rpc.main import run_service
from paceline.rpc.server import ServerShell


class Service:
    """What a real start function returns."""

    def __init__(self, shell: ServerShell) -> None:
        self.address = shell.address
        self._shell = shell

    async def stop(self, grace_s: float) -> None:
        sys.stderr.write(f"stopping with {grace_s:g} s\n")
        if MODE == "stuck":
            await asyncio.Event().wait()
        await self._shell.stop(grace_s)


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
    shell = ServerShell(
        config.drafter.listen, {}, credentials=load_credentials(config.security), limits=config.grpc
    )
    await shell.start()
    return (FailingService if MODE == "dies" else Service)(shell)


MODE = sys.argv[1]
raise SystemExit(run_service("drafter", start, sys.argv[2:]))
