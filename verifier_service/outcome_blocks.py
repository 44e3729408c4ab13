"""Draft blocks that came ahead of what they follow: one of them may answer a rejection at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.errors import InvalidArgumentError
from paceline.outcomes import OUTCOMES_A_POSITION
from paceline.types import DraftBlock, OpenSession
from verifier_service.discards import Discards


class OutcomeBlocks:
    """Those of one session, each for a token that may come in place of a draft on its way.

    A block holds if its epoch begins with its token, right before its base. The drafter decides
    the same of what it hears, so whatever comes first the two agree.
    """

    def __init__(self, opening: OpenSession, discards: Discards) -> None:
        self._opening = opening
        self._discards = discards
        self._ahead: dict[tuple[int, int], DraftBlock] = {}  # by base and token
        self._begun: tuple[int, int] | None = None  # epoch, and length where it began

    def holds(self, block: DraftBlock, tokens: Sequence[int]) -> bool:
        """Whether what a block was drafted for has come, by now."""
        return (block.epoch, block.base) == self._begun and tokens[block.base - 1] == block.outcome

    @property
    def num_tokens(self) -> int:
        """Draft tokens that wait for what may come."""
        return sum(len(block.token_ids) for block in self._ahead.values())

    def keep(self, block: DraftBlock, *, epoch: int, num_committed: int) -> None:
        """Keep a block for what may come, if that is still possible.

        Raises `InvalidArgumentError` for a block that no correct drafter sends.
        """
        opening = self._opening
        assert block.outcome is not None
        if opening.num_outcome_tokens < 1:
            raise InvalidArgumentError("outcome", "the session was not opened for outcomes")
        if not 0 <= block.outcome < opening.vocab_size:
            raise InvalidArgumentError(
                "outcome", f"{block.outcome} is outside the vocabulary of {opening.vocab_size}"
            )
        if block.parents:
            raise InvalidArgumentError("parents", "a block for an outcome is a chain")
        most = min(opening.num_outcome_tokens, opening.window)
        if len(block.token_ids) > most:
            raise InvalidArgumentError(
                "token_ids", f"{len(block.token_ids)} draft tokens for an outcome, at most {most}"
            )
        if block.draft_probs is not None and block.draft_probs.probs.shape[1] > opening.draft_top_k:
            raise InvalidArgumentError("draft_probs", "they are dense, for an outcome")
        if block.epoch != epoch + 1 or block.base <= num_committed:
            self._discard(block)
            return
        if block.base > num_committed + opening.window:
            raise InvalidArgumentError(
                "base",
                f"{block.base} is beyond the window of {opening.window} behind {num_committed}",
            )
        place = block.base, block.outcome
        self._forget([place])
        if sum(base == block.base for base, _ in self._ahead) >= OUTCOMES_A_POSITION:
            raise InvalidArgumentError(
                "outcome", f"more than {OUTCOMES_A_POSITION} outcomes at position {block.base - 1}"
            )
        self._ahead[place] = block

    def epoch_begins(self, epoch: int, tokens: Sequence[int]) -> DraftBlock | None:
        """The last of `tokens` has begun an epoch; the block that was drafted for it."""
        self._begun = epoch, len(tokens)
        block = self._ahead.get((len(tokens), tokens[-1]))
        if block is not None and not self.holds(block, tokens):
            block = None
        if block is not None:
            del self._ahead[len(tokens), tokens[-1]]
        self._forget(self._ahead)
        return block

    def committed(self, length: int) -> None:
        """So many tokens are final: forget blocks for others."""
        self._forget(place for place in self._ahead if place[0] <= length)

    def clear(self) -> None:
        """Nothing that was drafted for can come any more."""
        self._forget(self._ahead)
        self._begun = None

    def _forget(self, places: Iterable[tuple[int, int]]) -> None:
        for place in list(places):
            block = self._ahead.pop(place, None)
            if block is not None:
                self._discard(block)

    def _discard(self, block: DraftBlock) -> None:
        self._discards.add(len(block.token_ids), "outcome", in_vain=False)
