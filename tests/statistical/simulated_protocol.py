"""Drafter, link and verifier of one session as the protocol runs them, without processes.

The schedule (how far the drafter runs ahead, what has arrived, whether a bonus row is taken, when
the verifier decodes by itself) is random but, as in reality, blind to the session's numbers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from toy_pair import PROMPT, Tokens


@dataclass(frozen=True)
class Schedule:
    """How sessions are run: block length, window, and how often (0 to 1) what happens.

    `bonus`: a pass has a bonus row. `autoregressive`: the verifier decodes by itself although
    drafts are there. `late`: a part of the drafts that were sent has not arrived.
    """

    block_length: int
    window: int
    bonus: float = 0.5
    autoregressive: float = 0.1
    late: float = 0.5


class Sides(Protocol):
    """What the two models do, for one seed."""

    def draft(self, tokens: Tokens, epoch: int) -> int:
        """The draft token after a prefix."""
        ...

    def judge(
        self, tokens: Tokens, drafts: Tokens, epoch: int, *, bonus: bool
    ) -> tuple[int, int | None]:
        """Accepted length and next token of one pass."""
        ...


def run_session(sides: Sides, schedule: Schedule, num_tokens: int, chance: random.Random) -> Tokens:
    """The first `num_tokens` output tokens of a session."""
    tokens = PROMPT
    end = len(PROMPT) + num_tokens
    epoch = 0
    tail: Tokens = ()  # drafts that were sent and not judged
    while len(tokens) < end:
        for _ in range(int(3 * chance.random())):
            room = min(schedule.window - len(tail), end - len(tokens) - len(tail))
            for _ in range(min(schedule.block_length, room)):
                tail += (sides.draft(tokens + tail, epoch),)
        arrived = tail
        if chance.random() < schedule.late:
            arrived = tail[: int((len(tail) + 1) * chance.random())]
        if chance.random() < schedule.autoregressive:
            arrived = ()
        # Without drafts a pass needs the row of the next token.
        bonus = not arrived or chance.random() < schedule.bonus
        accepted, next_token = sides.judge(tokens, arrived, epoch, bonus=bonus)
        tokens += arrived[:accepted]
        if next_token is None:
            tail = tail[accepted:]
            continue
        tokens += (next_token,)
        in_flight = tail[accepted:]
        # A draft in flight at the place of a bonus or autoregressive token may equal it.
        if accepted == len(arrived) and (not in_flight or in_flight[0] == next_token):
            tail = in_flight[1:]
        else:
            tail = ()
            epoch += 1
    return tokens[len(PROMPT) : end]
