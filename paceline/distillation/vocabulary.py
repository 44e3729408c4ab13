"""Which of the target's ids a drafter is worth having: those that the target thinks of most."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.distillation.answer_store import StoredAnswers


def id_weights(answers: StoredAnswers, vocab_size: int) -> Tensor:
    """How often the target would say each id: its probabilities, added up over all answer tokens.

    Float64 `[vocab_size]`. Smoother than counting what it did say.
    """
    return torch.zeros(vocab_size, dtype=torch.float64).index_add_(
        0, answers.top_ids.flatten().long(), answers.top_probs.flatten().double()
    )


def choose_ids(weights: Tensor, number: int, always: Sequence[int]) -> Tensor:
    """The `number` heaviest ids and those of `always` among them: int64, ascending.

    Of equal ids the lower goes first.
    """
    favoured = weights.clone()
    favoured[list(always)] = torch.inf
    order = torch.argsort(favoured, descending=True, stable=True)
    return order[:number].sort().values


def coverage(weights: Tensor, token_ids: Tensor) -> float:
    """The share of the weight that lies on `token_ids`."""
    return float(weights[token_ids].sum() / weights.sum())
