"""`paceline generate`: stream one generation to the terminal, or print it as one JSON object."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import connection
from paceline.cli.paint import legend, summary, token_text
from paceline.cli.run import run
from paceline.client import Client
from paceline.client_values import GenerateFields, GenerateResult
from paceline.sampling.params import Acceptance, DraftProbsFormat

_SAMPLING, _ENDING, _SPECULATION, _OUTPUT = "Sampling", "Ending", "Speculation", "Output"


def _option(help_text: str, panel: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, metavar=metavar)


def generate(  # noqa: PLR0917  (typer's parameters are named options)
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from standard input.")
    ],
    chat: Annotated[
        bool, typer.Option("--chat", help="Send it as a user's message through the chat template.")
    ] = False,
    temperature: Annotated[float | None, _option("0 is greedy.", _SAMPLING)] = None,
    top_k: Annotated[
        int | None, _option("Keep the K likeliest ids; 0 keeps all.", _SAMPLING)
    ] = None,
    top_p: Annotated[float | None, _option("Nucleus, in (0, 1].", _SAMPLING)] = None,
    min_p: Annotated[
        float | None, _option("Least probability relative to the likeliest id's.", _SAMPLING)
    ] = None,
    typical_p: Annotated[float | None, _option("Typical mass, in (0, 1].", _SAMPLING)] = None,
    repetition_penalty: Annotated[float | None, _option("1 is none.", _SAMPLING)] = None,
    presence_penalty: Annotated[float | None, _option("In [-2, 2].", _SAMPLING)] = None,
    frequency_penalty: Annotated[float | None, _option("In [-2, 2].", _SAMPLING)] = None,
    logit_bias: Annotated[
        list[str] | None,
        _option("Added to the logit of an id; repeatable.", _SAMPLING, metavar="ID=BIAS"),
    ] = None,
    allowed_token_id: Annotated[
        list[int] | None, _option("Allow these ids only; repeatable.", _SAMPLING, metavar="ID")
    ] = None,
    bad_word: Annotated[
        list[str] | None,
        _option("Ban the usual spellings of this string; repeatable.", _SAMPLING, metavar="TEXT"),
    ] = None,
    guided_json: Annotated[
        str | None,
        _option("The text is JSON of this schema.", _SAMPLING, metavar="FILE_OR_TEXT"),
    ] = None,
    guided_regex: Annotated[
        str | None, _option("The text matches this as a whole.", _SAMPLING, metavar="PATTERN")
    ] = None,
    guided_choice: Annotated[
        list[str] | None,
        _option("The text is this, or another such choice; repeatable.", _SAMPLING, metavar="TEXT"),
    ] = None,
    seed: Annotated[int | None, _option("Same request and seed, same text.", _SAMPLING)] = None,
    max_tokens: Annotated[int | None, _option("Generate at most so many.", _ENDING)] = None,
    min_tokens: Annotated[int | None, _option("No end before so many.", _ENDING)] = None,
    stop: Annotated[
        list[str] | None, _option("End before this string; repeatable.", _ENDING, metavar="TEXT")
    ] = None,
    include_stop_in_output: Annotated[
        bool, _option("Print the stop string too.", _ENDING, "--include-stop-in-output")
    ] = False,
    stop_token_id: Annotated[
        list[int] | None, _option("End at this id; repeatable.", _ENDING, metavar="ID")
    ] = None,
    ignore_eos: Annotated[
        bool, _option("Go on past the model's own end.", _ENDING, "--ignore-eos")
    ] = False,
    speculation: Annotated[bool, _option("Use the drafter, if any.", _SPECULATION)] = True,
    acceptance: Annotated[
        Acceptance | None, _option("How drafts are judged.", _SPECULATION)
    ] = None,
    window: Annotated[
        int | None, _option("Draft tokens sent and not judged.", _SPECULATION)
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, _option("Draft block length.", _SPECULATION)
    ] = None,
    num_outcome_tokens: Annotated[
        int | None, _option("Drafts ahead behind each other outcome.", _SPECULATION)
    ] = None,
    draft_probs: Annotated[
        DraftProbsFormat | None, _option("What travels of draft distributions.", _SPECULATION)
    ] = None,
    prompt_cache_key: Annotated[
        str | None,
        _option("Same key, same workers while load permits.", _SPECULATION, metavar="TEXT"),
    ] = None,
    cache_salt: Annotated[
        str | None,
        _option("Share cached prefixes with this salt only.", _SPECULATION, metavar="TEXT"),
    ] = None,
    n: Annotated[int | None, _option("Answers; needs --json above 1.", _OUTPUT, "--n")] = None,
    logprobs: Annotated[
        int | None,
        _option("With --json: log-probabilities, and K alternatives.", _OUTPUT, metavar="K"),
    ] = None,
    prompt_logprobs: Annotated[
        int | None, _option("With --json: the same for the prompt.", _OUTPUT, metavar="K")
    ] = None,
    as_json: Annotated[
        bool, _option("Print one JSON object at the end.", _OUTPUT, "--json")
    ] = False,
    color: Annotated[
        bool | None,
        _option("Paint tokens by origin; by default on a terminal.", _OUTPUT, "--color/--no-color"),
    ] = None,
    address: connection.Address = connection.ADDRESS,
    timeout: connection.Timeout = None,
    token_file: connection.TokenFile = None,
    tls_ca_file: connection.TlsCaFile = None,
    tls_cert_file: connection.TlsCertFile = None,
    tls_key_file: connection.TlsKeyFile = None,
    tls_server_name: connection.TlsServerName = None,
) -> None:
    """Generate a text, streamed as it comes; a summary goes to standard error.

    What is not given is left to the server's defaults.
    """
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
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": [_bias(entry) for entry in logit_bias or ()],
        "allowed_token_ids": allowed_token_id,
        "bad_words": bad_word,
        "guided_json": None if guided_json is None else _schema_text(guided_json),
        "guided_regex": guided_regex,
        "guided_choice": guided_choice or None,
        "seed": seed,
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "stop": stop,
        "include_stop_in_output": include_stop_in_output,
        "stop_token_ids": stop_token_id,
        "ignore_eos": ignore_eos,
        "speculation": speculation,
        "acceptance": acceptance,
        "window": window,
        "num_speculative_tokens": num_speculative_tokens,
        "num_outcome_tokens": num_outcome_tokens,
        "draft_probs": draft_probs,
        "prompt_cache_key": prompt_cache_key,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
        "n": n,
        "cache_salt": cache_salt,
    }
    if chat:
        fields["messages"] = [{"role": "user", "content": text}]
    else:
        fields["prompt"] = text
    if as_json:
        results = run(_collect(client, fields))
        objects = [json_object(result) for result in results]
        value = objects[0] if len(objects) == 1 else {"choices": objects}
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    elif n is not None and n > 1:
        raise typer.BadParameter(f"--n {n}: several answers are printed with --json only")
    else:
        terminal = _is_terminal()
        by_default = terminal and not os.environ.get("NO_COLOR")
        run(_print(client, fields, color=by_default if color is None else color, terminal=terminal))


def json_object(result: GenerateResult) -> dict[str, Any]:
    """What `--json` prints: lists have one entry a token; log-probabilities only when asked."""
    tokens = result.tokens
    value: dict[str, Any] = {
        "text": result.text,
        "token_ids": result.token_ids,
        "origins": result.origins,
    }
    if any(token.logprob is not None for token in tokens):
        value["logprobs"] = result.logprobs
        value["top_logprobs"] = [[asdict(top) for top in token.top_logprobs] for token in tokens]
    if result.prompt_tokens:
        value["prompt_logprobs"] = [None, *(token.logprob for token in result.prompt_tokens)]
    stats = {**asdict(result.stats), "acceptance_rate": result.stats.acceptance_rate}
    value |= {
        "finish_reason": result.finish_reason,
        "usage": asdict(result.usage),
        "stats": stats,
    }
    return value


def _is_terminal() -> bool:
    return sys.stdout.isatty()


async def _collect(client: Client, fields: GenerateFields) -> list[GenerateResult]:
    async with client:
        return GenerateResult.all_of([chunk async for chunk in client.generate(**fields)])


async def _print(client: Client, fields: GenerateFields, *, color: bool, terminal: bool) -> None:
    wrote = False
    async with client:
        try:
            async for chunk in client.generate(**fields):
                for token in chunk.tokens:
                    sys.stdout.write(token_text(token, color=color, terminal=terminal))
                    wrote = True
                sys.stdout.flush()
        finally:
            # What came stays on its own line, whatever ended it.
            if wrote:
                sys.stdout.write("\n")
                sys.stdout.flush()
    if chunk.finish_reason and chunk.usage and chunk.stats:
        if color:
            sys.stderr.write(legend() + "\n")
        sys.stderr.write(summary(chunk.usage, chunk.stats, chunk.finish_reason) + "\n")


def _schema_text(file_or_text: str) -> str:
    if file_or_text.lstrip().startswith("{"):
        return file_or_text
    try:
        return Path(file_or_text).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"--guided-json {file_or_text}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"--guided-json {file_or_text}: {error}") from None


def _bias(entry: str) -> tuple[int, float]:
    token_id, _, bias = entry.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise typer.BadParameter(f"--logit-bias {entry}: expected ID=BIAS") from None
