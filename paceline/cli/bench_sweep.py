"""`paceline bench sweep`: emulated devices over a grid, against the ideal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from paceline.cli.bench_options import (
    GRID,
    JsonFile,
    MarkdownFile,
    Part,
    PlotsDir,
    Seed,
    bench_module,
    check_outputs,
    examples,
    give,
    grid_of,
    machine,
    option,
    run_report,
)
from paceline.cli.run import exits
from paceline.errors import ConfigError

EXAMPLES = examples(
    "paceline bench sweep --quick",
    "paceline bench sweep --full --results sweep.jsonl --markdown sweep.md --plots plots",
    "paceline bench sweep --alpha 0.6,0.9 --gamma 2,4,8 --rtt-ms 0,20 --concurrency 1,32",
    "paceline bench sweep --part recover --part context",
)


def sweep(  # noqa: PLR0917
    quick: Annotated[bool, option("A small grid, about two minutes.", GRID, "--quick")] = False,
    full: Annotated[bool, option("The whole grid; takes hours.", GRID, "--full")] = False,
    alpha: Annotated[str | None, option("Acceptance rates: 0, 1, or 0.03 to 0.999.", GRID)] = None,
    gamma: Annotated[str | None, option("Block lengths of fixed settings.", GRID)] = None,
    rtt_ms: Annotated[str | None, option("Round trips to the verifier.", GRID)] = None,
    concurrency: Annotated[str | None, option("Sessions at once.", GRID)] = None,
    verify_ms: Annotated[str | None, option("Times of a target pass.", GRID)] = None,
    draft_ms: Annotated[str | None, option("Times of a draft token.", GRID)] = None,
    knee_tokens: Annotated[
        str | None, option("Tokens of a pass beyond which the target computes longer.", GRID)
    ] = None,
    second_guess: Annotated[
        str | None,
        option("How often a second guess is right where the first is wrong, 0 to 1.", GRID),
    ] = None,
    part: Annotated[
        list[Part] | None,
        option("Only this; repeatable. Without it, the grid; with --full, all.", GRID),
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
        "second-guess": second_guess,
    }
    with exits():
        check_outputs(json_file, markdown, plots)
        grid, runner = bench_module("grid"), bench_module("sweep_report")
        given = {name: grid.parse_numbers(name, text) for name, text in lists.items() if text}
        if quick + full + bool(given) > 1:
            raise ConfigError("--quick, --full and a grid of its own: only one may be given")
        if given:
            points = grid.points_of([grid_of(grid, given)])
        else:
            points = grid.points_of(grid.FULL if full else grid.QUICK)
        of_grid = [f"--{name}" for name in given] + ["--gamma"] * bool(gamma)
        of_grid += ["--quick"] * quick + ["--full"] * full
        if part and Part.GRID not in part and of_grid:
            asked = of_grid[0]
            raise ConfigError(f"{asked}: is of the grid, and --part leaves that out")
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
