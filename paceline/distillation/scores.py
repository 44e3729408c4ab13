"""How well a drafter, as it is stored, foresees the target's own greedy text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.distillation.answer_store import StoredAnswers
from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk, Runner

MAX_DEPTH = 8
STRIDE = 5
"""Tokens of text between two places that are drafted from; not in step with anything."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Figures over the answer tokens of held-out prompts.

    `agreement` is the share of tokens of the target's greedy text that are the drafter's most
    likely too, `overlap` the mean of Σ min(target, draft) at temperature 1 over the ids that the
    store has of the target, `by_depth[i]` the share of places from which the first `i + 1` freely
    drafted tokens are all the target's.
    """

    num_prompts: int
    num_tokens: int
    agreement: float
    overlap: float
    by_depth: tuple[float, ...]


def score(
    runner: Runner, answers: StoredAnswers, token_ids: Tensor, input_ids: Tensor, num_live: int
) -> Scores:
    """Judge a drafter over draft ids; `token_ids` and `input_ids` are its vocabulary's maps.

    The runner's pool must have room for `num_live` of the longest answers and `MAX_DEPTH` more.
    """
    agreed, overlaps = [], []
    reached = torch.zeros(MAX_DEPTH, dtype=torch.int64)
    places = 0
    for first in range(0, len(answers), num_live):
        part = range(first, min(first + num_live, len(answers)))
        for index in part:
            logits = _answer_logits(runner, answers, index, input_ids).float()
            agreed.append(token_ids[logits.argmax(dim=1).cpu()] == answers.answer(index))
            overlaps.append(_overlaps(logits.softmax(dim=1).cpu(), answers, index, token_ids))
        depths = _free_depths(runner, answers, part, token_ids, input_ids)
        places += len(depths)
        for depth in range(MAX_DEPTH):
            reached[depth] += sum(each > depth for each in depths)
    agreement, overlap = torch.cat(agreed), torch.cat(overlaps)
    return Scores(
        num_prompts=len(answers),
        num_tokens=len(agreement),
        agreement=round(float(agreement.double().mean()), 4),
        overlap=round(float(overlap.double().mean()), 4),
        by_depth=tuple(round(int(count) / max(1, places), 4) for count in reached),
    )


def _answer_logits(runner: Runner, answers: StoredAnswers, index: int, input_ids: Tensor) -> Tensor:
    """Logits before each answer token: `[num_answer_tokens, num_draft_ids]`."""
    read = input_ids[answers.tokens(index)[:-1]].tolist()
    table = runner.pool.open_table(len(read))
    try:
        rows = len(answers.answer(index))
        return runner.forward([Chunk(table, read, rows)])
    finally:
        table.free()


def _overlaps(probs: Tensor, answers: StoredAnswers, index: int, token_ids: Tensor) -> Tensor:
    """Σ min(target, draft) of each answer token, over the ids that the store has of the target."""
    rows = slice(int(answers.rows[index]), int(answers.rows[index + 1]))
    target_ids = answers.top_ids[rows].long()
    place = torch.searchsorted(token_ids, target_ids).clamp_max(len(token_ids) - 1)
    known = token_ids[place] == target_ids
    drafted = probs.gather(1, place) * known
    return torch.minimum(drafted, answers.top_probs[rows].float()).sum(dim=1)


def _free_depths(
    runner: Runner,
    answers: StoredAnswers,
    indexes: Sequence[int],
    token_ids: Tensor,
    input_ids: Tensor,
) -> list[int]:
    """From every `STRIDE`th place of each answer: how many freely drafted tokens are the target's.

    Only places with `MAX_DEPTH` tokens of text behind them count.
    """
    texts = {index: answers.tokens(index).tolist() for index in indexes}
    ends = {index: len(text) - MAX_DEPTH for index, text in texts.items()}
    at = {index: int(answers.question_lengths[index]) for index in indexes}
    tables: dict[int, PageTable] = {}
    depths: list[int] = []
    try:
        for index in indexes:
            tables[index] = runner.pool.open_table(len(texts[index]) + MAX_DEPTH)
        while live := [index for index in indexes if at[index] <= ends[index]]:
            chunks = [
                Chunk(
                    tables[each], _read(texts[each][tables[each].length : at[each]], input_ids), 1
                )
                for each in live
            ]
            depth = dict.fromkeys(live, 0)
            going = list(live)
            for offset in range(MAX_DEPTH):
                drafted = runner.forward(chunks).argmax(dim=1).tolist()
                chunks, still = [], []
                for index, draft_id in zip(going, drafted, strict=True):
                    if int(token_ids[draft_id]) == texts[index][at[index] + offset]:
                        depth[index] += 1
                        still.append(index)
                        chunks.append(Chunk(tables[index], (draft_id,), 1))
                going = still
                if not going:
                    break
            depths += depth.values()
            for index in live:
                tables[index].truncate(at[index])
                at[index] += STRIDE
    finally:
        for table in tables.values():
            table.free()
    return depths


def _read(text: Sequence[int], input_ids: Tensor) -> list[int]:
    found: list[int] = input_ids[torch.tensor(text)].tolist()
    return found
