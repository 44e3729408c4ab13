"""Log-probabilities are the model's own."""

from __future__ import annotations

import pytest
import torch

from paceline.sampling.logprobs import token_logprobs


def test_they_are_the_log_softmax_of_the_raw_logits_with_the_likeliest_ids() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    expected = logits.log_softmax(1)
    found = token_logprobs(logits, [4, 0, 19], 5)
    assert [entry.logprob for entry in found] == pytest.approx(
        [float(expected[row, token]) for row, token in enumerate([4, 0, 19])]
    )
    for row, entry in enumerate(found):
        values, ids = expected[row].topk(5)
        assert entry.top_token_ids == tuple(ids.tolist())
        assert entry.top_logprobs == pytest.approx(values.tolist())


def test_equal_alternatives_are_ordered_by_id() -> None:
    (entry,) = token_logprobs(torch.zeros(1, 4), [2], 4)
    assert entry.top_token_ids == (0, 1, 2, 3)


def test_no_alternatives_when_none_are_asked_and_no_more_than_there_are_ids() -> None:
    logits = torch.zeros(1, 3).bfloat16()
    assert token_logprobs(logits, [1], 0)[0].top_token_ids == ()
    assert len(token_logprobs(logits, [1], 20)[0].top_token_ids) == 3
    assert token_logprobs(logits, [], 3) == ()
