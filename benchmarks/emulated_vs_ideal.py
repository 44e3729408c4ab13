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
from paceline.client import Client, GenerateResult
from paceline.config import Config, SyntheticModelConfig, parse_config
from paceline.runtime.synthetic import SyntheticLaw
from paceline.runtime.worker_model import pass_cost, synthetic_law
from paceline.simulation.scenario import Outcome, Scenario, SimulationResult
from paceline.simulation.simulator import simulate

PROMPT_LENGTH = 16
LOOPBACK = "127.0.0.1:0"
BLOCKS = (1, 2, 3, 4, 6, 8)
WINDOWS = (4, 8, 12, 16, 20, 24)
"""What is tried for the best setting."""


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


def document(
    options: argparse.Namespace, acceptance: float, round_trip_ms: float
) -> dict[str, Any]:
    """A configuration: the round trip lies between orchestrator and verifier."""
    pair = {"kind": "synthetic", "vocab_size": 128, "seed": 1}
    drafter = {**pair, "base_ms": options.draft_ms, "acceptance": acceptance}
    return {
        "verifier": {"listen": LOOPBACK, "model": {**pair, "base_ms": options.verify_ms}},
        "drafter": {"listen": LOOPBACK, "kind": "model", "model": drafter},
        "orchestrator": {
            "listen": LOOPBACK,
            "emulated_delay_ms": {"verifier": round_trip_ms / 2},
        },
    }


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


def scenario(config: Config, *, num_tokens: int, block: int, window: int) -> Scenario:
    """What the configuration would be without software."""
    target, draft = config.verifier.model, config.drafter.model
    assert isinstance(target, SyntheticModelConfig)
    assert isinstance(draft, SyntheticModelConfig)
    delay = config.orchestrator.emulated_delay_ms
    return Scenario(
        verify=pass_cost(target),
        draft=pass_cost(draft),
        num_speculative_tokens=block,
        window=window,
        max_tokens=num_tokens,
        prompt_length=PROMPT_LENGTH,
        verifier_delay_s=delay.verifier / 1e3,
        drafter_delay_s=delay.drafter / 1e3,
        draft_patience_s=config.verifier.draft_patience_ms / 1e3,
    )


def best_setting(config: Config, acceptance: float) -> tuple[int, int]:
    """Block length and window of the highest ideal speed."""
    tried = [(block, window) for block in BLOCKS for window in WINDOWS if window >= block]

    def speed(setting: tuple[int, int]) -> float:
        block, window = setting
        ideal = scenario(config, num_tokens=3000, block=block, window=window)
        return simulate(ideal, acceptance=acceptance).tokens_per_second

    return max(tried, key=speed)


def right_drafts(law: SyntheticLaw, states: Sequence[int]) -> Outcome:
    """Which drafts agree with an output whose states these are."""
    return lambda _, position: law.agrees(states[position - 1], position)


async def measure(options: argparse.Namespace, acceptance: float, round_trip_ms: float) -> Row:
    """One setting, the median of some runs with other prompts, each against its own ideal."""
    data = document(options, acceptance, round_trip_ms)
    config = parse_config(data, source="benchmark")
    draft = config.drafter.model
    assert isinstance(draft, SyntheticModelConfig)
    block, window = best_setting(config, acceptance)
    if options.block is not None:
        block, window = options.block, options.window
    law = synthetic_law(draft)
    runs: list[tuple[float, ...]] = []
    async with serving(data) as client:
        for run in range(options.runs + 1):
            prompt = [(run * 17 + position) % 100 for position in range(PROMPT_LENGTH)]
            fields: dict[str, Any] = {"token_ids": prompt, "max_tokens": options.tokens}
            plain_s, plain = await timed(client, speculation=False, **fields)
            wall_s, result = await timed(
                client, window=window, num_speculative_tokens=block, **fields
            )
            assert result.token_ids == plain.token_ids, "speculation changed the output"
            states = law.states([*prompt, *result.token_ids])
            is_right = right_drafts(law, states)

            def ideal(block: int, window: int, is_right: Outcome = is_right) -> SimulationResult:
                played = scenario(config, num_tokens=options.tokens, block=block, window=window)
                return simulate(played, acceptance=is_right)

            best = ideal(block, window)
            waiting_s = min(ideal(length, length).seconds for length in range(1, 25))
            overhead_s = (wall_s - best.seconds) / best.verdicts
            if run:  # the first one warms up
                runs.append((plain_s, wall_s, best.seconds, waiting_s, overhead_s))
    columns = [statistics.median(column) for column in zip(*runs, strict=True)]
    plain_s, wall_s, ideal_s, waiting_s, overhead_s = columns
    return Row(
        acceptance=acceptance,
        round_trip_ms=round_trip_ms,
        num_speculative_tokens=block,
        window=window,
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
