"""The branches of all sessions: what is drafted ahead for outcomes that may come."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from drafter_service.drafter import Drafter, Forks, Proposal, ProposeRequest
from drafter_service.outcomes import Outcome
from drafter_service.session import DraftSession
from paceline.outcomes import MAX_SESSIONS_AHEAD, OUTCOMES_A_POSITION
from paceline.runtime.engine_thread import SessionKey
from paceline.types import DraftBlock

logger = logging.getLogger(__name__)


class Branching:
    """Outcomes by keys of their own, over a drafter that can fork; over others there are none."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._forks = drafter if isinstance(drafter, Forks) else None
        self._branches: dict[SessionKey, tuple[DraftSession, Outcome]] = {}
        self._due: list[tuple[DraftSession, range]] = []
        """Where drafts were sent for which no branch has been begun."""
        self._num_begun = 0

    def __len__(self) -> int:
        return len(self._branches)

    def is_on(self, num_sessions: int) -> bool:
        """Whether there is time to draft ahead."""
        return self._forks is not None and num_sessions <= MAX_SESSIONS_AHEAD

    @property
    def has_work(self) -> bool:
        """Whether there is anything to begin, or to go on with."""
        return bool(self._due) or any(map(_goes_on, self._branches.values()))

    def sent(self, session: DraftSession, base: int, num_tokens: int) -> None:
        """Drafts are on their way: any of them may be rejected."""
        if self._forks is not None and num_tokens and session.num_outcome_tokens:
            self._due.append((session, range(base, base + num_tokens)))

    def begin(self, *, num_sessions: int) -> None:
        """Begin the branches that are due, as far as there is time and room for them."""
        due, self._due = self._due, []
        for session, positions in due if self.is_on(num_sessions) else ():
            self._begin(session, positions)

    def _begin(self, session: DraftSession, positions: Iterable[int]) -> None:
        assert self._forks is not None
        guesses = [
            (position + 1, session.outcomes.take_guesses(position)) for position in positions
        ]
        outcomes = [
            self._outcome(session, base, tokens[rank])
            for rank in range(OUTCOMES_A_POSITION)  # the likeliest of all first: room may be short
            for base, tokens in guesses
            if rank < len(tokens) and session.room_behind(base) > 0
        ]
        if not outcomes:
            return
        places = [(outcome.key, outcome.base - 1) for outcome in outcomes]
        try:
            num_forked = self._forks.fork(session.key, places, session.num_outcome_tokens + 1)
        except Exception:  # the sessions can do without
            logger.exception("no outcomes are drafted ahead")
            return
        for outcome in outcomes[:num_forked]:
            session.outcomes.add(outcome)
            self._branches[outcome.key] = session, outcome

    def _outcome(self, session: DraftSession, base: int, token_id: int) -> Outcome:
        self._num_begun += 1
        return Outcome(
            (session.key[0], -self._num_begun),
            base=base,
            token_id=token_id,
            epoch=session.epoch + 1,
            num_tokens=session.room_behind(base),
        )

    def requests(self) -> list[ProposeRequest]:
        """What is still to be drawn."""
        return [
            outcome.request(session.opening, session.tokens, session.final_ids())
            for session, outcome in filter(_goes_on, self._branches.values())
        ]

    def take(self, key: SessionKey, proposal: Proposal) -> DraftBlock | None:
        """Draws of a branch; the block that they fill."""
        if key not in self._branches:  # its session has failed in this very step
            return None
        session, outcome = self._branches[key]
        outcome.add(proposal.draws)
        if outcome.is_full:
            return self.block(session, outcome)
        if proposal.error is not None or not (proposal.draws or proposal.is_pending):
            self.give_up(key)
        return None

    def block(self, session: DraftSession, outcome: Outcome) -> DraftBlock:
        """What is sent for an outcome."""
        kv_length = self._drafter.kv_length(
            outcome.key if outcome.key in self._branches else session.key
        )
        return outcome.block(session.opening, window=session.window, kv_length=kv_length)

    def give_up(self, key: SessionKey) -> None:
        """A branch cannot be drafted to its end."""
        if key in self._branches:
            session, outcome = self._branches[key]
            session.outcomes.drop(outcome)
            self.prune([outcome])

    def graft(self, session: DraftSession, outcome: Outcome) -> bool:
        """An outcome has come: go on with what was computed for it. False if that is gone."""
        if self._forks is None or self._branches.pop(outcome.key, None) is None:
            return False
        self._forks.graft(session.key, outcome.key)
        if outcome.is_full:
            self.sent(session, outcome.base, len(outcome.draws))
        return True

    def prune(self, outcomes: Iterable[Outcome]) -> None:
        """Free what branches have."""
        for outcome in outcomes:
            if self._branches.pop(outcome.key, None) is not None and self._forks is not None:
                self._forks.prune(outcome.key)

    def make_room(self) -> None:
        """Give the pages of all branches to sessions that wait for some.

        Drafts that were sent hold all the same; what was computed for them is computed again.
        """
        if self._forks is None or not self._forks.wants_room:
            return
        for session, outcome in list(self._branches.values()):
            if not outcome.is_full:
                session.outcomes.drop(outcome)
            self.prune([outcome])

    def forget(self, session: DraftSession) -> None:
        """A session has ended."""
        self._due = [each for each in self._due if each[0] is not session]
        self.prune(session.outcomes.clear())


def _goes_on(branch: tuple[DraftSession, Outcome]) -> Any:
    session, outcome = branch
    return not outcome.is_full and session.num_outcome_tokens > 0
