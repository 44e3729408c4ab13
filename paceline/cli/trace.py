"""`paceline trace`: run one request, and draw where its time went."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from paceline.cli import connection
from paceline.cli.paint import summary, token_text
from paceline.cli.run import exits, run
from paceline.cli.trace_page import page, svg
from paceline.cli.trace_text import MIN_WIDTH, drawing
from paceline.client import Client
from paceline.client_values import GenerateFields, GenerateResult
from paceline.errors import PacelineError
from paceline.sampling.params import Acceptance
from paceline.timeline import Timeline

_GENERATION, _DRAWING = "Generation", "Drawing"
_PIPED_WIDTH = 100


def _option(help_text: str, panel: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **settings)


def _file(help_text: str, name: str) -> Any:
    return _option(help_text, _DRAWING, name, metavar="FILE", dir_okay=False, writable=True)


def trace(  # noqa: PLR0917  (typer's parameters are named options)
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from standard input.")
    ],
    chat: Annotated[
        bool, typer.Option("--chat", help="Send it as a user's message through the chat template.")
    ] = False,
    max_tokens: Annotated[int | None, _option("Generate at most so many.", _GENERATION)] = None,
    temperature: Annotated[float | None, _option("0 is greedy.", _GENERATION)] = None,
    seed: Annotated[int | None, _option("Same request and seed, same text.", _GENERATION)] = None,
    ignore_eos: Annotated[
        bool, _option("Go on past the model's own end.", _GENERATION, "--ignore-eos")
    ] = False,
    speculation: Annotated[bool, _option("Use the drafter, if any.", _GENERATION)] = True,
    acceptance: Annotated[Acceptance | None, _option("How drafts are judged.", _GENERATION)] = None,
    window: Annotated[int | None, _option("Draft tokens sent and not judged.", _GENERATION)] = None,
    num_speculative_tokens: Annotated[
        int | None, _option("Draft block length.", _GENERATION)
    ] = None,
    from_ms: Annotated[
        float | None, _option("Draw from here.", _DRAWING, "--from", metavar="MS", min=0)
    ] = None,
    to_ms: Annotated[
        float | None, _option("Draw up to here.", _DRAWING, "--to", metavar="MS", min=0)
    ] = None,
    width: Annotated[
        int | None,
        _option(
            f"Columns; by default the terminal's, {_PIPED_WIDTH} in a pipe.",
            _DRAWING,
            metavar="N",
            min=MIN_WIDTH,
            max=1000,
        ),
    ] = None,
    html_file: Annotated[
        Path | None, _file("Write the drawing, the answer and the sums as a page.", "--html")
    ] = None,
    svg_file: Annotated[Path | None, _file("Write the drawing as a picture.", "--svg")] = None,
    json_file: Annotated[Path | None, _file("Write the spans as a JSON list.", "--json")] = None,
    address: connection.Address = connection.ADDRESS,
    timeout: connection.Timeout = None,
    token_file: connection.TokenFile = None,
    tls_ca_file: connection.TlsCaFile = None,
    tls_cert_file: connection.TlsCertFile = None,
    tls_key_file: connection.TlsKeyFile = None,
    tls_server_name: connection.TlsServerName = None,
) -> None:
    """Run one request and draw where its time went, in the terminal and as a page or picture.

    Lanes: prefill, draft, waste, wire, queue, verify, and the tokens by their origin.

    A column is an equal part of the time, a block's height how much of it was busy.

    The drawing goes to standard output; the text, as it comes, to standard error.

    Neither a collector nor any setting of the services is needed.

    Examples:

    paceline trace "Once upon a time" --max-tokens 64

    paceline trace "Once" --seed 1 --from 100 --to 200 --width 160

    paceline trace --chat "Hello" --html hello.html --json spans.json 2>/dev/null
    """
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise typer.BadParameter(f"--from {from_ms:g}: must be below --to {to_ms:g}")
    for name, file in (("--html", html_file), ("--svg", svg_file), ("--json", json_file)):
        if file is not None and not file.parent.is_dir():
            raise typer.BadParameter(f"{name} {file}: there is no folder {file.parent}")
    client = connection.make_client(
        address,
        timeout=timeout,
        token_file=token_file,
        tls_ca_file=tls_ca_file,
        tls_cert_file=tls_cert_file,
        tls_key_file=tls_key_file,
        tls_server_name=tls_server_name,
    )
    text = connection.standard_input() if prompt == "-" else prompt
    fields: GenerateFields = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "speculation": speculation,
        "acceptance": acceptance,
        "window": window,
        "num_speculative_tokens": num_speculative_tokens,
        "return_spans": True,
    }
    if chat:
        fields["messages"] = [{"role": "user", "content": text}]
    else:
        fields["prompt"] = text
    result = run(_generate(client, fields))
    with exits():
        # Before anything that may fail for what was asked of the drawing: a request is not repeated
        # for its spans.
        if json_file is not None:
            spans = [asdict(span) for span in result.spans]
            _write(json_file, json.dumps(spans, indent=1, ensure_ascii=False) + "\n")
        timeline = _timeline(result, from_ms, to_ms)
        title = summary(result.usage, result.stats, result.finish_reason)
        if svg_file is not None:
            _write(svg_file, svg(timeline, title=title))
        if html_file is not None:
            _write(html_file, page(timeline, title=title, tokens=result.tokens))
    if width is None and not sys.stdout.isatty():
        width = _PIPED_WIDTH
    console = Console(highlight=False, width=width, soft_wrap=False)
    console.print(Text(title, style="bold", overflow="fold"))
    console.print(drawing(timeline, console.width))


async def _generate(client: Client, fields: GenerateFields) -> GenerateResult:
    """The whole answer; its text is written to standard error as it comes."""
    terminal = sys.stderr.isatty()
    color = terminal and not os.environ.get("NO_COLOR")
    chunks = []
    async with client:
        try:
            async for chunk in client.generate(**fields):
                chunks.append(chunk)
                for token in chunk.tokens:
                    sys.stderr.write(token_text(token, color=color, terminal=terminal))
                sys.stderr.flush()
        finally:
            # What came stays on its own line, whatever ended it.
            if any(chunk.tokens for chunk in chunks):
                sys.stderr.write("\n")
                sys.stderr.flush()
    return GenerateResult.of(chunks)


def _timeline(result: GenerateResult, from_ms: float | None, to_ms: float | None) -> Timeline:
    """What is to be drawn. Raises `PacelineError` if there is nothing."""
    if not result.spans:
        raise PacelineError("the orchestrator returned no spans; its version may not know how")
    timeline = Timeline.of(result.spans, [token.text for token in result.tokens])
    if from_ms is None and to_ms is None:
        return timeline
    start_ms = timeline.start_ms if from_ms is None else from_ms
    try:
        return timeline.between(start_ms, timeline.end_ms if to_ms is None else to_ms)
    except ValueError as error:
        raise PacelineError(f"--from {start_ms:g}: nothing to draw, {error}") from None


def _write(path: Path, content: str) -> None:
    """Raises `PacelineError` naming the file."""
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise PacelineError(f"cannot write {path}: {error.strerror}") from error
