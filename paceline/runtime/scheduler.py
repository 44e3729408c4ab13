"""Shares one step's token budget among sessions: decoding never waits for a long prompt."""

from __future__ import annotations

from collections.abc import Sequence

PREFILL_SHARE = 4
"""While prompts wait, decoding leaves them one token in this many."""


def share_budget(
    decodes: Sequence[int],  # tokens of each decoding session, least recently served first
    prefills: Sequence[int],  # uncached prompt tokens of each prefilling session
    budget: int,
) -> tuple[list[int], list[int]]:
    """Tokens granted to each decoding and each prefilling session in one step.

    A decoding session gets all it asks for or nothing; at least one session is always served, so
    a demand above the budget still makes progress. Prompts share what is left by max-min
    fairness: a short prompt is not held up by a long one.
    """
    reserved = min(sum(prefills), budget // PREFILL_SHARE)
    left = budget - reserved
    decode_grants: list[int] = []
    for wanted in decodes:
        granted = wanted if wanted <= left or not any(decode_grants) else 0
        decode_grants.append(granted)
        left -= granted
    left = max(left, 0) + reserved
    if not any(decode_grants):
        left = max(left, 1)
    return decode_grants, _max_min_shares(prefills, left)


def _max_min_shares(demands: Sequence[int], budget: int) -> list[int]:
    """Split a budget so that nobody could get more without someone smaller getting less."""
    grants = [0] * len(demands)
    waiting = sorted(range(len(demands)), key=lambda index: demands[index])
    for served, index in enumerate(waiting):
        share = -(-budget // (len(waiting) - served))
        grants[index] = min(demands[index], share)
        budget -= grants[index]
    return grants
