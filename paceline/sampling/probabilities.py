"""Logits to probabilities: one pipeline for drafts, verification and autoregressive steps.

The order is grammar mask, logit bias and bans, penalties, min_tokens mask, temperature, top-k,
top-p, min-p, typical-p. Each row has its own parameters and its own prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.device_clock import wait_for_device
from paceline.errors import InvalidArgumentError, PacelineError
from paceline.sampling.params import SamplingParams
from paceline.sampling.penalties import (
    NEGATIVE_INFINITY,
    apply_bias_and_bans,
    apply_masks,
    apply_penalties,
    changes_logits,
)
from paceline.sampling.selection import largest, mass_cutoff


@dataclass(frozen=True, slots=True)
class RowContext:
    """What one row of logits belongs to: its parameters and the tokens before it.

    The prefix is `token_ids` followed by `draft_tokens`; kept apart so that the rows of one block
    share the committed tokens. The first `prompt_length` tokens are the prompt. `eos_token_ids`
    are masked before `min_tokens`. `mask` is bool over ids, from 0 on: those that may be produced;
    None allows all.
    """

    params: SamplingParams
    token_ids: Sequence[int]
    prompt_length: int
    eos_token_ids: tuple[int, ...] = ()
    draft_tokens: tuple[int, ...] = ()
    mask: Tensor | None = None

    @property
    def position(self) -> int:
        """Absolute index of the token that the row predicts; it keys the row's randomness."""
        return len(self.token_ids) + len(self.draft_tokens)

    @property
    def num_output_tokens(self) -> int:
        return self.position - self.prompt_length

    def ends_with(self, suffix: Sequence[int]) -> bool:
        """Whether the prefix ends with these ids."""
        length = len(suffix)
        if length == 0:
            return True
        from_drafts = tuple(self.draft_tokens[-length:])
        missing = length - len(from_drafts)
        if missing > len(self.token_ids):
            return False
        tail = tuple(self.token_ids[len(self.token_ids) - missing :]) if missing else ()
        return tail + from_drafts == tuple(suffix)


def target_probs(
    logits: Tensor,  # [R, V]
    rows: Sequence[RowContext],
) -> Tensor:  # [R, V], float32 (float64 for float64 logits)
    """The distribution of each row. A greedy row is one-hot at its argmax, lowest id on a tie.

    Raises what `target_weights` raises.
    """
    weights = target_weights(logits, rows)
    return weights.div_(weights.sum(1, keepdim=True))


def target_weights(
    logits: Tensor,  # [R, V]
    rows: Sequence[RowContext],
) -> Tensor:  # [R, V], float32 (float64 for float64 logits)
    """Each row's distribution relative to its likeliest id, whose weight is 1.

    Filters are thresholds on these weights, so ids of equal probability stay or go together. The
    input is left as it is. Raises `InvalidArgumentError` if a row's masks leave no id,
    `PacelineError` if its logits are not numbers.
    """
    adjusted = adjust_logits(logits, rows)
    peak = adjusted.amax(1, keepdim=True)
    _check_peaks(peak, rows)
    # Subtracting the maximum first keeps temperatures down to the smallest float free of NaN.
    weights = adjusted.to(torch.promote_types(adjusted.dtype, torch.float32)) - peak
    kept = _top_k_kept(weights, rows)
    temperature = _column(weights, rows, lambda p: p.temperature, neutral=1.0)
    if temperature is not None:
        finfo = torch.finfo(weights.dtype)
        weights.div_(temperature.clamp_(finfo.tiny, finfo.max))
    weights.exp_()
    if kept is not None:
        weights.mul_(kept)
    _filter_top_p(weights, rows)
    _filter_min_p(weights, rows)
    _filter_typical_p(weights, rows)
    greedy = [i for i, row in enumerate(rows) if row.params.is_greedy]
    if greedy:
        _, chosen = largest(adjusted[greedy])
        weights[greedy] = torch.nn.functional.one_hot(chosen, weights.shape[1]).to(weights)
    return weights


def greedy_tokens(logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """The argmax of each row after bias, bans and penalties: `[R, V]` to int64 `[R]`.

    The lowest id wins a tie. Raises what `target_weights` raises.
    """
    return greedy_choice(logits, rows)[1]


def greedy_choice(logits: Tensor, rows: Sequence[RowContext]) -> tuple[Tensor, Tensor]:
    """The adjusted logits and `greedy_tokens` of them."""
    adjusted = adjust_logits(logits, rows)
    peaks, chosen = largest(adjusted)
    _check_peaks(peaks, rows)
    return adjusted, chosen


def adjust_logits(logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """Logits after bias, bans and penalties; the input itself when no row asks for any."""
    if not any(changes_logits(row) for row in rows):
        return logits
    adjusted = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    apply_masks(adjusted, rows)
    apply_bias_and_bans(adjusted, rows)
    apply_penalties(adjusted, rows)
    return adjusted


def _check_peaks(peaks: Tensor, rows: Sequence[RowContext]) -> None:
    wait_for_device()
    # a few numbers: asking Python is one call where tensors take four
    values: list[float] = peaks.flatten().tolist()
    index = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
    if index is None:
        return
    if values[index] != NEGATIVE_INFINITY:
        raise PacelineError("the model's logits are not finite numbers")
    params = rows[index].params
    field = "allowed_token_ids" if params.allowed_token_ids else "bad_words_token_ids"
    if rows[index].mask is not None:
        field = "grammar"
    if rows[index].num_output_tokens < params.min_tokens:
        field = "min_tokens"
    raise InvalidArgumentError(field, "the masks of this request leave no token to choose from")


def _column(
    like: Tensor,
    rows: Sequence[RowContext],
    value: Callable[[SamplingParams], float],
    *,
    neutral: float,
) -> Tensor | None:
    """One number a row, `[R, 1]`, with the neutral one for greedy rows; None if all are neutral."""
    values = [neutral if row.params.is_greedy else value(row.params) for row in rows]
    if all(v == neutral for v in values):
        return None
    return like.new_tensor(values).unsqueeze(1)


def _top_k_kept(logits: Tensor, rows: Sequence[RowContext]) -> Tensor | None:
    """1 for the k heaviest ids of each row and what ties with the k-th, as in transformers, else 0;
    None if no row has a limit.

    Looked up in the logits: after a high temperature ids that differ may weigh the same.
    """
    width = logits.shape[1]
    limits = [0 if row.params.is_greedy else min(row.params.top_k, width) for row in rows]
    chosen = [i for i, limit in enumerate(limits) if 0 < limit < width]
    if not chosen:
        return None
    part = _rows(logits, chosen)
    last = torch.tensor([[limits[i] - 1] for i in chosen], device=logits.device)
    heaviest = part.topk(int(last.max()) + 1).values
    kept = part.clone().ge_(heaviest.gather(1, last))
    if len(chosen) == len(logits):
        return kept
    all_kept = torch.ones_like(logits)
    all_kept[chosen] = kept
    return all_kept


def _filter_top_p(weights: Tensor, rows: Sequence[RowContext]) -> None:
    """Keep the heaviest until they hold top_p of the row."""
    chosen, share = _limited(weights, rows, lambda p: p.top_p)
    if chosen:
        part = _rows(weights, chosen)
        _keep_from(weights, chosen, part, mass_cutoff(part, share).unsqueeze(1))


def _filter_min_p(weights: Tensor, rows: Sequence[RowContext]) -> None:
    """Drop what is less likely than min_p times the likeliest, whose weight is 1."""
    floor = _column(weights, rows, lambda p: p.min_p, neutral=0.0)
    if floor is not None:
        _drop_below(weights, floor)


def _filter_typical_p(weights: Tensor, rows: Sequence[RowContext]) -> None:
    """Locally typical sampling (Meister et al. 2022): keep what surprises as much as expected.

    Ids are ranked by | -log prob - entropy | and kept until they hold typical_p, ties included.
    """
    chosen, share = _limited(weights, rows, lambda p: p.typical_p)
    if chosen:
        part = weights[chosen]
        probs = part / part.sum(1, keepdim=True)
        log_probs = probs.log()
        entropy = -(log_probs * probs).nansum(1, keepdim=True)
        distance = (log_probs + entropy).abs_()
        ordered, order = distance.sort(1)
        cumulated = probs.gather(1, order).cumsum(1)
        last = (cumulated < share.unsqueeze(1)).sum(1, keepdim=True).clamp_(max=part.shape[1] - 1)
        weights[chosen] = part.mul_(distance.le_(ordered.gather(1, last)))


def _limited(
    weights: Tensor, rows: Sequence[RowContext], share: Callable[[SamplingParams], float]
) -> tuple[list[int], Tensor]:
    """The sampling rows whose share is below 1, and the shares."""
    chosen = [
        i for i, row in enumerate(rows) if not row.params.is_greedy and share(row.params) < 1.0
    ]
    return chosen, weights.new_tensor([share(rows[i].params) for i in chosen])


def _rows(weights: Tensor, chosen: Sequence[int]) -> Tensor:
    """Some rows; the tensor itself, uncopied, if that is all of them (most often it is)."""
    return weights if len(chosen) == len(weights) else weights[list(chosen)]


def _keep_from(weights: Tensor, chosen: Sequence[int], part: Tensor, cutoff: Tensor) -> None:
    """Set what is below the cut-off `[n, 1]` to 0 in the chosen rows, of which `part` came."""
    _drop_below(part, cutoff)
    if part is not weights:
        weights[list(chosen)] = part


def _drop_below(weights: Tensor, cutoff: Tensor) -> None:
    # Comparing in place gives 1 and 0 in the weights' own dtype: on a CPU five times as fast as
    # by a mask of bools.
    weights.mul_(weights.clone().ge_(cutoff))
