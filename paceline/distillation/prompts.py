"""What the target is asked while data is made: a built-in varied set, or the user's own file."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.prompts import load_prompts
from paceline.distillation.templates import CHAT, PLAIN, fill
from paceline.errors import ConfigError
from paceline.runtime.tokenizer import Tokenizer

PLAIN_SHARE = 0.22
"""Of the built-in prompts, those that a model goes on with as they are: completions."""

PROMPTS_A_ROUND = 1920

_MAX_DRAWS = 50
"""Draws of a kind without a new prompt after which it counts as used up."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to go on with, or a conversation for the chat template; `kind` is for tables."""

    kind: str
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] = ()

    def token_ids(self, tokenizer: Tokenizer) -> list[int]:
        """What the model reads: a conversation without a template is its contents, line by line."""
        if self.text is not None:
            return tokenizer.encode(self.text)
        if tokenizer.has_chat_template:
            return tokenizer.encode_chat(self.messages)
        return tokenizer.encode("\n".join(message["content"] for message in self.messages) + "\n")


def question(kind: str, content: str) -> Prompt:
    """A conversation of one message by the user."""
    return Prompt(kind, messages=({"role": "user", "content": content},))


def built_in_prompts(number: int, seed: int) -> list[Prompt]:
    """So many prompts, of all kinds, mixed; a longer list begins with a shorter one.

    Among `PROMPTS_A_ROUND` no text is there twice.
    """
    rng = random.Random(f"prompts {seed}")
    prompts: list[Prompt] = []
    while len(prompts) < number:
        num_plain = round(PROMPTS_A_ROUND * PLAIN_SHARE)
        plain = _drawn(PLAIN, num_plain, rng)
        asked = _drawn(CHAT, PROMPTS_A_ROUND - num_plain, rng)
        one_round = [Prompt(kind, text=text) for kind, text in plain]
        one_round += [question(kind, text) for kind, text in asked]
        rng.shuffle(one_round)
        prompts += one_round
    return prompts[:number]


def prompts_of_file(path: Path) -> list[Prompt]:
    """Those of a file: JSONL as `paceline bench` reads it, else a text file, one prompt a line.

    Raises `ConfigError` naming the file and the line.
    """
    if path.suffix == ".jsonl":
        return [Prompt("file", each.prompt, each.messages) for each in load_prompts(path)]
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read prompts {path}: {reason}") from error
    prompts = [question("file", line) for line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"{path}: there is no prompt in it")
    return prompts


def _drawn(
    templates: Mapping[str, Sequence[str]], number: int, rng: random.Random
) -> list[tuple[str, str]]:
    """Kinds and texts, no text twice."""
    found: dict[str, str] = {}
    kinds = list(templates)
    while kinds and len(found) < number:
        for kind in tuple(kinds):
            text = _new_text(templates[kind], found, rng)
            if text is None:
                kinds.remove(kind)
            elif len(found) < number:
                found[text] = kind
    return [(kind, text) for text, kind in found.items()]


def _new_text(templates: Sequence[str], known: Mapping[str, str], rng: random.Random) -> str | None:
    for _ in range(_MAX_DRAWS):
        text = fill(rng.choice(templates), rng)
        if text not in known:
            return text
    return None
