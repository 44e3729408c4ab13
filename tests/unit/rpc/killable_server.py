"""Runs a fake drafter in a process of its own until it is killed; prints its address."""

import asyncio
import sys

from rpc_fakes import running_drafter


async def main() -> None:
    async with running_drafter() as drafter:
        sys.stdout.write(drafter.shell.address + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


asyncio.run(main())
