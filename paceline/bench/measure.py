"""One generation as its client sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.client import Chunk, Client, GenerateResult


@dataclass(frozen=True, slots=True)
class Sample:
    """A finished generation; times in seconds since the request was sent."""

    latency_s: float
    arrivals: tuple[tuple[float, int], ...]
    """When tokens came, and how many together: those of one verdict."""
    result: GenerateResult

    @property
    def num_tokens(self) -> int:
        return self.result.usage.completion_tokens

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.arrivals[0][0] if self.arrivals else self.latency_s

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.latency_s

    @property
    def token_s(self) -> list[float]:
        """When each token came."""
        return [at for at, count in self.arrivals for _ in range(count)]

    @property
    def mean_logprob(self) -> float:
        """Average log-likelihood of a token under the target, in nats; needs `logprobs`."""
        given = [logprob for logprob in self.result.logprobs if logprob is not None]
        return sum(given) / len(given) if given else float("nan")


async def generate(client: Client, fields: Mapping[str, Any]) -> Sample:
    """Run one request to its end. Raises `PacelineError`."""
    chunks: list[Chunk] = []
    arrivals: list[tuple[float, int]] = []
    started = time.perf_counter()
    async for chunk in client.generate(**fields):
        if chunk.tokens:
            arrivals.append((time.perf_counter() - started, len(chunk.tokens)))
        chunks.append(chunk)
    latency_s = time.perf_counter() - started
    return Sample(latency_s, tuple(arrivals), GenerateResult.of(chunks))
