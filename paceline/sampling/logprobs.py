"""Log-probabilities of committed tokens under the target.

They are the model's own: log softmax of the raw logits, before bias, penalties, temperature and
filters (the convention of OpenAI's and vLLM's APIs), whatever the token's origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Logprobs(NamedTuple):
    """The fields of `paceline.types.TokenLogprobs`, in its order."""

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def token_logprobs(
    logits: Tensor,  # [n, V], raw
    token_ids: Sequence[int],  # [n]
    top_k: int,
) -> tuple[Logprobs, ...]:
    """Each token's log-probability and the `top_k` likeliest ids, likeliest first, then by id."""
    if not token_ids:
        return ()
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    chosen = torch.tensor(list(token_ids), device=logits.device).unsqueeze(1)
    own: list[float] = log_probs.gather(1, chosen).squeeze(1).tolist()
    values, ids = log_probs.topk(min(top_k, log_probs.shape[1]))
    result = []
    for logprob, row_values, row_ids in zip(own, values.tolist(), ids.tolist(), strict=True):
        ranked = sorted(zip(row_values, row_ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
        top_ids = tuple(token_id for _, token_id in ranked)
        result.append(Logprobs(logprob, top_ids, tuple(value for value, _ in ranked)))
    return tuple(result)
