"""How well copying and the model have served a session: the estimates by which a cascade chooses.

Copying costs nothing, so it is judged at every token whether it was chosen or not; the model only
where it drafted. Estimates fade with every token, so that one that is not renewed returns to its
prior and the model is tried again: forgetting instead of exploring, as in discounted UCB (Garivier
and Moulines 2011, arXiv 0805.3415).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from drafter_service.ngram_index import NgramIndex

MODEL_PRIOR = 0.6
"""Acceptance that a model is held capable of before it has drafted."""
PRIOR_WEIGHT = 2.0
"""Tokens of evidence that a prior counts for."""
FADING = 0.97
"""What a token of evidence still counts for after one token more: about 33 count."""
LONGEST_CLASS = 8
"""Matches of this size and longer share an estimate."""
# Long matches are right more often: size / (size + 3) fits prose and code within 0.05.
_PRIORS = (MODEL_PRIOR, *(size / (size + 3) for size in range(1, LONGEST_CLASS + 1)))
_MODEL = 0


@dataclass(frozen=True, slots=True)
class Estimates:
    """Faded counts of right tokens and of all, for the model and then for each size of match."""

    hits: tuple[float, ...] = (0.0,) * len(_PRIORS)
    trials: tuple[float, ...] = (0.0,) * len(_PRIORS)

    @property
    def model(self) -> float:
        """The model's acceptance."""
        return self._mean(_MODEL)

    def copying(self, size: int) -> float:
        """The acceptance of tokens copied by a match of `size`."""
        return self._mean(min(size, LONGEST_CLASS))

    def _mean(self, source: int) -> float:
        hits = self.hits[source] + PRIOR_WEIGHT * _PRIORS[source]
        return hits / (self.trials[source] + PRIOR_WEIGHT)

    def prefer_copy(self, size: int, margin: float) -> bool:
        """Whether a match of `size` tokens is worth more than the model's draft, which costs a pass
        that `margin` of acceptance makes up for."""
        return self.copying(size) >= self.model - margin

    def after(self, outcomes: dict[int, bool]) -> Estimates:
        """With one token more, of which some sources (0: the model, else a size) were right."""
        return Estimates(
            tuple(FADING * h + outcomes.get(i, False) for i, h in enumerate(self.hits)),
            tuple(FADING * t + (i in outcomes) for i, t in enumerate(self.trials)),
        )


class Evidence:
    """The estimates of one session, from its output tokens in order.

    A token counts once it is final, where that is told, or else at positions a window behind it:
    whether it is known to be final before is a matter of timing, which must not shape reproducible
    output.
    """

    def __init__(self, start: int, window: int) -> None:
        self._window = window
        self._next = start
        """The first position that has not counted yet."""
        self._states: deque[Estimates] = deque([Estimates()], maxlen=window + 1)
        """The last when all before `_next` count, the one before it with a token less, …"""
        self._drawn: dict[int, int] = {}

    def drew(self, position: int, token_id: int) -> None:
        """The model has drafted this token."""
        self._drawn[position] = token_id

    def rollback(self, length: int) -> None:
        """Drafts behind `length` followed a wrong token; the one there followed right ones."""
        self._drawn = {p: token for p, token in self._drawn.items() if p <= length}

    def at_end(self, index: NgramIndex, num_final: int | None = None) -> Estimates:
        """The estimates by which the next token's source is chosen.

        Tokens that are a window old must be final. `num_final` never falls.
        """
        until = len(index.tokens) - self._window if num_final is None else num_final
        while self._next < until:
            self._states.append(self._states[-1].after(self._outcomes(index, self._next)))
            self._next += 1
        steps_back = min(self._next - until, len(self._states) - 1)
        return self._states[-1 - steps_back]

    def _outcomes(self, index: NgramIndex, position: int) -> dict[int, bool]:
        token_id, guess = index.tokens[position], index.guesses[position]
        outcomes = {}
        if guess is not None:
            outcomes[min(guess.size, LONGEST_CLASS)] = guess.token_id == token_id
        drawn = self._drawn.pop(position, None)
        if drawn is not None:
            outcomes[_MODEL] = drawn == token_id
        return outcomes
