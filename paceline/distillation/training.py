"""Teaches the student the target's probabilities: AdamW, a cosine schedule, exact resumption."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.distillation.lessons import Lesson, Lessons
from paceline.distillation.progress import Progress
from paceline.distillation.recipe import TrainingSettings

BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
FINAL_LEARNING_RATE = 0.02
"""Share of the highest learning rate that the schedule ends with."""

Logits = Callable[[Lesson], Tensor]
"""Runs the student: logits `[num_rows, num_draft_ids]` of a lesson's rows."""

Rounded = Callable[[], AbstractContextManager[None]]
"""A context in which the student has the weights that will be stored."""


def cross_entropy(
    logits: Tensor,  # [num_rows, num_draft_ids]
    lesson: Lesson,
) -> Tensor:
    """Mean over rows of −Σ target · log draft over the ids that the teacher kept.

    Its gradient is that of the Kullback-Leibler divergence, each row weighted by what of the
    target's probability was kept.
    """
    logits = logits.float()
    chosen = logits.gather(1, lesson.top_ids)
    of_row = lesson.top_probs * (logits.logsumexp(dim=1, keepdim=True) - chosen)
    return of_row.sum(dim=1).mean()


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """Of step 0, 1, …: up in a line, then down along half a cosine."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    share = FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * (1 + math.cos(math.pi * done)) / 2
    return settings.learning_rate * share


class Training:
    """A student on its way; `seconds` are those of all its steps.

    What the way onwards depends on is its weights, the optimizer's state and the number of steps
    done; a file of the three goes on exactly where it was written.
    """

    def __init__(
        self,
        student: nn.Module,
        logits: Logits,
        lessons: Lessons,
        settings: TrainingSettings,
        *,
        rounded: Rounded = nullcontext,
    ) -> None:
        self.step = 0
        self.seconds = 0.0
        self._student = student
        self._device = next(student.parameters()).device
        self._logits = logits
        self._lessons = lessons
        self._settings = settings
        self._rounded = rounded
        matrices = [each for each in student.parameters() if each.ndim > 1]
        others = [each for each in student.parameters() if each.ndim <= 1]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=BETAS,
            fused=True,
        )

    def run(self, path: Path, progress: Progress) -> None:
        """Go on from the state in `path`, if there is one, to the last step.

        An interruption loses what was learnt since the file was written last; it is whole always.
        """
        if path.exists():
            self._restore(path)
        settings = self._settings
        self._student.train()
        with progress.bar("training", settings.steps, "steps") as bar:
            bar.advance(self.step)
            losses: list[float] = []
            for batch in self._batches_left():
                started = time.monotonic()
                losses.append(self._learn(self._lessons.lesson(batch).to(self._device)))
                self.seconds += time.monotonic() - started
                bar.advance()
                bar.note(f"loss {losses[-1]:.3f}")
                if self.step % settings.checkpoint_steps == 0 or self.step == settings.steps:
                    self._save(path)
                    mean = sum(losses) / len(losses)
                    progress.say(f"training: step {self.step} of {settings.steps}, loss {mean:.3f}")
                    losses = []
        self._student.eval()

    def _learn(self, lesson: Lesson) -> float:
        settings = self._settings
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        rounds = self.step >= settings.rounded_from * settings.steps
        with self._rounded() if rounds else nullcontext():
            loss = cross_entropy(self._logits(lesson), lesson)
            loss.backward()
        nn.utils.clip_grad_norm_(self._student.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return float(loss.detach())

    def _batches_left(self) -> Iterator[list[int]]:
        """The batches from the present step on, epoch after epoch."""
        settings, begun, epoch = self._settings, 0, 0
        while begun < settings.steps:
            batches = self._lessons.batches(settings.tokens_per_step, settings.seed, epoch)
            for number, batch in enumerate(batches, start=begun):
                if self.step <= number < settings.steps:
                    yield batch
            begun += len(batches)
            epoch += 1

    def _save(self, path: Path) -> None:
        started = path.with_suffix(".part")
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "student": self._student.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, started)
        os.replace(started, path)

    def _restore(self, path: Path) -> None:
        state: dict[str, Any] = torch.load(path, map_location=self._device, weights_only=True)
        self._student.load_state_dict(state["student"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
