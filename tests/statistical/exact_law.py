"""The output law of draft, judge, repeat, computed without sampling.

Every draft sequence is enumerated with its probability, and the uniform numbers are integrated out
by the thresholds and weights that `judge_rejection` and `judge_block` themselves compute (a unit
test shows that these judge by nothing else).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from toy_pair import PROMPT, Tokens, ToyPair

from paceline.sampling.acceptance import (
    block_thresholds,
    next_weights,
    rejection_thresholds,
)
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import Acceptance

DraftSequences: TypeAlias = Callable[[ToyPair, Tokens, int], Iterator[tuple[Tokens, float]]]


def draft_sequences(pair: ToyPair, tokens: Tokens, length: int) -> Iterator[tuple[Tokens, float]]:
    """Every block that the drafter may propose after a prefix, and how likely it is."""
    found: list[tuple[Tokens, float]] = [((), 1.0)]
    for _ in range(length):
        longer = []
        for drafts, weight in found:
            if drafts and pair.ends_block(tokens + drafts[:-1]):
                yield drafts, weight
                continue
            probs = pair.draft_row(tokens + drafts).dense_row(0, pair.vocab_size)
            shares = (probs / probs.sum()).tolist()
            longer += [
                ((*drafts, token), weight * share)
                for token, share in enumerate(shares)
                if share > 0.0
            ]
        found = longer
    yield from found


def accepted_law(
    pair: ToyPair, acceptance: Acceptance, tokens: Tokens, drafts: Tokens
) -> tuple[list[float], list[float], DraftProbs]:
    """How likely each accepted length of a block is; the joint probabilities; the draft rows."""
    draft = DraftProbs.cat([pair.draft_row(tokens + drafts[:i]) for i in range(len(drafts))])
    target = torch.stack([pair.target_row(tokens + drafts[:i]) for i in range(len(drafts))])
    if acceptance is Acceptance.REJECTION:
        thresholds = rejection_thresholds(target, drafts, draft)
        joint = [1.0] * (len(drafts) + 1)
        law = [0.0] * (len(drafts) + 1)
        reached = 1.0
        for i, threshold in enumerate(thresholds):
            law[i] = reached * (1.0 - threshold)
            reached *= threshold
        law[-1] = reached
        return law, joint, draft
    thresholds, joint = block_thresholds(target, drafts, draft)
    law = [0.0] * (len(drafts) + 1)
    undecided = 1.0
    for i in range(len(drafts), 0, -1):
        law[i] = undecided * thresholds[i - 1]
        undecided *= 1.0 - thresholds[i - 1]
    law[0] = undecided
    return law, joint, draft


def output_law(
    pair: ToyPair,
    acceptance: Acceptance,
    block_length: int,
    num_tokens: int,
    *,
    bonus: bool,
    sequences: DraftSequences = draft_sequences,
) -> dict[Tokens, float]:
    """The law of the first `num_tokens` output tokens over as many rounds as they take."""

    def after(tokens: Tokens) -> dict[Tokens, float]:
        return one_round(pair, acceptance, tokens, block_length, bonus=bonus, sequences=sequences)

    return law_over_rounds(after, num_tokens)


def law_over_rounds(
    round_after: Callable[[Tokens], dict[Tokens, float]], num_tokens: int
) -> dict[Tokens, float]:
    """The law of the first `num_tokens` tokens, given what a round commits after a prefix."""
    finished: dict[Tokens, float] = defaultdict(float)
    open_outputs: dict[Tokens, float] = {(): 1.0}
    for length in range(num_tokens):
        # Outputs are taken shortest first: each round adds at least one token, so all of one
        # length are there when it is their turn.
        for output in [o for o in open_outputs if len(o) == length]:
            weight = open_outputs.pop(output)
            after = round_after(PROMPT + output)
            for gained, probability in after.items():
                longer = (output + gained)[:num_tokens]
                target = finished if len(longer) == num_tokens else open_outputs
                target[longer] = target.get(longer, 0.0) + weight * probability
    return finished


def one_round(
    pair: ToyPair,
    acceptance: Acceptance,
    tokens: Tokens,
    block_length: int,
    *,
    bonus: bool,
    sequences: DraftSequences = draft_sequences,
) -> dict[Tokens, float]:
    """The law of what one pass commits after a prefix; without drafts, a token of the target's."""
    committed: dict[Tokens, float] = defaultdict(float)
    for drafts, weight in sequences(pair, tokens, block_length):
        if not drafts:
            for token, share in enumerate(pair.target_row(tokens).tolist()):
                committed[(token,)] += weight * share
            continue
        law, joint, draft = accepted_law(pair, acceptance, tokens, drafts)
        rows = [pair.target_row(tokens + drafts[:i]) for i in range(len(drafts) + bonus)]
        for accepted, probability in enumerate(law):
            if probability == 0.0:
                continue
            weights = next_weights(torch.stack(rows), draft, accepted, joint[accepted])
            if weights is None:
                committed[drafts] += weight * probability
                continue
            for token, share in enumerate((weights / weights.sum()).tolist()):
                if share > 0.0:
                    committed[(*drafts[:accepted], token)] += weight * probability * share
    return committed


def expected_accepted(
    pair: ToyPair, acceptance: Acceptance, tokens: Tokens, block_length: int
) -> float:
    """Mean accepted length of one pass after a prefix."""
    return sum(
        weight * length * probability
        for drafts, weight in draft_sequences(pair, tokens, block_length)
        for length, probability in enumerate(accepted_law(pair, acceptance, tokens, drafts)[0])
    )


def distance(left: dict[Tokens, float], right: dict[Tokens, float]) -> float:
    """The largest difference of probability over all outputs."""
    return max(abs(left.get(o, 0.0) - right.get(o, 0.0)) for o in {*left, *right})
