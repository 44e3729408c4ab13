"""Judges a drafter as it is stored: written, loaded as a worker does, run over held-out text."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config import ModelConfig, RuntimeConfig
from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.cost import CONTEXT_TOKENS, MAX_BLOCK, Cost, measure
from paceline.distillation.scores import MAX_DEPTH, Scores, score
from paceline.runtime.draft_vocabulary import DraftVocabulary
from paceline.runtime.loader import load_model
from paceline.runtime.model_runner import ModelRunner
from paceline.runtime.runner_factory import build_runner
from paceline.runtime.student import save_student

PAGE_SIZE = 16
NUM_LIVE = 32


@dataclass(frozen=True, slots=True)
class Judge:
    """What every state of a drafter is judged with."""

    target: ModelConfig
    vocabulary: DraftVocabulary
    held_out: StoredAnswers
    quantization: str

    def store(self, student: Any, directory: Path) -> Path:
        """Write a student's checkpoint into a new directory in place of an old one."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        save_student(student, directory, quantization=self.quantization)
        return directory

    def score(self, directory: Path) -> Scores:
        """Run a stored checkpoint over the held-out answers. Raises `ModelLoadError`."""
        held_out = self.held_out
        longest = max(held_out.length(index) for index in range(len(held_out))) + MAX_DEPTH
        return score(
            self._runner(directory, NUM_LIVE * longest),
            held_out,
            self.vocabulary.to_target(),
            self.vocabulary.to_draft(),
            num_live=NUM_LIVE,
        )

    def cost(self, directory: Path) -> Cost:
        """Time a stored checkpoint beside the target, which is loaded once more for it."""
        runtime = RuntimeConfig(page_size=PAGE_SIZE, kv_tokens=_tokens(CONTEXT_TOKENS + MAX_BLOCK))
        target = build_runner(load_model(self.target), runtime)
        return measure(target, self._runner(directory, CONTEXT_TOKENS + MAX_BLOCK))

    def _runner(self, directory: Path, num_tokens: int) -> ModelRunner:
        config = ModelConfig(
            path=str(directory), device=self.target.device, threads=self.target.threads
        )
        runtime = RuntimeConfig(page_size=PAGE_SIZE, kv_tokens=_tokens(num_tokens))
        return build_runner(load_model(config), runtime)


def _tokens(number: int) -> int:
    """Room for so many tokens, however sessions share it out in pages."""
    return number + (NUM_LIVE + 1) * PAGE_SIZE
