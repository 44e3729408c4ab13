"""A target and a draft over a handful of tokens whose logits are a function of the prefix."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.draw import DraftRow, Draw, draw_drafts
from paceline.sampling.params import SamplingParams
from paceline.sampling.probabilities import RowContext, target_probs

Tokens = tuple[int, ...]

PROMPT: Tokens = (1, 0)


def _number(tokens: Tokens) -> int:
    return functools.reduce(lambda number, token: number * 7 + token + 1, tokens, 0)


@dataclass(frozen=True)
class ToyPair:
    """Logits float64, random but fixed for each prefix; the draft is the target with noise."""

    vocab_size: int
    params: SamplingParams
    draft_top_k: int = 0
    spread: float = 1.5
    disagreement: float = 1.0

    def target_logits(self, tokens: Tokens) -> Tensor:
        return self.spread * self._random(tokens, 0)

    def draft_logits(self, tokens: Tokens) -> Tensor:
        return self.target_logits(tokens) + self.disagreement * self._random(tokens, 10**9)

    def _random(self, tokens: Tokens, stream: int) -> Tensor:
        generator = torch.Generator().manual_seed(_number(tokens) + stream)
        return torch.randn(self.vocab_size, generator=generator, dtype=torch.float64)

    def context(self, tokens: Tokens, drafts: Tokens = ()) -> RowContext:
        return RowContext(self.params, tokens, len(PROMPT), (), drafts)

    @functools.cache  # noqa: B019  (a pair lives as long as its test)
    def target_row(self, tokens: Tokens) -> Tensor:
        """The target's distribution after a prefix, `[vocab_size]`, by the production pipeline."""
        return target_probs(self.target_logits(tokens).unsqueeze(0), [self.context(tokens)])[0]

    @functools.cache  # noqa: B019
    def draft_row(self, tokens: Tokens) -> DraftProbs:
        """What the production drafter says it samples from after a prefix."""
        row = DraftRow(self.context(tokens), 0, self.draft_top_k)
        draw = draw_drafts(self.draft_logits(tokens).unsqueeze(0), [row])[0]
        assert isinstance(draw, Draw)
        return draw.probs or DraftProbs.point_masses([draw.token_id])

    def ends_block(self, tokens: Tokens) -> bool:
        """Whether the drafter ends its block with the token that it draws after a prefix."""
        return False

    def target_law(self, tokens: Tokens, length: int) -> dict[Tokens, float]:
        """The law of the next `length` tokens by plain sampling, the zero entries left out."""
        law: dict[Tokens, float] = {(): 1.0}
        for _ in range(length):
            law = {
                (*output, token): weight * probability
                for output, weight in law.items()
                for token, probability in enumerate(self.target_row(tokens + output).tolist())
                if probability > 0.0
            }
        return law

    def sequences(self, length: int) -> list[Tokens]:
        return list(itertools.product(range(self.vocab_size), repeat=length))
