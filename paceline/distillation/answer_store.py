"""Answers in files of many each, written whole or not at all, so that an interruption loses one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.distillation.answers import Answer


@dataclass(frozen=True, slots=True)
class StoredAnswers:
    """Many answers one after another.

    Answer `i` has the tokens `starts[i]` to `starts[i + 1]`, the first `question_lengths[i]` of
    them its question's, and the rows of the teacher from `rows[i]` on, one for each other token.
    `seconds` are those that each file took to make.
    """

    token_ids: Tensor  # int64 [num_tokens]
    starts: Tensor  # int64 [num_answers + 1]
    question_lengths: Tensor  # int64 [num_answers]
    rows: Tensor  # int64 [num_answers + 1]
    top_ids: Tensor  # int32 [num_answer_tokens, num_top]
    top_probs: Tensor  # float16 [num_answer_tokens, num_top]
    seconds: Tensor  # float64 [num_files]

    def __len__(self) -> int:
        return len(self.question_lengths)

    @property
    def num_answer_tokens(self) -> int:
        return len(self.top_ids)

    def length(self, index: int) -> int:
        """Tokens of question and answer."""
        return int(self.starts[index + 1] - self.starts[index])

    def tokens(self, index: int) -> Tensor:
        """Question and answer `index`: int64."""
        return self.token_ids[self.starts[index] : self.starts[index + 1]]

    def answer(self, index: int) -> Tensor:
        """Answer `index` alone: int64."""
        return self.tokens(index)[self.question_lengths[index] :]

    @classmethod
    def of(cls, answers: Sequence[Answer], seconds: float) -> StoredAnswers:
        """Put answers one after another; there must be one at least. It took so many seconds."""
        questions = torch.tensor([len(each.question_ids) for each in answers])
        replies = torch.tensor([len(each.answer_ids) for each in answers])
        tokens = [token for each in answers for token in (*each.question_ids, *each.answer_ids)]
        return cls(
            token_ids=torch.tensor(tokens),
            starts=_starts(questions + replies),
            question_lengths=questions,
            rows=_starts(replies),
            top_ids=torch.cat([each.top_ids for each in answers]),
            top_probs=torch.cat([each.top_probs for each in answers]),
            seconds=torch.tensor([seconds], dtype=torch.float64),
        )

    def save(self, path: Path) -> None:
        """Write to a file of numpy; it is there whole or not at all."""
        started = path.with_suffix(".part")
        with started.open("wb") as file:
            np.savez(
                file,
                token_ids=self.token_ids.to(torch.int32).numpy(),
                question_lengths=self.question_lengths.to(torch.int32).numpy(),
                lengths=self.starts.diff().to(torch.int32).numpy(),
                top_ids=self.top_ids.numpy(),
                top_probs=self.top_probs.numpy(),
                seconds=self.seconds.numpy(),
            )
        os.replace(started, path)

    @classmethod
    def load(cls, paths: Sequence[Path]) -> StoredAnswers:
        """Read files, one after another; there must be one at least."""
        parts: dict[str, list[Tensor]] = {}
        for path in paths:
            with np.load(path) as arrays:
                for name in arrays.files:
                    parts.setdefault(name, []).append(torch.from_numpy(arrays[name]))
        whole = {name: torch.cat(tensors) for name, tensors in parts.items()}
        lengths, questions = whole["lengths"].long(), whole["question_lengths"].long()
        return cls(
            token_ids=whole["token_ids"].long(),
            starts=_starts(lengths),
            question_lengths=questions,
            rows=_starts(lengths - questions),
            top_ids=whole["top_ids"],
            top_probs=whole["top_probs"],
            seconds=whole["seconds"],
        )


def _starts(lengths: Tensor) -> Tensor:
    return torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
