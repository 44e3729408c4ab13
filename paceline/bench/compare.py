"""Paceline against transformers in one run: the same pair, dtype, threads and prompts, in turn."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.bench.latency import PairOptions
from paceline.bench.machine import Machine
from paceline.bench.measure import generate
from paceline.bench.processes import Process, ProcessGroup, all_or_none, start_orchestrator
from paceline.bench.progress import progress
from paceline.bench.prompts import BenchPrompt, in_repeat
from paceline.bench.reference import ReferenceProcess
from paceline.bench.report import Chart, Report, Row, Series, Table
from paceline.client import Client

WARM_UP_TOKENS = 8
STREAMS = "streams"
PLAIN, PACELINE = "transformers generate", "paceline"
LOOKUP, NGRAM = "transformers prompt lookup", "paceline ngram"
ASSISTED, MODEL = "transformers assisted", "paceline model"
_OF_REFERENCE = {PLAIN: "generate", ASSISTED: "assisted", LOOKUP: "prompt_lookup"}


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What is measured."""

    pair: PairOptions
    target_quantization: str = "none"
    draft_quantization: str = "nf4"
    max_tokens: int = 128
    repeats: int = 3
    streams: int = 16
    """How many concurrent ones are held against a single one; 0 leaves that out."""

    @property
    def target(self) -> dict[str, Any]:
        return self.pair.model(self.pair.target, self.target_quantization)

    @property
    def draft(self) -> dict[str, Any]:
        return self.pair.model(self.pair.draft or self.pair.target, self.draft_quantization)


class System(Protocol):
    """One way to generate greedily, without an end but the limit."""

    async def run(self, token_ids: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        """The ids that follow, and seconds."""
        ...


@dataclass(frozen=True, slots=True)
class _Transformers:
    reference: ReferenceProcess
    system: str

    async def run(self, token_ids: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        return await self.reference.generate(self.system, token_ids, max_tokens)


@dataclass(frozen=True, slots=True)
class _Paceline:
    client: Client
    speculation: bool

    async def run(self, token_ids: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        fields = {
            "token_ids": token_ids,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "speculation": self.speculation,
            "cache_salt": secrets.token_hex(8),  # none finds another's prompt cached
        }
        sample = await generate(self.client, fields)
        return sample.result.token_ids, sample.latency_s


async def run_compare(
    suites: Mapping[str, Sequence[BenchPrompt]], options: CompareOptions, *, machine: Machine
) -> Report:
    """Every prompt of every suite by every system, in turn. Raises `PacelineError`."""
    async with ProcessGroup() as group:
        reference = await ReferenceProcess.start(group, options.target, options.draft)
        with_ngram, with_model, documents = await _start(group, options)
        async with Client(with_ngram.address) as ngram, Client(with_model.address) as model:
            systems: dict[str, System] = {
                **{name: _Transformers(reference, own) for name, own in _OF_REFERENCE.items()},
                PACELINE: _Paceline(ngram, speculation=False),
                NGRAM: _Paceline(ngram, speculation=True),
                MODEL: _Paceline(model, speculation=True),
            }
            rows = await _measure(systems, reference, suites, options)
            if options.streams:
                first = next(iter(suites.values()))
                rows += await _streams(systems[PACELINE], reference, first, options)
    configuration = {
        "max_tokens": options.max_tokens,
        "repeats": options.repeats,
        "streams": options.streams,
        "temperature": 0.0,
        "ignore_eos": True,
        "target": options.target,
        "draft": options.draft,
        "services": documents,
        "prompts": {
            suite: [prompt.fields(options.max_tokens) for prompt in prompts]
            for suite, prompts in suites.items()
        },
    }
    return Report(
        "compare", machine, configuration, rows, _summary(rows), _tables(rows), _charts(rows)
    )


async def _start(
    group: ProcessGroup, options: CompareOptions
) -> tuple[Process, Process, dict[str, Any]]:
    """Orchestrators with each drafter, over one verifier; and the configuration of all."""
    listen = {"listen": "127.0.0.1:0"}
    document = {
        "verifier": {**listen, "model": options.target},
        "drafter": {**listen, "kind": "ngram"},
    }
    other = {**document, "drafter": {**listen, "kind": "model", "model": options.draft}}
    verifier, ngram, model = await all_or_none(
        group.start_service("verifier_service", document, "verifier"),
        group.start_service("drafter_service", document, "ngram drafter"),
        group.start_service("drafter_service", other, "model drafter"),
    )
    fronts = await all_or_none(
        *(
            start_orchestrator(
                group,
                document,
                verifiers=[verifier.address],
                drafters=[drafter.address],
                label=f"orchestrator of the {drafter.name}",
            )
            for drafter in (ngram, model)
        )
    )
    return fronts[0], fronts[1], {**document, "model drafter": other["drafter"]}


async def _measure(
    systems: Mapping[str, System],
    reference: ReferenceProcess,
    suites: Mapping[str, Sequence[BenchPrompt]],
    options: CompareOptions,
) -> list[Row]:
    """A row for each suite and system: medians of each prompt over repeats, summed over prompts."""
    total = options.repeats * sum(map(len, suites.values())) * len(systems)
    rows: list[Row] = []
    with progress("compare", total) as advance:
        for suite, prompts in suites.items():
            warm_up = await reference.encode(_asked(prompts[0]))
            for system in systems.values():
                await system.run(warm_up, WARM_UP_TOKENS)
            seconds: dict[tuple[str, int], list[float]] = {}
            tokens: dict[int, int] = {}
            same = dict.fromkeys(systems, 0)
            for repeat in range(options.repeats):
                for number, prompt in enumerate(in_repeat(prompts, repeat)):
                    ids = await reference.encode(_asked(prompt))
                    limit = prompt.fields(options.max_tokens)["max_tokens"] or options.max_tokens
                    outputs = {}
                    for name in _rotated(list(systems), repeat + number):
                        outputs[name], taken = await systems[name].run(ids, limit)
                        seconds.setdefault((name, number), []).append(taken)
                        advance(name)
                    tokens[number] = limit
                    for name, output in outputs.items():
                        same[name] += output == outputs[PLAIN]
            for name in systems:
                taken_s = sum(
                    statistics.median(seconds[name, number]) for number in range(len(prompts))
                )
                rows.append(
                    {
                        "suite": suite,
                        "system": name,
                        "prompts": len(prompts),
                        "tokens_per_s": sum(tokens.values()) / taken_s,
                        "same_outputs": same[name] / (options.repeats * len(prompts)),
                    }
                )
    return [{**row, **_ratios(row, rows)} for row in rows]


def _asked(prompt: BenchPrompt) -> dict[str, Any]:
    """What is to be encoded."""
    fields: dict[str, Any] = dict(prompt.fields(1))
    del fields["max_tokens"]
    return fields


def _rotated(names: list[str], start: int) -> list[str]:
    start %= len(names)
    return [*names[start:], *names[:start]]


def _ratios(row: Row, rows: Sequence[Row]) -> dict[str, float]:
    """To the systems that it must be held against."""
    speeds = {
        each["system"]: each["tokens_per_s"] for each in rows if each["suite"] == row["suite"]
    }
    own = row["tokens_per_s"]
    return {
        "over_generate": own / speeds[PLAIN],
        "over_paceline": own / speeds[PACELINE],
        "over_prompt_lookup": own / speeds[LOOKUP],
        "over_assisted": own / speeds[ASSISTED],
    }


async def _streams(
    system: System,
    reference: ReferenceProcess,
    prompts: Sequence[BenchPrompt],
    options: CompareOptions,
) -> list[Row]:
    """Many plain streams together against one alone."""
    speeds: dict[int, list[float]] = {1: [], options.streams: []}
    for repeat in range(options.repeats):
        for count, found in speeds.items():
            asked = [
                prompts[index % len(prompts)].unique(10_000 + 100 * repeat + index)
                for index in range(count)
            ]
            ids = [await reference.encode(_asked(prompt)) for prompt in asked]
            started = time.perf_counter()
            await asyncio.gather(*(system.run(each, options.max_tokens) for each in ids))
            found.append(count * options.max_tokens / (time.perf_counter() - started))
    medians = {count: statistics.median(found) for count, found in speeds.items()}
    return [
        {
            "suite": STREAMS,
            "system": PACELINE,
            "streams": count,
            "tokens_per_s": median,
            "over_one_stream": median / medians[1],
        }
        for count, median in medians.items()
    ]


def _suites(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["suite"] != STREAMS]


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The ratios that must hold."""
    found: dict[str, Any] = {}
    for row in _suites(rows):
        if row["system"] == PACELINE:
            found[f"{row['suite']}: paceline / generate"] = row["over_generate"]
        if row["system"] == NGRAM:
            found[f"{row['suite']}: ngram / prompt lookup"] = row["over_prompt_lookup"]
            found[f"{row['suite']}: ngram / paceline"] = row["over_paceline"]
        if row["system"] == MODEL:
            found[f"{row['suite']}: model / assisted"] = row["over_assisted"]
    for row in rows:
        if row.get("streams", 1) > 1:
            found[f"{row['streams']} streams / one"] = row["over_one_stream"]
    return found


def _tables(rows: Sequence[Row]) -> list[Table]:
    columns = [
        ("prompts", "suite", ""),
        ("system", "system", ""),
        ("tokens/s", "tokens_per_s", ".1f"),
        ("/ generate", "over_generate", ".2f"),
        ("/ prompt lookup", "over_prompt_lookup", ".2f"),
        ("/ assisted", "over_assisted", ".2f"),
        ("/ paceline", "over_paceline", ".2f"),
        ("same output as generate", "same_outputs", ".0%"),
    ]
    streams = [
        ("streams", "streams", "d"),
        ("tokens/s", "tokens_per_s", ".1f"),
        ("/ one stream", "over_one_stream", ".2f"),
    ]
    together = [row for row in rows if row["suite"] == STREAMS]
    tables = [
        Table("Systems", columns, _suites(rows)),
        Table("Concurrent streams", streams, together),
    ]
    return [table for table in tables if table.rows]


def _charts(rows: Sequence[Row]) -> list[Chart]:
    suites = list(dict.fromkeys(row["suite"] for row in _suites(rows)))
    series = []
    for suite in suites:
        of_suite = [row for row in rows if row["suite"] == suite]
        names = [row["system"] for row in of_suite]
        series.append(Series(suite, names, [row["tokens_per_s"] for row in of_suite]))
    return [Chart("systems", "One stream", "system", "tokens/s", series)]
