"""What benchmarks ask for: prompts that ship with the package, or those of a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.client_values import GenerateFields
from paceline.errors import ConfigError

_DATA = Path(__file__).parent / "data"
GENERAL_FILE = _DATA / "general.jsonl"
COPYING_FILE = _DATA / "copying.jsonl"

FIVE_PROMPTS = {
    "future of AI": "The future of artificial intelligence is",
    "machine learning": "Machine learning is transforming the world by",
    "language processing": "Natural language processing enables computers to understand",
    "generative models": "Generative models like GPT-3 can create",
    "AI ethics": "AI ethics and fairness are important considerations for",
}
"""The demo's completions, by name."""

_KEYS = {"prompt", "messages", "max_tokens", "name"}


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One request: a name for tables, and either a text to go on with or a conversation."""

    name: str
    prompt: str | None = None
    messages: tuple[Mapping[str, str], ...] = ()
    max_tokens: int | None = None
    """Over the benchmark's own."""

    def fields(self, max_tokens: int) -> GenerateFields:
        """Of a request for so many tokens, unless the prompt says how many."""
        limit = max_tokens if self.max_tokens is None else self.max_tokens
        if self.prompt is not None:
            return {"prompt": self.prompt, "max_tokens": limit}
        return {"messages": self.messages, "max_tokens": limit}

    def unique(self, mark: int) -> BenchPrompt:
        """The same with a number before it, so that no cache knows how it begins."""
        if self.prompt is not None:
            return replace(self, prompt=f"#{mark} {self.prompt}")
        first, *others = self.messages
        marked = {**first, "content": f"#{mark} {first['content']}"}
        return replace(self, messages=(marked, *others))


def five_prompts() -> list[BenchPrompt]:
    """The demo's five completions."""
    return [BenchPrompt(name, prompt=text) for name, text in FIVE_PROMPTS.items()]


def in_repeat(prompts: Sequence[BenchPrompt], repeat: int) -> list[BenchPrompt]:
    """The prompts of one repeat: as they are in the first, with other numbers in each later."""
    if not repeat:
        return list(prompts)
    return [
        prompt.unique(1000 * repeat + position) for position, prompt in enumerate(prompts, start=1)
    ]


def load_prompts(path: Path) -> list[BenchPrompt]:
    """Read a JSONL file: `{"prompt": …}` or `{"messages": […]}` a line, maybe with `max_tokens`
    and `name`; empty lines are skipped.

    Raises `ConfigError` naming the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read prompts {path}: {reason}") from error
    prompts = [
        _prompt_of(line, number, f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise ConfigError(f"{path}: there is no prompt in it")
    return prompts


def _prompt_of(line: str, number: int, where: str) -> BenchPrompt:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected an object, found {type(value).__name__}")
    if unknown := sorted(set(value) - _KEYS):
        raise ConfigError(f"{where}: {unknown[0]}: unknown key")
    if ("prompt" in value) == ("messages" in value):
        raise ConfigError(f"{where}: expected exactly one of prompt and messages")
    limit = value.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigError(f"{where}: max_tokens: expected a number from 1 on, found {limit!r}")
    name = str(value.get("name", f"line {number}"))
    if "prompt" in value:
        return BenchPrompt(name, prompt=_text(value["prompt"], "prompt", where), max_tokens=limit)
    return BenchPrompt(name, messages=_messages(value["messages"], where), max_tokens=limit)


def _messages(value: Any, where: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: messages: expected a list of messages")
    for message in value:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise ConfigError(f"{where}: messages: each has role and content, and nothing else")
        for key, text in message.items():
            _text(text, f"messages.{key}", where)
    return tuple(value)


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: {key}: expected a text")
    return value
