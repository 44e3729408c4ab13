"""The student's way: its loss, its schedule, and going on after an interruption."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.answers import Answer
from paceline.distillation.lessons import Lesson, Lessons
from paceline.distillation.progress import Progress
from paceline.distillation.recipe import TrainingSettings
from paceline.distillation.training import Training, cross_entropy, learning_rate

SETTINGS = TrainingSettings(
    layers=(0,),
    steps=40,
    tokens_per_step=24,
    learning_rate=0.05,
    warmup_steps=5,
    checkpoint_steps=10,
    quantization="none",
)
VOCAB = 12


def lessons(seed: int = 0) -> Lessons:
    generator = torch.Generator().manual_seed(seed)
    answers = []
    for _ in range(20):
        length = int(torch.randint(2, 8, (), generator=generator))
        ids = torch.randint(VOCAB, (length,), generator=generator)
        top = torch.stack((ids, (ids + 1) % VOCAB), dim=1).int()
        probs = torch.tensor([[0.6, 0.3]] * (length - 1), dtype=torch.float16)
        answers.append(Answer((int(ids[0]),), tuple(ids[1:].tolist()), top[:-1], probs))
    everything = torch.arange(VOCAB)
    return Lessons(StoredAnswers.of(answers, 0.0), everything, everything)


def student() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB))


def training(module: nn.Module, settings: TrainingSettings = SETTINGS) -> Training:
    def logits(lesson: Lesson) -> Tensor:
        found: Tensor = module(lesson.input_ids).flatten(0, 1)[lesson.rows]
        return found

    return Training(module, logits, lessons(), settings)


def quiet() -> Progress:
    return Progress(io.StringIO())


def test_the_loss_is_the_divergence_from_the_teacher_up_to_a_constant() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, VOCAB, generator=generator, requires_grad=True)
    target = torch.randn(5, VOCAB, generator=generator).softmax(dim=1)
    every = torch.arange(VOCAB).expand(5, -1)
    lesson = Lesson(torch.zeros(1, 5), torch.arange(5), torch.zeros(5), every, target)
    loss = cross_entropy(logits, lesson)
    (ours,) = torch.autograd.grad(loss, logits)
    log_draft = logits.log_softmax(dim=1)
    divergence = (target * (target.log() - log_draft)).sum(dim=1).mean()
    (theirs,) = torch.autograd.grad(divergence, logits)
    torch.testing.assert_close(ours, theirs)
    entropy = -(target * target.log()).sum(dim=1).mean()
    torch.testing.assert_close(loss, divergence + entropy)


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine() -> None:
    rates = [learning_rate(SETTINGS, step) for step in range(SETTINGS.steps)]
    assert rates[:5] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert all(one > two for one, two in pairwise(rates[5:]))
    middle = 5 + (SETTINGS.steps - 5) / 2
    assert learning_rate(SETTINGS, round(middle)) == pytest.approx(0.0255, rel=0.05)
    assert learning_rate(SETTINGS, SETTINGS.steps) == pytest.approx(0.001)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    module = student()
    whole = lessons().lesson(range(20))

    def loss() -> float:
        with torch.no_grad():
            return float(cross_entropy(module(whole.input_ids).flatten(0, 1)[whole.rows], whole))

    before = loss()
    run = training(module)
    run.run(tmp_path / "state.pt", quiet())
    assert loss() < 0.8 * before
    assert run.step == SETTINGS.steps
    assert run.seconds > 0
    assert not module.training


@pytest.mark.parametrize("stop", [3, 10, 25, 39])
def test_an_interrupted_training_ends_with_the_same_weights(tmp_path: Path, stop: int) -> None:
    whole = student()
    training(whole).run(tmp_path / "whole.pt", quiet())

    class Stopping(Progress):
        """Interrupts the process after some steps."""

        @contextmanager
        def bar(self, stage: str, total: int, unit: str) -> Iterator[object]:
            class Bar:
                done = 0

                def advance(self, number: int = 1) -> None:
                    self.done += number
                    if self.done == stop:
                        raise KeyboardInterrupt

                def note(self, text: str) -> None: ...

            yield Bar()

    path = tmp_path / "state.pt"
    with pytest.raises(KeyboardInterrupt):
        training(student()).run(path, Stopping(io.StringIO()))  # type: ignore[arg-type]
    assert path.exists() == (stop > SETTINGS.checkpoint_steps)
    resumed = student()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.zero_()  # nothing of a new student matters if there is a state
    again = resumed if path.exists() else student()
    training(again).run(path, quiet())
    for one, two in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_last_steps_see_rounded_weights_and_move_the_exact_ones(tmp_path: Path) -> None:
    module = student()
    weight = module[1].weight
    seen: list[bool] = []

    @contextmanager
    def rounded() -> Iterator[None]:
        exact = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(weight.round(decimals=1))
        yield
        with torch.no_grad():
            weight.copy_(exact)

    def logits(lesson: Lesson) -> Tensor:
        seen.append(bool(torch.equal(weight, weight.round(decimals=1))))
        found: Tensor = module(lesson.input_ids).flatten(0, 1)[lesson.rows]
        return found

    settings = replace(SETTINGS, steps=10, rounded_from=0.7)
    Training(module, logits, lessons(), settings, rounded=rounded).run(
        tmp_path / "state.pt", quiet()
    )
    assert seen == [False] * 7 + [True] * 3
    assert not torch.equal(weight, weight.round(decimals=1))
