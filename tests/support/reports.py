"""What a cluster reports, for tests to wait for."""

from __future__ import annotations

import asyncio

PATIENCE_S = 120.0


class Reports:
    """What a cluster reports, awaitable."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._changed.set()

    async def until(self, text: str) -> str:
        """The first line with the text."""

        async def look() -> str:
            while True:
                for line in self.lines:
                    if text in line:
                        return line
                self._changed.clear()
                await self._changed.wait()

        return await asyncio.wait_for(look(), PATIENCE_S)
