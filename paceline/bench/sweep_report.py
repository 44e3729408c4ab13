"""A whole sweep: its steps one after the other, resumable, and the report on them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from paceline.bench import scenarios
from paceline.bench.grid import Point
from paceline.bench.machine import Machine
from paceline.bench.progress import progress
from paceline.bench.report import Chart, Report, Row, Series, Table
from paceline.bench.results_file import ResultsFile
from paceline.bench.sweep import SweepOptions, measure_point

_Step: TypeAlias = Callable[[], Coroutine[Any, Any, list[dict[str, Any]]]]

SCENARIOS = ("grid", "recover", "context", "wire")
PHASE_TOKENS = 300
CONTEXT_LENGTHS = (100, 4000)

_POINT = [
    ("α", "acceptance", "g"),
    ("RTT ms", "round_trip_ms", "g"),
    ("sessions", "concurrency", "d"),
    ("target ms", "verify_ms", "g"),
    ("draft ms", "draft_ms", "g"),
    ("knee", "knee_tokens", "d"),
    ("second guess", "second_guess", "g"),
]
_SPEED = [
    *_POINT,
    ("setting", "setting", ""),
    ("γ", "block", "d"),
    ("window", "window", "d"),
    ("ahead", "ahead", "d"),
    ("tokens/s", "tokens_per_s", ".1f"),
    ("speed-up", "speedup", ".2f"),
    ("closed form", "closed_form_speedup", ".2f"),
    ("ideal tokens/s", "ideal_tokens_per_s", ".1f"),
    ("measured / ideal", "measured_over_ideal", ".3f"),
    ("/ ideal without outcomes", "measured_over_simple_ideal", ".3f"),
    ("/ best fixed", "over_best_fixed", ".3f"),
    ("/ stop-and-wait", "over_stop_and_wait", ".2f"),
]
_COST = [
    *_POINT,
    ("setting", "setting", ""),
    ("γ", "block", "d"),
    ("window", "window", "d"),
    ("ahead", "ahead", "d"),
    ("acceptance", "acceptance_rate", ".3f"),
    ("tokens/pass", "mean_acceptance_length", ".2f"),
    ("first token ms", "ttft_ms", ".1f"),
    ("overhead ms p50", "overhead_ms_p50", ".2f"),
    ("p99", "overhead_ms_p99", ".2f"),
    ("rounds", "rounds", "d"),
    ("target busy", "verifier_busy_share", ".1%"),
    ("late", "emulation_late_share", ".1%"),
    ("bytes/draft", "bytes_per_draft_token", ".1f"),
]


async def run_sweep(
    points: Sequence[Point],
    options: SweepOptions,
    *,
    parts: Sequence[str],
    results: Path | None,
    machine: Machine,
) -> Report:
    """Measure what `parts` of `SCENARIOS` name. Raises `PacelineError`."""
    configuration = {
        **asdict(options),
        "gammas": list(options.gammas),
        "phase_tokens": PHASE_TOKENS,
        "context_lengths": list(CONTEXT_LENGTHS),
    }
    file = ResultsFile(results, configuration)
    file.load()
    steps = _steps(points, options, parts)
    with progress("sweep", len(steps)) as advance:
        for key, step in steps.items():
            if key not in file.rows:
                file.add(key, list(await step()))
            advance(key)
    rows = [row for key in steps for row in file.rows[key]]
    return Report(
        "sweep",
        machine,
        {**configuration, "parts": list(parts), "points": [point.as_row() for point in points]},
        rows,
        _summary(rows),
        _tables(rows),
        _charts(rows),
    )


def _steps(
    points: Sequence[Point], options: SweepOptions, parts: Sequence[str]
) -> dict[str, _Step]:
    """What is to be done, by the key of its results."""
    others: dict[str, _Step] = {
        # a jump is seen by the mean of several streams
        "recover": partial(
            scenarios.recover,
            repeats=4 * options.repeats,
            phase_tokens=PHASE_TOKENS,
            seed=options.seed,
        ),
        "context": partial(
            scenarios.context,
            lengths=CONTEXT_LENGTHS,
            max_tokens=options.max_tokens,
            repeats=options.repeats,
            seed=options.seed,
        ),
        "wire": partial(scenarios.wire, max_tokens=options.max_tokens, seed=options.seed),
    }
    grid = {
        point.label: partial(measure_point, point, options) for point in points if "grid" in parts
    }
    return {**grid, **{name: step for name, step in others.items() if name in parts}}


def _of(rows: Sequence[Row], scenario: str) -> list[Row]:
    return [row for row in rows if row["scenario"] == scenario]


def _tables(rows: Sequence[Row]) -> list[Table]:
    grid = _of(rows, "grid")
    tables = [Table("Speed", _SPEED, grid), Table("What it costs", _COST, grid)]
    recover = [
        ("from α", "acceptance_before", "g"),
        ("to α", "acceptance", "g"),
        ("recovered after tokens", "recovered_after_tokens", "d"),
    ]
    context = [
        ("context tokens", "context_tokens", "d"),
        ("tokens/s", "tokens_per_s", ".1f"),
        ("/ shortest", "over_shortest", ".2f"),
        ("KV pages at first token", "kv_pages", "d"),
        ("of prompt", "kv_pages_least", "d"),
        ("of whole session", "kv_pages_most", "d"),
        ("after", "kv_pages_after", "d"),
    ]
    wire = [
        ("rule", "rule", ""),
        ("draft tokens", "drafted", "d"),
        ("bytes", "bytes_drafter", "d"),
        ("bytes / draft token", "bytes_per_draft_token", ".1f"),
    ]
    tables += [
        Table("Acceptance jumps", recover, _of(rows, "recover")),
        Table("Context", context, _of(rows, "context")),
        Table("Wire", wire, _of(rows, "wire")),
    ]
    return [table for table in tables if table.rows]


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The worst of every ratio that must hold."""
    grid = _of(rows, "grid")
    fixed = [row for row in grid if row["setting"] in ("fixed", "stop-and-wait")]
    adaptive = [row for row in grid if row["setting"] == "adaptive"]
    single = [row for row in fixed if row["concurrency"] == 1]
    found: dict[str, Any] = {
        "worst measured / ideal": _worst(min, single, "measured_over_ideal"),
        "worst adaptive / ideal without outcomes": _worst(
            min, adaptive, "measured_over_simple_ideal"
        ),
        "worst adaptive / best fixed": _worst(min, adaptive, "over_best_fixed"),
        "worst adaptive / plain": _worst(min, adaptive, "speedup"),
        "largest overhead of a round, p50 ms": _worst(max, single, "overhead_ms_p50"),
        "largest overhead of a round, p99 ms": _worst(max, single, "overhead_ms_p99"),
        "largest bytes / draft token": _worst(max, fixed, "bytes_per_draft_token"),
    }
    for row in _of(rows, "recover"):
        name = f"recovered after α {row['acceptance_before']:g} -> {row['acceptance']:g}, tokens"
        found[name] = row["recovered_after_tokens"]
    if context := _of(rows, "context"):
        found["tokens/s at longest / shortest context"] = context[-1]["over_shortest"]
    return {name: value for name, value in found.items() if value is not None or "after" in name}


def _worst(choose: Callable[..., float], rows: Sequence[Row], key: str) -> float | None:
    return choose((row[key] for row in rows if row[key] is not None), default=None)


def _charts(rows: Sequence[Row]) -> list[Chart]:
    lines = [row for row in _of(rows, "grid") if row["concurrency"] == 1 and not row["knee_tokens"]]
    charts = []
    for key, title, y_label in (
        ("speedup", "Speed-up of adaptive speculation", "speed-up over plain decoding"),
        ("measured_over_ideal", "How close to the ideal", "measured / ideal"),
    ):
        series = _by_round_trip([row for row in lines if row["setting"] == "adaptive"], key)
        name = key.replace("_", "-")
        charts.append(Chart(name, title, "acceptance rate α", y_label, series, guide=1.0))
    recover = [
        Series(
            f"α {row['acceptance_before']:g} → {row['acceptance']:g}",
            [scenarios.STEP_TOKENS * index for index in range(len(row["curve"]))],
            row["curve"],
        )
        for row in _of(rows, "recover")
    ]
    title, x_label = "Recovery after a jump of acceptance", "tokens since the jump"
    charts.append(Chart("recover", title, x_label, "throughput / steady", recover, guide=0.95))
    return [chart for chart in charts if chart.series]


def _by_round_trip(rows: Sequence[Row], key: str) -> list[Series]:
    """A line for each cost of the devices and round trip."""
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        where = (row["verify_ms"], row["draft_ms"], row["round_trip_ms"])
        lines.setdefault(where, []).append(row)
    return [
        Series(f"RTT {rtt:g} ms ({verify:g}/{draft:g} ms)", *_columns(points, key))
        for (verify, draft, rtt), points in lines.items()
    ]


def _columns(points: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    ordered = sorted(points, key=lambda row: row["acceptance"])
    return [row["acceptance"] for row in ordered], [row[key] for row in ordered]
