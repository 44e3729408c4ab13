"""What changes logits by token id: bias, bans and penalties. All edit a float tensor in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from paceline.sampling.probabilities import RowContext

NEGATIVE_INFINITY = float("-inf")


def changes_logits(row: RowContext) -> bool:
    """Whether any function of this module does something to the row."""
    params = row.params
    return bool(
        row.mask is not None
        or params.logit_bias
        or params.allowed_token_ids
        or params.bad_words_token_ids
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or row.num_output_tokens < params.min_tokens
    )


def apply_masks(logits: Tensor, rows: Sequence[RowContext]) -> None:
    """Set the ids outside each row's mask to -inf; an id beyond its end is outside. `[R, V]`."""
    width = logits.shape[1]
    masks = {index: row.mask[:width] for index, row in enumerate(rows) if row.mask is not None}
    if not masks:
        return
    banned = torch.ones(len(masks), width, dtype=torch.bool)
    for row_banned, mask in zip(banned, masks.values(), strict=True):
        torch.logical_not(mask, out=row_banned[: len(mask)])
    # To the device once, then row by row: by a list of rows their logits would be copied twice.
    for index, row_banned in zip(masks, banned.to(logits.device), strict=True):
        logits[index].masked_fill_(row_banned, NEGATIVE_INFINITY)


def apply_bias_and_bans(logits: Tensor, rows: Sequence[RowContext]) -> None:
    """Add each row's logit bias, then set the ids that it must not produce to -inf. `[R, V]`.

    Banned are ids outside `allowed_token_ids`, the last id of a bad word whose other ids end the
    prefix (transformers' convention: the prompt counts), and, before `min_tokens`, end ids
    (unless `ignore_eos`, which takes their meaning away) and stop ids.
    """
    for index, row in enumerate(rows):
        params = row.params
        if params.logit_bias:
            ids, biases = zip(*params.logit_bias, strict=True)
            logits[index, list(ids)] += logits.new_tensor(biases)
        if params.allowed_token_ids:
            allowed = list(params.allowed_token_ids)
            kept = logits[index, allowed]
            logits[index] = NEGATIVE_INFINITY
            logits[index, allowed] = kept
        banned = _banned_ids(row)
        if banned:
            logits[index, banned] = NEGATIVE_INFINITY


def apply_penalties(logits: Tensor, rows: Sequence[RowContext]) -> None:
    """Repetition, then frequency and presence penalties, each row with its own prefix. `[R, V]`.

    Repetition follows transformers: ids of prompt and output, positive logits divided by the
    penalty and negative ones multiplied (Keskar et al. 2019). Frequency and presence follow
    OpenAI and vLLM: ids of the output only, `logit -= frequency * count + presence`.
    """
    repeating = [i for i, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    if repeating:
        row_of, ids = _prefix_pairs(logits, rows, repeating, output_only=False)
        finfo = torch.finfo(logits.dtype)
        penalty = _column(logits, rows, lambda row: row.params.repetition_penalty)
        penalty = penalty.clamp_(finfo.tiny, finfo.max)[row_of]
        before = logits[row_of, ids]
        after = torch.where(before < 0, before * penalty, before / penalty)
        # A tiny penalty may overflow; the largest finite logit keeps the order and avoids inf.
        logits[row_of, ids] = after.clamp_(max=finfo.max)
    counting = [
        i
        for i, row in enumerate(rows)
        if row.params.presence_penalty != 0.0 or row.params.frequency_penalty != 0.0
    ]
    if counting:
        row_of, ids = _prefix_pairs(logits, rows, counting, output_only=True)
        pairs, counts = torch.unique(row_of * logits.shape[1] + ids, return_counts=True)
        row_of, ids = pairs // logits.shape[1], pairs % logits.shape[1]
        frequency = _column(logits, rows, lambda row: row.params.frequency_penalty)[row_of]
        presence = _column(logits, rows, lambda row: row.params.presence_penalty)[row_of]
        logits[row_of, ids] -= frequency * counts + presence


def _banned_ids(row: RowContext) -> list[int]:
    params = row.params
    banned: list[int] = []
    for word in params.bad_words_token_ids:
        if row.ends_with(word[:-1]):
            banned.append(word[-1])
    if row.num_output_tokens < params.min_tokens:
        banned.extend(params.stop_token_ids)
        if not params.ignore_eos:
            banned.extend(row.eos_token_ids)
    return banned


def _prefix_pairs(
    logits: Tensor,
    rows: Sequence[RowContext],
    selected: Sequence[int],
    *,
    output_only: bool,
) -> tuple[Tensor, Tensor]:
    """(row, id) of every prefix token of the selected rows, as two int64 `[n]` tensors.

    Rows of one session share their committed tokens, which are turned into a tensor once.
    """
    shared: dict[int, Tensor] = {}
    parts: list[Tensor] = []
    lengths: list[int] = []
    for index in selected:
        row = rows[index]
        committed = shared.get(id(row.token_ids))
        if committed is None:
            committed = torch.tensor(row.token_ids, dtype=torch.int64)
            shared[id(row.token_ids)] = committed
        parts.append(committed[row.prompt_length :] if output_only else committed)
        parts.append(torch.tensor(row.draft_tokens, dtype=torch.int64))
        lengths.append(len(parts[-2]) + len(parts[-1]))
    ids = torch.cat(parts)
    row_of = torch.repeat_interleave(torch.tensor(list(selected)), torch.tensor(lengths))
    # As in transformers, prompt ids that the model cannot produce have nothing to penalise.
    producible = ids < logits.shape[1]
    return row_of[producible].to(logits.device), ids[producible].to(logits.device)


def _column(
    logits: Tensor, rows: Sequence[RowContext], value: Callable[[RowContext], float]
) -> Tensor:
    """One number a row, in the dtype of the logits: `[R]`."""
    return logits.new_tensor([value(row) for row in rows])
