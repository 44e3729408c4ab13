"""Both sides of a simulated session: through the production calls, or fast by tables of them.

The tables hold, for each prefix and block, the numbers that production computes (distributions,
thresholds, weights of the next token). Only the comparison with the uniform number and the search
in the cumulated weights are done here; a test compares both ways session by session.
"""

from __future__ import annotations

import bisect
import functools

import torch
from torch import Tensor
from toy_pair import PROMPT, Tokens, ToyPair

from paceline.sampling.acceptance import (
    Judgement,
    block_thresholds,
    next_weights,
    rejection_thresholds,
)
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.draw import DraftRow, Draw, draw_drafts, stack_draws
from paceline.sampling.judge import judge_pass
from paceline.sampling.params import Acceptance
from paceline.sampling.randomness import Purpose, philox_tensor, seed_words
from paceline.sampling.trial import Trial

MAX_POSITIONS = 7
MAX_EPOCHS = 4
# Prompt of 2, output of 4, and the place of a bonus. Each pass commits a token, so four tokens take
# at most epochs 0 to 3. NEXT has no epoch.
KEYS = [
    (epoch, purpose)
    for epoch in range(MAX_EPOCHS)
    for purpose in (Purpose.DRAFT, Purpose.ACCEPT, Purpose.NEXT)
    if epoch == 0 or purpose is not Purpose.NEXT
]
OFFSETS = {key: index * MAX_POSITIONS for index, key in enumerate(KEYS)}
DRAFT_OFFSETS, ACCEPT_OFFSETS, NEXT_OFFSETS = (
    [OFFSETS[epoch, purpose] for epoch in range(MAX_EPOCHS) if (epoch, purpose) in OFFSETS]
    for purpose in (Purpose.DRAFT, Purpose.ACCEPT, Purpose.NEXT)
)


class ProductionSides:
    """The calls that the services make."""

    def __init__(self, pair: ToyPair) -> None:
        self._pair = pair
        self._draws: dict[tuple[Tokens, int], Draw] = {}

    def draft(self, tokens: Tokens, epoch: int) -> int:
        row = DraftRow(self._pair.context(tokens), epoch, self._pair.draft_top_k)
        draw = draw_drafts(self._pair.draft_logits(tokens).unsqueeze(0), [row])[0]
        assert isinstance(draw, Draw)
        self._draws[tokens, epoch] = draw
        return draw.token_id

    def judge(
        self, tokens: Tokens, drafts: Tokens, epoch: int, *, bonus: bool
    ) -> tuple[int, int | None]:
        draws = [self._draws[tokens + drafts[:i], epoch] for i in range(len(drafts))]
        num_rows = len(drafts) + bonus
        rows = [self._pair.target_logits(tokens + drafts[:i]) for i in range(num_rows)]
        trial = Trial(
            self._pair.params,
            tokens,
            len(PROMPT),
            (),
            drafts,
            stack_draws(draws),
            epoch,
            num_rows,
        )
        (judgement,) = judge_pass(torch.stack(rows), [trial])
        assert isinstance(judgement, Judgement)
        return judgement.accepted_length, judgement.next_token


class Tables:
    """Production's numbers for each prefix and block of a pair, and what they decide."""

    def __init__(self, pair: ToyPair) -> None:
        self.pair = pair

    @functools.cache  # noqa: B019  (a table lives as long as its test)
    def draft(self, tokens: Tokens) -> tuple[list[int], list[float]]:
        """Ids and cumulated probabilities of the drafter's distribution."""
        row = self.pair.draft_row(tokens)
        ids = range(self.pair.vocab_size) if row.ids is None else row.ids[0].tolist()
        return list(ids), _cumulated(row.probs[0])

    @functools.cache  # noqa: B019
    def block(self, tokens: Tokens, drafts: Tokens) -> tuple[list[float], list[list[float]]]:
        """Thresholds of a block, and the cumulated weights of the next token by accepted length."""
        target = torch.stack(
            [self.pair.target_row(tokens + drafts[:i]) for i in range(len(drafts) + 1)]
        )
        if not drafts:
            return [], [_cumulated(target[0])]
        draft = DraftProbs.cat(
            [self.pair.draft_row(tokens + drafts[:i]) for i in range(len(drafts))]
        )
        joint = [1.0] * (len(drafts) + 1)
        if self.pair.params.acceptance is Acceptance.BLOCK:
            thresholds, joint = block_thresholds(target, drafts, draft)
        else:
            thresholds = rejection_thresholds(target, drafts, draft)
        weights = [next_weights(target, draft, i, joint[i]) for i in range(len(drafts) + 1)]
        return thresholds, [_cumulated(w) for w in weights if w is not None]


class TableSides:
    """The same decisions from tables, with numbers that were drawn for many seeds at once."""

    def __init__(self, tables: Tables, numbers: list[float], *, keyed_by_epoch: bool) -> None:
        self._tables = tables
        self._numbers = numbers
        self._keyed_by_epoch = keyed_by_epoch
        self._is_block = tables.pair.params.acceptance is Acceptance.BLOCK

    def draft(self, tokens: Tokens, epoch: int) -> int:
        ids, cumulated = self._tables.draft(tokens)
        offset = DRAFT_OFFSETS[epoch if self._keyed_by_epoch else 0]
        return ids[_search(cumulated, self._numbers[offset + len(tokens)])]

    def judge(
        self, tokens: Tokens, drafts: Tokens, epoch: int, *, bonus: bool
    ) -> tuple[int, int | None]:
        thresholds, cumulated = self._tables.block(tokens, drafts)
        base = len(tokens)
        start = ACCEPT_OFFSETS[epoch if self._keyed_by_epoch else 0] + base
        hits = [
            number < threshold
            for number, threshold in zip(self._numbers[start:], thresholds, strict=False)
        ]
        if self._is_block:
            accepted = max((i + 1 for i, hit in enumerate(hits) if hit), default=0)
        else:
            accepted = hits.index(False) if False in hits else len(drafts)
        if accepted == len(drafts) and not bonus:
            return accepted, None
        return accepted, _search(
            cumulated[accepted], self._numbers[NEXT_OFFSETS[0] + base + accepted]
        )


def numbers_of(seeds: range) -> list[list[float]]:
    """The numbers of `randomness.uniform` for each seed, in the order of `OFFSETS`."""
    keys = torch.tensor([seed_words(seed) for seed in seeds])
    counters = torch.tensor(
        [
            (position, purpose.value, epoch, 0)
            for epoch, purpose in KEYS
            for position in range(MAX_POSITIONS)
        ]
    )
    words = philox_tensor(
        counters.T.unsqueeze(1).expand(4, len(seeds), len(counters)), keys.T.unsqueeze(2)
    )
    numbers = (((words[0] << 20) | (words[1] >> 12)).double() + 0.5) * 2.0**-52
    result: list[list[float]] = numbers.tolist()
    return result


def _cumulated(weights: Tensor) -> list[float]:
    result: list[float] = weights.double().cumsum(0).tolist()
    return result


def _search(cumulated: list[float], number: float) -> int:
    # The last index only matters where rounding carries the product up to the total.
    index = bisect.bisect_right(cumulated, number * cumulated[-1])
    return index if index < len(cumulated) else bisect.bisect_left(cumulated, cumulated[-1])
