"""All stages of `paceline distill`, each of which goes on where it was interrupted."""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.config import ModelConfig, RuntimeConfig
from paceline.distillation.answer_store import StoredAnswers
from paceline.distillation.answers import Question, longest
from paceline.distillation.beginning import Beginning
from paceline.distillation.data import HELD_OUT_ANSWER_TOKENS, make_answers, make_held_out
from paceline.distillation.delivery import README, cost_figures, deliver, readme
from paceline.distillation.held_out import held_out_prompts
from paceline.distillation.judging import Judge
from paceline.distillation.lessons import Lesson, Lessons
from paceline.distillation.own_questions import own_questions
from paceline.distillation.progress import Progress
from paceline.distillation.prompts import Prompt, built_in_prompts, prompts_of_file
from paceline.distillation.recipe import (
    DataSettings,
    TrainingSettings,
    keep_recipe,
    recipe_directory,
)
from paceline.distillation.training import Rounded, Training
from paceline.distillation.vocabulary import choose_ids, coverage, id_weights
from paceline.errors import ConfigError
from paceline.runtime.draft_vocabulary import DraftVocabulary
from paceline.runtime.memory import keep_freed_memory
from paceline.runtime.quantization import check_available
from paceline.runtime.student import (
    begin_as,
    fast_compute_dtype,
    keep_ids,
    linear_weights,
    load_student,
    nearest_ids,
    student_layers,
    student_logits,
)
from paceline.runtime.tokenizer import Tokenizer
from paceline.runtime.weight_rounding import rounded_weights
from paceline.runtime.worker_model import WorkerModel, load_worker_model

PAGE_SIZE = 16
MAX_ROUNDS = 8
"""Rounds over the same answers above which a user is warned."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made of which target, and where.

    `work` keeps what stages have done; `output` gets the drafter. `prompts` is a file, None the
    built-in set. `start_from` is a drafter's path, None the target's layers. `command` is what the
    drafter's README says it was made with.
    """

    target: ModelConfig
    output: Path
    work: Path
    prompts: Path | None
    data: DataSettings
    training: TrainingSettings
    command: str
    start_from: str | None = None


def distill(order: Order, progress: Progress) -> DraftVocabulary:
    """Run what is left of all stages. Raises `StartupError` naming a setting, file or model."""
    _check_output(order.output)
    for name, folder in (("--output", order.output.parent), ("--work", order.work)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{name}: cannot make {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"{name}: cannot write in {folder}")
    if order.target.device != "cuda":
        keep_freed_memory()
    prompts, label = _prompts(order)
    tokenizer = Tokenizer.load(order.target.path, order.target.revision)
    beginning = None if order.start_from is None else Beginning.read(order.start_from, tokenizer)
    training = _whole(order.training, order.target, tokenizer, beginning)
    keep_recipe(
        order.work / "data.json",
        {
            "target": order.target.path,
            "dtype": order.target.dtype,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "prompts": label,
            **asdict(order.data),
        },
        free=("num_prompts", "num_own_questions"),
    )
    answers, held_out = _answers(order, prompts, tokenizer, progress)
    gc.collect()  # the target, before the student is loaded
    # As many answers of another mixture make another student.
    own = order.data.num_own_questions
    recipe = {**asdict(training), "num_answers": len(answers), "num_own_questions": own}
    if beginning is not None:
        recipe["start_from"] = beginning.digest
    place = recipe_directory(order.work, recipe, free=("checkpoint_steps",))
    return _train(
        replace(order, work=place, training=training),
        tokenizer,
        beginning,
        answers=answers,
        held_out=held_out,
        progress=progress,
    )


def _check_output(output: Path) -> None:
    """Nothing but an older drafter is ever written over."""
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"--output: {output} is a file, not a directory")
    if any(output.iterdir()) and not (output / "paceline_draft.json").exists():
        raise ConfigError(f"--output: {output} has files in it and is no drafter")


def _prompts(order: Order) -> tuple[list[Prompt], str]:
    """What is asked, and what the recipe calls it."""
    number = order.data.num_prompts
    if order.prompts is None:
        return built_in_prompts(number, order.data.seed), "built-in"
    prompts = prompts_of_file(order.prompts)[:number]
    digest = hashlib.sha256(order.prompts.read_bytes()).hexdigest()
    return prompts, f"{order.prompts.name}, SHA-256 {digest}"


def _answers(
    order: Order, prompts: Sequence[Prompt], tokenizer: Tokenizer, progress: Progress
) -> tuple[StoredAnswers, StoredAnswers]:
    """The target's answers to the training prompts and to the held-out ones."""
    settings = order.data
    questions = _questions(prompts, tokenizer, settings.temperatures, settings.max_prompt_tokens)
    own = own_questions(tokenizer, settings)
    held_out = _questions(held_out_prompts(), tokenizer, (0.0,), settings.max_prompt_tokens)
    if not questions or not held_out:
        raise ConfigError(
            f"--max-prompt-tokens: no prompt has at most {settings.max_prompt_tokens} tokens"
        )
    max_tokens = max(settings.max_answer_tokens, HELD_OUT_ANSWER_TOKENS)
    most = max(longest(each, max_tokens) for each in (*questions, *own, *held_out))
    load = cache(partial(_load_target, order.target, most, settings.num_live))
    stage: dict[str, Any] = {"target": load, "settings": settings, "progress": progress}
    paths = make_answers(order.work, "answers", questions, **stage)
    paths += make_answers(order.work, "own-questions", own, **stage)
    return StoredAnswers.load(paths), make_held_out(order.work, held_out, **stage)


def _questions(
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer,
    temperatures: Sequence[float],
    max_tokens: int,
) -> list[Question]:
    """The prompts that are short enough, at these temperatures in turn."""
    ids = [tuple(prompt.token_ids(tokenizer)) for prompt in prompts]
    short = [each for each in ids if 0 < len(each) <= max_tokens]
    return [
        Question(each, temperatures[place % len(temperatures)]) for place, each in enumerate(short)
    ]


def _load_target(target: ModelConfig, most: int, num_live: int) -> WorkerModel:
    pages = -(-most // PAGE_SIZE)
    runtime = RuntimeConfig(page_size=PAGE_SIZE, kv_tokens=num_live * pages * PAGE_SIZE)
    model = load_worker_model("target", target, runtime)
    if most > model.info.context_length:
        raise ConfigError(
            f"--max-answer-tokens: prompts and answers take up to {most} tokens, and the"
            f" context of {target.path} is {model.info.context_length}"
        )
    return model


def _whole(
    settings: TrainingSettings,
    target: ModelConfig,
    tokenizer: Tokenizer,
    beginning: Beginning | None,
) -> TrainingSettings:
    """The settings with everything decided that was left open, and found possible, before hours
    of work rely on it."""
    if settings.num_draft_ids > tokenizer.vocab_size:
        raise ConfigError(
            f"--draft-ids: {settings.num_draft_ids} is more than the {tokenizer.vocab_size} ids of"
            f" {target.path}"
        )
    if settings.quantization != "none":
        check_available(settings.quantization)
    wanted = settings.layers if beginning is None else beginning.layers(settings)
    return replace(settings, layers=student_layers(target, wanted))


def _train(
    order: Order,
    tokenizer: Tokenizer,
    beginning: Beginning | None,
    *,
    answers: StoredAnswers,
    held_out: StoredAnswers,
    progress: Progress,
) -> DraftVocabulary:
    settings = order.training
    assert settings.layers is not None, "decided by now"
    loaded = load_student(order.target.model_copy(update={"layers": settings.layers}))
    student = loaded.model
    ends = [each for each in loaded.eos_token_ids if each < tokenizer.vocab_size]
    weights = id_weights(answers, tokenizer.vocab_size)
    token_ids = choose_ids(weights, settings.num_draft_ids, always=ends)
    input_ids = nearest_ids(student, token_ids, tokenizer.vocab_size)
    keep_ids(student, token_ids, input_ids[ends].tolist())
    if beginning is not None:
        known_ids = beginning.vocabulary.to_target()
        begin_as(student, token_ids, beginning.load(order.target).model, known_ids)
    vocabulary = DraftVocabulary(
        target_name=order.target.path,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        layers=settings.layers,
        token_ids=tuple(token_ids.tolist()),
        input_ids=tuple(input_ids.tolist()),
    )
    judge = Judge(order.target, vocabulary, held_out, settings.quantization)
    untrained = _untrained_scores(judge, student, order.work, progress)
    lessons = Lessons(answers, token_ids, input_ids)
    rounds = settings.steps / len(lessons.batches(settings.tokens_per_step, settings.seed, 0))
    if rounds > MAX_ROUNDS:
        progress.say(
            f"warning: --steps {settings.steps} are {rounds:.1f} rounds over the answers; after"
            f" some {MAX_ROUNDS} a student learns them by heart: take more prompts or fewer steps"
        )
    compute_dtype = settings.compute_dtype
    if compute_dtype == "auto":
        compute_dtype = fast_compute_dtype(student.device)
    training = Training(
        student,
        partial(_logits, student, compute_dtype),
        lessons,
        settings,
        rounded=_rounded_of(student, settings.quantization),
    )
    training.run(order.work / "training.pt", progress)
    progress.say("writing the drafter and judging it as it is stored")
    directory = judge.store(student, order.work / "drafter")
    scores = judge.score(directory)
    figures = {
        **asdict(scores),
        "untrained_agreement": untrained["agreement"],
        "untrained_overlap": untrained["overlap"],
        "draft_id_coverage": round(coverage(weights, token_ids), 4),
        **cost_figures(scores, judge.cost(directory)),
        "answers": len(answers),
        "answer_tokens": answers.num_answer_tokens,
        "data_seconds": round(float(answers.seconds.sum())),
        "training_seconds": round(training.seconds),
        "rounds": round(rounds, 1),
        "compute_dtype": compute_dtype,
    }
    vocabulary = replace(vocabulary, figures=figures)
    vocabulary.write(directory)
    older = "" if beginning is None else beginning.page
    page = readme(vocabulary, settings, order.command, older)
    (directory / README).write_text(page, encoding="utf-8")
    deliver(directory, order.output)
    return vocabulary


def _untrained_scores(judge: Judge, student: Any, work: Path, progress: Progress) -> dict[str, Any]:
    """Of the student before it learnt anything, as a run that was interrupted has them."""
    path = work / "untrained.json"
    if not path.exists():
        progress.say("judging the untrained student")
        scores = judge.score(judge.store(student, work / "untrained"))
        path.write_text(json.dumps(asdict(scores)), encoding="utf-8")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def _logits(student: Any, compute_dtype: str, lesson: Lesson) -> Tensor:
    return student_logits(student, lesson.input_ids, lesson.rows, compute_dtype)


def _rounded_of(student: Any, quantization: str) -> Rounded:
    if quantization == "none":
        return nullcontext
    return partial(rounded_weights, linear_weights(student), quantization)
