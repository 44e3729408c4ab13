"""The stage that makes data: questions in, files of the target's answers out, resumed by file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.answers import Question, answer_all
from paceline.distillation.progress import Progress
from paceline.distillation.recipe import DataSettings
from paceline.runtime.worker_model import WorkerModel

QUESTIONS_A_FILE = 640
HELD_OUT_FILE = "held-out.npz"
HELD_OUT_ANSWER_TOKENS = 96
HELD_OUT_TOP = 256
"""Enough of the target's probabilities for an overlap that misses next to nothing."""


def make_answers(
    work: Path,
    name: str,
    questions: Sequence[Question],
    *,
    target: Callable[[], WorkerModel],
    settings: DataSettings,
    progress: Progress,
) -> list[Path]:
    """Answer all questions, into files of that name; those of files that are in `work` already are
    not asked again, and the target is not even loaded where all are."""
    paths: list[Path] = []
    if not questions:
        return paths
    with progress.bar(name, len(questions), "prompts") as bar:
        for first in range(0, len(questions), QUESTIONS_A_FILE):
            part = questions[first : first + QUESTIONS_A_FILE]
            path = work / f"{name}-{first:06}-{first + len(part):06}.npz"
            if not path.exists():
                started = time.monotonic()
                model = target()
                answers = answer_all(
                    model.runner,
                    part,
                    end_ids=model.info.eos_token_ids,
                    max_tokens=settings.max_answer_tokens,
                    num_top=settings.num_top,
                    num_live=settings.num_live,
                    seed=settings.seed + first,
                    on_finished=bar.advance,
                )
                StoredAnswers.of(answers, time.monotonic() - started).save(path)
            else:
                bar.advance(len(part))
            paths.append(path)
    return paths


def make_held_out(
    work: Path,
    questions: Sequence[Question],
    *,
    target: Callable[[], WorkerModel],
    settings: DataSettings,
    progress: Progress,
) -> StoredAnswers:
    """The target's greedy answers to the held-out questions."""
    path = work / HELD_OUT_FILE
    if not path.exists():
        with progress.bar("held-out answers", len(questions), "prompts") as bar:
            started = time.monotonic()
            model = target()
            answers = answer_all(
                model.runner,
                questions,
                end_ids=model.info.eos_token_ids,
                max_tokens=HELD_OUT_ANSWER_TOKENS,
                num_top=HELD_OUT_TOP,
                num_live=settings.num_live,
                seed=settings.seed,
                on_finished=bar.advance,
            )
        StoredAnswers.of(answers, time.monotonic() - started).save(path)
    return StoredAnswers.load([path])
