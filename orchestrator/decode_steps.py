"""The steps by which pieces become text, each as a transducer that says what is already final.

They mirror the decoders of Hugging Face's tokenizers: a step maps a sequence of tokens to a
sequence of tokens, and the text is what the last one leaves, joined. Here each step takes the
sequence piece by piece and passes on whatever no later piece can change.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from paceline.runtime.byte_alphabet import CHAR_TO_BYTE

REPLACEMENT = "\ufffd"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnknownStepError(Exception):
    """A decoder step that has no incremental form here."""


class Step(Protocol):
    """One decoder step over a stream of tokens."""

    def push(self, token: str) -> Sequence[str]:
        """Take the next token; return the tokens, or parts of a fused token, that became final."""
        ...

    def rest(self) -> Sequence[str]:
        """What follows if the sequence ends now. Changes nothing."""
        ...


class Each:
    """A step that changes each token by itself: `change(token, index of the token)`."""

    def __init__(self, change: Callable[[str, int], str]) -> None:
        self._change = change
        self._index = 0

    def push(self, token: str) -> Sequence[str]:
        changed = self._change(token, self._index)
        self._index += 1
        return (changed,)

    def rest(self) -> Sequence[str]:
        return ()


class ByteLevel:
    """Stand-in characters are bytes, and the bytes of all tokens together are UTF-8.

    Invalid bytes become U+FFFD by maximal subparts, in Rust as in Python; at most three bytes of
    an incomplete character are held back.
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: str) -> Sequence[str]:
        try:
            data = bytes([CHAR_TO_BYTE[char] for char in token])
        except KeyError:  # an added token in plain text
            data = token.encode()
        return (self._utf8.decode(data),)

    def rest(self) -> Sequence[str]:
        held, _ = self._utf8.getstate()
        return (REPLACEMENT,) if held else ()


class ByteFallback:
    """A run of `<0xNN>` tokens is a text if it is valid UTF-8 as a whole, else a U+FFFD a byte.

    A later byte can thus spoil the whole run, so a run stays held back until it ends or is
    spoilt; once spoilt, its bytes pass at once.
    """

    def __init__(self) -> None:
        self._start_run()

    def _start_run(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")
        self._text: list[str] = []
        self._num_held = 0
        self._spoilt = False

    def push(self, token: str) -> Sequence[str]:
        match = _BYTE_TOKEN.fullmatch(token)
        if match is None:
            run = self.rest()
            if self._num_held or self._spoilt:
                self._start_run()
            return (*run, token)
        if self._spoilt:
            return (REPLACEMENT,)
        self._num_held += 1
        try:
            self._text.append(self._utf8.decode(bytes.fromhex(match[1])))
        except UnicodeDecodeError:
            spoilt = self._num_held * (REPLACEMENT,)
            self._start_run()
            self._spoilt = True
            return spoilt
        return ()

    def rest(self) -> Sequence[str]:
        if not self._num_held:
            return ()
        incomplete, _ = self._utf8.getstate()
        return self._num_held * (REPLACEMENT,) if incomplete else ("".join(self._text),)


class Suffix:
    """OpenAI GPT's marker of a word's end: a space between words, nothing after the last token."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._rest: str | None = None

    def push(self, token: str) -> Sequence[str]:
        before = () if self._rest is None else (self._rest.replace(self._suffix, " "),)
        # What precedes the first marker is the same whether or not this token is the last.
        start = token.find(self._suffix)
        start = len(token) if start < 0 else start
        self._rest = token[start:]
        return (*before, token[:start])

    def rest(self) -> Sequence[str]:
        return () if self._rest is None else (self._rest.replace(self._suffix, ""),)


class FusedStrip:
    """Cuts up to `start` and `stop` characters `content` off the ends of the whole text."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content
        self._start = start
        self._stop = stop
        self._tail = ""

    def push(self, token: str) -> Sequence[str]:
        while self._start and token:
            if token[0] != self._content:
                self._start = 0
            else:
                token, self._start = token[1:], self._start - 1
        token = self._tail + token
        body = token.rstrip(self._content)
        kept = max(len(body), len(token) - self._stop)
        self._tail = token[kept:]
        return (token[:kept],)

    def rest(self) -> Sequence[str]:
        return ()


def build_steps(decoders: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Fresh steps for one text. Raises `UnknownStepError` for a step without incremental form."""
    if not decoders:
        return [Each(lambda token, index: token if index == 0 else f" {token}")]
    steps: list[Step] = []
    fused = False
    for decoder in decoders:
        kind = decoder["type"]
        if kind == "Fuse":
            fused = True
        elif fused:
            steps.append(_fused_step(decoder))
        elif kind == "ByteLevel":
            steps.append(ByteLevel())
            fused = True
        else:
            steps.append(_token_step(decoder))
    return steps


def _token_step(decoder: Mapping[str, Any]) -> Step:
    """A step that sees the tokens apart."""
    match decoder:
        case {"type": "ByteFallback"}:
            return ByteFallback()
        case {"type": "BPEDecoder", "suffix": suffix}:
            return Suffix(suffix)
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
            return Each(lambda token, _: token.replace(pattern, content))
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return Each(lambda token, _: _stripped(token, content, start, stop))
        case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
            first = " " if scheme == "never" else ""
            return Each(lambda token, index: token.replace(mark, " " if index else first))
        case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}:
            return Each(lambda token, index: _word_piece(token, index, prefix, cleanup=cleanup))
    raise UnknownStepError(decoder["type"])


def _fused_step(decoder: Mapping[str, Any]) -> Step:
    """A step that sees all tokens as one; it must not care where their borders were."""
    match decoder:
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content} if (
            len(pattern) == 1
        ):
            return Each(lambda token, _: token.replace(pattern, content))
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return FusedStrip(content, start, stop)
    raise UnknownStepError(decoder["type"])


def _stripped(token: str, content: str, start: int, stop: int) -> str:
    low = 0
    while low < min(start, len(token)) and token[low] == content:
        low += 1
    high = len(token)
    while high > max(low, len(token) - stop) and token[high - 1] == content:
        high -= 1
    return token[low:high]


_CLEANUPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def _word_piece(token: str, index: int, prefix: str, *, cleanup: bool) -> str:
    if index:
        token = token[len(prefix) :] if token.startswith(prefix) else f" {token}"
    if cleanup:
        for dirty, clean in _CLEANUPS:
            token = token.replace(dirty, clean)
    return token
