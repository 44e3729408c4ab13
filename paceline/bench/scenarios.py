"""What a sweep measures besides its grid: recovery from a jump of the acceptance rate, the cost of
a long context, and bytes on the wire by acceptance rule.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline.bench.grid import Point
from paceline.bench.ideal import (
    PROMPT_LENGTH,
    Ideal,
    draft_law,
    emulated_document,
    prompts_of,
    right_drafts,
    scenario_of,
)
from paceline.bench.measure import Sample, generate
from paceline.bench.processes import Deploy, Services, serving
from paceline.config import parse_config
from paceline.simulation.simulator import simulate

HIGH, LOW = 0.9, 0.2
WINDOW_TOKENS = 25
"""Over which a throughput is taken; a verdict may bring a dozen at once."""
STEP_TOKENS = 5
RECOVERED = 0.95
"""Of the steady throughput."""

WIRE_BLOCK = 4

RULES: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 1.0, "acceptance": "coupled"},
    "sparse": {"temperature": 1.0, "acceptance": "rejection", "draft_probs": "sparse"},
}


# --- recover --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of constant acceptance; `start` counts output tokens."""

    acceptance: float
    start: int
    length: int


def phases_of(phase_tokens: int) -> list[Phase]:
    """High, low, high."""
    rates = (HIGH, LOW, HIGH)
    return [Phase(rate, i * phase_tokens, phase_tokens) for i, rate in enumerate(rates)]


def recovery(
    measured: Sequence[Sequence[float]], ideal: Sequence[Sequence[float]]
) -> tuple[int | None, list[float]]:
    """Tokens until the throughput of a phase is back within 5 % of its steady one, and the curve.

    Both are, for each run, when each token of the phase came (seconds, any origin): as measured,
    and simulated under the phase's best setting with the same right and wrong drafts. A window's
    throughput is taken over that ideal, so that lucky stretches count as such, and the steady one
    is that of the phase's second half. None if it never comes back.
    """
    length = min(len(times) for times in (*measured, *ideal))

    def share(begin: int, end: int) -> float:
        wanted = sum(times[end] - times[begin] for times in ideal)
        taken = sum(times[end] - times[begin] for times in measured)
        return wanted / taken if taken else 1.0

    steady = share(length // 2, length - 1)
    starts = range(0, length - WINDOW_TOKENS, STEP_TOKENS)
    curve = [share(start, start + WINDOW_TOKENS) / steady for start in starts]
    back = (start for start, each in zip(starts, curve, strict=True) if each >= RECOVERED)
    return next(back, None), curve


async def recover(
    *, repeats: int, phase_tokens: int, seed: int, deploy: Deploy = serving
) -> list[dict[str, Any]]:
    """Acceptance jumps 0.9 -> 0.2 -> 0.9 in mid-stream: one row a jump."""
    phases = phases_of(phase_tokens)
    changes = [(PROMPT_LENGTH + phase.start, phase.acceptance) for phase in phases[1:]]
    point = Point(HIGH)
    num_tokens = phases[-1].start + phase_tokens
    document = emulated_document(point, max_tokens=num_tokens, acceptance_changes=changes)
    law = draft_law(parse_config(document, source="recover"))
    measured: dict[int, list[list[float]]] = {phase.start: [] for phase in phases}
    ideal: dict[int, list[list[float]]] = {phase.start: [] for phase in phases}
    async with deploy(document) as services:
        for repeat in range(-1, repeats):  # the first warms up
            (prompt,) = prompts_of(point, seed=seed, repeat=repeat)
            fields = {"token_ids": prompt, "max_tokens": num_tokens, "temperature": 0.0}
            sample = await generate(services.client, {**fields, "ignore_eos": True})
            if repeat < 0:
                continue
            whole = [*prompt, *sample.result.token_ids]
            for phase in phases:
                times = sample.token_s[phase.start : phase.start + phase.length]
                measured[phase.start].append(times)
                ideal[phase.start].append(_ideal_times(phase, law, whole))
    rows = []
    for before, phase in pairwise(phases):
        tokens, curve = recovery(measured[phase.start], ideal[phase.start])
        rows.append(
            {
                "scenario": "recover",
                "acceptance": phase.acceptance,
                "acceptance_before": before.acceptance,
                "phase_tokens": phase.length,
                "recovered_after_tokens": tokens,
                "curve": curve,
            }
        )
    return rows


def _ideal_times(phase: Phase, law: Any, whole: Sequence[int]) -> list[float]:
    """When each token of a phase would come under its best setting, from a prompt before it."""
    ideal = Ideal(Point(phase.acceptance))
    start = PROMPT_LENGTH + phase.start
    scenario = scenario_of(
        ideal.config, num_tokens=phase.length, setting=ideal.best(), prompt_length=start
    )
    drafts = right_drafts(law, [whole])
    result = simulate(scenario, acceptance=drafts.is_right, right_other=drafts.right_other)
    return [at for _, at, count in result.heard for _ in range(count)]


# --- context --------------------------------------------------------------------------------


async def context(
    *,
    lengths: Sequence[int],
    max_tokens: int,
    repeats: int,
    seed: int,
    deploy: Deploy = serving,
) -> list[dict[str, Any]]:
    """Tokens a second after the first at several context lengths, and KV pages while it lasts."""
    point = Point(0.8)
    document = emulated_document(point, max_tokens=max_tokens, prompt_length=max(lengths))
    speeds: dict[int, list[float]] = {length: [] for length in lengths}
    pages: dict[int, dict[str, Any]] = {}
    async with deploy(document) as services:
        for repeat in range(-1, repeats):
            for length in lengths:
                (prompt,) = prompts_of(point, seed=seed, repeat=repeat, length=length)
                sample, pages[length] = await _watched(services, prompt, max_tokens)
                if repeat >= 0:
                    since_first_s = sample.latency_s - sample.ttft_s
                    later = sample.num_tokens - sample.arrivals[0][1]
                    speeds[length].append(later / since_first_s)
    medians = {length: statistics.median(speeds[length]) for length in lengths}
    return [
        {
            "scenario": "context",
            "acceptance": point.acceptance,
            "context_tokens": length,
            "tokens_per_s": medians[length],
            "over_shortest": medians[length] / medians[min(lengths)],
            **pages[length],
        }
        for length in lengths
    ]


async def _watched(
    services: Services, prompt: Sequence[int], max_tokens: int
) -> tuple[Sample, dict[str, Any]]:
    """A generation, and the verifier's KV pages at its first token and after it."""
    fields: dict[str, Any] = {"token_ids": prompt, "max_tokens": max_tokens, "temperature": 0.0}
    chunks = services.client.generate(**fields, ignore_eos=True)
    await anext(chunks)
    used, page_size = await _pages(services)
    await chunks.aclose()
    sample = await generate(services.client, {**fields, "ignore_eos": True})
    after, _ = await _pages(services)
    return sample, {
        "kv_pages": used,
        "kv_pages_least": -(-len(prompt) // page_size),
        "kv_pages_most": -(-(len(prompt) + max_tokens) // page_size),
        "kv_pages_after": after,
    }


async def _pages(services: Services) -> tuple[int, int]:
    for worker in (await services.client.status()).workers:
        if worker.role == "verifier" and worker.info is not None:
            return worker.info.kv_pages_used, worker.info.kv_page_size
    return 0, 1


# --- wire -----------------------------------------------------------------------------------


async def wire(*, max_tokens: int, seed: int, deploy: Deploy = serving) -> list[dict[str, Any]]:
    """Bytes to and from the drafter for each draft token, prompt and openings included, in blocks
    of `WIRE_BLOCK`: an adaptive window's lengths would be a matter of timing."""
    point = Point(0.8, verify_ms=5.0, draft_ms=0.5)
    async with deploy(emulated_document(point, max_tokens=max_tokens)) as services:
        prompts = prompts_of(point, seed=seed, repeat=0)
        fields = {
            "token_ids": prompts[0],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "num_speculative_tokens": WIRE_BLOCK,
            "window": 3 * WIRE_BLOCK,
        }
        samples = await asyncio.gather(
            *(generate(services.client, {**fields, **rule}) for rule in RULES.values())
        )
    return [
        {
            "scenario": "wire",
            "rule": rule,
            "drafted": sample.result.stats.drafted,
            "bytes_drafter": sample.result.stats.bytes_drafter,
            "bytes_per_draft_token": sample.result.stats.bytes_drafter
            / max(sample.result.stats.drafted, 1),
        }
        for rule, sample in zip(RULES, samples, strict=True)
    ]
