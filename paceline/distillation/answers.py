"""The target answers prompts, many at a time, and what it thought of each token is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk, Runner

MAX_PREFILL_TOKENS = 512
"""New prompts of one pass, so that no pass is much longer than the others."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: token ids, and the temperature of the answer (0 is greedy).

    With an `asker` the token ids end where a user's turn begins, and the target speaks that turn
    as well: it asks itself.
    """

    token_ids: tuple[int, ...]
    temperature: float
    asker: Asker | None = None


@dataclass(frozen=True, slots=True)
class Asker:
    """How a user's turn ends: with `end_id`, after which `header_ids` open the answer.

    A turn that is not over after `max_tokens` stays unanswered.
    """

    end_id: int
    header_ids: tuple[int, ...]
    max_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A question's token ids, those of its answer, the end's included, and the teacher's view.

    What a target asked itself is a part of its answer.
    Row `i` of `top_ids` and `top_probs` holds what the target held most likely for answer token
    `i`, at temperature 1, most likely first; what is missing to 1 lies on other ids.
    """

    question_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    top_ids: Tensor  # int32 [num_answer_tokens, num_top]
    top_probs: Tensor  # float16 [num_answer_tokens, num_top]


class _Live:
    """An answer in the making."""

    def __init__(self, index: int, question: Question, table: PageTable, max_tokens: int) -> None:
        self.index = index
        self.question = question
        self.table = table
        self.new_ids: Sequence[int] = question.token_ids
        self.answer_ids: list[int] = []
        self.top_ids: list[Tensor] = []
        self.top_probs: list[Tensor] = []
        self._max_tokens = max_tokens
        self._asker = question.asker
        self._header: deque[int] = deque()
        self._num_left = max_tokens if self._asker is None else self._asker.max_tokens

    @property
    def temperature(self) -> float:
        return (self._asker or self.question).temperature

    def add(self, token_id: int, top_ids: Tensor, top_probs: Tensor, ends: Collection[int]) -> bool:
        """One token more and the teacher's view of its place; whether it is the last one.

        While an answer is opened, the model's choice gives way to the header.
        """
        opening = bool(self._header)
        if opening:
            token_id = self._header.popleft()
        self.new_ids = (token_id,)
        self.answer_ids.append(token_id)
        self.top_ids.append(top_ids)
        self.top_probs.append(top_probs)
        if opening:
            return False
        self._num_left -= 1
        if self._asker is not None and token_id == self._asker.end_id:
            self._header.extend(self._asker.header_ids)
            self._asker, self._num_left = None, self._max_tokens
            return False
        return token_id in ends or not self._num_left

    def finished(self) -> Answer:
        return Answer(
            self.question.token_ids,
            tuple(self.answer_ids),
            torch.stack(self.top_ids),
            torch.stack(self.top_probs),
        )


def answer_all(
    runner: Runner,
    questions: Sequence[Question],
    *,
    end_ids: Sequence[int],
    max_tokens: int,
    num_top: int,
    num_live: int,
    seed: int,
    on_finished: Callable[[int], None],
) -> list[Answer]:
    """Answer questions in one go, at most `num_live` at a time; a place that is free is refilled.

    An answer ends with one of `end_ids` or after `max_tokens`, those of a question that the target
    asks itself not counted. The runner's pool must have room for `num_live` of the longest; it is
    empty again afterwards, whatever happens. On one machine the same arguments give the same
    answers. `on_finished` hears how many more are done.
    """
    generator = torch.Generator().manual_seed(seed)
    waiting = deque(enumerate(questions))
    live: list[_Live] = []
    answers: dict[int, Answer] = {}
    ends = frozenset(end_ids)
    try:
        while waiting or live:
            _admit(runner, waiting, live, num_live, max_tokens)
            logits = runner.forward([Chunk(each.table, each.new_ids, 1) for each in live]).float()
            top_probs, top_ids = _top_probabilities(logits, num_top)
            chosen = _choose(logits, [each.temperature for each in live], generator)
            for row, each in enumerate(live):
                if each.add(chosen[row], top_ids[row], top_probs[row], ends):
                    answers[each.index] = each.finished()
                    each.table.free()
            on_finished(sum(each.index in answers for each in live))
            live = [each for each in live if each.index not in answers]
    finally:
        for each in live:
            each.table.free()
    return [answers[index] for index in range(len(questions))]


def longest(question: Question, max_tokens: int) -> int:
    """Tokens that a question may take, with an answer of at most `max_tokens`."""
    number = len(question.token_ids) + max_tokens
    asker = question.asker
    return number if asker is None else number + asker.max_tokens + len(asker.header_ids)


def _admit(
    runner: Runner,
    waiting: deque[tuple[int, Question]],
    live: list[_Live],
    num_live: int,
    max_tokens: int,
) -> None:
    room = MAX_PREFILL_TOKENS
    while waiting and len(live) < num_live and room > 0:
        index, question = waiting.popleft()
        room -= len(question.token_ids)
        table = runner.pool.open_table(longest(question, max_tokens))
        live.append(_Live(index, question, table, max_tokens))


def _top_probabilities(logits: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """Float16 probabilities and int32 ids, on the CPU."""
    values, ids = logits.topk(min(num_top, logits.shape[1]), dim=1)
    probs = torch.exp(values - logits.logsumexp(dim=1, keepdim=True))
    return probs.to("cpu", torch.float16), ids.to("cpu", torch.int32)


def _choose(logits: Tensor, temperatures: Sequence[float], generator: torch.Generator) -> list[int]:
    """A token a row: the most likely one, or one drawn by a uniform number's place in the sum."""
    rows = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    chosen = logits.argmax(dim=1)
    if rows:
        index = torch.tensor(rows, device=logits.device)
        scale = torch.tensor([temperatures[row] for row in rows], device=logits.device)[:, None]
        sums = (logits[index] / scale).softmax(dim=1).cumsum(dim=1)
        # Drawn on the CPU, so that every device draws the same.
        uniform = torch.rand(len(rows), 1, generator=generator).to(logits.device)
        drawn = torch.searchsorted(sums, uniform * sums[:, -1:], right=True)[:, 0]
        chosen = chosen.index_copy(0, index, drawn.clamp_max(logits.shape[1] - 1))
    found: list[int] = chosen.tolist()
    return found
