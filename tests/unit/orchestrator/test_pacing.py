"""What a session's messages say about its drafts, each of them once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.estimates import PassCost
from orchestrator.pacing import Pacing
from paceline.types import DraftBlock, DrafterState, Origin, PassTimings, Verdict


class Recorder:
    """Stands where the window controller stands."""

    plan = None

    def __init__(self) -> None:
        self.overtaken: list[tuple[int, int]] = []
        self.verdicts: list[tuple[int, int]] = []
        self.round_trips: list[float] = []
        self.blocks: list[tuple[int, float]] = []
        self.copied: list[list[int]] = []
        self.offers: list[tuple[int, int]] = []
        self.rejections: list[tuple[bool, bool]] = []

    def saw_rejection(self, *, finds_drafts: bool, late: bool) -> None:
        self.rejections.append((finds_drafts, late))

    def saw_block(self, *, num_tokens: int, draft_s: float, is_unsure: bool) -> None:
        self.blocks.append((num_tokens, draft_s))

    def saw_offer(self, *, num_tokens: int, num_copied: int) -> None:
        self.offers.append((num_tokens, num_copied))

    def saw_round_trip(self, seconds: float) -> None:
        self.round_trips.append(seconds)

    def saw_overtaken(self, *, compared: int, agreed: int, copied: list[int]) -> None:
        if compared:
            self.overtaken.append((compared, agreed))
            self.copied.append(copied)

    def saw_verdict(self, *, judged: int, accepted: int, copied: list[int], **values: Any) -> None:
        self.verdicts.append((judged, accepted))
        if judged:
            self.copied.append(copied)


def pacing() -> tuple[Pacing, Recorder]:
    recorder = Recorder()
    return Pacing(recorder, PassCost()), recorder  # type: ignore[arg-type]


def block(
    base: int,
    *token_ids: int,
    epoch: int = 0,
    state: DrafterState = DrafterState.RUNNING,
    kv_length: int = 0,
) -> DraftBlock:
    return DraftBlock(1, epoch, base, token_ids, None, base, state, kv_length, 50)


def verdict(
    base: int, *token_ids: int, judged: int = 0, accepted: int = 0, queue_us: int = 0
) -> Verdict:
    has_next = len(token_ids) > accepted
    return Verdict(
        session_id=1,
        epoch=0,
        base=base,
        token_ids=token_ids,
        accepted_length=accepted,
        next_origin=Origin.AUTOREGRESSIVE if has_next else None,
        num_judged=judged,
        finish_reason=None,
        logprobs=(),
        kv_length=base,
        timings=PassTimings(queue_us, 30_000, 0, 1, 1),
        num_discarded=0,
    )


def test_a_draft_on_its_way_is_compared_with_what_was_decoded_in_its_place() -> None:
    paced, seen = pacing()
    paced.drafted(block(10, 5, 6, 7), [], 0.0)
    paced.judged(verdict(10, 5), 1, 0.1)
    assert seen.overtaken == [(1, 1)]
    paced.judged(verdict(11, 99), 1, 0.2)
    assert seen.overtaken == [(1, 1), (1, 0)]
    paced.judged(verdict(12, 7), 1, 0.3)
    assert seen.overtaken == [(1, 1), (1, 0)], "what follows a wrong draft says nothing"


def test_a_block_that_comes_too_late_counts_up_to_its_first_difference() -> None:
    paced, seen = pacing()
    paced.drafted(block(10, 5, 6, 7), [5, 99], 0.0)
    assert seen.overtaken == [(2, 1)]
    paced.judged(verdict(12, 1), 1, 0.1)
    assert seen.overtaken == [(2, 1)], "the verifier has dropped it"


def test_the_blocks_behind_a_wrong_draft_fail_with_it_and_not_once_more() -> None:
    paced, seen = pacing()
    paced.drafted(block(10, 5, 6), [5, 9], 0.0)
    paced.drafted(block(12, 7, 8), [1], 0.01)  # of the same epoch: the verifier drops it
    assert seen.overtaken == [(2, 1)]
    paced.drafted(block(12, 1, 2, epoch=1), [1], 0.02)
    assert seen.overtaken == [(2, 1), (1, 1)]


def test_judged_drafts_are_not_compared_as_well() -> None:
    paced, seen = pacing()
    paced.drafted(block(10, 5, 6), [], 0.0)
    paced.drafted(block(12, 7, 8), [], 0.0)
    paced.judged(verdict(10, 5, 6, 7, judged=2, accepted=2), 1, 0.1)
    assert seen.verdicts == [(2, 2)]
    assert seen.overtaken == [(1, 1)], "the bonus took the place of a draft"
    paced.judged(verdict(13, 9, judged=1, accepted=0), 1, 0.2)
    paced.judged(verdict(14, 8), 1, 0.3)
    assert seen.overtaken == [(1, 1)]


def ahead(base: int, outcome: int, *token_ids: int) -> DraftBlock:
    """Drafted for the case that `outcome` comes before `base`."""
    return replace(block(base, *token_ids, epoch=1), outcome=outcome)


def rejection(base: int, token_id: int) -> Verdict:
    return replace(verdict(base, token_id, judged=2, accepted=0), epoch=1)


def test_a_rejection_finds_what_was_drafted_ahead_or_meets_it_later() -> None:
    """It is told with the verdict after it, when it is known whether anything came."""
    paced, seen = pacing()
    paced.drafted(block(10, 5, 6), [], 0.0)
    paced.drafted(ahead(11, 9, 1, 2), [], 0.01)
    paced.judged(rejection(10, 9), 1, 0.1)
    assert seen.rejections == []
    paced.judged(verdict(11, 1, 8, judged=2, accepted=1), 1, 0.2)
    assert seen.rejections == [(True, False)]
    paced.drafted(block(13, 5, 6, epoch=1), [], 0.2)
    paced.judged(replace(rejection(13, 9), epoch=2), 1, 0.3)
    assert seen.rejections == [(True, False), (False, False)], "the one before: nothing came"
    paced.drafted(replace(ahead(14, 9, 1, 2), epoch=2), [], 0.31)
    paced.judged(verdict(14, 1, 2, 8, judged=2, accepted=2), 1, 0.4)
    assert seen.rejections[2:] == [(False, True)]


def test_what_was_drafted_ahead_says_nothing_of_the_round_trip() -> None:
    """It was at the verifier long before it could be judged."""
    paced, seen = pacing()
    paced.drafted(block(8, 3, 4, state=DrafterState.PAUSED), [], 0.9)
    paced.advanced(10, 1.0)
    paced.drafted(block(10, 5, 6), [], 1.020)
    paced.drafted(ahead(11, 9, 1, 2), [], 1.025)
    paced.judged(rejection(10, 9), 1, 1.060)
    before = list(seen.round_trips)
    paced.judged(verdict(11, 1, 2, judged=2, accepted=2), 1, 1.090)
    assert len(seen.round_trips) == len(before) + 1
    assert seen.round_trips[-1] == before[-1]


def test_the_round_trip_is_what_was_seen_both_ways() -> None:
    paced, seen = pacing()
    paced.drafted(block(8, 3, 4, state=DrafterState.PAUSED), [], 0.9)
    paced.advanced(10, 1.0)
    paced.drafted(block(10, 5, 6), [], 1.020)  # 50 us of drafting in it
    paced.judged(verdict(10, 5, 6, judged=2, accepted=2), 1, 1.060)  # 30 ms of pass in it
    assert seen.round_trips == pytest.approx([0.020 - 0.00005 + 0.010])


def test_so_it_is_after_a_rejection_which_a_running_drafter_answers_with_a_new_epoch() -> None:
    paced, seen = pacing()
    paced.drafted(block(8, 3, 4), [], 0.9)
    paced.advanced(10, 1.0)
    paced.drafted(block(10, 5, 6, epoch=1), [], 1.020)
    paced.judged(verdict(10, 5, 6, judged=2, accepted=2), 1, 1.060)
    assert seen.round_trips == pytest.approx([0.020 - 0.00005 + 0.010])


def test_a_block_begun_before_the_drafter_heard_tells_nothing_of_the_way_there() -> None:
    paced, seen = pacing()
    paced.drafted(block(8, 3, 4), [], 0.9)
    paced.advanced(10, 1.0)
    paced.drafted(block(10, 5, 6), [], 1.001)
    paced.judged(verdict(10, 5, 6, judged=2, accepted=2), 1, 1.060)
    assert seen.round_trips == []


@pytest.mark.parametrize(("had_read", "read"), [(0, 60), (40, 60), (57, 60), (58, 60), (0, 0)])
def test_what_a_model_reads_before_it_drafts_is_no_part_of_the_way_there(
    had_read: int, read: int
) -> None:
    paced, seen = pacing()
    paced.drafted(block(58, 3, 4, state=DrafterState.PAUSED, kv_length=had_read), [], 0.9)
    paced.advanced(60, 1.0)
    paced.drafted(block(60, 5, 6, kv_length=read), [], 1.020)
    paced.judged(verdict(60, 5, 6, judged=2, accepted=2), 1, 1.060)
    assert len(seen.round_trips) == (read - had_read <= 3)


def test_a_pass_over_several_blocks_was_waited_for_from_the_first() -> None:
    paced, seen = pacing()
    paced.drafted(block(8, 3, 4, state=DrafterState.PAUSED), [], 0.9)
    paced.advanced(10, 1.0)
    paced.drafted(block(10, 5, 6), [], 1.020)
    paced.drafted(block(12, 7, 8), [], 1.040)
    both = verdict(10, 5, 6, 7, 8, judged=4, accepted=4, queue_us=25_000)
    paced.judged(both, 1, 1.085)  # the first block came at 1.030, the pass began at 1.055
    assert seen.round_trips == pytest.approx([0.020 - 0.00005 + 0.010])


def test_only_the_first_advance_finds_a_drafter_at_rest() -> None:
    paced, seen = pacing()
    paced.drafted(block(8, 3, 4, state=DrafterState.PAUSED), [], 0.9)
    paced.advanced(10, 1.0)  # it begins to draft
    paced.advanced(11, 1.018)
    paced.drafted(block(11, 6, 7), [], 1.020)
    paced.judged(verdict(11, 6, 7, judged=2, accepted=2), 1, 1.060)
    assert seen.round_trips == []


# --- drafts of two sources -----------------------------------------------------------------------


def test_what_was_copied_is_told_by_its_place_among_the_judged() -> None:
    """Two blocks, of which a pass judges the first whole and the second in part."""
    paced, seen = pacing()
    paced.drafted(replace(block(10, 5, 6, 7), copied=(1, 2)), [], 0.0)
    paced.drafted(replace(block(13, 8, 9, 1), copied=(0, 2)), [], 0.0)
    assert [num_drawn for num_drawn, _ in seen.blocks] == [1, 1]
    paced.judged(verdict(10, 5, 6, 7, 8, judged=4, accepted=4), 1, 0.1)
    paced.judged(verdict(14, 9, judged=2, accepted=1), 1, 0.2)
    assert seen.copied == [[1, 2, 3], [1]]


def test_that_there_is_nothing_to_propose_is_an_answer_too() -> None:
    """Not so behind drafts that are on their way: the window is full."""
    paced, seen = pacing()
    paced.drafted(replace(block(10, 5, 6, 7), copied=(1, 2)), [], 0.0)
    paced.drafted(replace(block(13, state=DrafterState.PAUSED), known_committed=10), [], 0.0)
    paced.drafted(block(13, state=DrafterState.PAUSED), [], 0.1)
    assert seen.offers == [(3, 2), (0, 0)]


def test_what_was_copied_and_overtaken_is_told_by_its_place_among_the_compared() -> None:
    paced, seen = pacing()
    paced.drafted(replace(block(10, 5, 6, 7, 8), copied=(0, 3)), [5, 6], 0.0)
    paced.judged(verdict(12, 7), 1, 0.1)
    paced.judged(verdict(13, 8), 1, 0.2)
    assert seen.overtaken == [(2, 2), (1, 1), (1, 1)]
    assert seen.copied == [[0], [], [0]]


# --- drafts that branch --------------------------------------------------------------------------

TREE = (-1, 0, 0, 1, 2)
"""One token that all follow, and two branches of two behind it."""


def tree(base: int, *token_ids: int) -> DraftBlock:
    return replace(block(base, *token_ids), parents=TREE)


def tree_verdict(
    base: int, *token_ids: int, accepted: int, origin: Origin = Origin.RECOVERED
) -> Verdict:
    found = verdict(base, *token_ids, judged=len(TREE), accepted=accepted)
    return replace(found, next_origin=origin)


def test_of_a_tree_each_depth_of_the_path_was_tried_once() -> None:
    """Its other nodes do not count as drafts that failed."""
    paced, seen = pacing()
    paced.drafted(tree(10, 1, 2, 3, 4, 5), [], 0.0)
    paced.judged(tree_verdict(10, 1, 3, 9, accepted=2), 1, 0.1)
    paced.drafted(tree(13, 1, 2, 3, 4, 5), [], 0.2)
    paced.judged(tree_verdict(13, 1, 3, 5, 9, accepted=3, origin=Origin.BONUS), 1, 0.3)
    paced.drafted(tree(17, 1, 2, 3, 4, 5), [], 0.4)
    paced.judged(tree_verdict(17, 9, accepted=0), 1, 0.5)

    assert seen.verdicts == [(3, 2), (3, 3), (1, 0)]
    assert seen.overtaken == []


def test_a_tree_that_comes_late_says_what_it_had_guessed_and_is_no_more_waited_for() -> None:
    paced, seen = pacing()
    paced.drafted(tree(10, 1, 2, 3, 4, 5), [1, 3, 9], 0.0)
    paced.judged(verdict(13, 7), 1, 0.1)
    assert seen.overtaken == [(3, 2)]

    # as far as all branches agree it may still be judged
    paced.drafted(replace(tree(14, 1, 2, 3, 4, 5), epoch=1), [1], 0.2)
    paced.judged(tree_verdict(15, 3, 9, accepted=1), 1, 0.3)
    assert seen.verdicts[-1] == (2, 1)
