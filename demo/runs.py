"""One measured generation through the gRPC API, and the comparison of two."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo.prompts import Prompt
from paceline.client import Chunk, Client, GenerateFields, GenerateResult


@dataclass(frozen=True, slots=True)
class Run:
    """A finished generation. Times are the client's, in seconds; log-likelihoods are natural
    logarithms of the target's own probabilities, per token.
    """

    prompt: Prompt
    speculation: bool
    result: GenerateResult
    latency_s: float
    first_token_s: float

    @property
    def num_tokens(self) -> int:
        return self.result.usage.completion_tokens

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.latency_s

    @property
    def mean_logprob(self) -> float:
        given = [logprob for logprob in self.result.logprobs if logprob is not None]
        return sum(given) / len(given) if given else float("nan")


async def generate(
    client: Client,
    prompt: Prompt,
    *,
    speculation: bool,
    max_tokens: int,
    show: Callable[[str], None],
) -> Run:
    """Generate greedily, showing the text as it comes."""
    started = time.perf_counter()
    first_token_s = 0.0
    chunks: list[Chunk] = []
    fields: GenerateFields = {
        **prompt.fields,
        "speculation": speculation,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "logprobs": 2,
        "cache_salt": secrets.token_hex(8),  # who goes second must not find the prompt cached
    }
    async for chunk in client.generate(**fields):
        if chunk.tokens and not first_token_s:
            first_token_s = time.perf_counter() - started
        show(chunk.text)
        chunks.append(chunk)
    latency_s = time.perf_counter() - started
    return Run(prompt, speculation, GenerateResult.of(chunks), latency_s, first_token_s)


def median_run(runs: Sequence[Run]) -> Run:
    """The one of median latency; of an even number the slower of the two in the middle."""
    return sorted(runs, key=lambda run: run.latency_s)[len(runs) // 2]


@dataclass(frozen=True, slots=True)
class Split:
    """Where two greedy texts part: the token's index and, in the plain run, by how much the
    target preferred its token to the runner-up.
    """

    index: int
    gap: float


def first_split(plain: Run, speculative: Run) -> Split | None:
    """None when both have the same token ids; a prefix parts from the longer one at its end."""
    ours, theirs = plain.result.token_ids, speculative.result.token_ids
    if ours == theirs:
        return None
    pairs = zip(ours, theirs, strict=False)
    shorter = min(len(ours), len(theirs))
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    longer = plain if index < len(ours) else speculative
    top = longer.result.tokens[index].top_logprobs
    return Split(index, top[0].logprob - top[1].logprob if len(top) > 1 else float("nan"))
