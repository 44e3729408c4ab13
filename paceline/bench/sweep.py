"""The grid of a sweep: every point measured under fixed and adaptive settings, side by side.

Each point is a deployment of its own. All settings of a repeat have the same prompts, hence the
same outputs and the very same right and wrong drafts, so that their ratios are free of luck.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.grid import Point
from paceline.bench.ideal import (
    ADAPTIVE,
    PLAIN,
    Drafts,
    Ideal,
    Setting,
    draft_law,
    emulated_document,
    prompts_of,
    right_drafts,
    round_overheads,
)
from paceline.bench.measure import Sample, generate
from paceline.bench.processes import Deploy, Services, serving
from paceline.bench.summary import median_of, percentile
from paceline.errors import PacelineError
from paceline.simulation.closed_forms import overlapped_speedup, sequential_speedup

WARM_UP_TOKENS = 24


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How each point is measured."""

    gammas: tuple[int, ...]
    max_tokens: int = 200
    repeats: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    """All sessions of one setting in one repeat."""

    wall_s: float
    samples: list[Sample]
    busy_s: float
    """Of the verifier's emulated device."""
    late_s: float
    """Part of it that the emulation itself was late."""

    @property
    def outputs(self) -> list[list[int]]:
        return [sample.result.token_ids for sample in self.samples]

    def total(self, name: str) -> int:
        """Of a count of the statistics."""
        return sum(getattr(sample.result.stats, name) for sample in self.samples)


async def measure_point(
    point: Point, options: SweepOptions, *, deploy: Deploy = serving
) -> list[dict[str, Any]]:
    """One row a setting; see `docs/benchmarks.md` for its columns. Starts and stops services."""
    ideal = Ideal(point)
    settings = settings_of(ideal, options.gammas)
    document = emulated_document(point, max_tokens=options.max_tokens)
    measured: dict[Setting, list[dict[str, float]]] = {setting: [] for setting in settings}
    overheads: dict[Setting, list[float]] = {setting: [] for setting in settings}
    async with deploy(document) as services:
        warm_up = prompts_of(point, seed=options.seed, repeat=-1)
        for setting in (PLAIN, ADAPTIVE):
            await _run(services, setting, warm_up, WARM_UP_TOKENS)
        for repeat in range(options.repeats):
            prompts = prompts_of(point, seed=options.seed, repeat=repeat)
            runs = {
                setting: await _run(services, setting, prompts, options.max_tokens)
                for setting in _rotated(settings, repeat)
            }
            drafts = _drafts(ideal, prompts, runs)
            for setting, run in runs.items():
                row, rounds = _figures(ideal, setting, run, drafts)
                measured[setting].append(row)
                overheads[setting] += rounds
    medians = {setting: median_of(rows) for setting, rows in measured.items()}
    return [
        {
            **point.as_row(),
            "scenario": "grid",
            "setting": setting.kind,
            "block": setting.block,
            "window": setting.window,
            "ahead": ideal.ahead if setting == ADAPTIVE else setting.ahead,
            **medians[setting],
            **_ratios(setting, medians),
            "closed_form_speedup": _closed_form(point, setting),
            "rounds": len(overheads[setting]),
            "overhead_ms_p50": percentile(overheads[setting], 50) * 1e3,
            "overhead_ms_p99": percentile(overheads[setting], 99) * 1e3,
        }
        for setting in settings
    ]


def settings_of(ideal: Ideal, gammas: Sequence[int]) -> list[Setting]:
    """Plain, adaptive, each block length with its best window, the best without other outcomes, and
    the best stop and wait."""
    fixed = [ideal.best_window(gamma, ideal.ahead) for gamma in gammas]
    simple = [ideal.best(), ideal.best_waiting()]
    return list(dict.fromkeys([PLAIN, ADAPTIVE, *fixed, *simple]))


def _rotated(settings: Sequence[Setting], repeat: int) -> list[Setting]:
    """Another one first in each repeat: a machine that warms up or slows down favours none."""
    start = repeat % len(settings)
    return [*settings[start:], *settings[:start]]


async def _run(
    services: Services, setting: Setting, prompts: Sequence[Sequence[int]], max_tokens: int
) -> _Run:
    before = await services.counters("verifier")
    started = time.perf_counter()
    samples = await asyncio.gather(
        *(
            generate(
                services.client,
                {
                    "token_ids": prompt,
                    "max_tokens": max_tokens,
                    "temperature": 0.0,
                    "ignore_eos": True,
                    **setting.fields(),
                },
            )
            for prompt in prompts
        )
    )
    wall_s = time.perf_counter() - started
    after = await services.counters("verifier")

    def spent(name: str) -> float:
        return (after.get(name, 0) - before.get(name, 0)) / 1e6

    return _Run(wall_s, list(samples), spent("device_busy_us"), spent("device_late_us"))


def _drafts(ideal: Ideal, prompts: Sequence[Sequence[int]], runs: Mapping[Setting, _Run]) -> Drafts:
    """Which drafts are right. Raises `PacelineError` if settings gave different outputs."""
    outputs = runs[PLAIN].outputs
    for setting, run in runs.items():
        if run.outputs != outputs:
            raise PacelineError(f"{ideal.point.label}: {setting} changed the output")
    whole = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    return right_drafts(draft_law(ideal.config), whole)


def _figures(
    ideal: Ideal, setting: Setting, run: _Run, drafts: Drafts
) -> tuple[dict[str, float], list[float]]:
    """One run's numbers, and the overhead of each of its rounds, in seconds."""
    num_tokens = sum(sample.num_tokens for sample in run.samples)
    is_adaptive = setting.kind == "adaptive"
    length = run.samples[0].num_tokens
    simulated = ideal.run(ideal.best(ideal.ahead) if is_adaptive else setting, length, drafts)
    simple = ideal.run(ideal.best(), length, drafts)
    drafted, judged, accepted = (run.total(name) for name in ("drafted", "judged", "accepted"))
    passes, wire = run.total("passes"), run.total("bytes_drafter")
    row = {
        "tokens_per_s": num_tokens / run.wall_s,
        "ideal_tokens_per_s": simulated.tokens_per_second,
        "measured_over_ideal": simulated.seconds / run.wall_s,
        "measured_over_simple_ideal": simple.seconds / run.wall_s,
        "ttft_ms": percentile([sample.ttft_s for sample in run.samples], 50) * 1e3,
        "acceptance_rate": accepted / judged if judged else 0.0,
        "mean_acceptance_length": num_tokens / passes,
        "verifier_busy_share": run.busy_s / run.wall_s,
        "emulation_late_share": run.late_s / run.wall_s,
        "bytes_per_draft_token": wire / drafted if drafted else 0.0,
    }
    if is_adaptive or len(run.samples) > 1:
        return row, []
    heard = [(at, count) for _, at, count in simulated.heard]
    return row, round_overheads(run.samples[0].arrivals, heard)


def _ratios(
    setting: Setting, medians: Mapping[Setting, Mapping[str, float]]
) -> dict[str, float | None]:
    """To plain decoding, and to the best of what else was measured at the point."""
    speeds = {each: row["tokens_per_s"] for each, row in medians.items()}
    fixed = max(speed for each, speed in speeds.items() if each.kind != "adaptive")
    waiting = max(speed for each, speed in speeds.items() if each.kind == "stop-and-wait")
    is_adaptive = setting.kind == "adaptive"
    return {
        "speedup": speeds[setting] / speeds[PLAIN],
        "over_best_fixed": speeds[setting] / fixed if is_adaptive else None,
        "over_stop_and_wait": speeds[setting] / waiting,
    }


def _closed_form(point: Point, setting: Setting) -> float | None:
    """Speed-up of one session where a formula is known for it."""
    if setting.block == 0 or point.concurrency > 1 or not point.verify_ms:
        return None
    formula = sequential_speedup if setting.window == setting.block else overlapped_speedup
    return formula(
        point.acceptance,
        setting.block,
        verify_s=point.verify_ms / 1e3,
        draft_s=point.draft_ms / 1e3,
        round_trip_s=point.round_trip_ms / 1e3,
    )
