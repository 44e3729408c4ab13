"""The demo's tables, and the same figures as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from demo.runs import Run, first_split

MEBIBYTE = 1024 * 1024


def table_of(pairs: Sequence[tuple[Run, Run]]) -> Table:
    """Each prompt plain, then with speculation."""
    table = Table(
        "prompt",
        *(
            "speculation",
            "tokens",
            "first token",
            "latency",
            "tokens/s",
            "accepted",
            "tokens/pass",
            "log-lik.",
            "same text",
        ),
        box=None,
        padding=(0, 1),
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for plain, speculative in pairs:
        same = "yes" if first_split(plain, speculative) is None else "no"
        table.add_row(plain.prompt.name, *_figures(plain), "")
        table.add_row("", *_figures(speculative), same, end_section=True)
    plain_all, speculative_all = zip(*pairs, strict=True)
    table.add_row("all", *_totals(plain_all), "")
    table.add_row("", *_totals(speculative_all), "")
    return table


def _figures(run: Run) -> tuple[str, ...]:
    stats = run.result.stats
    return (
        stats.speculation,
        str(run.num_tokens),
        f"{1000 * run.first_token_s:.0f} ms",
        f"{run.latency_s:.2f} s",
        f"{run.tokens_per_s:.1f}",
        f"{100 * stats.acceptance_rate:.0f} %" if stats.judged else "",
        f"{stats.mean_acceptance_length:.2f}",
        f"{run.mean_logprob:.3f}",
    )


def _totals(runs: Sequence[Run]) -> tuple[str, ...]:
    seconds = sum(run.latency_s for run in runs)
    tokens = sum(run.num_tokens for run in runs)
    judged = sum(run.result.stats.judged for run in runs)
    accepted = sum(run.result.stats.accepted for run in runs)
    passes = sum(run.result.stats.passes for run in runs)
    return (
        "on" if runs[0].speculation else "off",
        str(tokens),
        "",
        f"{seconds:.2f} s",
        f"{tokens / seconds:.1f}",
        f"{100 * accepted / judged:.0f} %" if judged else "",
        f"{tokens / passes:.2f}" if passes else "",
        f"{sum(run.mean_logprob * run.num_tokens for run in runs) / tokens:.3f}",
    )


def verdict_of(pairs: Sequence[tuple[Run, Run]], *, dtype: str) -> list[str]:
    """What the figures say, the bad ones included."""
    splits = {p.prompt.name: first_split(p, s) for p, s in pairs}
    parted = [
        f"{name} at token {split.index} ({split.gap:.3f})"
        for name, split in splits.items()
        if split
    ]
    lines = []
    if not parted:
        lines.append("Every text with speculation is the text without, token by token.")
    else:
        lines.append(
            f"{len(parted)} of {len(pairs)} texts part (in brackets, by how many nats the target "
            f"preferred its token there to the next one): {', '.join(parted)}."
        )
        lines.append(
            "A pass over several tokens rounds otherwise than a pass over one, and bfloat16 logits "
            "have steps of about 0.1, so near-ties can fall either way. `--dtype float32` shows "
            "equal texts."
            if dtype == "bfloat16"
            else "In float32 they should not: please report it."
        )
    gains = {p.prompt.name: s.tokens_per_s / p.tokens_per_s for p, s in pairs}
    faster = [f"{name} {gain:.2f}x" for name, gain in gains.items() if gain >= 1]
    slower = [f"{name} {gain:.2f}x" for name, gain in gains.items() if gain < 1]
    lines.append(f"Faster with speculation: {', '.join(faster) or 'none'}.")
    lines.append(f"Slower with speculation: {', '.join(slower) or 'none'}.")
    return lines


def memory_table(peaks: Mapping[str, int | None]) -> Table:
    """Peak memory of each process, in bytes; None where the system does not tell."""
    table = Table("process", "peak memory", box=None, padding=(0, 1))
    table.columns[1].justify = "right"
    for name, peak in peaks.items():
        table.add_row(name, f"{peak / MEBIBYTE:.0f} MiB" if peak else "unknown")
    return table


def as_json(pairs: Sequence[tuple[Run, Run]], peaks: Mapping[str, int | None]) -> dict[str, Any]:
    """The same figures, and the texts."""
    return {
        "runs": [_run_as_json(run) for pair in pairs for run in pair],
        "same_text": {p.prompt.name: first_split(p, s) is None for p, s in pairs},
        "peak_memory_bytes": dict(peaks),
    }


def _run_as_json(run: Run) -> dict[str, Any]:
    stats = run.result.stats
    return {
        "prompt": run.prompt.name,
        "speculation": run.speculation,
        "text": run.result.text,
        "finish_reason": run.result.finish_reason,
        "tokens": run.num_tokens,
        "latency_s": run.latency_s,
        "first_token_s": run.first_token_s,
        "tokens_per_s": run.tokens_per_s,
        "drafted": stats.drafted,
        "judged": stats.judged,
        "accepted": stats.accepted,
        "passes": stats.passes,
        "acceptance_rate": stats.acceptance_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "mean_logprob": run.mean_logprob,
    }
