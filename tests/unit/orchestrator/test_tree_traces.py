"""Which draft of a block that branches a committed token was: the path names it."""

from __future__ import annotations

import pytest

from orchestrator.answer_trace import _Block
from paceline.tree_shape import ROOT, TreeShape
from paceline.types import Origin, PassTimings, Verdict

TREE = TreeShape((ROOT, 0, 0, 2, 3))
TOKENS = (1, 2, 3, 4, 5)


def verdict(base: int, *token_ids: int) -> Verdict:
    return Verdict(
        session_id=1,
        epoch=1,
        base=base,
        token_ids=token_ids,
        accepted_length=len(token_ids) - 1,
        next_origin=Origin.RECOVERED,
        num_judged=5,
        finish_reason=None,
        logprobs=(),
        kv_length=base,
        timings=PassTimings(0, 0, 0, 0, 0),
        num_discarded=0,
    )


@pytest.mark.parametrize(
    ("base", "token_ids", "places"),
    [
        (10, (1, 3, 4, 9), {10: 0, 11: 2, 12: 3}),
        (10, (1, 2, 9), {10: 0, 11: 1}),
        (11, (3, 4, 5, 9), {11: 2, 12: 3, 13: 4}),  # the first token was final before
        (8, (7, 7, 1, 3, 9), {10: 0, 11: 2}),  # a chain came before it in the same pass
    ],
)
def test_a_token_of_a_tree_is_found_along_the_path(
    base: int, token_ids: tuple[int, ...], places: dict[int, int]
) -> None:
    block = _Block(10, 15, 0, [0.1] * 5, TOKENS, TREE)
    chain = _Block(10, 15, 0, [0.1] * 5, TOKENS, None)

    for position, place in places.items():
        assert block.place(position, verdict(base, *token_ids)) == place
        assert chain.place(position, verdict(base, *token_ids)) == position - 10
