"""Tokens with their text, in order, as soon as nothing can change or stop what they say."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from orchestrator.detokenizer import Detokenizer
from orchestrator.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    """A token that may be delivered, and what it adds to the text."""

    token_id: int
    text: str


@dataclass(slots=True)
class _Held:
    token_id: int
    start: int
    end: int
    """Its text is these characters of the whole text."""


class TextStream:
    """Turns the ids of one output into pieces for the client.

    Every token is delivered once, in order. A token is held while a stop string may still swallow
    it (its text may begin one, or is the unfinished part of a character), and the last one while
    the end of the output may still add text to it. Stop strings are looked for in what the tokens
    after the first `min_tokens` say. When a stop string matches, tokens that begin
    inside the match are dropped, one that begins before it keeps its text up to there; with
    `include` the match itself is delivered. The joined texts of the pieces are the text.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: StopStrings | None = None, *, min_tokens: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._min_tokens = min_tokens
        self._num_pushed = 0
        self._stops = stops
        self._held: deque[_Held] = deque()
        self._num_unfinished = 0
        """How many of the last tokens are parts of a character that is not complete."""
        self._length = 0
        """Characters of all tokens so far."""
        self._released = 0
        """Characters that the stop strings let through."""
        self._ready = ""
        """Those of them that belong to tokens still held."""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text; what is pushed afterwards is ignored."""
        return self._stopped

    @property
    def num_held(self) -> int:
        """Tokens pushed and neither delivered nor dropped."""
        return len(self._held)

    def push(self, token_id: int) -> list[Piece]:
        """Take the next committed token; return those that may be delivered now."""
        if self._stopped:
            return []
        text = self._detokenizer.push(token_id)
        self._held.append(_Held(token_id, self._length, self._length))
        is_stopped = self._append(text)
        self._num_pushed += 1
        if is_stopped:
            return self._cut()
        if not self._detokenizer.pending:
            self._num_unfinished = 0
        else:
            self._num_unfinished = 1 if text else self._num_unfinished + 1
        # Without stop strings only the last token can still change: by the flush.
        num_kept = self._num_unfinished if self._stops else min(self._num_unfinished, 1)
        pieces = []
        while len(self._held) > num_kept and self._held[0].end <= self._released:
            pieces.append(self._deliver())
        return pieces

    def finish(self) -> list[Piece]:
        """The output has ended: everything held, up to a stop string if one is complete."""
        if self._stopped or not self._held:
            return []
        self._append(self._detokenizer.flush())
        if self._stops is not None:
            released, self._stopped = self._stops.flush()
            self._release(released)
        return self._cut()

    def _append(self, text: str) -> bool:
        """Give `text` to the last token; return whether a stop string ends the text."""
        self._length += len(text)
        self._held[-1].end = self._length
        # the text may be that of earlier tokens, which were parts of a character until now
        first = self._num_pushed - self._num_unfinished
        if self._stops is not None and first >= self._min_tokens:
            text, self._stopped = self._stops.push(text)
        self._release(text)
        return self._stopped

    def _release(self, text: str) -> None:
        self._ready += text
        self._released += len(text)

    def _deliver(self) -> Piece:
        """Deliver the first held token with the released part of its text."""
        token = self._held.popleft()
        count = min(token.end, self._released) - token.start
        text, self._ready = self._ready[:count], self._ready[count:]
        return Piece(token.token_id, text)

    def _cut(self) -> list[Piece]:
        """Deliver what may be, at the end of the text; drop tokens that begin inside a stop."""
        pieces = []
        while self._held and not (self._stopped and self._held[0].start >= self._released):
            pieces.append(self._deliver())
        self._held.clear()
        return pieces
