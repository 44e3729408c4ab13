"""What a judgement decides: the tokens to commit, where the output ends, and their origin."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from paceline.sampling.acceptance import Judgement
from paceline.types import FinishReason, OpenSession, Origin


class Decision(NamedTuple):
    """The tokens to commit, the first `accepted_length` of them drafts.

    `next_origin` is where one after the drafts came from; None if there is none.
    """

    token_ids: list[int]
    accepted_length: int
    next_origin: Origin | None
    finish_reason: FinishReason | None


def decide(
    judgement: Judgement,
    drafts: Sequence[int],
    *,
    base: int,
    opening: OpenSession,
    end_ids: Set[int],
) -> Decision:
    """What a pass that judged `drafts` adds to the `base` tokens committed before it.

    Of a tree they are the accepted path, and one draft more if any was rejected at its end.
    """
    decided = list(drafts[: judgement.accepted_length])
    if judgement.next_token is not None:
        decided.append(judgement.next_token)
    token_ids, finish_reason = _cut(decided, opening.max_length - base, end_ids)
    accepted_length = min(judgement.accepted_length, len(token_ids))
    next_origin = None
    if len(token_ids) > accepted_length:
        is_first = base == opening.prompt_length
        next_origin = _next_origin(judgement, num_drafts=len(drafts), is_first=is_first)
    return Decision(token_ids, accepted_length, next_origin, finish_reason)


def end_ids_of(opening: OpenSession) -> frozenset[int]:
    """The ids that end a session's output."""
    params = opening.sampling
    return frozenset(params.stop_token_ids + (() if params.ignore_eos else opening.eos_token_ids))


def _cut(decided: list[int], left: int, end_ids: Set[int]) -> tuple[list[int], FinishReason | None]:
    """Cut at the first end id or where `left` tokens are used up, token by token."""
    for count, token_id in enumerate(decided, start=1):
        if token_id in end_ids:
            return decided[:count], FinishReason.STOP
        if count >= left:
            return decided[:count], FinishReason.LENGTH
    return decided, None


def _next_origin(judgement: Judgement, *, num_drafts: int, is_first: bool) -> Origin:
    if judgement.accepted_length < num_drafts:
        return Origin.RECOVERED
    if num_drafts:
        return Origin.BONUS
    return Origin.PREFILL if is_first else Origin.AUTOREGRESSIVE
