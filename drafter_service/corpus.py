"""Texts beside a session's own to copy from: a file's, or those of sessions that have ended."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from drafter_service.ngram_table import Candidates, Context, NgramTable, contexts
from paceline.config import NgramConfig
from paceline.errors import ConfigError
from paceline.runtime.tokenizer import Tokenizer

_END = -1
"""Stands behind each text; no token's id."""


class Corpus:
    """Indexed texts of at most `max_tokens` in all; the first to come is the first forgotten.

    A token costs O(longest n-gram) when it comes and when it goes.
    """

    def __init__(self, sizes: range, max_tokens: int) -> None:
        self._sizes = sizes
        self._max_tokens = max_tokens
        self._table = NgramTable()
        self._tokens: list[int] = []
        self._offset = 0
        """Place of `_tokens[0]`; places count on for ever."""
        self._lengths: deque[int] = deque()
        self.num_tokens = 0
        """Tokens held."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Take in a text, its end if it is longer than the corpus may be."""
        text = list(token_ids[-self._max_tokens :])
        if not text:
            return
        self.num_tokens += len(text)
        while self.num_tokens > self._max_tokens:
            self._forget_first()
        base = self._offset + len(self._tokens)
        for position, token_id in enumerate(text):
            for context in contexts(text, position, self._sizes):
                self._table.note(context, token_id, base + position)
        self._tokens += [*text, _END]
        self._lengths.append(len(text))

    def _forget_first(self) -> None:
        length = self._lengths.popleft()
        self.num_tokens -= length
        for position in range(length):
            for context in contexts(self._tokens, position, self._sizes):
                self._table.forget(context, self._tokens[position], self._offset + position)
        del self._tokens[: length + 1]
        self._offset += length + 1

    def candidates(self, context: Context) -> Candidates:
        """What has followed a context."""
        return self._table.get(context)

    def token_at(self, place: int) -> int | None:
        """The token at a place; None behind a text and in one that is forgotten."""
        index = place - self._offset
        token_id = self._tokens[index] if 0 <= index < len(self._tokens) else _END
        return None if token_id == _END else token_id


def load_corpus(config: NgramConfig, tokenizer: Tokenizer | None) -> Corpus | None:
    """The corpus of `ngram.corpus`: `*.jsonl` holds a list of token ids a line, any other file is
    UTF-8 text for the tokenizer. None if there is none.

    Raises `ConfigError` naming the setting if it cannot be read or is too long.
    """
    if config.corpus is None:
        return None
    path = config.corpus
    try:
        content = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"drafter.ngram.corpus: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"drafter.ngram.corpus: {path}: {error}") from error
    if not config.has_text:
        lines = enumerate(content.splitlines(), start=1)
        texts = [_read_ids(path, number, line) for number, line in lines if line.strip()]
    else:
        assert tokenizer is not None, "the service sees to it"
        texts = [tokenizer.encode_plain(content)]
    total = sum(map(len, texts))
    if total > config.max_corpus_tokens:
        raise ConfigError(
            f"drafter.ngram.corpus: {path} has {total} tokens,"
            f" drafter.ngram.max_corpus_tokens allows {config.max_corpus_tokens}"
        )
    corpus = Corpus(range(config.min_match, config.max_match + 1), config.max_corpus_tokens)
    for text in texts:
        corpus.add(text)
    return corpus


def _read_ids(path: str, number: int, line: str) -> list[int]:
    try:
        ids = json.loads(line)
    except json.JSONDecodeError:
        ids = None
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise ConfigError(f"drafter.ngram.corpus: {path}: line {number} is no list of token ids")
    return ids
