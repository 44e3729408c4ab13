"""Where transformers has the same processor, one step has the same law within 1e-6."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from paceline.sampling.params import SamplingParams
from paceline.sampling.probabilities import RowContext, target_probs

VOCAB = 800
PREFIX = (5, 17, 17, 300, 42)

BY_PARAMETER: dict[str, Any] = {
    "logit_bias": lambda pairs: SequenceBiasLogitsProcessor([[[i], b] for i, b in pairs]),
    "bad_words_token_ids": lambda words: NoBadWordsLogitsProcessor([list(w) for w in words]),
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
}

CASES: list[dict[str, Any]] = [
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 5000},
    {"top_p": 0.05},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"min_p": 0.02},
    {"min_p": 0.5},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"logit_bias": ((3, 4.0), (17, -5.0))},
    {"bad_words_token_ids": ((3,), (300, 42, 9), (42, 8), (5, 7))},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.8, "min_p": 0.05, "typical_p": 0.8},
    {
        "logit_bias": ((3, 4.0), (42, 2.0)),
        "bad_words_token_ids": ((7,),),
        "repetition_penalty": 1.2,
        "temperature": 0.6,
        "top_k": 100,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.95,
    },
]


def _transformers_law(logits: Tensor, params: dict[str, Any]) -> Tensor:
    processors = LogitsProcessorList(
        make(params[name]) for name, make in BY_PARAMETER.items() if name in params
    )
    ids = torch.tensor([PREFIX] * len(logits))
    return processors(ids, logits.clone()).softmax(1)


@pytest.mark.parametrize("params", CASES, ids=str)
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_law_of_one_step_is_that_of_transformers(params: dict[str, Any], scale: float) -> None:
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(4)) * scale
    row = RowContext(SamplingParams(**params), PREFIX[:3], 2, (), PREFIX[3:])
    ours = target_probs(logits, [row] * 8)
    assert float((ours - _transformers_law(logits, params)).abs().max()) < 1e-6
