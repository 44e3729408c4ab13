"""Other outcomes drafted ahead: what follows if a draft on its way is rejected for another token.

While the verifier computes, the drafter goes on behind the likeliest tokens that may come in place
of each sent draft ("speculative speculative decoding", arXiv 2603.03251). Where that is what comes,
the next block is at the verifier already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from drafter_service.drafter import ProposeRequest
from paceline.outcomes import OUTCOMES_A_POSITION
from paceline.runtime.engine_thread import SessionKey
from paceline.sampling.draw import Draw, stack_draws
from paceline.types import DraftBlock, DrafterState, OpenSession


class Spliced(Sequence[int]):
    """The first `end` ids of one sequence, then another: a view, since the first may be long."""

    def __init__(self, head: Sequence[int], end: int, tail: Sequence[int]) -> None:
        self._head = head
        self._end = end
        self._tail = tail

    def __len__(self) -> int:
        return self._end + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, int):
            place = range(len(self))[index]
            return self._head[place] if place < self._end else self._tail[place - self._end]
        start, stop, step = index.indices(len(self))
        assert step == 1
        head = self._head[start : min(stop, self._end)]
        return [*head, *self._tail[max(0, start - self._end) : max(0, stop - self._end)]]

    def __iter__(self) -> Iterator[int]:
        yield from self._head[: self._end]
        yield from self._tail


class Outcome:
    """A block behind `token_id`, should that come in place of the draft before position `base`.

    `key` is its own for the drafter, and `epoch` the one that begins with it.
    """

    def __init__(
        self, key: SessionKey, *, base: int, token_id: int, epoch: int, num_tokens: int
    ) -> None:
        self.key = key
        self.base = base
        self.token_id = token_id
        self.epoch = epoch
        self.draws: list[Draw] = []
        self._num_tokens = num_tokens
        self._tail = [token_id]

    @property
    def is_full(self) -> bool:
        """All of it is drawn, and has been sent."""
        return len(self.draws) == self._num_tokens

    def add(self, draws: Iterable[Draw]) -> None:
        """Further draws."""
        for draw in draws:
            self.draws.append(draw)
            self._tail.append(draw.token_id)

    def request(
        self, opening: OpenSession, token_ids: Sequence[int], final_ids: Sequence[int] | None
    ) -> ProposeRequest:
        """Asks for the rest of the block; the ids are the session's, see `ProposeRequest`."""
        return ProposeRequest(
            self.key,
            opening,
            Spliced(token_ids, self.base - 1, self._tail),
            self.epoch,
            limit=self._num_tokens - len(self.draws),
            num_committed=self.base,
            num_others=OUTCOMES_A_POSITION,
            final_ids=final_ids,
        )

    def block(self, opening: OpenSession, *, window: int, kv_length: int) -> DraftBlock:
        """The block that is sent. It says what the drafter will know, and how it will be, once the
        outcome has come."""
        fills_window = len(self.draws) >= window
        return DraftBlock(
            session_id=opening.session_id,
            epoch=self.epoch,
            base=self.base,
            token_ids=tuple(draw.token_id for draw in self.draws),
            draft_probs=stack_draws(self.draws),
            known_committed=self.base,
            state=DrafterState.PAUSED if fills_window else DrafterState.RUNNING,
            kv_length=kv_length,
            draft_us=0,
            outcome=self.token_id,
        )


class Outcomes:
    """Those of one session, by the position before which each begins, and the token there."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._guesses: dict[int, tuple[int, ...]] = {}

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self._outcomes.values())

    def guess(self, position: int, draws: Iterable[Draw]) -> None:
        """Drafts from `position` on: what may come in place of each."""
        for place, draw in enumerate(draws, position):
            if draw.others:
                self._guesses[place] = tuple(dict.fromkeys(draw.others))  # few may be likely

    def take_guesses(self, position: int) -> tuple[int, ...]:
        """What may come in place of a draft, likeliest first; asked for once."""
        return self._guesses.pop(position, ())

    def add(self, outcome: Outcome) -> None:
        self._outcomes[outcome.base, outcome.token_id] = outcome

    def find(self, position: int, token_id: int) -> Outcome | None:
        """The one for this token at this position."""
        return self._outcomes.get((position + 1, token_id))

    def drop(self, outcome: Outcome) -> None:
        """One that is not drawn to its end, and will not be sent."""
        del self._outcomes[outcome.base, outcome.token_id]

    def committed(self, length: int) -> list[Outcome]:
        """So many tokens are final, drafts among them; returns those that can no longer come."""
        self._guesses = {at: tokens for at, tokens in self._guesses.items() if at >= length}
        passed = [outcome for outcome in self if outcome.base <= length]
        for outcome in passed:
            self.drop(outcome)
        return passed

    def clear(self) -> list[Outcome]:
        """None can come any more; returns them."""
        self._guesses.clear()
        gone, self._outcomes = list(self), {}
        return gone
