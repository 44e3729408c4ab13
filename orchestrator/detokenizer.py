"""Ids to text as they come: what was returned never changes, and no character comes by halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orchestrator.decode_steps import Step, UnknownStepError, build_steps


class Decodes(Protocol):
    """What the detokenizer asks of a tokenizer; see `paceline.runtime.tokenizer.Tokenizer`."""

    @property
    def decoder_steps(self) -> Sequence[Mapping[str, Any]]: ...

    def piece(self, token_id: int) -> str | None: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class Detokenizer:
    """Incremental decoding of one output.

    The pushes and the flush joined are `tokenizer.decode` of all ids, for any ids. A token's text
    is returned by the push that makes it final; where several tokens make one character the last
    of them brings it. Time and memory a token are constant, except where the decoder itself lets
    a later token change earlier text: byte fallback holds a run of bytes until it ends, and a
    decoder that is not known here holds everything until the flush.
    """

    def __init__(self, tokenizer: Decodes) -> None:
        self._tokenizer = tokenizer
        self._steps: list[Step] | None
        try:
            self._steps = build_steps(tokenizer.decoder_steps)
        except UnknownStepError:
            self._steps = None
        self._held_ids: list[int] = []

    def push(self, token_id: int) -> str:
        """Take the next id; return the text that is now final, maybe none."""
        if self._steps is None:
            self._held_ids.append(token_id)
            return ""
        piece = self._tokenizer.piece(token_id)
        if piece is None:
            return ""
        tokens: Sequence[str] = (piece,)
        for step in self._steps:
            tokens = [out for token in tokens for out in step.push(token)]
        return "".join(tokens)

    def flush(self) -> str:
        """The rest of the text, at the end of the output."""
        if self._steps is None:
            return self._tokenizer.decode(self._held_ids)
        tokens: list[str] = []
        for step in self._steps:
            tokens = [out for token in tokens for out in step.push(token)]
            tokens.extend(step.rest())
        return "".join(tokens)

    @property
    def pending(self) -> bool:
        """Whether text is held back, so that `flush` may return some."""
        if self._steps is None:
            return bool(self._held_ids)
        return any(text for step in self._steps for text in step.rest())
