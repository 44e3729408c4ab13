"""One session's text as an n-gram drafter reads it: at every position, the token to expect next.

The guess is a function of the tokens before it alone, drafts included, so that seeded output does
not depend on when drafts are judged (`docs/decisions/ngram-drafts-are-a-function-of-the-text.md`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from drafter_service.ngram_table import Candidate, Candidates, Context, NgramTable, Text, contexts


class Option(NamedTuple):
    """A token that may come next, because it did so in `text`, last at `place`."""

    token_id: int
    times: int
    text: Text
    place: int


class Match(NamedTuple):
    """What followed the same `size` tokens, the likeliest first; token ids are distinct."""

    size: int
    options: tuple[Option, ...]


class Guess(NamedTuple):
    """The token to expect, and how many tokens before it are as they were at its place."""

    token_id: int
    size: int
    text: Text
    place: int


class NgramIndex:
    """A growing text with an index of its n-grams.

    The rule: the place that was followed so far is followed on while its tokens come true and at
    least the longest n-gram agrees. Otherwise the longest n-gram wins that the text, or else one of
    the `further` texts, has had before; of its continuations the most frequent, of equally frequent
    ones the latest. `may_come(token_id, position)` says what can be a guess at all.

    Work is O(longest n-gram) a token. Every token but the last `undo_depth` is final.
    """

    def __init__(
        self,
        sizes: range,
        *,
        may_come: Callable[[int, int], bool],
        further: Sequence[Text] = (),
        undo_depth: int,
    ) -> None:
        self.tokens: list[int] = []
        self.guesses: list[Guess | None] = [None]
        """For each position up to the next one, what was to be expected there."""
        self._sizes = sizes
        self._may_come = may_come
        self._texts: tuple[Text, ...] = (self, *further)
        self._table = NgramTable()
        self._undo: deque[list[tuple[Context, Candidates]]] = deque(maxlen=undo_depth)

    # --- the text -----------------------------------------------------------------------------

    def append(self, token_id: int) -> None:
        """Add the next token, and make the guess for the one after it."""
        position = len(self.tokens)
        replaced = [
            (context, self._table.note(context, token_id, position))
            for context in contexts(self.tokens, position, self._sizes)
        ]
        self._undo.append(replaced)
        self.tokens.append(token_id)
        self.guesses.append(self._follow(self.guesses[-1], token_id) or self._first_option())

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on, at most `undo_depth` of them."""
        while len(self.tokens) > length:
            for context, candidates in self._undo.pop():
                self._table.put(context, candidates)
            self.tokens.pop()
            self.guesses.pop()

    def candidates(self, context: Context) -> Candidates:
        """What has followed a context in this text."""
        return self._table.get(context)

    def token_at(self, place: int) -> int | None:
        """The token at a place; None at the end."""
        return self.tokens[place] if place < len(self.tokens) else None

    # --- guessing -----------------------------------------------------------------------------

    def match(self) -> Match | None:
        """All that the longest n-gram with a continuation leaves open here."""
        position = len(self.tokens)
        for context in contexts(self.tokens, position, self._sizes[::-1]):
            options: dict[int, Option] = {}
            for text in self._texts:
                for known in text.candidates(context):
                    if known.token_id not in options and self._may_come(known.token_id, position):
                        options[known.token_id] = _option(text, known)
            if options:
                return Match(len(context), tuple(options.values()))
        return None

    def _follow(self, last: Guess | None, token_id: int) -> Guess | None:
        if last is None or last.token_id != token_id or last.size + 1 < self._sizes[-1]:
            return None
        token = last.text.token_at(last.place + 1)
        if token is None or not self._may_come(token, len(self.tokens)):
            return None
        return Guess(token, last.size + 1, last.text, last.place + 1)

    def _first_option(self) -> Guess | None:
        match = self.match()
        if match is None:
            return None
        token_id, _, text, place = match.options[0]
        return Guess(token_id, match.size, text, place)


def _option(text: Text, known: Candidate) -> Option:
    return Option(known.token_id, known.times, text, known.place)
