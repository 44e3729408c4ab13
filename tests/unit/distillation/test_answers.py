"""The target answers many questions at a time, and its view of each token is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.tiny_models import tiny_loaded

from paceline.config import RuntimeConfig
from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.answers import Answer, Asker, Question, answer_all, longest
from paceline.runtime.model_runner import ModelRunner
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner

MAX_TOKENS = 6


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return build_runner(tiny_loaded(vocab_size=64), RuntimeConfig(kv_tokens=512))


def questions(number: int, temperature: float = 0.0) -> list[Question]:
    return [
        Question(tuple(3 + (7 * place + step) % 60 for step in range(1 + place)), temperature)
        for place in range(number)
    ]


def ask(
    runner: ModelRunner,
    asked: Sequence[Question],
    *,
    end_ids: Sequence[int] = (),
    num_live: int = 3,
    seed: int = 0,
) -> list[Answer]:
    return answer_all(
        runner,
        asked,
        end_ids=end_ids,
        max_tokens=MAX_TOKENS,
        num_top=8,
        num_live=num_live,
        seed=seed,
        on_finished=lambda _number: None,
    )


def alone(runner: ModelRunner, question: Question, answer: Answer) -> torch.Tensor:
    """Logits before each token of the answer, in one pass of its own."""
    table = runner.pool.open_table(64)
    try:
        ids = (*question.token_ids, *answer.answer_ids[:-1])
        return runner.forward([Chunk(table, ids, len(answer.answer_ids))])
    finally:
        table.free()


def test_greedy_answers_and_probabilities_are_the_models_own(runner: ModelRunner) -> None:
    asked = questions(8)
    for question, answer in zip(asked, ask(runner, asked), strict=True):
        assert answer.question_ids == question.token_ids
        assert len(answer.answer_ids) == MAX_TOKENS
        logits = alone(runner, question, answer)
        assert logits.argmax(dim=1).tolist() == list(answer.answer_ids)
        top = logits.softmax(dim=1).topk(8)
        torch.testing.assert_close(answer.top_probs.float(), top.values, atol=2e-3, rtol=0)
        assert answer.top_ids[:, 0].tolist() == list(answer.answer_ids)
    runner.pool.check_integrity()
    assert runner.pool.used_pages == 0


def test_an_answer_ends_with_an_end_id_and_keeps_it(runner: ModelRunner) -> None:
    asked = questions(8)
    whole = ask(runner, asked)
    end = whole[0].answer_ids[2]
    for short, long in zip(ask(runner, asked, end_ids=(end,)), whole, strict=True):
        if end in long.answer_ids:
            stop = long.answer_ids.index(end) + 1
            assert short.answer_ids == long.answer_ids[:stop]
            assert short.top_ids.shape == (stop, 8)
        else:
            assert short.answer_ids == long.answer_ids


def test_drawn_answers_follow_from_the_seed_and_the_targets_probabilities(
    runner: ModelRunner,
) -> None:
    asked = [Question((5, 9, 11), 0.7)] * 400
    answers = ask(runner, asked, num_live=20, seed=1)
    assert [each.answer_ids for each in ask(runner, asked, num_live=20, seed=1)] == [
        each.answer_ids for each in answers
    ]
    assert [each.answer_ids for each in ask(runner, asked, num_live=20, seed=2)] != [
        each.answer_ids for each in answers
    ]
    probs = (alone(runner, asked[0], answers[0])[0] / 0.7).softmax(dim=0)
    firsts = torch.tensor([each.answer_ids[0] for each in answers])
    for token_id in probs.topk(3).indices.tolist():
        expected = float(probs[token_id])
        spread = (expected * (1 - expected) / len(answers)) ** 0.5
        assert abs(float((firsts == token_id).double().mean()) - expected) < 4 * spread


def test_a_target_asks_itself_and_answers_after_the_header(runner: ModelRunner) -> None:
    """Its turn is over with the end that the template sets, and the answer is as long as others."""
    plain = questions(8)
    said = ask(runner, plain)
    end = said[0].answer_ids[2]
    asker = Asker(end_id=end, header_ids=(21, 22), max_tokens=4, temperature=0.0)
    asked = [Question(each.token_ids, 0.0, asker) for each in plain]
    found = ask(runner, asked)
    assert found[0].answer_ids[:5] == (*said[0].answer_ids[:3], 21, 22)
    for before, question, answer in zip(said, asked, found, strict=True):
        turn = before.answer_ids[: asker.max_tokens]
        if end not in turn:
            assert answer.answer_ids == turn
            continue
        opened = (*turn[: turn.index(end) + 1], 21, 22)
        assert answer.answer_ids[: len(opened)] == opened
        assert len(answer.answer_ids) == len(opened) + MAX_TOKENS
        assert len(question.token_ids) + len(answer.answer_ids) <= longest(question, MAX_TOKENS)
        logits = alone(runner, question, answer)
        assert answer.answer_ids[len(opened) :] == tuple(
            logits[len(opened) :].argmax(dim=1).tolist()
        )
        top = logits.softmax(dim=1).topk(8)
        torch.testing.assert_close(answer.top_probs.float(), top.values, atol=2e-3, rtol=0)


def test_a_question_is_drawn_at_its_own_temperature(runner: ModelRunner) -> None:
    asker = Asker(end_id=63, header_ids=(), max_tokens=4, temperature=1.0)
    drawn = ask(runner, [Question((5, 9, 11), 0.0, asker)] * 20)
    assert len({each.answer_ids[0] for each in drawn}) > 1
    cold = ask(runner, [Question((5, 9, 11), 1.0, replace(asker, temperature=0.0))] * 20)
    assert len({each.answer_ids[:1] for each in cold}) == 1


def test_what_was_open_is_given_back_when_a_pass_fails(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = iter(range(3))
    forward = runner.forward

    def fail(chunks: Sequence[Chunk]) -> torch.Tensor:
        if next(passes, None) is None:
            assert runner.pool.used_pages
            raise KeyboardInterrupt
        return forward(chunks)

    monkeypatch.setattr(runner, "forward", fail)
    with pytest.raises(KeyboardInterrupt):
        ask(runner, questions(5))
    assert runner.pool.used_pages == 0
    runner.pool.check_integrity()


def test_answers_of_several_files_are_read_one_after_another(
    runner: ModelRunner, tmp_path: Path
) -> None:
    answers = ask(runner, questions(5), end_ids=(7,))
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    StoredAnswers.of(answers[:2], 1.5).save(first)
    StoredAnswers.of(answers[2:], 2.0).save(second)
    assert sorted(tmp_path.iterdir()) == [first, second]
    stored = StoredAnswers.load([first, second])
    assert len(stored) == 5
    assert stored.seconds.tolist() == [1.5, 2.0]
    assert stored.num_answer_tokens == sum(len(each.answer_ids) for each in answers)
    for index, answer in enumerate(answers):
        assert stored.tokens(index).tolist() == [*answer.question_ids, *answer.answer_ids]
        assert stored.answer(index).tolist() == list(answer.answer_ids)
        assert stored.length(index) == len(answer.question_ids) + len(answer.answer_ids)
        rows = slice(int(stored.rows[index]), int(stored.rows[index + 1]))
        assert torch.equal(stored.top_ids[rows], answer.top_ids)
        assert torch.equal(stored.top_probs[rows], answer.top_probs)
