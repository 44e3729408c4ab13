"""Time of judging one pass: 16 sessions x 6 rows x 49,152 ids, without any model.

Run alone on the machine: `python benchmarks/bench_judge.py [--threads 2]`. Prints the median wall
and CPU time of `judge_pass`. Logits are made anew for each pass, as a forward would.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import torch
from torch import Tensor

from paceline.sampling.draw import DraftRow, Draw, draw_drafts, stack_draws
from paceline.sampling.judge import judge_pass
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext
from paceline.sampling.trial import Trial

SESSIONS = 16
ROWS = 6
VOCAB = 49_152
PROMPT = tuple(range(200))

CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.7),
    "temperature + top-p": SamplingParams(temperature=0.7, top_p=0.95),
    "temperature + top-k": SamplingParams(temperature=0.7, top_k=50),
    "all filters and penalties": SamplingParams(
        temperature=0.7,
        top_k=200,
        top_p=0.95,
        min_p=0.01,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
    ),
    "block, temperature + top-p": SamplingParams(
        temperature=0.7, top_p=0.95, acceptance=Acceptance.BLOCK
    ),
    "coupled, temperature": SamplingParams(temperature=0.7, acceptance=Acceptance.COUPLED),
    "coupled, temperature + top-p": SamplingParams(
        temperature=0.7, top_p=0.95, acceptance=Acceptance.COUPLED
    ),
}


def peaked_logits(generator: torch.Generator) -> Tensor:
    """Rows with the long tail of a language model's: a few ids hold most of the mass."""
    logits = torch.randn(SESSIONS * ROWS, VOCAB, generator=generator) * 2.0
    heads = torch.rand(SESSIONS * ROWS, 200, generator=generator) * 12.0 + 6.0
    ids = torch.randint(VOCAB, (SESSIONS * ROWS, 200), generator=generator)
    return logits.scatter_(1, ids, heads)


def flat_logits(generator: torch.Generator) -> Tensor:
    """Normal rows: tens of thousands of ids hold the mass, the hardest case for top-p."""
    return torch.randn(SESSIONS * ROWS, VOCAB, generator=generator)


def trials_for(params: SamplingParams, logits: Tensor) -> list[Trial]:
    """Blocks of five drafts as a drafter with slightly different logits would send them."""
    trials = []
    noise = torch.Generator().manual_seed(7)
    for session in range(SESSIONS):
        rows = logits[session * ROWS : (session + 1) * ROWS - 1]
        near = rows + 0.3 * torch.randn(rows.shape, generator=noise)
        params = dataclasses.replace(params, seed=session)
        tokens: tuple[int, ...] = ()
        draws: list[Draw] = []
        for row in near:
            context = RowContext(params, PROMPT, 100, (), tokens)
            (draw,) = draw_drafts(row.unsqueeze(0), [DraftRow(context, 0, 64)])
            assert isinstance(draw, Draw)
            draws.append(draw)
            tokens += (draw.token_id,)
        trials.append(Trial(params, PROMPT, 100, (), tokens, stack_draws(draws), 0, ROWS))
    return trials


def measure(params: SamplingParams, logits: Tensor, repeats: int) -> tuple[float, float, float]:
    """Median wall and CPU milliseconds of a pass, and accepted drafts a session."""
    trials = trials_for(params, logits.float())
    wall, cpu = [], []
    accepted = 0
    for _ in range(repeats + 2):
        fresh = logits.clone()
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        judgements = judge_pass(fresh, trials)
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
        accepted = sum(judgement[0] for judgement in judgements)  # type: ignore[index]
    return (
        statistics.median(wall[2:]) * 1e3,
        statistics.median(cpu[2:]) * 1e3,
        accepted / SESSIONS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{SESSIONS} sessions x {ROWS} rows x {VOCAB} ids, {arguments.threads} threads")
    print(f"{'':28}  {'logits':>16}  {'wall ms':>8}  {'CPU ms':>8}  {'accepted':>8}")
    for make in (peaked_logits, flat_logits):
        for dtype in (torch.float32, torch.bfloat16):
            logits = make(torch.Generator().manual_seed(1)).to(dtype)
            kind = f"{make.__name__.split('_')[0]} {str(dtype).removeprefix('torch.')}"
            for name, params in CASES.items():
                wall, cpu, accepted = measure(params, logits, arguments.repeats)
                print(f"{name:28}  {kind:>16}  {wall:8.2f}  {cpu:8.2f}  {accepted:8.2f}")


if __name__ == "__main__":
    main()
