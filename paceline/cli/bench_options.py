"""The options and the reports that the commands of `paceline bench` share."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import Coroutine
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from paceline.config import load_config
from paceline.errors import ConfigError, StartupError

if TYPE_CHECKING:
    from paceline.bench.report import Report

REPORT, MODEL, GRID = "Report", "Models", "Grid"


class Quantization(str, Enum):
    """How weights are stored."""

    NONE = "none"
    INT8 = "int8"
    NF4 = "nf4"


class Dtype(str, Enum):
    """What a model computes in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class DrafterKind(str, Enum):
    """Who drafts."""

    NGRAM = "ngram"
    MODEL = "model"
    CASCADE = "cascade"


class Part(str, Enum):
    """Parts of a sweep."""

    GRID = "grid"
    RECOVER = "recover"
    CONTEXT = "context"
    WIRE = "wire"


def option(help_text: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


JsonFile = Annotated[
    Path | None, option("Write the report as JSON.", REPORT, "--json", metavar="FILE")
]
MarkdownFile = Annotated[
    Path | None, option("Write it as Markdown.", REPORT, "--markdown", metavar="FILE")
]
PlotsDir = Annotated[
    Path | None, option("Draw it, as PNG and SVG.", REPORT, "--plots", metavar="DIR")
]
PromptsFile = Annotated[
    Path | None,
    option(
        'JSONL: {"prompt": …} or {"messages": […]} a line, maybe "max_tokens".',
        None,
        "--prompts",
        metavar="FILE",
    ),
]
RepeatPrompts = Annotated[
    bool, option("Let repeats have the very same prompts.", None, "--repeat-prompts")
]
Seed = Annotated[int, option("Of prompts and arrivals.", min=0)]
Repeats = Annotated[int, option("Repeats; figures are their medians.", min=1, max=1000)]
MaxTokens = Annotated[int, option("Tokens of a generation.", min=2, max=1_000_000)]
Model = Annotated[str, option("The target: a directory, hub id or package:NAME.", MODEL)]
DraftModel = Annotated[
    str | None, option("The draft model; without it, a copy of the target.", MODEL)
]
DtypeOption = Annotated[Dtype, option("Of both models.", MODEL)]
Device = Annotated[str, option("auto, cpu, cuda or cuda:N, for both models.", MODEL)]
Threads = Annotated[int | None, option("CPU threads of each process.", MODEL, min=1)]


def examples(*lines: str) -> str:
    """An epilogue; empty lines keep the examples apart."""
    return "\n\n".join(("Examples:", *lines))


def bench_module(name: str) -> Any:
    """A module of the benchmarks. They need what servers need, which a client may lack."""
    try:
        return importlib.import_module(f"paceline.bench.{name}")
    except ModuleNotFoundError as error:
        raise StartupError(
            f"`paceline bench` needs the packages of the serve extra ({error.name} is missing): "
            "pip install 'paceline[serve]'"
        ) from error


def machine() -> Any:
    return bench_module("machine").describe_machine()


def grid_of(module: Any, given: dict[str, list[float]]) -> Any:
    """A grid of one's own; what is not given has its usual value."""
    return module.Grid(
        tuple(given.get("alpha", (0.6, 0.8, 0.9))),
        tuple(given.get("rtt-ms", (0.0,))),
        tuple(given.get("concurrency", (1,))),
        tuple(given.get("verify-ms", (30.0,))),
        tuple(given.get("draft-ms", (3.0,))),
        tuple(given.get("knee-tokens", (0,))),
        tuple(given.get("second-guess", (module.SECOND_GUESS,))),
    )


def positive(option: str, text: str | None, kind: type) -> tuple[Any, ...]:
    """The numbers of a comma-separated list, all above 0."""
    if not text:
        return ()
    try:
        numbers = tuple(kind(entry) for entry in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--{option} {text}: {error}") from error
    if any(not 0 < number < float("inf") for number in numbers):
        raise ConfigError(f"--{option} {text}: every number must be above 0")
    return numbers


def document_of(config: Path | None) -> dict[str, Any]:
    """The services of a configuration file. Raises `ConfigError`."""
    document = load_config(config).model_dump(mode="json")
    return {name: document[name] for name in document if name != "cluster"}


def run_report(work: Coroutine[Any, Any, Report]) -> Report:
    """Run a benchmark; Ctrl-C and SIGTERM cancel it first, so that it stops what it started."""

    async def until_terminated() -> Report:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(until_terminated())
    except asyncio.CancelledError as cancelled:
        raise typer.Exit(128 + signal.SIGTERM) from cancelled


def check_outputs(json_file: Path | None, markdown: Path | None, plots: Path | None) -> None:
    """Raise `ConfigError` for a file that cannot be written, before hours of work rely on it."""
    for name, path in (("--json", json_file), ("--markdown", markdown), ("--plots", plots)):
        if path is None:
            continue
        folder = path if name == "--plots" else path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{name} {path}: cannot make {folder}: {error.strerror}") from error
        if (name != "--plots" and path.is_dir()) or not os.access(folder, os.W_OK):
            raise ConfigError(f"{name} {path}: cannot be written")


def give(report: Report, json_file: Path | None, markdown: Path | None, plots: Path | None) -> None:
    """Print the report, and write the files that were asked for."""
    module = bench_module("report")
    text = report.as_markdown()
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        sys.stdout.write(text)
    if json_file is not None:
        value = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
        module.write_text(json_file, value + "\n")
    if markdown is not None:
        module.write_text(markdown, text)
    if plots is not None:
        bench_module("plots").write_charts(report.charts, plots)
