"""What is said of a drafter: agreement, overlap, depth, cost and the speedup that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.tiny_models import tiny_loaded

from paceline.config import RuntimeConfig
from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.answers import Question, answer_all
from paceline.distillation.cost import Cost, measure, predicted_speedup
from paceline.distillation.scores import MAX_DEPTH, STRIDE, score
from paceline.runtime.model_runner import ModelRunner
from paceline.runtime.runner import Chunk
from paceline.runtime.runner_factory import build_runner

VOCAB = 48
EVERY = torch.arange(VOCAB)
ANSWER = 23


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return build_runner(tiny_loaded(vocab_size=VOCAB), RuntimeConfig(kv_tokens=1024))


@pytest.fixture(scope="module")
def answers(runner: ModelRunner) -> StoredAnswers:
    asked = [Question((3 + place, 7, 2 * place), 0.0) for place in range(6)]
    found = answer_all(
        runner,
        asked,
        end_ids=(),
        max_tokens=ANSWER,
        num_top=VOCAB,
        num_live=6,
        seed=0,
        on_finished=lambda _number: None,
    )
    return StoredAnswers.of(found, 0.0)


def test_a_drafter_that_is_the_target_is_right_everywhere(
    runner: ModelRunner, answers: StoredAnswers
) -> None:
    scores = score(runner, answers, EVERY, EVERY, num_live=4)
    assert scores.num_prompts == 6
    assert scores.num_tokens == 6 * ANSWER
    assert scores.agreement == 1.0
    assert scores.overlap == pytest.approx(1.0, abs=2e-3)
    assert scores.by_depth == (1.0,) * MAX_DEPTH
    assert runner.pool.used_pages == 0


def test_another_model_scores_what_plain_passes_say_of_it(answers: StoredAnswers) -> None:
    other = build_runner(tiny_loaded(seed=9, vocab_size=VOCAB), RuntimeConfig(kv_tokens=1024))
    scores = score(other, answers, EVERY, EVERY, num_live=6)
    agreed, overlap, depths = [], [], []
    for index in range(len(answers)):
        text = answers.tokens(index).tolist()
        first = int(answers.question_lengths[index])
        for place in range(first, len(text)):
            probs = next_probs(other, text[:place])
            agreed.append(int(probs.argmax()) == text[place])
            row = int(answers.rows[index]) + place - first
            target = torch.zeros(VOCAB)
            target[answers.top_ids[row].long()] = answers.top_probs[row].float()
            overlap.append(float(torch.minimum(target, probs).sum()))
            if place + MAX_DEPTH <= len(text) and (place - first) % STRIDE == 0:
                depths.append(free_depth(other, text, place))
    assert 0 < sum(agreed) < len(agreed)
    assert scores.agreement == round(sum(agreed) / len(agreed), 4)
    assert scores.overlap == pytest.approx(sum(overlap) / len(overlap), abs=1e-3)
    assert scores.by_depth == tuple(
        round(sum(each > depth for each in depths) / len(depths), 4) for depth in range(MAX_DEPTH)
    )


def next_probs(runner: ModelRunner, text: Sequence[int]) -> torch.Tensor:
    table = runner.pool.open_table(len(text))
    try:
        return runner.forward([Chunk(table, text, 1)])[0].softmax(dim=0)
    finally:
        table.free()


def free_depth(runner: ModelRunner, text: Sequence[int], place: int) -> int:
    read = list(text[:place])
    for depth in range(MAX_DEPTH):
        read.append(int(next_probs(runner, read).argmax()))
        if read[-1] != text[place + depth]:
            return depth
    return MAX_DEPTH


def test_ids_that_a_drafter_has_not_count_as_wrong_and_are_read_as_their_neighbours(
    answers: StoredAnswers,
) -> None:
    whole = build_runner(tiny_loaded(vocab_size=VOCAB), RuntimeConfig(kv_tokens=1024))
    said = int(answers.answer(0)[0])
    kept = torch.tensor([token for token in range(VOCAB) if token != said])
    input_ids = torch.searchsorted(kept, EVERY).clamp_max(len(kept) - 1)
    few = build_runner(tiny_loaded(vocab_size=VOCAB - 1), RuntimeConfig(kv_tokens=1024))
    scores = score(few, answers, kept, input_ids, num_live=6)
    assert scores.agreement < score(whole, answers, EVERY, EVERY, num_live=6).agreement
    agreed, overlap = [], []
    for index in range(len(answers)):
        text = answers.tokens(index).tolist()
        for row in range(ANSWER):
            place = int(answers.question_lengths[index]) + row
            probs = torch.zeros(VOCAB)
            probs[kept] = next_probs(few, input_ids[torch.tensor(text[:place])].tolist())
            agreed.append(int(probs.argmax()) == text[place])
            target = torch.zeros(VOCAB)
            row_of_store = int(answers.rows[index]) + row
            target[answers.top_ids[row_of_store].long()] = answers.top_probs[row_of_store].float()
            overlap.append(float(torch.minimum(target, probs).sum()))
    assert scores.agreement == round(sum(agreed) / len(agreed), 4)
    assert scores.overlap == pytest.approx(sum(overlap) / len(overlap), abs=1e-3)


def test_the_predicted_speedup_is_the_best_of_all_block_lengths() -> None:
    cost = Cost(draft_ms=1.0, verify_ms=(10.0, 11.0, 12.0, 30.0))
    # 1 draft: 1.8 tokens in 12 ms; 2 drafts: 2.3 in 14; 3 drafts: 2.5 in 33
    assert predicted_speedup((0.8, 0.5, 0.2), cost) == (round(2.3 * 10 / 14, 3), 2)
    assert predicted_speedup((0.8,), cost) == (1.5, 1)
    assert predicted_speedup((0.0, 0.0), cost) == (round(10 / 12, 3), 1)
    assert cost.ratio == pytest.approx(0.1)
    assert replace(cost, draft_ms=5.0).ratio == 0.5


def test_both_models_are_timed_and_leave_nothing_behind(runner: ModelRunner) -> None:
    small = tiny_loaded(vocab_size=VOCAB, num_hidden_layers=1)
    draft = build_runner(small, RuntimeConfig(kv_tokens=256))
    cost = measure(runner, draft)
    assert cost.draft_ms > 0
    assert len(cost.verify_ms) == 9
    assert all(ms > 0 for ms in cost.verify_ms)
    assert runner.pool.used_pages == draft.pool.used_pages == 0
