"""How close the whole system comes to the ideal: a synthetic pair on emulated devices over real
gRPC on loopback, against the simulator with the very same accepted and rejected drafts.

All three services and the client share this process, so its numbers are pessimistic; and they mean
something only on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import drafter_service.service
import orchestrator.service
import verifier_service.service
from paceline.bench.grid import Point
from paceline.bench.ideal import (
    BLOCKS,
    PROMPT_LENGTH,
    Ideal,
    Setting,
    draft_law,
    emulated_document,
    right_drafts,
)
from paceline.client import Client, GenerateResult
from paceline.config import parse_config

LOOPBACK = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in seconds, speeds in tokens a second."""

    acceptance: float
    round_trip_ms: float
    num_speculative_tokens: int
    window: int
    plain: float
    measured: float
    ideal: float
    overhead_ms: float
    """Wall time beyond the ideal, per verdict."""
    best_waiting: float
    """The ideal of stop and wait, a window of one block, with the best block length."""

    @property
    def share(self) -> float:
        return self.measured / self.ideal


def emulated(options: argparse.Namespace, acceptance: float, round_trip_ms: float) -> Ideal:
    """The pair: the round trip lies between orchestrator and verifier."""
    costs = {"verify_ms": options.verify_ms, "draft_ms": options.draft_ms}
    return Ideal(Point(acceptance, round_trip_ms, **costs))


@asynccontextmanager
async def serving(data: dict[str, Any]) -> AsyncIterator[Client]:
    """All services in this process, and a client."""
    config = parse_config(data, source="benchmark")
    async with AsyncExitStack() as cleanup:
        verifier = await verifier_service.service.start(config)
        cleanup.push_async_callback(verifier.stop, 0.0)
        drafter = await drafter_service.service.start(config)
        cleanup.push_async_callback(drafter.stop, 0.0)
        addresses = {"verifiers": [verifier.address], "drafters": [drafter.address]}
        data["orchestrator"] |= addresses
        front = await orchestrator.service.start(parse_config(data, source="benchmark"))
        cleanup.push_async_callback(front.stop, 0.0)
        yield await cleanup.enter_async_context(Client(front.address))


async def timed(client: Client, **fields: Any) -> tuple[float, GenerateResult]:
    """Seconds of a greedy generation, and its result."""
    started = time.perf_counter()
    chunks = [chunk async for chunk in client.generate(temperature=0, **fields)]
    return time.perf_counter() - started, GenerateResult.of(chunks)


def best_setting(ideal: Ideal) -> Setting:
    """Block length and window of the highest ideal speed."""
    return max((ideal.best_window(block) for block in BLOCKS), key=ideal.speed)


async def measure(options: argparse.Namespace, acceptance: float, round_trip_ms: float) -> Row:
    """One setting, the median of some runs with other prompts, each against its own ideal."""
    pair = emulated(options, acceptance, round_trip_ms)
    setting = best_setting(pair)
    if options.block is not None:
        setting = Setting("fixed", options.block, options.window)
    law = draft_law(pair.config)
    data = emulated_document(pair.point, max_tokens=options.tokens)
    for service in ("verifier", "drafter", "orchestrator"):
        data[service]["listen"] = LOOPBACK
    runs: list[tuple[float, ...]] = []
    async with serving(data) as client:
        for run in range(options.runs + 1):
            prompt = [(run * 17 + position) % 100 for position in range(PROMPT_LENGTH)]
            fields: dict[str, Any] = {"token_ids": prompt, "max_tokens": options.tokens}
            plain_s, plain = await timed(client, speculation=False, **fields)
            wall_s, result = await timed(client, **setting.fields(), **fields)
            assert result.token_ids == plain.token_ids, "speculation changed the output"
            is_right = right_drafts(law, [[*prompt, *result.token_ids]])
            best = pair.run(setting, options.tokens, is_right)
            waiting_s = min(
                pair.run(Setting("stop-and-wait", n, n), options.tokens, is_right).seconds
                for n in range(1, 25)
            )
            overhead_s = (wall_s - best.seconds) / best.verdicts
            if run:  # the first one warms up
                runs.append((plain_s, wall_s, best.seconds, waiting_s, overhead_s))
    columns = [statistics.median(column) for column in zip(*runs, strict=True)]
    plain_s, wall_s, ideal_s, waiting_s, overhead_s = columns
    return Row(
        acceptance=acceptance,
        round_trip_ms=round_trip_ms,
        num_speculative_tokens=setting.block,
        window=setting.window,
        plain=options.tokens / plain_s,
        measured=options.tokens / wall_s,
        ideal=options.tokens / ideal_s,
        overhead_ms=overhead_s * 1e3,
        best_waiting=options.tokens / waiting_s,
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| α | RTT ms | block, window | plain tok/s | measured | ideal | measured / ideal"
        " | overhead ms a round | ideal / best stop-and-wait |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.acceptance:g} | {row.round_trip_ms:g} | {row.num_speculative_tokens},"
        f" {row.window} | {row.plain:.1f} | {row.measured:.1f} | {row.ideal:.1f}"
        f" | {row.share:.3f} | {row.overhead_ms:.2f} | {row.ideal / row.best_waiting:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--verify-ms", type=float, default=30.0)
    parser.add_argument("--draft-ms", type=float, default=3.0)
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.6, 0.8, 0.9])
    parser.add_argument("--round-trip-ms", type=float, nargs="+", default=[0.0, 20.0])
    parser.add_argument("--block", type=int, help="with --window: not the best setting, but this")
    parser.add_argument("--window", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.block is None) != (options.window is None):
        parser.error("--block and --window go together")
    rows = []
    for round_trip_ms in options.round_trip_ms:
        for acceptance in options.acceptance:
            rows.append(await measure(options, acceptance, round_trip_ms))
            if not options.json:
                print(f"α {acceptance:g}, RTT {round_trip_ms:g} ms: {rows[-1].share:.3f}")
    print(json.dumps([asdict(row) for row in rows]) if options.json else table(rows))


if __name__ == "__main__":
    asyncio.run(main())
