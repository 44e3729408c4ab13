"""How many drafts are worth making ahead for an outcome, by what is known of the workers."""

from __future__ import annotations

import pytest

from orchestrator.estimates import Experience, PassCost
from orchestrator.outcomes import MAX_AHEAD, Outcomes, worthwhile
from paceline.types import DraftBlock, DrafterState


def known(pass_s: float, draft_s: float) -> Experience:
    experience = Experience(PassCost())
    experience.cost.update(1, pass_s, sessions=1)
    experience.draft_s.update(draft_s)
    return experience


@pytest.mark.parametrize(
    ("pass_s", "draft_s", "wanted"),
    [(0.030, 0.003, 8), (0.030, 0.006, 5), (0.030, 0.040, 0), (0.003, 0.0005, 0), (0.1, 0.002, 8)],
)
def test_as_many_as_a_pass_leaves_time_for(pass_s: float, draft_s: float, wanted: int) -> None:
    """And none where the host would be slower than the drafts."""
    assert worthwhile(known(pass_s, draft_s), 8) == wanted


def test_of_workers_that_nobody_knows_all_are_made() -> None:
    assert worthwhile(Experience(PassCost()), 8) == 8


def ahead(epoch: int, base: int, outcome: int) -> DraftBlock:
    state = DrafterState.RUNNING
    return DraftBlock(1, epoch, base, (1,), None, base, state, base, 0, outcome=outcome)


def test_a_block_holds_for_its_epoch_its_place_and_its_token() -> None:
    outcomes: Outcomes[str] = Outcomes()
    for name, block in {"a": ahead(1, 5, 9), "b": ahead(1, 6, 9), "c": ahead(1, 6, 8)}.items():
        assert outcomes.add(block, name) is None
    outcomes.committed(5)
    assert outcomes.epoch_begins(1, 6, 8) == "c"
    assert outcomes.add(ahead(1, 6, 8), "late") == "late"
    assert outcomes.add(ahead(1, 6, 9), "other") is None
    outcomes.clear()
    assert outcomes.add(ahead(1, 6, 8), "void") is None


def test_what_no_drafter_sends_is_not_kept_for_ever() -> None:
    outcomes: Outcomes[int] = Outcomes()
    for base in range(2 * MAX_AHEAD):
        outcomes.add(ahead(1, base, 1), base)
    assert outcomes.epoch_begins(1, 0, 1) is None
    for base in range(2 * MAX_AHEAD):
        outcomes.add(ahead(2, base, 1), base)
    assert outcomes.epoch_begins(2, 2 * MAX_AHEAD - 1, 1) == 2 * MAX_AHEAD - 1
