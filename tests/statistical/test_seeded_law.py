"""With the real generator, over 200,000 seeds, the joint law of four tokens is the target's.

Numbers that were looked at in one round and are used again in the next would bias the joint law
and nothing else; so several rounds, drafts in flight, bonus and autoregressive tokens are in it.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from scipy import stats
from simulated_protocol import Schedule, run_session
from simulated_sides import OFFSETS, ProductionSides, Tables, TableSides, numbers_of
from toy_pair import PROMPT, Tokens, ToyPair

from paceline.sampling.coupled import coupled_tokens
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext, target_weights
from paceline.sampling.randomness import group_noise, member_noise, seed_words, uniform

NUM_SEEDS = 200_000
NUM_TOKENS = 4
VOCAB = 5
PLAUSIBLE = 1e-3

SCHEDULES = [
    Schedule(block_length=1, window=1, bonus=1.0, autoregressive=0.0, late=0.0),
    Schedule(block_length=2, window=2),
    Schedule(block_length=3, window=3, bonus=0.0, autoregressive=0.0, late=0.0),
    Schedule(block_length=4, window=4, bonus=1.0),
    Schedule(block_length=1, window=4, autoregressive=0.3),
    Schedule(block_length=2, window=6, bonus=0.3, autoregressive=0.3),
    Schedule(block_length=3, window=6),
]


def _pair(acceptance: Acceptance, seed: int = 0) -> ToyPair:
    params = SamplingParams(
        temperature=0.9, frequency_penalty=0.3, acceptance=acceptance, seed=seed
    )
    return ToyPair(VOCAB, params, draft_top_k=4, spread=1.0, disagreement=1.0)


def _p_value(outputs: Counter[Tokens], pair: ToyPair, length: int) -> float:
    """Chi-square of the first `length` tokens against the target's law; rare ones put together."""
    counts: Counter[Tokens] = Counter()
    for output, count in outputs.items():
        counts[output[:length]] += count
    total = counts.total()
    law = pair.target_law(PROMPT, length)
    assert set(counts) <= set(law)
    common = [output for output, weight in law.items() if weight * total >= 10]
    observed = [counts[output] for output in common]
    expected = [law[output] * total for output in common]
    if sum(expected) < total - 10:
        observed.append(total - sum(observed))
        expected.append(total - sum(expected))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(expected) - 1))


def _worst_p_value(outputs: Counter[Tokens], pair: ToyPair) -> float:
    """Over the joint laws of the first two, three and four tokens; fewer cells see more."""
    return min(_p_value(outputs, pair, length) for length in range(2, NUM_TOKENS + 1))


def _simulate(
    pair: ToyPair, schedules: list[Schedule], *, num_seeds: int, keyed_by_epoch: bool
) -> Counter[Tokens]:
    """Outputs of many seeds, dealt out over the schedules."""
    tables = Tables(pair)
    chance = random.Random(1)
    outputs: Counter[Tokens] = Counter()
    chunk = 20_000
    for start in range(0, num_seeds, chunk):
        seeds = range(start, min(start + chunk, num_seeds))
        for seed, numbers in zip(seeds, numbers_of(seeds), strict=True):
            sides = TableSides(tables, numbers, keyed_by_epoch=keyed_by_epoch)
            schedule = schedules[seed % len(schedules)]
            outputs[run_session(sides, schedule, NUM_TOKENS, chance)] += 1
    return outputs


@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.BLOCK])
def test_the_joint_law_of_four_tokens_is_the_targets(acceptance: Acceptance) -> None:
    pair = _pair(acceptance)
    keyed = acceptance is Acceptance.BLOCK
    outputs = _simulate(pair, SCHEDULES, num_seeds=NUM_SEEDS, keyed_by_epoch=keyed)
    assert outputs.total() == NUM_SEEDS
    assert _worst_p_value(outputs, pair) > PLAUSIBLE


def test_block_numbers_keyed_by_position_alone_would_be_seen() -> None:
    """The test can fail: the next round would reuse numbers that had a say in the last."""
    pair = _pair(Acceptance.BLOCK)
    schedule = Schedule(block_length=4, window=4, bonus=1.0, autoregressive=0.0, late=0.0)
    reused = _simulate(pair, [schedule], num_seeds=12_000, keyed_by_epoch=False)
    assert _worst_p_value(reused, pair) < 1e-9
    fresh = _simulate(pair, [schedule], num_seeds=12_000, keyed_by_epoch=True)
    assert _worst_p_value(fresh, pair) > PLAUSIBLE


def test_coupled_tokens_have_the_joint_law_of_the_target() -> None:
    """Under `coupled` every committed token is the target's own, so its own law is the output's."""
    pair = _pair(Acceptance.COUPLED)
    weights = {
        tokens: target_weights(
            pair.target_logits(tokens).unsqueeze(0), [RowContext(pair.params, tokens, len(PROMPT))]
        )[0]
        for length in range(NUM_TOKENS)
        for tokens in (PROMPT + output for output in pair.sequences(length))
    }
    outputs: Counter[Tokens] = Counter()
    chunk = 20_000
    for start in range(0, NUM_SEEDS, chunk):
        seeds = torch.tensor([seed_words(seed) for seed in range(start, start + chunk)])
        sessions = [PROMPT] * chunk
        for _ in range(NUM_TOKENS):
            rows = torch.stack([weights[tokens] for tokens in sessions])
            position = torch.full((chunk, 1), len(sessions[0]))
            peak, member = group_noise(seeds[:, None], position, torch.zeros_like(position))
            noise = member_noise(seeds[:, None], position, torch.arange(VOCAB), peak, member)
            chosen = (rows.log() + noise).argmax(1)
            if start == 0:  # the production call gives the same; it works on groups of 64 ids
                some = slice(0, 500)
                positions = [len(sessions[0])] * 500
                assert torch.equal(coupled_tokens(rows[some], range(500), positions), chosen[some])
            sessions = [
                (*tokens, token) for tokens, token in zip(sessions, chosen.tolist(), strict=True)
            ]
        outputs.update(tokens[len(PROMPT) :] for tokens in sessions)
    assert _worst_p_value(outputs, pair) > PLAUSIBLE


@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.BLOCK])
def test_the_tables_decide_as_production_does(acceptance: Acceptance) -> None:
    """Same seeds, same schedule: the fast simulation and the services' calls agree."""
    tables = Tables(_pair(acceptance))
    keyed = acceptance is Acceptance.BLOCK
    for seed, numbers in enumerate(numbers_of(range(140))):
        schedule = SCHEDULES[seed % len(SCHEDULES)]
        fast = TableSides(tables, numbers, keyed_by_epoch=keyed)
        production = ProductionSides(_pair(acceptance, seed))
        assert run_session(fast, schedule, NUM_TOKENS, random.Random(seed)) == run_session(
            production, schedule, NUM_TOKENS, random.Random(seed)
        )


def test_the_numbers_drawn_at_once_are_those_of_the_generator() -> None:
    numbers = numbers_of(range(3, 5))[1]
    for (epoch, purpose), offset in OFFSETS.items():
        for position in (0, 6):
            assert numbers[offset + position] == uniform(4, position, purpose, epoch)


def test_coupled_sessions_give_one_text_whatever_the_schedule() -> None:
    """`coupled`: the output does not depend on block length, window, bonus or autoregression."""
    for seed in range(20):
        texts = {
            run_session(
                ProductionSides(_pair(Acceptance.COUPLED, seed)), schedule, 4, random.Random(seed)
            )
            for schedule in SCHEDULES
        }
        assert len(texts) == 1
