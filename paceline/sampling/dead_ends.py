"""Rows from which no token can come: they count only where a judgement gets to them.

The masks of a request may leave nothing behind a draft that the target would never have said, or
its logits there be no numbers. Decoding alone never gets there, and neither must a pass that judges
drafts fail for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from paceline.errors import PacelineError
from paceline.sampling.acceptance import Judgement
from paceline.sampling.probabilities import RowContext, target_weights
from paceline.sampling.trial import Trial


def dead_ends(rows: Tensor, trial: Trial) -> list[int]:
    """Which of a trial's rows `[num_rows, V]` no token can come from."""
    return [
        row
        for row, context in enumerate(trial.contexts)
        if _is_dead_end(rows[row : row + 1], context)
    ]


def without_dead_ends(rows: Tensor, trial: Trial, dead: Sequence[int]) -> tuple[Tensor, Trial]:
    """What of a trial can be judged whose first row is none of the dead ends, with its rows.

    A chain ends before its first dead end, where the next pass begins if all drafts before are
    accepted. Where that is depends on those drafts alone, so that every rule keeps the target's law
    (under `block` too a draft is accepted with a probability that what follows has no say in). Of a
    tree the dead ends are `void_rows`: where the walk gets to one, the trial has failed.
    """
    if trial.tree is None:
        end = dead[0]
        probs = None if trial.draft_probs is None else trial.draft_probs.rows(0, end)
        return rows[:end], replace(
            trial,
            draft_tokens=trial.draft_tokens[:end],
            draft_probs=probs,
            num_rows=end,
            masks=trial.masks[:end],
        )
    rows = rows.clone()
    rows[list(dead)] = 0.0
    return rows, replace(trial, void_rows=frozenset(dead))


def ends_dead(judgement: Judgement, trial: Trial) -> bool:
    """Whether a void row has decided anything."""
    return not trial.void_rows.isdisjoint(judgement.rows)


def _is_dead_end(row: Tensor, context: RowContext) -> bool:
    try:
        target_weights(row, [context])
    except PacelineError:
        return True
    return False
