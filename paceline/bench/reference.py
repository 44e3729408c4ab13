"""The process that generates with transformers alone, as the benchmark speaks to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.bench.processes import Process, ProcessGroup
from paceline.errors import PacelineError


class ReferenceProcess:
    """`paceline.runtime.reference`, asked one thing at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, group: ProcessGroup, target: Mapping[str, Any], draft: Mapping[str, Any] | None
    ) -> ReferenceProcess:
        """Start it and load both models. Raises `PacelineError` with its words if that fails."""
        process = await group.start(
            "transformers", ("-m", "paceline.runtime.reference"), is_spoken_to=True
        )
        reference = cls(process)
        await reference._ask({"target": target, "draft": draft})
        return reference

    async def encode(self, fields: Mapping[str, Any]) -> list[int]:
        """Ids of a prompt or conversation."""
        token_ids: list[int] = (await self._ask({"encode": dict(fields)}))["token_ids"]
        return token_ids

    async def generate(
        self, system: str, token_ids: Sequence[int], max_tokens: int
    ) -> tuple[list[int], float]:
        """The ids that follow, and the seconds that `generate` took."""
        request = {"system": system, "token_ids": list(token_ids), "max_tokens": max_tokens}
        answer = await self._ask(request)
        return answer["token_ids"], answer["seconds"]

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        child = self._process.child
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            await child.stdin.drain()
            line = await child.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            await self._process.stop()
            raise PacelineError(f"transformers' own generation failed: {self._process.last_line}")
        answer: dict[str, Any] = json.loads(line)
        return answer
