"""What `orchestrator.worker.Worker` is made of, without gRPC: a client and its links."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from support.pipeline import worker_info

from orchestrator.worker import Worker
from paceline.errors import PacelineError, UnavailableError
from paceline.rpc.worker_client import VocabularyTable
from paceline.types import WorkerInfo

VOCAB = 11
VERIFIER_INFO = replace(worker_info("verifier", VOCAB), eos_token_ids=(10,))
DRAFTER_INFO = worker_info("model", VOCAB)


class FakeLink:
    """One link: records what is sent, and says what the test lets it say."""

    def __init__(self, on_reply: Callable[..., None], on_closed: Callable[..., None]) -> None:
        self.sent: list[Any] = []
        self.is_open = True
        self._on_reply = on_reply
        self._on_closed = on_closed

    def send(self, event: Any) -> int:
        if not self.is_open:
            return 0
        self.sent.append(event)
        return 10

    def reply(self, reply: Any, num_bytes: int = 5) -> None:
        self._on_reply(reply, num_bytes)

    def take(self) -> list[Any]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def end(self, error: PacelineError | None) -> None:
        if self.is_open:
            self.is_open = False
            self._on_closed(error)

    async def close(self) -> None:
        self.end(None)


class FakeClient:
    """A worker that can be reached or not: `failures` are met first, one a try."""

    def __init__(self, info: WorkerInfo, *failures: Exception) -> None:
        self.info = info
        self.failures = deque(failures)
        self.table = VocabularyTable([], {})
        self.links: list[FakeLink] = []
        self.num_tries = 0
        self.num_closes = 0
        self.opened = asyncio.Event()

    @property
    def link(self) -> FakeLink:
        return self.links[-1]

    async def describe(self) -> WorkerInfo:
        self.num_tries += 1
        if self.failures:
            raise self.failures.popleft()
        return self.info

    async def vocabulary(self) -> VocabularyTable:
        return self.table

    async def open_link(
        self, on_reply: Callable[..., None], on_closed: Callable[..., None]
    ) -> FakeLink:
        self.links.append(FakeLink(on_reply, on_closed))
        self.opened.set()
        return self.link

    async def close(self) -> None:
        self.num_closes += 1


class FakeWorker(Worker[Any, Any]):
    """A real `Worker` over a fake client."""

    def __init__(self, role: str = "verifier", *failures: Exception, name: str = "") -> None:
        info = VERIFIER_INFO if role == "verifier" else DRAFTER_INFO
        self.client = FakeClient(info, *failures)
        super().__init__(role, f"{name or role}:1", lambda: self.client)  # type: ignore[arg-type,return-value]

    @property
    def link(self) -> FakeLink:
        return self.client.link

    async def start(self) -> FakeWorker:
        await self.connect(asyncio.get_running_loop().time())
        return self

    def lose(self, *failures: Exception) -> None:
        """Break the link; the next tries meet `failures`."""
        self.client.failures.extend(failures)
        self.client.opened.clear()
        self.link.end(UnavailableError("the process is gone"))

    async def is_back(self) -> None:
        """Wait until it has been connected again."""
        await asyncio.wait_for(self.client.opened.wait(), 10)
        await rest()


async def rest() -> None:
    """Let tasks that are ready run."""
    for _ in range(10):
        await asyncio.sleep(0)
