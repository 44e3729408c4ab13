"""Batches of answers in the student's own ids."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.answers import Answer
from paceline.distillation.lessons import Lessons
from paceline.distillation.vocabulary import choose_ids, coverage, id_weights

TOKEN_IDS = torch.tensor([1, 2, 4, 5])
INPUT_IDS = torch.tensor([0, 0, 1, 2, 2, 3, 3])  # 0 is read as 1, 3 as 4, 6 as 5


def answer(question: tuple[int, ...], reply: tuple[int, ...]) -> Answer:
    """The teacher is 0.75 sure of each token of the reply, and gives the id before it 0.125."""
    ids = torch.tensor([[token, (token - 1) % 7] for token in reply], dtype=torch.int32)
    probs = torch.tensor([[0.75, 0.125]] * len(reply), dtype=torch.float16)
    return Answer(question, reply, ids, probs)


def store(*answers: Answer) -> StoredAnswers:
    return StoredAnswers.of(answers, 0.0)


def test_a_lesson_reads_and_predicts_the_right_places() -> None:
    answers = store(answer((1, 3), (4, 5, 6)), answer((5,), (2,)), answer((6, 2), (1, 1)))
    lesson = Lessons(answers, TOKEN_IDS, INPUT_IDS).lesson([0, 2])
    # the last token of an answer is never read; the shorter text is padded behind
    assert lesson.input_ids.tolist() == [[0, 2, 2, 3], [3, 1, 0, 0]]
    assert lesson.rows.tolist() == [1, 2, 3, 5, 6]
    assert lesson.labels.tolist() == [2, 3, -1, 0, 0]  # 6 has no draft id
    assert lesson.top_ids.tolist() == [[2, 0], [3, 2], [0, 3], [0, 0], [0, 0]]
    assert lesson.top_probs.tolist() == [
        [0.75, 0.0],  # 3 has no draft id
        [0.75, 0.125],
        [0.0, 0.125],
        [0.75, 0.0],  # nor has 0
        [0.75, 0.0],
    ]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40),
    num_tokens=st.integers(1, 60),
    epoch=st.integers(0, 3),
)
def test_an_epoch_has_every_answer_once_in_batches_that_fit(
    lengths: list[tuple[int, int]], num_tokens: int, epoch: int
) -> None:
    answers = store(*(answer((1,) * one, (2,) * two) for one, two in lengths))
    lessons = Lessons(answers, TOKEN_IDS, INPUT_IDS)
    batches = lessons.batches(num_tokens, seed=5, epoch=epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(answers.length(index) for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= num_tokens
    assert batches == lessons.batches(num_tokens, seed=5, epoch=epoch)


def test_epochs_and_seeds_differ_in_their_order() -> None:
    lessons = Lessons(store(*[answer((1,), (2,))] * 60), TOKEN_IDS, INPUT_IDS)
    first = lessons.batches(8, seed=0, epoch=0)
    assert lessons.batches(8, seed=0, epoch=1) != first
    assert lessons.batches(8, seed=1, epoch=0) != first


def test_the_ids_that_the_target_thinks_of_most_are_chosen_and_the_ends_always() -> None:
    weights = id_weights(store(answer((0, 0, 0), (4, 4, 2))), vocab_size=7)
    assert weights.tolist() == [0, 0.125, 0.75, 0.25, 1.5, 0, 0]
    assert choose_ids(weights, 2, always=()).tolist() == [2, 4]
    assert choose_ids(weights, 2, always=(6,)).tolist() == [4, 6]
    assert choose_ids(weights, 6, always=()).tolist() == [0, 1, 2, 3, 4, 5]
    assert coverage(weights, torch.tensor([2, 4])) == 2.25 / 2.625
