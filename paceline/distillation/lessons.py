"""What the student sees: batches of answers, their teacher's view in the student's own ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.distillation.answer_store import StoredAnswers

_WINDOW = 32
"""Batches whose answers are sorted by length together: little padding, and still shuffled."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One batch. Answers are padded behind, where causal attention does not look.

    `rows` are the places, of the flattened batch, that the model predicts answer tokens from.
    Columns of the teacher whose target id has no draft id have probability 0 and draft id 0.
    """

    input_ids: Tensor  # int64 [num_answers, longest], draft ids
    rows: Tensor  # int64 [num_rows]
    labels: Tensor  # int64 [num_rows]: the answer's token, a draft id, or -1 if it has none
    top_ids: Tensor  # int64 [num_rows, num_top], draft ids
    top_probs: Tensor  # float32 [num_rows, num_top]

    def to(self, device: torch.device) -> Lesson:
        """The same on a device."""
        return Lesson(
            self.input_ids.to(device),
            self.rows.to(device),
            self.labels.to(device),
            self.top_ids.to(device),
            self.top_probs.to(device),
        )


class Lessons:
    """The answers of a store as lessons over fewer ids."""

    def __init__(self, answers: StoredAnswers, token_ids: Tensor, input_ids: Tensor) -> None:
        self._answers = answers
        self._input_ids = input_ids
        self._own = torch.full((len(input_ids),), -1)
        self._own[token_ids] = torch.arange(len(token_ids))

    def lesson(self, indexes: Sequence[int]) -> Lesson:
        """The answers of these indexes as one batch."""
        answers = self._answers
        longest = max(answers.length(index) for index in indexes)
        # The last token of an answer is only predicted, never read.
        inputs = torch.zeros(len(indexes), longest - 1, dtype=torch.int64)
        rows, labels, teacher = [], [], []
        for place, index in enumerate(indexes):
            read = answers.tokens(index)[:-1]
            inputs[place, : len(read)] = self._input_ids[read]
            first = place * (longest - 1) + int(answers.question_lengths[index]) - 1
            rows.append(torch.arange(first, place * (longest - 1) + len(read)))
            labels.append(self._own[answers.answer(index)])
            teacher.append(torch.arange(int(answers.rows[index]), int(answers.rows[index + 1])))
        of_teacher = torch.cat(teacher)
        top_ids = self._own[answers.top_ids[of_teacher].long()]
        known = top_ids >= 0
        return Lesson(
            input_ids=inputs,
            rows=torch.cat(rows),
            labels=torch.cat(labels),
            top_ids=torch.where(known, top_ids, 0),
            top_probs=answers.top_probs[of_teacher].float() * known,
        )

    def batches(self, num_tokens: int, seed: int, epoch: int) -> list[list[int]]:
        """Indexes of the answers of each batch of an epoch: every answer once, batches of at most
        `num_tokens` tokens with their padding (one answer at least), in an order that follows from
        seed and epoch."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._answers), generator=generator).tolist()
        batches: list[list[int]] = []
        for window in _windows(order, self._answers, _WINDOW * num_tokens):
            window.sort(key=lambda index: (self._answers.length(index), index))
            batches += _cut(window, self._answers, num_tokens)
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        return [batches[index] for index in shuffled]


def _windows(order: Sequence[int], answers: StoredAnswers, num_tokens: int) -> Iterator[list[int]]:
    window: list[int] = []
    total = 0
    for index in order:
        window.append(index)
        total += answers.length(index)
        if total >= num_tokens:
            yield window
            window, total = [], 0
    if window:
        yield window


def _cut(ascending: Sequence[int], answers: StoredAnswers, num_tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in ascending:
        if batch and answers.length(index) * (len(batch) + 1) > num_tokens:
            yield batch
            batch = []
        batch.append(index)
    yield batch
