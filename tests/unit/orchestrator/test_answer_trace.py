"""What an answer's trace knows of its tokens does not depend on what came first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.answer_trace import AnswerTrace
from orchestrator.token_spans import VerdictNote
from paceline.sampling.draft_probs import DraftProbs
from paceline.telemetry.level import Level
from paceline.types import DraftBlock, DrafterState, PassTimings, Verdict

COMMITTED = [1, 2, 3, 20]
"""The prompt, and what came at position 3."""


def block(base: int, token_ids: tuple[int, ...], share: float, **values: Any) -> DraftBlock:
    """Each of its tokens was drawn with this probability."""
    probs = torch.tensor([[share, 1.0 - share]] * len(token_ids))
    return DraftBlock(
        session_id=1,
        epoch=values.pop("epoch", 0),
        base=base,
        token_ids=token_ids,
        draft_probs=DraftProbs(torch.tensor([[i, 99] for i in token_ids]), probs),
        known_committed=base,
        state=DrafterState.RUNNING,
        kv_length=base,
        draft_us=1000,
        **values,
    )


def verdict(epoch: int, base: int, token_ids: tuple[int, ...], *, accepted: int) -> Verdict:
    return Verdict(
        session_id=1,
        epoch=epoch,
        base=base,
        token_ids=token_ids,
        accepted_length=accepted,
        next_origin=None,
        num_judged=accepted,
        finish_reason=None,
        logprobs=(),
        kv_length=0,
        timings=PassTimings(0, 0, 0, 0, 0),
        num_discarded=0,
    )


WRONG = block(3, (10, 11, 12, 13), 0.25)
ALSO_VOID = block(7, (14,), 0.5)
FOR_20 = block(4, (21, 22), 0.75, epoch=1, outcome=20)
ALONE = verdict(0, 3, (20,), accepted=0)


def heard(trace: AnswerTrace, *events: DraftBlock | Verdict) -> None:
    """In this order; a block that comes behind the verdict finds its token committed."""
    known = COMMITTED[:3]
    for event in events:
        if isinstance(event, Verdict):
            known = COMMITTED
            trace.judged(event)
        else:
            end = event.base + len(event.token_ids)
            trace.drafted(event, known[event.base : end], is_taken=True)


@pytest.mark.parametrize(
    "events",
    [
        (WRONG, ALONE, FOR_20),
        (WRONG, FOR_20, ALONE),
        (ALONE, WRONG, FOR_20),
        (ALONE, WRONG, ALSO_VOID, FOR_20),
        (WRONG, ALONE, ALSO_VOID, FOR_20),
        (WRONG, ALSO_VOID, ALONE, FOR_20),
    ],
)
def test_drafts_for_what_came_are_the_ones_that_were_accepted(
    events: tuple[DraftBlock | Verdict, ...],
) -> None:
    recorder: Any = SimpleNamespace(level=Level.TOKEN, add=lambda *_args, **_kwargs: None)
    tokens: Any = None  # asked at a delivery only
    trace = AnswerTrace(recorder, tokens, max_tokens=50)
    heard(trace, *events)
    trace.judged(verdict(1, 4, (21, 22), accepted=2))
    note: VerdictNote = trace._arrived[-1]
    assert note.blocks == (4, 4)
    assert note.draft_probs == (0.75, 0.75)
